"""How much of the dense peak a plan uses, with recomputed work (HFU) beside MFU."""

from costmodels.layers.flops import model_flops_per_step
from costmodels.layers.hardware_flops import hardware_flops_per_step
from planner.solver.answer.result import Plan
from planner.units import format_percent


def hfu(plan: Plan) -> float:
    """Return the hardware FLOPs utilization of a priced plan, a fraction of the dense peak.

    HFU = MFU × hardware FLOPs / model FLOPs, see `costmodels.layers.hardware_flops`.
    """
    problem = plan.breakdown.rows.problem
    hardware = hardware_flops_per_step(problem.shape, problem.job, plan.layout)
    return plan.mfu * hardware / model_flops_per_step(problem.shape, problem.job)


def mfu_words(plan: Plan) -> str:
    """Return MFU, and MFU over the bf16 peak where the matrix products have another peak.

    Papers print the latter whatever the precision.
    """
    text = f"MFU {format_percent(plan.mfu)}"
    if plan.mfu_over_bf16 is None:
        return text
    return f"{text} ({format_percent(plan.mfu_over_bf16)} of the bf16 peak)"


def utilization_words(plan: Plan) -> str:
    """Return MFU, and HFU where it is another number because something is recomputed."""
    hardware, text = hfu(plan), mfu_words(plan)
    if hardware == plan.mfu:
        return text
    return f"{text}, HFU {format_percent(hardware)} with recomputed work"
