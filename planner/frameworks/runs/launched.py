"""What a launch script adds to the run of the configuration that it names."""

import re
from collections.abc import Sequence
from dataclasses import replace

from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.format import LaunchedRun
from planner.frameworks.runs.trainer_arguments import adapters, trainer_arguments
from planner.frameworks.shell.marks import unresolved


def of_script(run: ExistingRun, script: LaunchedRun) -> ExistingRun:
    """Return the run of a configuration with what its launch script adds.

    A note says where its arguments train adapters, which are not read of them.
    """
    found = launched_run(run, script)
    tuned = adapters(trainer_arguments(script.launch.argv))
    return replace(found, notes=(*found.notes, *tuned))


def launched_run(run: ExistingRun, script: LaunchedRun) -> ExistingRun:
    """Return the run of a configuration with devices, environment and notes of its script."""
    launch = script.launch
    return replace(
        run,
        source=script.file.name,
        env=launch.env,
        n_devices=launch.n_devices or run.n_devices,
        n_nodes=launch.n_nodes,
        per_node=launch.per_node,
        segment_nodes=launch.segment_nodes,
        notes=(*launch.notes, *run.notes),
    )


def dotted_options(tokens: Sequence[str]) -> list[tuple[str, object]]:
    """Return overrides such as `--parallelism.tensor_parallel_degree 2`."""
    pairs: list[tuple[str, object]] = []
    for i, word in enumerate(tokens):
        match = re.fullmatch(r"--([a-z_]+\.[a-z_.]+)(?:=(.*))?", word)
        if not match or match.group(1).startswith("job."):
            continue
        value = match.group(2)
        if value is None and i + 1 < len(tokens) and not tokens[i + 1].startswith("--"):
            value = tokens[i + 1]
        if value is None or not unresolved(value):
            pairs.append((match.group(1), "true" if value is None else value))
    return pairs
