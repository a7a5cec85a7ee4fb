"""Communication-to-compute ratio, ridge points, and the batch where a job is bound by compute."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hardware.catalogue import load_catalogue, ridge_points
from planner.learn import fields
from planner.learn.machines import (
    DEFAULT_DEVICE,
    OWN,
    device,
    devices,
    models,
    of_device,
    of_model,
    peak,
    ports,
    precision,
)
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
from planner.learn.writeups import BOUNDS, GUIDE, SHEETS
from planner.render.report.answers import AnswerTable

if TYPE_CHECKING:
    from planner.render.charts.chart import Chart


@dataclass(frozen=True, slots=True)
class IntensityInputs:
    """One replica's work between two averages of its gradients, and the links."""

    model: str = fields.choice("Model", OWN, models(), group="Job")
    params: float = fields.number_field(
        "Parameters",
        of_model("params", 175e9),
        fields.InputRange(1e-4, 1e6, "billion"),
        follows="the model, 175 billion without one",
        group="Job",
    )
    tokens: int = fields.count_field(
        "Tokens of a sequence", 2048, fields.InputRange(1, 100_000_000), note="s", group="Job"
    )
    batch: int = fields.count_field(
        "Sequences of a replica",
        1,
        fields.InputRange(1, 1_000_000),
        note="b, between two all-reduces",
        group="Job",
    )
    gradient_bytes: float = fields.number_field(
        "Bytes of a gradient on the wire", 2, fields.InputRange(0.03, 8), group="Job"
    )
    device: str = fields.choice("Device", DEFAULT_DEVICE, devices(), group="Machine")
    port: str = fields.choice(
        "Network port", "ib-ndr-400", ports(), note="one per device", group="Machine"
    )
    peak_flops_per_s: float = fields.rate(
        "Dense peak", of_device("peak"), follows="the device", group="Machine"
    )
    mfu: float = fields.percent_field(
        "Share of it that is used", 100, note="100: the ridge itself", group="Machine"
    )
    link_bytes_per_s: float = fields.bandwidth(
        "Scale-up link", of_device("scale_up"), follows="the device", group="Machine"
    )


def ratio(tokens: float, gradient_bytes: float) -> float:
    """Return the FLOPs of a step over the bytes of its all-reduce: 6 N b s / (2 N g).

    N drops out. Source: 6 FLOPs a parameter and token; ring volume for many ranks. Left out:
    attention scores.

    >>> ratio(2048, 2.0)
    3072.0
    """
    return 6 * tokens / (2 * gradient_bytes)


def intensity_result(x: IntensityInputs) -> CalculatorResult:
    """Return the answer."""
    part, link = device(x.device), load_catalogue().link(x.port)
    n_tokens = x.batch * x.tokens
    ccr = ratio(n_tokens, x.gradient_bytes)
    rate = x.peak_flops_per_s * x.mfu
    levels = {
        "scale_up": ("scale-up link", rate / x.link_bytes_per_s),
        "scale_out": (f"{link.name} port", rate / link.bytes_per_s),
    }
    hbm = ridge_points(part)[0].flops_per_byte * rate / peak(part)
    source = "Williams et al. 2009 (roofline); hardware.catalogue.ridge_points"
    numbers = [
        Number(
            "ccr",
            "Compute over communication",
            ccr,
            "flops_per_byte",
            "6 N b s / (2 g N)",
            f"6 * {n_tokens:,} / (2 * {sig(x.gradient_bytes)})",
            "6 FLOPs a parameter and token over the ring all-reduce",
            "N drops out",
        ),
        Number(
            "flops",
            "Compute of a replica",
            6 * x.params * n_tokens,
            "flops",
            "6 N b s",
            f"6 * {sig(x.params)} * {n_tokens:,}",
            "costmodels.layers.flops; attention left out",
        ),
        Number(
            "sent",
            "Bytes of the all-reduce",
            2 * x.gradient_bytes * x.params,
            "bytes",
            "2 g N",
            f"2 * {sig(x.gradient_bytes)} * {sig(x.params)}",
            "ring, many ranks",
        ),
        Number(
            "ridge_hbm",
            "Ridge of the memory",
            hbm,
            "flops_per_byte",
            "P / B",
            f"{sig(rate)} / {sig(part.hbm_bytes_per_s)}",
            source,
        ),
    ]
    for key, (name, ridge) in levels.items():
        least = ridge * 2 * x.gradient_bytes / 6
        bandwidth = x.link_bytes_per_s if key == "scale_up" else link.bytes_per_s
        bound = "communication" if ccr < ridge else "compute"
        numbers += [
            Number(
                f"ridge_{key}",
                f"Ridge of the {name}",
                ridge,
                "flops_per_byte",
                "P / B",
                f"{sig(rate)} / {sig(bandwidth)}",
                source,
                "dense peak, one direction",
                f"bound by {bound}",
            ),
            Number(
                f"tokens_{key}",
                f"Tokens that are enough for the {name}",
                least,
                "tokens",
                "g P / (3 B)",
                f"{sig(x.gradient_bytes)} * {sig(rate)} / (3 * {sig(bandwidth)})",
                "ratio = ridge solved for b s",
                f"{sig(max(1.0, least / x.tokens))} sequences; the whole step as window",
            ),
        ]
    return CalculatorResult(
        f"{n_tokens:,} tokens a replica give {shown(ccr, 'flops_per_byte')}; the ridge of the "
        f"scale-up link is {shown(levels['scale_up'][1], 'flops_per_byte')}, of the port "
        f"{shown(levels['scale_out'][1], 'flops_per_byte')}.",
        tuple(numbers),
        _advice(x, ccr, levels),
        (_table(x),),
        tuple(_differences(x, ccr, levels)),
        (
            "What products really sustain: lower the share to see the ridge that counts.",
            "Hiding: left of the ridge traffic outlasts the whole compute, and cannot hide.",
        ),
    )


