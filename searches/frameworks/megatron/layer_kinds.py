"""How Megatron-LM says the kinds of layers of a model, and which models it cannot say.

Two ways: a GPT model of whole layers, each with attention (over a window or not) or a gated delta
net and a feed (`--window-attn-skip-freq`, `--linear-attention-freq`, `--moe-layer-freq`), or a
hybrid model, a pattern with one symbol for each sublayer (`--hybrid-layer-pattern`).

Codes: MLM7xx.
"""

from collections.abc import Sequence

from costmodels.layers.kinds import LAYER_KINDS, kind_of
from costmodels.layers.layer_kind import LayerKind
from costmodels.layers.recurrences.delta_net import NORM_OUT
from costmodels.shapes import Mamba2Shape, ModelShape
from searches.frameworks.case import Case
from searches.frameworks.common import kind_sequence, mixer_and_feed
from searches.frameworks.rule import FrameworkRule

HYBRID_ALLOCATION = "megatron/core/models/hybrid/hybrid_layer_allocation.py"
HYBRID_STACK = "megatron/core/models/hybrid/hybrid_block.py, HybridStack"
MAMBA_MIXER = "megatron/core/ssm/mamba_mixer.py, MambaMixer"
MAMBA_INPUTS = "megatron/core/ssm/mamba_mixer.py, in_proj; optimizer/emerging_optimizers.py"
MIXER_SYMBOLS = {"mamba2": "M", "gdn": "G", "attention": "*", "window": "*", "none": ""}
"""Symbol of a hybrid pattern by mixer; latent attention has `LATENT`."""
FEED_SYMBOLS = {"dense": "-", "moe": "E", "none": ""}
LATENT = "+"
CUT = "|"
"""Between the stages of a pipeline."""
PREDICTION = "/"
"""Before the pattern of each layer of multi-token prediction."""
MAMBA_CONV, MAMBA_CHUNK, DELTA_CHUNK = 4, 128, 64
"""Taps and chunks that have no option: arguments of `MambaMixer`, and fla's chunk_size."""


def _present(shape: ModelShape) -> tuple[LayerKind, ...]:
    counted = zip(shape.kinds, shape.kind_counts, strict=True)
    known = [name for name, n in counted if n and name.partition("@")[0] in LAYER_KINDS]
    return tuple(kind_of(name) for name in known)


def has_mixer(shape: ModelShape, mixer: str) -> bool:
    """Tell whether some layer of a model has a mixer."""
    return any(kind.mixer == mixer for kind in _present(shape))


def is_hybrid(shape: ModelShape) -> bool:
    """Tell whether a model needs a pattern: it has sublayers alone, or state-space layers.

    No pattern says layers of a diffusion transformer.
    """
    return not shape.diffusion and any(
        kind.mixer == "mamba2" or "none" in (kind.mixer, kind.feed) for kind in _present(shape)
    )


def has_pairs(shape: ModelShape) -> bool:
    """Tell whether a hybrid model has layers of a mixer and a feed: two of Megatron-LM's."""
    return is_hybrid(shape) and any("none" not in (x.mixer, x.feed) for x in _present(shape))


def kind_symbols(shape: ModelShape, kind: str) -> str:
    """Return the symbols of a layer in a hybrid pattern."""
    mixer, feed = mixer_and_feed(kind)
    symbol = LATENT if shape.latent and mixer == "attention" else MIXER_SYMBOLS[mixer]
    return symbol + FEED_SYMBOLS[feed]


def hybrid_pattern(shape: ModelShape, stage_layers: Sequence[int] = ()) -> str:
    """Return the pattern of a hybrid model, cut where the stages of a pipeline end.

    Stages stand in model order; stage j is chunk j // pp on rank j % pp, as with
    `--pipeline-model-parallel-layout` (`select_pipeline_segment`).
    """
    symbols = [kind_symbols(shape, kind) for kind in kind_sequence(shape)]
    counts, start, stages = tuple(stage_layers) or (len(symbols),), 0, []
    for count in counts:
        stages.append("".join(symbols[start : start + count]))
        start += count
    return CUT.join(stages)


def prediction_pattern(shape: ModelShape) -> str:
    """Return the patterns of multi-token prediction of a hybrid model, each after its separator.

    Each has the sublayers of the last layer, as it is priced (`parse_hybrid_pattern`).
    """
    return (PREDICTION + kind_symbols(shape, kind_sequence(shape)[-1])) * shape.mtp_layers


def layer_count(shape: ModelShape) -> int:
    """Return how many layers Megatron-LM counts: of a hybrid model the symbols of its pattern."""
    return len(hybrid_pattern(shape)) if is_hybrid(shape) else shape.layers


def windowed_layers(shape: ModelShape) -> list[int]:
    """Return which of Megatron-LM's layers attend over a window (1), all others 0."""
    hybrid = is_hybrid(shape)
    flags = []
    for kind in kind_sequence(shape):
        n = len(kind_symbols(shape, kind)) if hybrid else 1
        flags += [int(mixer_and_feed(kind)[0] == "window"), *[0] * (n - 1)]
    return flags


