"""What requests of `planner.client` hold: files are read here, and their texts are sent."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

Data = dict[str, Any]
Source = str | os.PathLike[str] | Mapping[str, Any]
"""The name of an example, a text of several lines, what a file holds, or the path of a file."""
Result = Mapping[str, Any] | str | os.PathLike[str]
"""An answer of solve or evaluate, the path of a file that holds one, or the question itself:
`{"solve": {...}}` or `{"evaluate": {...}}`."""


def document(source: Source, kind: Literal["model", "cluster"]) -> str | Data:
    """Return a model or a cluster as a request holds it; files are read as the commands do.

    Raises `SpecError` for a file that is not there or cannot be read.
    """
    if isinstance(source, Mapping):
        return dict(source)
    if isinstance(source, str) and "\n" in source:
        return {"text": source}
    from planner.specs.loader import file_content

    result = file_content(source, kind)
    if result is None:
        return os.fspath(source)
    return FileText(result.content, result.name)


def paths_sent(request: Mapping[str, Any]) -> dict[str, str]:
    """Return the paths of the files that a request holds, by the names that were sent."""
    entries: dict[str, str] = {}
    for sent in request.values():
        if isinstance(sent, FileText):
            entries[sent["name"]] = sent.path
        elif isinstance(sent, FileTexts):
            entries |= sent.paths
        elif type(sent) is dict:  # the jobs and the clusters of a batch
            entries |= {x["name"]: x.path for x in sent.values() if isinstance(x, FileText)}
    return entries


class FileTexts(dict[str, str]):
    """Texts by the names that are sent, which remembers the paths of their files."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: dict[str, str] = {}


class FileText(dict[str, Any]):
    """A text as requests hold it, which remembers the path of its file for messages."""

    def __init__(self, text: Any, path: str, name: str = "") -> None:
        super().__init__(text=text, name=name or file_name(path))
        self.path = path


def file_name(path: str) -> str:
    """Return the name of a file as the service takes it.

    >>> file_name("/home/ann/my job.yaml"), file_name(".hidden"), file_name("-")
    ('my_job.yaml', 'hidden', '')
    """
    plain = "".join(
        x if x.isascii() and (x.isalnum() or x in "._+#@-") else "_" for x in Path(path).name
    )
    return plain.lstrip(".-")[:128]


def plan_of(result: Result, plan: int | str = 1) -> Data:
    """Return the plan of a rank or an id, as requests name it."""
    if isinstance(result, str | os.PathLike):
        from planner.solver.answer.result_store import read_result

        result = read_result(os.fspath(result))
    if "schema_version" in result:
        return {"result": dict(result), "plan": plan}
    return {**result, "plan": plan}


def run_of(run: Source, files: Mapping[str, str] | None = None) -> Data:
    """Return the fields `run` and `files` of a check: the file at a path, and those it names.

    And the list of nodes beside it, which a run over several pools has.
    """
    if isinstance(run, Mapping) or (isinstance(run, str) and "\n" in run):
        text: Any = dict(run) if isinstance(run, Mapping) else {"text": run}
        return {"run": text, "files": dict(files or {})}
    from planner.analyze.joined.node_pools import node_list_of
    from planner.frameworks.launchers.node_types import NODE_LIST
    from planner.frameworks.runs.companions import files_beside
    from planner.frameworks.runs.reader import run_text
    from planner.frameworks.runs.replica_start import start_in

    name, part, text = run_text(start_in(os.fspath(run)))
    sent = file_name(name) + (f"#{part}" if part else "")
    result = files_beside(name, text) if files is None else dict(files)
    if files is None and (nodes := node_list_of(name, None)):
        result[NODE_LIST] = nodes
    return {"run": FileText(text, name, sent), "files": result}


def inputs_of(model: Source, cluster: Source) -> Data:
    """Return the fields `model` and `cluster`."""
    return {"model": document(model, "model"), "cluster": document(cluster, "cluster")}


def hosts_of(hosts: str | os.PathLike[str] | None) -> Data:
    """Return the field `hosts`: a list, or what the file of this name holds."""
    if hosts is None:
        return {}
    from planner.frameworks.launchers.hosts import read_hosts

    return {"hosts": "\n".join(read_hosts(os.fspath(hosts)))}


def calibration_text(source: Source) -> Any:
    """Return a calibration as requests hold it: what the file at a path says."""
    if isinstance(source, Mapping) or (isinstance(source, str) and "\n" in source):
        return source
    from planner.specs.yaml.document import read_text

    path = os.fspath(source)
    return FileText(read_text(path), path)


def reference_of(
    source: Source | Sequence[Mapping[str, Any]], files: Mapping[str, str] | None = None
) -> Data:
    """Return the fields `reference` and `files`: measured runs, and the files that they name.

    `source` is the path of a file, its text, one run or several. Raises `SpecError` as the
    commands do for a file that cannot be read.
    """
    if isinstance(source, str | os.PathLike) and not (isinstance(source, str) and "\n" in source):
        return _reference_of_file(os.fspath(source), files)
    if isinstance(source, Mapping):
        result: Any = dict(source)
    elif isinstance(source, str):
        result = {"text": source}
    else:
        result = {"text": json.dumps(list(source), default=os.fspath)}  # JSON is YAML
    return {"reference": result, **({"files": dict(files)} if files else {})}


def _reference_of_file(path: str, files: Mapping[str, str] | None) -> Data:
    from planner.solver.calibration.reference import file_of_run, runs_of
    from planner.specs.loader import file_content
    from planner.specs.yaml.document import parse_yaml, read_text

    text = read_text(path)
    sent = FileTexts()
    if files is not None:
        sent |= files
    else:
        kinds: tuple[Literal["model", "cluster"], ...] = ("model", "cluster")
        named = [
            (run.get(kind), kind) for _, run in runs_of(parse_yaml(text, path)) for kind in kinds
        ]
        for value, kind in named:
            if isinstance(value, str) and value and value not in sent:
                file = file_of_run(path, value)
                content = file_content(file, kind)
                if content is not None:
                    sent[value], sent.paths[value] = str(content.content), file
    return {"reference": FileText(text, path), **({"files": sent} if sent else {})}
