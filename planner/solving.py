"""`solve` and `evaluate`: from two files (or dicts) to a result."""

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import planner
from costmodels.breakdown import Breakdown, break_down, join_one
from costmodels.flops import model_flops_per_step
from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.stacks import STACKS, StackProfile
from costmodels.step import peak_bytes
from planner.advice import plan_warnings
from planner.calibration.apply import calibrated, calibrated_stack
from planner.calibration.file import Calibration, load_calibration
from planner.calibration.intervals import interval_of, regime_of
from planner.calibration.parameters import ANCHORS
from planner.capabilities import check_options, check_problem
from planner.emit import runs_on
from planner.errors import SearchError, UsageError
from planner.identity import content_id, plan_id
from planner.inputs import (
    ClusterInput,
    ModelInput,
    cluster_from_dict,
    load_cluster,
    load_model,
    model_from_dict,
)
from planner.layouts import layout_from_pins, layout_to_json, unequal_groups
from planner.objectives import BEST, rounded_up, run_figures, shown_duration
from planner.options import (
    ALLOWANCES,
    FRAMEWORKS,
    STACK_OF_FRAMEWORK,
    Asked,
    SolveOptions,
    parse_goals,
    parse_max,
    parse_only,
    parse_pins,
)
from planner.reasons import why_count, why_first, why_others
from planner.recipes import asked_recipes, one_recipe, pinned_to, with_open_recipes, with_recipe
from planner.result import (
    Certificate,
    Conflict,
    Counts,
    Miss,
    Plan,
    Rejection,
    Relaxation,
    Result,
    UnevenTried,
)
from planner.search_section import with_section
from planner.uncertainty import (
    groups,
    rank_key,
    tie_limit,
    with_plain_groups,
    without_pointless_recompute,
)
from planner.variants import (
    Searched,
    Searches,
    Variant,
    by_name,
    largest_allowed,
    repriced,
    search_counts,
    variants_of,
)
from searches.candidates import Candidate, layout_key
from searches.device_counts import device_counts, on_devices
from searches.executors import NAMES as EXECUTORS
from searches.executors import Executor, ExecutorError, make_executor
from searches.rules import RULES, Context
from searches.search import Outcome, peaks_of_layouts, search
from searches.shared_work import SharedWork

Source = str | os.PathLike[str] | Mapping[str, Any]
"""A path, the name of a packaged example, or a dict with the structure of the file."""

Overrides = tuple[tuple[str, object], ...]

Peaks = Mapping[StackProfile, float]
"""Peak memory of one plan under some stacks, bytes."""

NO_PEAKS: Peaks = {}

Calibrations = Calibration | str | os.PathLike[str] | None
"""A calibration, the path of its file, or nothing for the one that ships."""


