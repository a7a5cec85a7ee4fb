"""`solve` and `evaluate`: from two files (or dicts) to a result."""

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import planner
from costmodels.breakdown import Breakdown, break_down, join_one
from costmodels.flops import model_flops_per_step
from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.stacks import STACKS
from costmodels.step import peak_bytes
from planner.advice import plan_warnings
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
from planner.layouts import layout_from_pins, layout_to_json
from planner.options import (
    ALLOWANCES,
    FRAMEWORKS,
    STACK_OF_FRAMEWORK,
    Asked,
    SolveOptions,
    parse_max,
    parse_only,
    parse_pins,
)
from planner.reasons import why_first, why_pool
from planner.result import Certificate, Conflict, Counts, Miss, Plan, Rejection, Relaxation, Result
from planner.uncertainty import (
    interval_s,
    rank_key,
    tie_limit_s,
    with_plain_groups,
    without_pointless_recompute,
)
from searches.executors import NAMES as EXECUTORS
from searches.executors import Executor, ExecutorError, make_executor
from searches.rules import Context
from searches.search import Candidate, Outcome, search

Source = str | os.PathLike[str] | Mapping[str, Any]
"""A path, the name of a packaged example, or a dict with the structure of the file."""

Overrides = tuple[tuple[str, object], ...]


