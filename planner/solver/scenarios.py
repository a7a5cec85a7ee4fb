"""Variants of a problem: pools, numeric recipes and numbers of devices, and what is found there.

A pool in each recipe that is left open is a variant, searched as if it were asked for alone; one
list ranks the plans of all. All devices that may be used are searched first. A smaller number is
searched only as far as its lower bound (`searches.device_counts`) allows a better value than the
best so far, and the plans of the best number are listed beside those on all devices.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from costmodels.problem import Problem
from planner.errors import SearchError, UsageError
from planner.option_names import joined, option
from planner.solver.answer.result import DeviceCounts
from planner.solver.execution import Execution
from planner.solver.options import SolveOptions
from planner.specs.inputs import ClusterInput, ModelInput
from planner.specs.progress import Part, pieces_of, whole_of
from planner.specs.search.axis_values import DEVICES
from planner.specs.search.objectives import OVER_COUNTS, check_inputs, step_limit_s, value_per_s
from searches.device_counts import StepBounds, device_counts
from searches.frameworks.carried import foreign_rules
from searches.frameworks.registry import searched_frameworks
from searches.pricing.candidates import Candidate
from searches.pricing.fronts import Point, dominated, non_dominated
from searches.pricing.layout_prices import exact_step_s
from searches.pricing.outcome import Outcome
from searches.pricing.shared_work import SharedWork
from searches.rules import Context
from searches.search import search

MOST_TRIED = 64
"""Numbers of devices searched in vain, those of the least bound, while none holds any plan."""


@dataclass(frozen=True, slots=True)
class Searched:
    """One variant and what the search found on some of its devices."""

    model: ModelInput
    """In the recipe of the variant."""
    cluster: ClusterInput
    """With its pool alone."""
    context: Context
    outcome: Outcome

    @property
    def name(self) -> tuple[str, str]:
        """Pool and recipe."""
        return self.problem.pool.name, self.problem.job.label

    @property
    def problem(self) -> Problem:
        """What the plans were priced against: the devices in use."""
        return self.context.problem

    @property
    def n_devices(self) -> int:
        """Devices in use."""
        return self.context.n_devices


@dataclass(slots=True)
class Tally:
    """What became of the numbers of devices of one variant."""

    pool: str
    precision: str
    n_given: int
    searched: list[int] = field(default_factory=list)
    n_excluded: int = 0
    n_without_layout: int = 0
    n_left: int = 0

    def to_counts(self) -> DeviceCounts:
        """Return it as a part of the result."""
        return DeviceCounts(
            self.pool,
            self.precision,
            self.n_given,
            tuple(sorted(self.searched, reverse=True)),
            self.n_excluded,
            self.n_without_layout,
            self.n_left,
        )


@dataclass(frozen=True, slots=True)
class Variant:
    """A pool in one recipe with its bounds, before any search."""

    model: ModelInput
    cluster: ClusterInput
    bounds: StepBounds
    tally: Tally
    options: SolveOptions

    @property
    def name(self) -> tuple[str, str]:
        """Pool and recipe."""
        return self.tally.pool, self.tally.precision

    @property
    def largest(self) -> int:
        """The most devices that plans may use."""
        return self.bounds.problem.pool.n_devices

    def per_s(self, n_devices: int) -> float:
        """Return the value of the objective for a step of one second."""
        problem, operations = self.bounds.problem, self.cluster.operations[0]
        return value_per_s(self.options.objective, problem, operations, n_devices)

    def limit_s(self, n_devices: int) -> float:
        """Return the longest step that keeps deadline, budget and step limit."""
        operations = self.cluster.operations[0]
        return step_limit_s(self.bounds.problem, operations, n_devices, self.options.limits)

    def key(self, n_devices: int, step_s: float) -> Point:
        """Return the value that is to be small, the step time last where devices are counted."""
        if self.options.objective == "devices":
            return (n_devices, step_s)
        return (self.per_s(n_devices) * step_s,)

    def limit_of(self, key: Point, n_devices: int) -> float:
        """Return the step below which `n_devices` beat a key."""
        if self.options.objective != "devices":
            return key[0] / self.per_s(n_devices)
        if n_devices != key[0]:
            return math.inf if n_devices < key[0] else 0.0
        return key[1]


@dataclass(slots=True)
class Searches:
    """What was searched of all variants."""

    listed: list[Searched]
    """Those whose plans the answer ranks."""
    tallies: list[Tally]
    notes: list[str]
    """Why pools and recipes are left out."""
    stopped: str = ""
    left: list[float] = field(default_factory=list)
    """Lower bounds on the value of the objective in what was not searched."""
    front: list[tuple[Point, tuple[Candidate, Searched]]] = field(default_factory=list)
    """With `SolveOptions.pareto`."""


def largest_allowed(problem: Problem, options: SolveOptions) -> int:
    """Return the most devices of the pool that the options allow; `UsageError` where none are."""
    pool = problem.pool
    if options.allows_devices(pool.n_devices):
        return pool.n_devices
    allowed = [n for n in device_counts(pool) if options.allows_devices(n)]
    if allowed:
        return allowed[-1]
    per_node = pool.devices_per_node
    raise UsageError(
        option("pin")
        + ", "
        + option("only")
        + " or "
        + option("max", DEVICES)
        + f" leaves no number of devices of pool {pool.name}",
        f"multiples of {per_node} up to {pool.n_devices}, or divisors of {per_node}",
        code="no-devices",
    )


def variants_of(
    models: Sequence[ModelInput],
    cluster: ClusterInput,
    options: SolveOptions,
    make: Callable[[ModelInput, ClusterInput], Problem],
    shared: SharedWork | None = None,
) -> tuple[list[Variant], list[str]]:
    """Return pool by pool its variants, a recipe each, and a note for each that is not modelled.

    Raises a `SearchError` with all reasons when none is modelled, and the `UsageError` of a single
    pool that has none of the devices asked for; one of several is left out then.
    """
    results: list[Variant] = []
    notes: list[str] = []
    refusals: list[SearchError | UsageError] = []
    for index, pool in enumerate(cluster.cluster.pools):
        one = cluster.only(index)
        for model in models:
            try:
                problem = make(model, one)
            except (SearchError, UsageError) as refusal:
                if isinstance(refusal, UsageError) and len(cluster.cluster.pools) == 1:
                    raise
                refusals.append(refusal)
                recipe = f" in {model.job.label}" if len(models) > 1 else ""
                notes.append(f"pool {pool.name}{recipe} is left out: {refusal.message}")
                continue
            check_inputs(options.goals, options.limits, problem, one.operations[0], index)
            bounds = StepBounds(problem, options.search_options(problem), shared)
            tally = Tally(pool.name, model.job.label, pool.n_devices)
            results.append(Variant(model, one, bounds, tally, options))
    if not results:
        texts = dict.fromkeys(refusal.message for refusal in refusals)
        raise SearchError(joined("; ", texts), refusals[0].hint)
    return results, notes


def by_name(variants: Sequence[Variant]) -> dict[tuple[str, str], Variant]:
    """Return variants by pool and recipe, as `Searched.name` has them."""
    return {variant.name: variant for variant in variants}


def search_counts(
    variants: list[Variant],
    notes: list[str],
    options: SolveOptions,
    execution: Execution,
    fewer: bool = True,
) -> Searches:
    """Search the variants; `fewer` also on fewer devices than allowed where they may be better.

    The progress is told as one share of it all, which never falls (`planner.specs.progress`).
    """
    searches = Searches([], [variant.tally for variant in variants], notes)
    total = whole_of(execution.progress)
    if options.pareto:
        try:
            _search_front(variants, searches, execution, total, fewer)
        except KeyboardInterrupt:
            if not searches.front:
                raise
            searches.stopped = "interrupted"
    elif options.objective == "devices" and fewer and not options.names_devices:
        first, rest = pieces_of(total, 2)
        best = _search_fewer(variants, searches, None, execution, first)
        if best is None and not searches.stopped:
            _search_whole(variants, searches, execution, rest)
    else:
        also_fewer = fewer and not options.names_devices
        first, *rest_of = pieces_of(total, 1 + also_fewer)
        _search_whole(variants, searches, execution, first)
        if also_fewer:
            if searches.stopped:
                _bound_fewer(variants, searches)
            else:
                best = _best_key(variants, searches)
                _search_fewer(variants, searches, best, execution, rest_of[0])
    looked_for = options.is_limited and fewer and not searches.stopped
    if looked_for and _best_key(variants, searches) is None:
        _search_unlimited(variants, searches, options, execution)
    if searches.stopped:
        for variant in variants:
            variant.tally.n_left = _n_counts(variant) - _n_known(variant.tally)
    elif total is not None:
        total(1, 1)
    return searches


def _is_over(execution: Execution) -> bool:
    """Tell whether the search is to end with the best so far."""
    return execution.stop is not None and execution.stop()


def _search_unlimited(
    variants: list[Variant], searches: Searches, options: SolveOptions, execution: Execution
) -> None:
    """List the number of devices that comes closest to the limits, to say by how much they fail.

    To a deadline the one that ends the run first, within the step limit; where none keeps that, or
    it is the only limit, the one with the fastest step.
    """
    limits: list[tuple[str, float | None]] = []
    if options.budget_usd is not None:
        limits.append(("cost", options.step_limit_s))
    if options.deadline_s is not None:
        limits.append(("goodput", options.step_limit_s))
    if options.step_limit_s is not None:
        limits.append(("step_time", None))
    for objective, longest_s in limits:
        free = [
            replace(
                variant,
                tally=replace(variant.tally, searched=_whole_counts(variant)),
                options=replace(
                    variant.options,
                    objective=objective,
                    deadline_s=None,
                    budget_usd=None,
                    step_limit_s=longest_s,
                    pareto=(),
                ),
            )
            for variant in variants
        ]
        best = _search_fewer(free, searches, _best_key(free, searches), execution, None)
        if best is not None:
            break


def _bound_fewer(variants: list[Variant], searches: Searches) -> None:
    """Note the bounds of the smaller numbers of devices that a stopped search did not reach."""
    for variant in variants:
        for n in reversed(device_counts(variant.bounds.problem.pool)):
            if n in variant.tally.searched or not variant.options.allows_devices(n):
                continue
            least = min(searches.left, default=math.inf)
            floor = variant.bounds.floor_s(n)
            if variant.key(n, floor)[0] < least:
                searches.left.append(variant.key(n, variant.bounds.least_s(n))[0])


def _bound_by_flops(variants: list[Variant], searches: Searches) -> None:
    """Note what the FLOPs alone take on the numbers of devices not searched: takes no time."""
    for variant in variants:
        for n in device_counts(variant.bounds.problem.pool):
            if n not in variant.tally.searched and variant.options.allows_devices(n):
                searches.left.append(variant.key(n, variant.bounds.floor_s(n))[0])


def _n_counts(variant: Variant) -> int:
    return sum(
        variant.options.allows_devices(n) for n in device_counts(variant.bounds.problem.pool)
    )


def _n_known(tally: Tally) -> int:
    return len(tally.searched) + tally.n_excluded + tally.n_without_layout


def _whole_counts(variant: Variant) -> list[int]:
    """Return the numbers of devices that are searched in any case, the largest first."""
    if not variant.options.names_devices:
        return [variant.largest]
    counts = device_counts(variant.bounds.problem.pool)
    return [n for n in reversed(counts) if variant.options.allows_devices(n)]


def _search_whole(
    variants: list[Variant], searches: Searches, execution: Execution, part: Part | None
) -> None:
    entries = [(variant, n) for variant in variants for n in _whole_counts(variant)]
    for (variant, n), piece in zip(entries, pieces_of(part, len(entries)), strict=True):
        if searches.stopped and (searches.stopped == "interrupted" or _is_over(execution)):
            searches.left.append(variant.key(n, variant.bounds.least_s(n))[0])
            continue
        _search_one(variant, n, searches, execution, piece)


def _search_one(
    variant: Variant,
    n_devices: int,
    searches: Searches,
    execution: Execution,
    progress: Part | None,
) -> Searched:
    """Search one number of devices in full and list it."""
    context = variant.bounds.context(n_devices)
    if {"memory"} & set(variant.options.goals):
        context = replace(context, options=replace(context.options, front=True))
    outcome = search(context, execution.executor, execution.stop, progress)
    one = Searched(variant.model, variant.cluster, context, outcome)
    searches.listed.append(one)
    if n_devices not in variant.tally.searched:
        variant.tally.searched.append(n_devices)
    if outcome.stopped:
        searches.stopped = searches.stopped or outcome.stopped
        bounds = [variant.bounds.of_shapes(context, shapes).min() for shapes in outcome.unsearched]
        if bounds:
            searches.left.append(variant.per_s(n_devices) * float(min(bounds)))
    return one


def _best_key(variants: list[Variant], searches: Searches) -> Point | None:
    """Return the best key among the listed plans that keep the limits."""
    named, keys = by_name(variants), []
    for one in searches.listed:
        variant, n = named[one.name], one.n_devices
        steps = [c.step_s for c in one.outcome.finalists if c.step_s <= variant.limit_s(n)]
        if steps:
            keys.append(variant.key(n, min(steps)))
    return min(keys, default=None)


def _entries(
    variants: list[Variant], best: Point | None
) -> Iterator[tuple[Point, int, int, Variant]]:
    """Yield the smaller numbers of devices whose bound leaves hope: (bound, -n, variant, ...)."""
    for i, variant in enumerate(variants):
        total, hopeful = set(variant.tally.searched), []
        for n in device_counts(variant.bounds.problem.pool):
            if n in total or not variant.options.allows_devices(n):
                continue
            # The count of FLOPs is known at once and excludes most.
            floor = variant.bounds.floor_s(n)
            if floor > variant.limit_s(n) or (best is not None and variant.key(n, floor) >= best):
                variant.tally.n_excluded += 1
            else:
                hopeful.append(n)
        framework = variant.options.framework
        problem = variant.bounds.problem
        names = searched_frameworks(framework, problem.pool.accelerator.vendor)
        if foreign_rules(names, problem):
            variant.tally.n_without_layout += len(hopeful)
            continue
        variant.bounds.find_least(hopeful)
        for n in hopeful:
            limit, bound = variant.limit_s(n), variant.bounds.least_s(n)
            if bound == math.inf:
                variant.tally.n_without_layout += 1
            elif bound > limit or (best is not None and variant.key(n, bound) >= best):
                variant.tally.n_excluded += 1
            else:
                yield variant.key(n, bound), -n, i, variant


def _search_fewer(
    variants: list[Variant],
    searches: Searches,
    best: Point | None,
    execution: Execution,
    progress: Part | None,
) -> Point | None:
    """Search smaller numbers of devices, the least bound first; list the best if it beats `best`.

    Returns the best key known then.
    """
    winner: tuple[Variant, int] | None = None
    entries: list[tuple[Point, int, int, Variant]] = []
    tried = 0
    try:
        entries = sorted(_entries(variants, best), key=lambda x: x[:3])
        for i, (bound, minus_n, _, variant) in enumerate(entries):
            n = -minus_n
            if best is not None and bound >= best:
                variant.tally.n_excluded += 1
                continue
            if best is None and tried >= MOST_TRIED:
                variant.tally.n_left += 1
                continue
            if _is_over(execution):
                searches.stopped = searches.stopped or "time limit"
                searches.left += [x[0][0] for x in entries[i:]]
                break
            if progress is not None:
                progress(i, len(entries))
            limit = variant.limit_s(n)
            limit = math.nextafter(limit, math.inf)
            if best is not None:
                limit = min(limit, variant.limit_of(best, n))
            step_s, tried = variant.bounds.least_below(n, limit), tried + 1
            variant.tally.searched.append(n)
            if step_s < math.inf:
                best, winner = variant.key(n, step_s), (variant, n)
    except KeyboardInterrupt:
        if best is None:
            raise
        searches.stopped = "interrupted"
        searches.left += [x[0][0] for x in entries if -x[1] not in x[3].tally.searched]
        if not entries:
            _bound_by_flops(variants, searches)
    if progress is not None and entries:
        progress(len(entries), len(entries))
    if winner:
        variant, n = winner
        _search_one(variant, n, searches, replace(execution, stop=None), None)
    return best


def repriced(context: Context, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates with the step time of the exact recurrence."""
    layouts = [c.layout for c in candidates]
    exact = exact_step_s(context.problem, layouts, context.layer_grid, context.shared)
    return [replace(c, step_s=t) for c, t in zip(candidates, exact, strict=True)]


