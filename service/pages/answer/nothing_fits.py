"""Why no plan fits, and what would help, as questions that a click asks."""

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from planner.render.nouns import noun_of
from planner.solver.answer.reasons import shown_layout
from planner.units import GIB
from service.pages.answer.quantities import s_or_ms

if TYPE_CHECKING:
    from planner.solver.answer.result import Relaxation, Result

Data = dict[str, Any]
STATES_FIT = "MEM000"
"""Rule that weights and gradients fit: it excludes layouts before they are priced."""


def nothing_fits_view(result: "Result") -> Data:
    """Return why there is no plan: the reasons, the closest miss, what would help."""
    limit_notes = [
        note.removeprefix("limit: ") for note in result.notes if note.startswith("limit: ")
    ]
    space = result.counts.space
    is_memory = bool(space) or any(
        part.code == STATES_FIT for conflict in result.conflicts for part in conflict.parts
    )
    if result.stopped:
        says = f"None of the {space:,} legal plans that were looked at before the search stopped."
    elif limit_notes:
        says = "No plan keeps the limits."
    elif not space and is_memory:
        says = "No layout has the memory: weights and gradients alone exceed it."
    elif not space:
        says = "No layout is legal: every combination breaks a rule."
    else:
        says = f"Nothing fits: all {space:,} legal plans exceed the memory."
    closest = None
    if result.closest:
        miss = result.closest
        closest = {
            "noun": noun_of(result).one,
            "layout": shown_layout(miss.layout),
            "needs_gib": round(miss.peak_bytes / GIB, 1),
            "usable_gib": round(miss.usable_bytes / GIB, 1),
            "over_gib": round((miss.peak_bytes - miss.usable_bytes) / GIB, 1),
        }
    return {
        "title": "Nothing fits" if is_memory and not limit_notes else "No plan",
        "says": says,
        "late": limit_notes,
        "conflicts": [
            [{"code": part.code, "text": part.text} for part in conflict.parts]
            for conflict in result.conflicts
        ],
        "closest": closest,
        "relaxations": [_relaxation(each) for each in result.relaxations],
    }


def _relaxation(each: "Relaxation") -> Data:
    return {
        "change": each.change,
        "kind": each.kind,
        "command": each.command,
        "layout": shown_layout(each.layout) if each.layout else "",
        "step": s_or_ms(each.step_time_s) if each.step_time_s else "",
    }


_OPTIONS = {
    "--pin": "pins",
    "--only": "only",
    "--max": "max",
    "--set": "set",
    "--framework": "framework",
    "--stack": "stack",
    "--pool": "pool",
    "--objective": "objective",
    "--within": "within",
    "--memory-margin": "memory_margin",
    "--deadline": "deadline",
    "--budget": "budget",
    "--step-limit": "step_limit_s",
    "--pareto": "pareto",
}


def asked_by(command: str, request: Mapping[str, Any]) -> Data | None:
    """Return the solve request that a suggested command asks, None where a page cannot.

    Its documents are those of `request`; what it sets, pins and limits is the command's.
    """
    parts = shlex.split(command)
    if parts[:2] != ["planner", "solve"] or len(parts) < 4 or len(parts) % 2:
        return None
    entries: Data = {
        key: request[key] for key in ("model", "cluster", "calibration", "top") if key in request
    }
    for option, value in zip(parts[4::2], parts[5::2], strict=True):
        name = _OPTIONS.get(option)
        if name is None:
            return None
        if name in ("pins", "only", "max", "set"):
            key, _, text = value.partition("=")
            mapping = entries.setdefault(name, {})
            if name == "only":
                mapping[key] = text.split(",")
            else:
                mapping[key] = int(text) if name == "max" else text
        elif name in ("within", "memory_margin", "step_limit_s"):
            entries[name] = float(value)
        else:
            entries[name] = value.split(",") if name == "pareto" else value
    return entries
