"""Rules on how layers run: dispatcher, overlap of the expert exchange, graphs, module offload.

They hold for every framework; what one framework lacks stands with its own rules. Each is a
predicate over the fields of a `ModeCase`, numbers or arrays that broadcast to shapes x mode x
sharding x recompute.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.axes import (
    AXES,
    CUDA_GRAPHS,
    OFFLOAD_MODULES,
    RECOMPUTES,
    SCHEDULES,
    modules_code,
)
from costmodels.comm.dispatch import DEEPEP_NODE
from costmodels.offload.modules import INSIDE_EXPERTS, OF_EXPERTS, OF_LATENT
from costmodels.plans import PlanTable, ShapeTable
from costmodels.problem import Problem
from costmodels.schedule import zero_bubble
from searches.frameworks.registry import framework_rules, searched_frameworks
from searches.options import SearchOptions

Bools = NDArray[np.bool_]

KERNELS_FOR = ("ampere", "hopper", "blackwell", "rubin")
"""Generations that the kernels of DeepEP and HybridEP run on."""
TURBO_FOR = ("cdna3", "cdna4")
"""Generations of AMD that Primus-Turbo's port of DeepEP runs on: gfx942 and gfx950 (README.md of
AMD-AGI/Primus-Turbo, Hardware)."""
FIXED_SIZES_FOR = ("blackwell", "rubin")
"""Generations that have the fused grouped MLP that an expert layer in a graph needs."""
DEEPEP_RANKS = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160)
"""Sizes of a group that DeepEP has settings for (deep_ep/buffers/legacy.py, get_dispatch_config).
"""
TURBO_RANKS = tuple(n for n in DEEPEP_RANKS if n not in (48, 96))
"""Those of Primus-Turbo's port (primus_turbo/pytorch/deep_ep/buffer.py, get_dispatch_config)."""
FULL = RECOMPUTES.index("full")
ROUTED, CORE_AGAIN = modules_code(["moe"]), modules_code(["core_attn"])
COMBINED = tuple(SCHEDULES.index(name) for name in ("none", "interleaved"))
BOTH_WAYS = tuple(SCHEDULES.index(name) for name in ("dualpipe", "dualpipe-v"))
OPEN_GRAPHS = ("none", "attn+moe_router+moe_preprocess", "full_iteration")
"""What is looked at of `cuda_graph` where nobody names it: what the performance recipes of
Megatron-Bridge use."""


@dataclass(frozen=True, slots=True)
class ModeCase:
    """What the rules read; words as the numbers that tables hold."""

    problem: Problem
    values: Mapping[str, Any]
    """By axis."""

    def __getitem__(self, axis: str) -> Any:
        """Return the table values of an axis."""
        return self.values[axis]

    def has(self, axis: str, *words: str) -> Any:
        """Tell whether an axis has one of some values."""
        codes = [AXES[axis].choices.index(word) for word in words]
        return reduce(np.logical_or, [self[axis] == code for code in codes])

    def sends(self, *modules: str) -> Any:
        """Tell whether one of some modules is offloaded."""
        return (self["offload_modules"] & modules_code(modules, OFFLOAD_MODULES)) > 0

    def captures(self, module: str) -> Any:
        """Tell whether a module of a layer is captured by name."""
        return self.has("cuda_graph", *(x for x in CUDA_GRAPHS if module in x.split("+")))


def deepep_runs(problem: Problem) -> bool:
    """Tell whether DeepEP's kernels run on the devices: not where a rack's NVLink joins nodes.

    Those of DeepEP on NVIDIA's, of its port in Primus-Turbo on AMD's.
    """
    pool, part = problem.pool, problem.pool.accelerator
    generations = {"NVIDIA": KERNELS_FOR, "AMD": TURBO_FOR}.get(part.vendor, ())
    known = part.generation.startswith(generations)
    return known and pool.scale_up_domain <= pool.devices_per_node


def hybridep_runs(problem: Problem) -> bool:
    """Tell whether HybridEP's kernels run on the devices."""
    part = problem.pool.accelerator
    return part.vendor == "NVIDIA" and part.generation.startswith(KERNELS_FOR)


def _kernels(c: ModeCase) -> Any:
    deepep = c.has("dispatcher", "deepep") & (not deepep_runs(c.problem))
    return deepep | (c.has("dispatcher", "hybridep") & (not hybridep_runs(c.problem)))


def _group_sizes(c: ModeCase) -> Any:
    ranks, pool = c["ep"] * c["etp"], c.problem.pool
    nodes = (ranks <= pool.devices_per_node) | (pool.devices_per_node == DEEPEP_NODE)
    known = TURBO_RANKS if pool.accelerator.vendor == "AMD" else DEEPEP_RANKS
    deepep = c.has("dispatcher", "deepep") & ~(np.isin(ranks, known) & nodes)
    near = np.gcd(ranks, pool.scale_up_domain)
    local = c.problem.shape.n_experts // c["ep"] * near
    is_whole = (near == np.minimum(ranks, pool.scale_up_domain)) & (local % 4 == 0)
    is_whole = is_whole & (c.problem.shape.hidden % 16 == 0)
    return deepep | (c.has("dispatcher", "hybridep") & ~is_whole)


