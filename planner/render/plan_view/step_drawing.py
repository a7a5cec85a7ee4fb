"""One step drawn in time: what every pipeline rank computes, sends and waits for.

The events are those of the trace file (`planner.analyze.trace.chrome_trace`). A long step is cut:
its start, a while in the middle and its end are drawn, each with a time axis of its own and with
all that runs in it; of many ranks the first and the last are drawn.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from costmodels.breakdown import Breakdown
from costmodels.problem import Problem
from costmodels.schedule.pipeline import TimedBlock
from costmodels.schedule.timeline import StepTimeline, step_timeline
from costmodels.schedule.zero_bubble import WEIGHT_GRAD
from planner.analyze.trace.chrome_trace import HIDDEN, HIDDEN_NOTE, P2P, THREADS, drawn_events
from planner.render.charts.chart import Frame
from planner.render.palette import SHADED_EDGE, STEP_SHADES, legend_fill, shaded
from planner.render.plan_view.cards import (
    Amount,
    CardNumber,
    Cell,
    Deck,
    Derivation,
    Label,
    NumberTable,
    Words,
)
from planner.render.plan_view.figures import FigureHeading, ViewFigure, view_figure
from planner.render.plan_view.quantities import exact, quantity_text
from planner.solver.answer.result import Plan

MAX_BLOCKS = 1500
"""Forwards, backwards and weight gradients that are drawn: browsers stay fluid."""
MAX_RANKS = 24
MAX_SIMULATED = 40_000
"""Blocks of a step that is laid out whole; of a longer one a shorter step stands for it."""
COLOURS = {
    **{kind: shaded(legend_fill("compute"), share) for kind, share in STEP_SHADES.items()},
    **{axis: legend_fill(axis) for axis in ("tp", "cp", "ep", "dp")},
    "dp hidden": legend_fill("dp"),
    "pp": legend_fill("pp"),
    "after the pipeline": legend_fill("per step"),
}
"""By kind of event, in the order of the legend: shades of compute, and the axes' own colours."""
NAMES = {
    "forward": "forward",
    "backward": "backward",
    "input gradient": "gradient of the input",
    "weight gradient": "gradient of the weights",
    "tp": "tp traffic",
    "cp": "cp traffic",
    "ep": "ep traffic",
    "dp": "dp traffic",
    "dp hidden": "dp traffic, hidden",
    "pp": "messages between stages",
    "after the pipeline": "after the pipeline",
}
LANES = ("tp", "cp", "ep", "dp", "pp")
COMPUTE_SHARE = 0.5
"""Of the height of a rank."""


