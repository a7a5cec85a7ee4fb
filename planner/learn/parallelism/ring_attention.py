"""Ring attention: buffers of keys and values, and whether their exchange hides."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from costmodels.comm.context_parallel import ring_times
from costmodels.layers.compute import ForwardBackward
from planner.learn import fields
from planner.learn.closed_forms import all_reduce_bytes, ring_least_tokens
from planner.learn.fields import BadInput
from planner.learn.machines import models, of_model
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

BACKWARD = 2.5
"""Products of a flash backward over those of its forward."""
LIU = "Liu et al. 2023 (ring attention), section 3; costmodels.comm.context_parallel"


@dataclass(frozen=True, slots=True)
class RingAttentionInputs:
    """A sequence over the ranks of a ring."""

    model: str = fields.choice("Model", "llama3-70b", models(), group="Model")
    hidden: int = fields.count_field(
        "Width of the queries",
        of_model("q_width", 8192),
        fields.InputRange(16, 1_000_000),
        note="h_q: heads times their width",
        follows="the model",
        group="Model",
    )
    heads: int = fields.count_field(
        "Attention heads",
        of_model("heads", 64),
        fields.InputRange(1, 100_000),
        follows="the model",
        group="Model",
    )
    kv_heads: int = fields.count_field(
        "KV heads",
        of_model("kv_heads", 64),
        fields.InputRange(1, 100_000),
        note="grouped queries have fewer",
        follows="the model",
        group="Model",
    )
    sequences: int = fields.count_field(
        "Sequences", 1, fields.InputRange(1, 10_000), note="b", group="Job"
    )
    tokens: int = fields.count_field(
        "Tokens of a sequence", 131072, fields.InputRange(1, 1_000_000_000), note="s", group="Job"
    )
    ranks: int = fields.count_field(
        "Ranks of the ring", 64, fields.InputRange(2, 100_000), note="c", group="Layout"
    )
    tp: int = fields.count_field(
        "Tensor-parallel size", 1, fields.InputRange(1, 1024), note="t", group="Layout"
    )
    element_bytes: float = fields.number_field(
        "Bytes of a key or value", 2, fields.InputRange(0.5, 8), note="2 bf16, 1 fp8", group="Job"
    )
    rate_flops_per_s: float = fields.rate("Attention kernel reaches", 400, group="Machine")
    link_bytes_per_s: float = fields.bandwidth("Link to the next rank", 50, group="Machine")

    def check(self) -> None:
        """Raise `BadInput` where heads or tokens cannot be shared out."""
        if self.heads % self.kv_heads:
            raise BadInput("kv_heads", f"{self.heads} heads are no multiple of {self.kv_heads}")
        if self.ranks > self.tokens:
            raise BadInput("ranks", f"{self.tokens} tokens cannot be split over {self.ranks}")
        if self.heads % self.tp:
            raise BadInput("tp", f"{self.heads} heads cannot be split over {self.tp}")

    @property
    def local(self) -> float:
        """Tokens of a rank, of all its sequences: b s / c."""
        return self.sequences * self.tokens / self.ranks

    @property
    def kv_width(self) -> float:
        """Width of keys on a rank; at least one head."""
        return self.hidden / self.heads * max(1.0, self.kv_heads / self.tp)

    @property
    def block_bytes(self) -> float:
        """Keys and values of a rank: 2 e n h_kv."""
        return 2 * self.element_bytes * self.local * self.kv_width


def block_s(x: RingAttentionInputs) -> tuple[float, float]:
    """Return (send, attend) of one block, seconds: 2 e n h_kv / B and 2 n (s/c) h_q / (t R).

    Half of 4 n (s/c) h_q FLOPs: the causal mask, evenly over the ranks (zigzag order).
    """
    flops = 2 * x.local * (x.tokens / x.ranks) * x.hidden / x.tp
    return x.block_bytes / x.link_bytes_per_s, flops / x.rate_flops_per_s


def ring_attention_result(x: RingAttentionInputs) -> CalculatorResult:
    """Return the answer."""
    c, n, kv, e = x.ranks, x.local, x.kv_width, x.element_bytes
    block, full = x.block_bytes, 2 * e * n * x.hidden / x.tp
    send, attend = block_s(x)
    two = (2 * x.element_bytes + 4) / (2 * x.element_bytes) * send  # gradients travel in 16 bits
    beside = ForwardBackward(np.array(attend), np.array(BACKWARD * attend))
    ahead, after = ring_times(np.array(float(c)), np.array(send), np.array(two), beside)
    waits = ahead.exposed_s.item() + after.exposed_s.item()
    total = ahead.total_s.item() + after.total_s.item()
    least = ring_least_tokens(x.rate_flops_per_s, x.link_bytes_per_s, kv * x.tp / x.hidden, e)
    speed = shown(x.link_bytes_per_s, "bytes_per_s")
    local = x.tokens / c
    numbers = (
        Number(
            "local_tokens",
            "Tokens of a rank",
            local,
            "tokens",
            "s / c",
            f"{x.tokens:,} / {c}",
            "definition",
        ),
        Number(
            "block",
            "Keys and values of a rank",
            block,
            "memory",
            "2 e b (s/c) h_kv / t",
            f"2 * {sig(e)} * {sig(n)} * {sig(kv)}",
            LIU,
            f"grouped queries: {x.heads // x.kv_heads} times less than at full width",
        ),
        Number(
            "full_block",
            "The same at the full width",
            full,
            "memory",
            "2 e b (s/c) h_q / t",
            f"2 * {sig(e)} * {sig(n)} * {x.hidden:,} / {x.tp}",
            "without grouped queries",
        ),
        Number(
            "buffers",
            "Two of them, in and out",
            2 * block,
            "memory",
            "2 block",
            f"2 * {shown(block, 'bytes')}",
            LIU,
            "costmodels.comm.context_parallel.buffer_bytes adds the gradients of a backward",
        ),
        Number(
            "send_s",
            "Sending a block",
            send,
            "seconds",
            "block / B",
            f"{shown(block, 'bytes')} / {speed}",
            LIU,
        ),
        Number(
            "attend_s",
            "Attending to a block",
            attend,
            "seconds",
            "2 b (s/c)^2 h_q / (t R)",
            f"2 * {sig(n)} * {sig(local)} * {x.hidden:,} / ({x.tp} * {sig(x.rate_flops_per_s)})",
            LIU,
            "half of the square: causal",
        ),
        Number(
            "least_tokens",
            "Tokens of a rank that hide the ring",
            least,
            "tokens",
            "e R h_kv / (h_q B)",
            f"{sig(e)} * {sig(x.rate_flops_per_s)} * "
            f"{sig(kv * x.tp / x.hidden)} / {sig(x.link_bytes_per_s)}",
            LIU,
            "",
            "hidden" if local >= least else "binds",
        ),
        Number(
            "least_bandwidth",
            "Bandwidth that hides it",
            block / attend,
            "link",
            "e R h_kv / (h_q s/c)",
            f"{shown(block, 'bytes')} / {shown(attend, 'seconds')}",
            LIU,
        ),
        Number(
            "exchange_s",
            "Exchange of a layer, both ways",
            total,
            "seconds",
            "(c - 1) m forward; c messages backward, the inner ones with gradients",
            f"{c - 1} * {shown(send, 'seconds')} + 2 * {shown(send, 'seconds')} + {c - 2} * "
            f"{shown(two, 'seconds')}",
            "costmodels.comm.context_parallel.ring_times",
        ),
        Number(
            "exposed_s",
            "Waited for in a layer",
            waits,
            "seconds",
            "sum of max(0, message - attention beside it)",
            f"forward {shown(ahead.exposed_s.item(), 'seconds')}, backward "
            f"{shown(after.exposed_s.item(), 'seconds')}",
            "costmodels.comm.context_parallel.ring_times",
        ),
    )
    differences = (
        Difference(
            "all_reduce",
            "an all-reduce of keys and values",
            MODELER,
            all_reduce_bytes(c * full, c),
            (c - 1) * block,
            "bytes",
            "Keys and values are not "
            "summed: every block travels once around the ring, point to point, (c - 1) blocks in "
            "a forward. And it carries the KV width, not the width of the queries.",
        ),
        Difference(
            "buffer",
            "buffer = 2 e (s/c) h; may exceed the memory",
            MODELER,
            full,
            block,
            "binary",
            "Right for as many KV heads as heads. Grouped queries divide it by "
            "heads / KV heads, and it is never a memory problem by itself: activations of the "
            "same tokens are larger.",
        ),
    )
    advice = []
    if local < least:
        advice.append(
            f"The ring waits: {sig(least)} tokens a rank, fewer ranks, or a faster link. "
            "All-gather of keys and values is cheap with grouped queries"
            + ("; Ulysses sends less as c grows." if ulysses_words(x) == "yes" else ".")
        )
    return CalculatorResult(
        f"{shown(local, 'tokens')} a rank: a block of {shown(block, 'binary')} takes "
        f"{shown(send, 'seconds')} to send and {shown(attend, 'seconds')} to attend to; the ring "
        f"{'hides' if local >= least else 'does not hide'}.",
        numbers,
        tuple(advice),
        (_table(x),),
        differences,
        (
            "Latency of a message, and the loss of short attention kernels.",
            "Latent attention, whose keys and values are expanded before they travel.",
        ),
    )


def ulysses_words(x: RingAttentionInputs) -> str:
    """Return `yes` where an all-to-all can share the heads out (rule CP002), else why not."""
    for n, what in ((x.heads, "heads"), (x.kv_heads, "KV heads")):
        if n % (x.tp * x.ranks):
            return f"no: {n} {what} do not divide by tp * cp = {x.tp * x.ranks} (CP002)"
    return "yes"


def _table(x: RingAttentionInputs) -> NamedTable:
    """Return what the three exchanges send in the forward of a layer."""
    c, n, e = x.ranks, x.local, x.element_bytes
    q, kv = x.hidden / x.tp, x.kv_width
    ulysses = e * n * (2 * q + 2 * kv) * (c - 1) / c
    able = ulysses_words(x)
    rows = (
        (
            "ring (p2p)",
            shown((c - 1) * x.block_bytes, "bytes"),
            shown(2 * x.block_bytes, "bytes"),
            "hides beside attention",
            "yes",
        ),
        (
            "all-gather",
            shown((c - 1) * x.block_bytes, "bytes"),
            shown(c * x.block_bytes, "bytes"),
            "waited for",
            "yes",
        ),
        (
            "all-to-all (Ulysses)",
            shown(ulysses, "bytes"),
            shown(e * n * (2 * q + 2 * kv), "bytes"),
            "waited for",
            able,
        ),
    )
    heads = ("Exchange", "Sent in a forward", "Buffers", "Overlap", "Runs")
    return NamedTable(
        "Three ways to attend to the tokens of other ranks", AnswerTable(heads, rows)
    )


def ring_attention_charts(x: RingAttentionInputs) -> "tuple[Chart, ...]":
    """Return sending and attending over the tokens of a rank, and blocks over ranks."""
    from planner.learn.drawing import Axes, ChartText, Line, lines_chart

    places = [128 * 2**k for k in range(12)]
    both = [block_s(replace(x, tokens=n * x.ranks)) for n in places]
    ranks = [2**k for k in range(1, 11) if 2**k <= x.tokens]
    return (
        lines_chart(
            ChartText(
                "overlap",
                "A block over the tokens of a rank",
                "Attention grows with the square of the tokens, the message in"
                " proportion: the ring "
                "hides right of where they meet.",
            ),
            Axes(("Tokens of a rank", places), "ms", log_y=True, here=x.tokens / x.ranks),
            [
                Line("sending", [s * 1e3 for s, _ in both]),
                Line("attention beside it", [a * 1e3 for _, a in both]),
            ],
        ),
        lines_chart(
            ChartText(
                "buffers",
                "Keys and values of a rank over the ranks",
                "Grouped queries divide the block by heads over KV heads.",
            ),
            Axes(("Ranks of the ring", ranks), "MiB", log_y=True, here=x.ranks),
            [
                Line("at the KV width", [replace(x, ranks=c).block_bytes / 2**20 for c in ranks]),
                Line(
                    "at the full width",
                    [
                        2 * x.element_bytes * replace(x, ranks=c).local * x.hidden / x.tp / 2**20
                        for c in ranks
                    ],
                ),
            ],
        ),
    )


CALCULATOR = Calculator(
    "ring-attention",
    "Ring attention",
    "How large are the buffers of ring attention, and does its exchange hide?",
    RingAttentionInputs,
    ring_attention_result,
    ring_attention_charts,
    (
        Preset(
            "131,072 tokens over 64, h 8192, fp8, no grouping",
            {"model": "own", "element_bytes": "1"},
        ),
        Preset(
            "1,048,576 tokens over 8",
            {"model": "own", "element_bytes": "1", "tokens": "1048576", "ranks": "8"},
        ),
        Preset("Llama 3 70B, 131,072 tokens over 16", {"ranks": "16"}),
        Preset("The same inside a node", {"ranks": "8", "link_bytes_per_s": "450"}),
    ),
)