def solve(
    model: Source,
    cluster: Source,
    *,
    top: int | None = None,
    pins: Mapping[str, object] | None = None,
    only: Mapping[str, object] | None = None,
    at_most: Mapping[str, int] | None = None,
    framework: str = "",
    stack: str = "",
    allow: tuple[str, ...] = (),
    overrides: Overrides = (),
    pool: str = "",
    objective: str = "",
    within: float = 0.0,
    deadline: str | float = "",
    step_limit_s: float = 0.0,
    pareto: str | Sequence[str] = (),
    time_limit_s: float = 0.0,
    executor: str = "automatic",
    ray_address: str = "",
    stop: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
    calibration: Calibrations = None,
    reference: str | os.PathLike[str] = "",
) -> Result:
    """Return the ranked plans of a training job on a cluster.

    `model` and `cluster` are paths, names of packaged examples or dicts. `pins` fixes axes
    (`{"tp": 8}`), `only` lists allowed values (`{"tp": [4, 8]}`), `at_most` bounds them.
    `overrides` changes fields of the two inputs: `(("pools.0.nodes", 16),)`. A plan uses one pool
    of the cluster; the plans of all pools are ranked together unless `pool` names one, and so are
    those of all recipes where `precision` is left open: a list in the job or in `only`.
    `objective` is one of `planner.objectives.OBJECTIVES`; `deadline` the longest run (`"30d"`),
    `step_limit_s` the longest step; `pareto` two or three objectives whose front is wanted
    instead. What is not given is taken from the `search:` section of the model file, if it has
    one. `executor` is `automatic`, `serial`, `processes` or `ray` (on the cluster at
    `ray_address`, else on this machine); the answer does not depend on it. `calibration` is a
    calibration or the path of its file, the shipped one without it; `reference` the path of a file
    of measured runs that anchor it (`planner.calibration.reference`). When nothing fits the result
    holds no plans but the counted reasons and the smallest changes that would help.
    Raises `SpecError` for a bad input and `UsageError` for a bad option.
    """
    start = time.monotonic()
    given = read_inputs(model, cluster, overrides)
    stated = {
        "pins": pins, "only": only, "at_most": at_most, "framework": framework, "allow": allow,
        "pool": pool, "objective": objective, "within": within, "deadline": deadline,
        "step_limit_s": step_limit_s, "pareto": pareto, "time_limit_s": time_limit_s, "top": top,
    }  # fmt: skip
    told = with_section(stated, given[0].search)
    top, pool, limit = told["top"], told["pool"], told["time_limit_s"]
    options = asked_options({**told, "top": 10 if top is None else top}, stack, calibration)
    check_options(options)
    if limit:
        stop = either(stop, lambda: time.monotonic() - start > limit)
    if pool:
        given = given[0], given[1].pool(pool)
    options, said = anchored_options(options, reference)
    asked = Asked(*source_names(model, cluster), tuple(overrides), pool, os.fspath(reference))
    check_executor(executor, ray_address)
    chosen = make_executor(executor, ray_address or None)
    try:
        found = solve_inputs(*given, options, chosen, stop, progress, asked)
    except ExecutorError as error:
        raise SearchError(str(error), error.fix) from error
    return replace(found, notes=(*said, *found.notes))


def asked_options(
    told: Mapping[str, Any], stack: str, calibration: Calibrations = None
) -> SolveOptions:
    """Return the options that arguments of `solve`, by name, make; `UsageError` for a bad one."""
    options = solve_options(
        told["top"], told["pins"], told["only"], told["at_most"], told["framework"] or "default",
        stack, told["allow"], calibration,
    )  # fmt: skip
    goals = ("objective", "within", "deadline", "step_limit_s", "pareto")
    return replace(options, **parse_goals(*(told[key] for key in goals)))


def evaluate(
    model: Source,
    cluster: Source,
    *,
    pins: Mapping[str, object],
    framework: str = "default",
    stack: str = "",
    allow: tuple[str, ...] = (),
    overrides: Overrides = (),
    pool: str = "",
    calibration: Calibrations = None,
    reference: str | os.PathLike[str] = "",
) -> Result:
    """Return one layout priced, whether or not it fits into memory.

    Axes that `pins` does not name take their plainest value, see `layouts.layout_from_pins`; a
    cluster with several pools needs `pool`. Raises `SearchError` when the layout breaks a rule.
    """
    options = solve_options(1, pins, None, None, framework, stack, allow, calibration)
    options, said = anchored_options(options, reference)
    read = read_inputs(model, cluster, overrides, pool)
    given = one_recipe(read[0], options, "one layout is priced in one recipe"), read[1]
    names = [pool.name for pool in given[1].cluster.pools]
    if len(names) > 1:
        raise UsageError(
            f"the cluster has {len(names)} pools, and one layout is priced on one of them",
            f"name it with --pool: {', '.join(names)}",
        )
    problem = make_problem(*given, options)
    free = replace(options, pins={a: v for a, v in options.pins.items() if a != "split"})
    context = Context(problem, free.search_options(), problem.pool.n_devices)
    layout = layout_from_pins(context, options.pins)
    found = break_down(problem, layout)
    plan = make_plan(1, problem, found, *given, True, options.calibration)
    fits = found.peak_bytes <= problem.pool.usable_bytes
    counts = Counts(1, 1, 1, int(not fits), int(fits), 1, 0)
    return Result(
        result_id=_result_id(read[0], read[1], options, "evaluate"),
        inputs=inputs_json(read[0], read[1], options, source_names(model, cluster)),
        calibration=calibration_json(options.calibration),
        counts=counts,
        rejected=(),
        plans=(plan,),
        notes=(*said, *_notes(*given)),
    )


