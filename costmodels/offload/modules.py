"""Inputs of chosen modules on the host between forward and backward, layer by layer.

Modules are those of Megatron-LM's `--offload-modules` (`axes.OFFLOAD_MODULES`). Each takes along
what autograd saves inside it, as soon as its forward is through; it comes back one layer ahead of
its backward. Unlike layers that leave whole (`costmodels.offload.activations`) they do so in
pipelines too, beside selective recomputation, and of all layers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.axes import OFFLOAD_MODULES
from costmodels.comm.dispatch import Degrees
from costmodels.layers.compute import ForwardBackward
from costmodels.layers.experts import expert_rows, local_tokens
from costmodels.layers.params import kv_heads_per_rank
from costmodels.memory import DOWN_PROJECTIONS, quantized_inputs
from costmodels.modes import ModeRows
from costmodels.offload.activations import copy_bytes_per_s
from costmodels.problem import Problem

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

LEAST_ELEMENTS = 1 << 20
"""Elements below which a tensor stays (`--min-offloaded-tensor-size`, its default)."""
LAYERS_ON_THE_WAY = 2.0
"""Layers whose offloaded tensors are on the device: one in use, one that comes or goes. Of the
micro-batch whose backward begins the last layer never left, and the one before it comes back
beside it (`post_warmup_callback`, `bulk_reload`)."""
INSIDE_EXPERTS = ("expert_fc1", "moe_act")
OF_EXPERTS = ("mlp_norm", *INSIDE_EXPERTS)
"""Modules that layers with routed experts alone have: elsewhere the norm is joined with the
product after it."""
OF_LATENT = ("attn_norm",)
"""The same of latent attention."""


@dataclass(frozen=True, slots=True)
class ModuleCopies:
    """What one layer and micro-batch has on the host; bytes, arrays `(n,)`."""

    freed_bytes: Floats
    """What no longer lies on the device."""
    copied_bytes: Floats
    """What is copied down, and up again: more than that where two modules save one tensor."""
    projected_bytes: Floats
    """Of the freed bytes queries, keys and values, which `mla_up_proj` would compute again."""
    normed_bytes: Floats
    """Of the freed bytes the output of the norm before latent attention, as `layernorm` would."""


class _Tensor(NamedTuple):
    """One saved tensor of a module; arrays `(n,)`."""

    module: str
    elements: Floats
    copied_bytes: Floats
    """Of one element."""
    freed_bytes: Floats
    """Of one element."""
    shared_with: str = ""
    """The recomputed module that would drop it too."""


def offloads_modules(modes: ModeRows) -> bool:
    """Tell whether some mode that is offered has modules whose inputs wait on the host."""
    return modes.uses("offload_modules")


def takes_along(modes: ModeRows, module: str) -> Bools:
    """Return where a module's inputs wait on the host."""
    codes = modes.codes("offload_modules")
    return np.asarray(codes >> OFFLOAD_MODULES.index(module) & 1, dtype=np.bool_)


def module_copies(
    problem: Problem,
    tokens: Floats,
    degrees: Degrees,
    modes: ModeRows,
    parts: tuple[bool, bool],
) -> ModuleCopies:
    """Return what the offloaded modules of a layer keep on the host in place of the device, bytes.

    `parts`: whether the layer has the model's attention, and routed experts.

    An element takes w bytes (2), or q where a product keeps a quantised input; a token of a layer:

      attn_norm   h / t_sp, the residual before the norm of latent attention
      qkv_linear  2 h / t_sp, input and output of the norm that is joined with QKV; with latent
                  attention h / t_sp, the input of the down-projections (each keeps its own q h)
      core_attn   (h_q + 2 h_kv) / t, latent a (2 d_k + d_v) / t; 4 a / t bytes of log-sum-exp;
                  and h_v / t of output, which leaves only with attn_proj, that saves it as well
      attn_proj   h_v / t, the output of attention: copied twice with core_attn, which it needs
      mlp_norm    h / t_sp, the residual before the norm of routed experts
      expert_fc1  h a row, permuted: copied in 16 bits but with mxfp8 and nvfp4
      moe_act     (2 gated, 1) f_e / t_e a row, the output of the first product

    A tensor of fewer than 2^20 elements stays. Source: Megatron-LM core/transformer/{attention,
    multi_latent_attention,transformer_layer,moe/experts}.py and
    core/pipeline_parallel/fine_grained_activation_offload.py, read at d98e8a64 and in the tags
    0.17 to 0.19; docs/framework_switches.md, 4.3. Left out: scores of a core without a flash
    kernel, the probabilities of rows, what context parallelism saves.
    """
    nothing = np.zeros_like(tokens)
    if not offloads_modules(modes):
        return ModuleCopies(nothing, nothing, nothing, nothing)
    freed, copied, projected, normed = nothing, nothing, nothing, nothing
    for one in _tensors(problem, tokens, degrees, modes, parts):
        on = takes_along(modes, one.module) & (one.elements >= LEAST_ELEMENTS)
        elements = np.where(on, one.elements, 0.0)
        freed, copied = freed + elements * one.freed_bytes, copied + elements * one.copied_bytes
        if one.shared_with == "mla_up_proj":
            projected = projected + elements * one.freed_bytes
        if one.shared_with == "layernorm":
            normed = normed + elements * one.freed_bytes
    return ModuleCopies(freed, copied, projected, normed)


