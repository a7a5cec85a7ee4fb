"""What may stand in a model file and in a cluster file: fields, defaults, bounds.

Sizes and speeds are text with a unit (`planner.units`); whole numbers are numbers. Unknown keys
are refused; what fields say together is checked in `planner.specs.contradictions`. The loaders
(`planner.specs.loader`) turn the result into the plain types of `costmodels`
and `hardware`, and every error into a `SpecError` with its line.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from threading import Lock
from typing import Annotated, NamedTuple

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from costmodels.data.lengths import PACKINGS
from costmodels.layers.kinds import KIND_ALIASES, LAYER_KINDS, has_variants
from costmodels.optimizers.records import OPTIMIZERS, SCALAR_OPTIMIZERS, TP_MODES
from costmodels.precision import (
    GRAD_DTYPES,
    OPTIMIZER_STATES,
    PRECISION_ALIASES,
    PRECISIONS,
)
from costmodels.shapes import DiffusionShape
from costmodels.tuning.records import BASES, PRETRAIN, REFERENCES, TASKS
from planner import units
from planner.errors import BadValue
from planner.specs.importers.hostlist import expand_hosts
from planner.specs.yaml.document import KeyPath, close_names
from planner.units import shown_value

PEAK_NAMES = ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8")
"""Precisions for which an accelerator may state a dense peak."""

_ALIASES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "adamw": "adam",
    **PRECISION_ALIASES,
}
"""Other spellings that mean the same bytes (AdamW keeps the same two moments as Adam)."""


class SpecFault(NamedTuple):
    """A cross check that failed: where in the document, what is wrong, what to change."""

    path: KeyPath
    message: str
    fix: str


def _whole(value: object) -> int:
    """Accept whole numbers only (also `1e3`): no booleans, no text, no fractions."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        digits = value.replace(",", "").replace("_", "").strip()
        fix = f"write {digits} without quotes" if digits.isdecimal() else "write it in digits"
        raise BadValue(f"expected a whole number, got the text {shown_value(value)}", fix)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise BadValue(f"expected a whole number, got {shown_value(value)}")
    return int(value)


def _number(value: object) -> float:
    """Accept plain numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadValue(f"expected a number, got {shown_value(value)}")
    return float(value)


def _switch(value: object) -> bool:
    """Accept true and false only."""
    if isinstance(value, bool):
        return value
    word = value.lower() if isinstance(value, str) else value
    meant = "true" if word in ("yes", "on", "true", 1) else ""
    meant = "false" if word in ("no", "off", "false", 0) else meant
    raise BadValue(
        f"expected true or false, got {shown_value(value)}", f"write {meant}" if meant else ""
    )


def _name(value: object) -> str:
    """Accept a short name that is safe in file names and shell scripts."""
    allowed = "letters, digits and . _ + - (64 at most, the first a letter or digit)"
    if not isinstance(value, str):
        fix = f"quote it: '{value}'" if isinstance(value, int | float) else ""
        raise BadValue(f"expected a name, got {shown_value(value)}", fix)
    plain = value.translate(str.maketrans("", "", "._+-"))
    if not (value[:1].isalnum() and plain.isalnum() and value.isascii() and len(value) <= 64):
        raise BadValue(f"{shown_value(value)} is not a name", f"use {allowed}")
    return value


def _hosts(value: object) -> str:
    """Accept a list of different host names such as `n[001-016],n020`."""
    if not isinstance(value, str):
        raise BadValue(
            f"expected a host list, got {shown_value(value)}", "write it as n[001-016],n020"
        )
    names = expand_hosts(value)
    if len(set(names)) < len(names):
        twice = next(name for name, n in Counter(names).items() if n > 1)
        raise BadValue(f"{twice} stands twice in {shown_value(value)}", "name every host once")
    return value


def _slice(value: object) -> tuple[int, ...]:
    """Accept the shape of a slice, such as `4x4x8`; returns its edges, the shortest first."""
    if isinstance(value, tuple):
        return value
    edges = value.lower().split("x") if isinstance(value, str) else []
    if not 2 <= len(edges) <= 3 or not all(x.isdecimal() and len(x) <= 5 for x in edges):
        raise BadValue(
            f"expected chips along each axis, got {shown_value(value)}", "write it as 4x4x8"
        )
    return tuple(sorted(int(x) for x in edges))


def _one_of(*allowed: str) -> Callable[[object], str]:
    def check(value: object) -> str:
        text = _ALIASES.get(value, value) if isinstance(value, str) else value
        if isinstance(text, str) and text in allowed:
            return text
        close = close_names(text, allowed, 1) if isinstance(text, str) else []
        guess = f"did you mean {close[0]}? " if close else ""
        raise BadValue(
            f"unknown value {shown_value(value)}",
            f"{guess}allowed: {', '.join(filter(None, allowed))}",
        )

    return check


def _recipes(value: object) -> str | list[str]:
    """Accept one recipe, or a list of recipes without repeats."""
    one = _one_of(*PRECISIONS)
    if not isinstance(value, list):
        return one(value)
    names = [one(name) for name in value]
    if not names or len(set(names)) < len(names):
        what = "repeats a recipe" if names else "is empty"
        raise BadValue(f"the list {what}", "such as [bf16, fp8-tensorwise]")
    return names


def _two(value: object) -> tuple[object, object]:
    """Accept a list of two."""
    if isinstance(value, list | tuple) and len(value) == 2:
        return value[0], value[1]
    raise BadValue(f"expected two numbers, got {shown_value(value)}", "such as [1, 1]")


def _quantity(
    parse: Callable[[object], float], low: float, high: float, allowed: str
) -> BeforeValidator:
    """Read a quantity with its unit and refuse absurd ones, in the user's own words."""

    def check(value: object) -> float:
        number = parse(value)
        if not low <= number <= high:
            raise BadValue(f"{shown_value(value)} is out of range", f"allowed: {allowed}")
        return number

    return BeforeValidator(check)