def _exchange(c: ModeCase) -> Any:
    return ~c.has("dispatcher", "alltoall") & (c["ep"] * c["etp"] == 1)


def _padded(c: ModeCase) -> Any:
    return c.has("dispatcher", "deepep") & bool(c.problem.shape.capacity_factor)


def _overlapped(c: ModeCase) -> Any:
    return (c["ep_overlap"] > 0) & ((c["ep"] == 1) | c.has("dispatcher", "allgather"))


def _schedule(c: ModeCase) -> Any:
    combined = c.has("ep_overlap", "1f1b") & ~np.isin(c["schedule"], COMBINED)
    return combined | (c.has("ep_overlap", "dualpipe") & ~np.isin(c["schedule"], BOTH_WAYS))


def _predictions(c: ModeCase) -> Any:
    return c.has("ep_overlap", "1f1b") & (c.problem.shape.mtp_layers > 1)


def _run_again(c: ModeCase) -> Any:
    again = (c["recompute"] == FULL) | (c["recompute_modules"] & ROUTED > 0)
    return (c["ep_overlap"] > 0) & again


def _modules(c: ModeCase) -> Any:
    shape = c.problem.shape
    routed, dense = shape.n_experts > 1, shape.n_expert_layers < shape.layers
    missing = c.captures("moe_router") & (not routed)
    missing = missing | (c.captures("mlp") & (not dense))
    return missing | (c.has("cuda_graph", "layer") & (routed and not shape.capacity_factor))


def _whole_iteration(c: ModeCase) -> Any:
    shape, part = c.problem.shape, c.problem.pool.accelerator
    if shape.n_experts <= 1 or shape.capacity_factor:
        return c.has("cuda_graph", "full_iteration") & False
    able = c.has("dispatcher", "hybridep") & (c["etp"] == 1)
    able = able & bool(shape.gated) & part.generation.startswith(FIXED_SIZES_FOR)
    return c.has("cuda_graph", "full_iteration") & ~able


def _captured_again(c: ModeCase) -> Any:
    is_whole_graph = c.has("cuda_graph", "full_iteration")
    modules = (c["cuda_graph"] > 0) & ~is_whole_graph
    is_offloaded = (c["cuda_graph"] > 0) & (c["activation_offload_layers"] > 0)
    routed = c.captures("moe_router") & (c["recompute_modules"] & ROUTED > 0)
    return is_offloaded | routed | (modules & (c["recompute"] == FULL))


def _overlapped_graphs(c: ModeCase) -> Any:
    return (c["ep_overlap"] > 0) & (c.captures("mlp") | c.has("cuda_graph", "layer"))


def _nothing_leaves(c: ModeCase) -> Any:
    shape = c.problem.shape
    missing = c.sends(*OF_LATENT) & (not shape.latent)
    missing = missing | (c.sends(*OF_EXPERTS) & (shape.n_experts == 0))
    missing = missing | (c.sends("expert_fc1") & (shape.n_experts == 1))
    return missing | (c.sends("attn_proj") & ~c.sends("core_attn"))


def _no_host(c: ModeCase) -> Any:
    return (c["offload_modules"] > 0) & (c.problem.pool.host is None)


def _comes_back_early(c: ModeCase) -> Any:
    return (c["offload_modules"] > 0) & (c["schedule"] >= zero_bubble.FIRST_CODE)


def _stays_for_graphs(c: ModeCase) -> Any:
    shape = c.problem.shape
    attention, router = c.captures("attn"), c.captures("moe_router")
    # Of a model without experts `mlp_norm` is refused anyway.
    norms = (c.sends("attn_norm") & attention) | (c.sends("mlp_norm") & (attention | router))
    stashed = c.has("cuda_graph", "full_iteration") & (not shape.capacity_factor)
    return norms | (c.sends(*INSIDE_EXPERTS) & stashed)


def _sent_again(c: ModeCase) -> Any:
    again = c["recompute_modules"]
    inside = c.sends(*INSIDE_EXPERTS) & (again & ROUTED > 0)
    core = c.sends("core_attn") & (again & CORE_AGAIN > 0)
    is_whole_layer = (c["recompute"] == FULL) | (c["activation_offload_layers"] > 0)
    return inside | core | ((c["offload_modules"] > 0) & is_whole_layer)


