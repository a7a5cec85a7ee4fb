"""The dense layer: attention and an MLP that every token passes."""

import numpy as np

from costmodels import memory
from costmodels.comm.tensor_parallel import layer_exposures
from costmodels.layers import params
from costmodels.layers.compute import elementwise_times, linear_times
from costmodels.layers.layer_kind import (
    HOST_FORWARD_SHARE,
    Floats,
    Ints,
    KindTerms,
    LayerInputs,
    LayerKind,
    LayerMacs,
    host_waits,
    paced_s,
    waits_and_tax,
)
from costmodels.layers.recompute import module_terms, without_away
from costmodels.optimizers.matrices import dense_matrices
from costmodels.schedule import launches
from costmodels.shapes import ModelShape


def dense_terms(inputs: LayerInputs) -> KindTerms:
    """Return the terms of a dense layer."""
    problem, tokens, sp, tp = inputs.problem, inputs.tokens, inputs.sp, inputs.split.tp
    shape, job, stack = problem.shape, problem.job, problem.stack
    accelerator, attention = problem.pool.accelerator, inputs.attention
    gemms = linear_times(shape, job, accelerator, stack, tokens, tp)
    elementwise = elementwise_times(shape, accelerator, stack, tokens, tp, sp)
    forward, backward = layer_exposures(problem, tokens, tp, sp, gemms)
    waits = ((forward, attention.cp_forward), (backward, attention.cp_backward))
    exposed, tax = waits_and_tax(stack, *waits)
    device = gemms.both + attention.compute + elementwise + exposed + tax
    launch_s = launches.dense_launch_s(inputs.launch_s, stack.graph_launch_s, inputs.modes)
    host = host_waits(stack, launch_s, device)
    again_s = gemms.both.forward_s + attention.compute.forward_s
    again_s = again_s + elementwise.forward_s + exposed.forward_s
    stored = memory.layer_activation_bytes(
        shape, stack, inputs.micro_batch, tp, sp, np.ones_like(tokens)
    )
    working = memory.working_bytes(shape, tokens, tp, attention.buffer_bytes, inputs.element_bytes)
    offloaded, copies = inputs.away(device + host, routed=False)
    modules = module_terms(problem, tokens, tp, sp, attention.core)
    return KindTerms(
        linear=gemms.both,
        attention=attention.compute,
        elementwise=elementwise,
        tp_forward=forward,
        tp_backward=backward,
        cp_forward=attention.cp_forward,
        cp_backward=attention.cp_backward,
        tax=tax,
        host=host,
        copies=copies,
        layer=device + host + copies,
        weight_grad_s=gemms.column_wgrad_s + gemms.row_wgrad_s,
        recompute_full_s=paced_s(stack, HOST_FORWARD_SHARE * launch_s, again_s),
        modules=without_away(modules, offloaded),
        kept_bytes=stored + attention.kept_bytes - offloaded.freed_bytes,
        away=offloaded,
        working_bytes=working
        + memory.rebuilt_bytes(shape, stack, tokens, tp, sp, inputs.element_bytes),
        scratch_bytes=memory.scratch_bytes(shape, stack, tp)
        + launches.pool_bytes(working, inputs.modes),
    )


def dense_macs(shape: ModelShape) -> LayerMacs:
    """Return the multiply-adds of a token in a dense layer.

    h (h_q + 2 h_kv) + h_q h, h_q a position, c h f; latent attention has its parameters in place
    of the first two and a (d_k + d_v) / 2 a position. c = 3 gated, 2 otherwise.
    Source: Megatron-LM training/training.py, num_floating_point_operations.
    """
    projections, core = attention_macs(shape)
    mlp = (3 if shape.gated else 2) * shape.hidden * shape.ffn
    return LayerMacs(projections, core, mlp, {"mlp": mlp, **up_projection_macs(shape)})


def attention_macs(shape: ModelShape) -> tuple[int, int]:
    """Return the multiply-adds of a token in the projections of attention, and a position."""
    h, q, v = shape.hidden, shape.q_width, shape.v_width
    if shape.latent:
        one = np.ones(1, dtype=np.int32)
        return round(float(params.latent_params(shape, one)[0])), (q + v) // 2
    kv = shape.kv_heads * shape.projected_dim
    return h * (q + kv) + v * h + h * shape.gate_width, (q + v) // 2


def up_projection_macs(shape: ModelShape) -> dict[str, float]:
    """Return the module of latent attention's up-projections; empty without it."""
    if not shape.latent:
        return {}
    up = (shape.q_rank or shape.hidden) * shape.q_width
    return {"mla_up_proj": up + shape.kv_rank * shape.heads * (shape.qk_nope + shape.v_head)}


def attention_matrix_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the weights of attention on one tensor-parallel rank, the last of latent one."""
    t, h = tp.astype(np.float64), float(shape.hidden)
    weights: Floats = h * shape.v_width / t
    if not shape.latent:
        kv = params.kv_heads_per_rank(shape, tp) * shape.projected_dim
        weights = weights + h * (shape.q_width / t + kv) + h * shape.gate_width / t
    return weights


def _matrix_params(shape: ModelShape, tp: Ints) -> Floats:
    mlp = (3.0 if shape.gated else 2.0) * shape.hidden * shape.ffn / tp.astype(np.float64)
    return np.asarray(attention_matrix_params(shape, tp) + mlp)


def attention_modules_of(shape: ModelShape) -> tuple[str, ...]:
    """Return the recompute groups of attention."""
    return ("core_attn", *(("layernorm", "mla_up_proj") if shape.latent else ()))


def _modules(shape: ModelShape) -> tuple[str, ...]:
    return (*attention_modules_of(shape), *(("mlp",) if shape.ffn else ()))


def _replicated(shape: ModelShape) -> int:
    return params.replicated_params(shape, routed=False)


DENSE = LayerKind(
    name="dense",
    title="dense layer",
    equation="x + attention(norm(x)), then x + mlp(norm(x))",
    source="Vaswani et al. 2017; Megatron-LM core/transformer/transformer_layer.py",
    params=params.layer_params,
    replicated_params=_replicated,
    matrix_params=_matrix_params,
    linear_params=params.linear_params,
    macs=dense_macs,
    terms=dense_terms,
    modules=_modules,
    frameworks=("megatron", "deepspeed", "torchtitan", "fsdp2", "bridge", "primus", "automodel"),
    matrices=dense_matrices,
)
