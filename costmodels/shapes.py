"""What is trained: the architecture and the job, as plain numbers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from costmodels.data.lengths import SampleData
from costmodels.optimizers.records import USUAL_MUON, MuonOptions
from costmodels.precision import Numerics, Recipe, recipe_of
from costmodels.tuning.records import DPO, PRETRAIN, TuningJob

DENSE, MOE = "dense", "moe"
"""The kinds of layers of a model that states no others."""


@dataclass(frozen=True, slots=True)
class LayerRun:
    """Some layers of one kind, one after the other."""

    kind: str
    """Its name in `costmodels.layers.kinds`."""
    count: int
    routed: bool = False
    """They have routed experts."""


@dataclass(frozen=True, slots=True)
class WindowShape:
    """Attention over a window (`window` layers)."""

    size: int
    """Tokens that a query sees, its own among them."""


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """Attention inside chunks (`chunk` layers)."""

    size: int
    """Tokens of a chunk."""


@dataclass(frozen=True, slots=True)
class Mamba2Shape:
    """State-space layers (`mamba2` layers)."""

    heads: int
    head_dim: int
    groups: int
    """Of heads that share the inputs and outputs of their states."""
    state: int
    """Elements of the state for each element of a head."""
    conv: int
    """Taps of the short convolution."""
    chunk: int
    """Tokens that a kernel works on at once."""

    @property
    def inner(self) -> int:
        """Inner width: heads * head_dim."""
        return self.heads * self.head_dim


@dataclass(frozen=True, slots=True)
class DeltaNetShape:
    """Delta nets (`gdn` and `kda` layers)."""

    k_heads: int
    """Heads of queries and of keys."""
    v_heads: int
    """Heads of values, a multiple of them."""
    k_dim: int
    v_dim: int
    conv: int
    """Taps of the short convolution."""
    chunk: int
    """Tokens that a kernel works on at once."""
    full_gates: bool = False
    """Decays and output gate of `kda` are each one matrix, not two with a narrow width between."""

    @property
    def keys(self) -> int:
        """Width of all keys."""
        return self.k_heads * self.k_dim

    @property
    def values(self) -> int:
        """Width of all values."""
        return self.v_heads * self.v_dim


@dataclass(frozen=True, slots=True)
class LinearShape:
    """Linear attention with a fixed decay (`linear` layers)."""

    heads: int
    head_dim: int
    gate: bool
    """The output is gated by a projection of its own."""
    chunk: int
    """Tokens that a kernel works on at once."""

    @property
    def width(self) -> int:
        """Width of queries, keys and values each."""
        return self.heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Mamba1Shape:
    """State-space layers of the first Mamba (`mamba1` layers)."""

    inner: int
    """Channels, each with a state of its own."""
    state: int
    """Elements of a channel's state."""
    dt_rank: int
    """Width of the product in which the time steps are computed."""
    conv: int
    """Taps of the short convolution."""


@dataclass(frozen=True, slots=True)
class ShortConvShape:
    """Gated short convolutions (`conv` layers)."""

    conv: int
    """Taps."""


@dataclass(frozen=True, slots=True)
class RglruShape:
    """Gated linear recurrences (`rglru` layers)."""

    width: int
    """Channels, each with a state of one element."""
    heads: int
    """Blocks of the two gates."""
    conv: int
    """Taps of the short convolution."""

    @property
    def block(self) -> int:
        """Width of a block of a gate."""
        return self.width // self.heads


@dataclass(frozen=True, slots=True)
class IndexerShape:
    """What chooses the keys of sparse attention (`sparse` layers)."""

    heads: int
    head_dim: int
    top_k: int
    """Keys that a query attends to."""
    block: int = 1
    """Keys that are chosen together, each head of the indexer choosing for its share of the
    queries' heads; 1: each key for itself, all heads together."""


@dataclass(frozen=True, slots=True)
class FactoredShape:
    """Attention whose queries are two products (`factored` layers)."""

    q_rank: int
    """Width between the two."""


