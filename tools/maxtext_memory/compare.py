"""Our memory of compiled steps beside libtpu's."""

import json
from collections.abc import Mapping
from pathlib import Path

from costmodels.breakdown import break_down
from costmodels.problem import Problem
from costmodels.stacks import STACKS
from hardware.parts import Fabric
from tools.maxtext_memory.cases import Case

KEPT = Path(__file__).with_name("kept.json")
OUTSIDE = "overhead"
"""What the runtime keeps for itself, of which a compiler says nothing."""


def kept() -> dict[str, int]:
    """Return the bytes that libtpu took for each case, by name."""
    found: dict[str, int] = json.loads(KEPT.read_text())["bytes"]
    return found


def terms(case: Case) -> Mapping[str, float]:
    """Return our memory of a case by term, bytes, without what a compiler does not count."""
    problem = Problem(case.shape, case.job, case.pool, Fabric(), STACKS["maxtext"])
    [stage] = break_down(problem, case.layout).stages
    return {name: value for name, value in stage.items() if name != OUTSIDE}


def ratio(case: Case, compiled: int) -> float:
    """Return ours over libtpu's."""
    return sum(terms(case).values()) / compiled


TOLERANCE = 0.05
"""Ours is within this share of libtpu's."""


def is_close(case: Case, compiled: int) -> bool:
    """Tell whether ours is within `TOLERANCE` of libtpu's."""
    return abs(ratio(case, compiled) - 1.0) <= TOLERANCE


def table(cases: list[Case], compiled: Mapping[str, int]) -> list[str]:
    """Return the lines of a Markdown table: every case with both, GB."""
    lines = [
        "| case | chips | libtpu | ours | ratio | states | activations | logits | working |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for case in cases:
        if case.name not in compiled:
            continue
        ours = terms(case)
        parts = (ours[name] for name in ("states", "activations", "logits", "working"))
        numbers = [compiled[case.name], sum(ours.values())]
        cells = [f"{x / 1e9:.2f}" for x in numbers]
        cells.append(f"{ratio(case, compiled[case.name]):.2f}")
        cells += [f"{x / 1e9:.2f}" for x in parts]
        lines.append(f"| {case.name} | {case.topology} | {' | '.join(cells)} |")
    return lines
