"""Activations that a layer keeps, with and without flash attention and recomputation."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from costmodels.memory import MicroBatch, checkpoint_bytes, layer_activation_bytes
from costmodels.shapes import ModelShape
from costmodels.stacks import FUSED
from planner.learn import fields
from planner.learn.fields import BadInput
from planner.learn.machines import models, of_model
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

KORTHIKANTI = "Korthikanti et al. 2022, sections 4 and 5; costmodels.memory.layer_activation_bytes"
YES_NO = (("yes", "yes"), ("no", "no"))


@dataclass(frozen=True, slots=True)
class ActivationsInputs:
    """A dense decoder layer and a micro-batch."""

    model: str = fields.choice("Model", "gpt3-175b", models(), group="Model")
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
    heads: int = fields.count_field(
        "Attention heads",
        of_model("heads", 96),
        fields.InputRange(1, 100_000),
        note="a",
        follows="the model",
        group="Model",
    )
    kv_heads: int = fields.count_field(
        "KV heads",
        of_model("kv_heads", 96),
        fields.InputRange(1, 100_000),
        follows="the model",
        group="Model",
    )
    ffn: int = fields.count_field(
        "MLP width",
        of_model("ffn", 49152),
        fields.InputRange(1, 10_000_000),
        note="f",
        follows="the model",
        group="Model",
    )
    gated: str = fields.choice("Gated MLP (SwiGLU)", "no", YES_NO, group="Model")
    dropout: str = fields.choice(
        "Dropout", "yes", YES_NO, note="its masks are kept", group="Model"
    )
    sequences: int = fields.count_field(
        "Sequences", 1, fields.InputRange(1, 10_000), note="b", group="Micro-batch"
    )
    tokens: int = fields.count_field(
        "Tokens of a sequence",
        2048,
        fields.InputRange(1, 100_000_000),
        note="s",
        group="Micro-batch",
    )
    flash: str = fields.choice(
        "Flash attention", "no", YES_NO, note="keeps no scores", group="Layout"
    )
    recompute: str = fields.choice(
        "Recomputation",
        "none",
        (("none", "none"), ("selective", "attention scores"), ("full", "whole layers")),
        group="Layout",
    )
    tp: int = fields.count_field(
        "Tensor-parallel size", 1, fields.InputRange(1, 1024), note="t", group="Layout"
    )
    sp: str = fields.choice("Sequence parallelism", "no", YES_NO, group="Layout")
    held: int = fields.count_field(
        "Micro-batches held",
        1,
        fields.InputRange(1, 100_000),
        note="those in flight, see the pipeline modeler",
        group="Layout",
    )

    def check(self) -> None:
        """Raise `BadInput` where heads cannot be shared out."""
        if self.heads % self.kv_heads:
            raise BadInput("kv_heads", f"{self.heads} heads are no multiple of {self.kv_heads}")
        if self.hidden % self.heads:
            raise BadInput("heads", f"width {self.hidden} is no multiple of {self.heads} heads")
        if self.heads % self.tp:
            raise BadInput("tp", f"{self.heads} heads cannot be split over {self.tp}")

    @property
    def shape(self) -> ModelShape:
        """The layer as the cost model knows it."""
        return ModelShape(
            self.model,
            self.layers,
            self.hidden,
            self.heads,
            self.kv_heads,
            self.hidden // self.heads,
            self.ffn,
            self.gated == "yes",
            1,
            True,
            flash_attention=self.flash == "yes",
            dropout=self.dropout == "yes",
        )


def layer_bytes(x: ActivationsInputs, tokens: int | None = None) -> float:
    """Return what one layer keeps for one micro-batch, bytes per device."""
    s = tokens or x.tokens
    n, sp = x.sequences * s, int(x.sp == "yes")
    if x.recompute == "full":
        return float(checkpoint_bytes(x.shape, n, x.tp, sp).item())
    keep = int(x.recompute == "none")
    return float(layer_activation_bytes(x.shape, FUSED, MicroBatch(n, s), x.tp, sp, keep).item())


def activations_result(x: ActivationsInputs) -> CalculatorResult:
    """Return the answer."""
    n, h, a, s, t = x.sequences * x.tokens, x.hidden, x.heads, x.tokens, x.tp
    one = layer_bytes(x)
    plain = n * h * (34 + 5 * a * s / h)
    everything = x.layers * one * x.held
    per = one / (n * h)
    score = 5 if x.dropout == "yes" else 4
    scores = n * score * a * s / t
    numbers = (
        Number(
            "layer",
            "Kept by a layer",
            one,
            "memory",
            _formula(x),
            _put(x),
            KORTHIKANTI,
            "for one micro-batch, on one device",
        ),
        Number(
            "per_element",
            "In units of b s h",
            per,
            "ratio",
            "layer / (b s h)",
            f"{shown(one, 'bytes')} / {sig(n * h)}",
            KORTHIKANTI,
            "34 with plain attention left out, 34 + 5 a s / h with it",
        ),
        Number(
            "scores",
            "Of it attention scores",
            0.0 if x.flash == "yes" or x.recompute != "none" else scores,
            "memory",
            f"{score} a s / t * b s",
            f"{score} * {a} * {s:,} / {t} * {n:,}",
            KORTHIKANTI,
            "a flash kernel never stores them",
        ),
        Number(
            "all_layers",
            "Kept by all layers",
            everything,
            "memory",
            "L layer held",
            f"{x.layers} * {shown(one, 'bytes')} * {x.held}",
            KORTHIKANTI,
            "of a device that holds all layers; a pipeline stage has its part of them",
        ),
        Number(
            "full",
            "The same with full recomputation",
            x.layers * x.held * checkpoint_bytes(x.shape, n, t, int(x.sp == "yes")).item(),
            "memory",
            "L 2 b s h held",
            f"{x.layers} * 2 * {sig(n * h)} * {x.held}",
            "Korthikanti et al. 2022, section 5; costmodels.memory.checkpoint_bytes",
            "for a third more compute",
        ),
    )
    estimator = n * h * (18 + 4 * x.ffn / h) / t
    differences = (
        Difference(
            "four_mb",
            "4 MB of activations a layer and micro-batch (175 billion, 2048 tokens)",
            MODELER,
            4e6,
            one,
            "bytes",
            "Off by some 700 without recomputation: s b h (34 + 5 a s "
            "/ h) is 2.87 GB for GPT-3. Even the input alone, all that full recomputation keeps, "
            "is 50 MB.",
        ),
        Difference(
            "guide",
            "L s b h (34 + 5 a s / h)",
            GUIDE,
            x.layers * x.held * plain,
            everything,
            "bytes",
            "Right for plain attention, no recomputation, one device and a GPT layer "
            "with dropout. A flash kernel drops the second term, tensor parallelism divides most "
            "of it, gated MLPs and grouped queries change the first.",
        ),
        Difference(
            "ungated",
            "s b h (18 + 4 f / h) / t",
            "Megatron-LM's own memory report",
            estimator,
            one,
            "bytes",
            "It knows neither the third matrix of a gated MLP nor grouped queries, "
            "and takes fused attention and sequence parallelism for granted.",
        ),
    )
    advice = []
    if x.flash == "no" and x.recompute == "none":
        advice.append(
            f"Flash attention keeps {shown(scores, 'bytes')} less a layer: the scores, which grow "
            "with the square of the sequence."
        )
    if t > 1 and x.sp == "no" and x.recompute != "full":
        advice.append("Sequence parallelism divides norms, residuals and masks by t as well.")
    return CalculatorResult(
        f"A layer keeps {shown(one, 'bytes')} of activations, {x.layers} layers "
        f"{shown(everything, 'bytes')}.",
        numbers,
        tuple(advice),
        (),
        differences,
        (
            "Temporaries of a backward, logits of the last stage, the embedding's output.",
            "Experts and latent attention (the model's sizes are read as a dense layer here); "
            "`planner solve` has them.",
        ),
    )


def _formula(x: ActivationsInputs) -> str:
    if x.recompute == "full":
        return "2 b s h" + (" / t" if x.sp == "yes" else "")
    c = "6" if x.gated == "yes" else "4"
    masks = " + 2 h" if x.dropout == "yes" else ""
    split = " / t" if x.sp == "yes" else ""
    width = "5" if x.dropout == "yes" else "4"
    scores = "4 a / t" if x.flash == "yes" else f"{width} a s / t"
    if x.flash == "no" and x.recompute == "selective":
        scores = "0"
    return f"b s [(8 h{masks}){split} + (4 h_q + 4 h_kv + {c} f) / t + {scores}]"


def _put(x: ActivationsInputs) -> str:
    n, kv = x.sequences * x.tokens, x.kv_heads * x.hidden // x.heads
    if x.recompute == "full":
        return f"2 * {n:,} * {x.hidden:,}"
    return (
        f"b s = {n:,}, h = h_q = {x.hidden:,}, h_kv = {kv:,}, f = {x.ffn:,}, a = {x.heads}, "
        f"s = {x.tokens:,}, t = {x.tp}"
    )


def activations_charts(x: ActivationsInputs) -> "tuple[Chart, ...]":
    """Return what a layer keeps over the sequence length."""
    from dataclasses import replace

    from planner.learn.drawing import Axes, ChartText, Line, lines_chart

    places = [512 * 2**k for k in range(9)]
    ways = (
        ("plain attention", {"flash": "no", "recompute": "none"}),
        ("flash attention", {"flash": "yes", "recompute": "none"}),
        ("full recomputation", {"recompute": "full"}),
    )
    results = [
        Line(name, [layer_bytes(replace(x, **change), s) / 1e9 for s in places])  # type: ignore[arg-type]
        for name, change in ways
    ]
    return (
        lines_chart(
            ChartText(
                "layer",
                "Activations of a layer over the sequence length",
                "Scores grow with the square of the sequence; everything else in proportion.",
            ),
            Axes(("Tokens of a sequence", places), "GB", log_y=True, here=x.tokens),
            results,
        ),
    )


CALCULATOR = Calculator(
    "activations",
    "Activation memory",
    "What does a layer keep for its backward?",
    ActivationsInputs,
    activations_result,
    activations_charts,
    (
        Preset("GPT-3, plain attention", {}),
        Preset("GPT-3, flash attention, t 8 with SP", {"flash": "yes", "tp": "8", "sp": "yes"}),
        Preset(
            "Llama 3 70B, 8192 tokens",
            {
                "model": "llama3-70b",
                "gated": "yes",
                "dropout": "no",
                "flash": "yes",
                "tokens": "8192",
                "tp": "8",
                "sp": "yes",
            },
        ),
        Preset("Full recomputation", {"recompute": "full"}),
    ),
)
