"""The host's time to launch a layer's kernels, and what CUDA graphs take off it."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.axes import AXES, CUDA_GRAPHS
from costmodels.modes import ModeRows

Floats = NDArray[np.float64]

ATTENTION_SHARE = 0.6
"""Launches of attention over those of a dense layer: norm and QKV, rotation, core, projection,
residual are 8 of 13 forward in Transformer Engine."""
NORM_SHARE = 0.1
"""Those of the norm before the MLP, which goes with the router."""
ROUTING_SHARES = (0.1, 0.05)
"""Launches of the router, and of counts and first permutation, over those that routing adds; the
rest is the dispatch, the experts, and the combine. Attention, router and preparation in graphs
together take 22 % off a launch-bound step of Qwen3-30B (Megatron-Bridge on H100), and those of
attention alone are about as many."""
LATENT_LAUNCHES = 1.2
"""Launches of latent attention beyond those of a dense layer, over these: three times those of
attention. Two more products, two norms, parts cut and put together; recomputing its up projections
alone takes 0.9 ms of launches in runs of Moonlight on H100, where a whole layer takes 15."""
GROUPED_SHARE, GROUPED_CAST_SHARE = 0.002, 0.003
"""Launch of one product of a grouped one, over that of all that routing adds: 10 of 5200 us.
Transformer Engine launches it expert by expert over several streams
(pytorch/cpp_extensions/gemm.py, general_grouped_gemm). And of the casts before it: inputs of
quantised products are cast expert by expert, too (tex.split_quantize)."""
EXPERT_PRODUCTS = 6
"""Grouped products of a layer: two forward, twice two backward."""


def captured(modes: ModeRows, module: str) -> NDArray[np.bool_]:
    """Return where a module of a layer is in a graph."""
    words = [
        i
        for i, word in enumerate(CUDA_GRAPHS)
        if module in word.split("+") or word in ("layer", "full_iteration")
    ]
    return np.isin(modes.codes("cuda_graph"), words)


def _graphs(modes: ModeRows, second: str) -> Floats:
    """Return the graphs that a layer launches in a forward.

    One of attention, one of `second`, the other part of the layer that can be in one; one where
    the layer is captured whole, and none where the iteration is.
    """
    several = captured(modes, "attn") * 1.0 + captured(modes, second)
    several = np.where(modes.have("cuda_graph", "layer"), 1.0, several)
    return np.where(modes.have("cuda_graph", "full_iteration"), 0.0, several)


def dense_launch_s(whole_s: Floats, graph_s: float, modes: ModeRows) -> Floats:
    """Return what is left of a dense layer's launch time, both directions, seconds.

    H (1 - 0.6 [attn] - 0.4 [mlp]) and `graph_s` for every graph and direction.

    >>> graph = ModeRows.of_sp(np.zeros(1, dtype=np.int32))
    >>> dense_launch_s(np.array([1e-3]), 10e-6, graph).tolist()
    [0.001]
    """
    if not modes.uses("cuda_graph"):
        return whole_s
    left = 1.0 - ATTENTION_SHARE * captured(modes, "attn")
    left = left - (1.0 - ATTENTION_SHARE) * captured(modes, "mlp")
    return np.asarray(np.maximum(0.0, left) * whole_s + 2.0 * graph_s * _graphs(modes, "mlp"))


def expert_launch_s(
    whole_s: Floats, routing_s: float, graph_s: float, modes: ModeRows, *, shared: bool
) -> Floats:
    """Return what is left of the launch time of an expert layer, both directions, seconds.

    H + R (1 - 1/3 [moe_router] - 1/3 [moe_preprocess]) - H (0.6 [attn] + n [moe_router]), n 0.1
    for the norm and 0.4 with shared experts, which the router's graph holds too; nothing where the
    layer or the iteration is one graph; `graph_s` for every graph and direction.
    """
    if not modes.uses("cuda_graph"):
        return np.asarray(whole_s + routing_s)
    attention, router = captured(modes, "attn"), captured(modes, "moe_router")
    prepared = captured(modes, "moe_preprocess")
    with_router = 1.0 - ATTENTION_SHARE if shared else NORM_SHARE
    left = whole_s * (1.0 - ATTENTION_SHARE * attention - with_router * router)
    left = left + routing_s * (1.0 - ROUTING_SHARES[0] * router - ROUTING_SHARES[1] * prepared)
    left = np.where(modes.have("cuda_graph", "layer", "full_iteration"), 0.0, left)
    return np.asarray(left + 2.0 * graph_s * _graphs(modes, "moe_router"))


class Launches(NamedTuple):
    """The host's time to launch the parts of a layer, both directions, seconds."""

    mixer_s: Floats
    feed_s: Floats
    routing_s: Floats | float | None = None
    """What routing adds, in a layer that routes."""
    shared: bool = False
    """Shared experts are in the graph of the router."""