def _real(value: object) -> float:
    """Accept numbers, also small ones that YAML takes for text: `1e-6`."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            raise BadValue(f"expected a number, got the text {shown_value(value)}") from None
    return _number(value)


def _accelerator_kind(value: object) -> str:
    return "inline" if isinstance(value, Mapping | AcceleratorSpec) else "name"


def _words(value: object) -> str:
    """Accept words that are safe in comments of scripts."""
    plain = isinstance(value, str) and value.isascii() and value.isprintable()
    if not (plain and 0 < len(str(value)) <= 400):
        raise BadValue(
            f"expected words, got {shown_value(value)}", "one line of at most 400 letters"
        )
    return str(value)


Words = Annotated[str, BeforeValidator(_words)]
MAX_LAYERS = 10_000
Layers = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=MAX_LAYERS)]
LayersOr0 = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=MAX_LAYERS)]
NewtonSchulzSteps = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=100)]
Heads = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=100_000)]
Width = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=10_000_000)]
WidthOr0 = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=10_000_000)]
Nodes = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=1_000_000)]
PerNode = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=1024)]
FreeDevices = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=1024)]
Switch = Annotated[bool, BeforeValidator(_switch)]
Name = Annotated[str, BeforeValidator(_name)]
SliceShape = Annotated[tuple[int, ...], BeforeValidator(_slice)]
HostList = Annotated[str, BeforeValidator(_hosts)]
Size = Annotated[float, _quantity(units.parse_size, 0, 1e15, "0 B to 1000 TB")]
Memory = Annotated[float, _quantity(units.parse_size, 1e8, 1e15, "100 MB to 1000 TB")]
Bandwidth = Annotated[float, _quantity(units.parse_bandwidth, 1e6, 1e15, "1 MB/s to 1000 TB/s")]
Rate = Annotated[float, _quantity(units.parse_rate, 1e9, 1e18, "1 GFLOP/s to 1000 PFLOP/s")]
Tokens = Annotated[float, _quantity(units.parse_count, 1, 1e18, "1 to 1e18")]
Ratio = Annotated[float, _quantity(units.parse_ratio, 1, 1e4, "1 to 10000")]
Factor = Annotated[float, _quantity(_number, 1, 1e3, "1 to 1000")]
FactorOr0 = Annotated[float, _quantity(_number, 0, 1e3, "0 to 1000")]
Real = Annotated[float, _quantity(_real, 0, 1e12, "0 to 1e12")]
Seconds = Annotated[float, _quantity(_real, 1e-9, 1e12, "above 0, up to 1e12")]
Share = Annotated[float, _quantity(_real, 0, 1, "0 to 1")]
Margin = Annotated[float, _quantity(_real, 0, 0.9, "0 to 0.9")]
Power = Annotated[float, _quantity(units.parse_power, 1, 1e5, "1 W to 100 kW")]
Price = Annotated[float, _quantity(_number, 1e-3, 1e4, "0.001 to 10000")]
Duration = Annotated[float, _quantity(units.parse_time, 0, 1e12, "0 s to 10 million days")]
Latency = Annotated[float, _quantity(units.parse_time, 1e-9, 1e-2, "1 ns to 10 ms")]
WireLatency = Annotated[float, _quantity(units.parse_time, 1e-9, 10, "1 ns to 10 s")]
TrafficPrice = Annotated[float, _quantity(_number, 0, 1e3, "0 to 1000")]
Lifetime = Annotated[float, _quantity(units.parse_time, 60, 1e12, "1 min to 10 million days")]


class _Spec(BaseModel):
    """Base of all sections: unknown keys are errors, values are fixed once read.

    The docstrings of its fields say in errors what is missing (`field_meaning`). pydantic would
    parse this file once per section for them (0.1 s at every start), so they are read on demand.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)


_PARSING = Lock()
"""CPython 3.11 raises SystemError where threads parse at the same time (its issue 106905)."""


@cache
def field_meaning(section: type[BaseModel], field: str) -> str | None:
    """Return the docstring below a field of a section, None where there is none."""
    import ast
    from inspect import cleandoc, getsource

    for owner in section.__mro__:
        if field not in vars(owner).get("__annotations__", {}):
            continue
        with _PARSING:
            (definition,) = ast.parse(getsource(owner)).body
        assert isinstance(definition, ast.ClassDef)
        for one, below in pairwise(definition.body):
            named = isinstance(one, ast.AnnAssign) and ast.unparse(one.target) == field
            if named and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                return cleandoc(str(below.value.value))
        return None
    return None


class MoeSpec(_Spec):
    """The `model.moe:` section: layers with routed experts in place of an MLP."""

    experts: Heads
    """Routed experts of a layer."""
    topk: Heads
    """Experts that each token is sent to."""
    moe_ffn: Width | None = None
    """Inner width of one expert; default: `model.ffn`."""
    latent: WidthOr0 = 0
    """Width of what routed experts take and give (Nemotron 3), between two projections that every
    token passes; 0: the model's."""
    shared_experts: WidthOr0 = 0
    """Experts that see every token."""
    shared_ffn: WidthOr0 | None = None
    """Inner width of all shared experts together; default: `shared_experts` * `moe_ffn`."""
    dense_layers: LayersOr0 = 0
    """The first layers, which are dense with the MLP of `model.ffn`."""
    every: Layers = 1
    """Of the layers after them every n-th has experts."""
    capacity_factor: FactorOr0 = 0.0
    """Rows that every expert computes, padded, over the mean; 0: dropless."""
    imbalance: Factor = 1.0
    """Dropless: tokens of the busiest expert-parallel rank over the mean; 1: perfect balance."""
    forced_balance: Switch = False
    """Random routing in place of the router's, as performance runs have it: nothing is learnt."""
    routing_groups: Heads = 1
    """Groups of experts of which each token uses only `top_groups`; 1: no limit."""
    top_groups: Heads | None = None
    """Groups that the experts of one token come from; default: all."""


class MlaSpec(_Spec):
    """The `model.mla:` section: keys and values from a compressed latent."""

    q_rank: WidthOr0 = 0
    """Width of the compressed queries; 0: they are not compressed."""
    kv_rank: Width
    """Width of the compressed keys and values."""
    qk_nope: Heads
    """Width of a query or key head without positions."""
    qk_rope: Heads
    """Width of the part of a head with rotary positions."""
    v_head: Heads
    """Width of a value head."""


class WindowSpec(_Spec):
    """The `model.window:` section: what `window` layers see."""

    size: Width
    """Tokens that a query sees, its own among them."""


class ChunkSpec(_Spec):
    """The `model.chunk:` section: what `chunk` layers see."""

    size: Width
    """Tokens of a chunk, inside which each sees those before it."""


class Mamba2Spec(_Spec):
    """The `model.mamba2:` section: sizes of `mamba2` layers."""

    heads: Heads
    """Heads of the state space."""
    head_dim: Heads
    """Width of one head; the inner width is heads * head_dim."""
    groups: Heads = 1
    """Groups of heads that share inputs and outputs of their states (B and C)."""
    state: Width
    """Elements of the state for each element of a head."""
    conv: Heads = 4
    """Taps of the short convolution."""
    chunk: Width = 128
    """Tokens that a kernel works on at once."""


class DeltaNetSpec(_Spec):
    """The `model.delta_net:` section: sizes of `gdn` and `kda` layers."""

    k_heads: Heads
    """Heads of queries and of keys."""
    v_heads: Heads
    """Heads of values, a multiple of them."""
    k_dim: Heads
    """Width of a head of keys."""
    v_dim: Heads
    """Width of a head of values."""
    conv: Heads = 4
    """Taps of the short convolution."""
    chunk: Width = 64
    """Tokens that a kernel works on at once."""
    full_gates: Switch = False
    """Decays and output gate of `kda` layers are one matrix each (Ling 3.0), not two with the
    width of a head between them (Kimi-Linear)."""


class LinearSpec(_Spec):
    """The `model.linear:` section: sizes of `linear` layers, attention with a fixed decay."""

    heads: Heads
    """Heads of queries, keys and values each."""
    head_dim: Heads
    """Width of one head."""
    gate: Switch = True
    """The output is gated by a projection of its own."""
    chunk: Width = 256
    """Tokens that a kernel works on at once."""


class IndexerSpec(_Spec):
    """The `model.indexer:` section: what chooses the keys of `sparse` layers."""

    heads: Heads
    """Heads of the indexer."""
    head_dim: Heads
    """Width of one head of it."""
    top_k: Width
    """Keys that a query attends to."""
    block: Width = 1
    """Keys that are chosen together, by each head of the indexer for its share of the queries'
    heads (MiniMax-M3); 1: each key for itself, all heads together (DeepSeek-V3.2)."""


class Mamba1Spec(_Spec):
    """The `model.mamba1:` section: sizes of `mamba1` layers."""

    inner: Width
    """Channels, each with a state of its own."""
    state: Width
    """Elements of a channel's state."""
    dt_rank: Width
    """Width of the product in which the time steps are computed."""
    conv: Heads = 4
    """Taps of the short convolution."""


