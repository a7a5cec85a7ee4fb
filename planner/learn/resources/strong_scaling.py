"""Strong scaling: one batch over more and more workers, compute against the all-reduce."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from planner.learn import fields
from planner.learn.closed_forms import all_reduce_bytes
from planner.learn.machines import OWN, models, of_model
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
from planner.learn.writeups import BOUNDS
from planner.render.report.answers import AnswerTable

if TYPE_CHECKING:
    from planner.render.charts.chart import Chart


@dataclass(frozen=True, slots=True)
class StrongScalingInputs:
    """A model, a batch that stays, and workers that average gradients."""

    model: str = fields.choice("Model", OWN, models(), group="Job")
    params: float = fields.number_field(
        "Parameters",
        of_model("params", 7e9),
        fields.InputRange(1e-4, 1e6, "billion"),
        follows="the model, 7 billion without one",
        group="Job",
    )
    batch: int = fields.count_field(
        "Global batch",
        2048,
        fields.InputRange(1, 100_000_000),
        note="sequences of a step",
        group="Job",
    )
    tokens: int = fields.count_field(
        "Tokens of a sequence", 2048, fields.InputRange(1, 100_000_000), note="s", group="Job"
    )
    gradient_bytes: float = fields.number_field(
        "Bytes of a gradient on the wire", 2, fields.InputRange(0.03, 8), group="Job"
    )
    workers: int = fields.count_field(
        "Workers", 64, fields.InputRange(1, 10_000_000), note="K", group="Machine"
    )
    rate_flops_per_s: float = fields.rate("Rate of a worker", 312, group="Machine")
    link_bytes_per_s: float = fields.bandwidth("Link of a worker", 600, group="Machine")


def times_s(x: StrongScalingInputs) -> tuple[float, float]:
    """Return (compute, all-reduce) of a step: 6 N b s / (R K), 2 (K - 1)/K g N / B."""
    work = 6 * x.params * x.batch * x.tokens / (x.rate_flops_per_s * x.workers)
    return work, all_reduce_bytes(x.gradient_bytes * x.params, x.workers) / x.link_bytes_per_s


def break_even_workers(x: StrongScalingInputs) -> float:
    """Return the workers at which both take as long: 1 + 3 b s B / (g R). N drops out.

    >>> round(break_even_workers(StrongScalingInputs(batch=2048, tokens=1, rate_flops_per_s=312e12,
    ...     link_bytes_per_s=600e9, gradient_bytes=2)), 1)
    6.9
    """
    work = 3 * x.batch * x.tokens * x.link_bytes_per_s
    return 1 + work / (x.gradient_bytes * x.rate_flops_per_s)


def strong_scaling_result(x: StrongScalingInputs) -> CalculatorResult:
    """Return the answer."""
    work, wire = times_s(x)
    gamma, limit = wire / work, break_even_workers(x)
    one, _ = times_s(replace(x, workers=1))
    alone = one / (work + wire)
    beside = one / max(work, wire)
    k = x.workers
    numbers = (
        Number(
            "compute_s",
            "Compute of a step",
            work,
            "seconds",
            "6 N b s / (R K)",
            f"6 * {sig(x.params)} * {x.batch:,} * {x.tokens:,} / "
            f"({sig(x.rate_flops_per_s)} * {k})",
            "6 FLOPs a parameter and token; costmodels.layers.flops, attention left out",
        ),
        Number(
            "all_reduce_s",
            "All-reduce of the gradients",
            wire,
            "seconds",
            "2 (K - 1)/K g N / B",
            f"2 * {k - 1}/{k} * {sig(x.gradient_bytes)} * "
            f"{sig(x.params)} / {sig(x.link_bytes_per_s)}",
            "ring; costmodels.comm.collectives.ring_all_reduce_s without latency",
        ),
        Number(
            "gamma",
            "Communication over compute",
            gamma,
            "ratio",
            "gamma = all-reduce / compute",
            f"{shown(wire, 'seconds')} / {shown(work, 'seconds')}",
            "definition",
            "N drops out of it",
            "binds" if gamma > 1 else "",
        ),
        Number(
            "break_even",
            "Workers at which both are equal",
            limit,
            "count",
            "1 + 3 b s B / (g R)",
            f"1 + 3 * {x.batch:,} * {x.tokens:,} * {sig(x.link_bytes_per_s)} / "
            f"({sig(x.gradient_bytes)} * {sig(x.rate_flops_per_s)})",
            "gamma = 1 solved for K",
        ),
        Number(
            "speedup",
            "Speed-up without overlap",
            alone,
            "times",
            "T(1) / (compute + wire)",
            f"{shown(one, 'seconds')} / ({shown(work, 'seconds')} + {shown(wire, 'seconds')})",
            "definition",
            f"efficiency {shown(alone / k, 'fraction')}",
        ),
        Number(
            "speedup_overlap",
            "Speed-up with everything hidden that can be",
            beside,
            "times",
            "T(1) / max(compute, wire)",
            f"{shown(one, 'seconds')} / {shown(max(work, wire), 'seconds')}",
            "definition",
            "at most: the forward and the last bucket hide nothing",
        ),
    )
    theirs_work, theirs_gamma = work / x.tokens, gamma * x.tokens
    differences = (
        Difference(
            "compute_s",
            "compute = 6 N b / (R K), b examples",
            BOUNDS,
            theirs_work,
            work,
            "seconds",
            "6 FLOPs a parameter and token: it counts an example as one token. The "
            "rate is the dense peak, called sustained; the bandwidth is both directions of "
            "NVLink, for however many workers.",
        ),
        Difference(
            "gamma",
            "gamma with that compute",
            BOUNDS,
            theirs_gamma,
            gamma,
            "ratio",
            f"Divide by the sequence length, {x.tokens:,}. Both agree that the size of the model "
            "drops out.",
        ),
        Difference(
            "break_even",
            "workers at which both are equal, with that compute",
            BOUNDS,
            1 + (limit - 1) / x.tokens,
            limit,
            "count",
            "The same factor: the sequence length.",
        ),
    )
    rows = []
    for n in (1, 4, 16, 64, 256, 1024, 4096, 16384):
        each, sent = times_s(replace(x, workers=n))
        rows.append(
            (
                n,
                shown(each, "seconds"),
                shown(sent, "seconds"),
                shown(sent / each, "ratio"),
                shown(one / (each + sent) / n, "fraction"),
                shown(sent / each * x.tokens, "ratio"),
            )
        )
    heads = (
        "Workers",
        "Compute",
        "All-reduce",
        "gamma",
        "Efficiency without overlap",
        "gamma of an example as one token",
    )
    advice = []
    if gamma > 1:
        advice.append(
            f"Beyond {limit:,.0f} workers the batch is too small: a larger batch, or tensor and "
            "pipeline parallelism, which divide the gradients too."
        )
    return CalculatorResult(
        f"{k:,} workers compute {shown(work, 'seconds')} and reduce {shown(wire, 'seconds')}: "
        f"gamma {shown(gamma, 'ratio')}; both are equal at {shown(limit, 'count')} workers.",
        numbers,
        tuple(advice),
        (NamedTable("More workers, the same batch", AnswerTable(heads, tuple(rows))),),
        differences,
        (
            "Latency, which ends strong scaling first on many nodes, and slower links between "
            "them; `planner scale` has both.",
            "Workers that get less than one sequence each.",
        ),
    )


def strong_scaling_charts(x: StrongScalingInputs) -> "tuple[Chart, ...]":
    """Return both times over the workers."""
    from planner.learn.drawing import Axes, ChartText, Line, doubled, lines_chart

    workers = doubled(1, max(16384, x.workers))
    each = [times_s(replace(x, workers=k)) for k in workers]
    return (
        lines_chart(
            ChartText(
                "times",
                "Compute and all-reduce over the workers",
                "Compute falls with the workers, the all-reduce nears a constant.",
            ),
            Axes(("Workers", workers), "ms", log_y=True, here=x.workers),
            [
                Line("compute", [a * 1e3 for a, _ in each]),
                Line("all-reduce", [b * 1e3 if b else float("nan") for _, b in each]),
            ],
        ),
    )


CALCULATOR = Calculator(
    "strong-scaling",
    "Strong scaling",
    "How far does one batch go over more workers?",
    StrongScalingInputs,
    strong_scaling_result,
    strong_scaling_charts,
    (
        Preset("7 billion, batch 2048, 64 workers", {}),
        Preset("1024 workers", {"workers": "1024"}),
        Preset("An example as one token", {"tokens": "1"}),
        Preset(
            "Llama 3 70B over InfiniBand",
            {
                "model": "llama3-70b",
                "tokens": "8192",
                "batch": "1024",
                "workers": "512",
                "rate_flops_per_s": "500",
                "link_bytes_per_s": "50",
                "gradient_bytes": "4",
            },
        ),
    ),
)
