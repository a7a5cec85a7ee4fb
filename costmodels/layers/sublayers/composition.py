"""Kinds of layers put together of a mixer and a feed: their records and their terms."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from costmodels.comm import expert_overlap
from costmodels.comm.exposure import Exposure
from costmodels.comm.tensor_parallel import layer_exposures
from costmodels.layers import experts
from costmodels.layers.compute import ForwardBackward, LinearTimes
from costmodels.layers.layer_kind import (
    HOST_FORWARD_SHARE,
    ExpertLayerTerms,
    Floats,
    Ints,
    KindTerms,
    LayerInputs,
    LayerKind,
    LayerMacs,
    host_waits,
    paced_s,
    plain_host_s,
    waits_and_tax,
)
from costmodels.layers.recompute import stacked, without_away
from costmodels.layers.streams.connections import backward_bytes, with_connection
from costmodels.layers.sublayers.sublayer import Feed, FeedTerms, Mixer, MixerTerms, no_linear
from costmodels.optimizers.matrices import Matrix
from costmodels.schedule import launches
from costmodels.shapes import DENSE, MOE, ModelShape


def kind_name(mixer: Mixer, feed: Feed) -> str:
    """Return the name of the kind of layer that has a mixer and a feed."""
    return mixer.name if mixer.stands_alone else f"{mixer.name}+{feed.name}"


def composed(mixer: Mixer, feed: Feed, name: str = "") -> LayerKind:
    """Return the kind of layer that has this mixer and this feed (`kind_name`).

    Under the `name` of a kind with a variant, the one that has the sizes of that variant. The
    user's own class of transformers has such layers; files of no other framework say them.
    """
    name = name or kind_name(mixer, feed)
    variant = name.partition("@")[2]
    is_own = bool(variant) or not (mixer.stands_alone or feed.name in (DENSE, MOE, "none"))
    parts: tuple[Mixer | Feed, ...] = tuple(x for x in (mixer, feed) if x.name != "none")

    def summed(field: str) -> Callable[..., Any]:
        def total(shape: ModelShape, *sizes: Any) -> Any:
            own = shape.of_kind(name)
            count = sum(getattr(x, field)(own, *sizes) for x in parts)
            return 0 * count if own.reused and field != "blocks" else count

        return total

    def macs(shape: ModelShape) -> LayerMacs:
        ahead, after = mixer.macs(shape.of_kind(name)), feed.macs(shape.of_kind(name))
        modules = {**ahead.modules, **after.modules}
        return LayerMacs(
            ahead.projections, ahead.core, after.mlp, modules, ahead.core_at, ahead.of_sequence
        )

    def modules(shape: ModelShape) -> tuple[str, ...]:
        own = shape.of_kind(name)
        return tuple(dict.fromkeys(group for x in parts for group in x.modules(own)))

    lists = [x.matrices for x in parts if x.matrices]

    def matrices(shape: ModelShape) -> tuple[Matrix, ...]:
        own = shape.of_kind(name)
        return () if own.reused else tuple(m for of_part in lists for m in of_part(own))

    both = [x.title for x in parts]
    return LayerKind(
        name=name,
        title=f"{' and '.join(both)} layer" + (f" ({variant})" if variant else ""),
        equation=", then ".join(x.equation for x in parts),
        source="; ".join(x.source for x in parts),
        params=summed("params"),
        replicated_params=summed("replicated_params"),
        matrix_params=summed("linear_params"),
        macs=macs,
        terms=partial(composed_terms, mixer, feed, name),
        modules=modules,
        is_routed=feed.name == MOE,
        mixer=mixer.name,
        feed=feed.name,
        blocks=summed("blocks"),
        context_elements=mixer.context_elements,
        frameworks=tuple(x for x in mixer.frameworks if x == "fsdp2" or not is_own),
        matrices=matrices if len(lists) == len(parts) else None,
    )


def _part(inputs: LayerInputs, kind: str, role: str, part: Mixer | Feed) -> Any:
    """Return the terms of a sublayer, computed once for all kinds of layers that have it.

    With the sizes of a variant where that has some of such a sublayer.
    """
    varies, of_feed = inputs.problem.shape.varies, role == "feed"
    sees_heads = isinstance(part, Feed) and part.sees_heads
    if varies(kind, of_feed=of_feed) or (sees_heads and varies(kind, of_feed=False)):
        inputs = inputs.of_kind(kind)
    key = f"{role} {part.name}"
    if key not in inputs.parts:
        terms = part.terms(inputs)
        inputs.parts[key] = terms if part.name == "none" else with_connection(inputs, terms)
    return inputs.parts[key]


def composed_terms(mixer: Mixer, feed: Feed, kind: str, inputs: LayerInputs) -> KindTerms:
    """Return the terms of a layer of a mixer and a feed, of this name: sums of theirs.

    Traffic of tensor parallelism, the host and what shows of an exchange of tokens depend on both.
    """
    ahead: MixerTerms = _part(inputs, kind, "mixer", mixer)
    after: FeedTerms = _part(inputs, kind, "feed", feed)
    model, inputs = inputs.problem.shape, inputs.of_kind(kind)
    problem, tokens, sp, tp = inputs.problem, inputs.tokens, inputs.sp, inputs.split.tp
    stack, modes = problem.stack, inputs.modes
    linear, elementwise = ahead.linear + after.linear, ahead.elementwise + after.elementwise
    blocks = ahead.blocks + after.blocks
    forward, backward = layer_exposures(problem, tokens, tp, sp, linear, blocks)
    waits = ((forward, ahead.cp_forward), (backward, ahead.cp_backward))
    exposed, tax = waits_and_tax(stack, *waits)
    rest = linear.both + ahead.core + elementwise + exposed + tax
    away_of = partial(inputs.away, routed=after.routed is not None, attends=mixer.attends)
    working = tokens * 3 * inputs.element_bytes * problem.shape.hidden
    working = working + np.maximum(after.working_bytes, ahead.buffer_bytes)
    working = working + backward_bytes(inputs)
    terms: dict[str, Any] = {
        "linear": linear.both,
        "attention": ahead.core,
        "elementwise": elementwise,
        "tp_forward": forward,
        "tp_backward": backward,
        "cp_forward": ahead.cp_forward,
        "cp_backward": ahead.cp_backward,
        "working_bytes": working,
        "scratch_bytes": _scratch_bytes(model, kind, ahead, after)
        + _pool_bytes(model, kind, inputs, working),
    }
    launch_s = _launch_s(inputs, mixer, ahead, after)
    wgrad_s = linear.column_wgrad_s + linear.row_wgrad_s
    modules, kept_bytes = stacked((ahead.modules, after.modules), tokens), ahead.kept_bytes
    kept_bytes = kept_bytes + after.kept_bytes
    if after.routed is None:
        host = host_waits(stack, launch_s, rest)
        offloaded, copies = away_of(rest + host)
        again_s = linear.both.forward_s + ahead.core.forward_s
        again_s = again_s + elementwise.forward_s + exposed.forward_s
        return KindTerms(
            **terms,
            tax=tax,
            host=host,
            copies=copies,
            layer=rest + host + copies,
            weight_grad_s=wgrad_s,
            recompute_full_s=paced_s(stack, HOST_FORWARD_SHARE * launch_s, again_s),
            modules=without_away(modules, offloaded),
            kept_bytes=kept_bytes - offloaded.freed_bytes,
            away=offloaded,
        )
    routed = after.routed
    exchange = expert_overlap.exchange_beside(problem, inputs.degrees, modes, rest, routed)
    synced_s = experts.synced_host_s(problem, launch_s)
    device = rest + routed.compute + exchange.exposed + exchange.tax
    host = host_waits(stack, launch_s, device, synced_s)
    alone_device = rest + routed.compute + routed.exchange
    alone_host = host_waits(stack, launch_s, alone_device, synced_s)
    fill_s = (alone_device + alone_host).total_s - (device + host).total_s
    offloaded, copies = away_of(device + host)
    again_s = device.forward_s - tax.forward_s - exchange.tax.forward_s
    return ExpertLayerTerms(
        **terms,
        tax=tax + exchange.tax,
        host=host,
        copies=copies,
        layer=device + host + copies,
        weight_grad_s=wgrad_s + routed.weight_grad_s,
        recompute_full_s=paced_s(stack, HOST_FORWARD_SHARE * launch_s, again_s),
        modules=without_away(modules, offloaded),
        kept_bytes=kept_bytes - offloaded.freed_bytes,
        away=offloaded,
        routed=routed.compute,
        exchange=exchange.exposed,
        exchange_hidden_s=exchange.hidden_s,
        fill_s=np.where(exchange.hidden_s > 0.0, np.maximum(0.0, fill_s), 0.0),
    )


def _launch_s(inputs: LayerInputs, mixer: Mixer, ahead: MixerTerms, after: FeedTerms) -> Floats:
    """Return what is left of the host's time to launch the layer, both directions, seconds."""
    problem, modes = inputs.problem, inputs.modes
    one, graph_s = plain_host_s(problem, inputs.split.tp), problem.stack.graph_launch_s
    of_mixer, of_feed = ahead.launches * one, after.launches * one
    if after.routed is None:
        shares = launches.Launches(of_mixer, of_feed)
        return launches.sublayers_launch_s(shares, graph_s, modes)
    routing = experts.routing_host_s(problem)
    shared = bool(problem.shape.shared_ffn)
    shares = launches.Launches(of_mixer, of_feed, routing, shared)
    launch_s = launches.sublayers_launch_s(shares, graph_s, modes)
    products_s = experts.products_host_s(problem, inputs.split.ep)
    return np.asarray(launch_s + launches.eager_products_s(products_s, modes))


