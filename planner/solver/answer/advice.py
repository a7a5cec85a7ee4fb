"""Warnings about a plan: what is out of the ordinary, and what would relax it."""

from costmodels.breakdown import Breakdown
from costmodels.documentation.terms import NETWORK_TERMS
from costmodels.problem import Problem
from planner.solver.answer.result import PlanWarning
from planner.units import GIB

MAX_BUBBLE_FRAC = 0.20
MIN_MICRO_PER_STAGE = 4
MAX_EXPOSED_FRAC = 0.30
MIN_HEADROOM_FRAC = 0.05
DIM_MULTIPLE = 64


def plan_warnings(problem: Problem, breakdown: Breakdown) -> tuple[PlanWarning, ...]:
    """Return the warnings of one plan, in a fixed order."""
    checks = (
        _memory(problem, breakdown),
        _bubble(breakdown),
        _few_micro_batches(breakdown),
        _communication(breakdown),
        _wide_tensor_parallelism(problem, breakdown),
        _narrow_gemms(problem, breakdown),
        _host_bound(breakdown),
    )
    return tuple(warning for warning in (*checks, _balance(problem, breakdown)) if warning)


def _memory(problem: Problem, breakdown: Breakdown) -> PlanWarning | None:
    usable, peak = problem.pool.usable_bytes, breakdown.peak_bytes
    if peak > usable:
        return PlanWarning(
            "MEM001",
            f"does not fit: stage {breakdown.peak_stage} needs {peak / GIB:.1f} GiB of "
            f"{usable / GIB:.1f} usable; more recompute, a smaller mbs or larger tp or pp",
        )
    if peak > (1.0 - MIN_HEADROOM_FRAC) * usable:
        return PlanWarning(
            "MEM101",
            f"memory headroom {1 - peak / usable:.1%}: fragmentation or a longer sequence may run "
            "out; one more recomputed layer or a smaller mbs relaxes it",
        )
    return None


def _bubble(breakdown: Breakdown) -> PlanWarning | None:
    if breakdown.bubble_frac <= MAX_BUBBLE_FRAC:
        return None
    return PlanWarning(
        "BUB101",
        f"pipeline idle for {breakdown.bubble_frac:.0%} of the step: a larger global batch, a"
        " larger vpp or a smaller pp relaxes it",
    )


def _few_micro_batches(breakdown: Breakdown) -> PlanWarning | None:
    layout = breakdown.layout
    if layout.pp == 1 or layout.n_micro >= MIN_MICRO_PER_STAGE * layout.pp:
        return None
    return PlanWarning(
        "BUB102",
        f"{layout.n_micro} micro-batches for {layout.pp} stages, fewer than 4 per stage: a larger "
        "global batch or fewer devices would use the pipeline better",
    )


def _communication(breakdown: Breakdown) -> PlanWarning | None:
    if breakdown.exposed_comm_frac <= MAX_EXPOSED_FRAC:
        return None
    parts = {axis: breakdown.time_s[axis] for axis in NETWORK_TERMS}
    worst = max(parts, key=lambda axis: parts[axis])
    return PlanWarning(
        "COM101",
        f"waits for the network {breakdown.exposed_comm_frac:.0%} of the step, most of it {worst}:"
        f" a smaller {worst} group, larger micro-batches or faster links relax it",
    )


def _wide_tensor_parallelism(problem: Problem, breakdown: Breakdown) -> PlanWarning | None:
    tp, domain = breakdown.layout.tp, problem.pool.scale_up_domain
    if tp <= domain:
        return None
    return PlanWarning(
        "COM102",
        f"tp {tp} spans {-(-tp // domain)} scale-up domains: few runs do, and what it loses where "
        "pipeline and data-parallel traffic use the same ports is not modelled; "
        f"--max tp={domain} keeps it inside one",
    )


def _narrow_gemms(problem: Problem, breakdown: Breakdown) -> PlanWarning | None:
    shape, tp = problem.shape, breakdown.layout.tp
    widths = {"hidden": shape.hidden, "heads*head_dim/tp": shape.q_width // tp}
    if shape.n_expert_layers < shape.layers:
        widths["ffn/tp"] = shape.ffn // tp
    if shape.n_experts:
        widths["moe_ffn/etp"] = shape.expert_ffn // breakdown.layout.etp
    odd = [f"{name} = {width}" for name, width in widths.items() if width % DIM_MULTIPLE]
    if not odd:
        return None
    return PlanWarning(
        "DIM101",
        f"matrix dimensions that are no multiple of {DIM_MULTIPLE} run slower than modelled: "
        f"{', '.join(odd)}; a smaller tp may relax it",
    )


def _host_bound(breakdown: Breakdown) -> PlanWarning | None:
    if breakdown.time_s["host"] <= 0.0:
        return None
    return PlanWarning(
        "HOST101",
        f"layers are too short for the host to launch in time ({breakdown.time_s['host']:.3g} s"
        " of the step): a larger mbs, a smaller tp, CUDA graphs or a compiler relax it",
    )


def _balance(problem: Problem, breakdown: Breakdown) -> PlanWarning | None:
    shape = problem.shape
    assumed = shape.imbalance == 1.0 and not (shape.capacity_factor or shape.forced_balance)
    if breakdown.layout.ep == 1 or shape.n_experts <= 1 or not assumed:
        return None
    return PlanWarning(
        "MOE101",
        "routing is taken as perfectly balanced; the busiest rank decides, and 1.05 to 1.3 times "
        "the mean is usual: --set model.moe.imbalance=1.2 shows what that costs",
    )