@dataclass(frozen=True, slots=True)
class CompressedShape:
    """Attention over a window and compressed keys (`shared-window`, `csa` and `hca` layers)."""

    q_rank: int
    """Width of the compressed queries."""
    window: int
    """Tokens that a query sees uncompressed, its own among them."""
    groups: int
    """Of heads whose outputs are projected apart."""
    out_rank: int
    """Width of what a group is projected to."""
    rope_dim: int = 64
    """Elements of a head with rotary positions."""
    sparse_ratio: int = 4
    """Tokens of an entry of `csa` layers."""
    heavy_ratio: int = 128
    """Tokens of an entry of `hca` layers."""
    index_heads: int = 0
    """Heads of the indexer of `csa` layers; so on its width, and the entries of a query."""
    index_dim: int = 0
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class StreamsShape:
    """Several residual streams, which every sublayer reads as one and writes to all."""

    count: int
    sinkhorn_steps: int = 20
    """Turns in which rows and columns of the matrix that mixes the streams are normed."""


@dataclass(frozen=True, slots=True)
class CrossShape:
    """What `cross`, `causal-cross` and `bidirectional-cross` layers attend to: a context."""

    tokens: int
    """Of the context of one sequence."""
    width: int
    """Elements of one of them."""


@dataclass(frozen=True, slots=True)
class EncoderShape:
    """An encoder in front of a decoder: its `encoder` layers and its own ends.

    Sizes of a layer that are 0 are those of the decoder.
    """

    seq_len: int
    """Tokens, or frames, that it reads for one sequence of the decoder."""
    hidden: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    ffn: int = 0
    vocab: int = 0
    """Rows of an embedding of its own; 0: it has that of the decoder, or none."""
    positions: int = 0
    """Rows of a learned table of positions."""
    conv_channels: int = 0
    """Channels of sound (mel bins) that two convolutions of three taps make frames of, the second
    taking every other one; 0: it reads tokens."""


@dataclass(frozen=True, slots=True)
class PerLayerShape:
    """Embeddings of each layer (`injected` layers)."""

    width: int
    """Of a row of the table of one layer."""
    vocab: int
    """Rows of such a table."""
    streams: int = 1
    """Residual streams, which each layer predicts and corrects (AltUp)."""
    laurel_rank: int = 0
    """Inner width of a product beside attention (LAuReL); 0: none."""


@dataclass(frozen=True, slots=True)
class VisionShape:
    """A vision tower and its projector, before a language model."""

    layers: int
    hidden: int
    heads: int
    ffn: int
    gated: bool
    patch: int
    """Side of a patch, pixels."""
    patches: int
    """Of one image, before they are merged."""
    images: int = 1
    """Of one sequence."""
    merge: int = 1
    """Patches of one token of the language model."""
    pooled: bool = False
    """The mean of merged patches is projected; otherwise all of them side by side."""
    projector: tuple[int, ...] = ()
    """Inner widths of the projector; none: one matrix."""
    projector_bias: bool = True
    inner_projectors: int = 0
    """Further projectors, for the outputs of inner layers."""
    trained: str = "all"
    """`all`, `projector` or `none` of tower and projector."""
    recompute: bool = False
    """Layers of the tower keep their inputs and run again in the backward."""
    channels: int = 3
    frames: int = 1
    """Frames of one patch."""
    positions: int = 0
    """Rows of a learned table of positions; 0: rotary ones."""
    norm: str = "layernorm"
    bias: bool = True
    block: int = 0
    """Patches of a block inside which layers attend; 0: all of an image."""
    full_every: int = 0
    """Every n-th layer attends to a whole image in spite of `block`; 0: none does."""

    @property
    def tokens(self) -> int:
        """Tokens of the language model that the images of a sequence make."""
        return self.images * self.patches // self.merge


