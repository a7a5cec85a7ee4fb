"""What binds a plan: its step cut into parts that sum to it, and the part that takes most.

One notion for `planner explain`, the rows of sweeps (`best.binding`) and the pages. The parts are
the terms of the step time; what the device computes is cut further into what the rate of matrix
products, the bandwidth of its memory and the latency of kernels decide, by their elasticities.
Memory takes no time: it is a wall, and binds where the same layout without recomputation would be
faster by more than ties are apart, and does not fit.
"""

from collections.abc import Mapping

from costmodels.breakdown import Breakdown
from costmodels.documentation.terms import COMPUTE_TERMS, NETWORK_TERMS
from planner.analyze.elasticities import MoreMemory
from planner.solver.answer.uncertainty import TIE_FRAC

MEANING: Mapping[str, str] = {
    "compute": "matrix products and attention at the rate that their kernels reach",
    "hbm": "operators that wait for the memory of the device",
    "tp": "waiting for tensor-parallel traffic",
    "cp": "waiting for context-parallel traffic",
    "ep": "waiting for expert-parallel traffic",
    "pp": "waiting for messages between pipeline stages",
    "dp": "waiting for data-parallel and ZeRO traffic",
    "overlap": "compute slowed by traffic beside it",
    "bubble": "pipeline stages without work",
    "straggler": "waiting for the slowest of many nodes",
    "memory": "recomputation and copies to the host, which save memory",
    "host": "waiting for the host to launch kernels, and for late ranks",
    "overhead": "latency of kernels, and what a step takes outside the model",
}
CUT_BY = ("matmul_flops", "hbm_bandwidth", "kernel_latency")
"""The figures whose elasticities cut what the device computes."""
PARTS = tuple(MEANING)
"""The parts of a step, in the order in which equal ones are named."""
MEMORY = "memory"


def parts_s(breakdown: Breakdown, elasticity: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of every part of `PARTS`; they sum to `breakdown.step_s`.

    `elasticity` is that of the plan (`planner.analyze.elasticities.elasticities`). Computing time
    C is cut in the proportion of the elasticities of its three figures (`CUT_BY`):

    C_x = C e_x / (e_matmul + e_hbm + e_kernel)

    The optimizer counts as computing, on the host as memory.
    """
    return parts_of_terms(breakdown.time_s, elasticity, breakdown.layout.optimizer_offload)


def parts_of_terms(
    time: Mapping[str, float], elasticity: Mapping[str, float], on_host: bool
) -> dict[str, float]:
    """Return the parts of `parts_s`, seconds, from the terms of a step by name, seconds.

    `on_host` tells whether the optimizer is offloaded. Rows of sweeps hold these three.
    """
    computing = sum(time.get(term, 0.0) for term in COMPUTE_TERMS) + (
        0.0 if on_host else time["optimizer"]
    )
    rates = {
        "compute": max(0.0, -elasticity["matmul_flops"]),
        "hbm": max(0.0, -elasticity["hbm_bandwidth"]),
        "overhead": max(0.0, elasticity["kernel_latency"]),
    }
    total = sum(rates.values())
    cut = {name: computing * rate / total for name, rate in rates.items()} if total else {}
    parts = dict.fromkeys(PARTS, 0.0) | {axis: time[axis] for axis in NETWORK_TERMS}
    parts |= {name: time[name] for name in ("overlap", "bubble", "straggler", "host")}
    parts["compute"] = cut.get("compute", computing)
    parts["hbm"] = cut.get("hbm", 0.0)
    parts["overhead"] = cut.get("overhead", 0.0) + time["fixed"]
    parts[MEMORY] = time["recompute"] + time["offload"] + (time["optimizer"] if on_host else 0.0)
    return parts


def largest(parts: Mapping[str, float]) -> str:
    """Return the part that takes most."""
    return max(PARTS, key=lambda name: parts[name])


def is_wall(step_s: float, memory_bytes: float, roomier: MoreMemory | None) -> bool:
    """Tell whether a device of `memory_bytes` keeps a plan from running without recomputation.

    Where that would be faster by more than ties are apart.
    """
    if roomier is None or roomier.memory_bytes <= memory_bytes:
        return False
    return roomier.step_s * (1.0 + TIE_FRAC) < step_s


def binding_part(
    parts: Mapping[str, float], step_s: float, memory_bytes: float, roomier: MoreMemory | None
) -> str:
    """Return what binds: memory where it is a wall, else the part that takes most.

    `memory_bytes` is what a device has, `roomier` `planner.analyze.elasticities.more_memory` of
    the plan.
    """
    return MEMORY if is_wall(step_s, memory_bytes, roomier) else largest(parts)
