"""Every single change of a plan: the priced ones a row each, the forbidden ones by rule."""

from typing import Any

from planner.analyze.catalogue import rule_title
from planner.analyze.neighborhood import SingleChange
from planner.analyze.single_changes import SingleChanges
from planner.documents import Blank, Grid, GridSpacing, Paragraph, Part
from planner.solver.answer.reasons import shown_layout
from planner.units import GIB


def changes_document(changes: SingleChanges) -> list[Part]:
    """Return the changes axis by axis, and the fastest that fits."""
    plan, framework = changes.plan, changes.framework
    peak, usable = plan.breakdown.peak_bytes, plan.usable_bytes
    runner = f"; as {framework} runs them" if framework != "any" else ""
    return [
        Paragraph(shown_layout(plan.layout), label=f"plan {plan.plan_id}:"),
        Paragraph(
            f"  {plan.step_time_s:.4f} s a step, {peak / GIB:.2f} of {usable / GIB:.2f} GiB usable"
        ),
        Blank(),
        Paragraph(f"one change at a time; job and devices stay, dp and the stages follow{runner}"),
        _changes_grid(changes),
        Blank(),
        Paragraph(_summary(changes)),
    ]


def _changes_grid(changes: SingleChanges) -> Grid:
    rows: list[tuple[str, ...]] = []
    for axis in dict.fromkeys(change.axis for change in changes.changes):
        on_axis = [change for change in changes.changes if change.axis == axis]
        rows += [_priced_row(changes, change) for change in on_axis if change.near]
        for code in dict.fromkeys(change.rule for change in on_axis if change.rule):
            values = ", ".join(_value(x.new) for x in on_axis if x.rule == code)
            rows.append(("", axis, f"{values}: {code} {rule_title(code)}"))
    spacing = GridSpacing((2, 26, 26, 9, 9, 8, 0), (0, 0, 0, 0, 0, 0, 2), hang=28)
    heads = ("", "axis", "change", "step s", "delta", "GiB", "")
    return Grid(heads, tuple(rows), "One change at a time", (3, 4, 5), spacing=spacing)


def _priced_row(changes: SingleChanges, change: SingleChange) -> tuple[str, ...]:
    assert change.near is not None  # only legal changes are priced
    step_s, peak = change.near.step_s, change.near.peak_bytes
    return (
        "*" if change is changes.best else "",
        change.axis,
        _step(change),
        f"{step_s:.4f}",
        f"{step_s / changes.plan.step_time_s - 1:+.1%}",
        f"{peak / GIB:.2f}",
        "" if peak <= changes.plan.usable_bytes else "too large",
    )


def _summary(changes: SingleChanges) -> str:
    """Return how many changes there are, and the fastest that fits."""
    plan, best, further = changes.plan, changes.best, changes.best_unsearched
    legal = [c.near for c in changes.changes if c.near]
    fit = sum(near.peak_bytes <= plan.usable_bytes for near in legal)
    counted = f"{len(changes.changes)} changes: {len(legal)} legal, {fit} of them fit"
    beyond, step_s = "", best.near.step_s if best and best.near else plan.step_time_s
    if further and further.near and further is not best and further.near.step_s < step_s:
        beyond = ". Off by default, but faster: "
        beyond += _gain_text(changes, further)
    if best:
        return f"{counted}; fastest single change that fits: {_gain_text(changes, best)}{beyond}"
    better = "makes it fit" if plan.headroom_frac < 0 else "is faster and fits"
    return f"{counted}; none {better}{beyond}"


def _gain_text(changes: SingleChanges, change: SingleChange) -> str:
    assert change.near is not None  # the best ones are legal
    gain = f"{change.near.step_s / changes.plan.step_time_s - 1:+.1%}"
    return f"{change.axis} {_step(change)} ({gain})"


def _step(change: SingleChange) -> str:
    """Return a change: the old value and the new one, of offloaded modules what comes and goes."""
    if change.axis != "offload_modules":
        return f"{_value(change.old)} -> {_value(change.new)}"
    old, new = (str(x).split("+") for x in (change.old, change.new))
    more = [name for name in new if name not in (*old, "none")]
    less = [name for name in old if name not in (*new, "none")]
    if new == ["none"]:
        return "-> none"
    words = [f"with {', '.join(more)}"] * bool(more) + [f"without {', '.join(less)}"] * bool(less)
    return " ".join(words)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    text = str(value) or "none"
    return text if len(text) <= 12 else f"{text[:9]}..."
