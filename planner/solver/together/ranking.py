"""Plans over several pools by an objective, and what each pool adds to them."""

import math
from collections.abc import Mapping, Sequence

from planner.solver.answer.result import Plan
from planner.solver.together.records import JoinedPlan, PoolWorth


def value_of(plan: Plan | JoinedPlan, objective: str) -> float:
    """Return the value of a plan by an objective, smaller is better; infinite where unknown."""
    if objective in ("step_time", "tokens_per_s"):
        return plan.step_time_s
    if objective == "goodput":
        share = plan.goodput_frac if isinstance(plan, JoinedPlan) else _goodput(plan)
        return plan.step_time_s / share if share else math.inf
    name = {"cost": "usd_per_million_tokens", "energy": "energy_j_per_token"}[objective]
    value = getattr(plan if isinstance(plan, JoinedPlan) else plan.run, name, None)
    return math.inf if value is None else float(value)


def _goodput(plan: Plan) -> float:
    return plan.run.goodput.goodput_frac if plan.run else 1.0


def pool_worth(
    name: str,
    alone: Mapping[str, Plan | None],
    records: Sequence[JoinedPlan],
    used: set[str],
) -> PoolWorth:
    """Return what one pool adds: the best plans on it alone, and on all others."""
    own = alone[name]
    others = [plan.step_time_s for other, plan in alone.items() if other != name and plan]
    others += [plan.step_time_s for plan in records if name not in plan.devices]
    return PoolWorth(
        pool=name,
        alone_s=own.step_time_s if own else None,
        alone_plan_id=own.plan_id if own else "",
        without_s=min(others, default=None),
        is_used=name in used,
    )


def shown(plans: Sequence[JoinedPlan], top: int) -> tuple[JoinedPlan, ...]:
    """Return the first plans, and the first that a framework runs where none of them is one."""
    shown = list(plans[:top])
    if not any(plan.runs_on for plan in shown):
        shown += [plan for plan in plans[top:] if plan.runs_on][:1]
    return tuple(shown)