MODE_RULES: Mapping[str, Callable[[ModeCase], Any]] = {
    "DSP003": _exchange,
    "DSP001": _kernels,
    "DSP002": _group_sizes,
    "DSP004": _padded,
    "EPO001": _overlapped,
    "EPO002": _schedule,
    "EPO004": _predictions,
    "CGR001": _modules,
    "CGR002": _whole_iteration,
    "CGR004": _overlapped_graphs,
    "OFM001": _nothing_leaves,
    "OFM002": _no_host,
    "OFM003": _comes_back_early,
    "OFM004": _stays_for_graphs,
    "EPO003": _run_again,
    "CGR003": _captured_again,
    "OFM005": _sent_again,
}
"""What each rule refuses, in the order in which a rejection is attributed; the last three read the
recompute options, the others shapes and modes alone."""
DEGREES = ("pp", "vpp", "ep", "etp", "schedule")
OPTIONS = ("recompute", "recompute_modules", "activation_offload_layers")
AXES_OF_MODES = ("dispatcher", "ep_overlap", "cuda_graph", "offload_modules")


def mode_faults(
    problem: Problem, options: SearchOptions, shapes: ShapeTable, again: Sequence[Any]
) -> dict[str, Bools]:
    """Return what each rule refuses of some shapes, over shapes x mode x sharding x recompute.

    `again` are kinds, modules and offloaded layers of the recompute options. Rules that refuse
    nothing are left out.
    """
    table = options.mode_table
    modes = table.rows(np.arange(len(table), dtype=np.int32))
    if not any(modes.uses(name) for name in AXES_OF_MODES):
        return {}
    column = (slice(None), None, None, None)
    degrees = {name: getattr(shapes, name)[column] for name in DEGREES}
    of_mode = {name: modes.codes(name)[None, :, None, None] for name in AXES_OF_MODES}
    of_option = dict(zip(OPTIONS, (x[None, None, None, :] for x in again), strict=True))
    case = ModeCase(problem, {**degrees, **of_mode, **of_option})
    faults = {code: np.asarray(refused(case)) for code, refused in MODE_RULES.items()}
    return {code: broken for code, broken in faults.items() if broken.any()}


def legal_modes(problem: Problem, options: SearchOptions, shapes: ShapeTable) -> Bools:
    """Return which modes shapes may have without recomputation, `(n_shapes, n_modes)`."""
    nothing = np.zeros(1, dtype=np.int32)
    faults = mode_faults(problem, options, shapes, (nothing, nothing, nothing))
    result = np.ones((len(shapes), len(options.mode_table)), dtype=bool)
    for broken in faults.values():
        result &= ~broken[:, :, 0, 0]
    return result


def broken_mode_rules(problem: Problem, table: PlanTable) -> Iterator[str]:
    """Yield the codes that the only plan of a table breaks."""
    yield from (code for code, broken in plans_that_break(problem, table) if broken[0])


def plans_that_break(problem: Problem, table: PlanTable) -> Iterator[tuple[str, Bools]]:
    """Yield each rule's code and the plans of a table that break it; each has its own shape."""
    modes, shapes = table.modes, table.shapes
    values = {name: getattr(shapes, name) for name in DEGREES}
    values |= {name: modes.codes(name) for name in AXES_OF_MODES}
    values |= {name: getattr(table, name) for name in OPTIONS}
    case = ModeCase(problem, values)
    for code, refused in MODE_RULES.items():
        yield code, np.broadcast_to(refused(case), len(table))


def with_open_modes(problem: Problem, options: SearchOptions) -> SearchOptions:
    """Return options that look at the modes worth it where nobody names them.

    Of a model with experts: the dispatchers whose kernels run on the devices (allgather, which
    sends every token to every rank, only where it is named), the exchange beside another
    micro-batch, and the graphs of the performance recipes; of frameworks that write them.
    """
    if problem.shape.n_experts <= 1 or problem.stack.kind != "fused":
        return options
    carried = _carried(options.framework, problem.pool.accelerator.vendor)
    values: dict[str, list[str]] = {"dispatcher": ["alltoall"], "ep_overlap": ["off", "1f1b"]}
    values["dispatcher"] += ["deepep"] * (deepep_runs(problem) and _has_deepep(options, problem))
    values["dispatcher"] += ["hybridep"] * hybridep_runs(problem)
    if options.framework == "any":
        values["ep_overlap"].append("dualpipe")
    fixed = problem.pool.accelerator.generation.startswith(FIXED_SIZES_FOR)
    values["cuda_graph"] = [x for x in OPEN_GRAPHS if fixed or x != "full_iteration"]
    opened = {
        name: frozenset(AXES[name].choices.index(word) for word in words)
        for name, words in values.items()
        if name in carried and name not in options.only and len(words) > 1
    }
    return replace(options, open=opened)


def _has_deepep(options: SearchOptions, problem: Problem) -> bool:
    """Tell whether a framework that is searched has kernels of DeepEP for the devices."""
    vendor = problem.pool.accelerator.vendor
    if options.framework == "any":
        return True
    names = searched_frameworks(options.framework, vendor)
    return any(vendor in framework_rules(name).deepep_vendors for name in names)


def _carried(framework: str, vendor: str) -> frozenset[str]:
    """Return the axes that files of some searched framework carry."""
    if framework == "any":
        return frozenset(AXES_OF_MODES)
    names = searched_frameworks(framework, vendor)
    return frozenset(axis for name in names for axis in framework_rules(name).switches)
