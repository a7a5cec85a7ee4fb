"""A measured step beside its plan, as a terminal shows it and as Markdown."""

from collections.abc import Iterable, Sequence

from planner.analyze.kineto.communicators import AMBIGUOUS
from planner.analyze.trace.comparison import TraceComparison, communicators, meaning_of
from planner.analyze.trace.findings import findings
from planner.solver.answer.reasons import shown_layout
from planner.text_lines import wrapped

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


def trace_comparison_text(found: TraceComparison) -> str:
    """Return the comparison as a terminal shows it."""
    terms, traffic = _term_table(found), _traffic_table(found)
    if len(found.measured) > 1:  # the column of the slowest rank takes the place of the words
        terms = [row[:-1] for row in terms]
    else:
        terms = [[*row[:-1], _short(row[-1])] for row in terms]
    lines = [*_heading(found), ""]
    lines += _aligned(terms, left=1)
    if traffic[1:]:
        lines += ["", "traffic per step, trace beside plan", *_aligned(traffic, left=2)]
    lines.append("")
    for text in findings(found):
        lines += wrapped("", text, indent=2)
    lines += _tail(found)
    return "\n".join(lines) + "\n"


def comparison_markdown(found: TraceComparison) -> str:
    """Return the comparison as Markdown."""
    lines = [*_heading(found), "", *_piped(_term_table(found))]
    traffic = _traffic_table(found)
    if traffic[1:]:
        lines += ["", "Traffic per step, trace beside plan:", "", *_piped(traffic)]
    lines += ["", *(f"- {text}" for text in findings(found)), *_tail(found, "- ")]
    return "\n".join(lines) + "\n"


def _heading(found: TraceComparison) -> list[str]:
    plan, first = found.plan, found.measured[0]
    lines = wrapped(f"plan {plan.plan_id}:", shown_layout(plan.layout), indent=2)
    if found.drawn:
        of = f"pipeline rank {found.breakdowns[0].critical_stage}, drawn by planner trace"
        return [*lines, f"trace {first.path}: {of}"]
    n = len(first.steps)
    steps = f"step {first.steps[0]}"
    if n > 1:
        steps = f"mean of steps {first.steps[0]} to {first.steps[-1]}"
    for one, breakdown in zip(found.measured, found.breakdowns, strict=True):
        low, high = min(one.step_times_s), max(one.step_times_s)
        rank = "unknown rank" if one.rank is None else f"rank {one.rank}"
        spread = f" ({low:.4f} to {high:.4f} s)" if n > 1 else ""
        text = f"{rank}, pipeline rank {breakdown.critical_stage}, {steps}{spread}"
        lines += wrapped(f"trace {one.path}:", text, indent=2)
    if len(found.measured) > 1:
        slow = found.measured[found.slowest]
        rank = slow.path if slow.rank is None else f"rank {slow.rank}"
        lines.append(f"mean of {len(found.measured)} ranks; {rank} computes longest")
    return lines


def _term_table(found: TraceComparison) -> list[list[str]]:
    several = len(found.measured) > 1
    table = [[*TERM_TITLES, *(["slowest rank ms"] if several else []), "what"]]
    for row in found.rows:
        factor = "-" if row.factor is None else f"{row.factor:.2f}"
        more = [_ms(row.slowest_s)] if several else []
        table.append(
            [
                row.name,
                _ms(row.predicted_s),
                _ms(row.measured_s),
                _signed_ms(row.difference_s),
                factor,
                *more,
                meaning_of(row.name),
            ]
        )
    predicted, measured = found.predicted_step_s, found.measured_step_s
    more = [_ms(found.measured[found.slowest].step_s)] if several else []
    table.append(
        [
            "step",
            _ms(predicted),
            _ms(measured),
            _signed_ms(measured - predicted),
            f"{measured / predicted:.2f}",
            *more,
            "",
        ]
    )
    return table


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f}"


def _signed_ms(seconds: float) -> str:
    # A difference of rounding errors alone has no sign.
    return f"{seconds * 1e3:+,.2f}" if abs(seconds) >= 5e-6 else "0.00"


def _traffic_table(found: TraceComparison) -> list[list[str]]:
    table = [list(TRAFFIC_TITLES)]
    for row in found.traffic:
        sides = (row.measured, row.predicted)
        cells = [_or_dash(f"{calls:,.0f}", calls) for calls, _, _ in sides]
        cells += [_or_dash(f"{size / 1e6:,.2f}", size) for _, size, _ in sides]
        cells += [
            _or_dash(f"{seconds / calls * 1e6:,.0f}" if calls else "-", calls)
            for calls, _, seconds in sides
        ]
        rates = (row.measured_bytes_per_s, row.predicted_bytes_per_s)
        cells += [_or_dash(f"{rate / 1e9:,.1f}", rate) for rate in rates]
        table.append([row.axis, row.collective, *cells])
    return table


def _or_dash(text: str, value: float) -> str:
    return text if value > 0 else "-"


def _tail(found: TraceComparison, bullet: str = "") -> list[str]:
    """Return what could not be matched, warnings, notes."""
    texts = []
    if not found.drawn:
        texts.append(f"not matched: {found.unmatched_frac:.1%} of the step")
        unknown = list(found.unknown_s.items())
        for name, seconds in unknown[:MAX_UNKNOWN]:
            texts.append(f"unknown kernel, {_ms(seconds)} ms: {name[:100]}")
        if len(unknown) > MAX_UNKNOWN:
            texts.append(f"and {len(unknown) - MAX_UNKNOWN} more unknown kernels (--format json)")
        for words, assigned in communicators(found.measured):
            if assigned.axis == AMBIGUOUS:
                between = " or ".join(assigned.candidates)
                texts.append(f"ambiguous: {words} serve {between} ({assigned.by})")
            elif assigned.by != "description":
                texts.append(f"{words}: {assigned.axis} ({assigned.by})")
    texts += [f"warning: {text}" for text in found.warnings]
    texts += [f"note: {text}" for text in found.notes]
    if bullet:
        return [f"{bullet}{text}" for text in texts]
    return [line for text in texts for line in wrapped("", text, indent=2)]


def _aligned(table: Sequence[Sequence[str]], left: int) -> Iterable[str]:
    """Yield a table with the first `left` columns and any last `what` column to the left."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    text = len(widths) - 1 if table[0][-1] == "what" else len(widths)
    for row in table:
        cells = [
            cell.ljust(width) if i < left or i == text else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _piped(table: Sequence[Sequence[str]]) -> list[str]:
    rows = [f"| {' | '.join(row)} |" for row in table]
    return [rows[0], f"|{'---|' * len(table[0])}", *rows[1:]]
