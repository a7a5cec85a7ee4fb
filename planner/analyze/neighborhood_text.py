"""What `planner neighbours` prints: every single change of a plan, as text and as JSON."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from planner.analyze.neighborhood import SingleChange
from planner.solver.answer.reasons import shown_layout
from planner.solver.answer.result import Plan
from planner.specs.search.axis_values import layout_to_json
from planner.text_lines import wrapped
from planner.units import GIB
from searches.frameworks.table import rules_by_code
from searches.rules import RULES


def rule_title(code: str) -> str:
    """Return what a rule of the search or of a framework says, in a few words."""
    result = RULES.get(code) or rules_by_code().get(code)
    return result.title if result else code


def changes_text(plan: Plan, changes: Sequence[SingleChange], framework: str) -> str:
    """Return the changes axis by axis, the priced ones a line each, the forbidden ones by rule."""
    lines = wrapped(f"plan {plan.plan_id}:", shown_layout(plan.layout))
    peak, usable = plan.breakdown.peak_bytes, plan.usable_bytes
    lines += [
        f"  {plan.step_time_s:.4f} s a step, {peak / GIB:.2f} of {usable / GIB:.2f} GiB usable",
        "",
        "one change at a time; job and devices stay, dp and the stages follow"
        + (f"; as {framework} runs them" if framework != "any" else ""),
        f"{'':2}{'axis':<26}{'change':<26}{'step s':>9}{'delta':>9}{'GiB':>8}  ",
    ]
    best = _best(plan, changes)
    for axis in dict.fromkeys(change.axis for change in changes):
        own = [change for change in changes if change.axis == axis]
        for change in own:
            if change.near:
                lines.append(_priced_line(plan, change, change is best))
        for code in dict.fromkeys(change.rule for change in own if change.rule):
            values = ", ".join(_word(change.new) for change in own if change.rule == code)
            lines += wrapped(f"  {axis:<26}{values}:", f"{code} {rule_title(code)}", indent=28)
    lines.append("")
    lines += _summary(plan, changes, best)
    return "\n".join(lines) + "\n"


def _priced_line(plan: Plan, change: SingleChange, best: bool) -> str:
    assert change.near is not None  # asked for legal changes only
    step, peak = change.near.step_s, change.near.peak_bytes
    text = f"{_word(change.old)} -> {_word(change.new)}"
    fits = "" if peak <= plan.usable_bytes else "too large"
    mark = "*" if best else " "
    delta = f"{step / plan.step_time_s - 1:+.1%}"
    return (
        f"{mark} {change.axis:<26}{text:<26}{step:>9.4f}{delta:>9}{peak / GIB:>8.2f}  {fits}"
    ).rstrip()


CLOSED: Mapping[str, object] = {
    "tp_overlap": False,
    "optimizer_offload": False,
    "activation_offload_layers": 0,
    "hpz": 1,
}
"""Axes that a search leaves at this value unless they are named: what decides is known less well.
"""


def _best(
    plan: Plan, changes: Sequence[SingleChange], *, closed: bool = False
) -> SingleChange | None:
    """Return the fastest change that fits, if any is faster than a plan that fits.

    `closed`: of those that open an axis which the search keeps closed, else of the others; where
    the plan does not fit and no other change makes it fit, of all.
    """
    fitting = [c for c in changes if c.near and c.near.peak_bytes <= plan.usable_bytes]
    own = [c for c in fitting if (c.new != CLOSED.get(c.axis, c.new)) == closed]
    if plan.headroom_frac < 0 and not closed:
        own = own or fitting
    smallest = min(own, key=lambda c: c.near.step_s if c.near else 0.0, default=None)
    if smallest is None or smallest.near is None:
        return None
    faster = smallest.near.step_s < plan.step_time_s * (1 - 1e-9)
    return smallest if faster or plan.headroom_frac < 0 else None


def _summary(plan: Plan, changes: Sequence[SingleChange], best: SingleChange | None) -> list[str]:
    legal = [c for c in changes if c.near]
    fit = sum(c.near.peak_bytes <= plan.usable_bytes for c in legal if c.near)
    further, beyond = _best(plan, changes, closed=True), ""
    step_s = best.near.step_s if best and best.near else plan.step_time_s
    if further and further.near and further is not best and further.near.step_s < step_s:
        gain = f"{further.near.step_s / plan.step_time_s - 1:+.1%}"
        what = f"{further.axis} {_word(further.old)} -> {_word(further.new)} ({gain})"
        beyond = f". Faster still, but searched only where it is named: {what}"
    counted = f"{len(changes)} changes: {len(legal)} legal, {fit} of them fit"
    if best and best.near:
        gain = f"{best.near.step_s / plan.step_time_s - 1:+.1%}"
        what = f"{best.axis} {_word(best.old)} -> {_word(best.new)} ({gain})"
        return wrapped("", f"{counted}; the fastest that fits: {what}{beyond}")
    better = "makes it fit" if plan.headroom_frac < 0 else "is faster and fits"
    return wrapped("", f"{counted}; none {better}{beyond}")


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    text = str(value) or "none"
    return text if len(text) <= 12 else f"{text[:9]}..."


def changes_json(plan: Plan, changes: Sequence[SingleChange], framework: str) -> str:
    """Return the same as JSON: seconds, bytes, fractions."""
    data = {
        "plan_id": plan.plan_id,
        "framework": framework,
        "step_time_s": plan.step_time_s,
        "peak_bytes": round(plan.breakdown.peak_bytes),
        "usable_bytes": round(plan.usable_bytes),
        "changes": [_change_json(plan, change) for change in changes],
    }
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _change_json(plan: Plan, change: SingleChange) -> dict[str, Any]:
    entries: dict[str, Any] = {"axis": change.axis, "old": change.old, "new": change.new}
    if change.near is None:
        return entries | {"legal": False, "rule": change.rule, "why_not": rule_title(change.rule)}
    near = change.near
    return entries | {
        "legal": True,
        "step_time_s": near.step_s,
        "delta_s": near.step_s - plan.step_time_s,
        "delta_frac": near.step_s / plan.step_time_s - 1.0,
        "peak_bytes": round(near.peak_bytes),
        "fits": near.peak_bytes <= plan.usable_bytes,
        "layout": layout_to_json(near.layout),
    }