def linear_layers(shape: ModelShape) -> list[int]:
    """Return which layers are gated delta nets (1), as `--linear-attention-freq` lists them."""
    return [int(mixer_and_feed(kind)[0] == "gdn") for kind in kind_sequence(shape)]


def layer_interval(flags: Sequence[int]) -> int | list[int]:
    """Return a list of layers as shortly as Megatron-LM reads it.

    A number n where all layers but every n-th are flagged, else the list.

    >>> layer_interval([1, 1, 0, 1, 1, 0]), layer_interval([0, 1, 0, 1])
    (3, [0, 1, 0, 1])
    """
    for n in range(2, len(flags) + 1):
        if list(flags) == [int((i + 1) % n != 0) for i in range(len(flags))]:
            return n
    return list(flags)


def _is_plan(case: Case) -> bool:
    """Tell a plan from a run, which may do what no model file states."""
    return not case.settings


def _mixed_forms(case: Case) -> bool:
    present = _present(case.model)
    halves = any("none" in (x.mixer, x.feed) for x in present)
    return halves and has_pairs(case.model)


def _all_sparse(shape: ModelShape) -> bool:
    """Tell whether all layers of a model are whole ones of sparse attention over a latent."""
    kinds = {mixer_and_feed(kind) for kind in kind_sequence(shape)}
    is_sparse = kinds <= {("sparse", "dense"), ("sparse", "moe")}
    by_key = shape.indexer is not None and shape.indexer.block == 1
    return is_sparse and by_key and shape.latent and not shape.bias


def _predicts_by_half(case: Case) -> bool:
    """Tell whether layers of multi-token prediction would be no whole ones."""
    if not (_is_plan(case) and is_hybrid(case.model) and case.model.mtp_layers):
        return False
    return "none" in mixer_and_feed(kind_sequence(case.model)[-1])


def _latent_windows(case: Case) -> bool:
    return case.model.latent and has_mixer(case.model, "window")


def _mamba(case: Case) -> Mamba2Shape:
    """Return the sizes of state-space layers; those of Megatron-LM's own where there are none."""
    sizes = case.model.mamba2 if has_mixer(case.model, "mamba2") else None
    return sizes or Mamba2Shape(1, 1, 1, 1, MAMBA_CONV, MAMBA_CHUNK)


def _delta_chunk(case: Case) -> int:
    sizes = case.model.delta_net if has_mixer(case.model, "gdn") else None
    return sizes.chunk if sizes else DELTA_CHUNK


def _has_state_inputs(case: Case) -> bool:
    """Tell whether a model that Muon trains has Mamba-2 layers."""
    return bool(case.job.optimizer == "muon" and has_mixer(case.model, "mamba2"))


