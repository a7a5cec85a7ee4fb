"""The expert layer: attention, and routed experts beside shared ones in place of the MLP."""

from dataclasses import replace

import numpy as np

from costmodels import memory
from costmodels.comm import expert_overlap
from costmodels.comm.tensor_parallel import layer_exposures
from costmodels.layers import experts, params
from costmodels.layers.compute import elementwise_times, linear_times
from costmodels.layers.dense import (
    DENSE,
    attention_macs,
    attention_matrix_params,
    up_projection_macs,
)
from costmodels.layers.layer_kind import (
    HOST_FORWARD_SHARE,
    ExpertLayerTerms,
    LayerInputs,
    LayerKind,
    LayerMacs,
    host_waits,
    paced_s,
    waits_and_tax,
)
from costmodels.layers.recompute import module_terms, routed_terms, without_away
from costmodels.optimizers.matrices import moe_matrices
from costmodels.schedule import launches
from costmodels.shapes import ModelShape


def expert_layer_terms(inputs: LayerInputs) -> ExpertLayerTerms:
    """Return the terms of a layer with experts.

    A layer whose MLP is the shared experts (or that has none), and the routed experts. What hides
    of the exchange says the mode (`costmodels.comm.expert_overlap`).
    """
    problem, split, tokens, sp = inputs.problem, inputs.split, inputs.tokens, inputs.sp
    shape, job, stack = problem.shape.without_experts(), problem.job, problem.stack
    tp, degrees, modes = split.tp, inputs.degrees, inputs.modes
    accelerator, attention = problem.pool.accelerator, inputs.attention
    gemms = linear_times(shape, job, accelerator, stack, tokens, tp)
    elementwise = elementwise_times(shape, accelerator, stack, tokens, tp, sp)
    blocks = 2 if shape.ffn else 1
    forward, backward = layer_exposures(problem, tokens, tp, sp, gemms, blocks)
    routed = experts.expert_times(problem, tokens, degrees, modes)
    waits = ((forward, attention.cp_forward), (backward, attention.cp_backward))
    exposed, tax = waits_and_tax(stack, *waits)
    rest = gemms.both + attention.compute + elementwise + exposed + tax
    exchange = expert_overlap.exchange_beside(problem, inputs.degrees, modes, rest, routed)
    tax = tax + exchange.tax
    launch_s = launches.expert_launch_s(
        inputs.launch_s,
        experts.routing_host_s(problem),
        stack.graph_launch_s,
        modes,
        shared=bool(shape.ffn),
    )
    products_s = experts.products_host_s(problem, split.ep)
    launch_s = launch_s + launches.eager_products_s(products_s, modes)
    synced_s = experts.synced_host_s(problem, launch_s)
    device = rest + routed.compute + exchange.exposed + exchange.tax
    host = host_waits(stack, launch_s, device, synced_s)
    alone_device = rest + routed.compute + routed.exchange
    alone_host = host_waits(stack, launch_s, alone_device, synced_s)
    fill_s = (alone_device + alone_host).total_s - (device + host).total_s
    of_experts = experts.expert_kept_bytes(problem, tokens, *degrees)
    alone = replace(shape, ffn=0)
    shared = memory.scratch_bytes(shape, stack, tp) - memory.scratch_bytes(alone, stack, tp)
    again_s = device.forward_s - tax.forward_s
    of_routed = routed_terms(problem, tokens, degrees, routed, of_experts)
    working = memory.working_bytes(shape, tokens, tp, attention.buffer_bytes, inputs.element_bytes)
    beyond = working
    if problem.shape.kind_counts[0]:  # the dense layers' pool is reserved already
        buffers = attention.buffer_bytes, inputs.element_bytes
        beyond = np.maximum(
            0.0, working - memory.working_bytes(problem.shape, tokens, tp, *buffers)
        )
    pool_bytes = launches.pool_bytes(beyond, modes)
    pool_bytes = pool_bytes + experts.dispatcher_bytes(problem, tokens, degrees, modes)
    offloaded, copies = inputs.away(device + host, routed=True)
    modules = module_terms(problem, tokens, tp, sp, attention.core, of_routed)
    return ExpertLayerTerms(
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
        weight_grad_s=gemms.column_wgrad_s + gemms.row_wgrad_s + routed.weight_grad_s,
        recompute_full_s=paced_s(stack, HOST_FORWARD_SHARE * launch_s, again_s),
        modules=without_away(modules, offloaded),
        kept_bytes=of_experts
        + attention.kept_bytes
        + memory.layer_activation_bytes(
            shape,
            stack,
            inputs.micro_batch._replace(routes=True),
            tp,
            sp,
            np.ones_like(tokens),
        )
        - offloaded.freed_bytes,
        away=offloaded,
        working_bytes=working
        + memory.rebuilt_bytes(shape, stack, tokens, tp, sp, inputs.element_bytes)
        + experts.transient_bytes(problem, tokens, degrees, modes),
        scratch_bytes=shared + experts.expert_scratch_bytes(problem, split.etp) + pool_bytes,
        routed=routed.compute,
        exchange=exchange.exposed,
        exchange_hidden_s=exchange.hidden_s,
        fill_s=np.where(exchange.hidden_s > 0.0, np.maximum(0.0, fill_s), 0.0),
    )


def moe_macs(shape: ModelShape) -> LayerMacs:
    """Return the multiply-adds of a token in an expert layer.

    As in a dense layer, with c h (k f_e + f_s) in place of the MLP; the router is not counted.
    """
    projections, core = attention_macs(shape)
    mlp, modules = expert_macs(shape)
    return LayerMacs(projections, core, mlp, {**modules, **up_projection_macs(shape)})


def expert_macs(shape: ModelShape) -> tuple[int, dict[str, float]]:
    """Return the multiply-adds of a token in all experts, and in their recompute groups.

    c h (k f_e + f_s); latent experts c (k l f_e + h f_s) + 2 h l.
    Source: Megatron-LM training/training.py, moe_layer_flops.
    """
    c = 3 if shape.gated else 2
    shared = c * shape.hidden * shape.shared_ffn
    mlp = c * shape.expert_hidden * shape.top_k * shape.expert_ffn + shared
    mlp += 2 * shape.hidden * shape.moe_latent
    return mlp, {"moe": mlp, "shared_experts": shared}


def _modules(shape: ModelShape) -> tuple[str, ...]:
    latent = ("mla_up_proj",) if shape.latent else ()
    shared = ("shared_experts",) if shape.shared_ffn else ()
    return ("core_attn", "layernorm", *latent, "moe", "moe_act", *shared)


def _replicated(shape: ModelShape) -> int:
    return params.replicated_params(shape, routed=True)


MOE = LayerKind(
    name="moe",
    title="expert layer",
    equation="x + attention(norm(x)), then x + sum over k experts of p expert(norm(x)) + shared",
    source="Shazeer et al. 2017; Megatron-LM core/transformer/moe",
    params=params.expert_layer_params,
    replicated_params=_replicated,
    matrix_params=attention_matrix_params,
    linear_params=lambda shape, tp: (
        params.linear_params(shape.without_experts(), tp) + 2 * shape.hidden * shape.moe_latent
    ),
    macs=moe_macs,
    terms=expert_layer_terms,
    modules=_modules,
    is_routed=True,
    feed="moe",
    blocks=lambda shape: 2 if shape.shared_ffn else 1,
    frameworks=DENSE.frameworks,
    matrices=moe_matrices,
)
