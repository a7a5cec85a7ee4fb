"""What of the exchange of tokens hides beside the compute of another micro-batch.

A forward of one micro-batch runs together with a backward of another, layer by layer: the four
exchanges of the two (a dispatch and a combine each) go over one stream, each beside a part of the
other's compute.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.comm.dispatch import Degrees, taken_share
from costmodels.layers.compute import ForwardBackward
from costmodels.layers.experts import ExpertTimes
from costmodels.modes import ModeRows
from costmodels.problem import Problem

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LayerHalves:
    """Compute of one expert layer in its two halves, seconds; arrays of one length."""

    attention: ForwardBackward
    """Attention, norms, shared experts and router, with what they wait for; weight gradients
    included."""
    experts: ForwardBackward
    """Permutation, grouped products, activation; weight gradients left out."""
    experts_weight_grad_s: Floats


def exposed_exchange(leg_s: Floats, halves: LayerHalves) -> ForwardBackward:
    """Return what two micro-batches wait for their exchanges, by direction, seconds.

    x one dispatch or combine; A, M the halves, f forward, b backward, W weight gradients:

    forward   max(0, x - M_b) + max(0, x - A_b)          dispatch, combine of the forward
    backward  max(0, x - A_f) + max(0, x - W_M - M_f)    combine, dispatch of the backward

    Source: Megatron-LM core/models/common/model_chunk_schedule_plan.py
    (TransformerLayerSchedulePlan.run), with --delay-wgrad-compute; DeepSeek-V3 report, section
    3.2.1. Left out: layers of a chunk without a partner in the other micro-batch's chunk.

    >>> halves = LayerHalves(ForwardBackward(2.0, 4.0), ForwardBackward(1.0, 1.5), 1.0)
    >>> waits = exposed_exchange(2.5, halves)
    >>> float(waits.forward_s), float(waits.backward_s)  # 1.0 + 0; 0.5 + 0.5
    (1.0, 1.0)
    """
    a, m = halves.attention, halves.experts

    def beyond(window_s: Floats) -> Floats:
        return np.asarray(np.maximum(0.0, leg_s - window_s))

    forward = beyond(m.backward_s) + beyond(a.backward_s)
    backward = beyond(a.forward_s) + beyond(halves.experts_weight_grad_s + m.forward_s)
    return ForwardBackward(forward, backward)


@dataclass(frozen=True, slots=True)
class ExchangeBeside:
    """The exchange of one expert layer and micro-batch; arrays of one length."""

    exposed: ForwardBackward
    """What compute waits for."""
    hidden_s: Floats
    """The rest, both directions."""
    tax: ForwardBackward
    """How much it slows the compute beside it."""


def exchange_beside(
    problem: Problem, degrees: Degrees, modes: ModeRows, rest: ForwardBackward, routed: ExpertTimes
) -> ExchangeBeside:
    """Return what shows and what hides of an exchange; `rest` is the layer without its experts.

    All of it shows without `ep_overlap`. Else `exposed_exchange`, and what hides takes a share of
    the compute beside it (`dispatch.taken_share`), half in each direction.
    """
    zeros = np.zeros_like(routed.exchange.forward_s)
    nothing = ForwardBackward(zeros, zeros)
    if not modes.uses("ep_overlap"):
        return ExchangeBeside(routed.exchange, zeros, nothing)
    on = modes.codes("ep_overlap") > 0
    of_experts = ForwardBackward(
        routed.compute.forward_s - routed.routing.forward_s,
        routed.compute.backward_s - routed.routing.backward_s - routed.weight_grad_s,
    )
    halves = LayerHalves(rest + routed.routing, of_experts, routed.weight_grad_s)
    waits = exposed_exchange(routed.exchange.forward_s / 2.0, halves)
    hidden = np.where(on, routed.exchange.total_s - waits.total_s, 0.0)
    slowed = taken_share(problem, degrees, modes) * hidden / 2.0
    exposed = ForwardBackward(
        np.where(on, waits.forward_s, routed.exchange.forward_s),
        np.where(on, waits.backward_s, routed.exchange.backward_s),
    )
    return ExchangeBeside(exposed, hidden, ForwardBackward(slowed, slowed))
