"""Compressed gradients and local updates as what-if: bytes, time, cost, and when they pay."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from planner.learn import fields
from planner.learn.closed_forms import ring_share
from planner.learn.machines import DEFAULT_DEVICE, OWN, devices, models, of_device, of_model
from planner.learn.results import (
    Calculator,
    CalculatorResult,
    Difference,
    NamedTable,
    Number,
    Preset,
    shown,
    sig,
)
from planner.learn.writeups import MODELER
from planner.render.report.answers import AnswerTable

if TYPE_CHECKING:
    from planner.render.charts.chart import Chart

WINDOW = "the window of this calculator: the backward, two thirds of the compute"
WINDOW_FRAC = 2 / 3
"""Share of a step that is backward, beside which plain gradients may travel."""
INDEX_BYTES, SCALE_BYTES, BLOCK = 4.0, 4.0, 256
"""Of a kept entry of top-k; of the scale of a block of quantised values, and their number."""
METHODS = (
    ("plain", "all-reduce, uncompressed"),
    ("int8", "int8, scatter and gather"),
    ("one-bit", "1-bit with error feedback"),
    ("powersgd", "PowerSGD"),
    ("top-k", "top-k"),
    ("zero3", "ZeRO 3, plain"),
    ("zero++", "ZeRO++ (qwZ, hpZ, qgZ)"),
    ("local-sgd", "local SGD"),
    ("diloco", "DiLoCo"),
)
SOURCES = {
    "plain": "Patarasuk and Yuan 2009",
    "int8": "Dettmers 2016; scatter and gather of int8",
    "one-bit": "Tang et al. 2021 (1-bit Adam)",
    "powersgd": "Vogels et al. 2019 (PowerSGD)",
    "top-k": "Aji and Heafield 2017; Lin et al. 2018 (deep gradient compression)",
    "zero3": "Rajbhandari et al. 2020, section 7",
    "zero++": "Wang et al. 2023 (ZeRO++)",
    "local-sgd": "Stich 2019 (local SGD)",
    "diloco": "Douillard et al. 2023 (DiLoCo)",
}


@dataclass(frozen=True, slots=True)
class CompressionInputs:
    """A model, its replicas, a step, and the settings of the methods."""

    method: str = fields.choice("Look at", "powersgd", METHODS, group="Method")
    model: str = fields.choice("Model", OWN, models(), group="Job")
    params: float = fields.number_field(
        "Parameters",
        of_model("params", 7e9),
        fields.InputRange(1e-4, 1e6, "billion"),
        follows="the model, 7 billion without one",
        group="Job",
    )
    width: int = fields.count_field(
        "Side of its matrices",
        of_model("hidden", 4096),
        fields.InputRange(16, 1_000_000),
        note="PowerSGD: taken as square",
        follows="the model",
        group="Job",
    )
    gradient_bytes: float = fields.number_field(
        "Bytes of a plain gradient", 2, fields.InputRange(0.5, 8), group="Job"
    )
    step_s: float = fields.time(
        "Compute of a step", 1, fields.InputRange(1e-4, 1e5, "s"), group="Job"
    )
    ranks: int = fields.count_field(
        "Replicas", 64, fields.InputRange(2, 1_000_000), note="D", group="Machine"
    )
    per_node: int = fields.count_field(
        "Devices of a node", 8, fields.InputRange(1, 1024), note="g", group="Machine"
    )
    far_bytes_per_s: float = fields.bandwidth("Network of a device", 50, group="Machine")
    device: str = fields.choice("Device", DEFAULT_DEVICE, devices(), group="Machine")
    near_bytes_per_s: float = fields.bandwidth(
        "Scale-up link", of_device("scale_up"), follows="the device", group="Machine"
    )
    hbm_bytes_per_s: float = fields.bandwidth(
        "Memory of a device", of_device("hbm"), follows="the device", group="Machine"
    )
    peak_flops_per_s: float = fields.rate(
        "Dense peak", of_device("peak"), follows="the device", group="Machine"
    )
    rank: int = fields.count_field(
        "Rank of PowerSGD", 4, fields.InputRange(1, 10_000), note="r", group="Method"
    )
    kept: float = fields.percent_field(
        "Entries that top-k keeps", 1, fields.InputRange(0.01, 100, "%"), group="Method"
    )
    inner_steps: int = fields.count_field(
        "Inner steps of local updates",
        100,
        fields.InputRange(1, 1_000_000),
        note="H",
        group="Method",
    )


@dataclass(frozen=True, slots=True)
class Cost:
    """What a method costs one device in a step."""

    sent_bytes: float
    """Over the network."""
    near_bytes: float
    """Inside the node only."""
    extra_bytes: float
    """Memory traffic of packing and unpacking."""
    extra_flops: float
    held_bytes: float
    """Further memory: error feedback, copies."""
    hides: bool
    """May travel beside the backward."""
    formula: str
    memory_formula: str


def cost(x: CompressionInputs, method: str) -> Cost:
    """Return the cost of a method; N parameters, D replicas, g gradient bytes.

    plain      2 (D-1)/D g N
    int8       2 (D-1)/D N (1 + 4/256): scatter and gather of bytes with block scales
    one-bit    2 (D-1)/D N/8: compressed both ways; errors of worker (fp32) and of its shard
    powersgd   2 (D-1)/D 4 N (n + m) r / (n m), n = m: fp32 factors P and Q; 6 r N FLOPs
    top-k      (D-1) k N (g + 4): gathered, so it grows with D
    zero3      (D-1)/D (2 * 2 + g) N
    zero++     int8 gather N (forward), none between nodes in backward, int4 gradients N/2: 1.5 N,
               a quarter of 6 N bytes
    local-sgd  2 (D-1)/D g N / H: averages of the weights every H steps
    diloco     2 (D-1)/D g N / H: outer gradients, with an outer momentum

    Left out: what it does to convergence, warm-up without compression, latency, one kernel's
    inefficiency. Reading and writing of the gradients is counted in memory traffic.
    """
    n, d, g = x.params, x.ranks, x.gradient_bytes
    share = 2 * ring_share(d)
    outside_node_share = (d - x.per_node) / d if d > x.per_node else 0.0
    if method == "plain":
        return Cost(share * g * n, 0, 0, 0, 0, True, "2 (D-1)/D g N", "nothing")
    if method == "int8":
        one = 1 + SCALE_BYTES / BLOCK
        return Cost(
            share * one * n,
            0,
            (2 * g + 4) * n,
            0,
            0,
            True,
            "2 (D-1)/D N (1 + 4/256)",
            "nothing (no error feedback)",
        )
    if method == "one-bit":
        return Cost(
            share * n / 8,
            0,
            (g + 4 * 4) * n,
            0,
            4 * n + 4 * n / d,
            False,
            "2 (D-1)/D N / 8",
            "4 N of error feedback, 4 N/D for its shard",
        )
    if method == "powersgd":
        factors = 2 * x.rank / x.width
        return Cost(
            share * 4 * n * min(1.0, factors),
            0,
            (3 * g + 3 * 4) * n,
            6 * x.rank * n,
            4 * n,
            False,
            "2 (D-1)/D 4 N 2 r / n",
            "4 N of error feedback",
        )
    if method == "top-k":
        entries = x.kept * n * (g + INDEX_BYTES)
        return Cost(
            (d - 1) * entries,
            0,
            (2 * g + 3 * 4) * n + 2 * (d - 1) * entries,
            0,
            4 * n + d * entries,
            False,
            "(D-1) k N (g + 4)",
            "4 N of error feedback, the gathered entries",
        )
    if method == "zero3":
        return Cost((4 + g) * n * ring_share(d), 0, 0, 0, 0, True, "(D-1)/D (4 + g) N", "nothing")
    if method == "zero++":
        return Cost(
            1.5 * n * outside_node_share,
            2 * n * ring_share(x.per_node),
            (4 * g + 8) * n,
            0,
            2 * n / x.per_node,
            True,
            "(D-g)/D (N + N/2), 2 N inside the node",
            "2 N/g: a second bf16 copy in the node",
        )
    if method == "local-sgd":
        return Cost(
            share * g * n / x.inner_steps, 0, 0, 0, 0, False, "2 (D-1)/D g N / H", "nothing"
        )
    return Cost(
        share * g * n / x.inner_steps,
        0,
        16 * n / x.inner_steps,
        0,
        8 * n,
        False,
        "2 (D-1)/D g N / H",
        "8 N: old weights and outer momentum, fp32",
    )


def extra_s(x: CompressionInputs, one: Cost) -> float:
    """Return the compute of packing and unpacking: bytes over HBM or FLOPs over half the peak."""
    return max(one.extra_bytes / x.hbm_bytes_per_s, one.extra_flops / (0.5 * x.peak_flops_per_s))


def wire_s(x: CompressionInputs, one: Cost) -> float:
    """Return the time on the wire, seconds; both links in turn."""
    return one.sent_bytes / x.far_bytes_per_s + one.near_bytes / x.near_bytes_per_s


def step_s(x: CompressionInputs, method: str) -> float:
    """Return compute, packing and what of the traffic outlasts the backward, seconds.

    Methods that need the whole gradient first (error feedback over buckets apart) are waited for.
    """
    one = cost(x, method)
    window = WINDOW_FRAC * x.step_s if one.hides else 0.0
    return x.step_s + extra_s(x, one) + max(0.0, wire_s(x, one) - window)


def baseline(method: str) -> str:
    """Return the method that one is compared with."""
    return "zero3" if method in ("zero++", "zero3") else "plain"


def pays_below(x: CompressionInputs, method: str) -> float:
    """Return the bandwidth below which a method makes the step shorter, bytes/s; 0 for never.

    By bisection over the network's bandwidth: what it saves falls with it, what it costs stays.
    """
    base = baseline(method)

    def saves(speed: float) -> float:
        at_speed = replace(x, far_bytes_per_s=speed)
        return step_s(at_speed, base) - step_s(at_speed, method)

    low, high = 1e3, 1e15
    if method == base or saves(low) <= 0:
        return 0.0
    if saves(high) > 0:
        return math.inf
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if saves(middle) > 0 else (low, middle)
    return low


def compression_result(x: CompressionInputs) -> CalculatorResult:
    """Return the answer."""
    one, base = cost(x, x.method), baseline(x.method)
    plain = cost(x, base)
    name, wire, extra = dict(METHODS)[x.method], wire_s(x, one), extra_s(x, one)
    step, before = step_s(x, x.method), step_s(x, base)
    limit = pays_below(x, x.method)
    ratio = plain.sent_bytes / one.sent_bytes if one.sent_bytes else math.inf
    source = SOURCES[x.method]
    speed = shown(x.far_bytes_per_s, "bytes_per_s")
    numbers = (
        Number(
            "sent",
            f"{name}: sent over the network",
            one.sent_bytes,
            "bytes",
            one.formula,
            _put(x),
            source,
            "per step and device",
        ),
        Number(
            "plain",
            f"Uncompressed ({dict(METHODS)[base]})",
            plain.sent_bytes,
            "bytes",
            plain.formula,
            f"N = {sig(x.params)}, D = {x.ranks}, g = {sig(x.gradient_bytes)}",
            SOURCES[base],
        ),
        Number(
            "ratio",
            "Times less",
            ratio,
            "times",
            "plain / sent",
            f"{shown(plain.sent_bytes, 'bytes')} / {shown(one.sent_bytes, 'bytes')}",
            source,
        ),
        Number(
            "wire_s",
            "Time on the wire",
            wire,
            "seconds",
            "sent / B",
            f"{shown(one.sent_bytes, 'bytes')} / {speed}"
            + (
                f" + {shown(one.near_bytes, 'bytes')} / {shown(x.near_bytes_per_s, 'bytes_per_s')}"
                if one.near_bytes
                else ""
            ),
            "definition; latency left out",
            "beside the backward" if one.hides else "waited for",
        ),
        Number(
            "extra_s",
            "Packing and unpacking",
            extra,
            "seconds",
            "max(bytes / B_hbm, FLOPs / (P/2))",
            f"max({shown(one.extra_bytes, 'bytes')} / "
            f"{shown(x.hbm_bytes_per_s, 'bytes_per_s')}, {shown(one.extra_flops, 'flops')} / "
            f"{shown(x.peak_flops_per_s / 2, 'flops_per_s')})",
            "operands counted by hand",
            "small products run far below the peak; at best",
        ),
        Number(
            "held",
            "Further memory",
            one.held_bytes,
            "memory",
            one.memory_formula,
            f"N = {sig(x.params)}, D = {x.ranks}",
            source,
        ),
        Number(
            "step_before",
            "Step uncompressed",
            before,
            "seconds",
            "compute + max(0, wire - 2/3 compute)",
            f"{shown(x.step_s, 'seconds')} + max(0, {shown(wire_s(x, plain), 'seconds')} - "
            f"{shown(WINDOW_FRAC * x.step_s, 'seconds')})",
            WINDOW,
        ),
        Number(
            "step_after",
            f"Step with {name}",
            step,
            "seconds",
            "compute + packing + max(0, wire - window)",
            f"{shown(x.step_s, 'seconds')} + {shown(extra, 'seconds')} + "
            f"{shown(step - x.step_s - extra, 'seconds')}",
            WINDOW,
            "",
            "pays" if step < before else "does not pay",
        ),
        Number(
            "pays_below",
            "Pays on a network below",
            limit,
            "link",
            "B at which both steps are equal",
            "by bisection over B",
            "both steps of this calculator",
            "every other input as it is",
        ),
    )
    differences = (
        Difference(
            "fp8",
            "FP8 cuts the traffic of parallelism in half",
            MODELER,
            plain.sent_bytes / 2,
            plain.sent_bytes,
            "bytes",
            "Only payloads that travel in fp8: "
            "gathered fp8 weights, dispatch to experts. Gradients and tensor-parallel activations "
            "stay in 16 or 32 bits; sums in 8 bits need the scatter and gather that is int8 here.",
        ),
        Difference(
            "top_k",
            "top-k sends a share k of the all-reduce",
            "summaries of compression",
            x.kept * cost(x, "plain").sent_bytes,
            cost(x, "top-k").sent_bytes,
            "bytes",
            "Sparse entries cannot be summed on the way: they are gathered, with an index each, "
            "so the traffic grows with the replicas.",
        ),
    )
    return CalculatorResult(
        f"{name} sends {shown(one.sent_bytes, 'bytes')} instead of "
        f"{shown(plain.sent_bytes, 'bytes')}; a step takes {shown(step, 'seconds')} instead of "
        f"{shown(before, 'seconds')}.",
        numbers,
        _advice(x, step, before, limit),
        (_table(x),),
        differences,
        (
            "What each does to convergence, and the steps it may take more: outside this model.",
            "Warm-up without compression (1-bit Adam: the first 15 to 25 % of the steps).",
            "Sums that hide in buckets: PowerSGD can begin before the backward ends.",
        ),
    )


def _put(x: CompressionInputs) -> str:
    more = {
        "powersgd": f", r = {x.rank}, n = {x.width:,}",
        "top-k": f", k = {sig(x.kept)}",
        "local-sgd": f", H = {x.inner_steps}",
        "diloco": f", H = {x.inner_steps}",
        "zero++": f", {x.per_node} in a node",
    }.get(x.method, "")
    return f"N = {sig(x.params)}, D = {x.ranks}, g = {sig(x.gradient_bytes)}{more}"


def _advice(x: CompressionInputs, step: float, before: float, limit: float) -> tuple[str, ...]:
    if x.method == baseline(x.method):
        return ("This is what the others are compared with.",)
    if step < before:
        return (f"Saves {shown(before - step, 'seconds')} a step, {(1 - step / before):.1%}.",)
    if limit <= 0:
        return ("Costs more than it saves on any network with these inputs.",)
    return (
        f"The network is fast enough to do without: it pays below {shown(limit, 'bytes_per_s')} "
        "of a device.",
    )


def _table(x: CompressionInputs) -> NamedTable:
    rows = []
    for method, name in METHODS:
        one = cost(x, method)
        limit = pays_below(x, method)
        below = "-" if method == baseline(method) else shown(limit, "bytes_per_s")
        rows.append(
            (
                name,
                shown(one.sent_bytes, "bytes"),
                shown(wire_s(x, one), "seconds"),
                shown(extra_s(x, one), "seconds"),
                shown(one.held_bytes, "bytes"),
                shown(step_s(x, method), "seconds"),
                below if limit else "never" if method != baseline(method) else "-",
            )
        )
    heads = (
        "Method",
        "Sent a step",
        "On the wire",
        "Packing",
        "Further memory",
        "Step",
        "Pays below",
    )
    return NamedTable("All methods on these inputs", AnswerTable(heads, tuple(rows)))


def compression_charts(x: CompressionInputs) -> "tuple[Chart, ...]":
    """Return what all methods send, and the step over the bandwidth."""
    from planner.learn.drawing import Axes, ChartText, Line, bars_chart, lines_chart, log_spread

    bars = [(method, cost(x, method).sent_bytes / 1e9) for method, _ in METHODS]
    speeds = log_spread(0.1e9, 400e9, 37)
    shown_ = dict.fromkeys((baseline(x.method), x.method, "int8", "diloco"))
    lines = [
        Line(method, [step_s(replace(x, far_bytes_per_s=b), method) for b in speeds])
        for method in shown_
    ]
    return (
        bars_chart(
            ChartText("sent", "Sent over the network in a step", "Hatched: the method looked at."),
            "GB",
            [bar for bar in bars if bar[1] > 0],
            log_y=True,
            marked=x.method,
        ),
        lines_chart(
            ChartText(
                "step",
                "Step over the network's bandwidth",
                "Compression pays left of where its line crosses that of the plain reduction.",
            ),
            Axes(
                ("Network of a device (GB/s)", [b / 1e9 for b in speeds]),
                "s",
                log_y=True,
                here=x.far_bytes_per_s / 1e9,
            ),
            lines,
        ),
    )


CALCULATOR = Calculator(
    "compression",
    "Compression and local updates",
    "What do compressed gradients and local updates save and cost, and when do they pay?",
    CompressionInputs,
    compression_result,
    compression_charts,
    (
        Preset("PowerSGD of rank 4", {}),
        Preset("1-bit on 10 Gb/s", {"method": "one-bit", "far_bytes_per_s": "10 Gb/s"}),
        Preset("Top-k over 1024 replicas", {"method": "top-k", "ranks": "1024"}),
        Preset("ZeRO++ on 12.5 GB/s", {"method": "zero++", "far_bytes_per_s": "12.5"}),
        Preset(
            "DiLoCo between sites, 1 GB/s",
            {"method": "diloco", "far_bytes_per_s": "1", "inner_steps": "500"},
        ),
    ),
)
