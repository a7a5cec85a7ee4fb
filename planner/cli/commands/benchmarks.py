"""`planner measure`, and `planner calibrate` from benchmarks."""

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from planner.cli.arguments import check_format
from planner.cli.command_arguments import CalibrateArguments
from planner.cli.commands.calibrate import write_calibration
from planner.errors import EmitError, UsageError
from planner.measure.benchmarks.device_fit import DeviceFit, fit_device
from planner.measure.benchmarks.link_fit import fit_links
from planner.measure.benchmarks.machine import Where, find_pool
from planner.measure.benchmarks.nccl_tests import TimesTable, read_nccl_tests
from planner.measure.benchmarks.pulled_fit import carried_value
from planner.measure.benchmarks.report import benchmark_report_json, benchmark_report_text
from planner.measure.benchmarks.results import MeasuredSizes, read_measured
from planner.solver.calibration.file import (
    ANCHORS_LEFT_OUT,
    MAX_NAME,
    Calibration,
    check_name,
    load_start,
    rounded,
)
from planner.specs.loader import load_cluster

SCRIPT = Path(str(files("planner"))) / "data" / "measure.py"
"""What users run on their machines."""
FORMATS = ("table", "full", "json")
USUAL_NODES = 2
"""Nodes that show the network between them."""


def script_text() -> str:
    """Return the script that times a machine."""
    return SCRIPT.read_text(encoding="utf-8")


def run_measure(cluster: str, out: str, nodes: int, pool: str) -> int:
    """Write the script and say how to start it on a cluster; return the exit code."""
    lines = []
    if cluster:
        cluster_input = load_cluster(cluster)
        here = (cluster_input.pool(pool) if pool else cluster_input).cluster.pools[0]
        if nodes > here.n_nodes:
            raise UsageError(f"--nodes {nodes}, and {here.name} has {here.n_nodes}")
        lines = _start_lines(
            cluster, here.devices_per_node, nodes or min(USUAL_NODES, here.n_nodes), out
        )
        if len(cluster_input.cluster.pools) > 1 and not pool:
            lines.append(f"pool {here.name}, the first; --pool names another")
    elif pool:
        raise UsageError("--pool names a pool of a cluster", "planner measure CLUSTER --pool NAME")
    if out == "-":
        sys.stdout.write(script_text())
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        return 0
    _write(out, script_text())
    sys.stdout.write("".join(f"{line}\n" for line in [f"wrote {out}", *lines]))
    return 0


def _start_lines(cluster: str, per_node: int, nodes: int, out: str) -> list[str]:
    script = shlex.quote("measure.py" if out == "-" else out)
    lines = ["on one node:", f"  torchrun --nproc-per-node {per_node} {script}"]
    if nodes > 1:
        lines += [
            f"on {nodes} nodes, the same on each (HOST0: the name of one of them):",
            f"  torchrun --nnodes {nodes} --nproc-per-node {per_node} --rdzv-backend c10d"
            f" --rdzv-endpoint HOST0:29500 {script} --skip gemm,attention,memory"
            f" --out measured-{nodes}.json",
        ]
    both = "--measured measured.json" + f" --measured measured-{nodes}.json" * (nodes > 1)
    lines += [
        "then here:",
        f"  planner calibrate {both} --cluster {shlex.quote(cluster)} --out my-calibration.yaml",
        f"  planner solve MODEL {shlex.quote(cluster)} --calibration my-calibration.yaml",
    ]
    return lines


