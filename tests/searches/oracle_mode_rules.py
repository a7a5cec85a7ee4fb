"""Which modes of a layer go together, from what the rules say: one plan at a time."""

import math

from costmodels.plans import Layout
from costmodels.problem import Problem
from tests.searches.oracle_dispatch import overlap
from tests.searches.oracle_graphs import graph, mode
from tests.searches.oracle_offload import MODULES as SENT
from tests.searches.oracle_offload import broken_offload_rule, sent_again

WORDS = {
    "dispatcher": ("alltoall", "allgather", "deepep", "hybridep"),
    "ep_overlap": ("off", "1f1b", "dualpipe"),
    "cuda_graph": (
        "none",
        "attn",
        "mlp",
        "attn+mlp",
        "moe_router",
        "moe_router+moe_preprocess",
        "attn+moe_router",
        "attn+moe_router+moe_preprocess",
        "layer",
        "full_iteration",
    ),
    "offload_modules": tuple(
        "+".join(name for i, name in enumerate(SENT) if code >> i & 1) or "none"
        for code in range(2 ** len(SENT))
    ),
}
"""The axes without a field, with their values; the first is off."""
DEEPEP_RANKS = {2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160}


def broken_mode_rule(problem: Problem, plan: Layout) -> str:
    """Return the code of the first rule on modes that a plan breaks, or ""."""
    code = dispatcher_rule(problem, plan) or overlap_rule(problem, plan)
    code = code or graph_rule(problem, plan) or broken_offload_rule(problem, plan)
    if code:
        return code
    if overlap(plan) != "off" and (plan.recompute == "full" or "moe" in plan.recompute_modules):
        return "EPO003"
    if graph(plan) != "none" and captured_again(plan):
        return "CGR003"
    return "OFM005" if sent_again(plan) else ""


def captured_again(plan: Layout) -> bool:
    if plan.activation_offload_layers:
        return True
    if "moe" in plan.recompute_modules and "moe_router" in graph(plan):
        return True
    return plan.recompute == "full" and graph(plan) != "full_iteration"


def dispatcher_rule(problem: Problem, plan: Layout) -> str:
    named, pool, shape = mode(plan, "dispatcher", "alltoall"), problem.pool, problem.shape
    ranks = plan.ep * plan.etp
    if named == "alltoall":
        return ""
    if ranks == 1:
        return "DSP003"
    if named == "allgather":
        return ""
    part = pool.accelerator
    generations = ("ampere", "hopper", "blackwell", "rubin")
    runs = part.vendor == "NVIDIA" and any(part.generation.startswith(x) for x in generations)
    if part.vendor == "AMD" and named == "deepep":
        runs = part.generation in ("cdna3", "cdna4")
    if not runs or (named == "deepep" and pool.scale_up_domain > pool.devices_per_node):
        return "DSP001"
    if named == "deepep":
        over_nodes = ranks > pool.devices_per_node
        unknown = (48, 96) if part.vendor == "AMD" else ()
        if (
            ranks not in DEEPEP_RANKS
            or ranks in unknown
            or (over_nodes and pool.devices_per_node != 8)
        ):
            return "DSP002"
        return "DSP004" if shape.capacity_factor else ""
    inside = math.gcd(ranks, pool.scale_up_domain)
    fills = inside in (ranks, pool.scale_up_domain)
    of_domain = shape.n_experts // plan.ep * inside
    return "" if fills and of_domain % 4 == 0 and shape.hidden % 16 == 0 else "DSP002"


def overlap_rule(problem: Problem, plan: Layout) -> str:
    kind = overlap(plan)
    if kind == "off":
        return ""
    if plan.ep == 1 or mode(plan, "dispatcher", "alltoall") == "allgather":
        return "EPO001"
    with_partner = {"1f1b": ("none", "interleaved"), "dualpipe": ("dualpipe", "dualpipe-v")}
    if plan.schedule not in with_partner[kind]:
        return "EPO002"
    return "EPO004" if kind == "1f1b" and problem.shape.mtp_layers > 1 else ""


def graph_rule(problem: Problem, plan: Layout) -> str:
    named, shape = graph(plan), problem.shape
    parts, routed = set(named.split("+")), shape.n_experts > 1
    dropless = routed and not shape.capacity_factor
    late = [i - shape.dense_layers + 1 for i in range(shape.layers)]
    kinds = [shape.n_experts > 0 and n >= 1 and n % shape.moe_every == 0 for n in late]
    if "moe_router" in parts and not routed:
        return "CGR001"
    if "mlp" in parts and all(kinds):
        return "CGR001"
    if named == "layer" and dropless:
        return "CGR001"
    if named == "full_iteration" and dropless:
        generation = problem.pool.accelerator.generation
        stashes = mode(plan, "dispatcher", "alltoall") == "hybridep" and plan.etp == 1
        stashes = stashes and shape.gated and generation.startswith(("blackwell", "rubin"))
        if not stashes:
            return "CGR002"
    if overlap(plan) != "off" and ({"mlp", "layer"} & parts):
        return "CGR004"
    return ""
