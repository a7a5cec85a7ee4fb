"""Sequence parallelism: time of its gathers and scatters."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.learn import fields
from planner.learn.closed_forms import ring_share
from planner.learn.results import (
    Calculator,
    CalculatorResult,
    Difference,
    Number,
    Preset,
    shown,
    sig,
)
from planner.learn.writeups import MODELER, NOTES, OVERVIEW

if TYPE_CHECKING:
    from planner.render.charts.chart import Chart

TRANSFERS, PLAIN_TRANSFERS = 10, 8
"""Gathers and scatters of a layer in training, with sequence parallelism and without (an
all-reduce counts as two)."""


@dataclass(frozen=True, slots=True)
class SequenceParallelInputs:
    """One layer's activation and the link that moves it."""

    sequences: int = fields.count_field("Sequences", 1, fields.InputRange(1, 10_000), note="b")
    tokens: int = fields.count_field(
        "Tokens of a sequence", 2048, fields.InputRange(1, 100_000_000), note="s"
    )
    hidden: int = fields.count_field(
        "Hidden width", 8192, fields.InputRange(16, 1_000_000), note="h"
    )
    element_bytes: float = fields.number_field(
        "Bytes of an activation", 2, fields.InputRange(0.5, 8)
    )
    tp: int = fields.count_field("Tensor-parallel size", 8, fields.InputRange(2, 1024), note="t")
    layers: int = fields.count_field("Layers", 80, fields.InputRange(1, 10_000))
    link_bytes_per_s: float = fields.bandwidth("Link between the ranks", 100)


def sequence_parallel_result(x: SequenceParallelInputs) -> CalculatorResult:
    """Return the answer."""
    t, b = x.tp, x.link_bytes_per_s
    tensor = x.element_bytes * x.sequences * x.tokens * x.hidden
    pair, share = 2 * tensor, ring_share(x.tp)
    sent = TRANSFERS * share * tensor
    speed = shown(b, "bytes_per_s")
    numbers = (
        Number(
            "tensor",
            "Activation",
            tensor,
            "bytes",
            "e b s h",
            f"{sig(x.element_bytes)} * {x.sequences} * {x.tokens:,} * {x.hidden:,}",
            "definition",
        ),
        Number(
            "pair_s",
            "A gather and a scatter of the whole tensor",
            pair / b,
            "seconds",
            "2 e b s h / B",
            f"2 * {shown(tensor, 'bytes')} / {speed}",
            "the quotient that is printed as microseconds",
        ),
        Number(
            "ring_pair_s",
            "What a ring needs for them",
            share * pair / b,
            "seconds",
            "2 (t - 1)/t e b s h / B",
            f"{t - 1}/{t} * {shown(pair / b, 'seconds')}",
            "Thakur et al. 2005; costmodels.comm.collectives.ring_all_gather_s",
            "a rank already has its own part",
        ),
        Number(
            "layer_bytes",
            "Sent for a layer",
            sent,
            "bytes",
            "10 (t - 1)/t e b s h",
            f"10 * {t - 1}/{t} * {shown(tensor, 'bytes')}",
            "Korthikanti et al. 2022, section 4.2; Megatron-LM tensor_parallel/layers.py",
            "forward 4, backward 4 and 2 gathers again",
        ),
        Number(
            "layer_s",
            "Time of it",
            sent / b,
            "seconds",
            "layer / B",
            f"{shown(sent, 'bytes')} / {speed}",
            "definition; latency left out",
        ),
        Number(
            "model_s",
            "Of all layers, each micro-batch",
            x.layers * sent / b,
            "seconds",
            "L layer / B",
            f"{x.layers} * {shown(sent / b, 'seconds')}",
            "definition; latency left out",
            "what overlap has to hide",
        ),
        Number(
            "saved_bytes",
            "Activations that it no longer repeats, a layer",
            10 * tensor / x.element_bytes * (1 - 1 / t),
            "memory",
            "10 b s h (1 - 1/t)",
            f"10 * {shown(tensor / x.element_bytes, 'elements')} * (1 - 1/{t})",
            "Korthikanti et al. 2022; costmodels.memory.layer_activation_bytes",
            "what the traffic buys: norms, residuals and dropout masks are split as well",
        ),
    )
    plain = PLAIN_TRANSFERS * share * tensor
    differences = (
        Difference(
            "microseconds",
            "2 e b s h / B is some microseconds, hence free",
            MODELER,
            pair / b * 1e-3,
            pair / b,
            "seconds",
            "The quotient is in milliseconds: a factor of 1000, and the conclusion falls with it.",
        ),
        Difference(
            "same_volume",
            "sequence parallelism sends what tensor parallelism sends",
            f"{NOTES}; {OVERVIEW}",
            plain,
            sent,
            "bytes",
            "Equal forward. In backward Megatron "
            "gathers again what it kept a shard of: ten transfers for eight, a quarter more.",
        ),
    )
    return CalculatorResult(
        f"A gather and a scatter of {shown(tensor, 'bytes')} take {shown(pair / b, 'seconds')} at "
        f"{speed}, a layer {shown(sent / b, 'seconds')}.",
        numbers,
        (),
        (),
        differences,
        ("Latency and small messages.", "Overlap with the products (userbuffers, async TP)."),
    )


def sequence_parallel_charts(x: SequenceParallelInputs) -> "tuple[Chart, ...]":
    """Return the time over the sequence length."""
    from planner.learn.drawing import Axes, ChartText, Line, lines_chart

    places = [1024 * 2**k for k in range(11)]
    per_token = 2 * x.element_bytes * x.sequences * x.hidden / x.link_bytes_per_s * 1e3
    share = ring_share(x.tp)
    return (
        lines_chart(
            ChartText(
                "time",
                "Time over the sequence length",
                f"{per_token * 131072:.3g} ms for a gather and a scatter of 131,072 tokens.",
            ),
            Axes(("Tokens of a sequence", places), "ms", log_y=True, here=x.tokens),
            [
                Line("a gather and a scatter", [per_token * n for n in places]),
                Line("a whole layer", [per_token * n * share * TRANSFERS / 2 for n in places]),
            ],
        ),
    )


CALCULATOR = Calculator(
    "sequence-parallel",
    "Sequence-parallel traffic",
    "How long do the gathers and scatters of sequence parallelism take?",
    SequenceParallelInputs,
    sequence_parallel_result,
    sequence_parallel_charts,
    (
        Preset("2048 tokens, h 8192, 100 GB/s", {}),
        Preset("131,072 tokens", {"tokens": "131072"}),
        Preset("In a node of H100", {"link_bytes_per_s": "450"}),
    ),
)
