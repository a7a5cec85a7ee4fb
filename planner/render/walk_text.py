"""The walk to a layout (`planner recommend layout`) as text."""

from collections.abc import Mapping
from textwrap import wrap
from typing import Any

from planner.solver.answer.uncertainty import TIE_FRAC
from planner.text_lines import wrapped
from planner.units import GIB

WIDTH = 100
"""Columns of a line; a layout that is longer goes on in the next."""
Answer = Mapping[str, Any]
"""What `planner.analyze.recommend.walk.Walk.to_json` returns."""


def walk_lines(answer: Answer) -> list[str]:
    """Return the steps, each with its values, what is decided and what that costs."""
    lines: list[str] = []
    for number, step in enumerate(answer["steps"], start=1):
        lines += [*([""] if lines else []), f"{number}. {step['question']}"]
        for choice in step["choices"]:
            lines += _choice_lines(step, choice, answer["usable_bytes"])
        lines += wrapped("   ", conclusion(step), indent=4)
    return lines


def _choice_lines(step: Answer, choice: Answer, usable_bytes: int) -> list[str]:
    name = step["step"].split(" ")[0]
    values = {c["value"]: f"{name} {c['value']}" for c in step["choices"]}
    value = "one device" if name == "one" else values[choice["value"]]
    width = max(len(value), *map(len, values.values()))
    peak = choice["peak_bytes"]
    memory = "" if peak is None else f"{peak / GIB:>8,.1f} of {usable_bytes / GIB:.1f} GiB"
    mark = "*" if choice["value"] == step["chosen"] else " "
    time = choice["step_time_s"]
    reason = choice["why_not"] or choice["layout"]
    shown = "       -  " if time is None else f"{time:>8.3f} s"
    lead = f"  {mark} {value:<{width}} {shown} {memory:<21} "
    return wrap(
        f"{lead}{reason}", WIDTH, subsequent_indent=" " * len(lead), break_on_hyphens=False
    )


def conclusion(step: Answer) -> str:
    """Return what a step decides, why, and what the decision costs."""
    chosen = step["chosen"]
    lead = "" if chosen is None else f"{step['step']} {chosen}: "
    costs, best_s = step["costs_s"], step["best_step_time_s"]
    price = ""
    if best_s is None:
        price = "; no plan keeps all decisions so far"
    elif costs > TIE_FRAC / 10 * best_s:
        price = f"; the best plan that keeps the decisions so far: {best_s:.3f} s, +{costs:.3f} s"
    return f"{lead}{step['why']}{price}"


def walk_end(answer: Answer) -> str:
    """Return where the walk ends, where `solve` ends, and the difference, in a sentence."""
    end, best, costs = answer["end"], answer["best"], answer["costs_frac"]
    text = f"the fastest of all plans takes {best['step_time_s']:.3f} s"
    if end is None:
        return (
            f"The walk ends without a plan that fits; {text}, and {best['shown']} is recommended"
        )
    where = f"The walk ends at {end['shown']}"
    if answer["same"]:
        return f"{where}, which is recommended of all plans, too; {text}"
    tie = ", within model error" if abs(costs) <= TIE_FRAC else ""
    blamed = [s for s in answer["steps"] if s["costs_s"] > TIE_FRAC / 10 * best["step_time_s"]]
    blamed.sort(key=lambda s: -s["costs_s"])
    parts = [f"{s['step']} {s['chosen']} +{s['costs_s']:.3f} s" for s in blamed]
    because = f" ({', '.join(parts)})" if parts else ""
    return (
        f"{where}; the fastest plan that keeps its decisions takes {end['step_time_s']:.3f} s a "
        f"step. Of all plans {best['shown']} is recommended, and the fastest takes "
        f"{best['step_time_s']:.3f} s: the walk costs {costs:+.1%}{tie}{because}"
    )
