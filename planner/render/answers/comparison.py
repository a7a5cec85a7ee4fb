"""Two plans side by side: who wins, what differs, what would turn it round."""

from collections.abc import Mapping

from planner.analyze.comparison import Comparison, time_terms, traffic_terms, worst_stage_memory
from planner.documents import Blank, Bullets, Grid, GridSpacing, Paragraph, Part
from planner.solver.answer.reasons import MIN_SHARE, shown_layout
from planner.solver.answer.result import Plan
from planner.solver.answer.uncertainty import TIE_FRAC
from planner.solver.answer.utilization import mfu_words
from planner.units import GIB

Pairs = Mapping[str, tuple[float, float]]


def comparison_document(comparison: Comparison) -> list[Part]:
    """Return both plans, the verdict, layout, time, memory and traffic, and what would turn it."""
    a, b = comparison.plans
    parts: list[Part] = [*_side_parts("A", a), *_side_parts("B", b), Blank()]
    if comparison.inputs:
        lead = "not the same problem (A -> B): the terms below differ for that too"
        parts += [Paragraph(lead), Bullets(comparison.inputs, " ", 4)]
    parts += [Paragraph(verdict(comparison)), Blank()]
    if comparison.layout:
        parts.append(_layout_grid(comparison))
    else:
        parts.append(Paragraph("the layouts are the same"))
    parts += [Blank(), _time_grid(a, b), Blank(), _memory_grid(a, b), Blank(), _traffic_part(a, b)]
    if comparison.turns:
        loser = "B" if comparison.winner == "A" else "A"
        parts += [Blank(), Paragraph(f"what would make {loser} win")]
        parts.append(Bullets(comparison.turns, " ", 4))
    return parts


def _side_parts(name: str, plan: Plan) -> list[Part]:
    peak, usable = plan.breakdown.peak_bytes, plan.usable_bytes
    figures = (
        f"    {plan.step_time_s:.4f} s a step,"
        f" {plan.tokens_per_s_per_device:,.0f} tokens/s/device,"
        f" {mfu_words(plan)}, {peak / GIB:.2f} of {usable / GIB:.2f} GiB"
    )
    return [
        Paragraph(shown_layout(plan.layout), label=f"{name} {plan.plan_id}:", indent=4),
        Paragraph(figures + ("" if peak <= usable else ", does not fit")),
    ]


def verdict(comparison: Comparison) -> str:
    """Return who wins by how much, with the terms that decide."""
    a, b = comparison.plans
    if not comparison.winner:
        return "both train the same number of tokens a second"
    won, lost = (a, b) if comparison.winner == "A" else (b, a)
    more = won.tokens_per_s / lost.tokens_per_s - 1.0
    lead = f"{comparison.winner} trains {more:.1%} more tokens a second"
    devices = won.layout.n_devices, lost.layout.n_devices
    if devices[0] != devices[1]:
        each = won.tokens_per_s_per_device / lost.tokens_per_s_per_device - 1.0
        lead += f" on {devices[0]:,} devices against {devices[1]:,} ({each:+.1%} a device)"
    if won.headroom_frac < 0:
        lead += ", but does not fit"
    if comparison.inputs:
        return lead
    if more < TIE_FRAC:
        lead += " (within model error)"
    gaps = {t: y - x for t, (x, y) in time_terms(won, lost).items()}
    least = MIN_SHARE * won.step_time_s
    saved = [f"{t} -{_ms(gap)}" for t, gap in gaps.items() if gap > least]
    paid = [f"{t} +{_ms(-gap)}" for t, gap in gaps.items() if -gap > least]
    price = f", but longer: {', '.join(paid)} ms" if paid else ""
    gains = f"{', '.join(saved)} ms" if saved else "many small differences"
    return f"{lead}: {gains}{price}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f}"


def _layout_grid(comparison: Comparison) -> Grid:
    rows = tuple(
        (axis, f"{_shortened(x)} -> {_shortened(y)}: {meaning}")
        for axis, x, y, meaning in comparison.layout
    )
    spacing = GridSpacing((10, 0), 1, 2, hang=12, captioned=True)
    return Grid(("", ""), rows, "layout, A -> B", spacing=spacing)


def _shortened(text: str) -> str:
    return text if len(text) <= 30 else f"{text[:27]}..."


def _time_grid(a: Plan, b: Plan) -> Grid:
    stages = a.breakdown.critical_stage, b.breakdown.critical_stage
    terms: Pairs = {**time_terms(a, b), "step": (a.step_time_s, b.step_time_s)}
    rows = tuple(
        (term, _ms(x), _ms(y), f"{(y - x) * 1e3:+,.2f}", f"{(y - x) / a.step_time_s:+.2%}")
        for term, (x, y) in terms.items()
    )
    return Grid(
        ("term", "A ms", "B ms", "B - A ms", "of A"),
        rows,
        f"time by term of the slowest stage ({stages[0]} of A, {stages[1]} of B)",
        (1, 2, 3, 4),
        spacing=GridSpacing((13, 13, 13, 13, 9), 0, 2, captioned=True),
    )


def _memory_grid(a: Plan, b: Plan) -> Grid:
    stages = a.breakdown.peak_stage, b.breakdown.peak_stage
    peaks = a.breakdown.peak_bytes, b.breakdown.peak_bytes
    terms: Pairs = {**worst_stage_memory(a, b), "peak": peaks}
    rows = tuple(
        (term, f"{x / GIB:.2f}", f"{y / GIB:.2f}", f"{(y - x) / GIB:+.2f}")
        for term, (x, y) in terms.items()
    )
    return Grid(
        ("term", "A GiB", "B GiB", "B - A GiB"),
        rows,
        f"memory of the fullest stage ({stages[0]} of A, {stages[1]} of B)",
        (1, 2, 3),
        spacing=GridSpacing((13, 13, 13, 13), 0, 2, captioned=True),
    )


def _traffic_part(a: Plan, b: Plan) -> Part:
    traffic = traffic_terms(a, b)
    if not traffic:
        return Paragraph("neither sends anything")
    rows = []
    for axis, figures in traffic.items():
        sent, wire, waits = figures["sent_bytes"], figures["time_s"], figures["exposed_s"]
        times = (f"{x * 1e3:,.1f}" for x in (*wire, *waits))
        rows.append((axis, f"{sent[0] / 1e9:.2f}", f"{sent[1] / 1e9:.2f}", *times))
    return Grid(
        ("axis", "sent GB, A", "B", "on the wire ms, A", "B", "waited ms, A", "B"),
        tuple(rows),
        "traffic of a device per step",
        (1, 2, 3, 4, 5, 6),
        spacing=GridSpacing((5, 12, 10, 20, 11, 15, 11), 0, 2, captioned=True),
    )
