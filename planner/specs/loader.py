"""Load model and cluster files into the plain types of the cost models.

A path may be a file or the bare name of a packaged example (`llama3-70b`, `h100-x512`). Overrides
(`--set PATH=VALUE`) apply to the document before it is checked. Every defect is a `SpecError`.
"""

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from costmodels.tuning.records import PRETRAIN
from planner.errors import InputProblem, SpecError
from planner.option_names import option
from planner.specs.cluster.pool_fields import settable
from planner.specs.cluster.reader import read_cluster
from planner.specs.cluster.words import (
    EXAMPLES,
    cluster_words,
    document_of_words,
)
from planner.specs.examples import example_content, example_names, examples_folder
from planner.specs.importers.checkpoints.gguf_header import header_text, is_gguf
from planner.specs.importers.checkpoints.safetensors import INDEX
from planner.specs.importers.dump_text import read_dump
from planner.specs.importers.formats import FORMATS, document_text, find_format
from planner.specs.importers.huggingface.files import config_in_folder, mistaken_name
from planner.specs.importers.huggingface.reader import AS_TYPE
from planner.specs.importers.imported import Imported, value_at
from planner.specs.inputs import (
    ClusterInput,
    Content,
    FileOrContent,
    ModelInput,
    Overrides,
)
from planner.specs.model import read_model
from planner.specs.yaml.document import (
    MAX_BYTES,
    Document,
    close_names,
    load_yaml,
    parse_yaml,
    read_text,
    refuse_long_numbers,
    set_path,
)
from planner.specs.yaml.faults import KEYS, Kind, document_kind, expect, is_sweep


def load_model(path: FileOrContent, overrides: Overrides = ()) -> ModelInput:
    """Read a model file, another format that says a model, or a packaged example by name."""
    pairs = list(overrides)
    with _labelled(path):
        return read_model(_prepare(_load(path, "model", pairs), "model", pairs))


def load_cluster(path: FileOrContent, overrides: Overrides = ()) -> ClusterInput:
    """Read a cluster file, or a packaged example by name."""
    pairs = list(overrides)
    with _labelled(path):
        return read_cluster(_prepare(_load(path, "cluster", pairs), "cluster", pairs))


@contextmanager
def _labelled(source: FileOrContent) -> Iterator[None]:
    """Name the content that errors are about where it has no name of its own."""
    try:
        yield
    except SpecError as error:
        if not isinstance(source, Content):
            raise
        label = source.name or source.label
        problems = [p if p.file else dataclasses.replace(p, file=label) for p in error.problems]
        raise SpecError(problems) from None


def model_from_dict(data: Mapping[str, Any], overrides: Overrides = ()) -> ModelInput:
    """Read a model from Python data with the structure of a model file, or of another format."""
    pairs = list(overrides)
    return read_model(_prepare(_from_dict(data, "model", pairs), "model", pairs))


def cluster_from_dict(data: Mapping[str, Any], overrides: Overrides = ()) -> ClusterInput:
    """Read a cluster from Python data with the structure of a cluster file."""
    pairs = list(overrides)
    return read_cluster(_prepare(_from_dict(data, "cluster", pairs), "cluster", pairs))


def read_document(source: FileOrContent | Mapping[str, Any], kind: Kind) -> Document:
    """Return what a file, a packaged example or a dict says, unchecked."""
    inline = isinstance(source, Mapping)
    document = _from_dict(source, kind, ()) if inline else _load(source, kind)  # type: ignore[arg-type]
    with _labelled("" if isinstance(source, Mapping) else source):
        expect(document, kind)
    return document


def model_of_document(document: Document) -> ModelInput:
    """Return a model from a document whose data may have been changed since it was read."""
    return read_model(document)


def cluster_of_document(document: Document) -> ClusterInput:
    """Return a cluster from a document whose data may have been changed since it was read."""
    return read_cluster(_with_nodes_set(document))


def is_sweep_file(path: str | os.PathLike[str]) -> bool:
    """Tell whether a file holds a sweep; `SpecError` where it cannot be read."""
    return is_sweep(_load(path, "model").data)


def example_called(name: str) -> Content | None:
    """Return an example under the bare name that was given for it; None where a file is meant."""
    kinds: tuple[Kind, Kind] = ("model", "cluster")
    if not _is_bare(name) or Path(name).is_file():
        return None
    for kind in kinds:
        if name in example_names(kind):
            return replace(example_content(kind, name), name=name)
    return None


def load_spec(path: FileOrContent) -> ModelInput | ClusterInput:
    """Read a model or a cluster, whichever it is."""
    with _labelled(path):
        document = _load(path, "model")
        if document_kind(document) == "cluster":
            return read_cluster(_prepare(document, "cluster", ()))
        return read_model(_prepare(document, "model", ()))