@dataclass(frozen=True, slots=True)
class Window:
    """A part of the step that is drawn."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Drawing:
    """A step as it is drawn."""

    events: tuple[Mapping[str, Any], ...]
    """Complete events of the trace that the windows show, of the drawn ranks."""
    windows: tuple[Window, ...]
    """One for a step that is drawn whole."""
    ranks: tuple[int, ...]
    end_s: float
    shortened: bool
    """A step of fewer micro-batches stands for a very long one."""
    step: StepTimeline

    @property
    def left_out_s(self) -> float:
        """Time of the step that no window shows."""
        return self.end_s - sum(window.end_s - window.start_s for window in self.windows)


def draw_step(plan: Plan) -> Drawing:
    """Return the step of a plan, cut so that it can be drawn."""
    breakdown, shortened = short_enough(plan.breakdown)
    step, ranks = step_timeline(breakdown), _shown_ranks(breakdown.layout.pp)
    blocks = [block for rank in ranks for block in step.pipeline.blocks[rank]]
    end_s = step.pipeline.end_s + sum(seconds for _, _, seconds in step.after)
    windows = step_windows(blocks, end_s)
    micros = {
        micro
        for block in blocks
        if _overlaps(block.start_s, block.end_s, windows)
        for _, micro, _ in block.parts
    }
    events, _ = drawn_events(step, breakdown.layout, micros)
    chosen = set(ranks)
    drawn = tuple(
        e
        for e in events
        if e["ph"] == "X"
        and e["pid"] in chosen
        and _overlaps(e["ts"] * 1e-6, (e["ts"] + e["dur"]) * 1e-6, windows)
    )
    return Drawing(drawn, windows, ranks, end_s, shortened, step)


def short_enough(breakdown: Breakdown) -> tuple[Breakdown, bool]:
    """Return the breakdown, of a very long step with fewer micro-batches; whether it has."""
    x = breakdown.layout
    blocks = len(x.stage_layers) * 3
    if blocks * x.n_micro <= MAX_SIMULATED:
        return breakdown, False
    period = 2 * x.pp
    n = min(x.n_micro, max(3 * x.pp, MAX_SIMULATED // blocks) // period * period)
    return replace(breakdown, layout=replace(x, gbs=n * x.mbs * x.dp)), True


def _shown_ranks(pp: int) -> tuple[int, ...]:
    if pp <= MAX_RANKS:
        return tuple(range(pp))
    half = MAX_RANKS // 2
    return (*range(half), *range(pp - half, pp))


def step_windows(blocks: Sequence[TimedBlock], end_s: float) -> tuple[Window, ...]:
    """Return the parts of a step that are drawn: all, or its start, its middle and its end."""
    if len(blocks) <= MAX_BLOCKS:
        return (Window("whole step", 0.0, end_s),)
    ends, n = 2 * MAX_BLOCKS // 5, len(blocks)
    starts = sorted(block.start_s for block in blocks)
    half = (MAX_BLOCKS - 2 * ends) // 2
    return (
        Window("warm-up", 0.0, starts[ends]),
        Window("steady state", starts[n // 2 - half], starts[n // 2 + half]),
        Window("cool-down", starts[n - ends], end_s),
    )


def _overlaps(low_s: float, high_s: float, windows: Sequence[Window]) -> bool:
    """Tell whether something between two times shows in a window."""
    return any(low_s < window.end_s and high_s > window.start_s for window in windows)


def drawn_timeline(deck: Deck, problem: Problem, plan: Plan) -> ViewFigure:
    """Return the timeline of one step."""
    drawing = draw_step(plan)
    lanes = [axis for axis in LANES if any(_lane(e) == axis for e in drawing.events)]
    unit, factor = ("s", 1.0) if drawing.end_s >= 1.0 else ("ms", 1e-3)
    traces = list(_traces(drawing, lanes, factor))
    table, cells = _table(deck, plan, drawing)
    notes = [
        "Traffic of tp, cp and ep is drawn from the start of its block, all calls in one; dp that"
        " compute waits for, optimizer and stragglers behind the pipeline. Gaps are bubbles. Drag"
        " to zoom, double click to see all; `planner trace` writes every block.",
    ]
    if any(rank.hidden for rank in drawing.step.data_parallel):
        notes.append(f"{HIDDEN_NOTE[0].upper()}{HIDDEN_NOTE[1:]}.")
    caption = _caption(deck, plan, drawing, cells)
    drawn = Frame(
        _height(drawing, lanes), _layout(drawing, lanes, unit, factor), legend_lines=2
    ).figure(traces, checked=False)
    return view_figure(
        deck, FigureHeading("timeline", "One step in time", caption, tuple(notes)), drawn, table
    )


def _height(drawing: Drawing, lanes: Sequence[str]) -> int:
    each = 26 + 7 * len(lanes)
    least = 260 if len(drawing.windows) == 1 else 360  # windows stand below each other when narrow
    return min(1100, max(least, 150 + each * len(drawing.ranks)))


def _lane(event: Mapping[str, Any]) -> str:
    """Return the thread of an event: `compute`, or the name of a communicator."""
    tid = event["tid"]
    if tid >= P2P:
        return "pp"
    return next(name for name, number in THREADS.items() if number == tid)


def _span(event: Mapping[str, Any], lanes: Sequence[str], row: int) -> tuple[float, float]:
    """Return the upper and lower edge of an event in the band of its rank."""
    lane = _lane(event)
    if lane == "compute":
        return _round(row + 0.04), _round(row + 0.04 + COMPUTE_SHARE)
    height = (0.92 - COMPUTE_SHARE - 0.04) / len(lanes)
    top = row + 0.08 + COMPUTE_SHARE + height * lanes.index(lane)
    return _round(top), _round(top + 0.8 * height)


def _kind(event: Mapping[str, Any]) -> str:
    """Return the colour of an event: its communicator's, or the first of what runs at once."""
    lane, category = _lane(event), str(event["cat"])
    if category == HIDDEN:
        return category
    return category.split("+")[0] if lane == "compute" else lane


def _by_window(drawing: Drawing) -> list[dict[str, list[Mapping[str, Any]]]]:
    """Return the events that each window shows, by kind."""
    results: list[dict[str, list[Mapping[str, Any]]]] = [{} for _ in drawing.windows]
    for event in drawing.events:
        span = event["ts"] * 1e-6, (event["ts"] + event["dur"]) * 1e-6
        for place, window in enumerate(drawing.windows):
            if _overlaps(*span, (window,)):
                results[place].setdefault(_kind(event), []).append(event)
    return results


