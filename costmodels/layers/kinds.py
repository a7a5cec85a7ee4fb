"""All kinds of layers, by the name that a model file gives them."""

from functools import lru_cache

from costmodels.layers.compressed.attention import COMPRESSED
from costmodels.layers.dense import DENSE
from costmodels.layers.diffusion.blocks import ADALN, DOUBLE, LAST_DOUBLE, SINGLE
from costmodels.layers.diffusion.feeds import ONE_STREAM, PATCH_STREAM, TWO_STREAMS
from costmodels.layers.layer_kind import LayerKind
from costmodels.layers.moe import MOE
from costmodels.layers.recurrences.delta_net import GDN, KDA
from costmodels.layers.recurrences.linear import LINEAR
from costmodels.layers.recurrences.mamba1 import MAMBA1
from costmodels.layers.recurrences.mamba2 import MAMBA2
from costmodels.layers.recurrences.rglru import RGLRU
from costmodels.layers.recurrences.short_conv import CONV
from costmodels.layers.streams.streamed import streamed
from costmodels.layers.sublayers.attention import ATTENTION, CHUNK, WINDOW
from costmodels.layers.sublayers.bidirectional import BIDIRECTIONAL, BIDIRECTIONAL_WINDOW
from costmodels.layers.sublayers.composition import NO_MIXER, composed, kind_name
from costmodels.layers.sublayers.cross import BIDIRECTIONAL_CROSS, CAUSAL_CROSS, CROSS
from costmodels.layers.sublayers.differential import DIFFERENTIAL
from costmodels.layers.sublayers.factored import FACTORED
from costmodels.layers.sublayers.feeds import FEEDS, MLP, NO_FEED
from costmodels.layers.sublayers.injected import INJECTED
from costmodels.layers.sublayers.sparse import SPARSE
from costmodels.layers.sublayers.sublayer import HeadsCut, Mixer
from costmodels.shapes import LayerRun, ModelShape
from costmodels.towers.encoder_layers import ENCODER, encoder_shape

_ATTENTION = (
    *(ATTENTION, WINDOW, CHUNK, BIDIRECTIONAL, BIDIRECTIONAL_WINDOW),
    *(SPARSE, DIFFERENTIAL, FACTORED),
)
_ACROSS = (CROSS, CAUSAL_CROSS, BIDIRECTIONAL_CROSS)
_OTHERS = (MAMBA2, GDN, KDA, LINEAR, MAMBA1, CONV, RGLRU, NO_MIXER, *COMPRESSED)
_DIFFUSION = (
    (DOUBLE, TWO_STREAMS),
    (LAST_DOUBLE, PATCH_STREAM),
    (SINGLE, NO_FEED),
    (ADALN, ONE_STREAM),
)
"""Mixers of diffusion transformers, each with the only feed that stands behind it."""
MIXERS: dict[str, Mixer] = {
    x.name: x for x in (*_ATTENTION, *_ACROSS, *_OTHERS, *(mixer for mixer, _ in _DIFFUSION))
}
"""By name. A new mixer is one entry more (docs/extending.md)."""
KIND_ALIASES = {"attention+dense": DENSE.name, "attention+moe": MOE.name}
"""Names of kinds that have another one: dense and expert layers by their mixer and feed."""


def _compositions() -> tuple[LayerKind, ...]:
    """Return every kind of a mixer and a feed that is not listed under another name."""
    free = [mixer for mixer in MIXERS.values() if not mixer.stands_alone]
    pairs = [*((mixer, feed) for mixer in free for feed in FEEDS), *_DIFFUSION]
    pairs += [(mixer, INJECTED) for mixer in (ATTENTION, WINDOW)]
    names = [(kind_name(mixer, feed), mixer, feed) for mixer, feed in pairs]
    left_out = {*KIND_ALIASES, "none+none"}
    return tuple(composed(mixer, feed) for name, mixer, feed in names if name not in left_out)


LAYER_KINDS: dict[str, LayerKind] = {x.name: x for x in (DENSE, MOE, *_compositions(), ENCODER)}
"""By name. A new kind is one entry more (docs/extending.md)."""


def register_layer_kind(kind: LayerKind) -> None:
    """Add a kind of layer at run time; `ValueError` for a name that another one has."""
    if LAYER_KINDS.get(kind.name, kind) is not kind:
        raise ValueError(f"layer kind {kind.name}: there is one already")
    LAYER_KINDS[kind.name] = kind


_FEEDS = {x.name: x for x in (*FEEDS, INJECTED)}


@lru_cache(maxsize=1024)
def _variant(name: str) -> LayerKind:
    kind = LAYER_KINDS[name.partition("@")[0]]
    return composed(MIXERS[kind.mixer], _FEEDS[kind.feed], name)


