"""What the first plan is called, and why it stands before plans that are as good."""

from typing import TYPE_CHECKING

from planner.solver.answer.uncertainty import HEADROOM_STEP, TIE_FRAC
from planner.solver.margins import tie_words
from planner.specs.search.objectives import BEST

if TYPE_CHECKING:
    from planner.solver.answer.result import Result


def best_words(result: "Result") -> str:
    """Return what the first plan is called: the fastest, the cheapest."""
    objective = str(result.inputs["options"].get("objective", "step_time"))
    if not result.plans:
        return BEST[objective]
    return tie_words(objective, result.margin, result.plans[0].step_time_s)


def called(result: "Result") -> str:
    """Return what the first plan is called: a front has no plan that is better than its others."""
    return "First of the front" if result.inputs["options"].get("pareto") else "Recommended"


def order_words(result: "Result") -> str:
    """Return in a sentence or two why the first plan stands before plans that are as good."""
    requested = result.inputs["options"].get("pareto")
    if requested:
        names = " and ".join(requested)
        return f"On the Pareto front by {names} no plan is better than another in all of them."
    best = best_words(result)
    if sum(plan.tie for plan in result.plans) < 2:
        return f"It is {best} of all plans, and none ties with it."
    return (
        f"Plans within {TIE_FRAC:.0%} of {best} tie: the model cannot tell them apart. Among ties"
        f" we prefer no CPU offload, then more free memory (in steps of {HEADROOM_STEP:.0%} of the"
        " usable memory), then the simplest layout."
    )
