"""Runs the emitted files of a case and compares the running job with its plan."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.specs.loader import cluster_from_dict, model_from_dict
from planner.specs.search.axis_values import layout_from_json
from tools.smoke.case import Case
from tools.smoke.emitted import TAIL_CHARS, EmittedJob, NotEmittedError, answer_of
from tools.smoke.expected import differences, expected_facts, reported_facts
from tools.smoke.joined import joined_job


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one case."""

    case: Case
    release: str
    problems: tuple[str, ...]
    """Empty where the job trained and was the plan's."""
    seconds: float
    layout: Mapping[str, Any]

    @property
    def ran(self) -> bool:
        """True where two steps were trained as planned."""
        return not self.problems


def cluster_of(n_devices: int) -> dict[str, Any]:
    """Return a cluster file for one node of so many devices."""
    pool = {
        "name": "tiny",
        "accelerator": "h100-sxm-80gb",
        "nodes": 1,
        "accelerators_per_node": n_devices,
        "scale_up_domain": n_devices,
        "nics_per_node": n_devices,
        "nic": "ib-ndr-400",
    }
    return {"name": f"tiny-x{n_devices}", "pools": [pool], "fabric": {"rail_optimized": True}}


def solve_command(planner: Sequence[str], case: Case, folder: Path) -> list[str]:
    """Return the command that solves and emits a case; writes its two files."""
    pins = {name: value for name, value in case.pins.items() if name != "devices"}
    (folder / "model.yaml").write_text(json.dumps(case.model, indent=1))
    (folder / "cluster.yaml").write_text(json.dumps(cluster_of(n_devices(case)), indent=1))
    pinned = ",".join(f"{name}={value}" for name, value in pins.items())
    command = [*planner, "solve", str(folder / "model.yaml"), str(folder / "cluster.yaml")]
    command += ["--pin", f"devices={n_devices(case)}" + f",{pinned}" * bool(pinned)]
    command += ["--framework", case.framework, "--emit", case.framework, "--top", "1"]
    return [*command, "--out", str(folder / "plans"), "--format", "json", "--no-cache"]


def n_devices(case: Case) -> int:
    """Return the ranks of a case."""
    devices: Any = case.pins["devices"]
    return int(devices)


def run_case(
    case: Case, planner: Sequence[str], env: Mapping[str, str], folder: Path, limit_s: float
) -> Outcome:
    """Solve, emit, start with `--smoke`, compare. `env` is that of the framework."""
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()

    def outcome(
        *problems: str, release: str = "", layout: Mapping[str, Any] | None = None
    ) -> Outcome:
        return Outcome(case, release, problems, time.monotonic() - started, layout or {})

    try:
        job = (joined_job if case.pools else job_of)(case, planner, folder)
    except NotEmittedError as error:
        return outcome(str(error))
    full = {**env, **job.env, **case.env}
    if job.programs:
        full["PATH"] = f"{job.programs}:{full.get('PATH', '')}"
    code, output = run_launcher(list(job.command), full, limit_s)
    (folder / "output.txt").write_text(output)
    found = reported_facts(output)
    if code or found is None:
        why = f"exit {code}" if code else "no line of facts"
        return outcome(f"{why}: {output[-TAIL_CHARS:]}", layout=job.layout)
    release = found["release"].partition("+")[0]
    problems = (*differences(job.expected, found), *job.more(found))
    return outcome(*problems, release=release, layout=job.layout)


def job_of(case: Case, planner: Sequence[str], folder: Path) -> EmittedJob:
    """Return the job of a case on one node; raise `NotEmittedError` where there is none."""
    solved = json.loads(answer_of(solve_command(planner, case, folder)))
    layout = solved["plans"][0]["layout"]
    (place,) = (folder / "plans").iterdir()
    scripts = sorted(place.glob("*.sh"))
    if len(scripts) != 1:
        raise NotEmittedError(f"{place} has {len(scripts)} launchers")
    model = model_from_dict(case.model)
    cluster = cluster_from_dict(cluster_of(n_devices(case))).cluster
    expected = expected_facts(
        layout_from_json(layout), model.shape, model.job, cluster.pools[0], cluster.fabric
    )
    return EmittedJob(("bash", str(scripts[0]), "--smoke"), {}, expected, layout)


def run_launcher(command: list[str], env: Mapping[str, str], limit_s: float) -> tuple[int, str]:
    """Return the exit code and the output of a job; all its processes end with it."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=dict(env),
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return 124, f"{output}\nno end after {limit_s:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
