"""Hardware FLOPs of a training step: the model's and those of what is recomputed (HFU)."""

from dataclasses import dataclass

from costmodels.layers.flops import model_flops_per_step
from costmodels.layers.kinds import present_kinds
from costmodels.plans import Layout
from costmodels.schedule.stages import layer_prefix
from costmodels.shapes import ModelShape, TrainingJob


@dataclass(frozen=True, slots=True)
class RecomputedPart:
    """One kind of work that the backward runs forward again."""

    name: str
    """The title of a kind of layer, or a module of `axes.RECOMPUTE_MODULES`."""
    n_layers: int
    """Layers of the model that run it again."""
    flops_per_token: float
    """Of one layer."""


def recomputed_parts(
    shape: ModelShape, seq_len: float, layout: Layout
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
    parts: dict[tuple[str, float], int] = {}
    for (kind, _), n in zip(present_kinds(shape), _layers(shape, layout), strict=True):
        macs = kind.macs(shape)
        core = 2.0 * macs.core_macs(seq_len)
        flops = {name: 2.0 * each for name, each in macs.modules.items()} | {"core_attn": core}
        if layout.recompute == "full":
            whole = 2.0 * macs.projections + core + 2.0 * macs.mlp
            names = {kind.title: whole + 2.0 * macs.of_sequence / seq_len}
        else:
            names = {name: flops.get(name, 0.0) for name in layout.recompute_modules}
        for part in names.items():
            parts[part] = parts.get(part, 0) + n
    modules = list(layout.recompute_modules)
    named = [(modules.index(x[0]) if x[0] in modules else 0, *x, n) for x, n in parts.items()]
    named.sort(key=lambda x: x[0])
    return tuple(RecomputedPart(name, n, flops) for _, name, flops, n in named if n and flops)


def recomputed_flops_per_token(shape: ModelShape, seq_len: float, layout: Layout) -> float:
    """Return the FLOPs of a token that a layout computes again, over the whole model.

    0 without recomputation.
    """
    parts = recomputed_parts(shape, seq_len, layout)
    return sum(part.n_layers * part.flops_per_token for part in parts)


def hardware_flops_per_step(shape: ModelShape, job: TrainingJob, layout: Layout) -> float:
    """Return the FLOPs of one optimizer step over all devices, recomputed ones included.

    HFU = hardware FLOPs / (step time × devices × dense peak): MFU with another numerator.
    """
    recomputed = recomputed_flops_per_token(shape, job.core_tokens, layout)
    recomputed = recomputed * job.tokens_per_step
    return model_flops_per_step(shape, job) + recomputed


def _layers(shape: ModelShape, layout: Layout) -> list[int]:
    """Return how many layers of each kind of the model run, wholly or in part, again."""
    sequence = shape.layer_sequence
    present = [i for i, count in enumerate(shape.kind_counts) if count]
    if layout.recompute == "full":
        counts = layout.stage_layers
        depth, every = min(layout.recompute_layers, max(counts)), range(len(counts))
        flags = ([one == i for one in sequence] for i in present)
        return [round(layer_prefix(counts, every, x, depth)[-1]) for x in flags]
    more = shape.mtp_layers
    return [shape.kind_counts[i] + more * (i == sequence[-1]) for i in present]
