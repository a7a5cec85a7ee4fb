"""Uneven splits in a search: what they must keep to, and that they are never slower."""

from dataclasses import replace
from itertools import accumulate

import pytest

from costmodels.axes import RECOMPUTES
from costmodels.breakdown import break_down
from costmodels.plans import PlanTable
from costmodels.schedule.stages import SPLITS, spelled
from costmodels.shape_terms import shape_terms
from costmodels.step import join, peak_bytes
from planner.solver.problem import make_problem
from planner.solver.request import SolveRequest
from planner.solver.sources import read_inputs
from searches.frameworks.table import refusals
from searches.options import TEXT_AXES, SearchOptions
from searches.pricing.layout_prices import exact_step_s
from searches.rules import Context, first_broken_rule
from searches.search import search
from searches.splits.uneven import LEAST_GAIN, SplitPlan, improve_splits
from tests.searches.instances import one_in, with_fast_host


def context_of(model="llama3-70b", cluster="h100-x512", fields=(), **options) -> Context:
    """Return a search on a host that is never late: late, it hides what kinds of layer differ by.

    Then a split named `ends` is often the best of all.
    """
    chosen = SolveRequest.of(top=1).options()
    problem = make_problem(*read_inputs(model, cluster, tuple(fields)), chosen)
    wanted = SearchOptions(**{"split_shapes": 6, "n_finalists": 32, **options})
    return with_fast_host(Context(problem, wanted, problem.pool.n_devices))


def only(**axes) -> dict[str, frozenset[int]]:
    """Pins by axis, words as their position."""
    return {
        axis: frozenset([TEXT_AXES[axis].index(x) if isinstance(x, str) else x])
        for axis, x in axes.items()
    }


CASES = {
    "gpt3": ("gpt3-175b", "a100-x1024", (), only(pp=8, vpp=5)),
    "qwen3 interleaved": ("qwen3-235b-a22b", "h100-x512", (), only(pp=16, vpp=3, ep=8)),
    "deepseek": ("deepseek-v3", "h800-x2048", (), only(pp=16, tp=2, ep=16)),
    "deepseek pp 8": ("deepseek-v3", "h800-x2048", (), only(pp=8, tp=2, ep=16)),
    "llama3 405b": ("llama3-405b", "h100-x16384", (), only(pp=16, vpp=3)),
}


@pytest.mark.parametrize("case", one_in(4, CASES))
def test_an_uneven_plan_is_legal_fits_and_beats_the_named_splits_of_its_shape(case):
    model, cluster, fields, pins = CASES[case]
    context = context_of(model, cluster, fields, only=pins)
    problem = context.problem
    outcome = search(context)
    uneven = [c for c in outcome.finalists if c.layout.split not in SPLITS]
    improved = [s for s in outcome.split_shapes if s.step_s < s.before_s]
    assert uneven, "this case is here because an uneven split helps"
    assert len(improved) >= len(uneven)
    by_layout = {c.layout: c for c in outcome.finalists}
    for shape in outcome.split_shapes:
        assert shape.step_s <= shape.before_s
        assert by_layout[shape.layout].step_s == shape.step_s
        assert shape.gap_frac == 0.0 if shape.proven else 0.0 < shape.gap_frac <= 1.0
    for one in uneven:
        x = one.layout
        assert x.split == spelled(x.stage_layers)
        assert sum(x.stage_layers) == problem.shape.layers
        assert min(x.stage_layers[1:-1]) >= 1
        assert first_broken_rule(context, x) == ""
        assert any(
            not refusals(f, x, problem.shape, problem.job) for f in ("megatron", "deepspeed")
        )
        for axis, allowed in pins.items():
            assert getattr(x, axis) in allowed
        found = break_down(problem, x)
        assert one.step_s == pytest.approx(found.step_s, rel=1e-9)
        assert one.closed_form_s == pytest.approx(found.closed_form_step_s, rel=1e-9)
        assert one.peak_bytes == pytest.approx(found.peak_bytes, rel=1e-9)
        assert one.peak_bytes <= problem.pool.usable_bytes
        # The same with the layers split by name, however many layers are recomputed.
        even = [c for c in outcome.finalists if c.layout.split in SPLITS and _same(c.layout, x)]
        assert all(one.step_s < c.step_s * (1.0 - LEAST_GAIN) for c in even)
    assert list(outcome.finalists) == sorted(outcome.finalists, key=lambda c: c.step_s)


def _same(a, b) -> bool:
    off = {"split": "", "stage_layers": (), "recompute": "none", "recompute_layers": 0}
    sets = a.recompute_modules, b.recompute_modules
    return replace(a, **off) == replace(b, **off) and sets[0] == sets[1]