def _tensors(
    problem: Problem,
    tokens: Floats,
    degrees: Degrees,
    modes: ModeRows,
    parts: tuple[bool, bool],
) -> Iterator[_Tensor]:
    """Yield what autograd saves inside each module of one layer."""
    attends, routed = parts
    if attends:
        yield from _attention_tensors(problem, tokens, degrees, modes)
    if routed:
        yield from _expert_tensors(problem, tokens, degrees)


def _attention_tensors(
    problem: Problem, tokens: Floats, degrees: Degrees, modes: ModeRows
) -> Iterator[_Tensor]:
    shape, recipe, quantized = problem.shape, problem.job.recipe, quantized_inputs(problem)
    tp, sp, *_ = degrees
    t, wide = np.asarray(tp, dtype=np.float64), recipe.activation_bytes
    narrow = wide - quantized.saved_bytes
    normed = tokens * shape.hidden / np.where(np.asarray(sp) > 0, t, 1.0)

    def plain(module: str, elements: Floats, width: float = wide) -> _Tensor:
        return _Tensor(module, elements, np.asarray(width), np.asarray(width))

    queries, values = tokens * shape.q_width / t, tokens * shape.v_width / t
    if shape.latent:
        yield plain("attn_norm", normed)
        copies = wide - (DOWN_PROJECTIONS * quantized.saved_bytes - 2.0 * quantized.share)
        yield plain("qkv_linear", normed, copies)._replace(shared_with="layernorm")
        core = (queries, queries, values)
    else:
        yield plain("qkv_linear", normed)
        yield plain("qkv_linear", normed, narrow)
        heads = tokens * kv_heads_per_rank(shape, tp) * (not shape.kv_shared)
        core = (queries, heads * shape.head_dim, heads * shape.v_dim)
    for one in core:
        yield plain("core_attn", one)._replace(shared_with="mla_up_proj" if shape.latent else "")
    if shape.flash_attention:
        yield plain("core_attn", tokens * shape.heads / t, 4.0)
    yield _Tensor("core_attn", values, np.asarray(wide), np.zeros(()))
    original = wide * (1.0 - quantized.share) if quantized.copy_bytes else wide
    # With its copy goes what core_attn saves of the same output, which it asks for.
    both = takes_along(modes, "core_attn") * wide + quantized.copy_bytes
    yield _Tensor(
        "attn_proj", values, np.asarray(original + quantized.copy_bytes), np.asarray(both)
    )


def _expert_tensors(problem: Problem, tokens: Floats, degrees: Degrees) -> Iterator[_Tensor]:
    shape, recipe, quantized = problem.shape, problem.job.recipe, quantized_inputs(problem)
    tp, sp, ep, etp = degrees
    t, wide = np.asarray(tp, dtype=np.float64), recipe.activation_bytes
    narrow = wide - quantized.saved_bytes
    normed = tokens * shape.hidden / np.where(np.asarray(sp) > 0, t, 1.0)

    def plain(module: str, elements: Floats) -> _Tensor:
        return _Tensor(module, elements, np.asarray(wide), np.asarray(wide))

    yield plain("mlp_norm", normed)
    rows = expert_rows(problem, local_tokens(problem.stack, tokens, tp, sp, ep), sp, ep, etp)
    if shape.n_experts > 1:
        by_blocks = recipe.fp8_recipe == "mxfp8" or recipe.fp4_recipe == "nvfp4"
        width = np.asarray(narrow if by_blocks else wide)
        yield _Tensor("expert_fc1", rows * shape.expert_hidden, width, np.asarray(narrow))
    inner = (2.0 if shape.gated else 1.0) * shape.expert_ffn / np.asarray(etp, dtype=np.float64)
    yield plain("moe_act", rows * inner)


def module_waits(
    problem: Problem, copies: ModuleCopies, layer: ForwardBackward
) -> ForwardBackward:
    """Return what a layer waits for the copies of its offloaded modules, seconds.

    down = max(0, C - F)  and  up = max(0, C - B)

    C copies what one layer sends (`ModuleCopies.copied_bytes`) one way at `copy_bytes_per_s`, F
    and B are its forward and backward, `layer`. Copies run beside the next layer's forward, and
    come back beside the backward of the layer behind: across chunks and micro-batches, so that the
    ends of a stage make no difference. Both directions of the link count apart.
    Source: Megatron-LM core/pipeline_parallel/fine_grained_activation_offload.py
    (on_group_commit_forward, on_group_start_backward, pre_reload_last_layer). Left out: compute
    slowed beside the copies, layers that make up for one another, recomputation and the other
    micro-batch of a combined 1F1B, which give copies more time; a forward that does not wait but
    holds memory while copies lag behind (without --fine-grained-offloading-max-inflight-offloads),
    and gives time back in the backward.
    """
    host = problem.pool.host
    if host is None:  # refused (OFM002), and priced as if it were free where somebody insists
        nothing = np.zeros_like(copies.copied_bytes)
        return ForwardBackward(nothing, nothing)
    copy_s = copies.copied_bytes / copy_bytes_per_s(host)
    return ForwardBackward(
        np.maximum(0.0, copy_s - layer.forward_s), np.maximum(0.0, copy_s - layer.backward_s)
    )
