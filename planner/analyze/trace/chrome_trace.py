"""One step of a plan as a Chrome trace: what Perfetto (ui.perfetto.dev) and chrome://tracing show.

A process is a pipeline rank, its threads are compute and each communicator that the plan uses.
Format: Trace Event Format (Google): complete events, counters, flows and metadata, timestamps in
microseconds.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from costmodels.breakdown import Breakdown, break_down
from costmodels.documentation.terms import TERMS
from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.schedule.pipeline import StageMessage, TimedBlock
from costmodels.schedule.timeline import StepTimeline, Wire, memory_levels, step_timeline
from costmodels.schedule.zero_bubble import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD, Part
from planner import __version__
from planner.errors import UsageError
from planner.solver.answer.reasons import shown_layout
from planner.solver.answer.result import Plan

Event = dict[str, Any]

MAX_BLOCKS = 100_000
"""Forwards, backwards and weight gradients that one trace holds: viewers get slow beyond."""
TICKS_PER_US = 1024.0
"""Times lie on a grid of 1/1024 us, so that `ts + dur` of one block is exactly the `ts` of the
next in floating point, and viewers that cut to nanoseconds see no overlap."""
LETTERS = {FORWARD: "F", BACKWARD: "B", INPUT_GRAD: "B", WEIGHT_GRAD: "W"}
COMPUTE, DP, P2P = 0, 4, 5
HIDDEN = "dp hidden"
"""Category of data-parallel traffic that runs beside compute."""
HIDDEN_NOTE = (
    "traffic of dp that hides beside compute is named hidden; the model knows how much, not when:"
    " drawn are weights from the start of the blocks that need them, gradients that move once a"
    " step from the last backward of their chunk on, the last of them until it ends, others from"
    " the start of their backward"
)
"""What is assumed of the time of hidden data-parallel traffic (`costmodels.comm.hidden_traffic`).
"""
THREADS = {"compute": COMPUTE, "tp": 1, "cp": 2, "ep": 3, "dp": DP, "pp": P2P}
"""Threads of a process; messages that overlap take further ones behind the last."""


def trace_events(problem: Problem, plan: Plan, micro_batches: int = 0) -> list[Event]:
    """Return the events of one step in order of time, the names of processes and threads first.

    `micro_batches` keeps the first and last of them and leaves out the middle, 0 keeps all; the
    kept ones stay where they are. Raises `UsageError` beyond `MAX_BLOCKS`.
    """
    breakdown = break_down(problem, plan.layout)
    step, shown = _drawn(breakdown, micro_batches)
    return drawn_events(step, breakdown.layout, shown)[0]


def trace_json(problem: Problem, plan: Plan, micro_batches: int = 0) -> str:
    """Return the trace file of one step: the same bytes for the same plan. Errors as above."""
    breakdown = break_down(problem, plan.layout)
    step, shown = _drawn(breakdown, micro_batches)
    events, end_s = drawn_events(step, breakdown.layout, shown)
    about = {
        "plan": plan.plan_id,
        "layout": shown_layout(plan.layout),
        "model": problem.shape.name,
        "predicted_step_s": breakdown.step_s,
        "trace_end_s": end_s,
        "predicted_peak_bytes": breakdown.peak_bytes,
        "notes": _notes(breakdown, step, end_s, micro_batches),
        "written_by": f"planner {__version__}",
    }
    return trace_text(events, about)


def trace_text(events: Iterable[Event], about: Event) -> str:
    """Return a trace file: an event a line, after what it is about."""
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    head = json.dumps({"displayTimeUnit": "ms", "otherData": about}, indent=1)[:-2]
    return f'{head},\n "traceEvents": [\n{lines}\n]}}\n'


def _notes(
    breakdown: Breakdown, step: StepTimeline, end_s: float, micro_batches: int
) -> list[str]:
    """Return what a reader of the trace should know."""
    notes = [
        "traffic of tp, cp and ep is drawn from the start of its block, all calls in one",
        "dp that compute waits for, optimizer and stragglers are drawn behind the pipeline",
        *([HIDDEN_NOTE] if any(rank.hidden for rank in step.data_parallel) else []),
        "memory: a chunk counts from the start of its forward to the end of its backward",
    ]
    n = breakdown.layout.n_passes
    if 0 < micro_batches < n:
        notes.append(cut_note(micro_batches, n))
    if abs(end_s / breakdown.step_s - 1.0) > 1e-9:
        notes.append(
            "this pipeline does not become periodic: the prediction extrapolates from part of the"
            f" step, the trace is the whole ({end_s / breakdown.step_s - 1.0:+.1e})"
        )
    return notes


def cut_note(micro_batches: int, n_micro: int) -> str:
    """Return which micro-batches a trace leaves out."""
    return (
        f"cut: micro-batches {_first_kept(micro_batches)} to"
        f" {n_micro - micro_batches // 2 - 1} of {n_micro} are not drawn; all were simulated"
    )


def _first_kept(micro_batches: int) -> int:
    return micro_batches - micro_batches // 2


def drawn_micro_batches(n_micro: int, blocks_each: int, micro_batches: int) -> set[int]:
    """Return which of `n_micro` are drawn: all, or the first and the last of `micro_batches`.

    `blocks_each` are the blocks of one of them on all ranks. Raises `UsageError` beyond
    `MAX_BLOCKS`.
    """
    if micro_batches < 0:
        raise UsageError("--micro-batches must not be negative", "--micro-batches 32")
    drawn = min(n_micro, micro_batches) if micro_batches else n_micro
    if drawn * blocks_each > MAX_BLOCKS:
        raise UsageError(
            f"{drawn} micro-batches make {drawn * blocks_each:,} blocks, more than the "
            f"{MAX_BLOCKS:,} of one trace",
            f"--micro-batches {min(32, MAX_BLOCKS // blocks_each)} draws the first and the last",
        )
    return {*range(_first_kept(drawn)), *range(n_micro - drawn // 2, n_micro)}


def _drawn(breakdown: Breakdown, micro_batches: int) -> tuple[StepTimeline, set[int]]:
    """Return the step in time, and the micro-batches that are drawn."""
    layout = breakdown.layout
    chunks = sum(len(layout.stages_of(rank)) for rank in range(layout.pp))
    blocks_each = chunks * (3 if layout.schedule.startswith(("zb", "dual")) else 2)
    shown = drawn_micro_batches(layout.n_passes, blocks_each, micro_batches)
    return step_timeline(breakdown), shown


def drawn_events(
    step: StepTimeline, layout: Layout, micro_batches: Collection[int]
) -> tuple[list[Event], float]:
    """Return the events of some micro-batches of a step, where they are; its end in seconds.

    The names of processes and threads come first, the others in order of time.
    """
    end_s = step.pipeline.end_s + sum(seconds for _, _, seconds in step.after)
    named: list[Event] = []
    timed: list[Event] = []
    lanes = _lanes(step.pipeline.messages, micro_batches)
    for rank, blocks in enumerate(step.pipeline.blocks):
        shown = [b for b in blocks if any(micro in micro_batches for _, micro, _ in b.parts)]
        own = [
            *_block_events(step, layout.pp, rank, shown),
            *_hidden_events(step, rank, micro_batches),
            *_counter_events(step, rank, shown, len(micro_batches) < layout.n_passes),
            *_after_events(step, rank),
        ]
        used = {event["tid"] for event in own if event["ph"] == "X"}
        used |= {P2P + lane for message, lane in lanes if message.sender == rank}
        named += _names(rank, layout.stages_of(rank), layout.stage_layers, sorted(used))
        timed += own
    timed += _message_events(step, lanes)
    timed.sort(key=lambda e: (e["ts"], e["pid"], e["tid"], e["ph"], e.get("id", 0)))
    return named + timed, end_s


def ticks_us(seconds: float) -> float:
    """Return a time on the grid, microseconds."""
    return round(seconds * 1e6 * TICKS_PER_US) / TICKS_PER_US


def complete_event(
    rank: int, tid: int, name: str, category: str, span_us: tuple[float, float], args: Event
) -> Event:
    """Return a block of a thread of a process, from one time to another."""
    return {
        "ph": "X",
        "pid": rank,
        "tid": tid,
        "ts": span_us[0],
        "dur": span_us[1] - span_us[0],
        "name": name,
        "cat": category,
        "args": args,
    }


def _part_args(step: StepTimeline, pp: int, part: Part) -> Event:
    """Return what one part of a block is: its stage in model order, chunk of the rank, layers."""
    stage, micro, _ = part
    of_model = stage % step.n_stages
    first = sum(step.layers[:of_model])
    return {
        "stage": of_model,
        "chunk": stage // pp,
        "micro_batch": micro,
        "layers": [first, first + step.layers[of_model] - 1],
    }


def _block_events(
    step: StepTimeline, pp: int, rank: int, blocks: Sequence[TimedBlock]
) -> Iterable[Event]:
    """Yield the blocks of a rank on its compute thread, and their traffic."""
    several = len(step.wires) > pp
    for block in blocks:
        span = ticks_us(block.start_s), ticks_us(block.end_s)
        names = [
            f"{LETTERS[kind]}{micro}" + (f".{stage // pp}" if several else "")
            for stage, micro, kind in block.parts
        ]
        args = [_part_args(step, pp, part) for part in block.parts]
        category = "+".join(_CATEGORIES[kind] for _, _, kind in block.parts)
        total = args[0] if len(args) == 1 else {"forward": args[0], "backward": args[1]}
        yield complete_event(rank, COMPUTE, " + ".join(names), category, span, total)
        for axis in ("tp", "cp", "ep"):
            wire = _wire(step, block, axis)
            busy = min(span[1], ticks_us(block.start_s + wire.exposed_s + wire.hidden_s))
            if busy > span[0]:
                waits = {"waits_ms": wire.exposed_s * 1e3, "hidden_ms": wire.hidden_s * 1e3}
                name = f"{axis} {' + '.join(names)}"
                yield complete_event(rank, THREADS[axis], name, axis, (span[0], busy), waits)


_CATEGORIES = {
    FORWARD: "forward",
    BACKWARD: "backward",
    INPUT_GRAD: "input gradient",
    WEIGHT_GRAD: "weight gradient",
}


def _wire(step: StepTimeline, block: TimedBlock, axis: str) -> Wire:
    """Return the traffic of one axis during a block."""
    wire = Wire(0.0, 0.0)
    for stage, _, kind in block.parts:
        if kind != WEIGHT_GRAD:
            times = step.wires[stage]
            wire = wire + (times.forward if kind == FORWARD else times.backward)[axis]
    return wire


def _counter_events(
    step: StepTimeline, rank: int, shown: Sequence[TimedBlock], cut: bool
) -> Iterable[Event]:
    """Yield the memory of a rank whenever it changes; where the step is cut, also its peak."""
    levels = memory_levels(step.memory[rank], step.pipeline.blocks[rank])
    if cut:
        peak = max(levels, key=lambda x: (x[1], -x[0]))
        drawn = {0.0, peak[0]} | {time_s for b in shown for time_s in (b.start_s, b.end_s)}
        levels = [level for level in levels if level[0] in drawn]
    # Of several changes within a tick the last one stays.
    for at_us, level in {ticks_us(at_s): level for at_s, level in levels}.items():
        yield {
            "ph": "C",
            "pid": rank,
            "tid": COMPUTE,
            "ts": at_us,
            "name": "memory",
            "args": {"bytes": level},
        }


def _hidden_events(
    step: StepTimeline, rank: int, micro_batches: Collection[int]
) -> Iterable[Event]:
    """Yield the data-parallel traffic that runs beside compute."""
    for span in step.data_parallel[rank].hidden:
        if span.micros and not any(micro in micro_batches for micro in span.micros):
            continue
        interval = ticks_us(span.start_s), ticks_us(span.end_s)
        if interval[1] > interval[0]:
            args = {"waits_ms": 0.0, "hidden_ms": (span.end_s - span.start_s) * 1e3}
            yield complete_event(rank, DP, f"dp {span.what} (hidden)", HIDDEN, interval, args)


def _after_events(step: StepTimeline, rank: int) -> Iterable[Event]:
    """Yield what follows the pipeline; the end of the last is the step, not on the grid."""
    start_s = step.pipeline.end_s
    for i, (name, thread, seconds) in enumerate(step.after):
        last = i == len(step.after) - 1
        span = (
            ticks_us(start_s),
            (start_s + seconds) * 1e6 if last else ticks_us(start_s + seconds),
        )
        start_s += seconds
        args = {"what": TERMS[name].title} if name in TERMS else {}
        yield complete_event(rank, THREADS[thread], name, "after the pipeline", span, args)


def _lanes(
    messages: Sequence[StageMessage], micro_batches: Collection[int]
) -> list[tuple[StageMessage, int]]:
    """Return the messages by time, each with the first thread of its sender that is free."""
    shown = [m for m in messages if m.micro in micro_batches]
    shown.sort(key=lambda m: (m.start_s, m.sender, m.kind, m.stage, m.micro))
    free: dict[int, list[float]] = {}
    out = []
    for message in shown:
        busy = free.setdefault(message.sender, [])
        start = ticks_us(message.start_s)
        lane = next((i for i, until in enumerate(busy) if until <= start), len(busy))
        busy[lane : lane + 1] = [ticks_us(message.end_s)]
        out.append((message, lane))
    return out


def _message_events(step: StepTimeline, lanes: list[tuple[StageMessage, int]]) -> Iterable[Event]:
    """Yield each message on its sender, and the flow from there to the block that needs it."""
    starts = {
        (stage, micro, kind == FORWARD): ticks_us(block.start_s)
        for blocks in step.pipeline.blocks
        for block in blocks
        for stage, micro, kind in block.parts
        if kind != WEIGHT_GRAD
    }
    for number, (message, lane) in enumerate(lanes, start=1):
        ahead = message.kind == FORWARD
        span = ticks_us(message.start_s), ticks_us(message.end_s)
        what = "activation" if ahead else "gradient"
        args = {"to": message.receiver, "micro_batch": message.micro}
        tid = P2P + lane
        yield complete_event(message.sender, tid, f"{what} {message.micro}", "pp", span, args)
        needs = starts[message.stage + (1 if ahead else -1), message.micro, ahead]
        flow = {"id": number, "name": what, "cat": "pp"}
        yield {"ph": "s", "pid": message.sender, "tid": tid, "ts": span[0]} | flow
        arrival = {"pid": message.receiver, "tid": COMPUTE, "ts": needs, "bp": "e"}
        yield {"ph": "f"} | arrival | flow


def _names(
    rank: int, stages: Sequence[int], layers: Sequence[int], used: Sequence[int]
) -> Iterable[Event]:
    """Yield the names of a process and of the threads that it uses."""
    n_layers = sum(layers[j] for j in stages)
    label = f"stage {rank}, {n_layers} layers"
    yield name_event(rank, COMPUTE, "process_name", {"name": label})
    yield name_event(rank, COMPUTE, "process_sort_index", {"sort_index": rank})
    names = {tid: name for name, tid in THREADS.items()}
    for tid in used:
        name = names.get(tid, f"pp {tid - P2P + 1}")
        yield name_event(rank, tid, "thread_name", {"name": name})
        yield name_event(rank, tid, "thread_sort_index", {"sort_index": tid})


def name_event(rank: int, tid: int, name: str, args: Event) -> Event:
    """Return what names or orders a process or a thread."""
    return {"ph": "M", "pid": rank, "tid": tid, "name": name, "args": args}
