"""The answer to one of the inverse questions of `planner recommend`, as JSON and as text."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.recommend_walk_text import walk_end, walk_lines
from planner.result import SCHEMA_VERSION, Plan
from planner.tables import assumed_lines, calibration_lines, plan_rows, wrapped
from planner.units import format_bandwidth, format_count, format_link_speed, format_time


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What was asked, what the answer is, how it was found, and the plan that shows it."""

    question: str
    """One of `planner.recommending.QUESTIONS`."""
    result_id: str
    inputs: Mapping[str, Any]
    calibration: Mapping[str, Any]
    answer: Mapping[str, Any] | None
    """Figures by name in base units; None when there is no answer in the range."""
    scope: str
    """What was searched and why the answer is the extreme of it, in a sentence."""
    n_tried: int
    """Problems for which it was searched whether anything fits."""
    plan: Plan | None
    """The first plan at the answer."""
    command: str = ""
    """The `planner solve` command of that plan."""
    notes: tuple[str, ...] = ()
    """What was assumed and left out when the model was read from another format."""

    @property
    def exit_code(self) -> int:
        """What the command line returns: 0, or 3 when there is no answer."""
        return 0 if self.answer is not None else 3

    def to_json(self) -> dict[str, Any]:
        """Return the answer with the field names of docs/recommend.md."""
        return {
            "schema_version": SCHEMA_VERSION,
            "result_id": self.result_id,
            "question": self.question,
            "inputs": dict(self.inputs),
            "calibration": dict(self.calibration),
            "answer": None if self.answer is None else dict(self.answer),
            "scope": self.scope,
            "n_tried": self.n_tried,
            "command": self.command,
            "plan": self.plan.to_json() if self.plan else None,
            "notes": list(self.notes),
        }

    def dumps(self) -> str:
        """Return the JSON text: the same bytes for the same inputs."""
        return json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"

    def _repr_html_(self) -> str:
        from planner.documents import html
        from planner.notebook import recommendation_parts

        return html(recommendation_parts(self))

    def _repr_markdown_(self) -> str:
        from planner.documents import markdown
        from planner.notebook import recommendation_parts

        return markdown(recommendation_parts(self))


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
            f"at least {show(least)}" if least is not None
            else f"no bandwidth hides it: {floor} are left at any"
        )  # fmt: skip
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