def front_plans(one: Searched) -> list[Candidate]:
    """Return the plans that may be of the front of exact time and memory, with exact times.

    The finalists, which an answer lists too, what the closed form puts on the front, and what it
    does not but may be there by its lower bound.
    """
    outcome = one.outcome
    listed = {c.layout for c in outcome.finalists}
    more = [c for c in (*outcome.front, *outcome.near_front) if c.layout not in listed]
    return [*outcome.finalists, *repriced(one.context, more)]


def goal_point(
    goals: Sequence[str], one: Searched, per_s: Sequence[float], step_s: float, peak: float
) -> Point:
    """Return the values of the goals, all to be small; those of tokens/s are negative."""
    job = one.problem.job
    values = {
        "devices": float(one.n_devices),
        "memory": peak,
        "tokens_per_s": -job.tokens_per_step / step_s,
    }
    return tuple(values.get(g, x * step_s) for g, x in zip(goals, per_s, strict=True))


def undominated_below_s(
    goals: Sequence[str], one: Searched, per_s: Sequence[float], points: Sequence[Point]
) -> float:
    """Return the step time below which no point is at least as good in all goals but memory."""
    job, limits = one.problem.job, [math.inf]
    for point in points:
        reached = [
            -job.tokens_per_step / value if goal == "tokens_per_s" else value / rate
            for goal, value, rate in zip(goals, point, per_s, strict=True)
            if goal != "devices"
        ]
        fewer = "devices" not in goals or point[goals.index("devices")] <= one.n_devices
        if fewer and reached:
            limits.append(max(reached))
    return min(limits)