class ShortConvSpec(_Spec):
    """The `model.short_conv:` section: sizes of `conv` layers."""

    conv: Heads = 3
    """Taps of the convolution."""


class CompressedSpec(_Spec):
    """The `model.compressed:` section: `shared-window`, `csa` and `hca` layers (DeepSeek-V4)."""

    q_rank: Width
    """Width of the compressed queries."""
    window: Width
    """Tokens that a query sees uncompressed, its own among them."""
    groups: Heads = 1
    """Groups of heads whose outputs are projected apart."""
    out_rank: Width
    """Width of what a group is projected to."""
    rope_dim: Heads = 64
    """Elements of a head with rotary positions."""
    sparse_ratio: Heads = 4
    """Tokens of an entry of `csa` layers."""
    heavy_ratio: Heads = 128
    """Tokens of an entry of `hca` layers."""
    index_heads: LayersOr0 = 0
    """Heads of the indexer of `csa` layers, which need it."""
    index_dim: WidthOr0 = 0
    """Width of one head of it."""
    top_k: WidthOr0 = 0
    """Entries that a query of `csa` layers attends to."""


class StreamsSpec(_Spec):
    """The `model.residual_streams:` section: hyper-connections (mHC)."""

    count: Annotated[int, BeforeValidator(_whole), Field(ge=2, le=64)]
    """Residual streams, each as wide as the model."""
    sinkhorn_steps: NewtonSchulzSteps = 20
    """Turns in which rows and columns of the matrix that mixes them are normed."""


class CrossSpec(_Spec):
    """The `model.cross:` section: the context of `cross` and `...-cross` layers."""

    tokens: Width
    """Tokens of the context of one sequence."""
    width: Width
    """Elements of one of them."""


class EncoderSpec(_Spec):
    """The `model.encoder:` section: an encoder whose `encoder` layers stand before the decoder."""

    seq_len: Width
    """Tokens, or frames of sound, that it reads for one sequence of `training.seq_len`."""
    hidden: WidthOr0 = 0
    """Width of its layers; 0 here and below: that of the decoder."""
    heads: LayersOr0 = 0
    """Attention heads."""
    kv_heads: LayersOr0 = 0
    """Heads of keys and values."""
    head_dim: WidthOr0 = 0
    """Width of a head."""
    ffn: WidthOr0 = 0
    """Inner width of its MLP."""
    vocab: WidthOr0 = 0
    """Rows of an embedding of its own; 0: it has that of the decoder, or none."""
    positions: WidthOr0 = 0
    """Rows of a learned table of positions."""
    conv_channels: WidthOr0 = 0
    """Channels of sound (mel bins) that two convolutions make frames of; 0: it reads tokens."""


class OperatorsSpec(_Spec):
    """The `model.operators:` section: operators of the model's own code, in eager stacks."""

    activation: Annotated[str, BeforeValidator(_one_of("", "relu", "gelu_new"))] = ""
    """Of the MLP: `relu`, which keeps its output alone; `gelu_new`, a chain of operators; default:
    one operator that keeps its input."""
    norm: Annotated[str, BeforeValidator(_one_of("", "kernel", "scaled"))] = ""
    """`kernel`: one kernel (LayerNorm of PyTorch); `scaled`: a chain in fp32 that scales the
    input in 16 bits (T5); default: as the stack has it."""
    scores: Annotated[str, BeforeValidator(_one_of("", "16-bit", "math"))] = ""
    """Without a flash kernel: `16-bit`: softmax in the width of activations; `math`: PyTorch's
    own attention in fp32, cross attention in a kernel; default: as the stack has it."""
    copies_output: Switch = False
    """The output of a flash kernel is kept twice (Whisper)."""
    joint_qkv: Switch = False
    """Values are a view of one product with queries and keys, which is kept whole (ModernBERT)."""
    activation_dropout: Switch = False
    """Dropout stands before the MLP's last product."""
    attention_dropout: Switch = False
    """Dropout stands behind the softmax, where `scores` is stated."""
    layer_positions: Switch = False
    """Every layer looks up relative positions of its own (UMT5)."""
    qk_norm: Annotated[str, BeforeValidator(_one_of("", "head", "width"))] = ""
    """Price norms of queries and keys, of each `head` or over their `width`, in all stacks: what
    `details.qk_norm` says without a price."""


class PerLayerSpec(_Spec):
    """The `model.per_layer:` section: embeddings of each layer (Gemma 3n and 4)."""

    width: Width
    """Of a row of the table of one layer."""
    vocab: Width
    """Rows of such a table."""
    streams: Heads = 1
    """Residual streams, which each layer predicts and corrects (AltUp)."""
    laurel_rank: WidthOr0 = 0
    """Inner width of a product beside attention (LAuReL); 0: none."""


class RglruSpec(_Spec):
    """The `model.rglru:` section: sizes of `rglru` layers, gated linear recurrences (Griffin)."""

    width: Width
    """Channels, each with a state of one element."""
    heads: Heads
    """Blocks of the two gates; they divide the width."""
    conv: Heads = 4
    """Taps of the short convolution."""


class FactoredSpec(_Spec):
    """The `model.factored:` section: `factored` layers, with queries of two products (Step-3)."""

    q_rank: Width
    """Width between the two, which all heads share."""


class VisionSpec(_Spec):
    """The `model.vision:` section: a vision tower and its projector, on the first stage."""

    layers: Layers
    """Layers of the tower."""
    hidden: Width
    """Width of the tower."""
    heads: Heads
    """Attention heads of the tower."""
    ffn: Width
    """Inner width of its MLP."""
    gated: Switch = False
    """true: three MLP matrices; false: two."""
    patch: Heads
    """Side of a patch, pixels."""
    patches: Width
    """Patches of one image, before they are merged."""
    images: Heads = 1
    """Images of one sequence of `training.seq_len`, which counts their tokens."""
    merge: Heads = 1
    """Patches that make one token of the language model."""
    pooled: Switch = False
    """true: the projector takes the mean of merged patches; false: all of them side by side."""
    projector: list[Width] = Field(default_factory=list, max_length=16)
    """Inner widths of the projector, `[5120]` for two matrices; none: one matrix."""
    projector_bias: Switch = True
    """Its matrices have biases."""
    inner_projectors: LayersOr0 = 0
    """Further projectors, for outputs of inner layers (DeepStack of Qwen3-VL: 3)."""
    trained: Annotated[str, BeforeValidator(_one_of("all", "projector", "none"))] = "all"
    """`all`; `projector`: the tower is frozen; `none`: both are."""
    recompute: Switch = False
    """Layers of the tower keep their inputs alone and run again in the backward."""
    channels: Heads = 3
    """Colours of a pixel."""
    frames: Heads = 1
    """Frames of one patch (Qwen2.5-VL and Qwen3-VL: 2)."""
    positions: WidthOr0 = 0
    """Rows of a learned table of positions, stretched where images have more; 0: rotary ones."""
    norm: Annotated[str, BeforeValidator(_one_of("rmsnorm", "layernorm"))] = "layernorm"
    """`rmsnorm` or `layernorm`."""
    bias: Switch = True
    """Linear layers of the tower have biases."""
    block: WidthOr0 = 0
    """Patches of a block inside which layers attend; 0: all of an image."""
    full_every: LayersOr0 = 0
    """Every n-th layer attends to a whole image in spite of `block`; 0: none does."""


