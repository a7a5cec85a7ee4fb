"""Where a run stands among the plans that its framework could run instead."""

from collections.abc import Callable
from dataclasses import replace

from costmodels.breakdown import break_down
from costmodels.stacks import StackProfile, compiled
from planner.analyze.check.report import Standing
from planner.frameworks.runs.existing_run import ExistingRun
from planner.solver.answer.plans import make_plan
from planner.solver.answer.result import Plan
from planner.solver.options import SolveOptions
from planner.solver.problem import make_problem
from planner.solver.ranking import rank_over_pools
from planner.solver.scenarios import Searched
from planner.specs.inputs import ClusterInput, ModelInput
from searches.rules import Context
from searches.search import search


def stack_as_run(stack: StackProfile, run: ExistingRun) -> StackProfile:
    """Return the profile of a framework with what the run's settings change in it."""
    changes = dict(run.stack)
    if changes.pop("compiled", False):
        stack = compiled(stack)
    return replace(stack, **changes)


def search_beside(model: ModelInput, cluster: ClusterInput, options: SolveOptions) -> Context:
    """Return the search that a run stands beside: of its framework, on its own stack."""
    usual = replace(options, stack="")
    problem = make_problem(model, cluster, usual)
    return Context(problem, usual.search_options(problem), problem.pool.n_devices)


def standing_of(
    model: ModelInput,
    cluster: ClusterInput,
    options: SolveOptions,
    plan: Plan,
    stop: Callable[[], bool] | None = None,
) -> Standing:
    """Return the place of a plan among all that its framework runs within memory.

    Among those looked at, and without a rank, once `stop` says so.
    """
    context = search_beside(model, cluster, options)
    problem, rival_s = context.problem, plan.breakdown.closed_form_step_s
    wanted = replace(context.options, rival_s=rival_s, bound=False)
    context = replace(context, options=wanted)
    outcome = search(context, stop=stop)
    searched = [Searched(model, cluster, context, outcome)]
    ranked = rank_over_pools(searched, margin_frac=options.memory_margin)
    best = None
    if ranked:
        opened = break_down(problem, ranked[0][0].layout)
        best = make_plan(
            problem,
            opened,
            (model, cluster),
            options.calibration,
            framework=options.framework,
        )
    fits = plan.headroom_frac >= 0
    return Standing(
        best=best,
        ratio=plan.step_time_s / best.step_time_s if best else None,
        rank=outcome.n_faster + 1 if fits and not outcome.stopped else None,
        n_fit=outcome.n_fit,
        stopped=outcome.stopped,
    )