def solve(
    model: Source,
    cluster: Source,
    *,
    top: int = 10,
    pins: Mapping[str, object] | None = None,
    only: Mapping[str, object] | None = None,
    at_most: Mapping[str, int] | None = None,
    framework: str = "default",
    stack: str = "",
    allow: tuple[str, ...] = (),
    overrides: Overrides = (),
    pool: str = "",
    executor: str = "automatic",
    ray_address: str = "",
    stop: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Return the ranked plans of a training job on a cluster.

    `model` and `cluster` are paths, names of packaged examples or dicts. `pins` fixes axes
    (`{"tp": 8}`), `only` lists allowed values (`{"tp": [4, 8]}`), `at_most` bounds them.
    `overrides` changes fields of the two inputs: `(("pools.0.nodes", 16),)`. A plan uses one pool
    of the cluster; the plans of all pools are ranked together unless `pool` names one. `executor`
    is `automatic`, `serial`, `processes` or `ray` (on the cluster at `ray_address`, else on this
    machine); the answer does not depend on it. When nothing fits the result holds no plans but the
    counted reasons and the smallest changes that would help.
    Raises `SpecError` for a bad input and `UsageError` for a bad option.
    """
    options = solve_options(top, pins, only, at_most, framework, stack, allow)
    check_options(options)
    given = read_inputs(model, cluster, overrides, pool)
    asked = Asked(*source_names(model, cluster), tuple(overrides), pool)
    chosen = _executor(executor, ray_address)
    try:
        result = solve_inputs(*given, options, chosen, stop, progress, asked)
        if not result.plans and result.complete and given[1].from_dump:
            from planner.fewer_nodes import with_fewer_nodes

            if fewer := with_fewer_nodes(*given, options):
                return solve_inputs(given[0], fewer, options, chosen, stop, progress, asked)
        return result
    except ExecutorError as error:
        raise SearchError(str(error), error.fix) from error


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
) -> Result:
    """Return one layout priced, whether or not it fits into memory.

    Axes that `pins` does not name take their plainest value, see `layouts.layout_from_pins`; a
    cluster with several pools needs `pool`. Raises `SearchError` when the layout breaks a rule.
    """
    options = solve_options(1, pins, None, None, framework, stack, allow)
    given = read_inputs(model, cluster, overrides, pool)
    names = [pool.name for pool in given[1].cluster.pools]
    if len(names) > 1:
        raise UsageError(
            f"the cluster has {len(names)} pools, and one layout is priced on one of them",
            f"name it with --pool: {', '.join(names)}",
        )
    problem = make_problem(*given, options)
    context = Context(problem, options.search_options(), problem.pool.n_devices)
    layout = layout_from_pins(context, options.pins)
    found = break_down(problem, layout)
    plan = make_plan(1, problem, found, *given, tie=True)
    fits = found.peak_bytes <= problem.pool.usable_bytes
    counts = Counts(1, 1, 1, int(not fits), int(fits), 1, 0)
    return Result(
        result_id=_result_id(*given, options, "evaluate"),
        inputs=inputs_json(*given, options, source_names(model, cluster)),
        calibration=calibration(),
        counts=counts,
        rejected=(),
        plans=(plan,),
        notes=_notes(*given),
    )


def _executor(name: str, ray_address: str) -> Executor:
    """Return the executor that the user named."""
    if name not in EXECUTORS:
        known = f"{', '.join(EXECUTORS[:-1])} or {EXECUTORS[-1]}"
        raise UsageError(f"--executor: unknown {name!r}", known)
    if ray_address and name not in ("automatic", "ray"):
        raise UsageError(
            f"--ray-address does not go with --executor {name}", "--executor ray, or drop one"
        )
    return make_executor(name, ray_address or None)


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
    return SolveOptions(
        top=top,
        pins=parse_pins(_texts(pins)),
        only=parse_only(_texts(only)),
        at_most=parse_max(_texts(at_most)),
        framework=framework,
        stack=stack,
        allow=frozenset(allow),
    )


def read_inputs(
    model: Source, cluster: Source, overrides: Overrides = (), pool: str = ""
) -> tuple[ModelInput, ClusterInput]:
    """Read both inputs; overrides go to the file whose section they name.

    `pool` leaves the other pools of the cluster out.
    """
    of_model = [(p, v) for p, v in overrides if p.split(".")[0] in ("model", "training")]
    of_cluster = [(p, v) for p, v in overrides if p.split(".")[0] not in ("model", "training")]
    if isinstance(model, Mapping):
        model_input = model_from_dict(model, of_model)
    else:
        model_input = load_model(model, of_model)
    read = cluster_from_dict if isinstance(cluster, Mapping) else load_cluster
    cluster_input = read(cluster, of_cluster)  # type: ignore[arg-type]  # chosen by its type
    return model_input, cluster_input.pool(pool) if pool else cluster_input


def make_problem(model: ModelInput, cluster: ClusterInput, options: SolveOptions) -> Problem:
    """Return what plans on the first pool are priced against; `SearchError` if not modelled."""
    pool, fabric = cluster.cluster.pools[0], cluster.cluster.fabric
    problem = Problem(model.shape, model.job, pool, fabric, STACKS[options.stack_name])
    check_problem(problem)
    return problem


@dataclass(frozen=True, slots=True)
class Searched:
    """One pool and what the search found on it."""

    cluster: ClusterInput
    """With this pool alone."""
    context: Context
    outcome: Outcome

    @property
    def problem(self) -> Problem:
        """What the plans were priced against."""
        return self.context.problem


Found = tuple[Candidate, Searched, bool]
"""A candidate, its pool, and whether it ties with the fastest of all."""


def search_pools(
    model: ModelInput,
    cluster: ClusterInput,
    options: SolveOptions,
    executor: Executor,
    stop: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[Searched], tuple[str, ...]]:
    """Search every pool; return what was found, and a note for each pool that is not modelled.

    Raises the `SearchError` of the first pool when none is modelled.
    """
    searched, left_out, refusals = [], [], []
    for index, pool in enumerate(cluster.cluster.pools):
        one = cluster.only(index)
        try:
            problem = make_problem(model, one, options)
        except SearchError as refusal:
            refusals.append(refusal)
            left_out.append(f"pool {pool.name} is left out: {refusal.message}")
            continue
        context = Context(problem, options.search_options(), problem.pool.n_devices)
        searched.append(Searched(one, context, search(context, executor, stop, progress)))
    if not searched:
        raise refusals[0]
    return searched, tuple(left_out)


def rank_over_pools(searched: list[Searched]) -> list[Found]:
    """Return the finalists of all pools ranked together: ties by headroom, the rest by time."""
    finalists = [
        (c, pool)
        for pool in searched
        for c in without_pointless_recompute(
            with_plain_groups(pool.problem, pool.outcome.finalists)
        )
    ]
    if not finalists:
        return []
    limit_s = tie_limit_s([c for c, _ in finalists])
    ranked = sorted(
        finalists, key=lambda x: rank_key(x[0], x[1].problem.pool.usable_bytes, limit_s)
    )
    return [(c, pool, c.step_s <= limit_s) for c, pool in ranked]


def solve_inputs(
    model: ModelInput,
    cluster: ClusterInput,
    options: SolveOptions,
    executor: Executor,
    stop: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
    asked: Asked = Asked("MODEL", "CLUSTER"),
) -> Result:
    """Return the result for inputs that are already read."""
    searched, left_out = search_pools(model, cluster, options, executor, stop, progress)
    ranked = rank_over_pools(searched)
    plans = tuple(
        make_plan(rank, pool.problem, break_down(pool.problem, c.layout), model, pool.cluster, tie)
        for rank, (c, pool, tie) in enumerate(ranked[: options.top], start=1)
    )
    outcomes = [pool.outcome for pool in searched]
    complete = all(outcome.complete for outcome in outcomes)
    relaxations: tuple[Relaxation, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    nearest, closest = nearest_miss(searched, look_again=not plans and complete)
    if not plans and complete:
        from planner.conflicts import conflicts_of
        from planner.relaxations import find_relaxations

        conflicts = conflicts_of(nearest.context, nearest.outcome.n_legal)
        relaxations = find_relaxations(model, nearest.cluster, options, closest, asked)
    return Result(
        result_id=_result_id(model, cluster, options, "solve"),
        inputs=inputs_json(model, cluster, options, (asked.model, asked.cluster)),
        calibration=calibration(),
        counts=_counts(outcomes),
        certificate=_certificate(outcomes),
        rejected=_rejections(outcomes),
        plans=plans,
        conflicts=conflicts,
        relaxations=relaxations,
        closest=_miss(closest, nearest.problem),
        complete=complete,
        stopped=next((outcome.stopped for outcome in outcomes if outcome.stopped), ""),
        why_first=_why_first(plans, ranked, searched),
        notes=(*left_out, *_notes(model, cluster)),
    )


def _why_first(
    plans: tuple[Plan, ...], ranked: list[Found], searched: list[Searched]
) -> tuple[str, ...]:
    """Return why the first plan is first on its pool, and what the other pools reach at best."""
    if not plans:
        return ()
    winner = ranked[0][1]
    on_its_pool = [(c, tie) for c, pool, tie in ranked if pool is winner]
    lines = why_first(winner.problem, plans, on_its_pool)
    if len(searched) == 1:
        return lines
    others = []
    for pool in searched:
        if pool is not winner:
            rival = next((c for c, mine, _ in ranked if mine is pool), None)
            others.append((pool.problem.pool.name, rival))
    return (*lines, why_pool(plans[0], others))


def nearest_miss(searched: list[Searched], look_again: bool) -> tuple[Searched, Candidate | None]:
    """Return the pool whose memory is missed by least, and the plan that misses it.

    `look_again` asks pools where a bound excluded every shape for the plan that comes closest.
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
    unbound = replace(context.options, memory_bound=False, n_finalists=1)
    return search(replace(context, options=unbound)).closest


def make_plan(
    rank: int,
    problem: Problem,
    found: Breakdown,
    model: ModelInput,
    cluster: ClusterInput,
    tie: bool,
) -> Plan:
    """Return one plan with its rates, its interval and its warnings."""
    job, layout = problem.job, found.layout
    peak = problem.pool.accelerator.peak_flops_per_s[job.recipe.linear]
    low, high = interval_s(found.step_s)
    able = runs_on(layout, problem.shape, job)
    fitting = frameworks_that_fit(problem, found, able)
    rate = job.tokens_per_step / found.step_s
    flops = model_flops_per_step(problem.shape, job)
    return Plan(
        rank=rank,
        plan_id=plan_id(model.document, cluster.document, layout_to_json(layout)),
        pool=problem.pool.name,
        layout=layout,
        breakdown=found,
        step_time_s=found.step_s,
        step_time_p10_s=low,
        step_time_p90_s=high,
        tokens_per_s=rate,
        tokens_per_s_per_device=rate / layout.n_devices,
        mfu=flops / (found.step_s * layout.n_devices * peak),
        usable_bytes=problem.pool.usable_bytes,
        tie=tie,
        training_s=job.tokens / rate if job.tokens else None,
        warnings=plan_warnings(problem, found),
        runs_on=fitting,
        too_large_for=tuple(name for name in able if name not in fitting),
    )


def frameworks_that_fit(
    problem: Problem, found: Breakdown, able: tuple[str, ...]
) -> tuple[str, ...]:
    """Return which of the frameworks that can run a plan hold it, each with its own habits."""
    usable, peaks = problem.pool.usable_bytes, {problem.stack: found.peak_bytes}
    for name in able:
        own = as_framework(problem, name)
        if own.stack not in peaks:
            peaks[own.stack] = peak_bytes(join_one(own, found.layout)).item()
    return tuple(name for name in able if peaks[as_framework(problem, name).stack] <= usable)


def as_framework(problem: Problem, framework: str) -> Problem:
    """Return the problem with the stack of `framework`.

    A stack that the user chose by hand is taken to describe every framework.
    """
    own = STACK_OF_FRAMEWORK[framework]
    chosen = problem.stack.name not in STACK_OF_FRAMEWORK.values()
    return problem if chosen else replace(problem, stack=STACKS[own])


def under_framework(problem: Problem, layout: Layout, framework: str) -> Breakdown | None:
    """Return the plan priced as `framework` runs it; None when it does not fit its memory."""
    found = break_down(as_framework(problem, framework), layout)
    return found if found.peak_bytes <= problem.pool.usable_bytes else None


def plan_of_layout(
    model: ModelInput, cluster: ClusterInput, options: SolveOptions, layout: Layout, rank: int = 1
) -> tuple[Problem, Plan]:
    """Price a layout again on the first pool: how `show`, `explain` and `emit` reopen a plan."""
    problem = make_problem(model, cluster, options)
    return problem, make_plan(rank, problem, break_down(problem, layout), model, cluster, True)


def calibration() -> dict[str, str]:
    """Return which efficiency figures priced the plans."""
    from hardware.catalogue import load_catalogue

    return {
        "name": "shared priors",
        "catalogue": load_catalogue().content_hash[:12],
        "version": planner.__version__,
        "interval": "prior of the class of stack, not fitted to this cluster",
    }


def _result_id(
    model: ModelInput, cluster: ClusterInput, options: SolveOptions, command: str
) -> str:
    return content_id(command, model.document, cluster.document, options.to_json(), calibration())


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
    unseen_s = min(x.least_unseen_s for x in outcomes)
    return Certificate(
        fastest_s=fastest_s,
        simulated=sum(len(x.finalists) for x in found),
        bound_s=bound_s if bound_s < float("inf") else None,
        gap=max(0.0, fastest_s / max(unseen_s, 1e-12) - 1.0),
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


def _miss(closest: Candidate | None, problem: Problem) -> Miss | None:
    if closest is None:
        return None
    return Miss(closest.layout, closest.peak_bytes, problem.pool.usable_bytes)


def _notes(model: ModelInput, cluster: ClusterInput) -> tuple[str, ...]:
    if not cluster.assumed:
        return (*model.notes, *cluster.notes)
    return (
        *model.notes,
        *cluster.notes,
        f"{len(cluster.assumed)} catalogue figures in use have no second source: "
        + ", ".join(cluster.assumed),
    )