class DiffusionSpec(_Spec):
    """The `model.diffusion:` section: latents and text of a diffusion transformer.

    In place of a vocabulary. Latents and embeddings of text are computed beforehand: VAE and text
    encoders are no part of the job.
    """

    height: Width
    """Height of an image or a frame, pixels."""
    width: Width
    """Width of an image or a frame, pixels."""
    text_tokens: WidthOr0
    """Embeddings of a text."""
    text_width: WidthOr0
    """Width of one of them."""
    frames: Width = 1
    """Frames of a video; 1: images."""
    vae_factor: Heads = 8
    """Pixels of a latent in height and width."""
    vae_frames: Heads = 1
    """Frames of a latent behind the first one (Wan, HunyuanVideo: 4)."""
    channels: Heads = 16
    """Elements of a latent that enter, those of conditions included."""
    out_channels: WidthOr0 = 0
    """Elements of a latent that leave; 0: as many."""
    patch: Heads = 2
    """Side of a patch, latents."""
    patch_frames: Heads = 1
    """Frames of latents of a patch."""
    cross: Switch = False
    """true: `adaln` layers see text by cross attention; false: it stands in the sequence."""
    modulation: Annotated[str, BeforeValidator(_one_of("block", "shared", "table"))] = "block"
    """Scales, shifts and gates: a matrix in each `block`, one for all blocks (`shared`, Flux.2),
    or one for all and a `table` in each (PixArt, Wan, LTX)."""
    condition: WidthOr0 = 0
    """Width of the vector of step and pooled text; 0: `hidden`."""
    time_width: Width = 256
    """Sines and cosines that stand for the step."""
    pooled_width: WidthOr0 = 0
    """Width of a pooled embedding of the text; 0: none."""
    guidance: Switch = False
    """The strength of guidance is embedded as the step is."""
    text_layers: LayersOr0 = 1
    """Matrices that bring text to the width of the model."""
    text_norm: Switch = False
    """A norm of the text embeddings stands before them."""
    refiner_layers: LayersOr0 = 0
    """Layers of a small encoder that text runs through first (HunyuanVideo: 2)."""
    qk_norm: Annotated[
        str,
        BeforeValidator(_one_of("none", "head", "width", "head-unfused", "head-layernorm")),
    ] = "none"
    """Norms of queries and keys: `none`, by `head`, over the `width`, `head-unfused` (by head, of
    single operators in fp32: SD3.5, HunyuanVideo), or `head-layernorm` (CogVideoX)."""
    affine: Switch = False
    """Norms have weights and biases beside the modulation (CogVideoX)."""
    cross_norm: Switch = False
    """A norm with weights and biases stands before cross attention (Wan)."""
    wide_norms: Switch = False
    """Norms, modulation and gates run in fp32 (Wan)."""
    heads_first: Switch = False
    """Attention computes with heads before tokens and keeps its output twice (SD3, CogVideoX)."""


def _layer_kind(value: object) -> str:
    """Accept the name of a registered kind of layer, with the name of a variant behind an @."""
    if not isinstance(value, str):
        return _one_of(*LAYER_KINDS)(value)
    plain, at, variant = value.partition("@")
    plain = _one_of(*LAYER_KINDS)(KIND_ALIASES.get(plain, plain))
    if at and not has_variants(plain):
        raise BadValue(f"layers of kind {plain} have no variants", "register a kind for each")
    return f"{plain}@{_name(variant)}" if at else plain


LayerKindName = Annotated[str, BeforeValidator(_layer_kind)]


class LayerRunSpec(_Spec):
    """One entry of `model.layer_kinds:`: some layers of one kind, one after the other."""

    kind: LayerKindName
    """Kind of layer: `dense`, `moe`, a mixer and a feed such as `window+moe`, or another
    registered one (docs/extending.md)."""
    count: Layers
    """Layers of it."""

    @property
    def kinds(self) -> list[str]:
        """The kind of each layer."""
        return [self.kind] * self.count


class LayerPatternSpec(_Spec):
    """Another form of an entry: layers of several kinds, one of each, again and again."""

    pattern: list[LayerKindName] = Field(min_length=1, max_length=MAX_LAYERS)
    """The kind of each layer, such as `[window+moe, attention+moe]`."""
    repeat: Layers = 1
    """How many times they follow one another."""

    @property
    def kinds(self) -> list[str]:
        """The kind of each layer."""
        return self.pattern * self.repeat


def _run_form(value: object) -> str:
    is_pattern = isinstance(value, LayerPatternSpec)
    if isinstance(value, Mapping):
        is_pattern = "pattern" in value or "repeat" in value
    return "several-kinds" if is_pattern else "one-kind"


LayerRuns = Annotated[
    Annotated[LayerRunSpec, Tag("one-kind")] | Annotated[LayerPatternSpec, Tag("several-kinds")],
    Discriminator(_run_form),
]


def _positive(value: object) -> int:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if is_whole and value > 0 else 0  # type: ignore[operator,return-value]


def _count_of(run: object) -> int:
    """Return the layers of an entry of `layer_kinds`, 0 where it has none that count."""
    if not isinstance(run, Mapping):
        return 0
    if isinstance(pattern := run.get("pattern"), list):
        return len(pattern) * _positive(run.get("repeat", 1))
    return _positive(run.get("count"))


ROOT_SCORES = "sqrtsoftplus"
"""Scores of experts as roots of softplus (DeepSeek-V4)."""


class VariantSpec(_Spec):
    """One entry of `model.variants:`: what layers of kind `KIND@NAME` have of their own."""

    heads: Heads | None = None
    """Attention (query) heads."""
    kv_heads: Heads | None = None
    """Key/value heads."""
    head_dim: Heads | None = None
    """Width of a query or key head."""
    value_dim: Heads | None = None
    """Width of a value head."""
    ffn: Width | None = None
    """Inner width of the MLP."""
    window: Width | None = None
    """Tokens that a query of `window` layers sees, its own among them."""
    kv_shared: Switch = False
    """Keys and values are those of an earlier layer: nothing is projected to them."""
    keys_as_values: Switch = False
    """One projection gives keys and values."""
    reused: Switch = False
    """Such layers run the weights of earlier layers again (looped and shared layers): they have
    parameters once, and work and activations as often as they run."""

    @property
    def sizes(self) -> dict[str, int]:
        """What it says, by key."""
        return {name: int(value) for name, value in self if value}


