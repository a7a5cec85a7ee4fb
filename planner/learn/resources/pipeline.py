"""Pipeline modeler: bubble, activations held, traffic between stages, least bandwidth."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from costmodels.axes import SCHEDULES
from costmodels.memory import in_flight_chunks
from costmodels.plans import ZERO_BUBBLE
from costmodels.schedule.pipeline import PipelineRun, bubble_frac, compute_s, flush_times_s, p2p_s
from planner.learn import fields
from planner.learn.fields import BadInput
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
from planner.learn.writeups import GUIDE, MODELER
from planner.render.report.answers import AnswerTable

if TYPE_CHECKING:
    from planner.render.charts.chart import Chart

FORWARD_SHARE = 1 / 3
"""Forward over forward and backward: a backward has twice the products of its forward."""
GOOD_EFFICIENCY = 0.8
"""Below this the modeler warns: m = 4 (p - 1) micro-batches reach it."""
MAX_SPLIT_STAGES, MAX_SIMULATED = 32, 256
"""Stages of schedules that split the backward, and p v of interleaved ones, that are simulated:
some tenths of a second. Beyond, the closed form stands for the messages of the latter."""
NARAYANAN = "Narayanan et al. 2021 (Megatron-LM), section 2.2"


@dataclass(frozen=True, slots=True)
class PipelineInputs:
    """What a pipeline is made of; times and sizes of one micro-batch on one stage."""

    layers: int = fields.count_field(
        "Layers of the model", 80, fields.InputRange(1, 10_000), group="Pipeline"
    )
    stages: int = fields.count_field(
        "Stages", 4, fields.InputRange(1, 256), note="p, pipeline ranks", group="Pipeline"
    )
    micro_batches: int = fields.count_field(
        "Micro-batches",
        8,
        fields.InputRange(1, 100_000),
        note="m, of one step and pipeline",
        group="Pipeline",
    )
    schedule: str = fields.choice(
        "Schedule",
        "1f1b",
        tuple((x, x) for x in SCHEDULES[1:]),
        note="zb and dualpipe split the backward",
        group="Pipeline",
    )
    vpp: int = fields.count_field(
        "Chunks of a stage",
        1,
        fields.InputRange(1, 32),
        note="v, virtual stages; interleaved only",
        group="Pipeline",
    )
    stage_s: float = fields.time(
        "Compute of a stage",
        10.24,
        fields.InputRange(1e-4, 1e6, "ms"),
        note="forward and backward, one micro-batch",
        group="One micro-batch on one stage",
    )
    activation_bytes: float = fields.size_field(
        "Activations kept",
        64,
        fields.InputRange(1e-6, 1e9, "MB"),
        note="for the backward",
        group="One micro-batch on one stage",
    )
    message_bytes: float = fields.size_field(
        "Message",
        64,
        fields.InputRange(1e-6, 1e9, "MB"),
        note="to the next stage: 2 s b h bytes in bf16",
        group="One micro-batch on one stage",
    )
    link_bytes_per_s: float = fields.bandwidth(
        "Link between stages", 50, group="One micro-batch on one stage"
    )

    def check(self) -> None:
        """Raise `BadInput` for inputs that no schedule runs."""
        p, v, m = self.stages, self.vpp, self.micro_batches
        if p * v > self.layers:
            raise BadInput(
                "stages",
                f"{p} stages of {v} chunks need as many layers, not {self.layers}",
                "fewer stages or more layers",
            )
        if self.schedule == "interleaved":
            if v < 2 or p < 2:
                raise BadInput("vpp", "interleaving takes 2 chunks and 2 stages at least")
            if m % p:
                near = f"{max(p, m // p * p)} or {(m // p + 1) * p}"
                raise BadInput(
                    "micro_batches", f"interleaved runs multiples of {p} stages", f"write {near}"
                )
        elif v > 1:
            raise BadInput(
                "vpp", f"{self.schedule} has one chunk a stage", "1, or schedule interleaved"
            )
        if self.schedule in ZERO_BUBBLE and not 2 <= p <= MAX_SPLIT_STAGES:
            raise BadInput(
                "stages", f"{self.schedule} is simulated with 2 to {MAX_SPLIT_STAGES} stages"
            )
        if self.schedule == "dualpipe" and p % 2:
            raise BadInput(
                "stages", f"dualpipe takes even stages, not {p}", f"write {p - 1} or {p + 1}"
            )
        if self.schedule in ("dualpipe", "dualpipe-v") and m < 2 * p:
            raise BadInput(
                "micro_batches",
                f"{self.schedule} needs 2 pp micro-batches or more (BAT003)",
                f"write {2 * p} or more, not {m}",
            )
        if self.schedule == "dualpipe" and m % 2:
            raise BadInput(
                "micro_batches",
                f"dualpipe takes even micro-batches, not {m} (BAT003)",
                f"write {m - 1} or {m + 1}",
            )

    @property
    def code(self) -> int:
        """Number of the schedule in the tables of the cost model."""
        return SCHEDULES.index(self.schedule)


def pipeline_step_s(x: PipelineInputs, hop_s: float = 0.0) -> float:
    """Return the time of a step of equal stages, seconds; `hop_s` is what a message takes.

    Simulated block by block, or the closed forms: without messages, where they are exact, and for
    messages of a very long pipeline (`simulated`).
    """
    p, v = x.stages, x.vpp
    if p == 1 or (x.schedule not in ZERO_BUBBLE and (not hop_s or not simulated(x))):
        closed = compute_s(x.stage_s, p * x.stage_s, v, x.micro_batches)
        return float(closed + p2p_s(x.code, p, v, x.micro_batches, hop_s))
    two = x.schedule in ("zb-v", "dualpipe-v")  # two chunks of a rank, half a stage each
    n = p * v * (2 if two else 1)
    each = x.stage_s / (v * (2 if two else 1))
    forward, backward = (each * FORWARD_SHARE,) * n, (each * (1 - FORWARD_SHARE),) * n
    weight = forward if x.schedule in ZERO_BUBBLE else ()
    run = PipelineRun(x.schedule, p, v, x.micro_batches, forward, backward, hop_s, weight)
    # Sums of rounded times may fall short of the work itself.
    return max(flush_times_s([run])[0], x.micro_batches * x.stage_s)


def simulated(x: PipelineInputs) -> bool:
    """Tell whether messages are simulated; else interleaving is too long for it (closed form)."""
    return x.vpp == 1 or x.stages * x.vpp <= MAX_SIMULATED


def waited_s(x: PipelineInputs, hop_s: float) -> float:
    """Return what a step takes longer because of messages of `hop_s`, seconds."""
    return max(0.0, pipeline_step_s(x, hop_s) - pipeline_step_s(x))


def held_stage_units(code: int, p: int, v: int, m: int) -> float:
    """Return the activations that the fullest rank holds, in micro-batches of its whole stage."""
    halves = {"zb-v": 2.0, "dualpipe-v": 2.0}.get(SCHEDULES[code], 1.0)
    peak_chunks = max(in_flight_chunks(code, r, p, v, m).item() for r in range(min(p, 1) or 1))
    return float(peak_chunks / (v if SCHEDULES[code] == "interleaved" else halves))


def message_s(x: PipelineInputs) -> float:
    """Return what a message takes at the bandwidth of the link, seconds (latency left out)."""
    return x.message_bytes / x.link_bytes_per_s if x.stages > 1 else 0.0


def pipeline_result(x: PipelineInputs) -> CalculatorResult:
    """Return the answer of the pipeline modeler."""
    p, v, m, t = x.stages, x.vpp, x.micro_batches, x.stage_s
    step, tau = pipeline_step_s(x), message_s(x)
    split = x.schedule in ZERO_BUBBLE
    work = m * t
    idle = 1 - work / step if split else bubble_frac(p, v, m)
    closed = compute_s(t, p * t, v, m).item()
    resident = held_stage_units(x.code, p, v, m)
    with_messages, p2p = pipeline_step_s(x, tau), waited_s(x, tau)
    crossings = m * v * (2 if x.schedule in ("zb-v", "dualpipe-v") else 1)
    both_ways = 2 * crossings * x.message_bytes if p > 1 else 0.0
    block_s = t * FORWARD_SHARE / v
    least = x.message_bytes / block_s if p > 1 else 0.0
    efficiency = 1 - idle
    bubble_source = f"{NARAYANAN}; costmodels.schedule.pipeline.bubble_frac"
    numbers = [
        Number(
            "layers_per_stage",
            "Layers of a stage",
            x.layers / p,
            "count",
            "L / p",
            f"{x.layers} / {p}",
            "definition",
            ""
            if x.layers % p == 0
            else f"not whole: stages of {x.layers // p} and "
            f"{x.layers // p + 1}, and the longest sets the pace",
        ),
        Number(
            "operations",
            "Operations: stages times micro-batches",
            p * m,
            "count",
            "p m",
            f"{p} * {m}",
            "definition; each is a forward and a backward",
        ),
        Number(
            "bubble_frac",
            "Bubble, share of the step",
            idle,
            "fraction",
            "1 - m t / step" if split else "(p - 1) / (m v + p - 1)",
            f"1 - {m} * {shown(t, 'seconds')} / {shown(step, 'seconds')}"
            if split
            else f"({p} - 1) / ({m} * {v} + {p} - 1) = {p - 1} / {m * v + p - 1}",
            "simulated block by block; costmodels.schedule.pipeline.flush_times_s"
            if split
            else bubble_source,
        ),
        Number(
            "efficiency",
            "Pipeline efficiency",
            efficiency,
            "fraction",
            "1 - bubble",
            f"1 - {sig(idle)}",
            bubble_source,
        ),
        Number(
            "bubble_overhead",
            "Bubble over ideal time",
            step / work - 1,
            "fraction",
            "step / (m t) - 1" if split else "(p - 1) / (m v)",
            f"{shown(step, 'seconds')} / {shown(work, 'seconds')} - 1"
            if split
            else f"({p} - 1) / ({m} * {v})",
            NARAYANAN,
            "what some pages call the bubble: not a share of the step",
        ),
        Number(
            "compute_s",
            "Compute of a device in a step",
            work,
            "seconds",
            "m t",
            f"{m} * {shown(t, 'seconds')}",
            "definition",
        ),
        Number(
            "step_s",
            "Step without messages",
            step,
            "seconds",
            "simulated" if split else "m t + (p - 1) t / v",
            f"{m} * {shown(t, 'seconds')} + {p - 1} * {shown(t, 'seconds')} / {v} = "
            f"{shown(closed, 'seconds')}"
            if not split
            else f"{p} ranks, {m} micro-batches",
            f"{NARAYANAN}; costmodels.schedule.pipeline.flush_times_s",
        ),
        Number(
            "held",
            "Micro-batches held at the peak",
            resident,
            "count",
            _held_formula(x.schedule),
            _held_numbers(x, resident),
            "Megatron-LM schedules.py (warm-up counts); costmodels.memory.in_flight_chunks",
            "of the whole stage, on the rank that holds most",
        ),
        Number(
            "activations",
            "Peak activations of a device",
            resident * x.activation_bytes,
            "memory",
            "held A",
            f"{sig(resident)} * {shown(x.activation_bytes, 'bytes')}",
            "costmodels.memory.in_flight_chunks",
        ),
        Number(
            "transfer",
            "Traffic over one boundary in a step",
            both_ways,
            "bytes",
            "2 m v n (activations one way, gradients the other)",
            f"2 * {m} * {crossings // m} * {shown(x.message_bytes, 'bytes')}"
            if p > 1
            else "one stage has no boundary",
            "definition",
        ),
        Number(
            "message_s",
            "One message",
            tau,
            "seconds",
            "n / B",
            f"{shown(x.message_bytes, 'bytes')} / {shown(x.link_bytes_per_s, 'bytes_per_s')}",
            "definition; latency left out",
        ),
        Number(
            "p2p_s",
            "Messages that the schedule waits for",
            p2p,
            "seconds",
            "step with messages - step without",
            f"{shown(with_messages, 'seconds')} - {shown(step, 'seconds')}",
            *_p2p_words(x),
        ),
        Number(
            "step_with_messages_s",
            "Step with messages",
            with_messages,
            "seconds",
            "end = max(previous block, producer + tau) + duration"
            if simulated(x)
            else "m t + (p - 1) t / v + 2 (p v - 1) tau",
            f"tau = {shown(tau, 'seconds')}, {p} ranks, {m} micro-batches",
            "costmodels.schedule.pipeline.flush_times_s"
            if simulated(x)
            else "closed form; costmodels.schedule.pipeline.p2p_s",
        ),
        Number(
            "least_bandwidth",
            "Least bandwidth between stages",
            least,
            "link",
            "n / (t_f / v): a message as short as the forward of a chunk",
            f"{shown(x.message_bytes, 'bytes')} / ({shown(t * FORWARD_SHARE, 'seconds')} / {v})"
            if p > 1
            else "one stage sends nothing",
            "condition of the recurrence; one way, with t_f a third of the compute",
            "below it interleaved schedules wait longer and longer",
        ),
    ]
    return CalculatorResult(
        _headline(x, idle, step),
        tuple(numbers),
        _advice(x, efficiency, least),
        (_schedules_table(x),),
        tuple(_differences(x, idle, resident, both_ways, least)),
        (
            "Uneven stages: the embedding and above all head and loss make the ends longer; "
            "`planner solve` prices them.",
            "Latency of messages, and sending that keeps the device busy.",
            "Recomputation: add a forward to the compute and keep 2 s b h bytes a layer.",
        ),
    )


def _held_formula(schedule: str) -> str:
    return {
        "gpipe": "m",
        "1f1b": "min(m, p)",
        "interleaved": "min(m v, 2 (p - 1) + (v - 1) p + 1) / v",
        "zb-h1": "min(m, p)",
        "zb-v": "min(2 m, 2 p) / 2",
        "dualpipe": "p + 1",
        "dualpipe-v": "(2 p + 1) / 2",
    }[schedule]


def _held_numbers(x: PipelineInputs, resident: float) -> str:
    p, v, m = x.stages, x.vpp, x.micro_batches
    inside = f"2 * {p - 1} + {v - 1} * {p} + 1"
    texts = {
        "gpipe": f"{m}",
        "1f1b": f"min({m}, {p})",
        "interleaved": f"min({m} * {v}, {inside}) / {v} = {sig(resident)}",
    }
    return texts.get(x.schedule, f"p = {p}, m = {m}: {sig(resident)}")


def _p2p_words(x: PipelineInputs) -> tuple[str, str]:
    """Return where the messages waited for come from, and a note."""
    if not simulated(x):
        return (
            "closed form; costmodels.schedule.pipeline.p2p_s",
            f"interleaving with p v above {MAX_SIMULATED} is not simulated; the closed form is "
            "exact while a message is shorter than the forward of a chunk, and too little beyond",
        )
    short = {
        "gpipe": "2 (p - 1) messages: down once and up once",
        "1f1b": "short ones: 2 (p - 1) + 2 (m - 1 - ceil((m - 1)/p)) messages, as neighbours "
        "ping-pong also in the middle of the step",
        "interleaved": "2 (p v - 1) messages while one is shorter than the forward of a chunk",
    }
    source = "simulation of the schedule; costmodels.schedule.pipeline.flush_times_s"
    return source, short.get(x.schedule, "part of them hides behind weight gradients")


def _headline(x: PipelineInputs, idle: float, step: float) -> str:
    return (
        f"{x.stages} stages and {x.micro_batches} micro-batches under {x.schedule}: "
        f"{shown(idle, 'fraction')} of the step is bubble, a step takes {shown(step, 'seconds')}."
    )


def _advice(x: PipelineInputs, efficiency: float, least: float) -> tuple[str, ...]:
    p, v, m = x.stages, x.vpp, x.micro_batches
    results = []
    if efficiency < GOOD_EFFICIENCY and x.schedule not in ZERO_BUBBLE:
        enough = -(-4 * (p - 1) // v)
        enough = -(-enough // p) * p if x.schedule == "interleaved" else enough
        results.append(
            f"Efficiency is below {GOOD_EFFICIENCY:.0%}. {enough} micro-batches reach "
            f"{1 - bubble_frac(p, v, enough):.1%}, {2 * m} (twice as many) "
            f"{1 - bubble_frac(p, v, 2 * m):.1%}."
        )
        if p > 2:
            results.append(
                f"{p - 1} stages instead of {p}: {1 - bubble_frac(p - 1, v, m):.1%}, if the "
                "model still fits."
            )
    if x.schedule in ("gpipe", "1f1b") and p > 1 and x.layers >= 2 * p and m % p == 0:
        results.append(
            f"Interleaving 2 chunks a stage cuts the bubble to {bubble_frac(p, 2, m):.1%}, for "
            "twice the messages and more activations."
        )
    if x.schedule == "gpipe" and m > p:
        results.append(
            f"1F1B has the same bubble and holds {min(m, p)} micro-batches instead of {m}."
        )
    if p > 1 and x.link_bytes_per_s < least:
        results.append(
            f"The link ({shown(x.link_bytes_per_s, 'bytes_per_s')}) is slower than the "
            f"{shown(least, 'bytes_per_s')} at which messages hide."
        )
    return tuple(results)


def _schedules_table(x: PipelineInputs) -> NamedTable:
    p, m, tau = x.stages, x.micro_batches, message_s(x)
    rows: list[tuple[str | float | int | None, ...]] = []
    for name, v in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 4)):
        if name == "interleaved" and (m % p or p < 2 or p * v > x.layers):
            continue
        one = replace(x, schedule=name, vpp=v)
        resident = held_stage_units(one.code, p, v, m)
        rows.append(
            (
                name if v == 1 else f"{name}, {v} chunks",
                shown(bubble_frac(p, v, m), "fraction"),
                shown(pipeline_step_s(one), "seconds"),
                shown(resident, "count"),
                shown(resident * x.activation_bytes, "bytes"),
                shown(waited_s(one, tau), "seconds")
                + ("" if simulated(one) else " (closed form)"),
            )
        )
    heads = (
        "Schedule",
        "Bubble",
        "Step",
        "Micro-batches held",
        "Peak activations",
        "Messages waited for",
    )
    return NamedTable("The same pipeline under other schedules", AnswerTable(heads, tuple(rows)))


def _differences(
    x: PipelineInputs, idle: float, resident: float, both_ways: float, least: float
) -> list[Difference]:
    p, v, m, t = x.stages, x.vpp, x.micro_batches, x.stage_s
    results = [
        Difference(
            "bubble_share",
            "bubble fraction = (p - 1) / m",
            MODELER,
            (p - 1) / m,
            idle,
            "fraction",
            "That is the bubble over the ideal time, not a share of the step. The "
            "page's own widget divides by m + p - 1, as we do.",
        ),
        Difference(
            "bubble_of_micro_batches",
            "idle share = (n - 1) / n with n micro-batches",
            MODELER,
            (m - 1) / m,
            idle,
            "fraction",
            "It takes the number of micro-batches for the number "
            "of stages: more micro-batches would then mean more idling. GPipe has no default of "
            "4 micro-batches either; its advice is m >= 4 p.",
        ),
        Difference(
            "activations",
            "peak activation = m A, whatever the schedule",
            MODELER,
            m * x.activation_bytes,
            resident * x.activation_bytes,
            "bytes",
            "True of GPipe only. 1F1B starts backwards early and holds min(m, p - r) on rank r, "
            "so more micro-batches cost no memory.",
        ),
        Difference(
            "one_micro_batch",
            "with one micro-batch every device is active 2/p of the time",
            GUIDE,
            min(1.0, 2 / p),
            1 / p,
            "fraction",
            "One device works at a time, also in the "
            "backward: 1/p. Its own bubble of (p - 1)/p says so too.",
        ),
    ]
    if p > 1:
        results.append(
            Difference(
                "least_bandwidth",
                "least bandwidth = traffic of a step / compute of a step, 1024 MB counted as 1 GB",
                MODELER,
                both_ways / 1.024 / (m * t),
                least,
                "link",
                "An average over the step and over both directions of the link, with binary "
                "megabytes taken for decimal ones on the way. A message hides only if it is "
                "as short as the forward beside it, one way.",
            )
        )
    if v > 1:
        results.append(
            Difference(
                "interleaved_message",
                "interleaving reduces the size of a message",
                GUIDE,
                x.message_bytes / v,
                x.message_bytes,
                "bytes",
                "A chunk passes on the same "
                "activations, 2 s b h bytes; there are v times as many messages.",
            )
        )
    return results


def pipeline_charts(x: PipelineInputs) -> "tuple[Chart, ...]":
    """Return efficiency and activations over the number of micro-batches."""
    from planner.learn.drawing import Axes, ChartText, Line, lines_chart

    p = x.stages
    largest = max(64, 8 * p, 2 * x.micro_batches)
    places = sorted({max(1, round(p * k / 4)) for k in range(1, 33)} | {x.micro_batches, largest})
    efficiency = [Line("GPipe, 1F1B", [1 - bubble_frac(p, 1, m) for m in places])]
    for v in (2, 4):
        if p > 1 and p * v <= x.layers:
            values = [1 - bubble_frac(p, v, m) if m % p == 0 else np.nan for m in places]
            interleavable = [value for value in values if value == value]
            if len(interleavable) > 2:
                filled = [1 - bubble_frac(p, v, m) for m in places]
                efficiency.append(Line(f"interleaved, {v} chunks", filled))
    activations = [
        Line(
            name,
            [
                held_stage_units(SCHEDULES.index(code), p, v, m) * x.activation_bytes / 1e9
                for m in places
            ],
        )
        for name, code, v in (
            ("GPipe", "gpipe", 1),
            ("1F1B", "1f1b", 1),
            ("interleaved, 2 chunks", "interleaved", 2),
        )
        if v == 1 or (p > 1 and p * v <= x.layers)
    ]
    return (
        lines_chart(
            ChartText(
                "efficiency",
                "Efficiency over micro-batches",
                f"With {p} stages, {4 * (p - 1)} micro-batches reach 80 % without interleaving.",
            ),
            Axes(
                ("Micro-batches", places),
                "Efficiency",
                here=x.micro_batches,
                level=("80 %", GOOD_EFFICIENCY),
            ),
            efficiency,
        ),
        lines_chart(
            ChartText(
                "activations",
                "Peak activations over micro-batches",
                "GPipe holds all micro-batches, the others as many as there are"
                " stages or a few more.",
            ),
            Axes(("Micro-batches", places), "GB", log_y=True, here=x.micro_batches),
            activations,
        ),
    )


CALCULATOR = Calculator(
    "pipeline",
    "Pipeline modeler",
    "What do stages, micro-batches and the schedule cost in idle time, memory and bandwidth?",
    PipelineInputs,
    pipeline_result,
    pipeline_charts,
    (
        Preset("80 layers, 4 stages, 8 micro-batches", {}),
        Preset(
            "8 stages, 32 micro-batches",
            {"stages": "8", "micro_batches": "32", "message_bytes": "536.9"},
        ),
        Preset("The same with GPipe", {"schedule": "gpipe"}),
        Preset(
            "Interleaved, 16 stages of 5 chunks",
            {"schedule": "interleaved", "stages": "16", "vpp": "5", "micro_batches": "64"},
        ),
        Preset("Zero bubble", {"schedule": "zb-h1", "stages": "8", "micro_batches": "32"}),
    ),
)