_LIKE_ATTENTION = ("window", "chunk", "bidirectional", "bidirectional-window", "differential")
"""Mixers with the matrices of the model's attention."""
_STREAMS = ("double-stream", "double-stream-last", "adaln")
"""Kinds of diffusion transformers whose streams have the same weights each."""


def _weights(shape: ModelShape, kind: str) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return what tells the weights of a kind's mixer, and of its feed, from those of others."""
    plain, own = kind.partition("@")[0], shape.of_kind(kind)
    both = {DENSE: "attention+dense", MOE: "attention+moe"}.get(plain, plain)
    mixer, _, feed = both.partition("+")
    if plain in _STREAMS:
        mixer, feed = _STREAMS[0], _STREAMS[0]
    heads = (own.heads, own.kv_heads, own.head_dim, own.v_dim, own.projected_dim)
    return ("attention" if mixer in _LIKE_ATTENTION else mixer, *heads), (feed, own.ffn)


def _reads_narrower(shape: ModelShape) -> bool:
    """Tell whether the MLPs of an encoder have matrices of other sizes than the decoder's."""
    x = shape.encoder
    return x is not None and (x.hidden or shape.hidden, x.ffn or shape.ffn) != (
        shape.hidden,
        shape.ffn,
    )


def _scratch_bytes(shape: ModelShape, own: str, ahead: MixerTerms, after: FeedTerms) -> Floats:
    """Return the scratch gradients that no kind before this one of the model has.

    One for each distinct shape of weights: all attention of a model has the same. Dense and expert
    layers count their own, wherever they stand.
    """
    mixed, fed = set[Any](), set[Any]()
    counts = dict(zip(shape.kinds, shape.kind_counts, strict=True))
    earlier = shape.kinds[: shape.kinds.index(own)] if own in counts else ()
    for kind in (*earlier, DENSE, MOE):
        if counts.get(kind) and not (kind.startswith("encoder+") and _reads_narrower(shape)):
            mixes, feeds = _weights(shape, kind)
            mixed.add(mixes)
            fed.add(feeds)
    mixes, feeds = _weights(shape, own)
    value = np.zeros_like(ahead.scratch_bytes)
    if mixes not in mixed:
        value = value + ahead.scratch_bytes
    return value + after.scratch_bytes if feeds not in fed else value