class DetailsSpec(_Spec):
    """The `model.details:` section: what makes the model and changes no figure of a plan.

    Left out, a field is the framework's own choice. Emitted files carry what their framework can
    say and name the rest.
    """

    rotary_base: Real | None = None
    """Base of the rotary positions (rope_theta)."""
    rotary_percent: Share | None = None
    """Share of a head that is rotated, 0 to 1."""
    rope_scaling: (
        Annotated[str, BeforeValidator(_one_of("linear", "llama3", "yarn", "dynamic", "longrope"))]
        | None
    ) = None
    """How rotary positions are stretched: `linear`, `llama3`, `yarn`, `dynamic` or `longrope`."""
    rope_scaling_factor: Real | None = None
    """By how much they are stretched."""
    rope_original_positions: Width | None = None
    """Tokens of a sequence before they were stretched."""
    rope_low_frequency: Real | None = None
    """llama3: low_freq_factor."""
    rope_high_frequency: Real | None = None
    """llama3: high_freq_factor."""
    rope_beta_fast: Real | None = None
    """yarn: rotations from which a frequency stays as it is."""
    rope_beta_slow: Real | None = None
    """yarn: rotations up to which a frequency is stretched in full."""
    rope_mscale: Real | None = None
    """yarn: factor of the logarithm in the scale of rotated queries and keys."""
    rope_mscale_all_dim: Real | None = None
    """yarn: the same for whole queries and keys."""
    rope_truncate: Switch | None = None
    """yarn: the bounds between the two kinds of frequencies are whole numbers."""
    no_rope_every: Layers | None = None
    """Every n-th layer has no positions."""
    norm_epsilon: Real | None = None
    """Epsilon of the norms."""
    qk_norm: Annotated[str, BeforeValidator(_one_of("head", "width", "l2"))] | None = None
    """Queries and keys are normalised: each `head`, the whole `width`, or by their `l2` norm
    without weights. With `mla` the latents, as `head`."""
    qkv_bias: Switch | None = None
    """Queries, keys and values have biases; default: as `bias`."""
    attention_out_bias: Switch | None = None
    """The attention output has a bias; default: as `bias`."""
    activation: (
        Annotated[
            str,
            BeforeValidator(
                _one_of(
                    "silu", "gelu", "gelu_tanh", "relu", "squared_relu", "clamped_swiglu", "xielu"
                )
            ),
        ]
        | None
    ) = None
    """Of the MLP: `silu`, `gelu`, `gelu_tanh`, `relu`, `squared_relu`, `xielu`, or
    `clamped_swiglu` as in gpt-oss; default: `silu` when gated, else `gelu`."""
    window: Width | None = None
    """Tokens that a layer with a window attends to, its own among them; priced as all."""
    full_attention_every: Layers | None = None
    """Every n-th layer attends to all tokens in spite of `window`; default: none does."""
    attention_sinks: Switch | None = None
    """Every head has a learned sink beside the scores."""
    attention_chunk: Width | None = None
    """Tokens of a chunk that local layers attend in (Llama 4); priced as all."""
    attention_temperature_from: Width | None = None
    """Position from which queries of layers without positions grow by a temperature."""
    attention_soft_cap: Real | None = None
    """Attention scores are capped to this by a tanh."""
    attention_scale: Real | None = None
    """Factor of the attention scores; default: one over the root of `head_dim`."""
    qkv_clip: Real | None = None
    """Queries, keys and values are clipped to this."""
    alibi: Switch | None = None
    """Positions are a bias of the scores by distance (ALiBi) in place of rotary ones."""
    local_rotary_base: Real | None = None
    """Base of the rotary positions in layers with a window, where it is another one."""
    parallel_block: Switch | None = None
    """Attention and MLP stand side by side on one input, in place of one after the other."""
    post_norms: Annotated[str, BeforeValidator(_one_of("instead", "also"))] | None = None
    """Norms after attention and MLP, `instead` of those before them or `also`."""
    norm_one_plus: Switch | None = None
    """Norms multiply by one plus their weights, which start at zero."""
    embedding_norm: Switch | None = None
    """The embeddings are normalised."""
    embedding_scale: Real | None = None
    """Factor of the embeddings."""
    residual_scale: Real | None = None
    """Factor of what attention and MLP add to the residual stream."""
    logit_scale: Real | None = None
    """Factor of the logits."""
    logit_soft_cap: Real | None = None
    """Logits are capped to this by a tanh."""
    head_bias: Switch | None = None
    """The head has a bias."""
    other_parts: Words | None = None
    """What else the model has and no other field says, in words."""
    init_std: Real | None = None
    """Standard deviation of the weights at the start."""
    router_scores: (
        Annotated[str, BeforeValidator(_one_of("softmax", "sigmoid", ROOT_SCORES))] | None
    ) = None
    """Scores of the router: `softmax` or `sigmoid`."""
    router_norm_topk: Switch | None = None
    """The scores of the chosen experts are made to sum to one."""
    router_scale: Real | None = None
    """Factor of the routed experts' output."""
    router_bias: Switch | None = None
    """A bias for the choice of experts alone, moved by their load (arXiv 2408.15664)."""
    aux_loss: Real | None = None
    """Coefficient of the loss that balances experts."""
    aux_loss_scope: Annotated[str, BeforeValidator(_one_of("batch", "sequence"))] | None = None
    """What that loss balances: a micro-`batch` or each `sequence`; default: `batch`."""
    shared_expert_gate: Switch | None = None
    """The shared expert's output has a gate."""

    def stated(self) -> dict[str, bool | float | int | str]:
        """Return the fields that are set, in the order of the file."""
        return self.model_dump(exclude_none=True)


NO_DETAILS = DetailsSpec()
"""Details of a model file that states none."""
OTHER_MODEL = (
    "attention_chunk",
    "attention_temperature_from",
    "attention_soft_cap",
    "attention_scale",
    "qkv_clip",
    "alibi",
    "local_rotary_base",
    "parallel_block",
    "post_norms",
    "norm_one_plus",
    "embedding_norm",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
    "logit_soft_cap",
    "head_bias",
    "other_parts",
)
"""Fields of `model.details` without which a framework trains another model, where they are set."""
EXPERT_DETAILS = (
    "router_scores",
    "router_norm_topk",
    "router_scale",
    "router_bias",
    "aux_loss",
    "aux_loss_scope",
    "shared_expert_gate",
)
"""Fields of `model.details` that mean nothing without `model.moe`."""


