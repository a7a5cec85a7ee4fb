"""Stored activations on the host between forward and backward: how long compute waits for them."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodels.layers.compute import ForwardBackward
from costmodels.stacks import StackProfile
from hardware.parts import Host

Floats = NDArray[np.float64]

INPUTS_AT_ONCE = 2.0
"""Inputs of recomputed layers on the device at a time: one in use, one on its way (DeepSpeed's
`_ActivationOffloadEngine`: the last input, and the one before it, stay)."""
RESIDENT_LAYERS = 2
"""Fewest layers whose activations stay where nothing is recomputed: with a single one every copy
would have to end before the next layer begins (Transformer Engine's `OffloadSynchronizer`)."""


def copy_bytes_per_s(host: Host) -> Floats:
    """Return what a device reaches to and from its host while all devices of the node copy.

    The measured link, one-way, at most the device's share of the bandwidth of the host's memory.
    """
    return np.asarray(np.minimum(host.link_bytes_per_s, host.memory_bytes_per_s))


def waits(
    stack: StackProfile,
    copy_s: ArrayLike,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    n_layers: ArrayLike,
) -> ForwardBackward:
    """Return what the forward and the backward of a micro-batch wait for copies, seconds.

    windowed:   max(0, C - (1 - 2/L) F)  and  max(0, C - (1 - 2/L) B)
    on-demand:  max(0, C - (1 - 2/L) F)  and  C
    blocking:   C  and  C

    C copies the activations of all offloaded layers one way (`copy_s`), F and B are forward and
    backward of all L layers. Copies run one after the other: down from the end of the first
    layer's forward, to end before the last layer's begins; up from the end of the last layer's
    backward, to end before the first layer's begins; L - 2 layers of compute lie between. With
    layers alike that is what a step by step account of the copies gives while at least
    `RESIDENT_LAYERS` layers stay on the device.
    Source: Transformer Engine pytorch/cpu_offload.py (`_default_offload_sync_init`): windowed;
    DeepSpeed runtime/activation_checkpointing/offload_activations.py: down beside the forward, up
    when the backward asks; torch.autograd.graph.save_on_cpu, whose copies are in the stream of
    the compute: blocking. Left out: a host that runs ahead and asks early, the copy that the last
    layer's input is spared, memory traffic of the copies beside compute, gradients of an optimizer
    on the host that share the link, layers that differ in work.
    """
    copy = np.asarray(copy_s, dtype=np.float64)
    if stack.activation_copies == "blocking":
        return ForwardBackward(copy, copy)
    between = np.maximum(0.0, 1.0 - 2.0 / np.maximum(1.0, np.asarray(n_layers)))
    down = np.maximum(0.0, copy - between * forward_s)
    if stack.activation_copies == "on-demand":
        return ForwardBackward(down, copy)
    return ForwardBackward(down, np.maximum(0.0, copy - between * backward_s))