def goal_rates(variant: Variant, n_devices: int) -> list[float]:
    """Return the value of each goal of a front for a step of one second."""
    problem, operations = variant.bounds.context(n_devices).problem, variant.cluster.operations[0]
    return [value_per_s(goal, problem, operations, n_devices) for goal in variant.options.pareto]


def take_into_front(
    searches: Searches, variant: Variant, one: Searched, plans: Sequence[Candidate]
) -> None:
    """Take up plans that keep the limits into the front."""
    goals, n = variant.options.pareto, one.n_devices
    limit, per_s = variant.limit_s(n), goal_rates(variant, n)
    new = [
        (goal_point(goals, one, per_s, c.step_s, c.peak_bytes), (c, one))
        for c in plans
        if c.step_s <= limit
    ]
    searches.front = non_dominated([*searches.front, *new])


def _search_front(
    variants: list[Variant],
    searches: Searches,
    execution: Execution,
    total: Part | None,
    fewer: bool,
) -> None:
    """Find the front: over every number of devices where an axis depends on it."""
    options = variants[0].options
    goals, with_memory = options.pareto, "memory" in options.pareto

    def take(variant: Variant, one: Searched, plans: Sequence[Candidate]) -> None:
        take_into_front(searches, variant, one, plans)

    def search_all(variant: Variant, n: int, part: Part | None) -> None:
        one = _search_one(variant, n, searches, execution, part)
        take(variant, one, front_plans(one) if with_memory else one.outcome.finalists)

    first, rest = pieces_of(total, 2)
    largest = [(variant, n) for variant in variants for n in _whole_counts(variant)]
    for (variant, n), part in zip(largest, pieces_of(first, len(largest)), strict=True):
        search_all(variant, n, part)
    over_counts = set(goals) & set(OVER_COUNTS)
    if fewer and not options.names_devices and not searches.stopped:
        if not over_counts:
            before = len(searches.listed)
            replaced = replace_objective(variants, "step_time")
            _search_fewer(replaced, searches, _best_key(replaced, searches), execution, rest)
            for one in searches.listed[before:]:
                variant = by_name(variants)[one.name]
                take(variant, one, front_plans(one) if with_memory else one.outcome.finalists)
        else:
            entries = [
                (variant, n)
                for variant in variants
                for n in device_counts(variant.bounds.problem.pool)
                if n not in variant.tally.searched and options.allows_devices(n)
            ]
            for (variant, n), part in zip(entries, pieces_of(rest, len(entries)), strict=True):
                if _is_over(execution):
                    searches.stopped = "time limit"
                    break
                if part is not None:
                    part(0, 1)
                bound = variant.bounds.least_s(n)
                if bound == math.inf:
                    variant.tally.n_without_layout += 1
                    continue
                context, per_s = variant.bounds.context(n), goal_rates(variant, n)
                empty = Searched(variant.model, variant.cluster, context, EMPTY)
                floor = goal_point(goals, empty, per_s, bound, variant.bounds.least_bytes(n))
                if bound > variant.limit_s(n) or dominated(floor, [p for p, _ in searches.front]):
                    variant.tally.n_excluded += 1
                elif with_memory:
                    search_all(variant, n, part)
                else:
                    limit = math.nextafter(variant.limit_s(n), math.inf)
                    points = [p for p, _ in searches.front]
                    hope = undominated_below_s(goals, empty, per_s, points)
                    plans = variant.bounds.below(n, min(limit, hope))
                    variant.tally.searched.append(n)
                    take(variant, empty, plans)


EMPTY = Outcome((), 0, 0, 0, 0, 0, 0, math.inf, 0, {}, {}, None)
"""The outcome of a number of devices that was searched only as far as its bound allowed."""


def replace_objective(variants: Sequence[Variant], objective: str) -> list[Variant]:
    """Return the variants with another objective and the same tallies."""
    return [
        replace(variant, options=replace(variant.options, objective=objective))
        for variant in variants
    ]