def _load(path: FileOrContent, kind: Kind, overrides: Overrides = ()) -> Document:
    """Read a file, or the packaged example that a bare name means."""
    if isinstance(path, Content):
        if isinstance(path.content, str):
            return _of_text(path.content, path.name, overrides)
        return _from_dict(path.content, kind, overrides, path.name)
    name = os.fspath(path)
    if not name:
        raise SpecError(InputProblem(f"the name of the {kind} file is empty", "name a file"))
    bare = _is_bare(name)
    folder = examples_folder()
    other: Kind = "cluster" if kind == "model" else "model"
    if bare and folder and not Path(name).is_file():
        for other_kind in (kind, other):
            if name in example_names(other_kind):
                return load_yaml(folder / f"{other_kind}s" / f"{name}.yaml")
        if not Path(name).exists():
            if kind == "cluster" and (words := cluster_words(name)):
                return document_of_words(words)
            examples = example_names(kind)
            close = close_names(name, [*examples, *example_names(other)], 2)
            guess = f"did you mean {' or '.join(close)}? " if close else ""
            message = f"no file and no example called {name!r}"
            fix = f"{guess}{kind} examples: {', '.join(examples)}"
            fix += f"; or in words: {EXAMPLES}" if kind == "cluster" else ""
            raise SpecError(InputProblem(message, fix))
    name = _file_meant(name, kind)
    return _of_text(_text_of_file(name), name, overrides)


def file_content(path: str | os.PathLike[str], kind: Kind) -> Content | None:
    """Return what a file holds, read as `load_model` and `load_cluster` do.

    None for the bare name of something that is no file here: an example, of this machine or
    another. Raises `SpecError` for a file that cannot be read.
    """
    name = os.fspath(path)
    if not name:
        raise SpecError(InputProblem(f"the name of the {kind} file is empty", "name a file"))
    if _is_bare(name) and not Path(name).is_file():
        model_folder = kind == "model" and Path(name).is_dir()
        if not model_folder or name in example_names(kind):
            return None
    file = _file_meant(name, kind)
    return Content(_text_of_file(file), file, shown=name)


def _is_bare(name: str) -> bool:
    """Tell whether a name may be that of an example: no path, and no ending of a file."""
    return name == os.path.basename(name) and not name.endswith((".yaml", ".yml", ".json"))


def _text_of_file(name: str) -> str:
    """Return the text of a file; a dump of a cluster may be larger than a specification."""
    if is_gguf(name):
        return header_text(name)
    try:
        large = os.path.getsize(name) > MAX_BYTES
    except (OSError, ValueError):
        large = False
    if large:
        text = read_dump(name)
        if find_format(text):
            return text
    return read_text(name)


def _file_meant(name: str, kind: Kind) -> str:
    """Return the file to read: a model may be named by the folder that holds its config.json."""
    if kind == "cluster":
        return name
    path = Path(name)
    if path.is_dir():
        return os.fspath(config_in_folder(path) or name)
    if is_gguf(name):
        return name
    if name.endswith(INDEX) and path.with_name("config.json").is_file():
        return os.fspath(path.with_name("config.json"))
    if error := mistaken_name(name):
        raise error
    if not path.exists() and not path.parent.is_dir() and re.fullmatch(_HUB_NAME, name):
        fix = f"a model of the Hugging Face Hub? Fetch its file: hf download {name} config.json"
        raise SpecError(InputProblem("no such file", fix, name))
    return name


_HUB_NAME = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?<!\.json)(?<!\.yaml)(?<!\.yml)"


def _of_text(text: str, file: str, overrides: Overrides) -> Document:
    """Return one of our files, or what a file of another format says in the words of ours."""
    if form := find_format(text):
        refuse_long_numbers(text, file)
        return _of_import(form.read(text, file, dict(overrides)), file)
    return parse_yaml(text, file)


def _of_import(imported: Imported, file: str = "") -> Document:
    marks = imported.marks
    return Document(imported.document, file, marks, marks, imported=imported)


def _from_dict(
    data: Mapping[str, Any], kind: Kind, overrides: Overrides, file: str = ""
) -> Document:
    """Return Python data as a document, whatever format it has the structure of."""
    if isinstance(data, Mapping) and not any(key in data for key in KEYS[kind]):
        text = document_text(data)
        if form := find_format(text):
            return _of_import(form.read(text, file, dict(overrides)), file)
    return Document(data, file)


