"""Our memory of compiled steps beside libtpu's."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
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


def terms(case: Case, *, summed: bool = False) -> Mapping[str, float]:
    """Return our memory of a case by term, bytes, without what a compiler does not count.

    With `summed` as of a stack whose terms add up and whose layers keep all operands.
    """
    stack = STACKS["maxtext"]
    if summed:
        stack = replace(stack, memory_plan="summed", keeps="operands", logit_bytes=4.0)
    problem = Problem(case.shape, case.job, case.pool, Fabric(), stack)
    [stage] = break_down(problem, case.layout).stages
    return {name: value for name, value in stage.items() if name != OUTSIDE}


def ratio(case: Case, compiled: int, *, summed: bool = False) -> float:
    """Return ours over libtpu's."""
    return sum(terms(case, summed=summed).values()) / compiled


TOLERANCE = 0.06
"""Ours is within this share of libtpu's."""


def is_close(case: Case, compiled: int) -> bool:
    """Tell whether ours is within `TOLERANCE` of libtpu's."""
    return abs(ratio(case, compiled) - 1.0) <= TOLERANCE


def table(cases: Sequence[Case], compiled: Mapping[str, int]) -> list[str]:
    """Return the lines of a Markdown table: every case with both, GB.

    `summed` is the ratio with terms that add up, as of other stacks.
    """
    lines = [
        "| case | chips | libtpu | ours | ratio | summed | states | activations | logits |"
        " working |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for case in cases:
        if case.name not in compiled:
            continue
        ours, theirs = terms(case), compiled[case.name]
        parts = [ours[name] / 1e9 for name in ("states", "activations", "logits", "working")]
        both = [theirs / 1e9, sum(ours.values()) / 1e9]
        ratios = [ratio(case, theirs), ratio(case, theirs, summed=True)]
        cells = " | ".join(f"{x:.2f}" for x in (*both, *ratios, *parts))
        lines.append(f"| {case.name} | {case.topology} | {cells} |")
    return lines
