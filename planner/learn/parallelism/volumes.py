"""What tensor, pipeline and data parallelism send together: volumes of 3D parallelism."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.learn import fields
from planner.learn.closed_forms import all_reduce_bytes, data_parallel_bytes, tensor_layer_bytes
from planner.learn.fields import BadInput
from planner.learn.machines import OWN, models, of_model
from planner.learn.results import (
    Calculator,
    CalculatorResult,
    Difference,
    Number,
    Preset,
    shown,
    sig,
)
from planner.learn.writeups import GUIDE, OVERVIEW

if TYPE_CHECKING:
    from planner.render.charts.chart import Chart


@dataclass(frozen=True, slots=True)
class VolumesInputs:
    """A model and its layout."""

    model: str = fields.choice("Model", "gpt3-175b", models(), group="Model")
    params: float = fields.number_field(
        "Parameters",
        of_model("params", 175e9),
        fields.InputRange(1e-3, 1e6, "billion"),
        follows="the model, 175 billion without one",
        group="Model",
    )
    layers: int = fields.count_field(
        "Layers",
        of_model("layers", 96),
        fields.InputRange(1, 10_000),
        follows="the model",
        group="Model",
    )
    hidden: int = fields.count_field(
        "Hidden width",
        of_model("hidden", 12288),
        fields.InputRange(16, 1_000_000),
        note="h",
        follows="the model",
        group="Model",
    )
    sequences: int = fields.count_field(
        "Sequences of a micro-batch", 1, fields.InputRange(1, 10_000), note="b", group="Job"
    )
    tokens: int = fields.count_field(
        "Tokens of a sequence", 2048, fields.InputRange(1, 100_000_000), note="s", group="Job"
    )
    element_bytes: float = fields.number_field(
        "Bytes of an activation", 2, fields.InputRange(0.5, 8), group="Job"
    )
    gradient_bytes: float = fields.number_field(
        "Bytes of a gradient on the wire",
        2,
        fields.InputRange(0.03, 8),
        note="2 bf16, 4 fp32",
        group="Job",
    )
    tp: int = fields.count_field(
        "Tensor-parallel size", 8, fields.InputRange(1, 1024), note="t", group="Layout"
    )
    pp: int = fields.count_field(
        "Pipeline stages", 8, fields.InputRange(1, 1024), note="p", group="Layout"
    )
    dp: int = fields.count_field(
        "Data-parallel size", 16, fields.InputRange(1, 100_000), note="d", group="Layout"
    )
    micro_batches: int = fields.count_field(
        "Micro-batches", 64, fields.InputRange(1, 100_000), note="m", group="Layout"
    )

    def check(self) -> None:
        """Raise `BadInput` for more stages than layers."""
        if self.pp > self.layers:
            raise BadInput("pp", f"{self.pp} stages need as many layers, not {self.layers}")


def volumes_result(x: VolumesInputs) -> CalculatorResult:
    """Return the answer."""
    t, p, d, m, e, g = x.tp, x.pp, x.dp, x.micro_batches, x.element_bytes, x.gradient_bytes
    activation = x.sequences * x.tokens * x.hidden
    tensor = e * activation
    layer = tensor_layer_bytes(tensor, t)
    local = x.params / (t * p)
    boundaries = 2 * (p - 1) * tensor
    reduce = all_reduce_bytes(g * local, d)
    sharded = data_parallel_bytes(local, d, 1, 1, 2.0, g)
    step = {
        "tp": m * layer * x.layers / p,
        "pp": 2 * m * tensor if p > 1 else 0.0,
        "dp": reduce,
    }
    megatron = "Narayanan et al. 2021, section 3; costmodels.traffic.PlanTraffic.transfers"
    one = shown(tensor, "bytes")
    numbers = (
        Number(
            "activation",
            "Activation of a micro-batch",
            tensor,
            "bytes",
            "e b s h",
            f"{sig(e)} * {x.sequences} * {x.tokens:,} * {x.hidden:,}",
            "definition",
        ),
        Number(
            "tp_layer",
            "Tensor parallelism: a layer and micro-batch",
            layer,
            "bytes",
            "8 e b s h (t - 1)/t",
            f"8 * {one} * {t - 1}/{t}",
            megatron,
        ),
        Number(
            "pp_boundary",
            "Pipeline: one boundary, one way",
            tensor if p > 1 else 0.0,
            "bytes",
            "e b s h",
            one,
            megatron,
            "a micro-batch; back comes its gradient",
        ),
        Number(
            "pp_all",
            "Pipeline: all boundaries, both ways",
            boundaries,
            "bytes",
            "2 (p - 1) e b s h",
            f"2 * {p - 1} * {one}",
            megatron,
            "of one micro-batch",
        ),
        Number(
            "dp_message",
            "Data parallelism: gradients of a device",
            g * local,
            "bytes",
            "g N / (t p)",
            f"{sig(g)} * {sig(x.params)} / ({t} * {p})",
            megatron,
        ),
        Number(
            "dp_step",
            "Data parallelism: an all-reduce of them",
            reduce,
            "bytes",
            "2 (d - 1)/d g N / (t p)",
            f"2 * {d - 1}/{d} * {shown(g * local, 'bytes')}",
            megatron,
        ),
        Number(
            "dp_sharded",
            "The same with a sharded optimizer",
            sharded,
            "bytes",
            "(d - 1)/d (g + 2) N / (t p)",
            f"{d - 1}/{d} * ({sig(g)} + 2) * {sig(local)}",
            "Megatron-LM dist_optimizer.md",
            "scatter of gradients, gather of bf16 weights",
        ),
        Number(
            "tp_step",
            "A step of a device: tensor",
            step["tp"],
            "bytes",
            "m L/p layer",
            f"{m} * {x.layers}/{p} * {shown(layer, 'bytes')}",
            megatron,
        ),
        Number(
            "pp_step",
            "A step of a device: pipeline",
            step["pp"],
            "bytes",
            "2 m e b s h",
            f"2 * {m} * {one}" if p > 1 else "one stage sends nothing",
            megatron,
            "1/t of it with sequence parallelism",
        ),
    )
    differences = (
        Difference(
            "tp_elements",
            "tensor parallelism: 8 b s h a layer",
            OVERVIEW,
            8 * activation,
            8 * activation * (t - 1) / t,
            "elements",
            "Elements, for many ranks. A ring of t "
            f"sends (t - 1)/t of that, and an element has {sig(e)} bytes: "
            f"{shown(layer, 'bytes')}.",
        ),
        Difference(
            "tp_bytes",
            "8 b s h a layer, in bytes",
            GUIDE,
            8 * tensor,
            layer,
            "bytes",
            "For many ranks; (t - 1)/t of it for t. (An example of 2 x 2048 x 12288 means 2 bytes "
            "and one sequence: with two sequences everything but the gradients doubles.)",
        ),
        Difference(
            "pp_elements",
            "pipeline: 2 (p - 1) b s h",
            OVERVIEW,
            2 * (p - 1) * activation,
            2 * (p - 1) * activation,
            "elements",
            "Right as the sum over all boundaries of one "
            "micro-batch; a boundary has 2 b s h, and a step m times that.",
        ),
        Difference(
            "dp_elements",
            "data parallelism: 2 Phi / (t p)",
            OVERVIEW,
            2 * x.params / (t * p),
            2 * (d - 1) / d * x.params / (t * p),
            "elements",
            "Elements, for many ranks. In bytes "
            f"{shown(reduce, 'bytes')} as an all-reduce; a sharded optimizer sends (G + W) bytes "
            "a parameter, 4 + 2 with fp32 gradients.",
        ),
        Difference(
            "forgets_tp",
            "gradients = model / pipeline stages",
            GUIDE,
            g * x.params / p,
            g * local,
            "bytes",
            "Tensor parallelism divides them too: N / (t p).",
        ),
    )
    largest = max(step, key=lambda name: step[name])
    return CalculatorResult(
        f"In a step a device sends {shown(step['tp'], 'bytes')} for tensor, "
        f"{shown(step['pp'], 'bytes')} for pipeline and {shown(step['dp'], 'bytes')} for data "
        f"parallelism; {largest} most.",
        numbers,
        (
            "What is sent most belongs on the fastest link: tensor parallelism inside the node, "
            "then context and data, pipeline across.",
        ),
        (),
        differences,
        (
            "Embedding, head and loss.",
            "Sequence parallelism: 10 for 8 b s h a layer.",
            "Expert and context parallelism: `planner learn overlap`.",
        ),
    )


def volumes_charts(x: VolumesInputs) -> "tuple[Chart, ...]":
    """Return the volume of every axis in a step."""
    from planner.learn.drawing import ChartText, bars_chart

    result = volumes_result(x)
    bars = [
        (name, result.number(key).value / 1e9)
        for name, key in (("tensor", "tp_step"), ("pipeline", "pp_step"), ("data", "dp_step"))
    ]
    largest = max(bars, key=lambda bar: bar[1])[0]
    return (
        bars_chart(
            ChartText(
                "volumes",
                "Sent by a device in a step",
                f"Most for {largest}, which is hatched; the scale is logarithmic.",
            ),
            "GB",
            [bar for bar in bars if bar[1] > 0] or bars,
            log_y=True,
            marked=largest,
        ),
    )


CALCULATOR = Calculator(
    "volumes",
    "Volumes of 3D parallelism",
    "What do tensor, pipeline and data parallelism send?",
    VolumesInputs,
    volumes_result,
    volumes_charts,
    (
        Preset("GPT-3, t 8, p 8", {"model": OWN}),
        Preset(
            "Llama 3 405B, t 8, p 16",
            {
                "model": "llama3-405b",
                "pp": "16",
                "dp": "64",
                "tokens": "8192",
                "gradient_bytes": "4",
            },
        ),
    ),
)
