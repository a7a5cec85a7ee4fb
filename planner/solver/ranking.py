"""The order of plans: ties by headroom, the rest by what was asked for; groups, and the gap."""

from collections.abc import Callable, Sequence

from costmodels.axes import AXES
from planner.solver.answer.uncertainty import (
    RankLimits,
    keeps_margin,
    resolution_groups,
    with_plain_groups,
    without_pointless_recompute,
)
from planner.solver.options import MEMORY_MARGIN, SolveOptions
from planner.solver.scenarios import Searched, Searches, Variant, by_name, repriced
from searches.pricing.candidates import ByDegrees, Candidate, layout_key

Found = tuple[Candidate, Searched, bool]
"""A candidate, its variant, and whether it ties with the best of all."""


def rank_over_pools(
    searched: list[Searched],
    value: Callable[[Candidate, Searched], float] | None = None,
    limit_s: Callable[[Searched], float] | None = None,
    margin_frac: float = MEMORY_MARGIN,
) -> list[Found]:
    """Return the finalists of all variants in one list: ties by headroom, the rest by value.

    The value is the step time unless `value` says another; plans above `limit_s` are left out.
    Plans that leave less than `margin_frac` of the memory free stand behind, see `RankLimits`.
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
    rows = [(c, one.problem.pool.usable_bytes, x) for c, one, x in finalists]
    limits = RankLimits.of([(x, keeps_margin(c, b, margin_frac)) for c, b, x in rows], margin_frac)
    keys = [limits.key(*row) for row in rows]
    order = sorted(range(len(rows)), key=keys.__getitem__)
    return [(*finalists[i][:2], limits.ties(*rows[i])) for i in order]


def by_value_alone(
    searched: list[Searched],
    value: Callable[[Candidate, Searched], float] | None = None,
    limit_s: Callable[[Searched], float] | None = None,
) -> list[Found]:
    """Return the finalists of all variants by value, then time, memory and degrees.

    The first is the one that the certificate speaks of. No plan is a tie.
    """
    rows = [
        (value(c, one) if value else c.step_s, c, one)
        for one in searched
        for c in without_pointless_recompute(one.outcome.finalists)
        if limit_s is None or c.step_s <= limit_s(one)
    ]
    rows.sort(key=lambda x: (x[0], x[1].step_s, x[1].peak_bytes, ByDegrees(x[1].layout)))
    return [(c, one, False) for _, c, one in rows]


def ranked_candidates(
    searches: Searches, variants: list[Variant], options: SolveOptions, ties: bool = True
) -> list[Found]:
    """Return the plans of the answer, best first; without `ties` the value alone orders them."""
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
        if not ties:
            return by_value_alone(listed, None, limit_s)
        return rank_over_pools(listed, None, limit_s, options.memory_margin)

    def value(c: Candidate, one: Searched) -> float:
        return of(one).per_s(one.n_devices) * c.step_s

    if not ties:
        return by_value_alone(listed, value, limit_s)
    return rank_over_pools(listed, value, limit_s, options.memory_margin)


def best_step_s(one: Searched) -> float:
    """Return the step time of the fastest plan of a search, seconds; inf where none fits."""
    return min((c.step_s for c in one.outcome.finalists), default=float("inf"))


def best_of_each_layout(ranked: Sequence[Found], options: SolveOptions) -> list[tuple[Found, int]]:
    """Return the best plan of each layout, and for how many plans of the list it stands.

    Layouts are different where pool, recipe, devices, tp, pp, cp or ep are, or another axis of
    which the options name several values; the rest (micro-batch, virtual stages, sharding,
    recomputation, switches) makes variants of one. All variants are listed where the options want
    them, and of the one layout that tp and pp are pinned to.
    """
    compared = [axis for axis, values in options.only.items() if axis in AXES and len(values) > 1]
    groups: dict[tuple[object, ...], list[Found]] = {}
    for entry in ranked:
        x, one = entry[0].layout, entry[1]
        key = (one.name, x.n_devices, x.tp, x.pp, x.cp, x.ep, *map(x.value, compared))
        groups.setdefault(key, []).append(entry)
    pinned = {axis for axis, values in options.restricted().items() if len(values) == 1}
    if options.all_variants or (len(groups) == 1 and pinned >= {"tp", "pp"}):
        return [(entry, 1) for entry in ranked]
    return [(variants[0], len(variants)) for variants in groups.values()]


def _roomiest(
    searched: list[Searched], within: float, limit_s: Callable[[Searched], float]
) -> list[Found]:
    """Return the plans within a factor of the fastest, those that need least memory first."""
    fastest = min(map(best_step_s, searched), default=float("inf"))
    results: list[Found] = []
    for one in searched:
        outcome = one.outcome
        finalists = {c.layout: c for c in outcome.finalists}
        most_s = fastest * within
        near = [c for c in outcome.front if c.closed_form_s <= most_s * FRONT_SLACK]
        near += [c for c in outcome.near_front if c.least_s <= most_s]
        more = repriced(one.context, [c for c in near if c.layout not in finalists])
        roomy = [c for c in (*finalists.values(), *more) if c.step_s <= most_s]
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