LAYER_KIND_RULES: tuple[FrameworkRule, ...] = (
    FrameworkRule(
        "MLM700",
        "megatron",
        "whole layers beside sublayers alone",
        "planner",
        HYBRID_ALLOCATION,
        _mixed_forms,
        "layers: a pattern has one symbol for each sublayer, and this model has layers of two"
        " beside layers of one",
        "layers of a mixer and a feed alone, or of sublayers alone",
    ),
    FrameworkRule(
        "MLM701",
        "megatron",
        "a window with latent attention",
        "planner",
        "megatron/core/transformer/multi_latent_attention.py",
        _latent_windows,
        "window: latent attention has none",
        "layers without a window, or without `mla`",
    ),
    FrameworkRule(
        "MLM710",
        "megatron",
        "sparse attention in some layers, or without latent attention",
        "planner",
        "megatron/core/transformer/experimental_attention_variant/dsa.py",
        lambda c: has_mixer(c.model, "sparse") and not _all_sparse(c.model),
        "layers: it has sparse attention in all layers or in none, with latent attention and"
        " without biases",
        "sparse+moe and sparse+dense layers alone, beside `mla`",
    ),
    FrameworkRule(
        "MLM702",
        "megatron",
        "latent attention in a hybrid model",
        "start",
        f"{HYBRID_ALLOCATION}, Symbols",
        lambda c: is_hybrid(c.model) and c.model.latent and has_mixer(c.model, "attention"),
        "layers: a pattern has no symbol for latent attention",
        "attention without `mla`",
        versions="<0.19",
    ),
    FrameworkRule(
        "MLM703",
        "megatron",
        "multi-token prediction by a sublayer alone",
        "planner",
        f"{HYBRID_ALLOCATION}, parse_hybrid_pattern",
        _predicts_by_half,
        lambda c: (
            f"mtp_layers {c.model.mtp_layers}: each has what the last layer has, which is a mixer"
            " or a feed alone, and a model file states no pattern of its own for it"
        ),
        "mtp_layers 0, or layers of a mixer and a feed",
    ),
    FrameworkRule(
        "MLM704",
        "megatron",
        "another convolution of state-space layers",
        "planner",
        MAMBA_MIXER,
        lambda c: _mamba(c).conv != MAMBA_CONV,
        lambda c: f"mamba2.conv {_mamba(c).conv}: it always has {MAMBA_CONV} taps",
        f"mamba2.conv {MAMBA_CONV}",
    ),
    FrameworkRule(
        "MLM705",
        "megatron",
        "other chunks of state-space layers",
        "planner",
        MAMBA_MIXER,
        lambda c: _mamba(c).chunk != MAMBA_CHUNK,
        lambda c: f"mamba2.chunk {_mamba(c).chunk}: it has no option, and is {MAMBA_CHUNK}",
        f"mamba2.chunk {MAMBA_CHUNK}",
    ),
    FrameworkRule(
        "MLM706",
        "megatron",
        "other chunks of gated delta nets",
        "planner",
        "flash-linear-attention, fla/ops/gated_delta_rule/chunk.py",
        lambda c: _delta_chunk(c) != DELTA_CHUNK,
        lambda c: f"delta_net.chunk {_delta_chunk(c)}: it has no option, and is {DELTA_CHUNK}",
        f"delta_net.chunk {DELTA_CHUNK}",
    ),
    FrameworkRule(
        "MLM711",
        "megatron",
        "context parallelism of gated delta nets",
        "start",
        "megatron/core/transformer/transformer_config.py, __post_init__",
        lambda c: (c.cp > 1) & has_mixer(c.model, "gdn"),
        lambda c: f"cp {c.cp}: gated delta nets have none before 0.18",
        "cp 1, or framework megatron@0.18.2",
        versions="<0.18",
    ),
    FrameworkRule(
        "MLM712",
        "megatron",
        "the output norm of gated delta nets recomputed before 0.19",
        "start",
        "megatron/core/transformer/transformer_config.py, __post_init__",
        lambda c: c.recomputes(NORM_OUT),
        "recompute of gdn_norm_out: --recompute-modules does not know it before 0.19",
        "recompute_modules without it",
        versions="<0.19",
    ),
    FrameworkRule(
        "MLM713",
        "megatron",
        "the output norm of gated delta nets recomputed in a hybrid model",
        "start",
        "megatron/core/transformer/transformer_config.py, __post_init__",
        lambda c: is_hybrid(c.model) & c.recomputes(NORM_OUT),
        "recompute of gdn_norm_out: it needs --experimental-attention-variant gated_delta_net,"
        " which a pattern stands in place of",
        "recompute_modules without it",
    ),
    FrameworkRule(
        "MLM714",
        "megatron",
        "Mamba's input projection left to the scalar optimizer",
        "planner",
        MAMBA_INPUTS,
        lambda c: _is_plan(c) and _has_state_inputs(c) and not c.job.muon.mamba_in_proj,
        "muon.mamba_in_proj off: releases up to 0.19 orthogonalize it",
        "muon.mamba_in_proj on",
        versions="<0.20",
    ),
    FrameworkRule(
        "MLM715",
        "megatron",
        "Mamba's input projection orthogonalized",
        "planner",
        MAMBA_INPUTS,
        lambda c: _is_plan(c) and _has_state_inputs(c) and c.job.muon.mamba_in_proj,
        "muon.mamba_in_proj on: after release 0.19 it goes to the scalar optimizer",
        "muon.mamba_in_proj off",
        versions=">=0.20",
    ),
    FrameworkRule(
        "MLM707",
        "megatron",
        "layers counted in pairs",
        "planner",
        HYBRID_STACK,
        lambda c: (
            (_is_plan(c) and has_pairs(c.model))
            & ((c.is_recompute("full") & (c.recompute_layers > 0)) | any(c.job.bf16_layers))
        ),
        "layers of a mixer and a feed are two of Megatron-LM's in a hybrid model: it keeps two"
        " inputs and counts both",
        "recompute none or selective, and no bf16_layers",
    ),
    FrameworkRule(
        "MLM708",
        "megatron",
        "an exchange beside another micro-batch in a hybrid model",
        "first step",
        "megatron/core/models/hybrid/hybrid_model.py, which has no build_schedule_plan",
        lambda c: is_hybrid(c.model) & (c.switch("ep_overlap") > 0),
        "ep_overlap: hybrid models have none",
        "ep_overlap off",
    ),
    FrameworkRule(
        "MLM709",
        "megatron",
        "layers on the host in a hybrid model",
        "planner",
        HYBRID_STACK,
        lambda c: is_hybrid(c.model) & (c.activation_offload_layers > 0),
        "activation_offload_layers: hybrid models offload no layers",
        "activation_offload_layers 0",
    ),
)
"""Rules over the kinds of layers, which Megatron-Bridge has as well."""