def anchored_options(
    options: SolveOptions, reference: str | os.PathLike[str]
) -> tuple[SolveOptions, tuple[str, ...]]:
    """Return options that the measured runs of a file anchor, if one is named, and notes on it."""
    if not reference:
        return options, ()
    from planner.calibration.reference import with_reference

    return with_reference(options, os.fspath(reference))


def either(first: Callable[[], bool] | None, second: Callable[[], bool]) -> Callable[[], bool]:
    """Return a question that is true where one of two is."""
    return second if first is None else lambda: first() or second()


def check_executor(name: str, ray_address: str) -> None:
    """Raise `UsageError` for an executor that does not exist or has no use for an address."""
    if name not in EXECUTORS:
        known = f"{', '.join(EXECUTORS[:-1])} or {EXECUTORS[-1]}"
        raise UsageError(f"--executor: unknown {name!r}", known)
    if ray_address and name not in ("automatic", "ray"):
        raise UsageError(
            f"--ray-address does not go with --executor {name}", "--executor ray, or drop one"
        )


def source_names(model: Source, cluster: Source) -> tuple[str, str]:
    """Return what the user called the two inputs, for the commands that answers suggest."""
    names = [("" if isinstance(x, Mapping) else os.fspath(x)) for x in (model, cluster)]
    return names[0] or "MODEL", names[1] or "CLUSTER"


def _texts(values: Mapping[str, object] | None) -> list[str]:
    """Return axis=value items from the Python form of pins and lists."""
    items = []
    for axis, value in (values or {}).items():
        several = value if isinstance(value, (list, tuple, set, frozenset)) else [value]
        items += [f"{axis}={int(v) if isinstance(v, bool) else v}" for v in several]
    return items


def solve_options(
    top: int,
    pins: Mapping[str, object] | None,
    only: Mapping[str, object] | None,
    at_most: Mapping[str, int] | None,
    framework: str,
    stack: str,
    allow: tuple[str, ...],
    calibration: Calibrations = None,
) -> SolveOptions:
    """Check and convert the Python form of the options."""
    if top < 1:
        raise UsageError(f"--top must be at least 1, not {top}", "for example --top 5")
    if framework not in FRAMEWORKS:
        raise UsageError(f"unknown framework {framework!r}", f"one of {', '.join(FRAMEWORKS)}")
    if stack and stack not in STACKS:
        raise UsageError(f"unknown stack {stack!r}", f"one of {', '.join(sorted(STACKS))}")
    for name in allow:
        if name not in ALLOWANCES:
            raise UsageError(f"--allow: unknown {name!r}", f"one of {', '.join(ALLOWANCES)}")
    options = SolveOptions(
        top=top,
        pins=parse_pins(_texts(pins)),
        only=parse_only(_texts(only)),
        at_most=parse_max(_texts(at_most)),
        framework=framework,
        stack=stack,
        allow=frozenset(allow),
        own_calibration=own_calibration(calibration),
    )
    options.check_bounds()
    return options


def own_calibration(given: Calibrations) -> Calibration | None:
    """Return the calibration that was asked for; None for the one that ships."""
    if isinstance(given, Calibration):
        return given
    return load_calibration(given) if given else None


def read_inputs(
    model: Source, cluster: Source, overrides: Overrides = (), pool: str = ""
) -> tuple[ModelInput, ClusterInput]:
    """Read both inputs; overrides go to the file whose section they name.

    `pool` leaves the other pools of the cluster out.
    """
    of_model = [(p, v) for p, v in overrides if p.split(".")[0] in ("model", "training", "search")]
    of_cluster = [
        (p, v) for p, v in overrides if p.split(".")[0] not in ("model", "training", "search")
    ]
    if isinstance(model, Mapping):
        model_input = model_from_dict(model, of_model)
    else:
        model_input = load_model(model, of_model)
    read = cluster_from_dict if isinstance(cluster, Mapping) else load_cluster
    cluster_input = read(cluster, of_cluster)  # type: ignore[arg-type]  # chosen by its type
    return model_input, cluster_input.pool(pool) if pool else cluster_input


