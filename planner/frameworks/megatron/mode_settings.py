"""How layers run, as settings of Megatron-Core: dispatcher, overlap, CUDA graphs, module offload.

Megatron-LM takes them as flags, Megatron-Bridge as fields of the same names; both are written and
read through here.
"""

from collections.abc import Mapping
from math import gcd
from typing import Any

from costmodels.axes import AXES, CUDA_GRAPHS, OFFLOAD_MODULES, OFFLOAD_SETS, modules_code
from costmodels.layers.experts import STASH_FACTOR
from costmodels.offload.modules import INSIDE_EXPERTS, LEAST_ELEMENTS
from costmodels.plans import Layout
from costmodels.shapes import ModelShape
from hardware.parts import Pool
from searches.frameworks.megatron.layer_kinds import has_mixer

FLEX = ("deepep", "hybridep")
"""Dispatchers that are backends of the flex one."""
OVERLAP = ("overlap_moe_expert_parallel_comm", "delay_wgrad_compute")
"""What runs the exchange beside another micro-batch, and delays weight gradients for it."""
COPIES_IN_GRAPHS = 1
"""Copies of one module that may be on their way in a graph of the whole iteration, which cannot
give memory back by itself: as many as are priced (`costmodels.offload.modules`)."""
WHOLE_EXPERTS = "fused_group_mlp"
"""Module that takes along all that the fused experts save."""
PARTLY: Mapping[str, float] = {
    "activation_offload_fraction": 1.0,
    "delta_offload_bytes_across_pp_ranks": 0,
}
"""Settings by which fewer modules leave than are named, at rest."""
MODE_DESTS: Mapping[str, tuple[str, ...]] = {
    "dispatcher": (
        "moe_token_dispatcher_type",
        "moe_flex_dispatcher_backend",
        "moe_enable_deepep",
        "moe_router_dtype",
    ),
    "ep_overlap": OVERLAP,
    "cuda_graph": (
        "cuda_graph_impl",
        "cuda_graph_modules",
        "cuda_graph_scope",
        "cuda_graph_scope_deprecated",
        "te_rng_tracker",
        "enable_cuda_graph",
        "external_cuda_graph",
        "check_for_nan_in_loss_and_grad",
        "moe_paged_stash",
        "moe_expert_rank_capacity_factor",
        "use_transformer_engine_op_fuser",
    ),
    "offload_modules": (
        "fine_grained_activation_offloading",
        "offload_modules",
        "activation_offload_fraction",
        "fine_grained_offloading_max_inflight_offloads",
    ),
}
"""Settings that say each axis."""


def dispatcher_settings(layout: Layout) -> dict[str, object]:
    """Return the settings of what sends tokens to their experts.

    DeepEP takes probabilities in fp32 alone, and converts others for every layer.
    """
    name = str(layout.value("dispatcher"))
    if name not in FLEX:
        return {"moe_token_dispatcher_type": name}
    settings: dict[str, object] = {
        "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": name,
    }
    return settings | ({"moe_router_dtype": "fp32"} if name == "deepep" else {})


def overlap_settings(layout: Layout) -> dict[str, object]:
    """Return the settings that hide the exchange of tokens; none where it is not hidden."""
    return dict.fromkeys(OVERLAP, True) if layout.value("ep_overlap") == "1f1b" else {}


def graph_settings(layout: Layout, shape: ModelShape) -> dict[str, object]:
    """Return the settings of CUDA graphs in the newest release of megatron-core; none without.

    A graph of the whole iteration cannot look for NaN on the host; an expert layer in it has room
    for a fixed number of rows, and keeps only those that there are (paged stash).
    """
    graph = str(layout.value("cuda_graph"))
    if graph == "none":
        return {}
    if graph != "full_iteration":
        modules = [] if graph == "layer" else graphed_modules(graph, shape)
        settings: dict[str, object] = {"cuda_graph_impl": "transformer_engine"}
        return settings | ({"cuda_graph_modules": modules} if modules else {})
    settings = {"cuda_graph_impl": "full_iteration", "check_for_nan_in_loss_and_grad": False}
    if shape.n_experts > 1 and not shape.capacity_factor:
        settings |= {
            "moe_paged_stash": True,
            "moe_expert_rank_capacity_factor": STASH_FACTOR,
            "use_transformer_engine_op_fuser": True,
        }
    return settings | {"te_rng_tracker": True}


def graphed_modules(graph: str, shape: ModelShape) -> list[str]:
    """Return the modules of a graph; state-space layers are one, where they stand for attention.

    >>> from costmodels.examples import LLAMA3_8B
    >>> graphed_modules("attn+mlp", LLAMA3_8B)
    ['attn', 'mlp']
    """
    modules = graph.split("+")
    return modules + ["mamba"] * ("attn" in modules and has_mixer(shape, "mamba2"))


def offload_settings(layout: Layout) -> dict[str, object]:
    """Return the settings of modules whose inputs wait on the host; none where none do.

    A graph of the whole iteration needs to be told how many copies may be on their way.
    """
    named = str(layout.value("offload_modules"))
    if named == AXES["offload_modules"].off:
        return {}
    settings: dict[str, object] = {
        "fine_grained_activation_offloading": True,
        "offload_modules": named.split("+"),
    }
    if layout.value("cuda_graph") == "full_iteration":
        settings["fine_grained_offloading_max_inflight_offloads"] = COPIES_IN_GRAPHS
    return settings


