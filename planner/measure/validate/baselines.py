"""Three estimators that any cost model has to beat.

B0: one MFU per hardware and precision, the median of the measured runs themselves.
B1: 6 N FLOPs per token at half of the peak plus alpha-beta communication without overlap.
B2: a rule of thumb that only ranks.
"""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from costmodels.layers.flops import model_flops_per_step
from planner.measure.validate.prediction import PricedCase

Floats = NDArray[np.float64]

PEAK_FRAC = 0.5
"""Share of the peak that B1 computes at."""
SCALE_UP_HOP_S, SCALE_OUT_HOP_S = 5e-6, 10e-6
"""Latency of one step of a ring in B1 (assumed: usual figures for NVLink and InfiniBand)."""
WIRE_BYTES, GRAD_BYTES = 2.0, 4.0
"""Bytes per element of B1's messages and of its gradients."""


def _peak_flops_per_s(case: PricedCase) -> float:
    """Return the dense peak of all devices at the precision of the run."""
    part = case.problem.pool.accelerator
    return part.peak_flops_per_s[case.problem.job.recipe.linear] * case.layout.n_devices


def constant_mfu(
    cases: Sequence[PricedCase], hardware: Sequence[Hashable], measured_s: Floats
) -> Floats:
    """Return B0's step times, seconds: F / (P n MFU), MFU the median of the same hardware.

    F counts causal attention halved and no recompute. Hardware and precision share one MFU.
    """
    at_peak = np.array(
        [
            model_flops_per_step(c.problem.shape, c.problem.job) / _peak_flops_per_s(c)
            for c in cases
        ]
    )
    keys = [(h, c.problem.job.precision) for h, c in zip(hardware, cases, strict=True)]
    mfu = at_peak / measured_s
    median = {
        key: np.median([value for value, other in zip(mfu, keys, strict=True) if other == key])
        for key in set(keys)
    }
    return at_peak / np.array([median[key] for key in keys], dtype=np.float64)


def _params(case: PricedCase) -> float:
    """Return the weights of linear layers and vocabulary matrices, of experts the active ones."""
    x = case.problem.shape
    width, routed = (3 if x.gated else 2) * x.hidden, x.n_expert_layers
    layer = x.hidden * (2 * x.q_width + 2 * x.kv_width + (3 if x.gated else 2) * x.ffn)
    more = width * (x.top_k * x.expert_ffn + x.shared_ffn - x.ffn)
    matrices = (1 if x.tied else 2) * x.vocab * x.hidden
    return float(x.layers * layer + routed * more + matrices)


def _wire(case: PricedCase, span: int) -> tuple[float, float]:
    """Return (bytes per second, seconds per hop) of a group over `span` adjacent devices."""
    pool = case.problem.pool
    if span <= pool.scale_up_domain:
        return pool.accelerator.scale_up_bytes_per_s, SCALE_UP_HOP_S
    return pool.nic.bytes_per_s * pool.nics_per_node / pool.devices_per_node, SCALE_OUT_HOP_S


def _all_reduce_s(case: PricedCase, size_bytes: float, n_ranks: int, span: int) -> float:
    rate, hop_s = _wire(case, span)
    return 2 * (n_ranks - 1) * (size_bytes / n_ranks / rate + hop_s)


def naive_step_s(case: PricedCase) -> float:
    """Return B1's step time, seconds.

    T = [ 6 N tokens / (n P / 2) + m (L/p) (4 AR(2 b s h / c; t) + KV) + 2 m P2P(2 b s h / c) ]
        (1 + (p - 1)/(v m)) + AR(4 N/(t p); d c)

    AR is a ring all-reduce; 8 N instead of 6 N with full recompute; ZeRO-3 moves its weights
    twice and its gradients once per micro-batch, 2 bytes each. KV is three passes of keys and
    values, 4 b s k / t bytes, around the c ranks of context parallelism. Nothing overlaps. Left
    out: attention FLOPs, memory-bound operators, the optimizer.
    """
    x, plan, job = case.problem.shape, case.layout, case.problem.job
    passes = 8.0 if plan.recompute == "full" else 6.0
    flops = passes * _params(case) * job.tokens_per_step
    compute = flops / (PEAK_FRAC * _peak_flops_per_s(case))
    message = WIRE_BYTES * plan.mbs * job.seq_len * x.hidden / plan.cp
    per_layer = 4 * _all_reduce_s(case, message, plan.tp, plan.tp) + _context_s(case)
    tensor = plan.n_micro * x.layers / plan.pp * per_layer
    rate, hop_s = _wire(case, plan.n_devices)
    hops = 2 * plan.n_micro * (message / rate + hop_s) if plan.pp > 1 else 0.0
    bubble = (plan.pp - 1) / (plan.vpp * plan.n_micro)
    return (compute + tensor + hops) * (1 + bubble) + _data_parallel_s(case)


def _context_s(case: PricedCase) -> float:
    """Return the keys and values of a layer sent around a ring, and back with their gradients."""
    plan, x = case.layout, case.problem.shape
    if plan.cp == 1:
        return 0.0
    rate, hop_s = _wire(case, plan.tp * plan.cp)
    block = 2 * WIRE_BYTES * plan.mbs * case.problem.job.seq_len * x.kv_width / plan.tp / plan.cp
    return 3 * (plan.cp - 1) * (block / rate + hop_s)


def _data_parallel_s(case: PricedCase) -> float:
    plan = case.layout
    ranks = plan.dp * plan.cp
    local, span = _params(case) / (plan.tp * plan.pp), plan.tp * ranks
    if plan.zero < 3:
        return _all_reduce_s(case, GRAD_BYTES * local, ranks, span)
    return 1.5 * plan.n_micro * _all_reduce_s(case, WIRE_BYTES * local, ranks, span)


def rule_of_thumb(cases: Sequence[PricedCase]) -> Floats:
    """Return B2's rank of each plan, lower is better; equal keys share a rank.

    Smallest model-parallel degree tp pp, TP inside the node first, smallest pp, largest mbs.
    """
    keys = [
        (
            c.layout.tp * c.layout.pp,
            c.layout.tp > c.problem.pool.scale_up_domain,
            c.layout.pp,
            -c.layout.mbs,
        )
        for c in cases
    ]
    order = {key: rank for rank, key in enumerate(sorted(set(keys)))}
    return np.array([order[key] for key in keys], dtype=np.float64)
