"""Hardware FLOPs of a training step: the model's and those of what is recomputed (HFU)."""

from dataclasses import dataclass

import numpy as np

from costmodels.layers.flops import model_flops_per_step
from costmodels.parameters import latent_params
from costmodels.plans import Layout
from costmodels.schedule.stages import expert_prefix
from costmodels.shapes import ModelShape, TrainingJob


@dataclass(frozen=True, slots=True)
class RecomputedPart:
    """One kind of work that the backward runs forward again."""

    name: str
    """`dense layer`, `expert layer`, or a module of `plans.RECOMPUTE_MODULES`."""
    n_layers: int
    """Layers of the model that run it again."""
    flops_per_token: float
    """Of one layer."""


def recomputed_parts(
    shape: ModelShape, seq_len: int, layout: Layout
) -> tuple[RecomputedPart, ...]:
    """Return what a layout computes again, over the whole model, FLOPs of one token each.

    A forward is 2 FLOPs per multiply-add, counted as `flops.model_flops_per_token` counts it:

      layer           2 (h (h_q + 2 h_kv) + h_q h + c h f) + 2 h_q s
      core_attn       2 h_q s, the causal half of both products
      mlp             2 c h f
      moe             2 c h (k f_e + f_s)
      shared_experts  2 c h f_s
      mla_up_proj     2 (r_q h_q + r_kv a (d_n + d_v)), h for r_q without compressed queries

    f counts k f_e + f_s in a layer with experts; latent attention as there. Head and embedding
    never run again. Modules run again in the layers of multi-token prediction too, whole layers
    do not. Left out, as in the model's FLOPs: norms and activations (`layernorm`, `moe_act`), and
    the scores that a flash kernel forms once more inside its backward.
    Source: Korthikanti et al. 2022, appendix A (model and hardware FLOPs); Chowdhery et al. 2022
    (PaLM), appendix B.
    """
    (dense, routed), (of_dense, of_expert) = _layers(shape, layout), _forward(shape)
    projections, core = _attention(shape, seq_len)
    parts: list[tuple[str, int, float]] = []
    if layout.recompute == "full":
        parts = [
            ("dense layer", dense, projections + core + of_dense),
            ("expert layer", routed, projections + core + of_expert),
        ]
    per_width = 2.0 * (3 if shape.gated else 2) * shape.hidden
    up = (shape.q_rank or shape.hidden) * shape.q_width
    up += shape.kv_rank * shape.heads * (shape.qk_nope + shape.v_head)
    modules = {
        "core_attn": (dense + routed, core),
        "mla_up_proj": (dense + routed, 2.0 * up if shape.latent else 0.0),
        "mlp": (dense, of_dense),
        "moe": (routed, of_expert),
        "shared_experts": (routed, per_width * shape.shared_ffn),
    }
    for name in layout.recompute_modules:
        if name in modules:
            parts.append((name, *modules[name]))
    return tuple(RecomputedPart(name, n, flops) for name, n, flops in parts if n and flops)


def recomputed_flops_per_token(shape: ModelShape, seq_len: int, layout: Layout) -> float:
    """Return the FLOPs of a token that a layout computes again, over the whole model.

    0 without recomputation.
    """
    parts = recomputed_parts(shape, seq_len, layout)
    return sum(part.n_layers * part.flops_per_token for part in parts)


def hardware_flops_per_step(shape: ModelShape, job: TrainingJob, layout: Layout) -> float:
    """Return the FLOPs of one optimizer step over all devices, recomputed ones included.

    HFU = hardware FLOPs / (step time × devices × dense peak): MFU with another numerator.
    """
    recomputed = recomputed_flops_per_token(shape, job.seq_len, layout) * job.tokens_per_step
    return model_flops_per_step(shape, job) + recomputed


def _layers(shape: ModelShape, layout: Layout) -> tuple[int, int]:
    """Return the dense layers and the expert layers that run, wholly or in part, again."""
    if layout.recompute == "full":
        counts = layout.stage_layers
        recomputed = sum(min(count, layout.recompute_layers) for count in counts)
        routed = 0
        if shape.n_experts:
            every = range(len(counts))
            depth = min(layout.recompute_layers, max(counts))
            routed = round(expert_prefix(counts, every, shape.expert_layers, depth)[-1])
        return recomputed - routed, routed
    routed = shape.n_expert_layers
    more = shape.mtp_layers
    last = bool(shape.n_experts) and shape.expert_layers[-1]
    return shape.layers - routed + more * (not last), routed + more * last


def _forward(shape: ModelShape) -> tuple[float, float]:
    """Return the forward FLOPs of a token in the MLP of a dense layer, and in the experts."""
    per_width = 2.0 * (3 if shape.gated else 2) * shape.hidden
    width = shape.top_k * shape.expert_ffn + shape.shared_ffn
    return per_width * shape.ffn, per_width * width


def _attention(shape: ModelShape, seq_len: int) -> tuple[float, float]:
    """Return the forward FLOPs of a token in the projections and the core of attention."""
    h, q, kv = shape.hidden, shape.q_width, shape.kv_heads * shape.head_dim
    projections, core = h * (q + 2 * kv) + q * h, q
    if shape.latent:
        projections = round(float(latent_params(shape, np.ones(1, dtype=np.int32))[0]))
        core = (q + shape.v_width) // 2
    return 2.0 * projections, 2.0 * core * seq_len