@dataclass(frozen=True, slots=True)
class OperatorsShape:
    """Operators of a model's own code, which eager stacks run as it is written.

    Without it layers keep what the stack says of all models.
    """

    activation: str = ""
    """Of the MLP: `relu`, of which the output alone is kept, which the next product keeps too;
    `gelu_new`, a chain of operators; empty: one operator that keeps its input."""
    norm: str = ""
    """`kernel`: one kernel; `scaled`: a chain that scales the input in 16 bits (T5); empty: as
    the stack has it."""
    scores: str = ""
    """Attention without a flash kernel: `16-bit`: softmax in the width of activations; `math`:
    PyTorch's own in fp32, cross attention in a kernel; empty: as the stack has it."""
    copies_output: bool = False
    """Attention's output leaves a flash kernel head by head, and is kept again in one piece."""
    joint_qkv: bool = False
    """Values are a view of one product with queries and keys, which are rotated: all is kept."""
    activation_dropout: bool = False
    """Elements are dropped before the MLP's last product."""
    attention_dropout: bool = False
    """Elements of the scores are dropped."""
    layer_positions: bool = False
    """Every layer looks up relative positions of its own."""
    qk_norm: str = ""
    """Queries and keys are normalised, each `head` or over its `width`; in all stacks."""


@dataclass(frozen=True, slots=True)
class DiffusionShape:
    """What a diffusion transformer reads and writes: latents of images or videos, and text.

    Its layers are `double-stream`, `single-stream` and `adaln` layers. The VAE and the encoders of
    text are no part of it: latents and embeddings are computed beforehand.
    """

    height: int
    """Of an image or a frame, pixels."""
    width: int
    text_tokens: int
    """Embeddings of a text."""
    text_width: int
    """Elements of one of them."""
    frames: int = 1
    """Of a video; 1: images."""
    vae_factor: int = 8
    """Pixels of a latent in height and width."""
    vae_frames: int = 1
    """Frames of a latent behind the first one."""
    channels: int = 16
    """Elements of a latent that enter, those of conditions included."""
    out_channels: int = 0
    """Elements of a latent that leave; 0: as many."""
    patch: int = 2
    """Side of a patch, latents."""
    patch_frames: int = 1
    """Frames of latents of a patch."""
    cross: bool = False
    """Text is seen by cross attention; otherwise it stands in the sequence."""
    modulation: str = "block"
    """Scales, shifts and gates: by a matrix of each `block`, by one that all have (`shared`), or
    by one and a `table` in each block."""
    condition: int = 0
    """Width of the vector of step and pooled text; 0: that of the model."""
    time_width: int = 256
    """Sines and cosines that stand for the step."""
    pooled_width: int = 0
    """Elements of a pooled embedding of the text; 0: none."""
    guidance: bool = False
    """The strength of guidance is embedded as the step is."""
    text_layers: int = 1
    """Matrices that bring text to the width of the model."""
    text_norm: bool = False
    """A norm of the text embeddings before them."""
    refiner_layers: int = 0
    """Layers of a small encoder that text runs through first."""
    qk_norm: str = "none"
    """`none`; `head` or `width`: root mean squares of queries and keys; `head-unfused`: by head,
    put together of operators in fp32; `head-layernorm`."""
    affine: bool = False
    """Norms have weights and biases beside the modulation."""
    cross_norm: bool = False
    """A norm with weights and biases stands before cross attention."""
    wide_norms: bool = False
    """Norms, modulation and gates run in fp32."""
    heads_first: bool = False
    """Attention computes with heads before tokens: its output is copied, and kept twice."""

    @property
    def latents(self) -> int:
        """Patches of a sample."""
        frames = (self.frames - 1) // self.vae_frames + 1
        side = self.vae_factor * self.patch
        return (self.height // side) * (self.width // side) * (frames // self.patch_frames)

    @property
    def tokens(self) -> int:
        """Tokens of a sequence: patches, and the text where it stands among them."""
        return self.latents + (0 if self.cross else self.text_tokens)

    @property
    def patch_inputs(self) -> int:
        """Numbers of a patch that enter."""
        return self.channels * self.patch**2 * self.patch_frames

    @property
    def patch_outputs(self) -> int:
        """Numbers of a patch that leave."""
        return (self.out_channels or self.channels) * self.patch**2 * self.patch_frames


MIXER_SECTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "window": WindowShape,
        "chunk": ChunkShape,
        "mamba2": Mamba2Shape,
        "delta_net": DeltaNetShape,
        "linear": LinearShape,
        "indexer": IndexerShape,
        "mamba1": Mamba1Shape,
        "short_conv": ShortConvShape,
        "cross": CrossShape,
        "rglru": RglruShape,
        "compressed": CompressedShape,
        "factored": FactoredShape,
    }
)
"""Sizes of mixers by the field of `ModelShape`, and section of the model file, that has them."""