def sublayers_launch_s(parts: Launches, graph_s: float, modes: ModeRows) -> Floats:
    """Return what is left of the launch time of a mixer and a feed, both directions, seconds.

    M (1 - [attn]) + F (1 - [mlp]); with experts F (1 - [moe_router]), a quarter of F without
    shared experts, + R (1 - 1/3 [moe_router] - 1/3 [moe_preprocess]) in place of the second.
    `attn` holds the mixer, whatever it is. As `dense_launch_s` and `expert_launch_s`, whose M is
    0.6 H and F 0.4 H.
    """
    routing_s = 0.0 if parts.routing_s is None else parts.routing_s
    launch_s = np.asarray(parts.mixer_s + parts.feed_s + routing_s)
    if not modes.uses("cuda_graph"):
        return launch_s
    one_graph = modes.have("cuda_graph", "layer", "full_iteration")
    attention = captured(modes, "attn") & (parts.mixer_s > 0.0)
    second = captured(modes, "mlp" if parts.routing_s is None else "moe_router")
    left = parts.mixer_s * (1.0 - attention)
    if parts.routing_s is not None:
        with_router = 1.0 if parts.shared else NORM_SHARE / (1.0 - ATTENTION_SHARE)
        prepared = captured(modes, "moe_preprocess")
        left = left + parts.feed_s * (1.0 - with_router * second)
        shares = ROUTING_SHARES[0] * second + ROUTING_SHARES[1] * prepared
        left = left + routing_s * (1.0 - shares)
    else:
        left = left + parts.feed_s * (1.0 - second)
    graphs = np.where(one_graph, 1.0, attention * 1.0 + second)
    graphs = np.where(modes.have("cuda_graph", "full_iteration"), 0.0, graphs)
    return np.asarray(np.where(one_graph, 0.0, left) + 2.0 * graph_s * graphs)


def eager_products_s(products_s: Floats, modes: ModeRows) -> Floats:
    """Return the launch time of grouped products that are in no graph, seconds."""
    if not modes.uses("cuda_graph"):
        return products_s
    return np.where(modes.have("cuda_graph", "layer", "full_iteration"), 0.0, products_s)


def pool_bytes(working_bytes: Floats, modes: ModeRows) -> Floats:
    """Return what the memory pool of the graphs holds beside eager code, bytes.

    The temporaries of a layer once more, of the kind that has most: a pool is reserved at its
    peak, serves the graphs of all layers in turn and nothing else. Source: Megatron-LM
    core/transformer/cuda_graphs.py. Left out: pools of single micro-batches in a pipeline, the
    graphs' own descriptions, copies of inputs (a few activations of the size of a message).
    """
    if not modes.uses("cuda_graph"):
        return np.zeros_like(working_bytes)
    return np.where(is_captured(modes), working_bytes, 0.0)


def is_captured(modes: ModeRows) -> NDArray[np.bool_]:
    """Return where anything is in a graph."""
    return np.asarray(modes.codes("cuda_graph") != AXES["cuda_graph"].code("none"))
