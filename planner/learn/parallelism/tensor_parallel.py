"""Tensor parallelism: what it sends for a layer, and what share of the compute that is."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from planner.learn import fields
from planner.learn.closed_forms import all_reduce_bytes, tensor_layer_bytes, tensor_tax
from planner.learn.machines import DEFAULT_DEVICE, devices, of_device
from planner.learn.results import (
    Calculator,
    CalculatorResult,
    Difference,
    Number,
    Preset,
    shown,
    sig,
)
from planner.learn.writeups import GUIDE, MODELER, NOTES, OVERVIEW, TAX

if TYPE_CHECKING:
    from planner.render.charts.chart import Chart

SP_PASSES = 5.0
"""Gathers and scatters with sequence parallelism, in pairs: ten of (t - 1)/t instead of eight."""
ACCEPTABLE_TAX = 0.1


@dataclass(frozen=True, slots=True)
class TensorParallelInputs:
    """A layer of 12 h^2 weights on tensor-parallel devices."""

    sequences: int = fields.count_field(
        "Sequences", 1, fields.InputRange(1, 10_000), note="b", group="Micro-batch"
    )
    tokens: int = fields.count_field(
        "Tokens of a sequence",
        2048,
        fields.InputRange(1, 10_000_000),
        note="s",
        group="Micro-batch",
    )
    hidden: int = fields.count_field(
        "Hidden width", 12288, fields.InputRange(16, 1_000_000), note="h", group="Model"
    )
    layers: int = fields.count_field("Layers", 96, fields.InputRange(1, 10_000), group="Model")
    tp: int = fields.count_field(
        "Tensor-parallel size", 8, fields.InputRange(1, 1024), note="t", group="Layout"
    )
    element_bytes: float = fields.number_field(
        "Bytes of an activation", 2, fields.InputRange(0.5, 8), note="2 in bf16", group="Model"
    )
    device: str = fields.choice("Device", DEFAULT_DEVICE, devices(), group="Machine")
    peak_flops_per_s: float = fields.rate(
        "Dense peak", of_device("peak"), follows="the device", group="Machine"
    )
    gemm_share: float = fields.percent_field("Share that products sustain", 60, group="Machine")
    link_bytes_per_s: float = fields.bandwidth(
        "Link between the ranks",
        of_device("scale_up"),
        follows="the device's scale-up link",
        group="Machine",
    )

    @property
    def tensor_bytes(self) -> float:
        """One activation: e b s h."""
        return self.element_bytes * self.sequences * self.tokens * self.hidden


def tax(x: TensorParallelInputs, share: float) -> float:
    """Return traffic over compute of a layer at a share of the peak."""
    rate = x.peak_flops_per_s * share
    return tensor_tax(x.tp, rate, x.link_bytes_per_s, x.hidden, 1.0, x.element_bytes)


def tensor_parallel_result(x: TensorParallelInputs) -> CalculatorResult:
    """Return the answer."""
    t, total = x.tp, x.tensor_bytes
    one = all_reduce_bytes(total, t)
    layer = tensor_layer_bytes(total, t)
    with_sp = tensor_layer_bytes(total, t, SP_PASSES)
    model, sent_s = x.layers * layer, layer / x.link_bytes_per_s
    flops = 6 * 12 * x.hidden**2 * x.sequences * x.tokens / t
    rate = x.peak_flops_per_s * x.gemm_share
    at_peak, at_share = tax(x, 1.0), tax(x, x.gemm_share)
    least = x.link_bytes_per_s * at_share / ACCEPTABLE_TAX
    tensor, b = shown(total, "bytes"), shown(x.link_bytes_per_s, "bytes_per_s")
    megatron = "Shoeybi et al. 2019, section 3; costmodels.traffic.PlanTraffic.transfers"
    numbers = (
        Number(
            "tensor",
            "Activation between layers",
            total,
            "bytes",
            "e b s h",
            f"{sig(x.element_bytes)} * {x.sequences} * {x.tokens:,} * {x.hidden:,}",
            "definition",
        ),
        Number(
            "all_reduce",
            "Sent in one all-reduce",
            one,
            "bytes",
            "2 (t - 1)/t e b s h",
            f"2 * {t - 1}/{t} * {tensor}",
            "Patarasuk and Yuan 2009; costmodels.traffic.PlanTraffic.transfers",
        ),
        Number(
            "layer",
            "Sent for a layer and micro-batch",
            layer,
            "bytes",
            "4 * 2 (t - 1)/t e b s h",
            f"4 * {shown(one, 'bytes')}",
            megatron,
            "two all-reduces forward, two backward",
        ),
        Number(
            "layer_sp",
            "The same with sequence parallelism",
            with_sp,
            "bytes",
            "10 (t - 1)/t e b s h",
            f"10 * {t - 1}/{t} * {tensor}",
            "Korthikanti et al. 2022, section 4.2; Megatron-LM tensor_parallel/layers.py",
            "inputs are gathered again in backward, mostly beside compute",
        ),
        Number(
            "model",
            "Sent for all layers, each micro-batch",
            model,
            "bytes",
            "L * layer",
            f"{x.layers} * {shown(layer, 'bytes')}",
            megatron,
        ),
        Number(
            "layer_s",
            "Time of it for a layer",
            sent_s,
            "seconds",
            "layer / B",
            f"{shown(layer, 'bytes')} / {b}",
            "definition; latency left out",
        ),
        Number(
            "layer_compute_s",
            "Compute of a layer",
            flops / rate,
            "seconds",
            "6 * 12 h^2 b s / (t R)",
            f"{shown(flops, 'flops')} / {shown(rate, 'flops_per_s')}",
            "6 FLOPs a weight and token, 12 h^2 weights; attention scores left out",
        ),
        Number(
            "tax_peak",
            "Tax on the forward at the peak rate",
            at_peak,
            "fraction",
            "e (t - 1) P / (6 B h), (t - 1) P / (3 B h) in bf16",
            f"{sig(x.element_bytes)} * {t - 1} * {sig(x.peak_flops_per_s)} / (6 * "
            f"{sig(x.link_bytes_per_s)} * {x.hidden:,})",
            "two all-reduces over 24 h^2 b s / (t P) of forward",
        ),
        Number(
            "tax",
            "Tax on the forward at the rate that products sustain",
            at_share,
            "fraction",
            "(t - 1) R / (3 B h)",
            f"{sig(x.gemm_share)} * {sig(at_peak)}",
            "two all-reduces over 24 h^2 b s / (t R) of forward",
            "before anything is hidden",
            "binds" if at_share > ACCEPTABLE_TAX else "",
        ),
        Number(
            "tax_step",
            "Tax on forward and backward",
            sent_s / (flops / rate) if t > 1 else 0.0,
            "fraction",
            "(layer / B) / compute = 2/3 of the forward's",
            f"{shown(sent_s, 'seconds')} / {shown(flops / rate, 'seconds')}",
            "four all-reduces over 72 h^2 b s / (t R)",
            "the backward has the same messages and twice the products",
        ),
        Number(
            "least_bandwidth",
            "Bandwidth for a forward tax of 10 %",
            least,
            "link",
            "(t - 1) R / (3 h * 0.1)",
            f"{b} * {sig(at_share)} / {ACCEPTABLE_TAX}",
            "the tax solved for B",
        ),
    )
    advice = []
    if t > 1 and at_share > ACCEPTABLE_TAX:
        half = tensor_tax(max(2, t // 2), rate, x.link_bytes_per_s, x.hidden, 1.0, x.element_bytes)
        if t > 2:
            advice.append(
                f"Half the ranks ({t // 2}) pay {half:.0%}: the tax grows with t - 1. Use "
                "pipeline or ZeRO for the memory instead."
            )
        advice.append(
            "Sequence parallelism with overlapped pieces (userbuffers, async TP) hides most of a "
            "gather behind its product; larger models pay less, in proportion to 1/h."
        )
    return CalculatorResult(
        f"Tensor parallelism over {t} sends {shown(layer, 'bytes')} a layer and micro-batch and "
        f"costs {shown(at_share, 'fraction')} of its forward before overlap.",
        numbers,
        tuple(advice),
        (),
        tuple(_differences(x, layer, with_sp, model, at_share)),
        (
            "Gated MLPs and grouped queries: a layer of k 12 h^2 weights divides the tax by k.",
            "Embedding, head and loss: one more transfer of the activation each way.",
            "Latency of a collective, some 10 to 50 us each, which counts below 2048 tokens.",
        ),
    )


def _differences(
    x: TensorParallelInputs, layer: float, with_sp: float, model: float, at_share: float
) -> list[Difference]:
    t, total = x.tp, x.tensor_bytes
    both_ways = 2 * x.link_bytes_per_s
    results = [
        Difference(
            "divided_volume",
            "volume = 2 (b s h / t) e, twice a layer",
            MODELER,
            2 * 2 * total / t,
            layer,
            "bytes",
            "The 1/t is wrong: a ring all-reduce moves "
            "2 (t - 1)/t of the whole tensor on every rank. And training has four of them in a "
            "layer, not two.",
        ),
        Difference(
            "half_volume",
            "a layer has two all-reduces",
            GUIDE,
            2 * all_reduce_bytes(total, t),
            layer,
            "bytes",
            "That is the forward pass. The "
            "backward has two more: four for each layer and micro-batch.",
        ),
        Difference(
            "model_volume",
            "the model's layers together, of two all-reduces each, an iteration",
            GUIDE,
            x.layers * 2 * all_reduce_bytes(total, t),
            model,
            "bytes",
            "Four all-reduces a layer, and for every micro-batch rather than once an iteration.",
        ),
        Difference(
            "same_with_sp",
            "with sequence parallelism the traffic is the same",
            f"{NOTES}; {OVERVIEW}",
            layer,
            with_sp,
            "bytes",
            "Forward yes. Backward gathers the "
            "inputs of the column-parallel layers again, of which only shards were kept: ten "
            "transfers of (t - 1)/t instead of eight.",
        ),
        Difference(
            "tax_both_directions",
            "tax = peak / (3 B h), B both directions of the link",
            TAX,
            x.peak_flops_per_s / (3 * both_ways * x.hidden),
            at_share,
            "fraction",
            "It forgets that t divides the layer's compute too: (t - 1) times as much; and it "
            "divides by the sum of both directions of the link. It counts compute at the peak, "
            "which works the other way.",
        ),
        Difference(
            "tax_one_direction",
            "tax = peak / (3 B h), B one direction",
            TAX,
            x.peak_flops_per_s / (3 * x.link_bytes_per_s * x.hidden),
            at_share,
            "fraction",
            "As above, for a port whose speed is printed for one direction, such as InfiniBand: "
            "(t - 1) is missing.",
        ),
    ]
    return results if t > 1 else results[:1]


def tensor_parallel_charts(x: TensorParallelInputs) -> "tuple[Chart, ...]":
    """Return the tax over t for the link at hand and for the network port."""
    from planner.learn.drawing import Axes, ChartText, Line, lines_chart
    from planner.learn.machines import device, device_port_bytes_per_s, port

    part = device(x.device)
    sizes = [1, 2, 4, 8, 16, 32, 64]
    results = []
    for name, speed in (
        (f"link at hand, {shown(x.link_bytes_per_s, 'bytes_per_s')}", x.link_bytes_per_s),
        (port(part)[0].name, device_port_bytes_per_s(part)),
    ):
        results.append(
            Line(
                name,
                [100 * tax(replace(x, tp=t, link_bytes_per_s=speed), x.gemm_share) for t in sizes],
            )
        )
    widths = [1024 * 2**k for k in range(7)]
    by_width = [
        Line(f"t = {t}", [100 * tax(replace(x, tp=t, hidden=h), x.gemm_share) for h in widths])
        for t in (2, 4, 8)
    ]
    return (
        lines_chart(
            ChartText(
                "tax",
                "Tax over the tensor-parallel size",
                "The tax grows with t - 1; over the network it is larger than the compute.",
            ),
            Axes(
                ("Tensor-parallel size", sizes),
                "Traffic over compute (%)",
                log_y=True,
                here=x.tp,
                level=("10 %", 10.0),
            ),
            results,
        ),
        lines_chart(
            ChartText(
                "width",
                "Tax over the hidden width",
                "Wider models pay less: the tax falls with 1/h.",
            ),
            Axes(("Hidden width", widths), "Traffic over compute (%)", log_y=True, here=x.hidden),
            by_width,
        ),
    )


CALCULATOR = Calculator(
    "tensor-parallel",
    "Tensor parallelism: volume and tax",
    "What does tensor parallelism send, and what share of the compute does it cost?",
    TensorParallelInputs,
    tensor_parallel_result,
    tensor_parallel_charts,
    (
        Preset("GPT-3, 8 devices", {}),
        Preset("h 8192 in a node of H100", {"hidden": "8192"}),
        Preset("h 8192 over InfiniBand", {"hidden": "8192", "link_bytes_per_s": "50"}),
        Preset("h 8192, 72 in a rack", {"hidden": "8192", "tp": "72", "device": "gb200-186gb"}),
    ),
)
