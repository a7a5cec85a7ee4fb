"""What a per cent of each hardware figure buys, and what the nearest other plans would take."""

from typing import Any

from costmodels.breakdown import Breakdown, break_down
from costmodels.problem import Problem
from planner.analyze.bottleneck_levers import Bound
from planner.analyze.elasticities import FIGURES, LOG_EXPONENT, RATE, sensitivity
from planner.analyze.neighborhood import Neighbour, single_neighbours
from planner.render.charts.chart import Frame
from planner.render.palette import legend_fill
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
from planner.render.plan_view.quantities import exact, total
from planner.solver.answer.result import Plan

LEAST = 5e-5
"""Elasticities below this are left out: a per cent buys less than half a millionth of the step."""
MOST_NEXT = 8
"""Other plans that are shown."""


def elasticity_figure(deck: Deck, problem: Problem, plan: Plan) -> ViewFigure:
    """Return what one per cent of every hardware figure takes off the step."""
    sensitivities = sensitivity(problem, plan.layout)
    result = sensitivities.elasticity
    shown_ones = sorted(
        (f for f in FIGURES if abs(result[f.name]) >= LEAST), key=lambda f: -abs(result[f.name])
    )
    rows: list[tuple[Cell, ...]] = []
    gains, numbers = [], []
    for f in shown_ones:
        value = result[f.name]
        more, less = sensitivities.sides_s[f.name]
        number = deck.add(
            f"elasticity-{f.name.replace('_', '-')}",
            f"elasticity of the step to {f.meaning}",
            Amount(value, "", text=f"{value:+.3f}".replace("-", "−")),
            Derivation(
                "(log t(x e^h) − log t(x e^−h)) / (2 h), h small",
                f"(log({more:.15g}) − log({less:.15g})) / (2 × 2^(−{LOG_EXPONENT}))",
                "planner.analyze.elasticities: central difference of the exact step time; by "
                "the envelope"
                " theorem that of the best plan too",
            ),
        )
        gain = abs(value) / 100.0
        gains.append(gain * plan.step_time_s)
        of_step = deck.add(
            f"gain-{f.name.replace('_', '-')}",
            f"what one per cent {'more' if f.kind == RATE else 'less'} of {f.meaning} takes off"
            " the step",
            Amount(gain * plan.step_time_s, "s"),
            Derivation(
                "elasticity × one per cent × step time",
                f"{abs(value):.8g} × 0.01 × {exact(plan.step_time_s, 's')}".replace("e-", "e−"),
                "planner.analyze.elasticities, to first order",
            ),
        )
        numbers.append(of_step)
        direction = "1 % more" if f.kind == RATE else "1 % less"
        rows.append((f.name.replace("_", " "), f.meaning, Label(direction), of_step, number))
    names = [f.name.replace("_", " ") for f in shown_ones]
    unit, factor = ("ms", 1e-3) if max(gains, default=0.0) >= 1e-3 else ("us", 1e-6)
    trace: dict[str, Any] = {
        "type": "bar",
        "orientation": "h",
        "y": names,
        "x": [g / factor for g in gains],
        "marker": {
            "color": [legend_fill("compute" if f.kind == RATE else "waiting") for f in shown_ones]
        },
        "text": [number.text for number in numbers],
        "textposition": "auto",
        "customdata": [f.meaning for f in shown_ones],
        "hovertemplate": "%{text}: %{customdata}<extra>%{y}</extra>",
        "showlegend": False,
    }
    frame = Frame(
        max(220, 130 + 26 * len(names)),
        {
            "xaxis": {"title": {"text": f"Time saved per 1 % ({unit})"}, "rangemode": "tozero"},
            "yaxis": {"autorange": "reversed", "title": {"text": ""}},
        },
    )
    caption: Words = ("Nothing in the hardware changes this step.",)
    if rows:
        caption = (
            f"Most sensitive to {names[0]}: a change of one per cent saves ",
            numbers[0],
            " of the step",
        )
        caption += (f"; then {names[1]}: ", numbers[1], ".") if len(rows) > 1 else (".",)
    table = NumberTable(
        ("Figure", "What it is", "Change", "Time saved", "Elasticity"), tuple(rows)
    )
    drawn = frame.figure([trace], checked=False)
    return view_figure(
        deck,
        FigureHeading(
            "elasticities",
            "Sensitivity: time saved per one per cent of improvement",
            caption,
            (
                "Blue are rates, of which more is better; orange are times, of which less is"
                " better.",
            ),
        ),
        drawn,
        table,
    )