class ModelSpec(_Spec):
    """The `model:` section: a decoder-only transformer."""

    @model_validator(mode="before")
    @classmethod
    def _counted_layers(cls, value: object) -> object:
        """Take the sum of `layer_kinds` for `layers` where that is left out."""
        if isinstance(value, Mapping) and "layers" not in value:
            runs = value.get("layer_kinds")
            counts = [_count_of(run) for run in runs] if isinstance(runs, list) else []
            if counts and all(counts):
                return {**value, "layers": sum(counts)}
        return value

    name: Name | None = None
    """Name in tables and file names; default: the name of the file."""
    layers: Layers
    """Transformer layers."""
    hidden: Width
    """Width of the residual stream."""
    heads: Heads
    """Attention (query) heads."""
    kv_heads: Heads | None = None
    """Key/value heads; default: `heads` (no grouping)."""
    head_dim: Heads | None = None
    """Width of one head; default: hidden / heads."""
    value_dim: Heads | None = None
    """Width of a value head without latent attention; default: `head_dim`."""
    ffn: Width | None = None
    """Inner width of the MLP; default for a plain MLP: 4 * hidden, must be given when gated."""
    gated: Switch
    """true: three MLP matrices (SwiGLU); false: two (GeLU)."""
    vocab: WidthOr0
    """Tokens in the vocabulary, before padding; none with a `diffusion` section."""
    tied: Switch
    """true: the output head reuses the input embedding."""
    norm: Annotated[str, BeforeValidator(_one_of("rmsnorm", "layernorm"))] = "rmsnorm"
    """`rmsnorm` or `layernorm`."""
    bias: Switch = False
    """Linear layers have biases."""
    positions: Annotated[str, BeforeValidator(_one_of("rope", "learned"))] = "rope"
    """`rope` or `learned`."""
    max_positions: WidthOr0 = 0
    """Rows of the learned position table; 0: the sequence length."""
    flash_attention: Switch = True
    """A fused attention kernel is used (no score matrix in memory)."""
    attention_gate: Switch = False
    """The output of attention is gated by a projection of its own, as wide as the queries."""
    dropout: Switch = False
    """Hidden and attention dropout are on."""
    padded_vocab: WidthOr0 = 0
    """Vocabulary rows as allocated; 0: padded to a multiple of `vocab_multiple` * tp."""
    vocab_multiple: Width = 128
    """Megatron's --make-vocab-size-divisible-by."""
    moe: MoeSpec | None = None
    """Routed experts; none: a dense model."""
    mla: MlaSpec | None = None
    """Multi-head latent attention, in place of `kv_heads` and `head_dim`."""
    mtp_layers: LayersOr0 = 0
    """Modules of multi-token prediction: further layers, each with the head again."""
    head_transform: Switch = False
    """A linear layer hidden x hidden and a norm stand before the head (BERT, ModernBERT)."""
    layer_kinds: list[LayerRuns] | None = None
    """Kinds of layers in model order, `[{kind: dense, count: 3}, {kind: moe, count: 58}]` or
    `[{pattern: [window+moe, attention+moe], repeat: 18}]`; default: dense layers, and expert
    layers where `moe` says so. They add up to `layers`."""
    variants: dict[Name, VariantSpec] = Field(default_factory=dict)
    """Sizes of layers that differ from the model's, by name: `{wide: {ffn: 8192, heads: 64}}` are
    those of layers of kind `dense@wide`."""
    window: WindowSpec | None = None
    """Attention over a window, where `layer_kinds` has it."""
    chunk: ChunkSpec | None = None
    """Attention inside chunks, where `layer_kinds` has it."""
    mamba2: Mamba2Spec | None = None
    """State-space layers, where `layer_kinds` has them."""
    delta_net: DeltaNetSpec | None = None
    """Delta nets, where `layer_kinds` has them."""
    linear: LinearSpec | None = None
    """Linear attention, where `layer_kinds` has it."""
    indexer: IndexerSpec | None = None
    """The indexer of sparse attention, where `layer_kinds` has it."""
    mamba1: Mamba1Spec | None = None
    """State-space layers of the first Mamba, where `layer_kinds` has them."""
    short_conv: ShortConvSpec | None = None
    """Gated short convolutions, where `layer_kinds` has them."""
    encoder: EncoderSpec | None = None
    """An encoder whose layers stand before the decoder's, in `layer_kinds` too."""
    operators: OperatorsSpec | None = None
    """Operators of the model's own code, in eager stacks; none: as the stack has them."""
    compressed: CompressedSpec | None = None
    """Attention over a window and compressed keys, where `layer_kinds` has it."""
    residual_streams: StreamsSpec | None = None
    """Several residual streams, which every sublayer reads as one and writes to all."""
    cross: CrossSpec | None = None
    """The context of cross attention, where `layer_kinds` has it."""
    rglru: RglruSpec | None = None
    """Gated linear recurrences, where `layer_kinds` has them."""
    factored: FactoredSpec | None = None
    """Attention with factored queries, where `layer_kinds` has it."""
    per_layer: PerLayerSpec | None = None
    """Embeddings of each layer, where `layer_kinds` has `injected` ones."""
    vision: VisionSpec | None = None
    """A vision tower and its projector before the language model; none: text alone."""
    diffusion: DiffusionSpec | None = None
    """Latents and text of a diffusion transformer, in place of a vocabulary."""
    details: DetailsSpec = NO_DETAILS
    """What changes the model and no figure of a plan: rotary base, epsilon, router."""


Recipes = str | list[str]


class MuonSpec(_Spec):
    """The `training.muon:` section: how Muon orthogonalizes momenta."""

    num_ns_steps: NewtonSchulzSteps = 5
    """Newton-Schulz steps."""
    tp_mode: Annotated[str, BeforeValidator(_one_of(*TP_MODES))] = "duplicated"
    """What is done with a matrix that tensor parallelism cuts: `duplicated`, `distributed`,
    `blockwise`, or `layer-sharded`."""
    use_syrk: Switch = False
    """Symmetric products compute half of the result."""
    scalar_optimizer: Annotated[str, BeforeValidator(_one_of(*SCALAR_OPTIMIZERS))] = "adam"
    """What updates embeddings, head and vectors: `adam` or `lion`."""
    param_layout: Switch = True
    """Shards aligned to whole matrices, gradients reduce-scattered; off: gradients all-reduced,
    updated weights gathered."""
    mamba_in_proj: Switch = True
    """Mamba-2's projection to all its inputs is orthogonalized; off: it goes to the scalar
    optimizer, as Megatron-LM does after release 0.19."""


def _names(value: object) -> list[object]:
    """Accept one name, several with commas, or a list of them."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    if isinstance(value, list) and value:
        return list(value)
    raise BadValue(f"expected names, got {shown_value(value)}", "such as [q, v] or all-linear")


class LoraSpec(_Spec):
    """The `training.lora:` section: adapters beside frozen weights, of tasks lora and qlora."""

    rank: Annotated[int, BeforeValidator(_whole), Field(ge=1, le=65536)] = 16
    """Rank of the adapters."""
    alpha: Real | None = None
    """Scale of the adapters times their rank; default: twice the rank."""
    targets: Annotated[list[Name], BeforeValidator(_names)] = ["all-linear"]
    """Linear layers with adapters: `q`, `k`, `v`, `o`, `gate`, `up`, `down`, `experts`, names of
    Hugging Face (`q_proj`) or of Megatron-LM (`linear_qkv`), or `all-linear`: each but experts."""
    dropout: Share = 0.0
    """Of the adapters' inputs."""
    base: Annotated[str, BeforeValidator(_one_of(*BASES))] | None = None
    """How frozen linear layers are held: `bf16`, `int8`, `nf4` (scales quantized again) or
    `nf4-plain`; default: bf16, of qlora nf4."""


def _pairs(value: object) -> list[tuple[int, int]]:
    """Accept a list of [length, how many]."""
    good = (
        isinstance(value, list)
        and value
        and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in value)
    )
    if not good:
        raise BadValue(
            f"expected pairs of length and number, got {shown_value(value)}",
            "such as [[512, 900], [2048, 100]]",
        )
    assert isinstance(value, list)  # as `good` says
    pairs = [(_whole(length), _whole(count)) for length, count in value]
    if any(not 1 <= length <= 10_000_000 or not 1 <= n <= 10**12 for length, n in pairs):
        raise BadValue("a length or a number is out of range", "both from 1 on")
    return pairs


class LengthsSpec(_Spec):
    """The `training.data.lengths:` section: lengths of samples, tokens."""

    mean: Real | None = None
    """Mean length."""
    p95: Real | None = None
    """95 of 100 samples are no longer; with the mean a log-normal distribution."""
    max: Real | None = None
    """The longest, at which the distribution is cut; default: the sequence length."""
    histogram: Annotated[list[tuple[int, int]], BeforeValidator(_pairs)] | None = None
    """Counted lengths in place of that: `[[512, 900], [2048, 100]]`."""


class DataSpec(_Spec):
    """The `training.data:` section: what sequences hold."""

    packing: Annotated[str, BeforeValidator(_one_of(*PACKINGS))] = "masked"
    """`masked` (samples of a pack do not see one another), `unmasked`, or `none`: one sample a
    sequence, padded."""
    lengths: LengthsSpec
    """Lengths of the samples."""