def import_model(
    path: str | os.PathLike[str],
    *,
    name: str = "",
    as_type: str = "",
    overrides: Overrides = (),
) -> tuple[Imported, ModelInput]:
    """Read a model of another format; return its fields with their origins, and it as an input.

    `name` replaces the model's name; `as_type` reads a Hugging Face configuration as one of
    another `model_type`; `overrides` are fields by path, which assumptions follow. Raises
    `SpecError` for a file that is none, or a field that it does not have.
    """
    file = _file_meant(os.fspath(path), "model")
    text = _text_of_file(file)
    form = find_format(text)
    if form is None or form.kind != "model":
        what = f"is a {form.title}, no model" if form else "is of no format that says a model"
        titles = ", ".join(x.title for x in FORMATS if x.kind == "model")
        raise SpecError(
            InputProblem(what, f"formats: {titles}; `planner check-spec` reads ours", file)
        )
    if as_type and form.name not in READ_AS:
        raise _not_read_as(as_type, file)
    pairs = [(path, value) for path, value in overrides if path != AS_TYPE]
    given = {**dict(pairs), AS_TYPE: as_type} if as_type else dict(pairs)
    imported = form.read(text, file, given)
    imported = _with_fields(imported, pairs, file)
    if name:
        imported = imported.changed(("model", "name"), name, "--name")
    return imported, read_model(_of_import(imported, file))


def _with_fields(imported: Imported, pairs: Overrides, file: str) -> Imported:
    """Return an import with fields set by path, each marked as the user's."""
    pairs = list(pairs)
    prepared = _prepare(_of_import(imported, file), "model", pairs)
    result = dataclasses.replace(imported, document=dict(prepared.data))
    for path, _ in pairs:
        keys = tuple(path.split("."))
        result = result.changed(keys, value_at(result.document, keys), f"--set {path}")
    return result


def cluster_of_import(imported: Imported, file: str = "") -> ClusterInput:
    """Return a cluster that was imported as an input."""
    return read_cluster(_of_import(imported, file))


def _prepare(document: Document, kind: Kind, overrides: Overrides) -> Document:
    """Refuse files of another kind, then apply the overrides."""
    expect(document, kind)
    pairs = list(overrides)
    for section in ("fabric", "operations") if kind == "cluster" else ():
        if any(path.startswith(f"{section}.") for path, _ in pairs):
            document = dataclasses.replace(document, data={section: {}, **document.data})
    if any(path.startswith("search.") for path, _ in pairs) and kind == "model":
        search = document.data.get("search")
        inner = {"pin": {}, "only": {}, "max": {}, **(search if isinstance(search, dict) else {})}
        document = dataclasses.replace(document, data={**document.data, "search": inner})
    section = document.data.get("model")
    if any(path.startswith("model.details.") for path, _ in pairs) and isinstance(section, dict):
        filled = {**document.data, "model": {"details": {}, **section}}
        document = dataclasses.replace(document, data=filled)
    document = _without_pretraining_tokens(document, dict(pairs)) if kind == "model" else document
    for path, value in pairs:
        if path == AS_TYPE:
            _expect_imported(document, str(value))
            continue
        text = str(value)
        option_text = option("set", f"{path}={text}")
        document, field, text = settable(document, path, text, option_text)
        document = set_path(document, field, text, option_text)
    return _with_nodes_set(document) if kind == "cluster" else document


def _without_pretraining_tokens(document: Document, fields: Mapping[str, Any]) -> Document:
    """Return the document of a job that options make one of fine-tuning.

    The tokens of its file are those of pretraining; how long this run is, only an option says.
    """
    training = document.data.get("training")
    if str(fields.get("training.task", PRETRAIN)) == PRETRAIN or not isinstance(training, dict):
        return document
    if training.get("task", PRETRAIN) != PRETRAIN or "tokens" not in training:
        return document
    kept = {name: value for name, value in training.items() if name != "tokens"}
    return dataclasses.replace(document, data={**document.data, "training": kept})


def _expect_imported(document: Document, as_type: str) -> None:
    """Refuse to read one of our own files as the layers of a type."""
    kinds = ("Hugging Face config.json", "model provider of Megatron-Bridge")
    if document.imported is None or not document.imported.format.startswith(kinds):
        raise _not_read_as(as_type, document.file)


def _not_read_as(as_type: str, file: str) -> SpecError:
    message = f"--as {as_type}: the model is no config.json and no provider of Megatron-Bridge"
    return SpecError(InputProblem(message, "leave it out", file))


READ_AS = ("huggingface", "bridge")
"""Formats of which a type, or a class of the file, can be named."""


def _with_nodes_set(document: Document) -> Document:
    """Return the document without the free devices of pools whose free nodes an option sets.

    The names of the nodes, of all beside `free_devices`, become those of the nodes in use.
    """
    changed: dict[int, Any] = {}
    for path in document.overrides:
        pools = document.data.get("pools")
        if path[:1] != ("pools",) or path[-1] != "free_nodes" or not isinstance(pools, list):
            continue
        index = path[1]
        if isinstance(index, int) and isinstance(pools[index], Mapping):
            gone = ("free_devices", "partial_nodes")
            changed[index] = {k: v for k, v in pools[index].items() if k not in gone}
    if not changed:
        return document
    pools = [changed.get(i, pool) for i, pool in enumerate(document.data["pools"])]
    return dataclasses.replace(document, data={**document.data, "pools": pools})