def _traces(drawing: Drawing, lanes: Sequence[str], factor: float) -> Iterable[dict[str, Any]]:
    """Yield the filled shapes of each window by kind, and the places where their texts appear."""
    row_of = {rank: row for row, rank in enumerate(drawing.ranks)}
    seen: set[str] = set()
    few = len(drawing.events) < 700
    for panel, by_kind in enumerate(_by_window(drawing)):
        number = "" if panel == 0 else str(panel + 1)
        axes = {"xaxis": f"x{number}", "yaxis": f"y{number}"}
        for kind in (kind for kind in COLOURS if kind in by_kind):
            xs: list[float | None] = []
            ys: list[float | None] = []
            at_x: list[float | None] = []
            at_y: list[float | None] = []
            texts: list[str] = []
            for event in by_kind[kind]:
                start = event["ts"] * 1e-6 / factor
                low, high = _short(start), _short(start + event["dur"] * 1e-6 / factor)
                top, bottom = _span(event, lanes, row_of[event["pid"]])
                xs += [low, high, high, low, low, None]
                ys += [top, top, bottom, bottom, top, None]
                # A point, a gap and so on: nothing is drawn, but the text is found there.
                at_x += [_short((low + high) / 2), None]
                at_y += [_round((top + bottom) / 2), None]
                texts += [_text(event), ""]
            colour, name = COLOURS[kind], NAMES[kind]
            # Edges set blocks apart, but would hide many narrow ones; messages are hardly wider.
            edge = 0.8 if few or kind in LANES or kind == HIDDEN else 0.0
            yield {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": xs,
                "y": ys,
                "fill": "toself",
                "hoverinfo": "skip",
                "legendgroup": name,
                **_filling(kind, colour),
                "line": {"width": edge, "color": shaded(colour, SHADED_EDGE) if few else colour},
                "showlegend": name not in seen,
                **axes,
            }
            seen.add(name)
            yield {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": at_x,
                "y": at_y,
                "text": texts,
                "hoveron": "points",
                "line": {"width": 0, "color": colour},
                "showlegend": False,
                "legendgroup": name,
                "hovertemplate": "%{text}<extra>" + name + "</extra>",
                **axes,
            }


def _filling(kind: str, colour: str) -> dict[str, Any]:
    """Return the fill of a kind; what hides is hatched."""
    if kind != HIDDEN:
        return {"fillcolor": colour}
    dark = shaded(colour, SHADED_EDGE)
    pattern = {"shape": "/", "bgcolor": colour, "fgcolor": dark, "size": 5, "solidity": 0.25}
    return {"fillcolor": colour, "fillpattern": pattern}


def _text(event: Mapping[str, Any]) -> str:
    """Return what appears over an event."""
    args, start, took = event["args"], event["ts"] * 1e-6, event["dur"] * 1e-6
    lines = [
        f"{event['name']} on stage {event['pid']}: {quantity_text(took, 's')} from "
        f"{quantity_text(start, 's', 5)}"
    ]
    if "layers" in args:
        low, high = args["layers"]
        lines.append(f"layers {low} to {high}")
    if "waits_ms" in args:
        waits, hidden = args["waits_ms"] * 1e-3, args["hidden_ms"] * 1e-3
        lines.append(
            f"waited for {quantity_text(waits, 's')}, hidden {quantity_text(hidden, 's')}"
        )
    if "to" in args:
        lines.append(f"to stage {args['to']}")
    return "<br>".join(lines)


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _round(value: float) -> float:
    return round(value, 3)


def micro_batch_s(drawing: Drawing) -> float:
    """Return the time of a micro-batch in the steady state, s: of the stage that works longest.

    Blocks of a stage over the micro-batches of the step that is drawn.
    """
    stages = drawing.step.pipeline.blocks
    micros = {micro for blocks in stages for block in blocks for _, micro, _ in block.parts}
    return max(sum(b.end_s - b.start_s for b in blocks) for blocks in stages) / len(micros)


def step_marks(drawing: Drawing, factor: float) -> dict[str, Any]:
    """Return what zooming goes by, in units of the time axes: end, windows, one micro-batch."""
    return {
        "end": _short(drawing.end_s / factor),
        "windows": [
            [_short(w.start_s / factor), _short(w.end_s / factor)] for w in drawing.windows
        ],
        "names": [window.name for window in drawing.windows],
        "micro_batch": _short(micro_batch_s(drawing) / factor),
    }


