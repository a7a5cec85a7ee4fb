"""A measured step beside its plan: terms, traffic, and what the differences suggest."""

from planner.analyze.kineto.communicators import AMBIGUOUS
from planner.analyze.trace.comparison import (
    TraceComparison,
    TrafficRow,
    communicators,
    meaning_of,
)
from planner.analyze.trace.findings import findings
from planner.documents import Blank, Bullets, Grid, GridSpacing, Paragraph, Part
from planner.solver.answer.reasons import shown_layout

MAX_UNKNOWN = 5
"""Kernels of unknown kind that the text names; the JSON has all."""
TERM_TITLES = ("term", "predicted ms", "trace ms", "off by ms", "factor")
TRAFFIC_TITLES = (
    "axis",
    "collective",
    "calls",
    "plan",
    "MB",
    "plan",
    "us each",
    "plan",
    "GB/s",
    "plan",
)
"""Each figure of the trace with the plan's beside it."""


def trace_document(comparison: TraceComparison) -> list[Part]:
    """Return the plan, its terms beside the trace, the traffic, and what that suggests."""
    parts: list[Part] = [*_heading_parts(comparison), Blank(), _term_grid(comparison)]
    traffic = [_traffic_row(row) for row in comparison.traffic]
    if traffic:
        caption = "traffic per step, trace beside plan"
        spacing = GridSpacing(captioned=True)
        numeric = tuple(range(2, len(TRAFFIC_TITLES)))
        parts += [
            Blank(),
            Grid(TRAFFIC_TITLES, tuple(traffic), caption, numeric, spacing=spacing),
        ]
    return [*parts, Blank(), Bullets((*findings(comparison), *_remarks(comparison)))]


def _heading_parts(comparison: TraceComparison) -> list[Part]:
    plan, first = comparison.plan, comparison.measured[0]
    parts: list[Part] = [Paragraph(shown_layout(plan.layout), label=f"plan {plan.plan_id}:")]
    if comparison.drawn:
        stage = comparison.breakdowns[0].critical_stage
        text = f"pipeline rank {stage}, drawn by planner trace"
        return [*parts, Paragraph(text, label=f"trace {first.path}:")]
    n = len(first.steps)
    steps = f"step {first.steps[0]}"
    if n > 1:
        steps = f"mean of steps {first.steps[0]} to {first.steps[-1]}"
    for one, breakdown in zip(comparison.measured, comparison.breakdowns, strict=True):
        low, high = min(one.step_times_s), max(one.step_times_s)
        rank = "unknown rank" if one.rank is None else f"rank {one.rank}"
        spread = f" ({low:.4f} to {high:.4f} s)" if n > 1 else ""
        text = f"{rank}, pipeline rank {breakdown.critical_stage}, {steps}{spread}"
        parts.append(Paragraph(text, label=f"trace {one.path}:"))
    if len(comparison.measured) > 1:
        slow = comparison.measured[comparison.slowest]
        rank = slow.path if slow.rank is None else f"rank {slow.rank}"
        text = f"mean of {len(comparison.measured)} ranks; {rank} computes longest"
        parts.append(Paragraph(text))
    return parts


def _term_grid(comparison: TraceComparison) -> Grid:
    """Return the terms; what each holds, or of several ranks the slowest, stands last."""
    slowest = comparison.measured[comparison.slowest]
    several = len(comparison.measured) > 1
    rows = [
        (
            row.name,
            _ms(row.predicted_s),
            _ms(row.measured_s),
            _signed_ms(row.difference_s),
            "-" if row.factor is None else f"{row.factor:.2f}",
            _ms(row.slowest_s) if several else _shortened(meaning_of(row.name)),
        )
        for row in comparison.rows
    ]
    predicted, measured = comparison.predicted_step_s, comparison.measured_step_s
    rows.append(
        (
            *("step", _ms(predicted), _ms(measured), _signed_ms(measured - predicted)),
            f"{measured / predicted:.2f}",
            _ms(slowest.step_s) if several else "",
        )
    )
    heads = (*TERM_TITLES, "slowest rank ms" if several else "what")
    numeric = tuple(range(1, 6 if several else 5))
    return Grid(heads, tuple(rows), "Terms of the step", numeric)


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f}"


def _signed_ms(seconds: float) -> str:
    # A difference of rounding errors alone has no sign.
    return f"{seconds * 1e3:+,.2f}" if abs(seconds) >= 5e-6 else "0.00"


def _traffic_row(row: TrafficRow) -> tuple[str, ...]:
    sides = (row.measured, row.predicted)
    cells = [_or_dash(f"{calls:,.0f}", calls) for calls, _, _ in sides]
    cells += [_or_dash(f"{size / 1e6:,.2f}", size) for _, size, _ in sides]
    cells += [
        _or_dash(f"{seconds / calls * 1e6:,.0f}" if calls else "-", calls)
        for calls, _, seconds in sides
    ]
    rates = (row.measured_bytes_per_s, row.predicted_bytes_per_s)
    cells += [_or_dash(f"{rate / 1e9:,.1f}", rate) for rate in rates]
    return (row.axis, row.collective, *cells)


def _or_dash(text: str, value: float) -> str:
    return text if value > 0 else "-"


def _remarks(comparison: TraceComparison) -> list[str]:
    """Return what could not be matched, warnings, notes."""
    texts = []
    if not comparison.drawn:
        texts.append(f"not matched: {comparison.unmatched_frac:.1%} of the step")
        unknown = list(comparison.unknown_s.items())
        for name, seconds in unknown[:MAX_UNKNOWN]:
            texts.append(f"unknown kernel, {_ms(seconds)} ms: {name[:100]}")
        if len(unknown) > MAX_UNKNOWN:
            texts.append(f"and {len(unknown) - MAX_UNKNOWN} more unknown kernels (--format json)")
        for group, assigned in communicators(comparison.measured):
            if assigned.axis == AMBIGUOUS:
                between = " or ".join(assigned.candidates)
                texts.append(f"ambiguous: {group} serve {between} ({assigned.by})")
            elif assigned.by != "description":
                texts.append(f"{group}: {assigned.axis} ({assigned.by})")
    texts += [f"warning: {text}" for text in comparison.warnings]
    return texts + [f"note: {text}" for text in comparison.notes]
