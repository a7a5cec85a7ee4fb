"""Search and oracle on experts, latent attention, every schedule, racks and odd clusters."""

import pytest

from costmodels.axes import SCHEDULES
from costmodels.breakdown import break_down
from costmodels.plans import Layout
from costmodels.schedule.stages import spelled
from searches.pricing.layout_prices import price_layouts
from searches.search import search
from tests.repeats import halved
from tests.searches import oracle, oracle_models
from tests.searches import oracle_physics as physics
from tests.searches.instances import INSTANCES, one_in, with_options
from tests.searches.test_oracle import CLOSE, check_against_oracle, legal_plans, thinned
from tests.searches.wider_instances import FAST, SLOW


@pytest.mark.slow
@pytest.mark.parametrize("name", one_in(2, FAST))
def test_search_equals_the_oracle(name):
    check_against_oracle(with_options(FAST[name], n_finalists=12))


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_larger_searches_equal_the_oracle(name):
    check_against_oracle(with_options(SLOW[name], n_finalists=40))


@pytest.mark.slow
def test_the_instances_have_every_schedule_size_and_kind_of_model():
    plans = {name: [p.layout for p in legal_plans(c)] for name, c in FAST.items()}
    seen = {(x.schedule, x.rank_order) for some in plans.values() for x in some}
    assert {schedule for schedule, _ in seen} == set(SCHEDULES)
    assert len({order for _, order in seen}) == 2
    sizes = {c.n_devices for c in FAST.values()}
    assert sizes >= {24, 72, 96, 1000, 3072}
    for axis in ("ep", "etp", "shard", "optimizer_offload", "recompute_modules"):
        assert len({getattr(x, axis) for some in plans.values() for x in some}) > 1, axis
    assert len({x.dp_overlap for some in plans.values() for x in some}) == 2


@pytest.mark.parametrize(
    "name",
    one_in(
        4,
        [
            "toy-8",
            "toy-24-two-tiers",
            "userbuffers",
            "cp-by-default",
            "zero3-by-tensor",
            "context-with-pipelines-inside",
            "h100-8-fp8",
        ],
    ),
)
def test_both_oracles_agree_on_dense_models(name):
    """They were written one after the other, and price a layer and a rank in their own ways."""
    c = INSTANCES[name]
    for plan in thinned(legal_plans(c), 25):
        one = physics.micro_batch(c.problem, plan.layout)
        other = oracle_models.micro_batch(c.problem, plan.layout)
        a, b = (oracle.price(c.problem, plan.layout, x) for x in (one, other))
        assert a.closed_form_s == pytest.approx(b.closed_form_s, rel=CLOSE)
        assert a.peak_bytes == pytest.approx(b.peak_bytes, rel=CLOSE)
        exact = oracle_models.exact_step_s(c.problem, plan.layout, other)
        assert oracle.exact_step_s(c.problem, plan.layout) == pytest.approx(exact, rel=CLOSE)


@pytest.mark.parametrize("name", one_in(16, FAST))
def test_a_breakdown_has_the_step_and_the_memory_of_the_oracle(name):
    c = FAST[name]
    for plan in thinned(sorted(legal_plans(c), key=oracle.rank_key), 6):
        found = break_down(c.problem, plan.layout)
        one = oracle.micro_batch(c.problem, plan.layout)
        priced = oracle.price(c.problem, plan.layout, one)
        assert found.closed_form_step_s == pytest.approx(priced.closed_form_s, rel=CLOSE)
        assert found.step_s == pytest.approx(
            oracle.exact_step_s(c.problem, plan.layout), rel=CLOSE
        )
        ranks = range(plan.layout.pp)
        peaks = [sum(stage.values()) for stage in found.stages]
        if isinstance(one, oracle_models.Micro):
            wanted = [oracle_models.rank_bytes(c.problem, plan.layout, one, r) for r in ranks]
        else:
            wanted = [physics.rank_bytes(c.problem, plan.layout, one, r) for r in ranks]
        assert peaks == pytest.approx(wanted, rel=CLOSE)


@pytest.mark.parametrize("name", halved(one_in(12, FAST)))
def test_bounds_change_nothing(name):
    c = FAST[name]
    for n in (1, 8):
        whole = search(with_options(c, n_finalists=n))
        bounded = search(with_options(c, n_finalists=n, bound=True))
        assert bounded.finalists == whole.finalists
        assert (bounded.n_legal, bounded.closest) == (whole.n_legal, whole.closest)


EMPTY = (("0-3-2-1", 1), ("2-0-4-0", 1), ("0-1-4-1", 2), ("2-1-3-0", 2), ("0-0-5-1", 2))
"""Six layers on some virtual stages of which some are empty, and the chunks of a rank."""


@pytest.mark.parametrize("name", ["shared-experts-of-some-layers", "every-schedule"])
def test_empty_stages_have_the_numbers_of_the_oracle(name):
    c, layouts = FAST[name], []
    for counts, vpp in EMPTY:
        counts = tuple(map(int, counts.split("-")))
        counts = (*counts[:-1], counts[-1] + c.problem.shape.layers - sum(counts))
        for recompute, depth in (("none", 0), ("full", 1), ("full", max(counts))):
            pp = len(counts) // vpp
            layout = Layout(
                n_devices=c.n_devices,
                tp=1,
                pp=pp,
                dp=c.n_devices // pp,
                vpp=vpp,
                split=spelled(counts),
                mbs=1,
                gbs=c.problem.job.global_batch,
                zero=1 if c.n_devices > pp else 0,
                sp=False,
                schedule="interleaved" if vpp > 1 else "1f1b",
                recompute=recompute,
                recompute_layers=depth,
                stage_layers=counts,
            )
            if min(counts) >= 0 and layout.n_micro % pp == 0:
                layouts.append(layout)
    assert len(layouts) >= 9
    for layout in layouts:
        [found] = price_layouts(c.problem, [layout])
        wanted = oracle.price(c.problem, layout, oracle.micro_batch(c.problem, layout))
        assert found.closed_form_s == pytest.approx(wanted.closed_form_s, rel=CLOSE), layout
        assert found.peak_bytes == pytest.approx(wanted.peak_bytes, rel=CLOSE), layout
        broken = break_down(c.problem, layout)
        assert broken.peak_bytes == pytest.approx(wanted.peak_bytes, rel=CLOSE), layout
        assert broken.step_s == pytest.approx(oracle.exact_step_s(c.problem, layout), rel=CLOSE), (
            layout
        )
