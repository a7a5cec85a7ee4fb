"""Limits on a run over several pools: which plans keep them, what could be kept, what cannot."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from costmodels.mixed.plans import MixedPlan
from costmodels.mixed.tables import MixedProblem
from costmodels.shapes import TrainingJob
from planner.solver.options import SolveOptions
from planner.solver.together.fewer import with_fewer_pipelines
from planner.solver.together.records import JoinedPlan
from planner.specs.search.objectives import Limits, useful_tokens

BY_DEVICES = ("cost", "energy")
"""Objectives by which fewer devices may be better: plans on fewer nodes are looked at."""
SEARCHED_FRACTION = 0.5
"""Share of the nodes of one pool that is searched beside all of them."""
TRIMMED_FRACTIONS = tuple(i / 16 for i in range(15, 0, -1))
"""Shares to which plans that are found are cut back, by leaving out pipelines."""
ROUNDING = 1e-9
"""Share by which a limit may be missed: rounding."""


def limits_json(limits: Limits) -> dict[str, float]:
    """Return the limits that there are."""
    return {name: value for name, value in asdict(limits).items() if value is not None}


def keeps(plan: JoinedPlan, limits: Limits) -> bool:
    """Tell whether a plan keeps all limits; what is not known of it keeps none."""
    return all(
        value_of_limit(plan, name) <= most * (1.0 + ROUNDING)
        for name, most in limits_json(limits).items()
    )


def value_of_limit(plan: JoinedPlan, name: str) -> float:
    """Return what a limit is compared with; infinite where it is not known."""
    if name == "step_limit_s":
        return plan.step_time_s
    value = {"deadline_s": plan.expected_s, "budget_usd": plan.cost_usd}[name]
    return math.inf if value is None else value


def nearest_limits(plans: Sequence[JoinedPlan], limits: Limits) -> Mapping[str, float]:
    """Return the least value of each limit that some plan keeps, of those that none does."""
    nearest = {}
    for name, most in limits_json(limits).items():
        least = min((value_of_limit(plan, name) for plan in plans), default=math.inf)
        if most * (1.0 + ROUNDING) < least < math.inf:
            nearest[name] = least
    return nearest


def impossible_limits(limits: Limits, bound_s: float, job: TrainingJob) -> Iterator[str]:
    """Yield the limits that no plan keeps whose step is not below a bound, seconds.

    A run takes its steps at least; failures, which differ by plan, only add to it. Of a budget a
    bound of the step says nothing: fewer devices cost less an hour.
    """
    if limits.step_limit_s is not None and bound_s > limits.step_limit_s * (1.0 + ROUNDING):
        yield "step_limit_s"
    if limits.deadline_s is not None and job.tokens:
        least_s = bound_s * job.tokens / useful_tokens(job)
        if least_s > limits.deadline_s * (1.0 + ROUNDING):
            yield "deadline_s"


def fewer_devices_count(options: SolveOptions) -> bool:
    """Tell whether plans on fewer devices may be better than the fastest, or alone be allowed."""
    return options.objective in BY_DEVICES or options.budget_usd is not None


def smaller_problems(problem: MixedProblem) -> Iterator[MixedProblem]:
    """Yield a problem with fewer nodes of one of its pools: fewer devices may cost less."""
    for i, pool in enumerate(problem.pools):
        nodes = pool.n_devices // pool.devices_per_node
        if 0 < (n := math.ceil(nodes * SEARCHED_FRACTION)) < nodes:
            yield _with_devices(problem, i, n * pool.devices_per_node)


def trimmed_plans(plans: Sequence[MixedPlan], problem: MixedProblem) -> Iterator[MixedPlan]:
    """Yield plans with fewer of their pipelines, so that they use fewer devices of some pool."""
    for plan in plans:
        for i in plan.pools:
            for fraction in TRIMMED_FRACTIONS:
                n = math.floor(plan.n_devices(i) * fraction)
                fewer = with_fewer_pipelines(plan, _with_devices(problem, i, n))
                if fewer is not None:
                    yield fewer


def _with_devices(problem: MixedProblem, place: int, n_devices: int) -> MixedProblem:
    pool = replace(problem.pools[place], n_devices=n_devices)
    pools = (*problem.pools[:place], pool, *problem.pools[place + 1 :])
    return replace(problem, pools=pools)
