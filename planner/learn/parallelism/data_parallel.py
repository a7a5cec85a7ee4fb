"""Data parallelism: what ZeRO stages send, how long it takes, and what the backward hides."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from planner.learn import fields
from planner.learn.closed_forms import data_parallel_bytes, gradient_least_tokens, hidden_share
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
from planner.learn.writeups import GUIDE, MODELER, OVERVIEW, TAX
from planner.render.report.answers import AnswerTable

if TYPE_CHECKING:
    from planner.render.charts.chart import Chart

ZERO = "Rajbhandari et al. 2020 (ZeRO), section 7; costmodels.traffic.PlanTraffic.transfers"
PORT_SPEEDS_GBIT = (100.0, 200.0, 400.0, 800.0)
"""Ports that are sold by their Gb/s: a figure of so many GB/s is one of them, misread."""


@dataclass(frozen=True, slots=True)
class DataParallelInputs:
    """A model, the devices that average its gradients, and the link between them."""

    model: str = fields.choice("Model", OWN, models(), group="Model")
    params: float = fields.number_field(
        "Parameters",
        of_model("params", 7e9),
        fields.InputRange(1e-4, 1e6, "billion"),
        follows="the model, 7 billion without one",
        group="Model",
    )
    tp: int = fields.count_field(
        "Tensor-parallel size", 1, fields.InputRange(1, 1024), note="t", group="Model"
    )
    pp: int = fields.count_field(
        "Pipeline stages", 1, fields.InputRange(1, 1024), note="p", group="Model"
    )
    gradient_bytes: float = fields.number_field(
        "Bytes of a gradient on the wire",
        2,
        fields.InputRange(0.03, 8),
        note="2 bf16, 4 fp32",
        group="Model",
    )
    weight_bytes: float = fields.number_field(
        "Bytes of a gathered weight", 2, fields.InputRange(0.25, 8), group="Model"
    )
    ranks: int = fields.count_field(
        "Data-parallel devices", 1024, fields.InputRange(1, 1_000_000), note="D", group="Machine"
    )
    zero: str = fields.choice(
        "ZeRO stage",
        "0",
        (("0", "0: all-reduce"), ("1", "1"), ("2", "2"), ("3", "3 (FSDP)")),
        group="Layout",
    )
    micro_batches: int = fields.count_field(
        "Micro-batches of a step", 1, fields.InputRange(1, 100_000), note="m", group="Layout"
    )
    tokens: int = fields.count_field(
        "Tokens of a micro-batch",
        8192,
        fields.InputRange(1, 100_000_000),
        note="on one device",
        group="Layout",
    )
    device: str = fields.choice("Device", DEFAULT_DEVICE, devices(), group="Machine")
    peak_flops_per_s: float = fields.rate(
        "Dense peak", of_device("peak"), follows="the device", group="Machine"
    )
    mfu: float = fields.percent_field("Share of it that is used", 40, note="MFU", group="Machine")
    link_bytes_per_s: float = fields.bandwidth(
        "Link of a device",
        of_device("scale_out"),
        follows="the device's usual port",
        group="Machine",
    )

    @property
    def local(self) -> float:
        """Parameters of a device."""
        return self.params / (self.tp * self.pp)

    @property
    def rate(self) -> float:
        """FLOP/s used."""
        return self.peak_flops_per_s * self.mfu


def sent_bytes(x: DataParallelInputs, zero: int) -> float:
    """Return what a device sends per step under a ZeRO stage, bytes."""
    return data_parallel_bytes(
        x.local, x.ranks, zero, x.micro_batches, x.weight_bytes, x.gradient_bytes
    )


def windows_s(x: DataParallelInputs) -> dict[int, float]:
    """Return by stage the compute that traffic may run beside, seconds.

    Stage 0: the last backward, 4 N n / R. Stage 1: that and the first forward, 2 N n / R more.
    Stages 2: every backward and the first forward; 3: the whole compute.
    """
    backward, forward = (k * x.local * x.tokens / x.rate for k in (4, 2))
    m = x.micro_batches
    return {
        0: backward,
        1: backward + forward,
        2: m * backward + forward,
        3: m * (backward + forward),
    }


def data_parallel_result(x: DataParallelInputs) -> CalculatorResult:
    """Return the answer."""
    zero, d, n, m = int(x.zero), x.ranks, x.local, x.micro_batches
    g, w = x.gradient_bytes, x.weight_bytes
    sent = sent_bytes(x, zero)
    wire = sent / x.link_bytes_per_s
    window = windows_s(x)[zero]
    hidden = hidden_share(wire, window)
    step = 6 * n * x.tokens * m / x.rate
    least = gradient_least_tokens(x.rate, x.link_bytes_per_s, g)
    formula = {
        "0": "2 G N",
        "1": "(G + W) N",
        "2": "(m G + W) N",
        "3": "m (G + 2 W) N",
    }[x.zero] + " (D - 1)/D"
    put = {
        "0": f"2 * {sig(g)}",
        "1": f"({sig(g)} + {sig(w)})",
        "2": f"({m} * {sig(g)} + {sig(w)})",
        "3": f"{m} * ({sig(g)} + 2 * {sig(w)})",
    }[x.zero]
    speed = shown(x.link_bytes_per_s, "bytes_per_s")
    numbers = (
        Number(
            "local",
            "Parameters of a device",
            n,
            "params",
            "N / (t p)",
            f"{sig(x.params)} / ({x.tp} * {x.pp})",
            "definition",
        ),
        Number(
            "gradients",
            "Gradients of a device",
            g * n,
            "bytes",
            "G N",
            f"{sig(g)} * {sig(n)}",
            "definition",
        ),
        Number(
            "sent",
            "Sent by a device in a step",
            sent,
            "bytes",
            formula,
            f"{put} * {sig(n)} * {d - 1}/{d}",
            ZERO,
        ),
        Number(
            "wire_s",
            "Time on the wire",
            wire,
            "seconds",
            "sent / B",
            f"{shown(sent, 'bytes')} / {speed}",
            "definition: ring volume over bandwidth",
            "latency and the fall of bandwidth over many nodes left out",
        ),
        Number(
            "compute_s",
            "Compute of a step",
            step,
            "seconds",
            "6 N n m / R",
            f"6 * {sig(n)} * {x.tokens:,} * {m} / {sig(x.rate)}",
            "costmodels.layers.flops, attention left out",
        ),
        Number(
            "window_s",
            "Compute that may hide it",
            window,
            "seconds",
            *_window(x),
            "costmodels.comm.data_parallel.exposed_once_s, exposed_each_s",
        ),
        Number(
            "hidden",
            "Hidden share",
            hidden,
            "fraction",
            "min(1, window / time)",
            f"min(1, {shown(window, 'seconds')} / {shown(wire, 'seconds')})",
            "costmodels.comm.data_parallel.exposed_once_s",
            "the last bucket is never hidden: see the gradient buckets",
        ),
        Number(
            "exposed_s",
            "Waited for",
            max(0.0, wire - window),
            "seconds",
            "max(0, time - window)",
            f"max(0, {shown(wire, 'seconds')} - {shown(window, 'seconds')})",
            "costmodels.comm.data_parallel.exposed_once_s",
            "",
            "binds" if wire > window else "",
        ),
        Number(
            "least_tokens",
            "Tokens of a device that hide an all-reduce",
            least,
            "tokens",
            "G R / (2 B)",
            f"{sig(g)} * {sig(x.rate)} / (2 * {sig(x.link_bytes_per_s)})",
            "4 N n / R = 2 G N / B solved for n",
            "of the last micro-batch; R / B in bf16",
        ),
        Number(
            "least_bandwidth",
            "Bandwidth that hides it",
            sent / window,
            "link",
            "sent / window",
            f"{shown(sent, 'bytes')} / {shown(window, 'seconds')}",
            "time = window solved for B",
        ),
    )
    advice = []
    if wire > window:
        advice.append(
            f"Traffic outlasts its window by {shown(wire - window, 'seconds')}: more tokens on a "
            f"device ({sig(least)} of a micro-batch), bf16 gradients, or fewer replicas by "
            "splitting the model further."
        )
        if zero == 3 and m > 1:
            advice.append(
                f"Stage 3 pays for each of {m} micro-batches; stage 1 sends "
                f"{shown(sent_bytes(x, 1), 'bytes')} a step."
            )
    return CalculatorResult(
        f"ZeRO {zero} over {d} devices sends {shown(sent, 'bytes')} a step, "
        f"{shown(wire, 'seconds')} at {speed}; {shown(hidden, 'fraction')} of it hides.",
        numbers,
        tuple(advice),
        (_table(x),),
        tuple(_differences(x, sent, wire, hidden, least)),
        (
            "Latency, message sizes, oversubscription, several groups on one port: "
            "`planner solve` has them.",
            "Compute slows down by some 10 % while traffic runs beside it.",
        ),
    )


def _window(x: DataParallelInputs) -> tuple[str, str]:
    """Return the formula of the window, and with the numbers put in."""
    m, zero = x.micro_batches, int(x.zero)
    formula = (
        "4 N n / R: the last backward",
        "6 N n / R: last backward, first forward",
        "(4 m + 2) N n / R: every backward, first forward",
        "6 m N n / R: all compute",
    )[zero]
    times = (4, 6, 4 * m + 2, 6 * m)[zero]
    return formula, f"{times} * {sig(x.local)} * {x.tokens:,} / {sig(x.rate)}"


def _table(x: DataParallelInputs) -> NamedTable:
    rows = []
    windows = windows_s(x)
    for zero in range(4):
        sent = sent_bytes(x, zero)
        wire = sent / x.link_bytes_per_s
        rows.append(
            (
                f"{zero}",
                shown(sent, "bytes"),
                shown(wire, "seconds"),
                shown(hidden_share(wire, windows[zero]), "fraction"),
                shown(max(0.0, wire - windows[zero]), "seconds"),
            )
        )
    heads = ("ZeRO stage", "Sent a step", "Time", "Hidden", "Waited for")
    return NamedTable(f"Every stage with m = {x.micro_batches}", AnswerTable(heads, tuple(rows)))


def _differences(
    x: DataParallelInputs, sent: float, wire: float, hidden: float, least: float
) -> list[Difference]:
    zero, n, g = int(x.zero), x.local, x.gradient_bytes
    limit = 2 * g * n
    window = windows_s(x)[zero]
    results = [
        Difference(
            "per_pass",
            f"ZeRO-{zero} sends {3 if zero == 3 else 2} Phi",
            f"{OVERVIEW}; {GUIDE}",
            (3 if zero == 3 else 2) * g * n,
            sent,
            "bytes",
            "Per pass, for many ranks, and in units of one width. What is gathered or reduced for "
            "each micro-batch is paid m times: ZeRO-3 3 m Phi, ZeRO-2 (m + 1) Phi.",
        ),
        Difference(
            "elements",
            "DDP moves 2N bytes, FSDP 3N",
            GUIDE,
            (3.0 if zero == 3 else 2.0) * n,
            sent,
            "bytes",
            "Those are elements of the whole model, not bytes and not per layer: "
            "4N bytes for an all-reduce in bf16, 8N in fp32; FSDP 6N for every micro-batch.",
        ),
        Difference(
            "upside_down",
            "hidden share = min(1, transfer / window)",
            MODELER,
            1.0 if window <= 0 else min(1.0, wire / window),
            hidden,
            "fraction",
            "Upside down: the longer the transfer, the less of it is hidden.",
        ),
        Difference(
            "tokens",
            "hidden from peak MFU / B tokens on",
            TAX,
            x.rate / x.link_bytes_per_s,
            least,
            "tokens",
            "Right for bf16 gradients with the "
            "whole backward as window. Twice as many with fp32 gradients; with accumulation or a "
            "pipeline the window is that of the last micro-batch.",
        ),
    ]
    gbit = x.link_bytes_per_s * 8 / 1e9
    if any(abs(gbit - speed) < 0.5 for speed in PORT_SPEEDS_GBIT):
        results.insert(
            0,
            Difference(
                "bits_for_bytes",
                f"a port of {gbit:g} moves {gbit:g} GB/s",
                GUIDE,
                limit / (gbit * 1e9),
                wire,
                "seconds",
                f"Ports are sold by bits: {gbit:g} Gb/s "
                f"are {gbit / 8:g} GB/s. Eight times as long on one port; the printed time holds "
                "only where all eight ports of a node serve one ring.",
            ),
        )
    if x.tp > 1:
        results.append(
            Difference(
                "forgets_tp",
                "gradients of a device = model / pipeline stages",
                GUIDE,
                g * x.params / x.pp,
                g * n,
                "bytes",
                "Tensor parallelism divides them too: N / (t p).",
            )
        )
    return results


def data_parallel_charts(x: DataParallelInputs) -> "tuple[Chart, ...]":
    """Return what the stages send over micro-batches, and waiting over tokens."""
    from planner.learn.drawing import Axes, ChartText, Line, lines_chart

    counts = [1, 2, 4, 8, 16, 32, 64]
    stages = [
        Line(
            f"stage {zero}", [sent_bytes(replace(x, micro_batches=m), zero) / 1e9 for m in counts]
        )
        for zero in range(4)
    ]
    tokens = [256 * 2**k for k in range(11)]
    zero = int(x.zero)
    one = [replace(x, tokens=n) for n in tokens]
    both = [
        Line("time on the wire", [sent_bytes(y, zero) / y.link_bytes_per_s * 1e3 for y in one]),
        Line("compute that may hide it", [windows_s(y)[zero] * 1e3 for y in one]),
    ]
    return (
        lines_chart(
            ChartText(
                "window",
                "Traffic and its window over the tokens of a device",
                "The traffic does not depend on the tokens, its window grows with them.",
            ),
            Axes(("Tokens of a micro-batch on a device", tokens), "ms", log_y=True, here=x.tokens),
            both,
        ),
        lines_chart(
            ChartText(
                "stages",
                "What each stage sends over micro-batches",
                "Stages 0 and 1 send once a step, stage 2 its gradients and"
                " stage 3 everything for "
                "each micro-batch.",
            ),
            Axes(("Micro-batches of a step", counts), "GB", log_y=True, here=x.micro_batches),
            stages,
        ),
    )


CALCULATOR = Calculator(
    "data-parallel",
    "Gradients and ZeRO traffic",
    "How long do gradients take, and do they hide behind the backward?",
    DataParallelInputs,
    data_parallel_result,
    data_parallel_charts,
    (
        Preset("7 billion over one HDR port", {"link_bytes_per_s": "25"}),
        Preset("ResNet-50", {"params": "0.0256", "link_bytes_per_s": "25"}),
        Preset(
            "Llama 3 70B, ZeRO 3, 8 micro-batches",
            {
                "model": "llama3-70b",
                "zero": "3",
                "micro_batches": "8",
                "ranks": "64",
                "gradient_bytes": "4",
            },
        ),
        Preset("GPT-3 at t 8, p 8", {"params": "175", "tp": "8", "pp": "8", "ranks": "16"}),
    ),
)
