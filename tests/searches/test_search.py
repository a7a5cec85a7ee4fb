"""What holds for every search: more never hurts, pins never help, cuts do not show."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.axes import CP_COMMS, RANK_ORDERS
from costmodels.plans import ShapeTable
from hardware.parts import Fabric
from searches import search as search_module
from searches.executors.executor import SerialExecutor
from searches.options import SearchOptions
from searches.pricing import limits
from searches.pricing import shard_prices as pricing
from searches.pricing.outcome import Outcome
from searches.pricing.shard_prices import search_shard
from searches.rules import RULES, Context
from searches.search import search
from searches.space import shards
from searches.space.free_axes import free_axes
from searches.space.shape_space import ShapeSpace, legal_shapes
from searches.space.shards import make_shards
from tests.repeats import examples, halved
from tests.searches import oracle
from tests.searches.instances import (
    GB,
    GQA,
    INSTANCES,
    TWO_TIERS,
    context,
    one_in,
    pins,
    real_pool,
    toy_pool,
    with_fast_host,
    with_options,
    with_part,
    with_pool,
)

ALL = 10**6
"""So many finalists that every fitting plan is priced exactly."""
NO_SLOWER = 1 + 1e-12

VARIED = ("toy-8", "toy-24-tight", "toy-12-odd-batch", "a100-8-unfused-2022", "h100-24-megatron")
LARGER = {
    "h100-64": context(
        replace(GQA, layers=24, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256),
        real_pool("h100", 8, 8, memory=30 * GB),
        seq_len=4096,
        batch=128,
        fabric=TWO_TIERS,
    ),
    "a100-48": context(
        replace(GQA, layers=26, hidden=4096, heads=24, kv_heads=8, flash_attention=False),
        real_pool("a100", 6, 8, memory=24 * GB),
        seq_len=2048,
        batch=96,
        stack="eager",
    ),
}
LARGER = {name: with_options(c, bound=False) for name, c in LARGER.items()}


def best_s(c: Context) -> float:
    finalists = search(c).finalists
    return finalists[0].step_s if finalists else float("inf")


def exhaustive(c: Context) -> Context:
    return with_options(c, n_finalists=ALL, bound=False)


# More never hurts -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", one_in(9, [*VARIED, *LARGER]))
def test_more_memory_never_gives_fewer_plans_nor_a_slower_best(name):
    c = {**INSTANCES, **LARGER}[name]
    outcomes = [
        search(with_part(c, memory_bytes=memory * GB))
        for memory in (1.5, 4, 6, 8, 11, 16, 32, 200)
    ]
    for less, more in itertools.pairwise(outcomes):
        assert more.n_fit >= less.n_fit
        if less.finalists:
            assert more.finalists[0].step_s <= less.finalists[0].step_s * NO_SLOWER
    assert outcomes[0].n_fit < outcomes[-1].n_fit


def faster_nic(c: Context, factor: float) -> Context:
    nic = c.problem.pool.nic
    return with_pool(c, nic=replace(nic, bytes_per_s=factor * nic.bytes_per_s))


def faster_scale_up(c: Context, factor: float) -> Context:
    part = c.problem.pool.accelerator
    in_switch = factor * part.in_switch_all_reduce_bytes_per_s
    return with_part(
        c,
        ring_bytes_per_s=factor * part.ring_bytes_per_s,
        in_switch_all_reduce_bytes_per_s=in_switch,
    )


def faster_hbm(c: Context, factor: float) -> Context:
    return with_part(c, hbm_bytes_per_s=factor * c.problem.pool.accelerator.hbm_bytes_per_s)


def higher_peak(c: Context, factor: float) -> Context:
    peaks = c.problem.pool.accelerator.peak_flops_per_s
    return with_part(c, peak_flops_per_s={name: factor * rate for name, rate in peaks.items()})


FASTER = (faster_nic, faster_scale_up, faster_hbm, higher_peak)


@pytest.mark.parametrize("tp_fits", one_in(2, [False, True]))
def test_a_rack_never_gives_a_slower_best_plan_than_its_trays_alone(tp_fits):
    """The same 144 GB200, NICs and all, with NVLink over 4, 8, 36 and 72 of them."""
    trays = context(
        replace(GQA, layers=12, heads=24, kv_heads=8), real_pool("gb200", 36, 4), batch=144
    )
    if tp_fits:
        trays = with_options(trays, at_most={"tp": 4})
    times = [best_s(with_pool(trays, scale_up_domain=domain)) for domain in (4, 8, 36, 72)]
    for small, large in itertools.pairwise(times):
        assert large <= small * NO_SLOWER
    assert times[-1] < times[0]


def test_sums_in_the_network_never_give_a_slower_best_plan():
    c = context(GQA, toy_pool(24, 2), batch=24, options=pins(zero=0))
    assert best_s(with_pool(c, n_summing_tiers=1)) <= best_s(c) * NO_SLOWER


@pytest.mark.parametrize("faster", one_in(2, FASTER))
@pytest.mark.parametrize("name", halved(one_in(10, [*VARIED, *LARGER])))
def test_a_faster_part_never_gives_a_slower_best_plan(faster, name):
    c = {**INSTANCES, **LARGER}[name]
    times = [best_s(faster(c, factor)) for factor in (0.25, 1.0, 1.1, 16)]
    for slow, fast in itertools.pairwise(times):
        assert fast <= slow * NO_SLOWER
    assert times[-1] < times[0] or faster is faster_nic


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(
    name=st.sampled_from(VARIED),
    faster=st.sampled_from(FASTER),
    base=st.floats(0.1, 4.0),
    gain=st.floats(1.0, 3.0),
)
def test_a_little_faster_is_never_slower(name, faster, base, gain):
    c = INSTANCES[name]
    assert best_s(faster(c, base * gain)) <= best_s(faster(c, base)) * NO_SLOWER


def test_oversubscription_and_lost_rails_never_help():
    c = INSTANCES["toy-24-two-tiers"]
    full = Fabric(tuple(replace(tier, oversubscription=1.0) for tier in TWO_TIERS.tiers))
    none, some = (
        best_s(replace(c, problem=replace(c.problem, fabric=fabric)))
        for fabric in (full, replace(TWO_TIERS, rail_optimized=False))
    )
    assert none <= some


# Pins -----------------------------------------------------------------------------------------

PINS = {
    "tp": (1, 2),
    "pp": (1, 2),
    "vpp": (1, 2),
    "split": (0, 1),
    "mbs": (1, 2),
    "zero": (0, 1, 3),
    "sp": (0, 1),
    "recompute": (0, 2),
    "recompute_layers": (0, 1),
    "schedule": (0, 2),
}


@pytest.mark.parametrize("axis", one_in(6, PINS))
@pytest.mark.parametrize("name", one_in(2, ["toy-8", "h100-64"]))
def test_pins_and_limits_never_improve_the_best(axis, name):
    c = {**INSTANCES, **LARGER}[name]
    free = best_s(c)
    for value in PINS[axis]:
        assert best_s(with_options(c, only={axis: frozenset((value,))})) >= free
        assert best_s(with_options(c, at_most={axis: value})) >= free


@pytest.mark.parametrize("axis", one_in(12, PINS))
def test_pinned_plans_are_the_free_ones_with_that_value(axis):
    c = exhaustive(INSTANCES["toy-8-tight"])
    every = search(c).finalists
    assert len(every) > 100

    def number(layout: object) -> int:
        value = getattr(layout, axis)
        return oracle.WORDS[axis].index(value) if isinstance(value, str) else int(value)

    for value in PINS[axis]:
        pinned = search(with_options(c, only={axis: frozenset((value,))})).finalists
        assert pinned == tuple(f for f in every if number(f.layout) == value)
        limited = search(with_options(c, at_most={axis: value})).finalists
        assert limited == tuple(f for f in every if number(f.layout) <= value)


def test_frameworks_never_improve_the_best():
    free = best_s(INSTANCES["toy-8"])
    for framework in ("megatron", "deepspeed", "any"):
        assert best_s(with_options(INSTANCES["toy-8"], framework=framework)) >= free


# Cuts do not show -----------------------------------------------------------------------------


def same(a: Outcome, b: Outcome) -> None:
    assert replace(a, shards=(0, 0)) == replace(b, shards=(0, 0))  # floats to the last bit


@pytest.mark.parametrize("name", halved(one_in(12, [*INSTANCES, *LARGER][::5])))
@pytest.mark.parametrize(("rows", "shapes"), [(7, 3), (10**9, 1000)])
def test_tile_and_shard_size_do_not_change_the_answer(name, rows, shapes, monkeypatch):
    if name in LARGER:
        rows = 100 * rows
    c = {**INSTANCES, **LARGER}[name]
    wanted = search(c)
    monkeypatch.setattr(pricing, "BLOCK_CELLS", rows)
    monkeypatch.setattr(search_module, "SHARD_SHAPES", shapes)
    outcome = search(c)
    same(outcome, wanted)
    assert outcome.shards[1] >= -(-outcome.n_shapes // shapes)


@pytest.mark.parametrize("name", one_in(3, ["toy-24-tight", "toy-8-hopeless", "h100-64"]))
def test_the_order_of_shapes_and_shards_does_not_change_the_answer(name, monkeypatch):
    c = {**INSTANCES, **LARGER}[name]
    wanted, space = search(c), legal_shapes(c)
    monkeypatch.setattr(search_module, "SHARD_SHAPES", 3)
    for seed in range(2):
        rows = np.random.default_rng(seed).permutation(len(space.shapes))
        mixed = ShapeSpace(space.shapes.take(rows), space.n_candidates, space.rejected)
        monkeypatch.setattr(search_module, "legal_shapes", lambda context, mixed=mixed: mixed)
        same(search(c), wanted)


def test_the_same_search_twice_gives_the_same_bytes():
    assert repr(search(INSTANCES["h100-16"])) == repr(search(INSTANCES["h100-16"]))


# Bounds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", halved(one_in(16, [*INSTANCES, *LARGER][::2])))
def test_plans_left_out_by_their_bound_change_nothing(name):
    every = {**INSTANCES, **LARGER}[name]
    for n in (1, 5, 64):
        whole = search(with_options(every, n_finalists=n))
        outcome = search(with_options(every, n_finalists=n, bound=True))
        assert outcome.finalists == whole.finalists
        assert (outcome.n_legal, outcome.n_rivals) == (whole.n_legal, whole.n_rivals)
        assert outcome.closest == whole.closest
        over = outcome.rejected_plans.get("MEM001", 0)
        assert outcome.n_legal == outcome.n_fit + over + outcome.n_excluded
        assert outcome.n_fit <= whole.n_fit
        assert whole.n_excluded == 0


@pytest.mark.parametrize("name", ["toy-24-tight", "toy-8-hopeless"])
def test_batches_left_out_for_their_memory_hold_no_plan_that_fits(name):
    c = INSTANCES[name]
    left_out = 0
    for shard in make_shards(c, legal_shapes(c).shapes):
        found, whole = search_shard(shard), search_shard(replace(shard, nearest=True))
        assert (found.best, found.n_faster) == (whole.best, whole.n_faster)
        assert found.batches.n_fit.tolist() == whole.batches.n_fit.tolist()
        left_out += int((found.batches.n_fit == 0).sum())
    assert left_out  # some batch is too large, or nothing was tested


def test_bounds_leave_out_most_of_a_large_space():
    outcome = search(with_options(LARGER["h100-64"], n_finalists=10, bound=True))
    assert outcome.n_excluded > outcome.n_legal / 2
    assert outcome.bound_s >= outcome.finalists[0].step_s


@pytest.mark.parametrize(
    "name", one_in(2, [*VARIED, *LARGER, "lockstep", "nanotron-across", "pinned-words"])
)
def test_lower_bounds_are_below_the_exact_time_of_every_plan(name):
    c = exhaustive({**INSTANCES, **LARGER}[name])
    shapes = legal_shapes(c).shapes
    axes = free_axes(c, shapes)
    least_s = shards.batch_bounds_s(c, shapes)
    row = {degrees: i for i, degrees in enumerate(shape_degrees(shapes))}
    sizes = axes.mbs.tolist()
    tightest = 0.0
    for plan in search(with_options(c, n_finalists=300)).finalists:
        x = plan.layout
        order = RANK_ORDERS.index(x.rank_order)
        degrees = (x.tp, x.pp, x.vpp, x.split, x.cp, x.cp_comm, x.ep, x.etp, order)
        least = least_s[row[degrees], sizes.index(x.mbs), int(x.sp)]
        assert least <= plan.least_s <= plan.step_s * (1 + 1e-12), x
        assert least <= plan.closed_form_s
        tightest = max(tightest, plan.least_s / plan.step_s)
    assert tightest > 0.9


def shape_degrees(shapes: ShapeTable) -> list[tuple[object, ...]]:
    columns = (
        shapes.tp,
        shapes.pp,
        shapes.vpp,
        shapes.split,
        shapes.cp,
        shapes.cp_comm,
        shapes.ep,
        shapes.etp,
        shapes.rank_order,
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [(*r[:3], shapes.splits[r[3]], r[4], CP_COMMS[r[5]], *r[6:]) for r in rows]


@pytest.mark.parametrize(
    "name", one_in(3, ["messages-scattered", "toy-24-two-tiers", "pipelines-inside"])
)
def test_a_plan_that_the_closed_form_ranks_low_is_found_by_its_bound(name):
    """With one finalist the first by closed form is not the first by the recurrence here."""
    c = with_options(with_fast_host(INSTANCES[name]), n_finalists=1)
    outcome, every = search(c), search(exhaustive(c))
    assert outcome.finalists[0] == every.finalists[0]
    by_form = min(every.finalists, key=lambda f: (f.closed_form_s, f.peak_bytes))
    assert outcome.n_rivals
    assert by_form != outcome.finalists[0]


# Counts and finalists --------------------------------------------------------------------------


@pytest.mark.parametrize("name", halved(one_in(9, [*INSTANCES, *LARGER])))
def test_counts_add_up(name):
    outcome = search({**INSTANCES, **LARGER}[name])
    assert outcome.n_candidate_shapes == outcome.n_shapes + sum(outcome.rejected_shapes.values())
    assert outcome.n_candidates == outcome.n_fit + sum(outcome.rejected_plans.values())
    assert outcome.n_legal == outcome.n_fit + outcome.rejected_plans.get("MEM001", 0)
    assert {*outcome.rejected_shapes, *outcome.rejected_plans} <= set(RULES)
    assert all(count > 0 for count in outcome.rejected_shapes.values())
    assert all(count > 0 for count in outcome.rejected_plans.values())


@pytest.mark.parametrize("n", one_in(4, [5, 1, 2, 64]))
def test_finalists_are_the_first_by_closed_form(n):
    c = INSTANCES["toy-24-tight"]
    every = search(exhaustive(c)).finalists
    order = sorted(every, key=lambda f: (f.closed_form_s, f.peak_bytes, oracle.degrees(f.layout)))
    outcome = search(with_options(c, n_finalists=n))
    assert set(order[:n]) <= set(outcome.finalists)
    assert len(outcome.finalists) == n + outcome.n_rivals


@pytest.mark.parametrize("name", one_in(2, LARGER))
def test_the_finalists_hold_the_exact_best(name):
    c = LARGER[name]
    assert search(c).finalists[0] == search(with_options(c, n_finalists=1000)).finalists[0]


def test_no_finalist_exceeds_the_memory():
    for name in ("toy-24-tight", "deepspeed", "pinned-depth"):
        c = INSTANCES[name]
        peaks = [f.peak_bytes for f in search(exhaustive(c)).finalists]
        assert max(peaks) <= c.problem.pool.usable_bytes
        tight = with_pool(
            c, memory_margin_bytes=c.problem.pool.accelerator.memory_bytes - min(peaks) - 1.0
        )
        left = search(exhaustive(tight)).finalists
        assert left
        assert max(f.peak_bytes for f in left) <= min(peaks) + 1.0


def test_deep_models_thin_their_recompute_depths():
    depths = {f.layout.recompute_layers for f in search(exhaustive(INSTANCES["deep"])).finalists}
    assert {1, 37} <= depths  # the ends are kept
    assert len(depths - {0}) < 37
    pinned = with_options(INSTANCES["deep"], only={"recompute_layers": frozenset((36,))})
    assert {f.layout.recompute_layers for f in search(pinned).finalists} == {36}


# Nothing fits, stopped, interrupted --------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", one_in(3, ["toy-8", "toy-24-two-tiers", "h100-16"]))
def test_the_closest_miss_is_the_least_of_all(name, monkeypatch):
    c = INSTANCES[name]
    legal = oracle.solve(c.problem, c.options, c.n_devices).legal
    least = min(plan.peak_bytes for plan in legal)
    margin = c.problem.pool.accelerator.memory_bytes - 0.999 * least
    outcome = search(with_pool(c, memory_margin_bytes=margin))
    assert outcome.finalists == ()
    assert outcome.n_fit == 0
    assert outcome.closest is not None
    assert outcome.closest.peak_bytes == pytest.approx(least, rel=1e-12)
    assert search(with_pool(c, memory_margin_bytes=margin - 0.002 * least)).closest is None


def test_no_shapes_at_all_is_an_answer():
    outcome = search(context(batch=7, options=SearchOptions(at_most={"dp": 0})))
    assert (outcome.n_shapes, outcome.n_candidates, outcome.finalists) == (0, 0, ())
    assert outcome.closest is None
    assert outcome.complete
    assert outcome.rejected_shapes["PIN001"] == outcome.n_candidate_shapes


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(search_module, "SHARD_SHAPES", 4)
    monkeypatch.setattr(search_module, "STOPPABLE_SHAPES", 4)
    monkeypatch.setattr(shards, "FIRST_SHAPES", 0)


@pytest.mark.usefixtures("small_shards")
def test_stop_gives_the_best_so_far_marked_incomplete():
    c, told = INSTANCES["toy-24-tight"], []
    asked = itertools.count()
    outcome = search(c, stop=lambda: next(asked) >= 2, progress=lambda *x: told.append(x))
    assert not outcome.complete
    whole = search(exhaustive(c))
    n_shards = whole.shards[1]
    assert n_shards > 5
    assert outcome.shards == (3, n_shards)
    assert told == [(1, n_shards), (2, n_shards), (3, n_shards)]
    assert whole.complete
    assert outcome.finalists
    assert set(outcome.finalists) <= set(whole.finalists)
    assert outcome.n_legal < whole.n_legal
    assert outcome.n_candidates == outcome.n_fit + sum(outcome.rejected_plans.values())


@pytest.mark.usefixtures("small_shards")
def test_stop_is_not_asked_before_the_first_shard():
    outcome = search(INSTANCES["toy-24-tight"], stop=lambda: True)
    assert outcome.shards[0] == 1
    assert not outcome.complete
    assert outcome.finalists


class Interrupted(SerialExecutor):
    """Raises `KeyboardInterrupt` in place of the n-th group of shards."""

    def __init__(self, n: int) -> None:
        self.left = n

    def map(self, run, shards):
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        return super().map(run, shards)


@pytest.mark.usefixtures("small_shards")
def test_an_interrupt_returns_what_was_found():
    outcome = search(INSTANCES["toy-24-tight"], Interrupted(2))
    assert not outcome.complete
    assert outcome.stopped == "interrupted"
    assert outcome.shards[0] == 2
    asked = itertools.count()
    stopped = search(INSTANCES["toy-24-tight"], stop=lambda: next(asked) >= 1)
    assert replace(stopped, stopped="interrupted") == outcome


def second_round(c: Context, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """Return a search that needs two rounds: the first keeps no rivals."""
    monkeypatch.setattr(limits, "RIVAL_MARGIN", 0.5)
    told: list[int] = []
    outcome = search(c, progress=lambda done, of: told.append(done))
    assert told.count(1) == 2
    return outcome


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("how", ["stop", "interrupt"])
def test_a_stop_in_the_second_round_keeps_what_the_first_found(how, monkeypatch):
    c = with_options(INSTANCES["h100-24-megatron"], n_finalists=1, bound=True)
    whole, told = second_round(c, monkeypatch), list[int]()

    def progress(done: int, of: int) -> None:
        told.append(done)
        if how == "interrupt" and told.count(1) == 2:
            raise KeyboardInterrupt

    outcome = search(c, stop=lambda: how == "stop" and told.count(1) == 2, progress=progress)
    assert outcome.stopped == ("time limit" if how == "stop" else "interrupted")
    assert outcome.shards[0] == outcome.shards[1]
    assert outcome.n_legal == whole.n_legal
    assert outcome.finalists[0].closed_form_s <= whole.finalists[0].closed_form_s
    assert outcome.finalists[0].step_s / (1 + outcome.gap) <= whole.finalists[0].step_s


@pytest.mark.usefixtures("small_shards")
def test_an_interrupt_before_anything_was_found_goes_on_up():
    with pytest.raises(KeyboardInterrupt):
        search(INSTANCES["toy-24-tight"], Interrupted(0))
    with pytest.raises(KeyboardInterrupt):  # shards were priced, but nothing fits
        search(INSTANCES["toy-8-hopeless"], Interrupted(1))


def test_an_interrupt_after_the_last_shard_is_not_lost(monkeypatch):
    def progress(done: int, n_shards: int) -> None:
        raise KeyboardInterrupt

    assert search(INSTANCES["toy-8"], progress=progress).finalists


def test_an_empty_table_of_shapes_takes_no_rows():
    assert len(ShapeTable.of_columns(8, {"tp": []})) == 0
