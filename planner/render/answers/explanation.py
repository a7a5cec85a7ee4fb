"""A plan explained: its layout, what binds it, step time and memory as trees; one term opened."""

from collections.abc import Mapping, Sequence
from typing import Any

from costmodels.documentation.terms import RUN_TERMS, TERMS, Term, term_groups
from planner.analyze.elasticities import RATES, TIMES
from planner.analyze.explain import Explanation
from planner.documents import Blank, Bullets, Code, Grid, GridSpacing, Paragraph, Part
from planner.render.answers.bottleneck import bottleneck_parts
from planner.render.answers.plan import layout_sentences
from planner.render.terminal import terminal_text
from planner.solver.answer.reasons import shown_layout
from planner.solver.answer.result import Plan
from planner.text_lines import WIDTH
from planner.units import GIB

SHOWN_PERCENT = 0.0005
"""What buys less than this share of a per cent is left out."""


def explanation_json(explanation: Explanation, width: int = WIDTH) -> dict[str, Any]:
    """Return the explanation as JSON, with its text after the name of the term."""
    data = explanation.to_json()
    text = terminal_text(explanation_document(explanation), width)
    head = {name: data.pop(name) for name in ("plan_id", "term")}
    return {**head, "text": text, **data}


def explanation_document(explanation: Explanation) -> list[Part]:
    """Return the plan in sentences, what binds it, then step time and memory as trees.

    Of one term its formula with its source and its numbers, where one is opened.
    """
    plan, calibration = explanation.plan, explanation.calibration
    if explanation.opened:
        return _term_parts(explanation, explanation.opened)
    parts: list[Part] = [
        Paragraph(f"plan {plan.plan_id}: {shown_layout(plan.layout)}"),
        Bullets(tuple(layout_sentences(explanation.problem, plan)), " "),
        *(Paragraph(w.text, label=f"  warning {w.code}:") for w in plan.warnings),
    ]
    if calibration and calibration.anchored_by:
        n = len(calibration.anchored_by)
        parts.append(Paragraph(f"  anchored by {n} measured step{'s' * (n > 1)}:"))
        parts.append(Code(tuple(f"    {run}" for run in calibration.anchored_by)))
    names = ", ".join([*TERMS, *RUN_TERMS])
    return [
        *parts,
        Blank(),
        *bottleneck_parts(explanation.bound),
        Blank(),
        Code(tuple(_time_tree(plan))),
        *elasticity_parts(explanation.elasticity),
        Blank(),
        Code(tuple(_memory_tree(plan))),
        Blank(),
        Paragraph(names, label="open a term: planner explain PLAN --term"),
    ]


def _branches(n: int) -> list[str]:
    return ["├─"] * (n - 1) + ["└─"]


def _time_tree(plan: Plan) -> list[str]:
    time_s = plan.breakdown.time_s

    def share(value: float) -> str:
        return f"{value:>9.4f} s {value / plan.step_time_s * 100:>5.1f} %"

    by_group = term_groups()
    lines = [f"step time {plan.step_time_s:.4f} s"]
    for branch, (name, terms) in zip(_branches(len(by_group)), by_group.items(), strict=True):
        lines.append(f"{branch} {name:<9} {share(sum(time_s.get(t, 0.0) for t in terms))}")
        shown = [t for t in terms if time_s.get(t, 0.0) > 0]
        stem = "  " if branch == "└─" else "│ "
        lines += [
            f"{stem} {twig} {term:<12} {share(time_s[term])}  {TERMS[term].title}"
            for twig, term in zip(_branches(len(shown)) if shown else [], shown, strict=True)
        ]
    return lines


def _memory_tree(plan: Plan) -> list[str]:
    breakdown = plan.breakdown
    stage = breakdown.stages[breakdown.peak_stage]
    shown = [name for name, value in stage.items() if value > 0]
    return [
        f"memory {breakdown.peak_bytes / GIB:.2f} GiB on stage {breakdown.peak_stage}, "
        f"{plan.usable_bytes / GIB:.2f} usable",
        *(
            f"{branch} {name:<13} {stage[name] / GIB:>8.2f} GiB  {TERMS[name].title}"
            for branch, name in zip(_branches(len(shown)), shown, strict=True)
        ),
    ]


def elasticity_parts(elasticity: Mapping[str, float]) -> list[Part]:
    """Return what a per cent of each figure takes off the step, the most first."""

    def gains(names: Sequence[str]) -> str:
        ranked = sorted(((abs(elasticity[name]), name) for name in names), reverse=True)
        return ", ".join(f"{x} {gain:.3f}%" for gain, x in ranked if gain >= SHOWN_PERCENT)

    texts = (("1% more takes off the step:", gains(RATES)), ("1% less:", gains(TIMES)))
    return [Paragraph(text, label=label) for label, text in texts if text]


def _term_parts(explanation: Explanation, term: Term) -> list[Part]:
    plan = explanation.plan
    parts: list[Part] = [
        Paragraph(f"{term.name} ({term.kind}): {term.title}, plan {plan.plan_id}"),
        Blank(),
    ]
    for text in term.texts:
        lines = (f"  {line}" for line in text.text.splitlines())
        parts += [Paragraph(text.home), Code(tuple(lines)), Blank()]
    rows = explanation.numbers(term)
    spacing = GridSpacing(gaps=2, indent=2)
    return [
        *parts,
        Paragraph("with this plan's numbers:"),
        Grid(("", ""), tuple(rows), "With this plan's numbers", spacing=spacing),
    ]
