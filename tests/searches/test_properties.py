"""What holds for every search, on experts, every schedule, hosts, racks and odd clusters too.

`test_search.py` has the same of dense models with whole backwards.
"""

import itertools
from dataclasses import replace

import pytest

from costmodels.axes import AXES, modules_code
from costmodels.plans import Layout
from searches.options import TEXT_AXES
from searches.search import search
from tests.repeats import halved
from tests.searches.instances import (
    INSTANCES,
    TOY_HOST,
    one_in,
    with_host,
    with_options,
    with_part,
    with_pool,
)
from tests.searches.test_search import FASTER, NO_SLOWER, best_s
from tests.searches.wider_instances import FAST, any_framework, pins

WIDER = (
    "experts-4",
    "experts-8-leaf",
    "experts-with-a-capacity",
    "latent-experts-mtp",
    "two-tokens-ahead",
    "split-backward",
    "every-schedule",
    "gb200-nvl72",
)
EVERY = {**INSTANCES, **FAST}
OFFLOADED = with_host(
    with_options(INSTANCES["toy-8-tight"], only=pins(optimizer_offload=1, vpp=1).only)
)


@pytest.mark.parametrize("name", one_in(4, WIDER))
def test_more_memory_never_gives_fewer_plans_nor_a_slower_best(name):
    c = FAST[name]
    usable = c.problem.pool.accelerator.memory_bytes
    sizes = [usable * share for share in (0.02, 0.06, 0.1, 0.15, 0.2, 0.4, 1.0)]
    outcomes = [search(with_part(c, memory_bytes=size)) for size in sizes]
    for less, more in itertools.pairwise(outcomes):
        assert more.n_fit >= less.n_fit
        if less.finalists:
            assert more.finalists[0].step_s <= less.finalists[0].step_s * NO_SLOWER
    assert outcomes[0].n_fit < outcomes[-1].n_fit


@pytest.mark.parametrize("faster", one_in(2, FASTER))
@pytest.mark.parametrize("name", halved(one_in(8, WIDER)))
def test_a_faster_part_never_gives_a_slower_best_plan(faster, name):
    times = [best_s(faster(FAST[name], factor)) for factor in (0.3, 1.0, 1.2, 20)]
    for slow, fast in itertools.pairwise(times):
        assert fast <= slow * NO_SLOWER


@pytest.mark.parametrize("field", ["link_bytes_per_s", "memory_bytes", "memory_bytes_per_s"])
def test_a_better_host_never_gives_a_slower_best_plan(field):
    hosts = [
        replace(TOY_HOST, **{field: factor * getattr(TOY_HOST, field)})
        for factor in (0.02, 0.2, 1.0, 10.0)
    ]
    times = [best_s(with_pool(OFFLOADED, host=host)) for host in hosts]
    for worse, better in itertools.pairwise(times):
        assert better <= worse * NO_SLOWER
    assert times[-1] < times[0] or field == "memory_bytes"


# Pins -----------------------------------------------------------------------------------------


def axis_number(layout: Layout, axis: str) -> int:
    """Return the value of an axis as options have it."""
    if axis == "recompute_modules":
        return modules_code(layout.recompute_modules)
    value = layout.value(axis)
    if axis in TEXT_AXES and isinstance(value, str):
        return TEXT_AXES[axis].index(value or "none")
    return int(value)


PINNED = (
    "toy-8",
    "toy-24-two-tiers",
    "host",
    "deepspeed",
    "either-order-over-tiers",
    "modules-in-a-tight-memory",
    "overlap-in-doubt",
    "cp-by-default",
    "h100-24-megatron",
    *FAST,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", halved(one_in(20, PINNED[::4])))
def test_every_axis_pinned_to_the_value_of_the_best_gives_the_same_best(name):
    c = with_options(EVERY[name], bound=True, n_finalists=4)
    best = search(c).finalists[0]
    numbers = {axis: axis_number(best.layout, axis) for axis in AXES}
    for axis, number in numbers.items():
        pinned = with_options(c, only={**c.options.only, axis: frozenset((number,))})
        assert same_plan(search(pinned).finalists[0], best), axis
    whole = {axis: frozenset((number,)) for axis, number in numbers.items()}
    outcome = search(with_options(c, only=whole))
    assert [same_plan(plan, best) for plan in outcome.finalists] == [True]


def same_plan(a, b) -> bool:
    return (a.layout, a.step_s, a.peak_bytes) == (b.layout, b.step_s, b.peak_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["experts-8-leaf", "latent", "toy-8"])
def test_no_pin_and_no_limit_improves_the_best(name):
    c = with_options(EVERY[name], n_finalists=4, bound=True)
    best = best_s(c)
    for axis in (axis for axis in AXES if axis not in (*c.options.only, *OPENING)):
        free, least = c, best
        if not AXES[axis].has_field:  # a switch that nothing opens is off
            free = with_options(c, open={axis: frozenset(range(len(AXES[axis].choices)))})
            least = best_s(free)
            assert least <= best
        for value in (1, 2):
            pinned = with_options(free, only={**c.options.only, axis: frozenset((value,))})
            assert best_s(pinned) >= least, (axis, value)
            assert best_s(with_options(free, at_most={axis: value})) >= least, (axis, value)


OPENING = ("cp", "ep", "etp", "recompute_layers", "optimizer_offload")
"""Axes on which a pin also opens what is left out unless it is asked for."""


def test_more_frameworks_never_give_a_slower_best():
    for name in ("experts-4", "toy-8", "latent"):
        c = EVERY[name]
        narrow, free = (best_s(with_options(c, framework=x)) for x in ("megatron", "any"))
        assert free <= best_s(c) <= narrow


def test_opened_schedules_never_give_a_slower_best():
    c = with_options(FAST["every-schedule"], only=pins(mbs=(1, 2), schedule=(0, 2, 3)).only)
    every = with_options(c, only=any_framework(mbs=(1, 2)).only)
    assert best_s(every) <= best_s(c)
