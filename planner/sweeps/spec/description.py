"""A sweep in a few lines: its design, its axes, and what may surprise a reader."""

import os
from collections.abc import Mapping

from planner.sweeps.axes import SweepAxis
from planner.sweeps.fields import field_text
from planner.sweeps.spec.axes import OF_ALL_POINTS
from planner.sweeps.spec.spec import load_sweep
from planner.sweeps.sweep import Sweep

_OF_A_PART = ("accelerators_per_node", "scale_up_domain", "nic", "nics_per_node")
"""Fields of a pool whose defaults follow from its accelerator."""


def sweep_summary(path: str | os.PathLike[str]) -> str:
    """Check a sweep file and return what it is in a few lines; `SpecError` for a wrong one."""
    sweep = load_sweep(path)
    less = ", before constraints" if sweep.constraints else ""
    head, *axes = described_sweep(sweep)
    lines = [f"{os.fspath(path)}: a sweep file, no problems found", f"  {head}"]
    lines += [f"  {axis}" for axis in axes]
    return "\n".join([*lines, f"  points: {sweep.n_points:,}{less}"])


def described_sweep(sweep: Sweep) -> list[str]:
    """Return a line on the design of a sweep, and one on each axis."""
    lines = [f"sweep {sweep.name} ({sweep.sweep_id}): {_design(sweep)}"]
    lines += [f"  {axis.name}: {_values(axis)}" for axis in sweep.axes]
    return lines + [f"  note: {note}" for note in remarks(sweep)]


def remarks(sweep: Sweep) -> list[str]:
    """Return a line on everything in the files that does other than a reader may expect."""
    return [*stays(sweep), *left_aside(sweep)]


def left_aside(sweep: Sweep) -> list[str]:
    """Return a line on options in the `search:` of model files that sweeps do not follow."""
    entries: dict[str, None] = {}
    for (kind, _), document in sweep.files.items():
        section = document.data.get("search") if kind == "model" else None
        for name in ("time_limit_s", "pareto"):
            if isinstance(section, Mapping) and section.get(name):
                entries[
                    f"search.{name} of {document.file or 'the model'} is left aside:"
                    f" {OF_ALL_POINTS[f'search.{name}']}"
                ] = None
    return list(entries)


def stays(sweep: Sweep) -> list[str]:
    """Return a line on fields of a pool that stay while its whole accelerator changes."""
    cluster = sweep.files.get(("cluster", ""))
    paths = {path for axis in sweep.axes for path in axis.paths}
    decided = paths | {path for path, _, _ in sweep.fixed}
    results = []
    for axis in sweep.axes:
        for path in axis.paths:
            if cluster is None or not path.startswith("pools.") or path.count(".") != 2:
                continue
            pool, key = path.rpartition(".")[::2]
            values = {field_text(v) for c in axis.choices for p, v in c.sets if p == path}
            pool_fields = cluster.data["pools"][int(pool.partition(".")[2])]
            own_keys = [k for k in _OF_A_PART if k in pool_fields and f"{pool}.{k}" not in decided]
            if key in ("accelerator", "instance") and len(values) > 1 and own_keys:
                shown = ", ".join(f"{k} {pool_fields[k]}" for k in own_keys)
                results.append(
                    f"{pool} keeps {shown} for every {key}, as its file says; `set:` them to null"
                    f" (--set {pool}.{own_keys[0]}=null) for each part's own"
                )
    return results


def _design(sweep: Sweep) -> str:
    if sweep.design == "latin":
        return f"Latin hypercube of {sweep.n_samples:,}, seed {sweep.seed}"
    return {"grid": "grid", "list": "list"}[sweep.design]


def _values(axis: SweepAxis) -> str:
    if axis.span is not None:
        low, high = axis.span.low, axis.span.high
        unit = f" {axis.span.unit}" if axis.span.unit else ""
        scale = ", log" if axis.span.log else ""
        return f"{low:g} to {high:g}{unit}{scale}"
    shown = [field_text(value) for value in axis.values]
    text = ", ".join(shown if len(shown) <= 8 else [*shown[:4], "...", *shown[-2:]])
    return f"{len(shown)} value{'s' * (len(shown) != 1)}: {text}"
