"""The order of plans: ties by headroom, the rest by what was asked for; groups, and the gap."""

from collections.abc import Callable, Sequence

from planner.solver.answer.uncertainty import (
    rank_key,
    resolution_groups,
    tie_limit,
    with_plain_groups,
    without_pointless_recompute,
)
from planner.solver.options import SolveOptions
from planner.solver.scenarios import Searched, Searches, Variant, by_name, repriced
from searches.pricing.candidates import Candidate, layout_key

Found = tuple[Candidate, Searched, bool]
"""A candidate, its variant, and whether it ties with the best of all."""


def rank_over_pools(
    searched: list[Searched],
    value: Callable[[Candidate, Searched], float] | None = None,
    limit_s: Callable[[Searched], float] | None = None,
) -> list[Found]:
    """Return the finalists of all variants in one list: ties by headroom, the rest by value.

    The value is the step time unless `value` says another; plans above `limit_s` are left out.
    """
    finalists = [
        (c, pool, value(c, pool) if value else c.step_s)
        for pool in searched
        for c in without_pointless_recompute(
            with_plain_groups(
                pool.problem,
                pool.outcome.finalists,
                pool.context.options,
                pool.context.layer_grid,
                pool.context.shared,
            )
        )
        if limit_s is None or c.step_s <= limit_s(pool)
    ]
    if not finalists:
        return []
    limit = tie_limit([x for _, _, x in finalists])
    ranked = sorted(
        finalists, key=lambda x: rank_key(x[0], x[1].problem.pool.usable_bytes, x[2], limit)
    )
    return [(c, pool, x <= limit) for c, pool, x in ranked]


def ranked_candidates(
    searches: Searches, variants: list[Variant], options: SolveOptions
) -> list[Found]:
    """Return the plans of the answer, best first."""
    if options.pareto:
        return [(c, one, False) for _, (c, one) in searches.front]
    named = by_name(variants)

    def of(one: Searched) -> Variant:
        return named[one.name]

    def limit_s(one: Searched) -> float:
        return of(one).limit_s(one.n_devices)

    if options.objective == "memory":
        return _roomiest(searches.listed, options.within, limit_s)
    listed = searches.listed
    if options.objective == "devices":
        quick = [one for one in listed if best_step_s(one) <= limit_s(one)]
        fewest = min((one.n_devices for one in quick), default=0)
        listed = [one for one in quick if one.n_devices == fewest]
        return rank_over_pools(listed, limit_s=limit_s)

    def value(c: Candidate, one: Searched) -> float:
        return of(one).per_s(one.n_devices) * c.step_s

    return rank_over_pools(listed, value, limit_s)


def best_step_s(one: Searched) -> float:
    """Return the step time of the fastest plan of a search, seconds; inf where none fits."""
    return min((c.step_s for c in one.outcome.finalists), default=float("inf"))


def _roomiest(
    searched: list[Searched], within: float, limit_s: Callable[[Searched], float]
) -> list[Found]:
    """Return the plans within a factor of the fastest, those that need least memory first."""
    fastest = min(map(best_step_s, searched), default=float("inf"))
    results: list[Found] = []
    for one in searched:
        finalists = {c.layout: c for c in one.outcome.finalists}
        near = [c for c in one.outcome.front if c.closed_form_s <= fastest * within * FRONT_SLACK]
        more = repriced(one.context, [c for c in near if c.layout not in finalists])
        roomy = [c for c in (*finalists.values(), *more) if c.step_s <= fastest * within]
        results += [(c, one, False) for c in roomy if c.step_s <= limit_s(one)]
    return sorted(results, key=lambda x: (x[0].peak_bytes, x[0].step_s, layout_key(x[0].layout)))


FRONT_SLACK = 1.05
"""Closed-form times up to this factor above the limit are priced exactly, then judged."""


def tie_groups(
    ranked: Sequence[Found],
    steps_s: Sequence[float],
    variants: Sequence[Variant],
    options: SolveOptions,
) -> Sequence[int | None]:
    """Return the group of each plan (`Plan.group`), given their step times in seconds.

    None where no value that grows with the step ranks them.
    """
    if options.pareto or options.objective == "memory":
        return [None] * len(ranked)
    named = by_name(variants)
    valued = [
        (c.layout, named[one.name].per_s(one.n_devices) * step_s)
        for step_s, (c, one, _) in zip(steps_s, ranked, strict=True)
    ]
    return resolution_groups(valued, options.calibration)


def gap_frac(
    searches: Searches, ranked: list[Found], variants: list[Variant], options: SolveOptions
) -> float | None:
    """Return by how much, as a share, what was not searched may be better than the first plan.

    best / (lower bound of what was not searched) - 1, at least 0. None for a complete search, for
    a front, and where devices or memory are to be small.
    """
    ordered = not options.pareto and options.objective not in ("devices", "memory")
    if not (searches.stopped and searches.left and ranked and ordered):
        return None
    first, one, _ = ranked[0]
    value = by_name(variants)[one.name].per_s(one.n_devices) * first.step_s
    return max(0.0, value / min(searches.left) - 1.0)
