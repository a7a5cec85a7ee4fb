"""`solve` and `evaluate`: from two files (or dicts) to a result."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack

from costmodels.breakdown import break_down
from costmodels.schedule.stages import SPLITS
from planner.errors import SearchError, UsageError
from planner.option_names import option
from planner.solver.alternatives import closed_alternatives, numeric_alternatives
from planner.solver.answer.plans import (
    make_plan,
    make_plans,
    open_candidates,
)
from planner.solver.answer.reasons import stage_words, why_count, why_first, why_others
from planner.solver.answer.result import Alternative, Conflict, Counts, Plan, Relaxation, Result
from planner.solver.answer.result_parts import (
    calibration_json,
    certificate,
    closest_miss_of,
    input_notes,
    inputs_json,
    rejections,
    result_counts,
    result_id,
    segment_notes,
    uneven_tried,
)
from planner.solver.calibration.reference import reference_name
from planner.solver.execution import Execution, Stop, either, named_executor
from planner.solver.infeasible.causes import (
    nearest_miss,
    recipes_without_plans,
    too_late,
)
from planner.solver.keywords import EvaluateKeywords, SolveKeywords, request_of_keywords
from planner.solver.margins import margin_use, margin_words, tie_words, with_plans_of_margin
from planner.solver.options import SolveCommand, SolveOptions
from planner.solver.problem import make_problem, of_able_framework, searched_problem
from planner.solver.ranking import (
    Found,
    best_of_each_layout,
    gap_frac,
    ranked_candidates,
    tie_groups,
)
from planner.solver.recipes import (
    asked_models,
    numerics_of,
    one_recipe,
    pinned_to,
    with_open_recipes,
)
from planner.solver.request import SolveRequest, anchored_options
from planner.solver.scenarios import Searched, Searches, Variant, search_counts, variants_of
from planner.solver.sources import Source, read_inputs, source_names
from planner.solver.unsupported import check_options
from planner.specs.inputs import ClusterInput, ModelInput
from planner.specs.search.axis_values import layout_from_pins
from planner.specs.search.objectives import OVER_COUNTS
from planner.specs.search.section import APART, TOGETHER
from planner.text_lines import SPLIT_CHOSEN
from searches.executors.executor import ExecutorError
from searches.feasibility import StoppedError
from searches.rules import Context
from searches.splits.uneven import SplitChoice, best_split_of

if TYPE_CHECKING:
    from planner.solver.together.answer import Joining


StopAt = Callable[[float], Stop | None]
"""What ends a search after a share of its time; None without a limit."""
APART_SHARE = 0.4
"""Share of a time limit after which the pools alone are done, where others join them."""


def solve(
    model: Source,
    cluster: Source,
    request: SolveRequest | None = None,
    **keywords: Unpack[SolveKeywords],
) -> Result:
    """Return the ranked plans of a training job on a cluster.

    `model` and `cluster` are paths, names of packaged examples or dicts. `pins` fixes axes
    (`{"tp": 8}`), `only` lists allowed values (`{"tp": [4, 8]}`), `at_most` bounds them.
    `overrides` changes fields of the two inputs: `(("pools.0.nodes", 16),)`. A plan uses one pool
    of the cluster; the plans of all pools are ranked together unless `pool` names one, and so are
    those of all recipes where `precision` is left open: a list in the job or in `only`.
    `objective` is one of `planner.specs.search.objectives.OBJECTIVES`; `deadline` the longest run
    (`"30d"`), `step_limit_s` the longest step; `pareto` two or three objectives whose front is
    wanted instead. A `request` holds all of these in one; with it they stay out. What is left open
    is taken from the `search:` section of the model file, if it has one. `executor` is
    `automatic`, `serial`, `processes` or `ray` (on the cluster at `ray_address`, else on this
    machine); the answer does not depend on it. `calibration` is a calibration or the path of its
    file, the shipped one without it; `reference` the path of a file of measured runs that anchor
    it, or what it holds (`planner.solver.calibration.reference`). Callers that ask again and again
    pass the same `shared`, see `Execution`. When nothing fits the result holds no plans but the
    counted reasons and the smallest changes that would help. Raises `SpecError` for a bad input
    and `UsageError` for a bad option.
    """
    start = time.monotonic()
    request = request_of_keywords(SolveKeywords, request, keywords)
    inputs = read_inputs(model, cluster, request.overrides)
    request = request.over(SolveRequest.of_section(inputs[0].search))
    options = request.options()
    check_options(options)
    limit_s, stop = request.time_limit_s, keywords.get("stop")

    def stop_at(share: float) -> Stop | None:
        """Return what ends the search after a share of its time limit, if it has one."""
        if not limit_s:
            return stop
        return either(stop, lambda: time.monotonic() - start > share * limit_s)

    if request.pool:
        inputs = inputs[0], inputs[1].pool(request.pool)
    options, chosen = of_able_framework(*inputs, options)
    join = _joining(*inputs, options) if options.pools == TOGETHER else None
    inputs = (inputs[0], join.cluster) if join else inputs
    options, notes = anchored_options(options, request.reference)
    command = SolveCommand(
        *source_names(model, cluster),
        request.overrides,
        request.pool,
        reference_name(request.reference),
    )
    executor = named_executor(
        keywords.get("executor", "automatic"), keywords.get("ray_address", "")
    )
    execution = Execution(executor, None, keywords.get("progress"), keywords.get("shared"))
    try:
        result = _solved(inputs, options, execution, command, stop_at, join)
    except ExecutorError as error:
        raise SearchError(str(error), error.fix) from error
    return replace(result, notes=(*chosen, *notes, *result.notes))


def solve_again(
    model: ModelInput, cluster: ClusterInput, options: SolveOptions, execution: Execution
) -> Result:
    """Return the result for inputs that are read, with plans over several pools where it is asked.

    As `solve` without a time limit of its own: `execution` says when to stop.
    """
    several = options.pools == TOGETHER and len(cluster.cluster.pools) > 1
    options = options if several else replace(options, pools=APART)
    join = _joining(model, cluster, options) if several else None
    inputs = model, join.cluster if join else cluster
    command = SolveCommand("MODEL", "CLUSTER")
    return _solved(inputs, options, execution, command, lambda _: execution.stop, join)


def solve_point(
    model: ModelInput,
    cluster: ClusterInput,
    options: SolveOptions,
    execution: Execution,
    stop_at: StopAt,
) -> Result:
    """Return the result of one of many problems that are compared: by the value alone.

    Of several pools as `solve`, without what only readers of one answer need: reasons, the
    bandwidths from which on links pay.
    """
    several = options.pools == TOGETHER and len(cluster.cluster.pools) > 1
    options = options if several else replace(options, pools=APART)
    join = _joining(model, cluster, options) if several else None
    inputs = model, join.cluster if join else cluster
    command, extent = SolveCommand("MODEL", "CLUSTER"), Extent(reasons=False, ties=False)
    return _solved(inputs, options, execution, command, stop_at, join, extent)


def _solved(
    inputs: tuple[ModelInput, ClusterInput],
    options: SolveOptions,
    execution: Execution,
    command: SolveCommand,
    stop_at: StopAt,
    join: "Joining | None",
    extent: "Extent | None" = None,
) -> Result:
    """Return the plans on each pool, and over several where they are joined.

    With an `extent` the answer is for comparison with others alone.
    """
    apart = replace(execution, stop=stop_at(APART_SHARE if join else 1.0))
    work = search_inputs(*inputs, options, apart, extent or Extent(different=True))
    result = work.result(apart, command)
    if join is None:
        return result
    first = work.best_by_pool()

    def alone(index: int) -> Plan | None:
        """Return the best plan on one pool alone, whatever memory it leaves free."""
        pool, source = inputs[1].cluster.pools[index], inputs[1].sources[index]
        names = {pool.name, *(other.pool.name for other in source.others)}
        known = next((plan for name, plan in first.items() if name in names), None)  # the best
        if known or (names & work.pools_that_fit and not work.fewer_devices_count):
            return known
        return _on_one_pool(inputs, options, apart, index)

    return join.with_together(result, inputs[0], options, alone, stop_at, has_links=extent is None)


def _joining(model: ModelInput, cluster: ClusterInput, options: SolveOptions) -> "Joining":
    """Return how the pools of a cluster are joined; an error for what is not modelled of it."""
    from planner.solver.together.answer import joining  # 100 ms: the search over several pools

    return joining(model, cluster, options)


def _on_one_pool(
    inputs: tuple[ModelInput, ClusterInput],
    options: SolveOptions,
    execution: Execution,
    index: int,
) -> Plan | None:
    """Return the best plan on one pool of a cluster alone; None where nothing fits."""
    own = inputs[0], inputs[1].only(index)
    extent = Extent(reasons=False, ties=False)
    return next(
        iter(solve_inputs(*own, replace(options, top=1), execution, extent=extent).plans), None
    )


def evaluate(
    model: Source,
    cluster: Source,
    request: SolveRequest | None = None,
    **keywords: Unpack[EvaluateKeywords],
) -> Result:
    """Return one layout priced, whether or not it fits into memory.

    Axes that `pins` does not name take their plainest value, see `layouts.layout_from_pins`, but
    for the split: the layers go to the stages as the search would have them, which a note says; a
    cluster with several pools needs `pool`. The keywords are those of `solve` that say what a
    layout costs, or one `request` holds them. Raises `SearchError` when the layout breaks a rule.
    """
    request = request_of_keywords(EvaluateKeywords, request, keywords)
    options, notes = request.anchored_options(default_top=1)
    read = read_inputs(model, cluster, request.overrides, request.pool)
    inputs = one_recipe(read[0], options, "one layout is priced in one recipe"), read[1]
    names = [pool.name for pool in inputs[1].cluster.pools]
    if len(names) > 1:
        raise UsageError(
            f"the cluster has {len(names)} pools, and one layout is priced on one of them",
            "name it with " + option("pool") + f": {', '.join(names)}",
            code="several",
        )
    problem = make_problem(*inputs, options)
    free = replace(options, pins={a: v for a, v in options.pins.items() if a != "split"})
    context = Context(problem, free.search_options(problem), problem.pool.n_devices)
    try:
        layout = layout_from_pins(context, options.pins)
    except SearchError as error:
        error.about = error.about or "pin"
        raise
    if layout.pp > 1 and "split" not in options.pins:
        choice = best_split_of(context, layout)
        layout, notes = choice.layout, (*notes, _split_note(choice))
    breakdown = break_down(problem, layout)
    plan = make_plan(problem, breakdown, inputs, options.calibration, framework=options.framework)
    fits = breakdown.peak_bytes <= problem.pool.usable_bytes
    counts = Counts(1, 1, 1, int(not fits), int(fits), 1, 0)
    return Result(
        result_id=result_id(read[0], read[1], options, "evaluate"),
        inputs=inputs_json(read[0], read[1], options, source_names(model, cluster)),
        calibration=calibration_json(options.calibration),
        counts=counts,
        rejected=(),
        plans=(plan,),
        notes=(*notes, *input_notes(*inputs)),
    )


def _split_note(choice: SplitChoice) -> str:
    """Return which split was taken where none is named, and what the others come to."""
    counts = choice.layout.stage_layers
    others = [f"{name} {step_s / choice.step_s - 1:+.1%}" for name, step_s in choice.rivals]
    others += [f"{name} does not fit" for name in choice.too_large]
    named = [text for text in others if text.split()[0] in SPLITS]
    compared = f" ({', '.join(named)})" if named else ""
    return (
        f"{SPLIT_CHOSEN}{stage_words(counts)} layers a virtual stage are the best of"
        f" {1 + len(others)} looked at{compared}"
    )


@dataclass(frozen=True, slots=True)
class Extent:
    """How far an answer goes beyond the best plans on all devices."""

    fewer_devices: bool = True
    """Also look at fewer devices than are given, where they may be better."""
    different: bool = False
    """List the best plan of each combination of degrees, unless the options want all variants."""
    reasons: bool = True
    """Say why the first plan is first, and look for the smallest changes that would help where
    nothing fits."""
    ties: bool = True
    """Order plans that are as good as the fastest by memory and simplicity. Off, the value alone
    orders them, so that the first takes the proven time: figures of neighbouring problems are
    compared, and what is recommended may be up to a few per cent slower on one side alone."""


def solve_inputs(
    model: ModelInput,
    cluster: ClusterInput,
    options: SolveOptions,
    execution: Execution,
    command: SolveCommand = SolveCommand("MODEL", "CLUSTER"),
    extent: Extent = Extent(),
) -> Result:
    """Return the result for inputs that are already read.

    Callers that ask again and again, of neighbouring models and clusters, share tables in
    `execution`: the answer is the same, sooner.
    """
    return search_inputs(model, cluster, options, execution, extent).result(execution, command)


def search_inputs(
    model: ModelInput,
    cluster: ClusterInput,
    options: SolveOptions,
    execution: Execution,
    extent: Extent,
) -> "SearchedInputs":
    """Search the pools of a cluster, each for itself."""
    options, cluster = with_open_recipes(model, options), cluster.with_other_uses()
    variants, left_out = variants_of(
        asked_models(model, options),
        cluster,
        options,
        lambda variant, pool: searched_problem(variant, pool, options),
        execution.shared,
    )
    counts = search_counts(variants, left_out, options, execution, extent.fewer_devices)
    if extent.ties:
        with_plans_of_margin(counts, variants, options)
    return SearchedInputs(model, cluster, options, extent, variants, counts)


@dataclass(frozen=True, slots=True)
class SearchedInputs:
    """What was searched for some inputs, before any of it is opened."""

    model: ModelInput
    cluster: ClusterInput
    options: SolveOptions
    """With the recipes that are open."""
    extent: "Extent"
    variants: list[Variant]
    counts: Searches

    @property
    def pools_that_fit(self) -> set[str]:
        """Pools on which plans fit, whether or not these keep the limits."""
        return {one.name[0] for one in self.counts.listed if one.outcome.finalists}

    @property
    def fewer_devices_count(self) -> bool:
        """Whether fewer devices may keep limits that all devices of a pool do not."""
        return self.options.objective in OVER_COUNTS or self.options.budget_usd is not None

    def best_by_pool(self) -> dict[str, Plan]:
        """Return the best plan of each pool by the objective alone, whatever it leaves free."""
        best: dict[str, Plan] = {}
        for c, one, _ in ranked_candidates(self.counts, self.variants, self.options, ties=False):
            name = one.name[0]
            if name not in best:
                opened = break_down(one.problem, c.layout)
                inputs = one.model, one.cluster
                best[name] = make_plan(
                    one.problem,
                    opened,
                    inputs,
                    self.options.calibration,
                    framework=self.options.framework,
                )
        return best

    def result(self, execution: Execution, command: SolveCommand) -> Result:
        """Return the answer: its plans opened, reasons, what would help where nothing fits."""
        model, cluster, options, extent = self.model, self.cluster, self.options, self.extent
        variants, counts = self.variants, self.counts
        stop, models = execution.stop, asked_models(model, options)
        ranked, searched = ranked_candidates(counts, variants, options, extent.ties), counts.listed
        listed = [(entry, 1) for entry in ranked]
        if extent.different and not options.pareto:
            listed = best_of_each_layout(ranked, options)
        listed = listed if options.pareto else listed[: options.top]
        shown = [entry for entry, _ in listed]
        opened = open_candidates([(c, one) for c, one, _ in shown])
        grouped = tie_groups(shown, [x.step_s for x in opened], variants, options)
        plans = make_plans(
            [one for _, one, _ in shown],
            opened,
            [tie for _, _, tie in shown],
            grouped,
            options.calibration,
            [n for _, n in listed],
        )
        outcomes = [one.outcome for one in searched]
        relaxations: tuple[Relaxation, ...] = ()
        conflicts: tuple[Conflict, ...] = ()
        fits = any(outcome.finalists for outcome in outcomes)
        complete = not counts.stopped
        try:
            nearest, closest = nearest_miss(searched, not fits and complete, stop)
        except StoppedError:
            nearest, closest = nearest_miss(searched, look_again=False)
            complete, counts.stopped = False, "time limit"
            counts.notes.append("stopped: the closest plan was not looked for to the end")
        if not fits and complete:
            from planner.solver.infeasible.conflicts import conflicts_of
            from planner.solver.infeasible.relaxations import find_relaxations

            conflicts = conflicts_of(nearest.context, nearest.outcome.n_legal)
            if extent.reasons:
                pinned = pinned_to(options, numerics_of(nearest.model.job))
                try:
                    relaxations = find_relaxations(
                        nearest.model, nearest.cluster, pinned, closest, command, stop
                    )
                except StoppedError:
                    complete, counts.stopped = False, "time limit"
                    counts.notes.append("stopped: what would help was not looked for to the end")
        margin = margin_use(ranked, variants, options) if extent.ties else None
        why: tuple[str, ...] = ()
        if extent.reasons and not options.pareto:
            first_s = plans[0].step_time_s if plans else 0.0
            best = tie_words(options.objective, margin, first_s)
            why = _why_first(plans, ranked, searched, best)
            why += margin_words(margin, first_s) if plans else ()
        alternatives: tuple[Alternative, ...] = ()
        if extent.reasons and plans and not options.pareto:
            winner = ranked[0][1].problem, ranked[0][0].layout, options
            alternatives = (*numeric_alternatives(*winner), *closed_alternatives(*winner))
        return Result(
            result_id=result_id(model, cluster, options, "solve"),
            inputs=inputs_json(model, cluster, options, (command.model, command.cluster)),
            calibration=calibration_json(options.calibration),
            counts=result_counts(outcomes),
            certificate=certificate(outcomes),
            rejected=rejections(outcomes),
            plans=plans,
            conflicts=conflicts,
            relaxations=relaxations,
            closest=closest_miss_of(closest, nearest.problem),
            uneven_tried=None if fits else uneven_tried(outcomes),
            complete=complete,
            stopped=counts.stopped,
            why_first=why,
            alternatives=alternatives,
            notes=(
                *counts.notes,
                *(recipes_without_plans(searched) if len(models) > 1 else ()),
                *(too_late(searched, variants, options) if fits and not plans else ()),
                *segment_notes(cluster, {plan.pool for plan in plans}),
                *input_notes(model, cluster),
            ),
            devices=tuple(tally.to_counts() for tally in counts.tallies),
            margin=margin,
            gap=gap_frac(counts, ranked, variants, options),
        )


def _why_first(
    plans: tuple[Plan, ...], ranked: list[Found], searched: list[Searched], best: str
) -> tuple[str, ...]:
    """Return why the first plan is first on its devices, and what the others reach at best.

    `best` is what the plans that tie are compared with (`tie_words`).
    """
    if not plans:
        return ()
    winner = ranked[0][1]
    own = [(c, tie) for c, pool, tie in ranked if pool is winner]
    lines = why_first(winner.problem, plans, own, best, winner.context.layer_grid)
    pools, recipes, counts = [], [], []
    several = len({one.name[1] for one in searched}) > 1
    for one in searched:
        rival = next((c for c, searched_one, _ in ranked if searched_one is one), None)
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
