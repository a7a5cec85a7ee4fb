"""The answer to one of the inverse questions of `planner recommend`, as text."""

from planner.analyze.recommend.answer import Recommendation
from planner.render.text import calibration_lines, plan_rows
from planner.render.walk_text import walk_end, walk_lines
from planner.text_lines import assumed_lines, wrapped
from planner.units import format_bandwidth, format_count, format_link_speed, format_time


def headline(found: Recommendation) -> str:
    """Return the answer in one sentence."""
    a = found.answer
    if a is None:
        return "No answer: nothing fits in the range searched."
    if found.question == "devices":
        return f"Fewest devices on which the job fits: {a['n_devices']}, in {a['nodes']} node(s)"
    if found.question == "size":
        return (
            f"Largest model of the family that fits: {format_count(a['params'])} parameters "
            f"({a['scale']:g} of the {a['by']}): {a['layers']} layers, hidden {a['hidden']}, "
            f"{a['heads']} heads ({a['kv_heads']} kv), ffn {a['ffn']}"
        )
    if found.question == "sequence":
        return f"Longest sequence that fits: {a['seq_len']} tokens"
    if found.question == "micro-batch":
        return f"Largest micro-batch that fits: {a['mbs']} sequence(s)"
    if found.question == "layout":
        return f"{walk_end(a)}."
    return f"Least bandwidth at which waiting is within {a['tolerance_frac']:.1%} of the compute"


def _bandwidth_lines(found: Recommendation) -> list[str]:
    """Return one line an axis: the link, what it has, what it needs, what it waits."""
    lines = []
    axes = (found.answer or {}).get("axes")
    if axes is None:
        return []
    for row in axes:
        show = format_bandwidth if row["link"] == "scale-up" else format_link_speed
        least, floor = row["least_bytes_per_s"], format_time(row["floor_s"])
        need = (
            f"at least {show(least)}"
            if least is not None
            else f"no bandwidth hides it: {floor} are left at any"
        )
        lines += wrapped(
            f"  {row['axis']} over {row['link']}:",
            f"{need}; has {show(row['bytes_per_s'])} and waits {format_time(row['wait_s'])} "
            f"a step ({format_time(row['allowed_s'])} allowed)",
        )
    return lines or ["  this plan sends nothing"]


def recommendation_text(found: Recommendation) -> str:
    """Return the answer as text of at most 100 columns, commands apart."""
    first, _, rest = headline(found).partition(" ")
    lines = [*wrapped(first, rest), *_bandwidth_lines(found)]
    if found.question == "layout" and found.answer is not None:
        lines = [*walk_lines(found.answer), "", *lines]
    lines += wrapped(" ", found.scope)
    lines += calibration_lines(found.inputs["options"], found.calibration, found.notes)
    lines += assumed_lines(found.notes)
    if found.plan:
        lines += ["", *plan_rows([found.plan])]
    if found.command:
        lines.append(f"next: {found.command}")
    return "\n".join(line.rstrip() for line in lines) + "\n"
