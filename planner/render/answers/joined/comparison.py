"""Two plans side by side, at least one over several pools."""

from planner.analyze.joined.comparison import JoinedComparison, Side
from planner.documents import Blank, Bullets, Grid, Paragraph, Part
from planner.solver.together.plans import TERMS
from planner.units import GIB, format_size


def joined_comparison_document(comparison: JoinedComparison) -> list[Part]:
    """Return both plans, the verdict, layout, time, memory and traffic, and what would turn it."""
    a, b = comparison.a, comparison.b
    parts: list[Part] = [*_side_parts("A", a), *_side_parts("B", b), Blank()]
    if comparison.inputs:
        lead = "not the same problem (A -> B): the terms below differ for that too"
        parts += [Paragraph(lead), Bullets(comparison.inputs, " ", 4)]
    parts += [Paragraph(_verdict(comparison)), Blank()]
    if comparison.layout:
        parts.append(Grid(("layout", "A", "B"), tuple(comparison.layout), ""))
    else:
        parts.append(Paragraph("the layouts are the same"))
    parts += [Blank(), _time_grid(a, b), Blank(), _memory_grid(a, b)]
    links = sorted({**a.traffic, **b.traffic})
    if links:
        rows = tuple(
            (f"link {x}", format_size(a.traffic.get(x, 0.0)), format_size(b.traffic.get(x, 0.0)))
            for x in links
        )
        parts += [Blank(), Grid(("bytes a step", "A", "B"), rows, "", (1, 2))]
    if comparison.turns:
        loser = "B" if comparison.winner == "A" else "A"
        parts += [Blank(), Paragraph(f"what would make {loser} win")]
        parts.append(Bullets(comparison.turns, " ", 4))
    return parts


def _side_parts(name: str, side: Side) -> list[Part]:
    peak, usable = side.peak_bytes / GIB, side.usable_bytes / GIB
    each = side.tokens_per_s / side.n_devices
    figures = (
        f"    {side.step_time_s:.4f} s a step on {side.n_devices:,} devices,"
        f" {each:,.0f} tokens/s/device, {peak:.2f} of {usable:.2f} GiB"
    )
    lead = f"{name} {side.plan_id} ({side.name}):"
    return [Paragraph(side.layout, label=lead, indent=4), Paragraph(figures)]


def _verdict(comparison: JoinedComparison) -> str:
    """Return who wins by how much, on which devices, with the terms that decide."""
    if not comparison.winner:
        return "both train the same number of tokens a second"
    a, b = comparison.a, comparison.b
    won, lost = (a, b) if comparison.winner == "A" else (b, a)
    more = won.tokens_per_s / lost.tokens_per_s - 1.0
    lead = f"{comparison.winner} trains {more:.1%} more tokens a second"
    if won.n_devices != lost.n_devices:
        own = won.tokens_per_s / won.n_devices
        each = own / (lost.tokens_per_s / lost.n_devices) - 1.0
        lead += f" on {won.n_devices:,} devices against {lost.n_devices:,} ({each:+.1%} a device)"
    if comparison.inputs:
        return lead
    gaps = {term: lost.time[term] - won.time[term] for term in TERMS}
    least = 0.01 * won.step_time_s
    saved = [f"{term} -{gap * 1e3:,.2f}" for term, gap in gaps.items() if gap > least]
    paid = [f"{term} +{-gap * 1e3:,.2f}" for term, gap in gaps.items() if -gap > least]
    longer = f", but longer: {', '.join(paid)} ms" if paid else ""
    gains = f"{', '.join(saved)} ms" if saved else "many small differences"
    return f"{lead}: {gains}{longer}"


def _time_grid(a: Side, b: Side) -> Grid:
    rows = [
        (term, *_row(a.time[term] * 1e3, b.time[term] * 1e3, 2))
        for term in TERMS
        if a.time[term] or b.time[term]
    ]
    rows.append(("step", *_row(a.step_time_s * 1e3, b.step_time_s * 1e3, 2)))
    return Grid(("time by term, ms", "A", "B", "B - A"), tuple(rows), "", (1, 2, 3))


def _memory_grid(a: Side, b: Side) -> Grid:
    rows = [(name, *_row(x / GIB, b.memory[name] / GIB, 2)) for name, x in a.memory.items()]
    rows.append(("peak", *_row(a.peak_bytes / GIB, b.peak_bytes / GIB, 2)))
    return Grid(("fullest device, GiB", "A", "B", "B - A"), tuple(rows), "", (1, 2, 3))


def _row(a: float, b: float, digits: int) -> tuple[str, str, str]:
    return f"{a:,.{digits}f}", f"{b:,.{digits}f}", f"{b - a:+,.{digits}f}"
