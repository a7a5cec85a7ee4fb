"""The conflicts are true, complete and as small as they can be."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from searches.conflicts import (
    Choices,
    Condition,
    choices,
    find_conflicts,
    user_conditions,
    without,
)
from searches.feasibility import any_fits, largest_true, least_true, states_can_fit
from searches.options import AXES, TEXT_AXES, SearchOptions
from searches.rules import Context
from searches.search import search
from tests.repeats import examples
from tests.searches.instances import (
    DENSE,
    FLAT,
    GB,
    GQA,
    INSTANCES,
    THIRDS,
    context,
    one_in,
    pins,
    toy_pool,
    with_options,
    with_pool,
)


def excluded(found: Choices, conditions: tuple[Condition, ...]) -> bool:
    """Tell by looking at every group whether no candidate keeps all conditions: the oracle."""
    assumed = 0
    for i, condition in enumerate(found.conditions):
        assumed |= (condition in conditions) << i
    return not any(
        not shape & assumed
        and any(not b & assumed for b in batches)
        and any(not r & assumed for r in rest)
        for shape, batches, rest in found.groups
    )


def check(c: Context) -> tuple[tuple[Condition, ...], ...]:
    """Check every claim about the conflicts of one search, and return them."""
    conflicts, found = find_conflicts(c), choices(c)
    assert bool(conflicts) == (search(c).n_legal == 0)
    assert {x for core in conflicts for x in core if x.of_user} <= set(user_conditions(c, AXES))
    for core in conflicts:
        assert excluded(found, core)
        for condition in core:
            assert not excluded(found, tuple(x for x in core if x != condition))
        # The pins of the core alone leave nothing either, whatever else is allowed.
        others = [p for p in user_conditions(c, AXES) if p not in core]
        assert search(without(c, others)).n_legal == 0
    for one, other in combinations(conflicts, 2):
        assert not {x for x in one if x.of_user} & {x for x in other if x.of_user}
    return conflicts


def named(c: Context) -> list[set[str]]:
    return [{x.axis or x.code for x in core} for core in check(c)]


CONFLICTS = [
    (context(options=pins(tp=16)), [{"tp"}]),
    (context(options=pins(pp=4, dp=4)), [{"pp", "dp"}]),
    (context(options=pins(pp=2, zero=3)), [{"pp", "zero", "ZER001"}]),
    (context(options=pins(tp=1, sp=1)), [{"tp", "sp", "SP001"}]),
    (context(options=pins(recompute_modules=1)), [{"recompute_modules", "REC001"}]),
    (context(options=pins(recompute=1, recompute_modules=8)), [{"recompute_modules", "REC002"}]),
    (
        context(options=pins(recompute=0, recompute_modules=16)),
        [{"recompute", "recompute_modules"}],
    ),
    (context(options=pins(tp=2, cp=2, cp_comm=3)), [{"tp", "cp_comm", "CP002"}]),
    (context(options=pins(cp=2, cp_comm=0)), [{"cp", "cp_comm"}]),
    (context(seq_len=1022, options=pins(cp=2)), [{"cp", "CP001"}]),
    (context(options=pins(ep=2)), [{"ep", "EP001"}]),
    (context(options=pins(rank_order=1, pp=1)), [{"rank_order", "pp"}]),
    (
        context(options=SearchOptions(framework="deepspeed", only=pins(rank_order=1).only)),
        [{"rank_order", "FRM001"}],
    ),
    (context(batch=12, options=pins(dp=4, mbs=2)), [{"dp", "mbs", "BAT001"}]),
    (context(GQA, toy_pool(16, 8), options=pins(pp=16)), [{"pp", "PP001"}]),
    (context(THIRDS, toy_pool(12, 4), options=pins(tp=3)), [{"tp", "TP005"}]),
    (context(options=SearchOptions(at_most={"pp": 1}, only=pins(vpp=2).only)), [{"pp", "vpp"}]),
    (context(options=pins(tp=16, pp=5, sp=1)), [{"tp"}, {"pp"}]),
    (
        context(options=SearchOptions(framework="deepspeed", only=pins(tp=2, pp=2).only)),
        [{"tp", "pp", "FRM001"}],
    ),
    (context(pool=toy_pool(8, memory=1.1 * GB)), [{"MEM000"}]),
    (
        context(batch=24, options=pins(pp=2, vpp=3, dp=4, mbs=2)),
        [{"vpp", "dp", "mbs", "BAT002"}],
    ),  # vpp and dp leave pp 2 alone
    (context(options=pins(schedule=3, pp=1)), [{"schedule", "pp"}]),
    (context(options=pins(zero=1, dp=1)), [{"zero", "dp", "ZER002"}]),
    (context(options=SearchOptions(only=pins(zero=2).only, at_most={"zero": 1})), [{"zero"}]),
]
"""A search and its conflicts."""


@pytest.mark.parametrize(
    "conflict",
    one_in(16, CONFLICTS),
    # Sorted: workers that run the tests side by side must agree on the names.
    ids=lambda x: "/".join("+".join(sorted(y)) for y in x[1]),
)
def test_a_conflict_names_what_excludes_everything_and_no_more(conflict):
    c, wanted = conflict
    assert sorted(map(sorted, named(c))) == sorted(map(sorted, wanted))


@pytest.mark.slow
def test_rules_can_conflict_without_any_pin():
    four = replace(DENSE, heads=4, kv_heads=4)
    # dp 1 or 5, tp at most 4, so pp 11 or more: 8 layers have 10 stages at most, the ends empty.
    c = context(four, toy_pool(44, 4), batch=5)
    conflicts = check(c)
    assert conflicts
    assert all("PIN001" not in {x.code for x in core} for core in conflicts)


@pytest.mark.parametrize("name", one_in(24, [*INSTANCES][1::4]))
def test_no_conflict_where_a_layout_is_legal(name):
    check(INSTANCES[name])


VALUES = {
    "cp": (1, 2, 3, 4),
    "cp_comm": (0, 1, 3),
    "ep": (1, 2),
    "etp": (1, 2),
    "tp": (1, 2, 3, 4, 8),
    "pp": (1, 2, 3, 4, 5),
    "dp": (1, 2, 3, 6, 8),
    "vpp": (1, 2, 3, 13),
    "split": (0, 1),
    "mbs": (1, 2, 3, 8),
    "zero": (0, 1, 2, 3),
    "sp": (0, 1),
    "recompute": (0, 1, 2),
    "recompute_layers": (0, 1, 2, 7),
    "schedule": (0, 2, 3),
    "rank_order": (0, 1),
}
SPACES = {
    "gqa": (GQA, toy_pool(8)),
    "thirds": (THIRDS, toy_pool(12, 6)),
    "flat": (FLAT, toy_pool(6, 6)),
}


@pytest.mark.slow
@settings(max_examples=examples(15))
@given(data=st.data(), name=st.sampled_from(sorted(SPACES)))
def test_conflicts_of_random_restrictions(data, name):
    axes = data.draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=5, unique=True))
    only, at_most = {}, {}
    for axis in axes:
        if axis in TEXT_AXES or data.draw(st.booleans()):
            chosen = data.draw(st.sets(st.sampled_from(VALUES[axis]), min_size=1, max_size=2))
            only[axis] = frozenset(chosen)
        else:
            at_most[axis] = data.draw(st.sampled_from(VALUES[axis]))
    framework = data.draw(st.sampled_from(["default", "deepspeed", "megatron", "any"]))
    options = SearchOptions(only=only, at_most=at_most, framework=framework)
    shape, pool = SPACES[name]
    batch, seq_len = (
        data.draw(st.sampled_from([6, 7, 24])),
        data.draw(st.sampled_from([510, 8192])),
    )
    check(context(shape, pool, seq_len, batch, options=options))


def test_the_same_conflict_every_time():
    c = context(options=pins(tp=16, pp=5, sp=1))
    assert find_conflicts(c) == find_conflicts(c)


@pytest.mark.parametrize("name", one_in(24, [*INSTANCES][::4]))
def test_any_fits_says_what_the_search_finds(name):
    c = INSTANCES[name]
    assert any_fits(c) == (search(c).n_fit > 0)
    for memory in (2, 4, 6, 8, 12, 16):
        less = with_options(c, n_finalists=1)
        pool = toy_pool(c.n_devices, c.problem.pool.devices_per_node, memory * GB)
        if "toy" in name:
            less = with_pool(less, accelerator=pool.accelerator)
        assert any_fits(less) == (search(less).n_fit > 0)
        if any_fits(less):
            assert states_can_fit(less.problem, less.n_devices)


@given(st.integers(0, 60), st.integers(1, 20), st.integers(0, 30))
def test_bisection_finds_what_a_scan_finds(edge, low, width):
    high = low + width
    scan = [n for n in range(low, high + 1) if n <= edge]
    assert largest_true(lambda n: n <= edge, low, high) == max(scan, default=low - 1)
    scan = [n for n in range(low, high + 1) if n >= edge]
    assert least_true(lambda n: n >= edge, low, high) == min(scan, default=high + 1)
