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


def composed(mixer: Mixer, feed: Feed) -> LayerKind:
    """Return the kind of layer that has this mixer and this feed, `MIXER+FEED`."""
    parts: tuple[Mixer | Feed, ...] = tuple(x for x in (mixer, feed) if x.name != "none")

    def summed(name: str) -> Callable[..., Any]:
        return lambda *sizes: sum(getattr(x, name)(*sizes) for x in parts)

    def macs(shape: ModelShape) -> LayerMacs:
        ahead, after = mixer.macs(shape), feed.macs(shape)
        modules = {**ahead.modules, **after.modules}
        return LayerMacs(
            ahead.projections, ahead.core, after.mlp, modules, ahead.core_at, ahead.of_sequence
        )

    def modules(shape: ModelShape) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for x in parts for name in x.modules(shape)))

    lists = [x.matrices for x in parts if x.matrices]

    def matrices(shape: ModelShape) -> tuple[Matrix, ...]:
        return tuple(matrix for of_part in lists for matrix in of_part(shape))

    both = [x.title for x in parts]
    return LayerKind(
        name=f"{mixer.name}+{feed.name}",
        title=f"{' and '.join(both)} layer",
        equation=", then ".join(x.equation for x in parts),
        source="; ".join(x.source for x in parts),
        params=summed("params"),
        replicated_params=summed("replicated_params"),
        matrix_params=summed("linear_params"),
        macs=macs,
        terms=partial(composed_terms, mixer, feed),
        modules=modules,
        is_routed=feed.name == MOE,
        mixer=mixer.name,
        feed=feed.name,
        blocks=summed("blocks"),
        context_elements=mixer.context_elements,
        frameworks=mixer.frameworks,
        matrices=matrices if len(lists) == len(parts) else None,
    )


def _part(inputs: LayerInputs, role: str, part: Mixer | Feed) -> Any:
    """Return the terms of a sublayer, computed once for all kinds of layers that have it."""
    key = f"{role} {part.name}"
    if key not in inputs.parts:
        terms = part.terms(inputs)
        inputs.parts[key] = terms if part.name == "none" else with_connection(inputs, terms)
    return inputs.parts[key]


def composed_terms(mixer: Mixer, feed: Feed, inputs: LayerInputs) -> KindTerms:
    """Return the terms of a layer of a mixer and a feed: sums of theirs.

    Traffic of tensor parallelism, the host and what shows of an exchange of tokens depend on both.
    """
    problem, tokens, sp, tp = inputs.problem, inputs.tokens, inputs.sp, inputs.split.tp
    stack, modes = problem.stack, inputs.modes
    ahead: MixerTerms = _part(inputs, "mixer", mixer)
    after: FeedTerms = _part(inputs, "feed", feed)
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
        "scratch_bytes": _scratch_bytes(problem.shape, mixer, feed, ahead, after)
        + _pool_bytes(problem.shape, mixer, feed, inputs, working),
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


def _sublayers(kind: str) -> tuple[str, str]:
    """Return the mixer and the feed of a kind of layer, those of attention by one name."""
    mixer, _, feed = {DENSE: "attention+dense", MOE: "attention+moe"}.get(kind, kind).partition(
        "+"
    )
    return ("attention" if mixer in _LIKE_ATTENTION else mixer), feed


def _scratch_bytes(
    shape: ModelShape, mixer: Mixer, feed: Feed, ahead: MixerTerms, after: FeedTerms
) -> Floats:
    """Return the scratch gradients that no kind before this one of the model has.

    One for each distinct shape of weights: all attention of a model has the same. Dense and expert
    layers count their own, wherever they stand.
    """
    before: set[str] = set()
    counts = dict(zip(shape.kinds, shape.kind_counts, strict=True))
    own = f"{mixer.name}+{feed.name}"
    earlier = shape.kinds[: shape.kinds.index(own)] if own in counts else ()
    for kind in (*earlier, DENSE, MOE):
        if counts.get(kind):
            before |= {f"{i} {x}" for i, x in enumerate(_sublayers(kind))}
    mixes, feeds = _sublayers(own)
    value = np.zeros_like(ahead.scratch_bytes)
    if f"0 {mixes}" not in before:
        value = value + ahead.scratch_bytes
    return value + after.scratch_bytes if f"1 {feeds}" not in before else value


def _pool_bytes(
    shape: ModelShape, mixer: Mixer, feed: Feed, inputs: LayerInputs, working: Floats
) -> Floats:
    """Return the pool of graphs, which the model's first kind of layer has for all."""
    counts = zip(shape.kinds, shape.kind_counts, strict=True)
    first = next(kind for kind, count in counts if count)
    if first != f"{mixer.name}+{feed.name}":
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
    frameworks=("megatron", "deepspeed", "fsdp2", "bridge"),
)