def _advice(
    x: IntensityInputs, ccr: float, levels: dict[str, tuple[str, float]]
) -> tuple[str, ...]:
    results = []
    for name, ridge in levels.values():
        if ccr < ridge:
            times = ridge / ccr
            results.append(
                f"Bound by the {name}: {times:.1f} times as many tokens between two all-reduces, "
                "or as many times the bandwidth, make it bound by compute."
            )
    return tuple(results) or ("Bound by compute on both links: traffic can hide.",)


def _table(x: IntensityInputs) -> NamedTable:
    rows = [
        (batch, shown(ratio(batch * x.tokens, x.gradient_bytes), "flops_per_byte"))
        for batch in (1, 4, 16, 64, 256)
    ]
    return NamedTable(
        "Ratio by sequences of a replica", AnswerTable(("Sequences", "FLOP/byte"), tuple(rows))
    )


def _differences(
    x: IntensityInputs, ccr: float, levels: dict[str, tuple[str, float]]
) -> list[Difference]:
    ours, out = levels["scale_up"][1], levels["scale_out"][1]
    sparse, both = 2 * x.peak_flops_per_s, 2 * x.link_bytes_per_s
    link = load_catalogue().link(x.port)
    return [
        Difference(
            "sparse_and_both",
            "ridge = sparse peak / both directions of the link",
            GUIDE,
            sparse / both,
            ours,
            "flops_per_byte",
            "Twice too much over twice too much: the "
            "quotient is right by luck (at 100 % of the peak).",
        ),
        Difference(
            "dense_and_both",
            "ridge = dense peak / both directions of the link",
            GUIDE,
            x.peak_flops_per_s / both,
            ours,
            "flops_per_byte",
            "The same table with the dense "
            "peak, as for A100 (520): both directions summed make the link look twice as fast. "
            "Dense over one direction.",
        ),
        Difference(
            "sparse_port",
            "ridge over several nodes = sparse peak / one port",
            GUIDE,
            sparse / link.bytes_per_s,
            out,
            "flops_per_byte",
            "Here the port is counted one way "
            "and the peak still sparse: twice too high. Training has no 2:4 sparse weights.",
        ),
        Difference(
            "per_sequence",
            "compute = 6 N per sample",
            BOUNDS,
            6 * x.batch / (2 * x.gradient_bytes),
            ccr,
            "flops_per_byte",
            "6 FLOPs a parameter and token; a sample of s tokens has s times as many.",
        ),
        Difference(
            "sparse_peak",
            "the peak of the data sheet",
            SHEETS,
            sparse,
            x.peak_flops_per_s,
            "flops_per_s",
            "With 2:4 sparsity; dense training reaches half at most.",
        ),
    ]


def intensity_charts(x: IntensityInputs) -> "tuple[Chart, ...]":
    """Return the communication roofline with the batches."""
    from planner.learn.drawing import Axes, ChartText, Line, lines_chart, log_spread

    link = load_catalogue().link(x.port)
    places = log_spread(100.0, 1e6)
    rate = x.peak_flops_per_s * x.mfu
    results = [
        Line(name, [min(rate, place * speed) / 1e12 for place in places])
        for name, speed in (
            (f"scale-up link, {shown(x.link_bytes_per_s, 'bytes_per_s')}", x.link_bytes_per_s),
            (f"{link.name}, {shown(link.bytes_per_s, 'bytes_per_s')}", link.bytes_per_s),
        )
    ]
    batches = [2**k for k in range(13)]
    by_batch = [
        Line("ratio of the job", [ratio(b * x.tokens, x.gradient_bytes) for b in batches]),
        Line("ridge of the scale-up link", [rate / x.link_bytes_per_s] * len(batches)),
        Line("ridge of the port", [rate / link.bytes_per_s] * len(batches)),
    ]
    return (
        lines_chart(
            ChartText(
                "roofline",
                "Communication roofline",
                f"{precision(device(x.device))} rate that a device can keep up"
                f" over FLOPs per byte "
                "sent; flat where compute is the limit.",
            ),
            Axes(
                ("FLOP per byte sent", places),
                "TFLOP/s",
                log_y=True,
                here=ratio(x.batch * x.tokens, x.gradient_bytes),
            ),
            results,
        ),
        lines_chart(
            ChartText(
                "batch",
                "Ratio over the sequences of a replica",
                "Where the rising line is above a ridge, compute is the limit on that link.",
            ),
            Axes(("Sequences of a replica", batches), "FLOP/byte", log_y=True, here=x.batch),
            by_batch,
        ),
    )


CALCULATOR = Calculator(
    "intensity",
    "Communication-to-compute ratio",
    "From which batch is a data-parallel job bound by compute, and where are the ridge points?",
    IntensityInputs,
    intensity_result,
    intensity_charts,
    (
        Preset("GPT-3, one sequence of 2048", {}),
        Preset("64 sequences", {"batch": "64"}),
        Preset("A100 over HDR", {"device": "a100-sxm-80gb", "port": "ib-hdr-200"}),
        Preset("B200 over XDR", {"device": "b200-sxm-180gb", "port": "ib-xdr-800"}),
    ),
)