def test_no_other_split_of_one_layer_moved_is_better_than_the_first_of_deepseek():
    context = context_of("deepseek-v3", "h800-x2048", only=only(pp=16, tp=2, ep=16, mbs=1))
    outcome = search(context)
    best = outcome.finalists[0].layout
    assert best.split not in SPLITS
    moved = []
    for i, j in ((i, j) for i in range(16) for j in range(16) if i != j):
        counts = list(best.stage_layers)
        counts[i], counts[j] = counts[i] - 1, counts[j] + 1
        if min(counts) >= 0:
            moved.append(replace(best, split=spelled(counts), stage_layers=tuple(counts)))
    least, problem = outcome.finalists[0].step_s, context.problem
    table = PlanTable.from_layouts(moved)
    peaks = peak_bytes(join(problem, shape_terms(problem, table.shapes, table.shardings), table))
    fitting = [
        x for x, peak in zip(moved, peaks, strict=True) if peak <= problem.pool.usable_bytes
    ]
    assert len(fitting) > 20
    assert min(exact_step_s(problem, fitting)) >= least * (1.0 - 5e-3)


@pytest.mark.parametrize("names", [("even",), ("ends",), ("even", "ends")])
def test_a_restricted_split_stays_what_it_is(names):
    model, cluster, fields, pins = CASES["gpt3"]
    codes = frozenset(SPLITS.index(name) for name in names)
    outcome = search(context_of(model, cluster, fields, only=pins | {"split": codes}))
    assert {c.layout.split for c in outcome.finalists} <= set(names)
    assert outcome.split_shapes == ()


def test_no_shape_is_split_unless_asked_for():
    model, cluster, fields, pins = CASES["gpt3"]
    outcome = search(context_of(model, cluster, fields, only=pins, split_shapes=0))
    assert outcome.split_shapes == ()
    assert len(search(context_of(model, cluster, fields, only=pins)).split_shapes) > 1
    few = search(context_of(model, cluster, fields, only=pins, split_shapes=1))
    # More than one only while a split without any waste could still come first.
    assert (
        1
        <= len(few.split_shapes)
        <= len(search(context_of(model, cluster, fields, only=pins)).split_shapes)
    )


def test_restrictions_of_recomputation_hold_for_uneven_splits():
    model, cluster, fields, pins = CASES["deepseek"]
    limit = {"recompute_layers": 1}
    outcome = search(context_of(model, cluster, fields, only=pins, at_most=limit))
    assert any(c.layout.split not in SPLITS for c in outcome.finalists)
    assert max(c.layout.recompute_layers for c in outcome.finalists) <= 1
    full = pins | {"recompute": frozenset([RECOMPUTES.index("full")])}
    outcome = search(context_of(model, cluster, fields, only=full))
    assert any(c.layout.split not in SPLITS for c in outcome.finalists)
    assert min(c.layout.recompute_layers for c in outcome.finalists) >= 1


@pytest.mark.parametrize(
    ("framework", "splits"), [("megatron", True), ("torchtitan", True), ("deepspeed", False)]
)
def test_only_splits_that_the_framework_has_are_offered(framework, splits):
    # 79 layers: DeepSpeed has one way to cut them, the uniform one.
    fields = (("model.layers", 79),)
    context = context_of(fields=fields, only=only(pp=4, vpp=1), framework=framework)
    outcome = search(context)
    problem = context.problem
    for one in outcome.finalists:
        assert not refusals(framework, one.layout, problem.shape, problem.job)
    assert bool(outcome.split_shapes) is splits


def test_the_order_in_which_finalists_come_does_not_matter_beyond_their_times():
    model, cluster, fields, pins = CASES["qwen3 interleaved"]
    context = context_of(model, cluster, fields, only=pins)
    plain = search(replace(context, options=replace(context.options, split_shapes=0)))
    plans = [SplitPlan(c.layout, c.closed_form_s, c.peak_bytes, c.step_s) for c in plain.finalists]
    once, again = improve_splits(context, plans), improve_splits(context, plans)
    assert once == again
    assert improve_splits(context, []).shapes == ()


def test_interleaved_chunks_are_arranged_for_the_recurrence():
    # 126 layers over 16 ranks of 3 chunks: the closed form sees no difference between the splits.
    model, cluster, fields, pins = CASES["llama3 405b"]
    outcome = search(context_of(model, cluster, fields, only=pins | only(mbs=1, tp=8)))
    best = outcome.finalists[0]
    ends = next(c for c in outcome.finalists if c.layout.split == "ends")
    assert best.layout.split not in SPLITS
    assert best.closed_form_s == pytest.approx(ends.closed_form_s, rel=0.02)
    assert best.step_s < 0.97 * ends.step_s
    chunks = [best.layout.stage_layers[i : i + 16] for i in (0, 16, 32)]
    longest = [max(chunk) for chunk in chunks]
    assert longest == sorted(longest, reverse=True)
    assert list(accumulate(map(sum, chunks)))[-1] == 126