def run_calibrate_measured(more: Sequence[str], arguments: CalibrateArguments) -> int:
    """Fit links and rates to logs of nccl-tests and files of measure.py; return the exit code.

    `more` are the logs that a shell put behind `--nccl-tests`.
    """
    form, out, name = arguments.form, arguments.out, arguments.name
    check_format(form, FORMATS)
    check_name(name)
    logs = arguments.nccl_tests
    only_runs = {
        "--models": arguments.models,
        "--hardware": arguments.hardware,
        "--fit": arguments.fit,
        **arguments.options_of_fit(),
    }
    stray = next((option for option, value in only_runs.items() if value), "")
    runs = next((file for file in more if file.endswith(".csv") or not logs), "")
    if stray or runs:
        message = f"{stray or runs} is about measured runs, and these are benchmarks"
        raise UsageError(message, "calibrate one after the other, the second --from the first")
    tables = read_nccl_tests([*logs, *more])
    files = [read_measured(file) for file in arguments.measured]
    on_cpu = next((one for one in files if one.on_cpu), None)
    if on_cpu:
        message = f"{on_cpu.file} was measured on a CPU, which trains nothing here"
        raise UsageError(message, "run measure.py where torch sees the GPUs")
    devices = {name for name in [t.device for t in tables] + [f.device for f in files] if name}
    if len(devices) > 1:
        message = f"measured on different accelerators: {', '.join(sorted(devices))}"
        raise UsageError(message, "calibrate one kind at a time, each --from the one before")
    sweeps = [table.sweep() for table in tables] + [s for f in files for s in f.sweeps]
    part = devices.pop() if devices else ""
    where = find_pool(part, sweeps, arguments.cluster, arguments.pool, arguments.link)
    begin = load_start(arguments.start)
    base = begin.without_anchors()
    notes = [ANCHORS_LEFT_OUT] if base is not begin else []
    links = fit_links(sweeps, where.pool, where.fabric, base) if sweeps else None
    device, seen = _fit_devices(files, where, base)
    notes += [note for table in tables for note in table.notes]
    notes += [note for one in files for note in one.notes]
    notes += [*where.notes, *(links.notes if links else ()), *seen]
    values = {
        name: rounded(value)
        for fit in (links, device)
        if fit
        for name, value in carried_value(fit.estimates).items()
    }
    if not values:
        notes.append("the data show no parameter, so there is nothing to write")
    elif out:
        result = base.with_values(values, "measured", name or _name(out, base))
        write_calibration(out, replace(result, note=_origin(tables, files)))
    if form == "json":
        sys.stdout.write(
            json.dumps(benchmark_report_json(values, links, device, notes), indent=2) + "\n"
        )
        return 0
    heading = _heading(tables, files, where)
    sys.stdout.write(benchmark_report_text(heading, links, device, notes, form == "full"))
    if form == "table":
        sys.stdout.write("\nevery size and item: --format full\n")
    if values and out:
        sys.stdout.write(f"wrote {out}: planner solve MODEL CLUSTER --calibration {out}\n")
    elif values:
        sys.stdout.write("nothing written: --out FILE keeps these values\n")
    return 0


def _fit_devices(
    files: Sequence[MeasuredSizes], where: Where, base: Calibration
) -> tuple[DeviceFit | None, list[str]]:
    """Fit the generation to what all files timed besides collectives; None where they did not."""
    timed = [one for one in files if one.products or one.cores or one.passes]
    if not timed:
        return None, []
    all_of = replace(
        timed[0],
        products=tuple(row for one in timed for row in one.products),
        cores=tuple(row for one in timed for row in one.cores),
        passes=tuple(row for one in timed for row in one.passes),
    )
    result = fit_device(all_of, where.pool, base)
    return result, list(result.notes)


def _heading(
    tables: Sequence[TimesTable], files: Sequence[MeasuredSizes], where: Where
) -> list[str]:
    pool = where.pool
    read = [_counted(len(tables), "table") + " of nccl-tests"] * bool(tables)
    read += [_counted(len(files), "file") + " of measure.py"] * bool(files)
    links = f"{pool.scale_up.name} inside, {pool.nics_per_node} x {pool.nic.name} outside"
    return [f"{' and '.join(read)}; {pool.accelerator.name}, {links}"]


def _counted(n: int, what: str) -> str:
    return f"{n} {what}" + ("s" if n > 1 else "")


def _name(out: str, base: Calibration) -> str:
    return (Path(out).stem or base.name)[:MAX_NAME]


def _origin(tables: Sequence[TimesTable], files: Sequence[MeasuredSizes]) -> str:
    """Return where the measured values come from, in words."""
    parts = []
    if tables:
        names = dict.fromkeys(Path(table.file).name for table in tables)
        parts.append(f"nccl-tests: {', '.join(names)}")
    for one in files:
        facts = {key: one.provenance.get(key) for key in ("date", "torch", "cuda", "nccl")}
        message = ", ".join(f"{k} {v}" for k, v in facts.items() if isinstance(v, str) and v)
        parts.append(f"measure.py on {one.device}: {Path(one.file).name}, {message}")
    return "; ".join(parts)


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        fix = "name another file with --out"
        raise EmitError(f"cannot write {path}: {error.strerror}", fix) from None