def has_variants(name: str) -> bool:
    """Tell whether a kind is a pair of a mixer and a feed, whose sizes a variant can replace."""
    kind = LAYER_KINDS[name]
    pair = f"{kind.mixer}+{kind.feed}"
    return kind.mixer in MIXERS and KIND_ALIASES.get(pair, pair) == name


def kind_of(name: str) -> LayerKind:
    """Return the record of a kind: `KIND`, or `KIND@VARIANT` with the sizes of a variant.

    Raises `KeyError` for no kind. A variant needs a kind that is a pair (`has_variants`).

    >>> kind_of("dense@wide").name, kind_of("window+moe@narrow").mixer
    ('dense@wide', 'window')
    """
    return _variant(name) if "@" in name else LAYER_KINDS[name]


def kinds_of(shape: ModelShape) -> tuple[LayerKind, ...]:
    """Return the records of `shape.kinds`, with connections where streams are several."""
    kinds = tuple(kind_of(name) for name in shape.kinds)
    return tuple(map(streamed, kinds)) if shape.residual_streams else kinds


def attention_shapes(shape: ModelShape) -> tuple[ModelShape, ...]:
    """Return the model as each kind of layer with attention sees it, none twice."""
    kinds = [kind for kind, _ in present_kinds(shape) if has_attention(kind)]
    return tuple(dict.fromkeys(shape.of_kind(kind.name) for kind in kinds))


def reads_earlier_layers(shape: ModelShape) -> bool:
    """Tell whether some layer has keys, values or weights of another, or its own embedding."""
    kinds = [shape.of_kind(kind.name) for kind, _ in present_kinds(shape)]
    return shape.per_layer is not None or any(x.kv_shared or x.reused for x in kinds)


def mlp_widths(shape: ModelShape) -> tuple[int, ...]:
    """Return the inner widths of the MLPs of a model's layers, none twice."""
    if shape.diffusion:
        return (shape.ffn,)
    dense = [kind for kind, _ in present_kinds(shape) if has_mlp(kind)]
    return tuple(dict.fromkeys(shape.of_kind(kind.name).ffn for kind in dense))


def present_kinds(shape: ModelShape) -> tuple[tuple[LayerKind, int], ...]:
    """Return the kinds of which a model has layers, and how many."""
    pairs = zip(kinds_of(shape), shape.kind_counts, strict=True)
    return tuple((kind, count) for kind, count in pairs if count)


def added_kinds(shape: ModelShape) -> tuple[LayerKind, ...]:
    """Return the kinds of which a model has layers, but for dense and expert layers.

    With several residual streams these count too: they are not what their records say alone.
    """
    return tuple(
        kind
        for kind, _ in present_kinds(shape)
        if kind.name not in (DENSE.name, MOE.name) or shape.residual_streams
    )


def mixers_of(shape: ModelShape) -> tuple[Mixer, ...]:
    """Return the mixers of the kinds of which a model has layers, each once."""
    names = dict.fromkeys(kind.mixer for kind, _ in present_kinds(shape))
    return tuple(MIXERS[name] for name in names if name in MIXERS)


def attends(shape: ModelShape) -> bool:
    """Tell whether some layer has the model's attention, whose heads are cut over tp."""
    return any(has_attention(kind) for kind, _ in present_kinds(shape))


def has_attention(kind: LayerKind) -> bool:
    """Tell whether a kind of layer has the model's attention, over all keys or some."""
    return kind.mixer not in MIXERS or MIXERS[kind.mixer].attends


def has_mlp(kind: LayerKind) -> bool:
    """Tell whether a kind of layer has an MLP of the width `ffn`."""
    return kind.feed in (MLP.name, INJECTED.name)


def sublayers(kind: LayerKind) -> int:
    """Return how many sublayers a kind of layer has, each with a norm: mixer, feed, or both."""
    return (kind.mixer != NO_MIXER.name) + (kind.feed != NO_FEED.name)


def mixer_cuts(shape: ModelShape) -> tuple[HeadsCut, ...]:
    """Return what tp and cp cut of the mixers that are no attention."""
    return tuple(mixer.cut_over(shape) for mixer in mixers_of(shape) if mixer.cut_over)


def mixer_heads(shape: ModelShape) -> tuple[int, ...]:
    """Return the numbers of heads and groups of such mixers, which tp has to divide.

    Also heads and inner width of a vision tower, and of an encoder.
    """
    cuts = [n for x in mixer_cuts(shape) for n in (x.heads, x.groups)]
    if shape.vision:
        cuts += [shape.vision.heads, shape.vision.ffn]
    if shape.encoder:
        encoder = encoder_shape(shape)
        cuts += [encoder.heads, encoder.ffn]
    return tuple(dict.fromkeys(cuts))


def layer_run(name: str, count: int) -> LayerRun:
    """Return a run of layers of a registered kind."""
    kind = kind_of(name)
    return LayerRun(kind.name, count, kind.is_routed)