def _layout(drawing: Drawing, lanes: Sequence[str], unit: str, factor: float) -> dict[str, Any]:
    """Return the axes: one panel, or one for each window of a cut step."""
    rows = len(drawing.ranks)
    ticks = [row + 0.04 + COMPUTE_SHARE / 2 for row in range(rows)]
    every = -(-rows // 16)
    labels = [str(rank) if row % every == 0 else "" for row, rank in enumerate(drawing.ranks)]
    axis = {
        "range": [rows + 0.02, -0.02],
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": labels,
        "fixedrange": False,
        "showgrid": False,
        "zeroline": False,
    }
    out: dict[str, Any] = {"hoverdistance": 40, "meta": step_marks(drawing, factor)}
    is_whole = len(drawing.windows) == 1
    if not is_whole:
        out["grid"] = {
            "rows": 1,
            "columns": len(drawing.windows),
            "pattern": "independent",
            "xgap": 0.12,
            "ygap": 0.6,
        }
    for i, window in enumerate(drawing.windows):
        number = "" if i == 0 else str(i + 1)
        low, high = window.start_s / factor, window.end_s / factor
        margin = 0.01 * (high - low)
        title = f"Time in the step ({unit})" if is_whole else f"{window.name} ({unit})"
        out[f"xaxis{number}"] = {
            "title": {"text": title, "standoff": 2},
            "range": [low - margin, high + margin],
            "zeroline": False,
        }
        out[f"yaxis{number}"] = axis | {"title": {"text": "Stage" if i == 0 else ""}}
    return out


def _table(
    deck: Deck, plan: Plan, drawing: Drawing
) -> tuple[NumberTable, dict[int, dict[str, CardNumber]]]:
    """Return what every drawn rank does in the step, and the numbers by rank and column."""
    pipeline_s, out, cells = drawing.step.pipeline.end_s, [], {}
    source = (
        "planner.analyze.trace.chrome_trace and costmodels.schedule.timeline: the exact recurrence"
        " (costmodels.schedule.pipeline.timeline) of the step, all micro-batches"
        + (" of a shorter step that stands for it" if drawing.shortened else "")
    )
    axes = [axis for axis in ("tp", "cp", "ep") if _uses(drawing, axis)]
    hides = any(one.hidden for one in drawing.step.data_parallel)
    for rank in drawing.ranks:
        blocks = drawing.step.pipeline.blocks[rank]
        busy = sum(block.end_s - block.start_s for block in blocks)
        waits = _waits(drawing.step, rank, axes)
        numbers = {
            "busy": deck.add(
                f"timeline-{rank}-busy",
                f"blocks of stage {rank}",
                Amount(busy, "s"),
                Derivation(
                    "sum of its forwards, backwards and weight gradients",
                    f"{len(blocks):,} × {_mean(busy, len(blocks))}",
                    source,
                ),
            ),
            "idle": deck.add(
                f"timeline-{rank}-idle",
                f"stage {rank} without a block in the pipeline",
                Amount(pipeline_s - busy, "s"),
                Derivation(
                    "end of the pipeline − blocks", f"{_full(pipeline_s)} − {_full(busy)}", source
                ),
            ),
        }
        for axis, (value, n, mean) in waits.items():
            numbers[axis] = deck.add(
                f"timeline-{rank}-{axis}",
                f"{axis} traffic that stage {rank} waits for",
                Amount(value, "s"),
                Derivation(
                    "blocks × what one waits for, mean",
                    f"{n:,} × {mean:.9g} s".replace("e-", "e−"),
                    source,
                ),
            )
        if hides:
            numbers["dp"] = _hidden_card(deck, drawing, rank)
        cells[rank] = numbers
        row: tuple[Cell, ...] = (Label(f"stage {rank}"), numbers["busy"], numbers["idle"])
        out.append((*row, *(numbers[axis] for axis in (*axes, "dp") if axis in numbers)))
    heads = (
        "Stage",
        "Blocks",
        "Idle",
        *(f"of blocks: waits for {axis}" for axis in axes),
        *(["dp that hides"] if hides else []),
    )
    return NumberTable(heads, tuple(out)), cells


def _uses(drawing: Drawing, axis: str) -> bool:
    wires = drawing.step.wires
    return any(
        way[axis].exposed_s + way[axis].hidden_s > 0.0
        for wire in wires
        for way in (wire.forward, wire.backward)
    )


def _waits(
    step: StepTimeline, rank: int, axes: Collection[str]
) -> dict[str, tuple[float, int, float]]:
    """Return what a rank waits for on each axis: seconds, blocks, seconds of one."""
    result = dict.fromkeys(axes, 0.0)
    blocks = step.pipeline.blocks[rank]
    for block in blocks:
        for stage, _, kind in block.parts:
            if kind == WEIGHT_GRAD:
                continue
            wire = step.wires[stage]
            way = wire.forward if kind == 0 else wire.backward
            for axis in axes:
                result[axis] += way[axis].exposed_s
    return {axis: (value, len(blocks), value / len(blocks)) for axis, value in result.items()}


def _mean(value: float, n: int) -> str:
    return f"{value / n:.9g} s".replace("e-", "e−")


def _full(seconds: float) -> str:
    return f"{seconds:.10g} s".replace("e-", "e−")


def _stands_for(deck: Deck, plan: Plan, drawing: Drawing) -> Words:
    """Return that a step of fewer micro-batches is drawn."""
    n = len({m for blocks in drawing.step.pipeline.blocks[0] for _, m, _ in blocks.parts})
    drawn = deck.add(
        "timeline-micro-batches",
        "micro-batches of the step that is drawn",
        Amount(n, "", text=f"{n:,}"),
        Derivation(
            "whole rounds of the pipeline, as many as are quickly laid out",
            str(n),
            "planner.render.plan_view.step_drawing",
        ),
    )
    return (
        "All but the start and the end of the step repeats itself: one of ",
        drawn,
        " micro-batches is drawn in place of ",
        deck.see("micro-batches"),
        ";",
    )


def _hides(deck: Deck, plan: Plan, drawing: Drawing) -> CardNumber:
    """Return what hides on the stage whose dp traffic costs most, which is that of the term."""
    slow = plan.breakdown.rows.problem.stack.overlap_slowdown
    ranks = drawing.step.data_parallel
    costs = [one.exposed_s + slow * one.hidden_s for one in ranks]
    return _hidden_card(deck, drawing, costs.index(max(costs)))


def _hidden_card(deck: Deck, drawing: Drawing, rank: int) -> CardNumber:
    """Return what hides of the dp traffic of a stage."""
    result = drawing.step.data_parallel[rank]
    return deck.add(
        f"timeline-{rank}-dp-hidden",
        f"dp traffic of stage {rank} that hides beside compute",
        Amount(result.hidden_s, "s"),
        Derivation(
            "time on the wire in a step − what is waited for",
            f"{_full(result.time_s)} − {_full(result.exposed_s)}",
            "costmodels.comm.hidden_traffic: the parts of "
            "costmodels.step.data_parallel_exposed for a rank"
            " that holds what this one holds",
        ),
    )


def _caption(
    deck: Deck, plan: Plan, drawing: Drawing, cells: dict[int, dict[str, CardNumber]]
) -> Words:
    end = deck.add(
        "timeline-end",
        "end of the step as it is drawn",
        Amount(drawing.end_s, "s"),
        Derivation(
            "end of the pipeline + what follows it",
            " + ".join(
                [
                    exact(drawing.step.pipeline.end_s, "s"),
                    *(exact(seconds, "s") for _, _, seconds in drawing.step.after),
                ]
            ),
            "planner.analyze.trace.chrome_trace.trace_events",
            inputs=tuple((name, exact(seconds, "s")) for name, _, seconds in drawing.step.after),
        ),
    )
    laziest = max(drawing.ranks, key=lambda rank: deck.cards[cells[rank]["idle"].key].value)
    sentence: Words = ("The step ends after ", end, ". ")
    if drawing.shortened:
        sentence = (*_stands_for(deck, plan, drawing), " it ends after ", end, ". ")
    if len(drawing.ranks) > 1:
        sentence += (Label(f"Stage {laziest}"), " is idle longest: ", cells[laziest]["idle"], ". ")
    if any(one.hidden for one in drawing.step.data_parallel):
        sentence += ("Of the dp traffic ", _hides(deck, plan, drawing), " hide beside compute")
        waits = "time-dp" in deck.cards
        sentence += (", ", deck.see("time-dp"), " are waited for. ") if waits else (". ",)
    if len(drawing.windows) > 1:
        drawn = [f"{w.end_s - w.start_s:.9g} s".replace("e-", "e−") for w in drawing.windows]
        left = deck.add(
            "timeline-left-out",
            "time of the step that is not drawn",
            Amount(drawing.left_out_s, "s"),
            Derivation(
                "end of the step − its windows",
                f"{_full(drawing.end_s)} − {' − '.join(drawn)}",
                "planner.render.plan_view.step_drawing",
            ),
        )
        sentence += (
            "Shows warm-up, a window of the steady state and cool-down, each with its own time"
            " axis (",
            left,
            " omitted). ",
        )
    if len(drawing.ranks) < plan.layout.pp:
        sentence += ("Of the stages the first and the last are drawn. ",)
    return sentence
