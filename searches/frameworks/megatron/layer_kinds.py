"""How Megatron-LM says the kinds of layers of a model, and which models it cannot say.

Two ways: a GPT model of whole layers, each with attention (over a window or not) or a gated delta
net and a feed (`--window-attn-skip-freq`, `--linear-attention-freq`, `--moe-layer-freq`), or a
hybrid model, a pattern with one symbol for each sublayer (`--hybrid-layer-pattern`).

Codes: MLM7xx.
"""

from collections.abc import Sequence

from costmodels.layers.kinds import KIND_ALIASES, LAYER_KINDS, kind_of
from costmodels.layers.layer_kind import LayerKind
from costmodels.shapes import Mamba2Shape, ModelShape
from searches.frameworks.case import Case
from searches.frameworks.common import kind_sequence
from searches.frameworks.rule import FrameworkRule

HYBRID_ALLOCATION = "megatron/core/models/hybrid/hybrid_layer_allocation.py"
HYBRID_STACK = "megatron/core/models/hybrid/hybrid_block.py, HybridStack"
MAMBA_MIXER = "megatron/core/ssm/mamba_mixer.py, MambaMixer"
MIXER_SYMBOLS = {"mamba2": "M", "gdn": "G", "attention": "*", "window": "*", "none": ""}
"""Symbol of a hybrid pattern by mixer; latent attention has `LATENT`."""
FEED_SYMBOLS = {"dense": "-", "moe": "E", "none": ""}
LATENT = "+"
CUT = "|"
"""Between the stages of a pipeline."""
MAMBA_CONV, MAMBA_CHUNK, DELTA_CHUNK = 4, 128, 64
"""Taps and chunks that have no option: arguments of `MambaMixer`, and fla's chunk_size."""
_PLAIN = {name: alias.partition("+") for alias, name in KIND_ALIASES.items()}


def sublayers(kind: str) -> tuple[str, str]:
    """Return the mixer and the feed of a kind of layer by its name, whatever its variant.

    >>> sublayers("moe"), sublayers("mamba2+none")
    (('attention', 'moe'), ('mamba2', 'none'))
    """
    plain = kind.partition("@")[0]
    mixer, _, feed = _PLAIN.get(plain) or plain.partition("+")
    return mixer, feed


def _present(shape: ModelShape) -> tuple[LayerKind, ...]:
    counted = zip(shape.kinds, shape.kind_counts, strict=True)
    known = [name for name, n in counted if n and name.partition("@")[0] in LAYER_KINDS]
    return tuple(kind_of(name) for name in known)


def has_mixer(shape: ModelShape, mixer: str) -> bool:
    """Tell whether some layer of a model has a mixer."""
    return any(kind.mixer == mixer for kind in _present(shape))


def is_hybrid(shape: ModelShape) -> bool:
    """Tell whether a model needs a pattern: it has sublayers alone, or state-space layers."""
    return any(
        kind.mixer == "mamba2" or "none" in (kind.mixer, kind.feed) for kind in _present(shape)
    )


def has_pairs(shape: ModelShape) -> bool:
    """Tell whether a hybrid model has layers of a mixer and a feed: two of Megatron-LM's."""
    return is_hybrid(shape) and any("none" not in (x.mixer, x.feed) for x in _present(shape))


def kind_symbols(shape: ModelShape, kind: str) -> str:
    """Return the symbols of a layer in a hybrid pattern."""
    mixer, feed = sublayers(kind)
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


def layer_count(shape: ModelShape) -> int:
    """Return how many layers Megatron-LM counts: of a hybrid model the symbols of its pattern."""
    return len(hybrid_pattern(shape)) if is_hybrid(shape) else shape.layers


def windowed_layers(shape: ModelShape) -> list[int]:
    """Return which of Megatron-LM's layers attend over a window (1), all others 0."""
    hybrid = is_hybrid(shape)
    flags = []
    for kind in kind_sequence(shape):
        n = len(kind_symbols(shape, kind)) if hybrid else 1
        flags += [int(sublayers(kind)[0] == "window"), *[0] * (n - 1)]
    return flags


def linear_layers(shape: ModelShape) -> list[int]:
    """Return which layers are gated delta nets (1), as `--linear-attention-freq` lists them."""
    return [int(sublayers(kind)[0] == "gdn") for kind in kind_sequence(shape)]


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
    kinds = {sublayers(kind) for kind in kind_sequence(shape)}
    is_sparse = kinds <= {("sparse", "dense"), ("sparse", "moe")}
    return is_sparse and shape.latent and not shape.bias


def _latent_windows(case: Case) -> bool:
    return case.model.latent and has_mixer(case.model, "window")


def _mamba(case: Case) -> Mamba2Shape:
    """Return the sizes of state-space layers; those of Megatron-LM's own where there are none."""
    sizes = case.model.mamba2 if has_mixer(case.model, "mamba2") else None
    return sizes or Mamba2Shape(1, 1, 1, 1, MAMBA_CONV, MAMBA_CHUNK)


def _delta_chunk(case: Case) -> int:
    sizes = case.model.delta_net if has_mixer(case.model, "gdn") else None
    return sizes.chunk if sizes else DELTA_CHUNK


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
        "multi-token prediction in a hybrid model",
        "planner",
        f"{HYBRID_ALLOCATION}, parse_hybrid_pattern",
        lambda c: _is_plan(c) and is_hybrid(c.model) and c.model.mtp_layers > 0,
        lambda c: (
            f"mtp_layers {c.model.mtp_layers}: each is a pattern of its own in a hybrid model,"
            " which a model file does not state"
        ),
        "mtp_layers 0",
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