def make_problem(
    model: ModelInput, cluster: ClusterInput, options: SolveOptions, n_devices: int = 0
) -> Problem:
    """Return what plans on the first pool are priced against; `SearchError` if not modelled.

    On the first `n_devices` of it, without them on the most that the options allow.
    """
    pool, fabric = cluster.cluster.pools[0], cluster.cluster.fabric
    problem = Problem(model.shape, model.job, pool, fabric, STACKS[options.stack_name])
    check_problem(problem)
    problem = calibrated(problem, options.calibration)
    return on_devices(problem, n_devices or largest_allowed(problem, options))


def searched_problem(model: ModelInput, cluster: ClusterInput, options: SolveOptions) -> Problem:
    """Return `make_problem`; `SearchError` for ZeRO groups that no number of devices has."""
    problem = make_problem(model, cluster, options)
    sizes = options.restricted().get("dp_shard")
    stage = options.pins.get("tp", 1) * options.pins.get("pp", 1)
    counts = [n for n in device_counts(problem.pool) if options.allows_devices(n)]
    ranks = [n // stage for n in counts if n % stage == 0]
    if sizes and ranks and not any(r % size == 0 for r in ranks for size in sizes):
        raise unequal_groups(min(sizes), max(ranks))
    return problem


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


def _ranked(found: Searches, variants: list[Variant], options: SolveOptions) -> list[Found]:
    """Return the plans of the answer, best first."""
    if options.pareto:
        return [(c, one, False) for _, (c, one) in found.front]
    named = by_name(variants)

    def of(one: Searched) -> Variant:
        return named[one.name]

    def limit_s(one: Searched) -> float:
        return of(one).limit_s(one.n_devices)

    if options.objective == "memory":
        return _roomiest(found.listed, options.within, limit_s)
    listed = found.listed
    if options.objective == "devices":
        kept = [one for one in listed if _best_s(one) <= limit_s(one)]
        fewest = min((one.n_devices for one in kept), default=0)
        listed = [one for one in kept if one.n_devices == fewest]
        return rank_over_pools(listed, limit_s=limit_s)

    def value(c: Candidate, one: Searched) -> float:
        return of(one).per_s(one.n_devices) * c.step_s

    return rank_over_pools(listed, value, limit_s)


def _grouped(
    plans: tuple[Plan, ...], ranked: list[Found], variants: list[Variant], options: SolveOptions
) -> tuple[Plan, ...]:
    """Return the plans with their groups, where a value that grows with the step ranks them."""
    if options.pareto or options.objective == "memory":
        return plans
    named = by_name(variants)
    valued = [
        (c.layout, named[one.name].per_s(one.n_devices) * plan.step_time_s)
        for plan, (c, one, _) in zip(plans, ranked, strict=False)
    ]
    found = groups(valued, options.calibration)
    return tuple(replace(plan, group=i) for plan, i in zip(plans, found, strict=True))


def _best_s(one: Searched) -> float:
    return min((c.step_s for c in one.outcome.finalists), default=float("inf"))


def _roomiest(
    searched: list[Searched], within: float, limit_s: Callable[[Searched], float]
) -> list[Found]:
    """Return the plans within a factor of the fastest, those that need least memory first."""
    fastest = min(map(_best_s, searched), default=float("inf"))
    found: list[Found] = []
    for one in searched:
        known = {c.layout: c for c in one.outcome.finalists}
        near = [c for c in one.outcome.front if c.closed_form_s <= fastest * within * FRONT_SLACK]
        more = repriced(one.context, [c for c in near if c.layout not in known])
        kept = [c for c in (*known.values(), *more) if c.step_s <= fastest * within]
        found += [(c, one, False) for c in kept if c.step_s <= limit_s(one)]
    return sorted(found, key=lambda x: (x[0].peak_bytes, x[0].step_s, layout_key(x[0].layout)))


FRONT_SLACK = 1.05
"""Closed-form times up to this factor above the limit are priced exactly, then judged."""


def solve_inputs(
    model: ModelInput,
    cluster: ClusterInput,
    options: SolveOptions,
    executor: Executor,
    stop: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
    asked: Asked = Asked("MODEL", "CLUSTER"),
    fewer: bool = True,
    shared: SharedWork | None = None,
    reasons: bool = True,
) -> Result:
    """Return the result for inputs that are already read.

    `fewer` also looks at fewer devices than are given, where they may be better. Callers that ask
    again and again, of neighbouring models and clusters, pass the same `shared`: the answer is the
    same, sooner. `reasons` says why the first plan is first, and looks for the smallest changes
    that would help where nothing fits.
    """
    options = with_open_recipes(model, options)
    models = [with_recipe(model, name) for name in asked_recipes(model, options)]
    variants, left_out = variants_of(
        models, cluster, options, lambda mine, one: searched_problem(mine, one, options), shared
    )
    found = search_counts(variants, left_out, options, executor, stop, progress, fewer)
    ranked, searched = _ranked(found, variants, options), found.listed
    n_plans = len(ranked) if options.pareto else options.top
    peaks = peaks_by_stack([(one.problem, c.layout) for c, one, _ in ranked[:n_plans]], options)
    plans = tuple(
        make_plan(
            rank,
            one.problem,
            break_down(one.problem, c.layout, grid=one.context.layer_grid),
            one.model,
            one.cluster,
            tie,
            options.calibration,
            peaks[rank - 1],
        )
        for rank, (c, one, tie) in enumerate(ranked[:n_plans], start=1)
    )
    plans = _grouped(plans, ranked, variants, options)
    outcomes = [one.outcome for one in searched]
    relaxations: tuple[Relaxation, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    fits = any(outcome.finalists for outcome in outcomes)
    complete = not found.stopped
    nearest, closest = nearest_miss(searched, look_again=not fits and complete)
    if not fits and complete:
        from planner.conflicts import conflicts_of
        from planner.relaxations import find_relaxations

        conflicts = conflicts_of(nearest.context, nearest.outcome.n_legal)
        if reasons:
            pinned = pinned_to(options, nearest.model.job.precision)
            relaxations = find_relaxations(nearest.model, nearest.cluster, pinned, closest, asked)
    why: tuple[str, ...] = ()
    if reasons and not options.pareto:
        why = _why_first(plans, ranked, searched, options.objective)
    return Result(
        result_id=_result_id(model, cluster, options, "solve"),
        inputs=inputs_json(model, cluster, options, (asked.model, asked.cluster)),
        calibration=calibration_json(options.calibration),
        counts=_counts(outcomes),
        certificate=_certificate(outcomes),
        rejected=_rejections(outcomes),
        plans=plans,
        conflicts=conflicts,
        relaxations=relaxations,
        closest=_miss(closest, nearest.problem),
        uneven_tried=None if fits else _uneven_tried(outcomes),
        complete=complete,
        stopped=found.stopped,
        why_first=why,
        notes=(
            *found.notes,
            *(_without_plans(searched) if len(models) > 1 else ()),
            *(_too_late(searched, variants, options) if fits and not plans else ()),
            *_notes(model, cluster),
        ),
        devices=tuple(tally.to_counts() for tally in found.tallies),
        gap=_gap(found, ranked, variants, options),
    )


def _without_plans(searched: list[Searched]) -> tuple[str, ...]:
    """Return which recipes have no legal plan, and why: of the rules, two look at the recipe."""
    lines = []
    for one in searched:
        counted = {**one.outcome.rejected_shapes, **one.outcome.rejected_plans}
        if not one.outcome.n_legal and counted and not one.outcome.stopped:
            code = max(counted, key=lambda x: (x in ("FRM001", "MEM000"), counted[x], x))
            pool, precision = one.name
            lines.append(f"pool {pool} in {precision} has no plan: {code} {RULES[code].title}")
    return tuple(lines)


def _too_late(
    searched: list[Searched], variants: list[Variant], options: SolveOptions
) -> tuple[str, ...]:
    """Return why no plan that fits is in the answer, and which limits could be kept."""
    named, lines = by_name(variants), []
    for one in searched:
        limit_s, best_s = named[one.name].limit_s(one.n_devices), _best_s(one)
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
    fastest = [(_best_s(one), one) for one in searched if _best_s(one) < float("inf")]
    limit_s = options.step_limit_s or float("inf")
    in_time = [(s, one) for s, one in fastest if s <= limit_s]
    lines = []
    if not in_time:
        s, one = min(fastest, key=lambda x: x[0])
        lines.append(
            f"limit: the shortest step that can be kept: --step-limit {rounded_up(s, 3)} (on"
            f" {one.n_devices} devices of {one.problem.pool.name})"
        )
    if options.deadline_s is None:
        return lines
    runs = []
    for s, one in in_time:
        run = run_figures(one.problem, one.cluster.operations[0], one.n_devices, s)
        if run.expected_s is not None and run.expected_s < ENDLESS_S:
            runs.append((run.expected_s, one))
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


def _gap(
    found: Searches, ranked: list[Found], variants: list[Variant], options: SolveOptions
) -> float | None:
    """Return by how much, as a share, what was not searched may be better than the first plan.

    best / (lower bound of what was not searched) - 1, at least 0. None for a complete search, for
    a front, and where devices or memory are to be small.
    """
    ordered = not options.pareto and options.objective not in ("devices", "memory")
    if not (found.stopped and found.left and ranked and ordered):
        return None
    first, one, _ = ranked[0]
    value = by_name(variants)[one.name].per_s(one.n_devices) * first.step_s
    return max(0.0, value / min(found.left) - 1.0)


def _why_first(
    plans: tuple[Plan, ...], ranked: list[Found], searched: list[Searched], objective: str
) -> tuple[str, ...]:
    """Return why the first plan is first on its devices, and what the others reach at best."""
    if not plans:
        return ()
    winner = ranked[0][1]
    mine = [(c, tie) for c, pool, tie in ranked if pool is winner]
    lines = why_first(winner.problem, plans, mine, BEST[objective], winner.context.layer_grid)
    pools, recipes, counts = [], [], []
    several = len({one.name[1] for one in searched}) > 1
    for one in searched:
        rival = next((c for c, mine, _ in ranked if mine is one), None)
        pool, precision = one.name
        if pool != winner.name[0]:
            pools.append((f"{pool} in {precision}" if several else pool, rival))
        elif precision != winner.name[1]:
            recipes.append((precision, rival))
        elif one is not winner:
            counts.append((one.n_devices, rival))
    if counts:
        lines = (*lines, why_count(plans[0], counts))
    if recipes:
        lines = (*lines, why_others(plans[0], winner.name[1], "recipes", recipes))
    return (
        (*lines, why_others(plans[0], f"pool {plans[0].pool}", "pools", pools)) if pools else lines
    )


def nearest_miss(searched: list[Searched], look_again: bool) -> tuple[Searched, Candidate | None]:
    """Return the variant whose memory is missed by least, and the plan that misses it.

    `look_again` asks those where a bound excluded every shape for the plan that comes closest.
    """
    found = []
    for pool in searched:
        closest = pool.outcome.closest
        if look_again and closest is None:
            closest = closest_miss(pool.context)
        found.append((pool, closest))
    return min(
        found,
        key=lambda x: x[1].peak_bytes / x[0].problem.pool.usable_bytes if x[1] else float("inf"),
    )


def closest_miss(context: Context) -> Candidate | None:
    """Return the plan that misses the memory by least when the bound excluded every shape."""
    unbound = replace(context.options, memory_bound=False, n_finalists=1, split_shapes=0)
    return search(replace(context, options=unbound)).closest


def make_plan(
    rank: int,
    problem: Problem,
    found: Breakdown,
    model: ModelInput,
    cluster: ClusterInput,
    tie: bool,
    calibration: Calibration,
    peaks: Peaks = NO_PEAKS,
) -> Plan:
    """Return one plan with its rates, its interval and its warnings.

    `peaks` are those of `peaks_by_stack`, as far as they are known.
    """
    job, layout = problem.job, found.layout
    peak = problem.pool.accelerator.peak_flops_per_s[job.recipe.linear]
    regime = regime_of(problem, layout, found.time_s, found.step_s, calibration)
    low, high = interval_of(regime, calibration)
    able = runs_on(layout, problem.shape, job)
    fitting = frameworks_that_fit(problem, found, able, calibration, peaks)
    rate = job.tokens_per_step / found.step_s
    flops = model_flops_per_step(problem.shape, job)
    return Plan(
        rank=rank,
        plan_id=plan_id(model.document, cluster.document, layout_to_json(layout)),
        pool=problem.pool.name,
        precision=job.precision,
        layout=layout,
        breakdown=found,
        step_time_s=found.step_s,
        step_time_p10_s=found.step_s * low,
        step_time_p90_s=found.step_s * high,
        interval_regime=regime,
        tokens_per_s=rate,
        tokens_per_s_per_device=rate / layout.n_devices,
        mfu=flops / (found.step_s * layout.n_devices * peak),
        usable_bytes=problem.pool.usable_bytes,
        tie=tie,
        training_s=job.tokens / rate if job.tokens else None,
        warnings=plan_warnings(problem, found),
        runs_on=fitting,
        too_large_for=tuple(name for name in able if name not in fitting),
        n_idle=cluster.cluster.pools[0].n_devices - layout.n_devices,
        run=run_figures(problem, cluster.operations[0], layout.n_devices, found.step_s),
    )


def peaks_by_stack(
    plans: Sequence[tuple[Problem, Layout]], options: SolveOptions
) -> list[dict[StackProfile, float]]:
    """Return each plan's peak memory under the frameworks that can run it, bytes, by their stack.

    Those of one problem under one stack are priced together.
    """
    found: list[dict[StackProfile, float]] = [{} for _ in plans]
    together: dict[tuple[int, StackProfile], tuple[Problem, list[int]]] = {}
    for i, (problem, layout) in enumerate(plans):
        able = runs_on(layout, problem.shape, problem.job)
        owns = [as_framework(problem, name, options.calibration) for name in able]
        for own in {own.stack: own for own in owns if own.stack != problem.stack}.values():
            together.setdefault((id(problem), own.stack), (own, []))[1].append(i)
    for own, rows in together.values():
        priced = peaks_of_layouts(own, [plans[i][1] for i in rows])
        for i, peak in zip(rows, priced, strict=True):
            found[i][own.stack] = peak
    return found


def frameworks_that_fit(
    problem: Problem,
    found: Breakdown,
    able: tuple[str, ...],
    calibration: Calibration,
    known: Peaks = NO_PEAKS,
) -> tuple[str, ...]:
    """Return which of the frameworks that can run a plan hold it, each with its own habits.

    `known` holds its peak memory under some stacks.
    """
    usable, peaks = problem.pool.usable_bytes, {**known, problem.stack: found.peak_bytes}
    for name in able:
        own = as_framework(problem, name, calibration)
        if own.stack not in peaks:
            peaks[own.stack] = peak_bytes(join_one(own, found.layout)).item()
    owns = {name: as_framework(problem, name, calibration).stack for name in able}
    return tuple(name for name in able if peaks[owns[name]] <= usable)


def as_framework(problem: Problem, framework: str, calibration: Calibration) -> Problem:
    """Return the problem with the stack of `framework`.

    A stack that the user chose by hand is taken to describe every framework.
    """
    own = STACK_OF_FRAMEWORK[framework]
    chosen = problem.stack.name not in STACK_OF_FRAMEWORK.values()
    if chosen:
        return problem
    return replace(problem, stack=calibrated_stack(STACKS[own], calibration))


def under_framework(
    problem: Problem, layout: Layout, framework: str, calibration: Calibration
) -> Breakdown | None:
    """Return the plan priced as `framework` runs it; None when it does not fit its memory."""
    found = break_down(as_framework(problem, framework, calibration), layout)
    return found if found.peak_bytes <= problem.pool.usable_bytes else None


def plan_of_layout(
    model: ModelInput, cluster: ClusterInput, options: SolveOptions, layout: Layout, rank: int = 1
) -> tuple[Problem, Plan]:
    """Price a layout again on the first pool: how `show`, `explain` and `emit` reopen a plan."""
    problem = make_problem(model, cluster, options, layout.n_devices)
    found, calibration = break_down(problem, layout), options.calibration
    return problem, make_plan(rank, problem, found, model, cluster, True, calibration)


def calibration_json(calibration: Calibration) -> dict[str, Any]:
    """Return which numbers priced the plans."""
    from hardware.catalogue import load_catalogue

    return {
        "name": calibration.name,
        "hash": calibration.content_hash,
        "anchored": calibration.anchored,
        "anchored_by": list(calibration.anchored_by),
        "anchors": {name.partition(".")[2]: calibration.value(name) for name in ANCHORS}
        if calibration.anchored
        else None,
        "catalogue": load_catalogue().content_hash[:12],
        "version": planner.__version__,
        "interval": "learnt from measured runs by regime, see interval_regime of a plan",
    }


def _result_id(
    model: ModelInput, cluster: ClusterInput, options: SolveOptions, command: str
) -> str:
    priced = calibration_json(options.calibration)
    return content_id(command, model.document, cluster.document, options.to_json(), priced)


def inputs_json(
    model: ModelInput, cluster: ClusterInput, options: SolveOptions, names: tuple[str, str]
) -> dict[str, Any]:
    """Return what was asked, with every default filled in."""
    return {
        "model_source": os.path.basename(names[0]),
        "cluster_source": os.path.basename(names[1]),
        "model": model.document,
        "cluster": cluster.document,
        "options": options.to_json(),
    }


def _counts(outcomes: list[Outcome]) -> Counts:
    n_legal, n_fit = sum(x.n_legal for x in outcomes), sum(x.n_fit for x in outcomes)
    n_excluded = sum(x.n_excluded for x in outcomes)
    return Counts(
        candidate_shapes=sum(x.n_candidate_shapes for x in outcomes),
        shapes=sum(x.n_shapes for x in outcomes),
        space=n_legal,
        pruned=n_legal - n_fit - n_excluded,
        fit=n_fit,
        priced=n_fit,
        excluded=n_excluded,
    )


def _certificate(outcomes: list[Outcome]) -> Certificate | None:
    """Return what is proven about the fastest plan of all pools; None where none fits."""
    found = [x for x in outcomes if x.finalists]
    if not found:
        return None
    fastest_s = min(x.finalists[0].step_s for x in found)
    bound_s = min(x.bound_s for x in outcomes)
    uneven = [shape for x in found for shape in x.split_shapes]
    only_uneven = all(not x.n_fit for x in found)
    return Certificate(
        fastest_s=fastest_s,
        simulated=sum(len(x.finalists) for x in found),
        bound_s=bound_s if bound_s < float("inf") else None,
        proven=all(x.complete for x in outcomes) and not only_uneven,
        only_uneven=only_uneven,
        uneven_shapes=len(uneven),
        uneven_proven=sum(x.proven for x in uneven),
        uneven_gap_frac=max((x.gap_frac for x in uneven if not x.proven), default=0.0),
    )


def _rejections(outcomes: list[Outcome]) -> tuple[Rejection, ...]:
    """Return the rejections of shapes, then of plans, the most frequent first."""
    shapes: Counter[str] = Counter()
    plans: Counter[str] = Counter()
    for outcome in outcomes:
        shapes.update(outcome.rejected_shapes)
        plans.update(outcome.rejected_plans)
    found = [Rejection(code, n, "shapes") for code, n in shapes.items()]
    found += [Rejection(code, n, "plans") for code, n in plans.items()]
    return tuple(sorted(found, key=lambda r: (r.of != "shapes", -r.n, r.code)))


def _uneven_tried(outcomes: list[Outcome]) -> UnevenTried | None:
    shapes = sum(x.n_misses for x in outcomes)
    return UnevenTried(shapes, sum(x.n_hopeless for x in outcomes)) if shapes else None


def _miss(closest: Candidate | None, problem: Problem) -> Miss | None:
    if closest is None:
        return None
    return Miss(closest.layout, closest.peak_bytes, problem.pool.usable_bytes)


def _notes(model: ModelInput, cluster: ClusterInput) -> tuple[str, ...]:
    notes = (*model.notes, *cluster.notes)
    if cluster.announced:
        names = ", ".join(cluster.announced)
        notes = (*notes, f"assumed every figure of {names} (announced, not measured)")
    if not cluster.assumed:
        return notes
    return (
        *notes,
        f"{len(cluster.assumed)} catalogue figures in use have no second source: "
        + ", ".join(cluster.assumed),
    )