def offload_environment(layout: Layout) -> list[str]:
    """Return what Transformer Engine has to be told where modules wait on the host."""
    if not offload_settings(layout):
        return []
    return [
        "# Megatron-LM asks for it: saved activations leave, weights beside them do not.",
        "export NVTE_CPU_OFFLOAD_V1=1",
    ]


def read_modes(
    settings: Mapping[str, Any], notes: list[str], *, exchanges: bool = True
) -> dict[str, object]:
    """Return the axes that settings of a run say; what is not modelled becomes a note.

    `exchanges`: tokens leave their rank (ep etp > 1). Where none does, every dispatcher is the
    same, and is read as the one that stands for all.
    """
    return {
        "dispatcher": _dispatcher(settings, notes) if exchanges else AXES["dispatcher"].off,
        "ep_overlap": "1f1b" if settings.get(OVERLAP[0]) else "off",
        "cuda_graph": _graph(settings, notes),
        "offload_modules": _sent_modules(settings, notes),
    }


def _sent_modules(settings: Mapping[str, Any], notes: list[str]) -> str:
    axis = AXES["offload_modules"]
    if not settings.get("fine_grained_activation_offloading"):
        return axis.text(axis.off)
    asked: Any = settings.get("offload_modules") or ()
    names = {asked} if isinstance(asked, str) else {str(x) for x in asked}
    if WHOLE_EXPERTS in names:
        names = names - {WHOLE_EXPERTS} | set(INSIDE_EXPERTS)
        notes.append(
            f"offload of {WHOLE_EXPERTS} is priced as that of {' and '.join(INSIDE_EXPERTS)}"
        )
    if other := sorted(names - set(OFFLOAD_MODULES)):
        notes.append(f"offload of {' '.join(other)} is not priced")
    least = settings.get("min_offloaded_tensor_size")
    if least not in (None, LEAST_ELEMENTS):
        notes.append(f"--min-offloaded-tensor-size {least}: priced as {LEAST_ELEMENTS}")
    for dest, at_rest in PARTLY.items():
        if settings.get(dest, at_rest) not in (None, at_rest):
            flag = "--" + dest.replace("_", "-")
            notes.append(f"{flag} {settings[dest]}: priced as {at_rest}, memory is underestimated")
    return OFFLOAD_SETS[modules_code(names & set(OFFLOAD_MODULES), OFFLOAD_MODULES)]


def _dispatcher(settings: Mapping[str, Any], notes: list[str]) -> str:
    kind = settings.get("moe_token_dispatcher_type") or "allgather"
    if settings.get("moe_enable_deepep"):
        return "deepep"
    if kind != "flex":
        return kind if kind in AXES["dispatcher"].choices else "alltoall"
    backend = settings.get("moe_flex_dispatcher_backend") or "deepep"
    if backend in FLEX:
        return str(backend)
    notes.append(f"the {backend} dispatcher is priced as hybridep")
    return "hybridep"


def _graph(settings: Mapping[str, Any], notes: list[str]) -> str:
    kind = settings.get("cuda_graph_impl") or "none"
    if settings.get("enable_cuda_graph") or settings.get("external_cuda_graph"):
        kind = "transformer_engine"
    spelled = ("cuda_graph_modules", "cuda_graph_scope_deprecated", "cuda_graph_scope")
    modules: Any = next((settings[name] for name in spelled if settings.get(name)), [])
    names = [modules] if isinstance(modules, str) else [str(x) for x in modules]
    if kind == "none":
        return "none"
    if kind == "full_iteration" or "full_iteration" in names:
        return "full_iteration"
    if not names or names == ["full"]:
        return "layer"
    if kind == "local" and {"moe_router", "moe_preprocess"} & set(names):
        names = [*names, "moe_router", "moe_preprocess"]
    wanted = {x for x in names if x in ("attn", "mlp", "moe_router", "moe_preprocess")}
    beside = {"mamba"} if "attn" in names else set()
    other = sorted(set(names) - wanted - beside)
    best = max(
        (x for x in CUDA_GRAPHS[1:-2] if set(x.split("+")) <= wanted),
        key=lambda x: len(x.split("+")),
        default="none",
    )
    left = sorted(wanted - set(best.split("+")))
    if other or left:
        notes.append(f"CUDA graphs of {' '.join([*left, *other])} are not priced")
    return best


def hybrid_environment(layout: Layout, pool: Pool) -> list[str]:
    """Return what HybridEP has to be told of the NVLink domains."""
    domain = pool.scale_up_domain
    near, is_rack = gcd(layout.ep * layout.etp, domain), domain > pool.devices_per_node
    size = pool.accelerator.scale_up_domain if is_rack else domain
    return [
        "# HybridEP: ranks of an expert group on one NVLink, and the devices that it joins.",
        f"export NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN={near}",
        f"export NVLINK_DOMAIN_SIZE={size} USE_MNNVL={int(is_rack)}",
    ]
