"""Optimizer states on the host: what they take there, and the update over the link to it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodels.problem import Problem
from costmodels.stacks import StackProfile

Floats = NDArray[np.float64]

HOST_STATE_BYTES = 16.0
"""Bytes on the host per offloaded parameter: fp32 master, two moments, a buffer for the gradient
(4 each)."""
COPY_BYTES = 4.0
"""Width of a gradient on its way down and of a weight on its way up: both frameworks copy to and
from fp32 tensors and convert on the device (torch `Tensor.copy_`, non_blocking)."""
ADAM_BYTES = 28.0
"""Host memory traffic of a fused Adam per parameter: gradient, master, two moments read (16),
master and moments written (12)."""
CLIP_BYTES = 8.0
"""The same of scaling the gradient on the host."""
HOST_ADAM_FRAC = 0.45
"""Share of the data-sheet bandwidth of the host's memory that a fused Adam reaches: ZeRO-Offload
(arXiv 2101.06840) prints 0.22 s for 1e9 parameters and 2.57 s for 1e10 on two Xeon 8168 with
256 GB/s, 0.50 and 0.43 of it."""
HOST_USABLE_FRAC = 0.9
"""Share of the host's memory that offloaded states may fill: the rest is for the system, the data
loader and the processes themselves."""


@dataclass(frozen=True, slots=True)
class HostUpdate:
    """Times of one update of offloaded parameters, seconds; arrays of one shape."""

    down_s: Floats
    """Gradients to the host."""
    adam_s: Floats
    up_s: Floats
    """Weights to the device."""
    n_pieces: Floats
    """Parts into which gradients, update and weights are cut."""


def host_state_bytes(held_params: ArrayLike) -> Floats:
    """Return what the optimizer of `held_params` parameters takes on the host, bytes.

    16 a parameter, whatever the recipe: fp32 master, momentum, variance and gradient.
    Source: Megatron-LM core/optimizer/cpu_offloading/hybrid_optimizer.py; DeepSpeed
    runtime/zero/stage_1_and_2.py. Left out: pinned staging buffers, weights of a checkpoint.
    """
    return HOST_STATE_BYTES * np.asarray(held_params, dtype=np.float64)


def host_update(problem: Problem, held_params: Floats, n_pieces: Floats) -> HostUpdate:
    """Return the times of the update of the `held_params` parameters that one device offloads.

    down = 4 n / B_link, Adam = 28 n / (0.45 B_host), up = 4 n / B_link

    B_link is the measured bandwidth of the link, one-way, B_host the device's share of the host's
    memory bandwidth. A stack whose gradients leave during the backward scales them on the host
    (8 n more). Left out: devices that share a link (two behind a PCIe switch), hosts whose cores
    do not keep up with their memory.
    """
    host = problem.pool.host
    assert host is not None  # plans that offload need one (OFF001)
    traffic = ADAM_BYTES + (CLIP_BYTES if gradients_leave(problem.stack) else 0.0)
    copy = COPY_BYTES * held_params / host.link_bytes_per_s
    adam = traffic * held_params / (HOST_ADAM_FRAC * host.memory_bytes_per_s)
    return HostUpdate(copy, adam, copy, n_pieces)


def gradients_leave(stack: StackProfile) -> bool:
    """Tell whether gradients go to the host as they are reduced, and stay there."""
    return stack.offload_overlap == "gradients"


def pipelined_s(update: HostUpdate) -> Floats:
    """Return the time of an update whose pieces follow one another down, through Adam and up.

    (down + adam + up) / k + (1 - 1/k) max(down, adam, up), k pieces, all of it after the
    backward. Source: Megatron-LM HybridDeviceOptimizer with --overlap-cpu-optimizer-d2h-h2d (one
    optimizer a tensor, a stream for each direction).
    """
    total = update.down_s + update.adam_s + update.up_s
    slowest = np.maximum(np.maximum(update.down_s, update.adam_s), update.up_s)
    return np.asarray(total / update.n_pieces + slowest * (1.0 - 1.0 / update.n_pieces))
