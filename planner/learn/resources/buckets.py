"""Gradient buckets: how many pieces to cut the gradients into."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from costmodels.comm.data_parallel import exposed_once_s
from costmodels.stacks import FUSED
from planner.learn import fields
from planner.learn.closed_forms import hidden_share, ring_share
from planner.learn.results import (
    Calculator,
    CalculatorResult,
    Difference,
    Number,
    Preset,
    shown,
    sig,
)
from planner.learn.writeups import GUIDE, MODELER

if TYPE_CHECKING:
    from planner.render.charts.chart import Chart

NEAR_ENOUGH = 0.01
"""Of the backward: waiting that no longer counts."""
DDP_BUCKET_BYTES = 25 * 2.0**20
"""PyTorch DistributedDataParallel, bucket_cap_mb = 25."""


@dataclass(frozen=True, slots=True)
class BucketsInputs:
    """Gradients, the devices that average them, and the backward beside it."""

    gradients_bytes: float = fields.size_field(
        "Gradients", 500, fields.InputRange(1e-3, 1e9, "MB"), note="of one device"
    )
    gradient_bytes: float = fields.number_field(
        "Bytes of a gradient", 2, fields.InputRange(0.25, 8)
    )
    ranks: int = fields.count_field("Devices", 8, fields.InputRange(2, 1_000_000), note="P")
    link_bytes_per_s: float = fields.bandwidth("Link of a device", 300)
    latency_s: float = fields.time(
        "Fixed time of a bucket",
        5,
        fields.InputRange(0, 1e5, "us"),
        note="40 us and more in practice",
    )
    buckets: int = fields.count_field("Buckets", 16, fields.InputRange(1, 1_000_000), note="k")
    window_s: float = fields.time("Backward", 200, fields.InputRange(1e-3, 1e7, "ms"))


def bucket_s(x: BucketsInputs, k: int) -> float:
    """Return the time of one of k buckets: a + 2 (P - 1)/P n / (k B)."""
    return x.latency_s + 2 * ring_share(x.ranks) * x.gradients_bytes / (k * x.link_bytes_per_s)


def exposed_s(x: BucketsInputs, k: int) -> float:
    """Return what the backward does not hide of k equal buckets, seconds.

    Bucket i is ready at (i/k) W and all go one after the other: k c - W (1 - 1/k) if a bucket
    takes longer than its part of the backward, else the last one, c. Source: the order of
    DistributedDataParallel's hooks. Left out: parameters that are ready in another order.
    """
    one = bucket_s(x, k)
    return max(one, k * one - x.window_s * (1 - 1 / k))


def best_count(x: BucketsInputs) -> int:
    """Return the number of buckets that exposes least.

    Before the wire is full more buckets make the last one shorter, afterwards each costs its
    fixed time: the best is where k c = W (1 - 1/k), or sqrt(W / a) if the wire is full anyway.
    """
    volume = 2 * ring_share(x.ranks) * x.gradients_bytes / x.link_bytes_per_s
    if x.latency_s <= 0:
        return 1_000_000
    crossing = (x.window_s - volume) / x.latency_s
    near = {1, crossing, math.sqrt(x.window_s / x.latency_s)}
    tried = {min(1_000_000, max(1, math.floor(k) + j)) for k in near for j in (-1, 0, 1, 2)}
    return min(tried, key=lambda k: (exposed_s(x, k), k))


def enough_count(x: BucketsInputs) -> int:
    """Return the fewest buckets that expose at most 1 % of the backward more than the best."""
    best = best_count(x)
    limit = exposed_s(x, best) + NEAR_ENOUGH * x.window_s
    low, high = 1, best
    while low < high:  # exposed(k) falls up to the best
        middle = (low + high) // 2
        low, high = (low, middle) if exposed_s(x, middle) <= limit else (middle + 1, high)
    return low


def buckets_result(x: BucketsInputs) -> CalculatorResult:
    """Return the answer."""
    k, w, p = x.buckets, x.window_s, x.ranks
    size, one = x.gradients_bytes / k, bucket_s(x, k)
    total, waits = k * one, exposed_s(x, k)
    best, enough, params = best_count(x), enough_count(x), x.gradients_bytes / x.gradient_bytes
    ddp = math.ceil(x.gradients_bytes / DDP_BUCKET_BYTES)
    piece = max(FUSED.bucket_params, FUSED.bucket_params_per_rank * p)
    megatron = max(1, math.ceil(params / piece))
    floor = exposed_once_s(np.array(total), np.array(one), np.array(w), 1, 1, 1).item()
    speed = shown(x.link_bytes_per_s, "bytes_per_s")
    numbers = (
        Number(
            "size",
            "A bucket",
            size,
            "bytes",
            "n / k",
            f"{shown(x.gradients_bytes, 'bytes')} / {k}",
            "definition",
        ),
        Number(
            "bucket_s",
            "Time of a bucket",
            one,
            "seconds",
            "a + 2 (P - 1)/P n / (k B)",
            f"{shown(x.latency_s, 'seconds')} + 2 * {p - 1}/{p} * {shown(size, 'bytes')} / "
            f"{speed}",
            "ring all-reduce; costmodels.comm.collectives.ring_all_reduce_s",
        ),
        Number(
            "total_s",
            "All buckets",
            total,
            "seconds",
            "k c",
            f"{k} * {shown(one, 'seconds')}",
            "one after the other",
        ),
        Number(
            "of_backward",
            "Over the backward",
            total / w,
            "fraction",
            "k c / W",
            f"{shown(total, 'seconds')} / {shown(w, 'seconds')}",
            "definition",
        ),
        Number(
            "hidden_limit",
            "Hidden share at most",
            hidden_share(total, w),
            "fraction",
            "min(1, W / (k c))",
            f"min(1, {shown(w, 'seconds')} / {shown(total, 'seconds')})",
            "costmodels.comm.data_parallel.exposed_once_s",
        ),
        Number(
            "hidden",
            "Hidden share",
            1 - waits / total,
            "fraction",
            "1 - exposed / (k c)",
            f"1 - {shown(waits, 'seconds')} / {shown(total, 'seconds')}",
            "costmodels.comm.data_parallel.exposed_once_s",
            "the last bucket has nothing left to hide behind",
        ),
        Number(
            "exposed_s",
            "Waited for",
            waits,
            "seconds",
            "max(c, k c - W (1 - 1/k))",
            f"max({shown(one, 'seconds')}, {shown(total - w * (1 - 1 / k), 'seconds')})",
            "costmodels.comm.data_parallel.exposed_once_s",
            f"the cost model's bound for one piece: {shown(floor, 'seconds')}",
        ),
        Number(
            "enough",
            "Buckets that are enough",
            enough,
            "count",
            "least k with exposed(k) <= exposed(best) + W / 100",
            f"exposed({enough}) = {shown(exposed_s(x, enough), 'seconds')}",
            "exposed(k) of this calculator",
            "more change less than 1 % of the backward",
        ),
        Number(
            "best",
            "Buckets that expose least",
            best,
            "count",
            "k with k c = W, sqrt(W / a) where the wire is full",
            f"a = {shown(x.latency_s, 'seconds')}, W = {shown(w, 'seconds')}",
            "exposed(k) of this calculator, minimised",
            f"they leave {shown(exposed_s(x, best), 'seconds')}; small buckets do not reach "
            "the bandwidth, so stay well below",
        ),
        Number(
            "ddp",
            "Buckets of PyTorch DDP",
            ddp,
            "count",
            "ceil(n / 25 MiB)",
            f"ceil({sig(x.gradients_bytes)} / {sig(DDP_BUCKET_BYTES)})",
            "torch DistributedDataParallel, bucket_cap_mb",
            f"leave {shown(exposed_s(x, ddp), 'seconds')}",
        ),
        Number(
            "megatron",
            "Buckets of Megatron-LM",
            megatron,
            "count",
            "ceil(N / max(40e6, 1e6 D))",
            f"ceil({sig(params)} / {sig(piece)})",
            "core/distributed/distributed_data_parallel.py; "
            "costmodels.comm.data_parallel.n_pieces",
            f"leave {shown(exposed_s(x, megatron), 'seconds')}",
        ),
    )
    theirs = x.latency_s + round(2 * size / x.link_bytes_per_s, 5)
    differences = (
        Difference(
            "bucket_s",
            "a bucket = fixed time + 2 n / (k B), rounded on the way",
            MODELER,
            theirs,
            one,
            "seconds",
            "A ring sends 2 (P - 1)/P of a bucket, 1.75 and not 2 for 8 "
            "devices; the page rounds 2 n / (k B) to 10 us before it adds the fixed time.",
        ),
        Difference(
            "total_s",
            "all buckets = k times that",
            MODELER,
            k * theirs,
            total,
            "seconds",
            "The same factor of 2 for 2 (P - 1)/P, and the same rounding, k times.",
        ),
        Difference(
            "of_backward",
            "that over the backward",
            MODELER,
            k * theirs / w,
            total / w,
            "fraction",
            "The same factor of 2 for 2 (P - 1)/P, and the same rounding.",
        ),
        Difference(
            "count",
            "the best is a bucket of some 32 MB",
            MODELER,
            math.ceil(x.gradients_bytes / 32e6),
            enough,
            "count",
            "The number hardly matters "
            f"while the wire has time to spare: anything from {enough} to {best:,} buckets waits "
            "for less than 1 % of the backward more than the best. It matters where the "
            "gradients take nearly as long as the backward.",
        ),
        Difference(
            "share",
            "hidden share = min(1, transfer / window)",
            MODELER,
            min(1.0, k * theirs / w),
            1 - waits / total,
            "fraction",
            "Upside down: it is min(1, window / transfer), less the last bucket.",
        ),
        Difference(
            "ddp_everywhere",
            "buckets are 25 MB",
            GUIDE,
            math.ceil(x.gradients_bytes / 25e6),
            megatron,
            "count",
            "PyTorch's default. Megatron counts parameters, 40 million or one "
            "million a rank, whichever is more.",
        ),
    )
    return CalculatorResult(
        f"{k} buckets of {shown(size, 'bytes')} take {shown(one, 'seconds')} each, "
        f"{shown(total / w, 'fraction')} of the backward; {shown(waits, 'seconds')} are waited "
        "for.",
        numbers,
        (),
        (),
        differences,
        (
            "The fall of bandwidth with the size of a bucket: `planner learn collectives`.",
            "Gradients are not ready evenly: the embedding's come last and make a large bucket.",
        ),
    )


def buckets_charts(x: BucketsInputs) -> "tuple[Chart, ...]":
    """Return waiting and total time over the number of buckets."""
    from planner.learn.drawing import Axes, ChartText, Line, lines_chart

    places = sorted({2**k for k in range(15)} | {x.buckets})
    return (
        lines_chart(
            ChartText(
                "exposed",
                "Time over the number of buckets",
                "Few buckets leave a long last one; many cost their fixed time.",
            ),
            Axes(("Buckets", places), "ms", log_y=True, here=x.buckets),
            [
                Line("waited for", [exposed_s(x, k) * 1e3 for k in places]),
                Line("all buckets on the wire", [k * bucket_s(x, k) * 1e3 for k in places]),
            ],
        ),
    )


CALCULATOR = Calculator(
    "buckets",
    "Gradient buckets",
    "Into how many buckets should gradients be cut?",
    BucketsInputs,
    buckets_result,
    buckets_charts,
    (
        Preset("500 MB in 16 buckets on NVLink", {}),
        Preset("With a real floor of 40 us", {"latency_s": "40"}),
        Preset(
            "16 GB over the network",
            {
                "gradients_bytes": "16 GB",
                "ranks": "64",
                "link_bytes_per_s": "50",
                "latency_s": "200",
                "window_s": "1 s",
            },
        ),
    ),
)
