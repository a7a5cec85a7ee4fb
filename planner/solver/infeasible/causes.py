"""Why there is no plan, or none in time: recipes, limits that could be kept, the nearest miss."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from planner.solver.options import SolveOptions
from planner.solver.ranking import best_step_s
from planner.solver.scenarios import Searched, Variant, by_name
from planner.specs.search.objectives import RunFigures, rounded_up, run_figures, shown_duration
from searches.feasibility import StoppedError
from searches.pricing.candidates import Candidate
from searches.rules import RULES, Context
from searches.search import search


def recipes_without_plans(searched: list[Searched]) -> tuple[str, ...]:
    """Return which recipes have no legal plan, and why: of the rules, two look at the recipe."""
    lines = []
    for one in searched:
        counted = {**one.outcome.rejected_shapes, **one.outcome.rejected_plans}
        if not one.outcome.n_legal and counted and not one.outcome.stopped:
            code = max(counted, key=lambda x: (x in ("FRM001", "MEM000"), counted[x], x))
            pool, precision = one.name
            lines.append(f"pool {pool} in {precision} has no plan: {code} {RULES[code].title}")
    return tuple(lines)


def too_late(
    searched: list[Searched], variants: list[Variant], options: SolveOptions
) -> tuple[str, ...]:
    """Return why no plan that fits is in the answer, and which limits could be kept."""
    named, lines = by_name(variants), []
    for one in searched:
        limit_s, best_s = named[one.name].limit_s(one.n_devices), best_step_s(one)
        if best_s < float("inf"):
            lines.append(
                f"limit: the fastest plan on {one.n_devices} devices of {one.problem.pool.name}"
                f" takes {best_s:.3f} s a step, and the limits leave {limit_s:.3f} s"
                f" ({best_s / limit_s:.2f} times too slow)"
            )
    return (*lines, *_nearest_limits(searched, options))


ENDLESS_S = 1e12
"""Runs expected to take longer, 10 million days, do not end: failures leave no time to train."""


def _nearest_limits(searched: list[Searched], options: SolveOptions) -> list[str]:
    """Return the shortest deadline and step that can be kept, of those that are not."""
    fastest = [(best_step_s(one), one) for one in searched if best_step_s(one) < float("inf")]
    limit_s = options.step_limit_s or float("inf")
    in_time = [(s, one) for s, one in fastest if s <= limit_s]
    lines = []
    if not in_time:
        s, one = min(fastest, key=lambda x: x[0])
        lines.append(
            f"limit: the shortest step that can be kept: --step-limit {rounded_up(s, 3)} (on"
            f" {one.n_devices} devices of {one.problem.pool.name})"
        )
    if options.budget_usd is not None:
        lines += _least_budget(in_time)
    if options.deadline_s is None:
        return lines
    runs = [
        (run.expected_s, one)
        for s, one in in_time
        if (run := _run_of(s, one)).expected_s is not None and run.expected_s < ENDLESS_S
    ]
    if runs:
        s, one = min(runs, key=lambda x: x[0])
        lines.append(
            f"limit: the nearest deadline that can be kept: --deadline {shown_duration(s)} (on"
            f" {one.n_devices} devices of {one.problem.pool.name})"
        )
    elif in_time:
        lines.append(
            "limit: no deadline can be kept: the devices fail sooner than a checkpoint is written,"
            " so that no run ends"
        )
    else:
        lines.append("limit: no deadline can be kept within this step limit")
    return lines


def _run_of(step_s: float, one: Searched) -> RunFigures:
    """Return what a run takes at a step time."""
    data, operations = one.problem.job.data, one.cluster.operations[0]
    useful = data.useful_frac() if data else 1.0
    return run_figures(one.problem, operations, one.n_devices, step_s, None, useful)


def _least_budget(in_time: Sequence[tuple[float, Searched]]) -> list[str]:
    """Return the least budget of those that are not kept."""
    runs = [(run.cost_usd, one) for s, one in in_time if (run := _run_of(s, one)).cost_usd]
    if not runs:
        return ["limit: no budget can be kept within this step limit"]
    usd, one = min(runs, key=lambda x: x[0] or 0.0)
    return [
        f"limit: the least budget that can be kept: --budget {math.ceil(usd or 0.0):d} (on"
        f" {one.n_devices} devices of {one.problem.pool.name})"
    ]


def nearest_miss(
    searched: list[Searched], look_again: bool, stop: Callable[[], bool] | None = None
) -> tuple[Searched, Candidate | None]:
    """Return the variant whose memory is missed by least, and the plan that misses it.

    `look_again` asks those where a bound excluded every shape for the plan that comes closest.
    Raises `searches.feasibility.StoppedError` once `stop` says so.
    """
    results = []
    for pool in searched:
        closest = pool.outcome.closest
        if look_again and closest is None:
            closest = closest_miss(pool.context, stop)
        results.append((pool, closest))
    return min(
        results,
        key=lambda x: x[1].peak_bytes / x[0].problem.pool.usable_bytes if x[1] else float("inf"),
    )


def closest_miss(context: Context, stop: Callable[[], bool] | None = None) -> Candidate | None:
    """Return the plan that misses the memory by least when the bound excluded every shape.

    Raises `searches.feasibility.StoppedError` once `stop` says so.
    """
    unbound = replace(context.options, memory_bound=False, n_finalists=1, split_shapes=0)
    outcome = search(replace(context, options=unbound), stop=stop)
    if outcome.stopped:
        raise StoppedError
    return outcome.closest
