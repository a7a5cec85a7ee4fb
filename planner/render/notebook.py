"""How results look in a notebook: a compact table with a sentence or two, as HTML or Markdown.

Notebooks call `_repr_html_` and `_repr_markdown_` of what a cell returns; those of the classes of
the library lead here. No notebook has to be installed.
"""

from collections.abc import Mapping
from typing import Any

from planner.analyze.comparison import Comparison, verdict
from planner.analyze.recommend.answer import Recommendation
from planner.documents import Bullets, Grid, Paragraph, Part
from planner.render.recommendation_text import headline
from planner.render.walk_text import conclusion
from planner.solver.answer.reasons import shown_layout
from planner.solver.answer.result import Plan, Result
from planner.units import GIB

MOST_ROWS = 10
"""Plans or changes of a table."""


def parts_of(answer: Plan | Result | Comparison | Recommendation) -> list[Part]:
    """Return what a notebook shows of an answer."""
    if isinstance(answer, Plan):
        return plan_parts(answer)
    if isinstance(answer, Result):
        return result_parts(answer)
    if isinstance(answer, Comparison):
        return comparison_parts(answer)
    return recommendation_parts(answer)


def result_parts(found: Result) -> list[Part]:
    """Return the plans of a result, or why there is none."""
    names = _names(found.inputs)
    if not found.plans:
        lead = f"{names}: nothing fits"
        relaxed = [f"{r.change}: {_seconds(r.step_time_s)}" for r in found.relaxations[:MOST_ROWS]]
        conflicts = [
            "cannot all hold: " + "; ".join(f"{part.code} {part.text}" for part in one.parts)
            for one in found.conflicts
        ]
        items = (*conflicts, *(f"would help: {text}" for text in relaxed))
        return [Paragraph(f"{lead}.", True), *([Bullets(items)] if items else [])]
    shown = found.plans[:MOST_ROWS]
    more = len(found.plans) - len(shown)
    best = found.plans[0]
    parts: list[Part] = [
        Paragraph(
            f"{names}: {best.step_time_s:.3f} s a step with {shown_layout(best.layout)}", True
        ),
        Grid(
            ("", "plan", "layout", "step s", "8 of 10 cases", "tok/s/dev", "MFU %", "GiB"),
            tuple(_plan_row(plan) for plan in shown),
            f"Plans, the best first; = cannot be told from the fastest"
            f"{f'; {more} more' if more > 0 else ''}",
            (3, 4, 5, 6, 7),
        ),
    ]
    if found.why_first:
        parts.append(Bullets(found.why_first))
    if found.stopped:
        parts.append(Paragraph(f"Stopped ({found.stopped}): the best so far."))
    return parts


def _names(inputs: Mapping[str, Any]) -> str:
    model, cluster = inputs["model"]["model"], inputs["cluster"]
    return f"{model.get('name', 'the model')} on {cluster.get('name', 'the cluster')}"


def _seconds(value: float | None) -> str:
    return "no step time" if value is None else f"{value:.3f} s a step"


def _plan_row(plan: Plan) -> tuple[str, ...]:
    return (
        "=" if plan.tie else "",
        plan.plan_id,
        shown_layout(plan.layout),
        f"{plan.step_time_s:.3f}",
        f"{plan.step_time_p10_s:.2f} - {plan.step_time_p90_s:.2f}",
        f"{plan.tokens_per_s_per_device:,.0f}",
        f"{plan.mfu * 100:.1f}",
        f"{plan.breakdown.peak_bytes / GIB:.1f} of {plan.usable_bytes / GIB:.1f}",
    )


def plan_parts(plan: Plan) -> list[Part]:
    """Return one plan: its layout, where its step goes, its memory."""
    result = plan.breakdown
    fits = "" if plan.headroom_frac >= 0 else "; it does not fit"
    times = sorted(
        ((t, s) for t, s in result.time_s.items() if s > 0), key=lambda x: (-x[1], x[0])
    )
    stage = result.stages[result.peak_stage]
    memory = [(t, b) for t, b in stage.items() if b > 0]
    return [
        Paragraph(
            f"plan {plan.plan_id}: {shown_layout(plan.layout)}, {plan.step_time_s:.3f} s a step, "
            f"MFU {plan.mfu:.1%}, {result.peak_bytes / GIB:.1f} of {plan.usable_bytes / GIB:.1f} "
            f"GiB{fits}",
            True,
        ),
        Grid(
            ("time", "s", "%"),
            tuple((t, f"{s:.4f}", f"{s / plan.step_time_s * 100:.1f}") for t, s in times),
            "Where the step goes",
            (1, 2),
            tuple(s / plan.step_time_s for _, s in times),
        ),
        Grid(
            ("memory", "GiB"),
            tuple((t, f"{b / GIB:.2f}") for t, b in memory),
            f"Memory of the fullest stage ({result.peak_stage})",
            (1,),
            tuple(b / plan.usable_bytes for _, b in memory),
        ),
        *([Bullets(tuple(f"{w.code}: {w.text}" for w in plan.warnings))] if plan.warnings else []),
    ]


def comparison_parts(found: Comparison) -> list[Part]:
    """Return two plans side by side."""
    a, b = found.plans
    data = found.to_json()
    rows = [
        ("layout", shown_layout(a.layout), shown_layout(b.layout), ""),
        (
            "step s",
            f"{a.step_time_s:.4f}",
            f"{b.step_time_s:.4f}",
            f"{b.step_time_s - a.step_time_s:+.4f}",
        ),
        *(
            (
                f"{term} ms",
                f"{x['a'] * 1e3:,.2f}",
                f"{x['b'] * 1e3:,.2f}",
                f"{x['difference'] * 1e3:+,.2f}",
            )
            for term, x in data["time"].items()
        ),
        (
            "memory GiB",
            f"{a.breakdown.peak_bytes / GIB:.2f}",
            f"{b.breakdown.peak_bytes / GIB:.2f}",
            f"{(b.breakdown.peak_bytes - a.breakdown.peak_bytes) / GIB:+.2f}",
        ),
    ]
    messages = [
        *(f"{axis} {x} -> {y}: {meaning}" for axis, x, y, meaning in found.layout),
        *found.inputs,
        *found.turns,
    ]
    return [
        Paragraph(f"{verdict(found)}.", True),
        Grid(("", "A", "B", "B - A"), tuple(rows), "A and B", (1, 2, 3)),
        *([Bullets(tuple(messages))] if messages else []),
    ]


def recommendation_parts(found: Recommendation) -> list[Part]:
    """Return an answer of `recommend`."""
    parts: list[Part] = [Paragraph(headline(found), True)]
    if found.question == "layout" and found.answer is not None:
        rows = tuple(
            (
                step["question"],
                "-" if step["chosen"] is None else str(step["chosen"]),
                conclusion(step),
            )
            for step in found.answer["steps"]
        )
        parts.append(Grid(("question", "decided", "why"), rows, "The walk"))
    if found.plan is not None:
        heads = ("", "plan", "layout", "step s", "8 of 10 cases", "tok/s/dev", "MFU %", "GiB")
        parts.append(Grid(heads, (_plan_row(found.plan),), "The best plan", (3, 4, 5, 6, 7)))
    parts.append(Paragraph(found.scope))
    return parts
