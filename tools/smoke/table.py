"""The table of what ran: one row a case, by framework and release."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.smoke.case import NOT_RUN
from tools.smoke.run import Outcome

_HEAD = """# What really ran

Written by `scripts/smoke_frameworks --table`. Every row is a tiny model that `planner` planned
and emitted, started with `--smoke` on the CPU over gloo: two training steps by the framework's
own code, and what the running job reports of itself (process groups, layers of each stage,
micro-batches, shards, experts, parameters, first loss) is the plan's.

| framework | release | feature | layout | result |
|---|---|---|---|---|
"""
_AXES = ("tp", "pp", "dp", "cp", "ep", "etp", "vpp", "zero", "mbs", "n_micro")


def write_table(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write the table; rows of releases that were not run this time are kept."""
    rows = _kept_rows(path, {(o.case.framework, o.release) for o in outcomes})
    rows += [_row(one) for one in outcomes]
    table = "".join(f"{row}\n" for row in sorted(set(rows)))
    notes = "".join(f"\nNot run: `{name}`: {why}.\n" for name, why in NOT_RUN.items())
    path.write_text(_HEAD + table + notes)


def _row(one: Outcome) -> str:
    verdict = "ran as planned" if one.ran else f"did not: {one.problems[0].splitlines()[0][:80]}"
    cells = (one.case.framework, one.release, one.case.feature, _layout_text(one.layout), verdict)
    return f"| {' | '.join(cells)} |"


def _layout_text(layout: dict[str, Any] | Any) -> str:
    """Return the degrees that are not 1."""
    kept = [f"{axis}{layout[axis]}" for axis in _AXES if layout.get(axis, 1) not in (0, 1)]
    recompute = layout.get("recompute", "none")
    return " ".join([*kept, *[f"recompute {recompute}"] * (recompute != "none")]) or "one rank"


def _kept_rows(path: Path, renewed: set[tuple[str, str]]) -> list[str]:
    if not path.exists():
        return []
    rows = [line for line in path.read_text().splitlines() if line.startswith("| ")][1:]
    found = [(row, [cell.strip() for cell in row.strip("|").split("|")]) for row in rows]
    return [row for row, cells in found if (cells[0], cells[1]) not in renewed]