VARIED_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "heads": "heads",
        "kv_heads": "kv_heads",
        "head_dim": "head_dim",
        "value_dim": "v_head",
        "ffn": "ffn",
        "window": "window",
        "kv_shared": "kv_shared",
        "keys_as_values": "keys_as_values",
        "reused": "reused",
    }
)
"""What a variant may say, by the field of `ModelShape` that it says in its layers."""
FEED_FIELDS, SWITCHES = frozenset({"ffn"}), ("kv_shared", "keys_as_values", "reused")
"""Those of feeds, the others are of mixers; and those that are true where they are said."""


@dataclass(frozen=True, slots=True)
class LayerVariant:
    """Sizes that some layers have of their own: those of kind `KIND@NAME`."""

    name: str
    sizes: tuple[tuple[str, int], ...]
    """By key of `VARIED_FIELDS`, in its order; switches as 0 and 1."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder-only transformer, dense or with experts. Sizes in elements, switches as booleans.

    With experts `ffn` is the inner width of the dense layers, if there are any.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    gated: bool
    """SwiGLU-like MLP with three matrices; otherwise two matrices and GeLU."""
    vocab: int
    tied: bool
    """Input embedding and output head share one matrix."""
    norm: str = "rmsnorm"
    """`rmsnorm` (one vector) or `layernorm` (two vectors)."""
    bias: bool = False
    """Linear layers carry biases."""
    positions: str = "rope"
    """`rope` (no parameters) or `learned` (one vector per position)."""
    max_positions: int = 0
    """Rows of the learned position table; 0 means the sequence length."""
    flash_attention: bool = True
    """A fused attention kernel that never stores the score matrix."""
    dropout: bool = False
    """Hidden and attention dropout are on (masks are stored)."""
    padded_vocab: int = 0
    """Rows of the vocabulary matrices as allocated; 0 means pad to `vocab_multiple * tp`."""
    vocab_multiple: int = 128
    pads_vocab: bool = True
    """The software pads to that; otherwise only to what tp divides (`StackProfile.pads_vocab`)."""
    n_experts: int = 0
    """Routed experts of an expert layer; 0: a dense model."""
    top_k: int = 1
    """Experts that each token is sent to."""
    expert_ffn: int = 0
    """Inner width of one routed expert."""
    moe_latent: int = 0
    """Width of what routed experts take and give, where it is not the model's; 0: it is."""
    shared_ffn: int = 0
    """Inner width of all shared experts together, which see every token; 0: none."""
    dense_layers: int = 0
    """The first layers, which are dense."""
    moe_every: int = 1
    """Of the layers after them every n-th has experts (the n-th, the 2n-th, ...)."""
    capacity_factor: float = 0.0
    """Rows that every expert computes, padded, over the mean; 0: dropless."""
    imbalance: float = 1.0
    """Dropless: tokens of the busiest expert-parallel rank over the mean."""
    forced_balance: bool = False
    """Whether random routing replaces the router's, as performance runs have it: `imbalance` 1."""
    n_groups: int = 1
    """Groups of experts that routing is limited to; 1: none."""
    top_groups: int = 1
    """Groups that the experts of one token come from."""
    q_rank: int = 0
    """Latent attention: width of the compressed queries; 0: they are not compressed."""
    kv_rank: int = 0
    """Latent attention: width of the compressed keys and values; 0: ordinary attention."""
    qk_nope: int = 0
    """Latent attention: width of a query or key head without positions."""
    qk_rope: int = 0
    """Latent attention: width of the part of a head with rotary positions, one for all keys."""
    v_head: int = 0
    """Width of a value head; 0: that of a key head. Always given with latent attention."""
    mtp_layers: int = 0
    """Multi-token prediction: further layers with a projection and the head again."""
    head_transform: bool = False
    """A linear layer h x h, its activation and a norm stand before the output head (encoders)."""
    layer_runs: tuple[LayerRun, ...] = ()
    """The kinds of layers in model order; empty where `dense_layers` and `moe_every` say it."""
    variants: tuple[LayerVariant, ...] = ()
    """Sizes of layers that differ from the model's, by the name behind `@` of their kind."""
    kv_shared: bool = False
    """Attention takes keys and values of an earlier layer; said of variants alone."""
    keys_as_values: bool = False
    """Keys are the values too, of one projection; said of variants alone."""
    reused: bool = False
    """The weights are those of an earlier layer, which runs again; said of variants alone."""
    attention_gate: bool = False
    """The output of attention is gated by a projection of its own, as wide as the queries."""
    window: WindowShape | None = None
    """Sizes of `window` layers; so on for those of other mixers."""
    chunk: ChunkShape | None = None
    mamba2: Mamba2Shape | None = None
    delta_net: DeltaNetShape | None = None
    linear: LinearShape | None = None
    indexer: IndexerShape | None = None
    mamba1: Mamba1Shape | None = None
    short_conv: ShortConvShape | None = None
    cross: CrossShape | None = None
    compressed: CompressedShape | None = None
    residual_streams: StreamsShape | None = None
    """More than one residual stream; none: the usual one."""
    encoder: EncoderShape | None = None
    """An encoder whose layers stand before the decoder's; none: a decoder alone."""
    operators: OperatorsShape | None = None
    """What the model's own code computes with; none: as the stack has it."""
    rglru: RglruShape | None = None
    factored: FactoredShape | None = None
    per_layer: PerLayerShape | None = None
    """Embeddings of each layer; none: the model has one alone."""
    vision: VisionShape | None = None
    """A vision tower before the embedding; none: text alone."""
    diffusion: DiffusionShape | None = None
    """What a diffusion transformer reads and writes in place of tokens of a vocabulary."""

    @property
    def q_width(self) -> int:
        """Width of the query projection: heads * head_dim."""
        return self.heads * self.head_dim

    @property
    def expert_hidden(self) -> int:
        """Width of what routed experts take and give."""
        return self.moe_latent or self.hidden

    @property
    def gate_width(self) -> int:
        """Width of the gate of attention's output, 0 without one."""
        if not self.attention_gate:
            return 0
        return self.q_width if self.latent else self.v_width

    @property
    def kv_width(self) -> int:
        """Width of the key projection."""
        return self.kv_heads * self.head_dim

    @property
    def v_dim(self) -> int:
        """Width of a value head."""
        return self.v_head or self.head_dim

    @property
    def pair_dim(self) -> int:
        """Width of a head of keys and its values together."""
        return self.head_dim + self.v_dim

    @property
    def projected_dim(self) -> int:
        """Width of what a layer projects to for a head of keys and its values."""
        if self.kv_shared:
            return 0
        return self.head_dim if self.keys_as_values else self.pair_dim

    @property
    def latent(self) -> bool:
        """Keys and values come from a compressed latent (MLA)."""
        return self.kv_rank > 0

    @property
    def v_width(self) -> int:
        """Width of the attention output: heads * width of a value head."""
        return self.heads * self.v_dim

    @property
    def expert_layers(self) -> tuple[bool, ...]:
        """Which layers have experts, in model order.

        >>> from dataclasses import replace
        >>> from costmodels.examples import LLAMA3_8B
        >>> replace(LLAMA3_8B, layers=5, n_experts=8, dense_layers=1, moe_every=2).expert_layers
        (False, False, True, False, True)
        """
        if not self.n_experts:
            return (False,) * self.layers
        if self.layer_runs:
            return _routed_layers(self.layer_runs)
        return _expert_layers(self.layers, self.dense_layers, self.moe_every)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of layers, the first one without routed experts first.

        `dense` stands there where every layer has experts.
        """
        return self._kinds_and_sequence[0]

    @property
    def layer_sequence(self) -> tuple[int, ...]:
        """The kind of each layer as its position in `kinds`, in model order.

        >>> from dataclasses import replace
        >>> from costmodels.examples import LLAMA3_8B
        >>> replace(LLAMA3_8B, layers=5, n_experts=8, dense_layers=1, moe_every=2).layer_sequence
        (0, 0, 1, 0, 1)
        """
        return self._kinds_and_sequence[1]

    @property
    def kind_counts(self) -> tuple[int, ...]:
        """How many layers are of each of `kinds`."""
        sequence = self.layer_sequence
        return tuple(sequence.count(i) for i in range(len(self.kinds)))

    @property
    def _kinds_and_sequence(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        if self.layer_runs:
            return _kinds_of_runs(self.layer_runs)
        if not self.n_experts:
            return (DENSE,), (0,) * self.layers
        return (DENSE, MOE), tuple(map(int, self.expert_layers))

    @property
    def n_expert_layers(self) -> int:
        """How many layers have experts."""
        return sum(self.expert_layers)

    def of_kind(self, kind: str) -> "ModelShape":
        """Return the model as layers of a kind see it, with the sizes of its variant.

        >>> from dataclasses import replace
        >>> from costmodels.examples import LLAMA3_8B
        >>> wide = LayerVariant("wide", (("ffn", 28672), ("window", 4096)))
        >>> shape = replace(LLAMA3_8B, variants=(wide,)).of_kind("window+dense@wide")
        >>> shape.ffn, shape.window, shape.heads
        (28672, WindowShape(size=4096), 32)
        """
        name = kind.partition("@")[2]
        return _varied(self, name) if name else self

    def varies(self, kind: str, *, of_feed: bool) -> bool:
        """Tell whether the variant of a kind has sizes of its feed, or of its mixer."""
        name = kind.partition("@")[2]
        keys = {key for x in self.variants if x.name == name for key, _ in x.sizes}
        return bool(keys & FEED_FIELDS if of_feed else keys - FEED_FIELDS)

    def without_experts(self) -> "ModelShape":
        """Return what an expert layer computes for every token: its shared experts as the MLP."""
        return _without_experts(self)


@lru_cache(maxsize=256)
def _without_experts(shape: ModelShape) -> ModelShape:
    """Return a model whose MLP is the shared experts."""
    return replace(
        shape, ffn=shape.shared_ffn, n_experts=0, shared_ffn=0, moe_latent=0, layer_runs=()
    )


@lru_cache(maxsize=256)
def _varied(shape: ModelShape, name: str) -> ModelShape:
    """Return a model with the sizes of one of its variants."""
    sizes = next(dict(x.sizes) for x in shape.variants if x.name == name)
    fields: dict[str, Any] = {VARIED_FIELDS[key]: value for key, value in sizes.items()}
    if size := fields.pop("window", 0):
        fields["window"] = WindowShape(size)
    return replace(shape, **fields)


@lru_cache(maxsize=256)
def _kinds_of_runs(runs: tuple[LayerRun, ...]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the kinds of a model, the first without experts first, and the kind of each layer."""
    plain = [run.kind for run in runs if not run.routed]
    kinds = tuple(dict.fromkeys([*(plain[:1] or [DENSE]), *(run.kind for run in runs)]))
    return kinds, tuple(kinds.index(run.kind) for run in runs for _ in range(run.count))


