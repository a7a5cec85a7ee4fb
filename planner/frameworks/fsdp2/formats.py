"""What is read as a run of FSDP: Accelerate's file, and scripts that Accelerate or Trainer run."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.frameworks.fsdp2.reader import looks_like_accelerate, read_accelerate
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.format import LaunchedRun, RunFile, RunFormat, ScriptFormat
from planner.frameworks.runs.launched import of_script
from planner.frameworks.runs.trainer_arguments import BATCH, trainer_configuration
from planner.frameworks.shell.marks import unmarked

_KIND = "Accelerate launch script"


def _configuration(file: RunFile) -> ExistingRun:
    return read_accelerate(file.text, file.name, file.query, file.find)


def _launched(run: LaunchedRun) -> ExistingRun:
    launch, name = run.launch, run.file.name
    config = launch.options.get("config-file", "")
    text = run.find(unmarked(config)) if config else ""
    if text is None:
        fix = f"put it beside {name}, or check that file itself"
        raise SpecError(InputProblem(f"names {unmarked(config)}, which cannot be read", fix, name))
    if not text:
        text = _launch_options(launch.options)
    query = replace(run.launched_query, script_arguments=_with_file(run))
    short = unmarked(config).rsplit("/", 1)[-1] or name
    result = read_accelerate(text, short, query, run.find, _KIND)
    if launch.n_devices and result.n_devices != launch.n_devices:
        query = query.with_sets(("num_processes", launch.n_devices))
        result = read_accelerate(text, name, query, run.find, _KIND)
    return replace(
        result,
        source=name,
        env=launch.env,
        notes=(*launch.notes, *result.notes),
        n_devices=result.n_devices or launch.n_devices,
    )


def _with_file(run: LaunchedRun) -> dict[str, Any]:
    """Return the arguments with those of a JSON file that the script reads them from."""
    named = run.arguments.get("trainer_args")
    text = run.find(str(named)) if named else None
    try:
        data = json.loads(text) if text else {}
    except json.JSONDecodeError:
        data = {}
    return {**(data if isinstance(data, dict) else {}), **run.arguments}


def _launch_options(options: Mapping[str, str]) -> str:
    """Return options of `accelerate launch` as the file that they stand for."""
    data: dict[str, Any] = {"distributed_type": "MULTI_GPU"}
    inner: dict[str, Any] = {}
    for name, value in options.items():
        key = name.replace("-", "_")
        if key.startswith("fsdp_"):
            inner[key] = value
        elif key in ("num_processes", "num_machines", "mixed_precision"):
            data[key] = int(value) if value.isdecimal() else value
    if "use-fsdp" in options or inner:
        data |= {"distributed_type": "FSDP", "fsdp_config": inner or {"fsdp_version": 1}}
    return json.dumps(data)


def _trainer(run: LaunchedRun) -> ExistingRun:
    """Return the run of a script with arguments of Hugging Face's Trainer: FSDP, or plain DDP."""
    config = run.find(str(run.arguments.get("fsdp_config") or "")) or ""
    text = trainer_configuration(run.arguments, config)
    kind = "Hugging Face Trainer launch script"
    return of_script(read_accelerate(text, run.file.name, run.launched_query, run.find, kind), run)


RUN_FORMATS = (
    RunFormat(
        lambda file: looks_like_accelerate(file.text),
        _configuration,
        "an Accelerate YAML",
        precedence=80,
    ),
)
SCRIPT_FORMATS = (
    ScriptFormat(
        lambda run: run.launch.launcher == "accelerate" or "config-file" in run.launch.options,
        _launched,
        precedence=30,
    ),
    ScriptFormat(
        lambda run: "fsdp" in run.arguments or BATCH in run.arguments, _trainer, precedence=50
    ),
)