class TrainingSpec(_Spec):
    """The `training:` section: the job."""

    seq_len: Width
    """Tokens in one sequence."""
    global_batch: Width
    """Sequences per optimizer step, over all devices."""
    precision: Annotated[Recipes, BeforeValidator(_recipes)] = "bf16"
    """Numeric recipe, see `costmodels.precision`; a list leaves the choice open: `[bf16,
    fp8-tensorwise]`."""
    optimizer: Annotated[str, BeforeValidator(_one_of(*OPTIMIZERS))] = "adam"
    """`adam` (AdamW counts the same), `sgd`, `lion`, `adam-8bit`, `adafactor`, `muon`, `soap`."""
    tokens: Tokens | None = None
    """Tokens of the whole run, such as 15e12 or 15T; only for the days in the table."""
    grad_dtype: Annotated[str, BeforeValidator(_one_of(*GRAD_DTYPES))] | None = None
    """Width of the gradients in memory and on the wire, `fp32` or `bf16`; default: fp32, or as the
    name of the precision says."""
    optimizer_states: Annotated[str, BeforeValidator(_one_of(*OPTIMIZER_STATES))] = "fp32"
    """`fp32`, or `bf16-moments`: both moments of Adam in bf16."""
    fp8_param_gather: Switch = False
    """Weights of linear layers are held and gathered quantised (fp8 or fp4)."""
    fp8_attention: Switch = False
    """The attention core runs in fp8."""
    fp8_output: Switch = False
    """The output head runs in fp8 (mxfp8 alone)."""
    bf16_layers: Annotated[tuple[LayersOr0, LayersOr0], BeforeValidator(_two)] = (0, 0)
    """Layers at the start and at the end whose linear layers stay in bf16: `[1, 1]`."""
    muon: MuonSpec = MuonSpec()
    """How Muon orthogonalizes, with optimizer `muon` alone."""
    task: Annotated[str, BeforeValidator(_one_of(*TASKS))] = PRETRAIN
    """`pretrain`, `sft` (all weights, as `pretrain`), `lora` or `qlora` (adapters alone), `dpo`
    (all weights, beside a reference; each of a pair is a sequence)."""
    reference: Annotated[str, BeforeValidator(_one_of(*REFERENCES))] | None = None
    """Of preferences, with tasks `dpo`, `lora` and `qlora`: `memory` (a frozen model runs forward
    too; adapters are off for that), `precomputed` or `none`; default: none, of dpo memory."""
    lora: LoraSpec = LoraSpec()
    """Adapters, with tasks `lora` and `qlora`."""
    data: DataSpec | None = None
    """What sequences hold; without it each is one sample that fills it."""

    @property
    def precisions(self) -> tuple[str, ...]:
        """The recipes in the order of `PRECISIONS`, whatever the order in the file."""
        named = self.precision if isinstance(self.precision, list) else [self.precision]
        return tuple(sorted(named, key=PRECISIONS.index))


def _axis_value(value: object) -> object:
    """Refuse what is no value of an axis in one sentence; a union names each of its members."""
    if isinstance(value, int | float | str):
        return value
    stated_value = "nothing" if value is None else shown_value(value)
    raise BadValue(
        f"expected a number or a word, got {stated_value}", "for example 8, or leave it out"
    )


AxisValue = Annotated[int | str, BeforeValidator(_axis_value)]
Axes = dict[str, AxisValue]


def _axis_lists(value: object) -> object:
    """Accept one value in place of a list of values."""
    if not isinstance(value, Mapping):
        return value
    return {axis: x if isinstance(x, list) else [x] for axis, x in value.items()}


class SearchSpec(_Spec):
    """The `search:` section: what `planner solve` searches for; the command line wins."""

    pin: Axes = Field(default_factory=dict)
    """One value an axis, as `--pin`: `{tp: 8, devices: 512}`."""
    only: Annotated[dict[str, list[AxisValue]], BeforeValidator(_axis_lists)] = Field(
        default_factory=dict
    )
    """Allowed values of an axis, as `--only`: `{recompute: [none, full]}`."""
    max: Axes = Field(default_factory=dict)
    """Largest value of an axis, as `--max`."""
    framework: str = ""
    """As `--framework`: `megatron`, `deepspeed`, `torchtitan`, `fsdp2`, `bridge` or `any`."""
    allow: list[str] = Field(default_factory=list)
    """As `--allow`: `[tp-across-domains]`."""
    pool: str = ""
    """Pool of the cluster, as `--pool`."""
    pools: str = ""
    """As `--pools`: `apart`, or `together` for one job over several pools too."""
    objective: str = ""
    """As `--objective`: what is to be best."""
    within: Factor | None = None
    """As `--within`, for the objective `memory`."""
    memory_margin: Margin | None = None
    """As `--memory-margin`: fraction of the memory that the first plan leaves free."""
    deadline: str = ""
    """As `--deadline`: longest run, such as `30d`."""
    budget: str | float = ""
    """As `--budget`: most money for the run, US dollars, such as `2.5M`."""
    step_limit_s: Seconds | None = None
    """As `--step-limit`: longest step, seconds."""
    pareto: list[str] = Field(default_factory=list)
    """As `--pareto`: `[step_time, memory]`."""
    time_limit_s: Seconds | None = None
    """As `--time-limit`: the search stops after so many seconds."""
    top: Layers | None = None
    """As `--top`: plans in the answer."""


def _section(data: object, name: str) -> Mapping[str, object]:
    """Return a section of a document, empty where it is none."""
    value = data.get(name) if isinstance(data, Mapping) else None
    return value if isinstance(value, Mapping) else {}


class ModelFile(_Spec):
    """A model file."""

    model: ModelSpec
    """The architecture."""
    training: TrainingSpec
    """The job."""
    search: SearchSpec | None = None
    """What to search for, where the command line says nothing."""

    @model_validator(mode="before")
    @classmethod
    def _of_latents(cls, data: object) -> object:
        """Fill in what a `diffusion` section says: no vocabulary, and the length of a sequence."""
        model, job = (_section(data, name) for name in ("model", "training"))
        if not isinstance(model.get("diffusion"), Mapping) or not isinstance(data, Mapping):
            return data
        filled = {**data, "model": {"vocab": 0, "tied": False, **model}}
        try:
            sizes = DiffusionSpec.model_validate(model["diffusion"])
        except ValueError:  # said with its line where the section is read
            return filled
        tokens = DiffusionShape(**sizes.model_dump()).tokens
        return {**filled, "training": {"seq_len": tokens, **job}} if tokens else filled


class AcceleratorSpec(_Spec):
    """An accelerator spelled out: a catalogue entry with some figures replaced."""

    like: Name
    """Catalogue name that gives every figure not stated here."""
    name: Name | None = None
    """Name in tables; default: `<like>-custom`."""
    memory: Memory | None = None
    """Memory that the driver reports, such as `80 GiB`."""
    hbm_bandwidth: Bandwidth | None = None
    """Memory bandwidth, such as `3.35 TB/s`."""
    peaks: dict[Annotated[str, BeforeValidator(_one_of(*PEAK_NAMES))], Rate] = Field(
        default_factory=dict
    )
    """Dense peaks (without sparsity) by precision, such as `bf16: 989 TFLOP/s`."""
    scale_up_bandwidth: Bandwidth | None = None
    """Bandwidth inside the scale-up domain, one-way per device, such as `450 GB/s`."""
    in_switch_bandwidth: Bandwidth | None = None
    """Bus bandwidth of an all-reduce that the scale-up switches sum, such as `480 GB/s`."""
    power: Power | None = None
    """Power of the board, such as `700 W`; for the energy of a run alone. What an owner sets below
    that is `power_limit` of the pool."""


