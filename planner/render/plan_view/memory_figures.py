"""Memory of every pipeline rank by term, and that of the fullest one over the step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from costmodels.documentation.terms import TERMS
from costmodels.problem import Problem
from costmodels.schedule.pipeline import TimedBlock
from costmodels.schedule.timeline import MemoryLevel, memory_course, step_timeline
from costmodels.schedule.zero_bubble import FORWARD
from planner.render.charts.chart import Frame
from planner.render.palette import legend_fill, memory_fill, shaded
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
from planner.render.plan_view.opened.memory import rank_memory
from planner.render.plan_view.opened.states import add_state_cards
from planner.render.plan_view.quantities import exact, quantity_text
from planner.render.plan_view.step_drawing import Window, short_enough, step_windows
from planner.solver.answer.result import Plan
from planner.units import GIB

BAR, MOST_BARS_HEIGHT = 24, 1500
"""Pixels of a bar, and of all of them at most."""


def memory_by_stage(
    deck: Deck, problem: Problem, plan: Plan, numbers: list[dict[str, CardNumber]]
) -> ViewFigure:
    """Return the memory of every stage; `numbers` are those of `add_memory_cards`."""
    result, part = plan.breakdown, problem.pool.accelerator
    usable, capacity = plan.usable_bytes, part.memory_bytes
    names = [f"stage {rank}" for rank in range(len(result.stages))]
    terms = [term for term in result.stages[0] if any(stage[term] > 0 for stage in result.stages)]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": term,
            "y": names,
            "x": [stage[term] / GIB for stage in result.stages],
            "marker": {"color": memory_fill(term)},
            "customdata": [numbers[rank][term].text for rank in range(len(names))],
            "hovertemplate": f"%{{customdata}}: {TERMS[term].title}<extra>{term}, %{{y}}</extra>",
        }
        for term in terms
    ]
    total = deck.add(
        "device-memory",
        "memory of a device",
        Amount(capacity, "B"),
        Derivation("as the driver reports it", f"{round(capacity):,} B", _memory_source(problem)),
    )
    reserve = deck.add(
        "memory-reserve",
        "memory that a plan must leave free",
        Amount(problem.pool.memory_margin_bytes, "B"),
        Derivation(
            "reserve of the pool",
            f"{round(problem.pool.memory_margin_bytes):,} B",
            "memory_margin of the pool in the cluster file, with its default",
        ),
    )
    lines = [
        {
            "type": "line",
            "xref": "x",
            "yref": "paper",
            "x0": limit_bytes / GIB,
            "x1": limit_bytes / GIB,
            "y0": 0,
            "y1": 1,
            "line": {"color": colour, "width": 2, "dash": dash},
        }
        for limit_bytes, colour, dash in (
            (usable, legend_fill("limit"), "dash"),
            (capacity, legend_fill("per step"), "solid"),
        )
    ]
    labels = [
        {
            "xref": "x",
            "yref": "paper",
            "x": limit_bytes / GIB,
            "y": 1,
            "yanchor": "bottom",
            "text": text,
            "showarrow": False,
            "xanchor": anchor,
            "font": {"size": 12},
        }
        for limit_bytes, text, anchor in (
            (usable, "usable", "right"),
            (capacity, "device", "left"),
        )
    ]
    largest = max(max(sum(stage.values()) for stage in result.stages), capacity)
    frame = Frame(
        min(MOST_BARS_HEIGHT, 140 + max(150, BAR * len(names))),
        {
            "barmode": "stack",
            "bargap": 0.2,
            "shapes": lines,
            "annotations": labels,
            "xaxis": {
                "title": {"text": f"GiB per {part.noun.one}"},
                "range": [0, 1.14 * largest / GIB],
            },
            "yaxis": {"autorange": "reversed", "title": {"text": ""}, "type": "category"},
            "legend": {"traceorder": "normal"},
        },
    )
    binding_stage = result.peak_stage
    binds = Label(f"Stage {binding_stage}")
    caption: Words = (
        binds,
        " binds: it needs ",
        numbers[binding_stage]["peak"],
        " of ",
        deck.see("usable-memory"),
        " usable, and leaves ",
        numbers[binding_stage]["headroom"],
        ". A device has ",
        total,
        ", of which the plan must leave ",
        reserve,
        " free.",
    )
    heads = ("Stage", *terms, "peak", "free")
    rows = tuple((Label(names[rank]), *_cells(numbers[rank], terms)) for rank in range(len(names)))
    table = NumberTable(heads, rows, marked=(binding_stage,))
    drawn = frame.figure(traces, checked=False)
    return view_figure(
        deck,
        FigureHeading(
            "memory",
            "Memory of every stage",
            caption,
            (
                "The peak of a stage is reached where a backward starts while all its "
                "micro-batches are"
                " in flight.",
            ),
        ),
        drawn,
        table,
    )


def _cells(numbers: dict[str, CardNumber], terms: list[str]) -> tuple[Cell, ...]:
    return (*(numbers[term] for term in terms), numbers["peak"], numbers["headroom"])


def _memory_source(problem: Problem) -> str:
    result = problem.pool.accelerator.provenance.get("memory_bytes")
    where = f"{result.source}, {result.date}" if result else "cluster file"
    return f"catalogue, {problem.pool.accelerator.name}: {where}"


STATE_SHADES = {"weights": 1.0, "grads": 0.72, "optimizer": 0.5}
"""Share of the light of `states` by kind of what is always held."""
KINDS = ("weights", "grads", "optimizer", "overhead", "kept", "backward")
"""Layers of the figure from below."""
KIND_NAMES = {
    "weights": "weights",
    "grads": "gradients",
    "optimizer": "optimizer",
    "overhead": "runtime",
    "kept": "kept activations",
    "backward": "logits and working memory",
}


@dataclass(frozen=True, slots=True)
class MemoryCourse:
    """The memory of the fullest pipeline rank over one step."""

    rank: int
    levels: tuple[MemoryLevel, ...]
    """In order of time; the last one is that of the end of the step."""
    windows: tuple[Window, ...]
    warm_up_s: float
    """When its first backward starts."""
    cool_down_s: float
    """When its last forward ends."""
    end_s: float
    is_shortened: bool
    """Whether a step of fewer micro-batches stands for a very long one."""

    @property
    def peak(self) -> MemoryLevel:
        """The first level at which most is held."""
        return max(self.levels, key=lambda x: (x.kept_bytes + x.backward_bytes, -x.at_s))


def course_of(plan: Plan) -> MemoryCourse:
    """Return the memory of the fullest pipeline rank of a plan over its step."""
    breakdown, is_shortened = short_enough(plan.breakdown)
    step, rank = step_timeline(breakdown), plan.breakdown.peak_stage
    blocks = step.pipeline.blocks[rank]
    end_s = step.pipeline.end_s + sum(seconds for _, _, seconds in step.after)
    levels = memory_course(step.memory[rank], blocks)
    return MemoryCourse(
        rank,
        (*levels, MemoryLevel(end_s, 0, 0.0, 0.0)),
        step_windows(blocks, end_s),
        min(block.start_s for block in blocks if not _has_forward(block)),
        max(block.end_s for block in blocks if _has_forward(block)),
        end_s,
        is_shortened,
    )


def _has_forward(block: TimedBlock) -> bool:
    return any(kind == FORWARD for _, _, kind in block.parts)


def memory_over_step(
    deck: Deck, problem: Problem, plan: Plan, numbers: list[dict[str, CardNumber]]
) -> ViewFigure:
    """Return the memory of the fullest stage in time; `numbers` are those of `add_memory_cards`.

    Weights, gradients, optimizer and runtime are held all the time; activations from the forward
    of a micro-batch to its backward; logits and temporaries while a backward runs.
    """
    course = course_of(plan)
    rank = course.rank
    states = add_state_cards(deck, rank_memory(plan.breakdown, rank))
    always = {
        **{kind: deck.cards[number.key].value for kind, number in states.items()},
        "overhead": plan.breakdown.stages[rank]["overhead"],
    }
    unit, factor = ("s", 1.0) if course.end_s >= 1.0 else ("ms", 1e-3)
    table, rows = _course_table(deck, course, {**states, "overhead": numbers[rank]["overhead"]})
    caption: Words = (
        Label(f"Stage {rank}"),
        " is the fullest. At its peak, ",
        numbers[rank]["peak"],
        ", it keeps the activations of ",
        rows["peak"][2] or "",
        f" {_kept_words(course.peak.n_chunks, plan.layout.vpp)}. Its first backward starts after ",
        rows["first backward"][1] or "",
        ", its last forward ends after ",
        rows["last forward"][1] or "",
        ". ",
        deck.see("usable-memory"),
        " are usable.",
    )
    notes = [
        "A forward adds the activations of its micro-batch, a backward frees them as it ends."
        " Weights, gradients and states of the optimizer are held throughout."
    ]
    if course.is_shortened:
        notes.append("A step of fewer micro-batches is drawn: all but its ends repeats itself.")
    frame = Frame(380, _course_layout(course, problem, plan, (unit, factor)), legend_lines=2)
    heading = FigureHeading(
        "memory-course", "Memory of the fullest stage over the step", caption, tuple(notes)
    )
    traces = _course_traces(course, always, unit, factor)
    return view_figure(deck, heading, frame.figure(traces, checked=False), table)


def _kept_words(n: int, vpp: int) -> str:
    """Return what stands behind the number of activations that are kept.

    >>> _kept_words(1, 1), _kept_words(21, 5)
    ('micro-batch', 'chunks of micro-batches')
    """
    if vpp > 1:
        return "chunk of a micro-batch" if n == 1 else "chunks of micro-batches"
    return "micro-batch" if n == 1 else "micro-batches"


def _course_traces(
    course: MemoryCourse, always: dict[str, float], unit: str, factor: float
) -> list[dict[str, Any]]:
    """Return a filled layer of every kind in each window; only the first has legend entries."""
    colours = {
        **{kind: shaded(legend_fill("states"), share) for kind, share in STATE_SHADES.items()},
        "overhead": legend_fill("runtime"),
        "kept": legend_fill("activations"),
        "backward": legend_fill("working"),
    }
    traces = []
    for i, window in enumerate(course.windows):
        number, shown = "" if i == 0 else str(i + 1), levels_in(course.levels, window)
        for kind in (kind for kind in KINDS if always.get(kind, 1.0) > 0.0):
            # What never changes is two points: a long step has thousands of levels.
            drawn = [shown[0], shown[-1]] if kind in always else shown
            heights = [
                always.get(kind, each.kept_bytes if kind == "kept" else each.backward_bytes)
                for each in drawn
            ]
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": KIND_NAMES[kind],
                    "legendgroup": kind,
                    "showlegend": i == 0,
                    "stackgroup": f"held{number}",
                    "stackgaps": "interpolate",
                    "x": [_short(each.at_s / factor) for each in drawn],
                    "y": [round(height / GIB, 4) for height in heights],
                    "xaxis": f"x{number}",
                    "yaxis": f"y{number}",
                    "line": {"shape": "hv", "width": 0.5, "color": colours[kind]},
                    "fillcolor": colours[kind],
                    "hovertemplate": f"%{{y:.2f}} GiB at %{{x:.4~g}} {unit}"
                    f"<extra>{KIND_NAMES[kind]}</extra>",
                }
            )
    return traces


def levels_in(levels: Sequence[MemoryLevel], window: Window) -> list[MemoryLevel]:
    """Return the levels that a window shows, the first and the last at its edges."""
    before = [each for each in levels if each.at_s <= window.start_s]
    inside = [each for each in levels if window.start_s < each.at_s <= window.end_s]
    edge = before[-1] if before else levels[0]
    first = MemoryLevel(window.start_s, edge.n_chunks, edge.kept_bytes, edge.backward_bytes)
    last = inside[-1] if inside else first
    end = MemoryLevel(window.end_s, last.n_chunks, last.kept_bytes, last.backward_bytes)
    return [first, *inside, end]


def _short(value: float) -> float:
    return float(f"{value:.7g}")


def _course_layout(
    course: MemoryCourse, problem: Problem, plan: Plan, scale: tuple[str, float]
) -> dict[str, Any]:
    """Return the axes: one panel, or one a window; the limit, and where the phases part."""
    usable, n = plan.usable_bytes / GIB, len(course.windows)
    (unit, factor), noun = scale, problem.pool.accelerator.noun
    out: dict[str, Any] = {"hovermode": "x unified", "shapes": [], "annotations": []}
    if n > 1:
        out["grid"] = {"rows": 1, "columns": n, "pattern": "independent", "xgap": 0.12}
    for i, window in enumerate(course.windows):
        number = "" if i == 0 else str(i + 1)
        low, high = window.start_s / factor, window.end_s / factor
        title = f"Time in the step ({unit})" if n == 1 else f"{window.name} ({unit})"
        out[f"xaxis{number}"] = {"title": {"text": title}, "range": [low, high]}
        name = f"GiB of the stage's {noun.one}" if i == 0 else ""
        out[f"yaxis{number}"] = {"title": {"text": name}, "range": [0.0, 1.12 * usable]}
        out["shapes"].append(
            _dashed(number, (low, high), (usable, usable), legend_fill("limit"), "dash")
        )
        for at_s in (course.warm_up_s, course.cool_down_s):
            if window.start_s < at_s < window.end_s:
                across, height = (at_s / factor, at_s / factor), (0.0, usable)
                colour = legend_fill("per step")
                out["shapes"].append(_dashed(number, across, height, colour, "dot"))
    for name, at_s in _phases(course):
        if n == 1:
            out["annotations"].append(
                {
                    "x": at_s / factor,
                    "y": 1.06 * usable,
                    "text": name,
                    "showarrow": False,
                    "font": {"size": 12},
                }
            )
    return out


def _dashed(
    number: str, x: tuple[float, float], y: tuple[float, float], colour: str, dash: str
) -> dict[str, Any]:
    """Return a straight line of the panel of a number."""
    line = {"color": colour, "width": 1.5, "dash": dash}
    ends = {"x0": x[0], "x1": x[1], "y0": y[0], "y1": y[1]}
    return {"type": "line", "xref": f"x{number}", "yref": f"y{number}", "line": line, **ends}


def _phases(course: MemoryCourse) -> list[tuple[str, float]]:
    """Return the names of the phases with the middle of each, s; short ones have no name."""
    edges = (0.0, course.warm_up_s, course.cool_down_s, course.end_s)
    names = ("warm-up", "steady state", "cool-down")
    spans = zip(names, edges, edges[1:], strict=False)
    return [
        (name, (low + high) / 2) for name, low, high in spans if high - low > 0.12 * course.end_s
    ]


def _course_table(
    deck: Deck, course: MemoryCourse, always: dict[str, CardNumber]
) -> tuple[NumberTable, dict[str, tuple[Cell, ...]]]:
    """Return what is held at five moments, and the rows by moment."""
    moments = {
        "start": course.levels[0],
        "first backward": _level_at(course, course.warm_up_s),
        "peak": course.peak,
        "last forward": _level_at(course, course.cool_down_s),
        "end": course.levels[-1],
    }
    rows = {name: _course_row(deck, course, name, moments[name], always) for name in moments}
    heads = ("Moment", "Time", "Chunks kept", *(KIND_NAMES[kind] for kind in KINDS), "all")
    marked = (list(moments).index("peak"),)
    return NumberTable(heads, tuple(rows.values()), marked), rows


def _level_at(course: MemoryCourse, at_s: float) -> MemoryLevel:
    return [each for each in course.levels if each.at_s <= at_s][-1]


def _course_row(
    deck: Deck,
    course: MemoryCourse,
    name: str,
    level: MemoryLevel,
    always: dict[str, CardNumber],
) -> tuple[Cell, ...]:
    key, source = f"course-{name.replace(' ', '-')}", "costmodels.schedule.timeline.memory_course"
    where = f"on stage {course.rank}, {name}"

    def amount(what: str, title: str, value: Amount, formula: str, numbers: str) -> CardNumber:
        derivation = Derivation(formula, numbers, source)
        return deck.add(f"{key}-{what}", f"{title} {where}", value, derivation)

    kept, backward = level.kept_bytes, level.backward_bytes
    values = {kind: deck.cards[number.key].value for kind, number in always.items()}
    whole = [*(values[kind] for kind in always), kept, backward]
    return (
        name,
        amount(
            "time",
            "time",
            Amount(level.at_s, "s", text=quantity_text(level.at_s, "s")),
            "a start or an end of a block in the recurrence of the schedule",
            exact(level.at_s, "s"),
        ),
        amount(
            "chunks",
            "chunks of micro-batches that are kept",
            Amount(level.n_chunks, "", text=str(level.n_chunks)),
            "forwards that began − backwards that ended",
            str(level.n_chunks),
        ),
        *always.values(),
        amount(
            "kept",
            "activations",
            Amount(kept, "B"),
            "chunks kept × activations of one, with what the allocator loses",
            f"{level.n_chunks} × {exact(kept / level.n_chunks, 'B')}" if level.n_chunks else "0 B",
        ),
        amount(
            "backward",
            "logits and temporaries",
            Amount(backward, "B"),
            "logits + working memory while a backward runs",
            exact(backward, "B"),
        ),
        amount(
            "all",
            "memory",
            Amount(sum(whole), "B"),
            "sum of its row",
            " + ".join(exact(value, "B") for value in whole),
        ),
    )
