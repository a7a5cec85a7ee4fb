"""The files of one kind of replica of a run: read as the run that they would start."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from planner.analyze.check.asked import AskedRun
from planner.analyze.check.run_source import RunSource
from planner.errors import InputProblem, SpecError
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.replica_start import ReplicaStart
from planner.specs.inputs import Content, ModelInput


@dataclass(frozen=True, slots=True)
class KindRun:
    """The files of one kind of replica, as the run that they would start on all nodes."""

    folder: str
    pool: str
    nodes: range
    asked: AskedRun
    run: ExistingRun
    model: ModelInput | None
    why: SpecError | None
    """Why its sizes do not go together."""


def read_kind(
    asked: AskedRun,
    start: ReplicaStart,
    folder: str,
    pools: Sequence[str],
    nodes: range,
    n_devices: int,
) -> KindRun:
    """Return the run of one kind; `pools` are those of its nodes."""
    own, files, name = asked.source, asked.source.query.beside, start.named(folder)
    if files is None and not isinstance(own.file, Content):
        source = replace(own, file=str(Path(own.file).parent / name))
    else:
        text = (files or {}).get(name)
        if text is None:
            fix = "send the files of every kind, under their paths from the folder of the script"
            raise SpecError(InputProblem(f"starts {name}, which is not there", fix, "files"))
        inside = {
            path.removeprefix(f"{folder}/"): x
            for path, x in (files or {}).items()
            if path.startswith(f"{folder}/") and path != name
        }
        query = replace(own.query, beside=inside)
        source = RunSource(Content(text, name), own.framework, query)
    kind = replace(asked, source=source)
    run = source.read(n_devices, all_devices=False)
    model, why = kind.describe(run)
    one = pools[0] if len(set(pools)) == 1 else ""
    return KindRun(folder, one, nodes, kind, run, model, why)