def _pool_bytes(shape: ModelShape, own: str, inputs: LayerInputs, working: Floats) -> Floats:
    """Return the pool of graphs, which the model's first kind of layer has for all."""
    counts = zip(shape.kinds, shape.kind_counts, strict=True)
    first = next(kind for kind, count in counts if count)
    if first != own:
        return np.zeros_like(working)
    return launches.pool_bytes(working, inputs.modes)


def no_mixer_terms(inputs: LayerInputs) -> MixerTerms:
    """Return the terms of a layer that has a feed alone."""
    zeros = np.zeros_like(inputs.tokens)
    nothing, none = ForwardBackward(zeros, zeros), Exposure(zeros, zeros)
    linear: LinearTimes = no_linear(inputs.tokens)
    return MixerTerms(linear, nothing, 0, 0.0, zeros, {}, zeros, nothing, none, none, zeros)


def _no_params(shape: ModelShape, tp: Ints) -> Floats:
    return np.zeros_like(tp, dtype=np.float64)


NO_MIXER = Mixer(
    name="none",
    title="",
    equation="",
    source="",
    params=_no_params,
    replicated_params=lambda shape: 0,
    linear_params=_no_params,
    macs=lambda shape: LayerMacs(0, 0, 0, {}),
    terms=no_mixer_terms,
    modules=lambda shape: (),
    frameworks=("megatron", "deepspeed", "fsdp2", "bridge", "primus", "automodel"),
)
