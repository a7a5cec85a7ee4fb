"""Least bandwidth of every axis: what a link must move so that traffic hides."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hardware.catalogue import load_catalogue
from planner.learn import fields
from planner.learn.closed_forms import (
    expert_least_bandwidth,
    message_least_bandwidth,
    sharded_least_tokens,
)
from planner.learn.machines import (
    DEFAULT_DEVICE,
    DEFAULT_MODEL,
    OWN,
    devices,
    models,
    of_device,
    of_model,
    shape,
)
from planner.learn.resources.overlap import layer_weights_of
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
from planner.learn.writeups import MODELER, TAX
from planner.render.report.answers import AnswerTable

if TYPE_CHECKING:
    from planner.render.charts.chart import Chart


@dataclass(frozen=True, slots=True)
class LeastBandwidthInputs:
    """A layer, a layout and the rate of a device."""

    model: str = fields.choice("Model", DEFAULT_MODEL, models(), group="Model")
    layers: int = fields.count_field(
        "Layers",
        of_model("layers", 80),
        fields.InputRange(1, 10_000),
        follows="the model",
        group="Model",
    )
    hidden: int = fields.count_field(
        "Hidden width",
        of_model("hidden", 8192),
        fields.InputRange(16, 1_000_000),
        note="h",
        follows="the model",
        group="Model",
    )
    layer_weights: float = fields.number_field(
        "Weights of a layer",
        layer_weights_of,
        fields.InputRange(1e-3, 1e7, "million"),
        note="those that a token meets",
        follows="the model, 12 h^2 without one",
        group="Model",
    )
    kv_share: float = fields.percent_field(
        "Width of keys over queries",
        12.5,
        fields.InputRange(0.1, 100, "%"),
        note="KV heads over heads",
        group="Model",
    )
    expert_ffn: int = fields.count_field(
        "Width of an expert",
        lambda v: 2048 if v["model"] == OWN else max(shape(v["model"]).expert_ffn, 0) or 2048,
        fields.InputRange(1, 10_000_000),
        follows="the model, 2048 without experts",
        group="Model",
    )
    tokens: int = fields.count_field(
        "Tokens of a micro-batch",
        8192,
        fields.InputRange(1, 100_000_000),
        note="n = b s / c on a rank",
        group="Layout",
    )
    tp: int = fields.count_field(
        "Tensor-parallel size", 8, fields.InputRange(1, 1024), note="t", group="Layout"
    )
    pp: int = fields.count_field(
        "Pipeline stages", 4, fields.InputRange(1, 256), note="p", group="Layout"
    )
    vpp: int = fields.count_field(
        "Chunks of a stage", 1, fields.InputRange(1, 64), note="v", group="Layout"
    )
    ep: int = fields.count_field(
        "Expert-parallel size", 8, fields.InputRange(1, 4096), group="Layout"
    )
    gradient_bytes: float = fields.number_field(
        "Bytes of a gradient on the wire", 4, fields.InputRange(0.03, 8), group="Layout"
    )
    tax: float = fields.percent_field(
        "Acceptable tax of tensor parallelism",
        10,
        fields.InputRange(1, 100, "%"),
        note="of the forward",
        group="Layout",
    )
    device: str = fields.choice("Device", DEFAULT_DEVICE, devices(), group="Machine")
    peak_flops_per_s: float = fields.rate(
        "Dense peak", of_device("peak"), follows="the device", group="Machine"
    )
    share: float = fields.percent_field("Share of it that products sustain", 60, group="Machine")
    near_bytes_per_s: float = fields.bandwidth(
        "Scale-up link", of_device("scale_up"), follows="the device", group="Machine"
    )
    far_bytes_per_s: float = fields.bandwidth(
        "Network port", of_device("scale_out"), follows="the device", group="Machine"
    )

    @property
    def rate(self) -> float:
        """FLOP/s that products sustain."""
        return self.peak_flops_per_s * self.share


def least(x: LeastBandwidthInputs) -> dict[str, float]:
    """Return by axis the bandwidth at which its traffic hides (tp: costs the acceptable tax)."""
    ratio = x.layer_weights / (12 * x.hidden**2)
    chunk = x.layer_weights * x.layers / (x.pp * x.vpp)
    return {
        "tp": (x.tp - 1) * x.rate / (3 * x.tax * x.hidden * ratio),
        "cp": 2 * x.rate * x.kv_share / x.tokens,
        "ep": expert_least_bandwidth(x.expert_ffn, x.rate, x.ep),
        "pp": message_least_bandwidth(x.hidden, chunk, x.rate) if x.pp > 1 else 0.0,
        "dp": x.gradient_bytes * x.rate / (2 * x.tokens),
        "zero3": sharded_least_tokens(x.rate, 1.0, 2.0, x.gradient_bytes) / x.tokens,
    }


def least_bandwidth_result(x: LeastBandwidthInputs) -> CalculatorResult:
    """Return the answer."""
    result, r, n = least(x), x.rate, x.tokens
    ratio = x.layer_weights / (12 * x.hidden**2)
    chunk = x.layer_weights * x.layers / (x.pp * x.vpp)
    rows = (
        (
            "tp",
            f"Tensor parallelism, tax {shown(x.tax, 'fraction')}",
            "(t - 1) R / (3 tax h k)",
            f"{x.tp - 1} * {sig(r)} / (3 * {sig(x.tax)} * {x.hidden:,} * {sig(ratio)})",
            "k: weights of the layer over 12 h^2",
        ),
        (
            "cp",
            "Ring attention",
            "2 R h_kv / (h_q n)",
            f"2 * {sig(r)} * {sig(x.kv_share)} / {n:,}",
            "falls with the tokens of a rank",
        ),
        (
            "ep",
            "Experts: dispatch and combine beside their products",
            "2 R (e - 1)/e / (3 f_e)",
            f"2 * {sig(r)} * {x.ep - 1}/{x.ep} / (3 * {x.expert_ffn:,})",
            "neither tokens nor k count; narrow experts need most",
        ),
        (
            "pp",
            "Pipeline: a message as short as a forward",
            "h R / (N_chunk)",
            f"{x.hidden:,} * {sig(r)} / {sig(chunk)}",
            "each of t ranks sends 1/t of it with sequence parallelism: both divide by t",
        ),
        (
            "dp",
            "Gradients behind the last backward",
            "G R / (2 n)",
            f"{sig(x.gradient_bytes)} * {sig(r)} / (2 * {n:,})",
            "an all-reduce; N drops out",
        ),
        (
            "zero3",
            "ZeRO 3 behind each micro-batch",
            "(2 W + G) R / (6 n)",
            f"(4 + {sig(x.gradient_bytes)}) * {sig(r)} / (6 * {n:,})",
            "two gathers, one reduction",
        ),
    )
    numbers = tuple(
        Number(
            key,
            title,
            result[key],
            "link",
            formula,
            put,
            "planner.learn.closed_forms: traffic = compute, solved for B",
            note,
            _reach(x, result[key]),
        )
        for key, title, formula, put, note in rows
    )
    hardest = max(result, key=lambda key: result[key])
    advice = tuple(
        f"{title}: {_links(result[key])}." for key, title, *_ in rows if result[key] > 0
    )
    differences = (
        Difference(
            "fp8",
            "FP8 halves the bandwidth that parallelism needs",
            MODELER,
            result["dp"] / 2,
            result["dp"],
            "link",
            "Only what travels in fp8: gathered fp8 weights, dispatch to "
            "experts. Gradients (here), tensor-parallel activations and the combine of experts "
            "stay in 16 or 32 bits, while compute gets faster: the need grows.",
        ),
        Difference(
            "tp",
            "tensor parallelism needs peak / (3 tax h)",
            TAX,
            x.peak_flops_per_s / (3 * x.tax * x.hidden),
            result["tp"],
            "link",
            "(t - 1) is missing, and the layer sustains less than the peak.",
        ),
    )
    return CalculatorResult(
        f"{hardest} needs most: {shown(result[hardest], 'bytes_per_s')} one way; "
        f"the scale-up link "
        f"has {shown(x.near_bytes_per_s, 'bytes_per_s')}, the port "
        f"{shown(x.far_bytes_per_s, 'bytes_per_s')}.",
        numbers,
        advice,
        (_table(x),),
        differences,
        (
            "Latency, message sizes and protocols; `planner recommend bandwidth` "
            "searches with them.",
            "Attention, which adds compute and so lowers what long sequences need.",
        ),
    )


def _reach(x: LeastBandwidthInputs, need: float) -> str:
    if need <= x.far_bytes_per_s:
        return "network is enough"
    return "scale-up is enough" if need <= x.near_bytes_per_s else "no link is enough"


def _links(need: float) -> str:
    """Return which ports of the catalogue reach a bandwidth."""
    links = [
        x
        for x in load_catalogue().links.values()
        if x.kind == "scale-out" and x.status == "confirmed"
    ]
    enough = [x for x in links if x.bytes_per_s >= need]
    if not enough:
        return f"no single port reaches {shown(need, 'bytes_per_s')}"
    slowest = min(enough, key=lambda x: (x.bytes_per_s, x.name))
    speed = shown(slowest.bytes_per_s, "bits_per_s")
    return f"a port of {speed} is enough, such as {slowest.name}"


def _table(x: LeastBandwidthInputs) -> NamedTable:
    rows = []
    for n in (1024, 2048, 4096, 8192, 16384, 32768):
        result = least(replace(x, tokens=n))
        rows.append((n, *(shown(result[key], "bytes_per_s") for key in ("cp", "dp", "zero3"))))
    heads = ("Tokens of a rank", "Ring attention", "Gradients", "ZeRO 3")
    return NamedTable("What falls with the tokens", AnswerTable(heads, tuple(rows)))


def least_bandwidth_charts(x: LeastBandwidthInputs) -> "tuple[Chart, ...]":
    """Return the need of every axis over the tokens of a micro-batch."""
    from planner.learn.drawing import Axes, ChartText, Line, lines_chart

    tokens = [256 * 2**k for k in range(11)]
    each = [least(replace(x, tokens=n)) for n in tokens]
    results = [Line(key, [one[key] / 1e9 for one in each]) for key in each[0] if each[0][key] > 0]
    return (
        lines_chart(
            ChartText(
                "need",
                "Least bandwidth over the tokens of a rank",
                "Tensor, expert and pipeline traffic need the same whatever the"
                " tokens; the others "
                "need less with more of them.",
            ),
            Axes(
                ("Tokens of a micro-batch on a rank", tokens),
                "GB/s one way",
                log_y=True,
                here=x.tokens,
                level=("network port", x.far_bytes_per_s / 1e9),
            ),
            results,
        ),
    )


CALCULATOR = Calculator(
    "bandwidth",
    "Least bandwidth of every axis",
    "How fast must a link be so that the traffic of an axis hides?",
    LeastBandwidthInputs,
    least_bandwidth_result,
    least_bandwidth_charts,
    (
        Preset("Llama 3 70B on H100", {}),
        Preset("The same on B200", {"device": "b200-sxm-180gb"}),
        Preset("2048 tokens", {"tokens": "2048"}),
        Preset(
            "DeepSeek-V3",
            {
                "model": "deepseek-v3",
                "tp": "1",
                "pp": "16",
                "ep": "64",
                "tokens": "4096",
                "kv_share": "100",
            },
        ),
    ),
)
