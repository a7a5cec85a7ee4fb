"""Closed forms of traffic against compute that calculators share: one layer, one axis at a time.

Bytes, seconds, FLOP/s; a bandwidth is one way and per device. What one device sends is counted, as
a ring does it. Latency, the fall of bandwidth with small messages, and compute that slows down
while traffic runs are left out of all of them: `costmodels` has them, and `planner solve` prices
with them.
"""

import math


def ring_share(ranks: float) -> float:
    """Return (P - 1)/P: what a ring gather sends of its tensor. 0 for a single rank."""
    return (ranks - 1) / ranks


def all_reduce_bytes(size_bytes: float, ranks: float) -> float:
    """Return 2 (P - 1)/P n: what a rank sends in a ring all-reduce.

    Source: Patarasuk and Yuan 2009 (bandwidth-optimal all-reduce).

    >>> all_reduce_bytes(8.0, 4)
    12.0
    """
    return 2 * ring_share(ranks) * size_bytes


def tensor_layer_bytes(tensor_bytes: float, tp: int, passes: float = 4.0) -> float:
    """Return what tensor parallelism sends for one layer and micro-batch.

    `passes` all-reduces of the whole activation, 2 (t - 1)/t of it each: two forward, two
    backward. With sequence parallelism each is a gather and a scatter, and Megatron gathers the
    inputs of both column-parallel layers again in backward: 5 in place of 4.

    Source: Megatron-LM core/tensor_parallel/layers.py; `costmodels.traffic.PlanTraffic.transfers`.
    """
    return passes * all_reduce_bytes(tensor_bytes, tp)


def tensor_tax(
    tp: int,
    flops_per_s: float,
    bytes_per_s: float,
    hidden: float,
    weights_ratio: float = 1.0,
    element_bytes: float = 2.0,
) -> float:
    """Return traffic over compute of tensor parallelism in the forward, nothing hidden.

    2 * 2 (t - 1)/t * e b s h / B  over  2 * 12 h^2 k b s / (t R)  =  e (t - 1) R / (6 B h k),
    (t - 1) R / (3 B h) for 2-byte activations and k = 1

    k is the weights of a layer over 12 h^2; R what the products sustain. t divides the compute and
    not the messages. The whole step pays two thirds of it: the backward has the same messages and
    twice the products. Left out: attention scores, which add compute.

    >>> round(tensor_tax(8, 989e12, 450e9, 8192), 3)
    0.626
    """
    return (tp - 1) * flops_per_s / (3 * bytes_per_s * hidden * weights_ratio) * element_bytes / 2


def gradient_least_tokens(
    flops_per_s: float, bytes_per_s: float, gradient_bytes: float, ranks: float = math.inf
) -> float:
    """Return the tokens of a device whose backward hides the all-reduce of its gradients.

    4 N n / R >= 2 (D - 1)/D g N / B   <=>   n >= g R (D - 1)/D / (2 B)

    The window is the whole backward (4 FLOPs a parameter and token); with accumulation or a
    pipeline it is that of the last micro-batch alone. N drops out.

    >>> round(gradient_least_tokens(0.4 * 989e12, 50e9, 2.0))
    7912
    """
    share = 1.0 if math.isinf(ranks) else ring_share(ranks)
    return gradient_bytes * flops_per_s * share / (2 * bytes_per_s)


def sharded_least_tokens(
    flops_per_s: float, bytes_per_s: float, weight_bytes: float, gradient_bytes: float
) -> float:
    """Return the tokens of a micro-batch whose compute hides ZeRO-3 traffic.

    6 N n / R >= (2 W + G) N / B   <=>   n >= R (2 W + G) / (6 B): two gathers and a reduction
    for each micro-batch. Source: the volumes of Rajbhandari et al. 2020, section 7.

    >>> round(sharded_least_tokens(0.6 * 989e12, 50e9, 2.0, 4.0))
    15824
    """
    return flops_per_s * (2 * weight_bytes + gradient_bytes) / (6 * bytes_per_s)


def ring_least_tokens(
    flops_per_s: float, bytes_per_s: float, kv_over_q: float, element_bytes: float = 2.0
) -> float:
    """Return the tokens of a rank from which ring attention hides its exchange.

    A block of keys and values is 2 e n h_kv bytes, its causal attention 2 n^2 h_q FLOPs on
    average: n >= e R h_kv / (h_q B). Source: Liu et al. 2023 (ring attention), section 3.

    >>> ring_least_tokens(400e12, 50e9, 1 / 8), ring_least_tokens(400e12, 50e9, 1.0)
    (2000.0, 16000.0)
    """
    return element_bytes * flops_per_s * kv_over_q / bytes_per_s


def message_least_bandwidth(
    hidden: float, stage_weights: float, flops_per_s: float, element_bytes: float = 2.0
) -> float:
    """Return the bandwidth at which an activation is as short as the forward of its stage.

    e h n / B <= 2 N_stage n / R   <=>   B >= e h R / (2 N_stage)

    N_stage the weights of one chunk on one device, divided by t; with sequence parallelism its t
    ranks send 1/t each. The tokens drop out.
    """
    return element_bytes * hidden * flops_per_s / (2 * stage_weights)


def expert_exchange_bytes(
    tokens: float, hidden: float, top_k: int, ep: int, element_bytes: float = 2.0
) -> float:
    """Return what a device sends to dispatch its tokens to experts once (or to combine them).

    e n k h (E_p - 1)/E_p: k copies of every token, uniform routing. Left out: copies to two
    experts of one device sent once, limits on the nodes of a token, fp8 dispatch.
    """
    return element_bytes * tokens * top_k * hidden * ring_share(ep)


def expert_least_bandwidth(
    expert_ffn: float, flops_per_s: float, ep: int, matrices: int = 3, element_bytes: float = 2.0
) -> float:
    """Return the bandwidth at which dispatch and combine take as long as the experts' products.

    2 e k h (E_p - 1)/E_p / B <= 2 c k h f_e / R   <=>   B >= e R (E_p - 1)/E_p / (c f_e)

    c matrices of h x f_e in an expert. Tokens, k and h drop out.
    """
    return element_bytes * flops_per_s * ring_share(ep) / (matrices * expert_ffn)


def data_parallel_bytes(
    params: float,
    ranks: float,
    zero: int,
    micro_batches: int,
    weight_bytes: float,
    gradient_bytes: float,
) -> float:
    """Return what a device sends per step for data parallelism, bytes.

    stage 0: 2 G N; 1: (G + W) N; 2: (m G + W) N; 3: m (G + 2 W) N, all times (D - 1)/D. N are the
    parameters of the device, after tensor and pipeline parallelism.
    Source: Rajbhandari et al. 2020, section 7, for m = 1;
    `costmodels.traffic.PlanTraffic.transfers`.

    >>> [data_parallel_bytes(8.0, 8, zero, 4, 2, 4) for zero in range(4)]
    [56.0, 42.0, 126.0, 224.0]
    """
    m, w, g = micro_batches, weight_bytes, gradient_bytes
    each = {0: 2 * g, 1: g + w, 2: m * g + w, 3: m * (g + 2 * w)}[zero]
    return each * params * ring_share(ranks)


def hidden_share(transfer_s: float, window_s: float) -> float:
    """Return the share of a transfer that its window hides: min(1, window / transfer).

    >>> hidden_share(0.2, 0.05)
    0.25
    """
    return 1.0 if transfer_s <= 0 else min(1.0, window_s / transfer_s)