def next_steps(
    deck: Deck, problem: Problem, plan: Plan, bound: Bound
) -> tuple[Words, NumberTable | None]:
    """Return the nearest plans that differ in one axis: a sentence, and what each would take.

    The fastest that fit, and those that were faster did they fit. None where there are none.
    `bound` holds them, priced already.
    """
    result = single_neighbours(bound.tried)
    usable = plan.usable_bytes
    fit = [n for n in result if n.peak_bytes <= usable]
    too_large = [n for n in result if n.peak_bytes > usable and n.step_s < plan.step_time_s]
    chosen = [*fit[: MOST_NEXT - min(3, len(too_large))], *too_large[:3]]
    if not chosen:
        return ("No legal plan differs from this one in a single axis.",), None
    rows = tuple(
        _next_row(deck, plan, n, bound.opened.get(n.layout) or break_down(problem, n.layout), i)
        for i, n in enumerate(chosen)
    )
    best = fit[0] if fit else None
    if best is not None and best.step_s < plan.step_time_s:
        sentence: Words = ("Fastest single change that fits: ", _number(rows[0][2]), ".")
    else:
        sentence = ("No single change that fits is faster.",)
    if too_large:
        too_large_row = len(chosen) - min(3, len(too_large))
        sentence += (
            " With more memory ",
            Label(_changes(too_large[0])),
            " would take ",
            _number(rows[too_large_row][2]),
            " and ",
            _number(rows[too_large_row][4]),
            ".",
        )
    heads = ("Change", "Fits", "Step time", "Against this plan", "Peak memory")
    return sentence, NumberTable(heads, rows)


def _number(cell: Cell) -> CardNumber:
    assert isinstance(cell, CardNumber)  # columns of numbers
    return cell


def _changes(n: Neighbour) -> str:
    """Return the changed axes with their new values."""
    return " and ".join(f"{axis.replace('_', ' ')} {_shown(new)}" for axis, _, new in n.changes)


def _next_row(
    deck: Deck, plan: Plan, n: Neighbour, breakdown: Breakdown, i: int
) -> tuple[Cell, ...]:
    key = f"next-{i}"
    text = ", ".join(f"{axis} {_shown(old)} → {_shown(new)}" for axis, old, new in n.changes)
    terms = [v for v in breakdown.time_s.values() if v > 0.0]
    step = deck.add(
        f"{key}-step",
        f"step time with {text}",
        Amount(n.step_s, "s"),
        Derivation(
            "sum of its terms",
            total(exact(v, "s") for v in terms),
            "planner.analyze.neighborhood: the plan priced with the exact pipeline",
        ),
    )
    change = n.step_s / plan.step_time_s - 1.0
    against = deck.add(
        f"{key}-change",
        f"step time with {text} against this plan",
        Amount(change, "%", text=f"{100 * change:+.1f} %".replace("-", "−")),
        Derivation(
            "its step time / this plan's − 1",
            f"{n.step_s:.10g} s / {plan.step_time_s:.10g} s − 1".replace("e-", "e−"),
            "planner.analyze.neighborhood: both priced with the exact pipeline",
        ),
    )
    peak = deck.add(
        f"{key}-peak",
        f"peak memory with {text}",
        Amount(n.peak_bytes, "B"),
        Derivation(
            "sum of the terms of its fullest stage",
            total(
                exact(v, "B") for v in breakdown.stages[breakdown.peak_stage].values() if v > 0.0
            ),
            "planner.analyze.neighborhood: costmodels.step.memory_terms",
        ),
    )
    fits = "yes" if n.peak_bytes <= plan.usable_bytes else "no"
    return (Label(text), fits, step, against, peak)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value) or "none"