@lru_cache(maxsize=256)
def _routed_layers(runs: tuple[LayerRun, ...]) -> tuple[bool, ...]:
    """Return which layers have routed experts."""
    return tuple(run.routed for run in runs for _ in range(run.count))


@lru_cache(maxsize=256)
def _expert_layers(layers: int, dense_layers: int, moe_every: int) -> tuple[bool, ...]:
    """Return which layers of a model with experts have some."""
    return tuple(
        i >= dense_layers and (i - dense_layers + 1) % moe_every == 0 for i in range(layers)
    )


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """One optimizer step: tokens in, numeric recipe, total length of the run."""

    seq_len: int
    global_batch: int
    """Sequences per optimizer step over all devices (gbs)."""
    precision: str = "bf16"
    optimizer: str = "adam"
    tokens: float = 0.0
    """Tokens of the whole run; 0 when not stated."""
    grad_dtype: str = ""
    """Width of the gradients, `fp32` or `bf16`; empty: that of the precision."""
    optimizer_states: str = "fp32"
    """`fp32`, or `bf16-moments`."""
    fp8_param_gather: bool = False
    """Quantised weights are held and gathered in place of 16-bit ones."""
    fp8_attention: bool = False
    """The attention core runs in fp8."""
    fp8_output: bool = False
    """The output head runs in fp8."""
    bf16_layers: tuple[int, int] = (0, 0)
    """Layers at the start and at the end whose linear layers stay in bf16."""
    muon: MuonOptions = USUAL_MUON
    """How Muon orthogonalizes, with optimizer `muon`."""
    task: str = PRETRAIN
    """`pretrain`, `sft`, `lora`, `qlora` or `dpo`."""
    tuning: TuningJob | None = None
    """Adapters that are trained in place of the model's weights; None: all weights are."""
    data: SampleData | None = None
    """What sequences hold; None: each is one sample that fills it."""
    has_reference: bool = False
    """A frozen reference runs forward over the same tokens (DPO); adapters have theirs off."""
    has_precomputed_reference: bool = False
    """The answers of a frozen reference were computed before the run, which pays nothing."""

    @property
    def compares_answers(self) -> bool:
        """Whether samples are pairs of answers (DPO): each pair is two sequences."""
        return self.task == DPO or self.has_reference or self.has_precomputed_reference

    @property
    def run_keys(self) -> float:
        """Mean keys of a query whose sample alone it sees; 0: all before it in the sequence."""
        return self.data.run_keys if self.data else 0.0

    @property
    def core_tokens(self) -> float:
        """Length of a sequence whose attention takes as many FLOPs a token: twice the keys."""
        return 2.0 * self.run_keys or self.seq_len

    @property
    def numerics(self) -> Numerics:
        """What decides the recipe."""
        return Numerics(
            self.precision,
            self.optimizer,
            self.grad_dtype,
            self.optimizer_states,
            self.fp8_param_gather,
            self.fp8_attention,
            self.fp8_output,
            self.muon,
        )

    @property
    def recipe(self) -> Recipe:
        """Rates of the linear layers, bytes per parameter, widths."""
        return recipe_of(self.numerics)

    @property
    def base_precision(self) -> str:
        """The recipe with a name of its own: bf16 with bf16 gradients is `bf16-grads`."""
        narrow = self.precision == "bf16" and self.grad_dtype == "bf16"
        return "bf16-grads" if narrow else self.precision

    @property
    def label(self) -> str:
        """The precision, and what else of the numbers is not as that has it.

        >>> TrainingJob(4096, 8, "fp8-blockwise", grad_dtype="bf16", fp8_output=True).label
        'fp8-blockwise, grad_dtype bf16, fp8_output'
        """
        parts = [self.precision]
        parts += [f"grad_dtype {self.grad_dtype}"] * bool(self.grad_dtype)
        if self.optimizer_states != "fp32":
            parts.append(f"optimizer_states {self.optimizer_states}")
        switches = ("fp8_param_gather", "fp8_attention", "fp8_output")
        parts += [name for name in switches if getattr(self, name)]
        return ", ".join(parts)

    def bf16_frac(self, layers: int) -> float:
        """Return the share of a model's layers whose linear layers stay in bf16."""
        if not layers or not any(self.bf16_layers) or not self.recipe.linear_precision:
            return 0.0
        return min(1.0, sum(self.bf16_layers) / layers)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step."""
        return self.seq_len * self.global_batch
