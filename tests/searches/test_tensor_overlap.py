"""The switch of tensor-parallel overlap: closed unless named, and then searched both ways."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.stacks import STACKS, compiled
from searches.device_counts import StepBounds
from searches.options import SearchOptions
from searches.pricing.layout_prices import price_layouts
from searches.pricing.outcome import Outcome
from searches.rules import Context, rules_that_break
from searches.search import search
from searches.space.plan_rules import plan_rules
from searches.space.shape_space import legal_shapes
from tests.searches.instances import GQA, context, pins, toy_pool, with_fast_host


def asked(*positions: int, framework: str = "default", **only: int | tuple[int, ...]) -> Context:
    """A small search with the switch at some positions; unnamed without any."""
    named = {"tp_overlap": positions} if positions else {}
    options = replace(pins(vpp=(1, 2), **named, **only), framework=framework)
    return context(GQA, toy_pool(16, 8), batch=16, options=options)


def found(c: Context) -> Outcome:
    return search(c)


def test_the_switch_is_closed_unless_named():
    usual, off = found(asked()), found(asked(0))
    assert usual.finalists == off.finalists
    assert (usual.n_legal, usual.n_fit, usual.rejected_plans) == (
        off.n_legal,
        off.n_fit,
        off.rejected_plans,
    )
    assert not any(c.layout.tp_overlap for c in usual.finalists)


def test_open_is_the_best_of_both_positions_with_their_counts():
    off, on, both = found(asked(0)), found(asked(1)), found(asked(0, 1))
    assert all(c.layout.tp_overlap for c in on.finalists)
    assert both.n_legal == off.n_legal + on.n_legal
    best = min(off.finalists[0], on.finalists[0], key=lambda c: c.step_s)
    assert both.finalists[0] == best
    assert both.complete


def test_bounds_leave_out_nothing_that_is_better():
    c = asked(0, 1)
    with_bound, without = (
        found(replace(c, options=replace(c.options, bound=bound))) for bound in (True, False)
    )
    assert with_bound.finalists[:8] == without.finalists[:8]
    assert with_bound.n_legal == without.n_legal


def test_pieces_take_no_longer_and_the_same_memory():
    c = with_fast_host(asked(1, framework="any"))
    plans = [x.layout for x in found(c).finalists]
    assert plans
    on = price_layouts(c.problem, plans)
    off = price_layouts(c.problem, [replace(x, tp_overlap=False) for x in plans])
    for a, b in zip(on, off, strict=True):
        assert a.closed_form_s < b.closed_form_s
        assert a.peak_bytes == b.peak_bytes


@pytest.mark.parametrize(
    ("stack", "per_node", "legal"),
    [("fused", 8, True), ("deepspeed", 8, False), ("fused", 4, False), ("torchtitan", 8, False)],
)
def test_ovl002_where_there_are_no_pieces(stack, per_node, legal):
    c = context(
        GQA,
        toy_pool(16, per_node),
        batch=16,
        stack=stack,
        options=replace(pins(tp_overlap=1, tp=8, vpp=1), framework="any"),
    )
    outcome = search(c)
    assert bool(outcome.n_legal) is legal
    assert ("OVL002" in outcome.rejected_plans) is not legal
    usual = search(replace(c, options=replace(pins(tp=8, vpp=1, sp=1), framework="any")))
    layout = usual.finalists[0].layout
    assert not list(rules_that_break(c, layout))
    on = list(rules_that_break(c, replace(layout, tp_overlap=True)))
    assert on == ([] if legal else ["OVL002"])
    without_sp = replace(layout, sp=False, tp_overlap=True)
    assert list(rules_that_break(c, without_sp)) == ["OVL002"]


def test_torchtitan_has_it_under_the_compiler_alone():
    stack = STACKS["torchtitan"]
    assert (stack.tp_overlap_on, compiled(stack).tp_overlap_on) == ("", "pieces")
    assert compiled(STACKS["eager"]).tp_overlap_on == ""
    assert compiled(STACKS["megatron-core"]).tp_overlap_on == "userbuffers"


def test_masks_have_a_third_value_of_sp_only_where_it_is_asked_for():
    from searches.space.free_axes import free_axes
    from searches.space.plan_space import legal_masks

    for options, n in ((SearchOptions(), 2), (pins(tp_overlap=0), 2), (pins(tp_overlap=1), 3)):
        c = context(GQA, toy_pool(8), batch=8, options=options)
        assert c.options.n_sp == n
        shapes = legal_shapes(c).shapes
        axes = free_axes(c, shapes)
        assert legal_masks(c, shapes, axes)[0].sp.shape == (len(shapes), n)
        codes = [rule.code for rule in plan_rules(c, shapes, axes)]
        assert ("OVL002" in codes) is (n == 3)


def test_bounds_by_number_of_devices_hold_with_pieces():
    c = asked(0, 1)
    bounds = StepBounds(c.problem, c.options)
    for n in (4, 8, 16):
        least = bounds.least_s(n)
        outcome = search(bounds.context(n))
        assert least <= min(x.step_s for x in outcome.finalists)
        assert np.isfinite(least)