class PoolSpec(_Spec):
    """One entry of `pools:`: identical nodes."""

    name: Name | None = None
    """Name in tables; default: the accelerator's."""
    instance: Name | None = None
    """Server or cloud machine of the catalogue, such as `p5.48xlarge`: says the accelerator, the
    devices of a node and its network ports."""
    accelerator: (
        Annotated[
            Annotated[Name, Tag("name")] | Annotated[AcceleratorSpec, Tag("inline")],
            Discriminator(_accelerator_kind),
        ]
        | None
    ) = None
    """Catalogue name (`planner catalog list`), or a mapping with `like:` and other figures; needed
    where there is no `instance`."""
    nodes: Nodes
    """Nodes in the pool."""
    free_nodes: Nodes | None = None
    """Nodes that are free; plans use no others. Default: all."""
    free_devices: list[FreeDevices] | None = Field(default=None, max_length=100_000)
    """Free devices of every node, such as `[8, 8, 4, 0]`; only nodes that are free as a whole
    count, unless `partial_nodes` is set."""
    partial_nodes: Switch = False
    """With `free_devices`: use nodes in part, the same number of devices and their share of the
    ports on each: as many as use most devices, and `solve` tries every other number too."""
    hosts: HostList | None = None
    """Names of the nodes that plans use, in network order, such as `n[001-016],n020`; beside
    `free_devices` of all nodes. Only for launchers: no figure depends on it."""
    accelerators_per_node: PerNode | None = None
    """Devices in one node; default: the accelerator's usual platform, 4 in an NVL72, mostly 8."""
    scale_up_domain: Nodes | None = None
    """Devices joined by NVLink or its like; default: the catalogue's, at most one node unless the
    part comes in racks (72 for `gb200-186gb`)."""
    slice: SliceShape | None = None
    """Chips along the axes of a slice of TPUs, such as `4x4x8`, in any order; default: the usual
    shape of so many. Says `scale_up_domain` too."""
    segment: Nodes | None = None
    """Devices that jobs use of every such domain of several nodes, such as 64 of 72 for groups of
    16, 32 and 64; default: all, and `solve` tries fewer too where such groups would not fit."""
    scale_up_latency: Latency | None = None
    """Time of one hop inside the domain, such as `0.6 us`; the link's other latencies follow."""
    sums_in_switch: Switch | None = None
    """Scale-up switches sum all-reduces (NVLS); default: where the catalogue says that they do."""
    nics_per_node: PerNode | None = None
    """Network ports per node for training traffic; default: one per device, or as on the
    accelerator's usual platform when `nic` is left out too."""
    nic: Name | None = None
    """Catalogue link of the ports; default: that of the accelerator's usual platform."""
    nic_speed: Bandwidth | None = None
    """Speed of one port, one-way, when it is not that of the link, such as `400 Gb/s`."""
    nic_latency: Latency | None = None
    """Time of one hop between domains, such as `2.7 us`; the link's other latencies follow."""
    power_limit: Power | None = None
    """Power that the owner lets each device draw, such as `700 W`, where that is below the
    board's: products and attention then run at (limit / board)^0.6 of their rates. Default: all
    of it. Leave it out where a calibration holds rates that were measured under the limit."""
    memory_margin: Size = 2 * units.GIB
    """Memory per device that a plan leaves free for what the framework cannot use."""
    host_memory: Memory | None = None
    """Memory of a node's CPUs, such as `2 TB`, for optimizers on the host; default: that of the
    accelerator's usual platform."""
    host_memory_bandwidth: Bandwidth | None = None
    """Bandwidth of that memory by its data sheet, such as `600 GB/s`; default likewise."""
    host_link: Bandwidth | None = None
    """What a device reaches to and from the host, one-way, such as `50 GB/s` over PCIe 5 x16;
    default likewise."""
    price_per_hour: Price | None = None
    """Price of one accelerator for an hour in US dollars, such as 2.95; for what a run costs."""
    device_mtbf: Lifetime | None = None
    """Mean time between failures of one accelerator of this pool, where it is not that of
    `operations`: spot nodes, which are taken away."""


class TierSpec(_Spec):
    """One entry of `fabric.tiers`: a level of switches, the lowest first."""

    name: Name
    """Name in tables: leaf, pod, ..."""
    nodes: Nodes
    """Nodes under one switch group of this tier."""
    oversubscription: Ratio = 1.0
    """Bandwidth below over bandwidth above: 1 is non-blocking; 7, 7:1 and 1:7 are the same."""
    sharp: Switch = False
    """Its switches sum all-reduces (InfiniBand SHARP)."""


class FabricSpec(_Spec):
    """The `fabric:` section: the network between nodes."""

    tiers: list[TierSpec] = Field(default_factory=list, max_length=8)
    """Levels from the lowest up; none: one non-blocking switch."""
    rail_optimized: Switch = True
    """Port i of every node goes to switch i."""
    sharp: Switch = False
    """All switches sum all-reduces (InfiniBand SHARP)."""


def _two_pools(value: object) -> list[object]:
    """Accept a list of two names."""
    if isinstance(value, list | tuple) and len(value) == 2:
        return list(value)
    raise BadValue(f"expected two pools, got {shown_value(value)}", "such as [h100, a100]")


class PoolLinkSpec(_Spec):
    """One entry of `links:`: what joins two pools that the fabric does not join as its own nodes.

    Only plans over both pools (`--pools together`) use it.
    """

    between: Annotated[list[Name], BeforeValidator(_two_pools)]
    """Names of the two pools, in either order."""
    bandwidth: Bandwidth | None = None
    """What all traffic between the two shares, one-way, such as `400 GB/s`; or `oversubscription`
    in its place."""
    oversubscription: Ratio | None = None
    """What all ports of the smaller pool send over the bandwidth of the link: `4`, `4:1`."""
    latency: WireLatency | None = None
    """Time of one message, such as `8 us`; default: that of the slower of the two pools' ports. A
    `wan` link states its own."""
    wan: Switch = False
    """The pools are at different places."""
    price_per_gb: TrafficPrice | None = None
    """US dollars for 1e9 bytes that cross, in either direction; default: free."""


class OperationsSpec(_Spec):
    """The `operations:` section: what running costs and how often it fails.

    No step time depends on it; defaults with their sources stand in
    `hardware/data/operations.yaml`.
    """

    power_overhead: Factor | None = None
    """Power of a node at the plug over the power limits of its accelerators; default: 1.3."""
    pue: Factor | None = None
    """Power of the building over the power of its machines; default: 1.2."""
    device_mtbf: Lifetime | None = None
    """Mean time between failures that end a run, of one accelerator; default: 50,677 h, as of
    Llama 3's run."""
    restart: Duration | None = None
    """From a failure to the first step after it; default: 10 min."""
    checkpoint_bandwidth: Bandwidth | None = None
    """What the storage takes from all devices together, such as `2 TB/s`; default: 122 MB/s for
    every device in use."""
    checkpoint_time: Duration | None = None
    """How long a checkpoint stops training, where it is known."""


class ClusterFile(_Spec):
    """A cluster file."""

    name: Name | None = None
    """Name in tables; default: the name of the file."""
    pools: list[PoolSpec] = Field(min_length=1)
    """The inventory. A plan uses one pool, unless `--pools together` joins them; `solve` ranks the
    plans of all."""
    fabric: FabricSpec = FabricSpec()
    """The network."""
    links: list[PoolLinkSpec] = Field(default_factory=list, max_length=1000)
    """Links between pools, where the fabric does not join them as its own nodes."""
    operations: OperationsSpec = OperationsSpec()
    """Power, failures and checkpoints."""
