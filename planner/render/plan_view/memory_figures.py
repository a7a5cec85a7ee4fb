"""Memory of every pipeline rank by term, against what a device has and what a plan may use."""

from costmodels.documentation.terms import TERMS
from costmodels.problem import Problem
from planner.render.charts.chart import Frame
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
from planner.render.report.theme import CATEGORIES
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
            "marker": {"color": CATEGORIES[i % len(CATEGORIES)]},
            "customdata": [numbers[rank][term].text for rank in range(len(names))],
            "hovertemplate": f"%{{customdata}}: {TERMS[term].title}<extra>{term}, %{{y}}</extra>",
        }
        for i, term in enumerate(terms)
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
            (usable, "#d55e00", "dash"),
            (capacity, "#7f8c8d", "solid"),
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
            "xaxis": {"title": {"text": "GiB of a device"}, "range": [0, 1.14 * largest / GIB]},
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
