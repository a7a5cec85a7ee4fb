"""Which formats are read in place of our own files, and how one is recognized."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.specs.importers import huggingface
from planner.specs.importers.imported import Imported, Kind

Reader = Callable[[str, str, Mapping[str, object]], Imported]
"""Reads the text of a file (as the user named it). The mapping holds what the user states with
`--set`, by dotted path: a reader need not ask for that, nor assume it."""
READERS = "planner.model_readers"
"""The group of entry points of readers that need what this package must not import."""


@dataclass(frozen=True, slots=True)
class Format:
    """One format that users have files of."""

    name: str
    kind: Kind
    title: str
    """What the file is, in words."""
    looks_like: Callable[[str], bool]
    """Tell from the text whether it is, or was meant to be, of this format."""
    read: Reader


_OWN_FILE = re.compile(
    r"""^\s*[{]?\s*["']?(?:pools|fabric|model|training)["']?\s*:""", re.MULTILINE
)
"""Begins a section of one of our files."""
_HEAD = 65536
"""Characters within which such a section begins."""


def _is_dump(text: str) -> bool:
    """Tell whether a text is a dump of a cluster; our own files are told at little cost."""
    if _OWN_FILE.search(text[:_HEAD]):
        return False
    from planner.specs.importers.clusters.reader import looks_like_dump

    return looks_like_dump(text)


def _read_dump(text: str, file: str, own_fields: Mapping[str, object]) -> Imported:
    from planner.specs.importers.clusters.reader import import_cluster

    return import_cluster([(file, text)])


def looks_like_megatron(text: str) -> bool:
    """Tell whether a text holds Megatron-LM's flags: a script, a list of them, MODEL_ARGS."""
    flags = ("--num-layers", "--hidden-size", "--num-attention-heads")
    # In comments they stand in the model files that are made of them.
    return all(re.search(rf"^[^#\n]*{flag}\b", text, re.MULTILINE) for flag in flags)


def _read_megatron(text: str, file: str, own_fields: Mapping[str, object]) -> Imported:
    return reader("megatron")(text, file, own_fields)


def reader(name: str) -> Reader:
    """Return the reader of a format that a package above this one declares under `READERS`.

    `SpecError` where nothing declares it: an installation older than the code.
    """
    points = entry_points(group=READERS, name=name)
    if not points:
        raise SpecError(
            InputProblem(
                f"the reader of {name} files is not declared by the installed package",
                "install planner again with pip: the installation is older than the code",
            )
        )
    read: Reader = next(iter(points)).load()
    return read


def _read_config(text: str, file: str, own_fields: Mapping[str, object]) -> Imported:
    from planner.specs.importers.checkpoints.stored import with_weights_beside

    return with_weights_beside(huggingface.read_config(text, file, own_fields), file, text)


def _is_gguf(text: str) -> bool:
    return text.startswith('{"gguf":')


def _read_gguf(text: str, file: str, own_fields: Mapping[str, object]) -> Imported:
    from planner.specs.importers.checkpoints.gguf_model import read_gguf

    return read_gguf(text, file, own_fields)


def looks_like_provider(text: str) -> bool:
    """Tell whether a text is a model provider of Megatron-Bridge: its class, or its fields."""
    is_class = re.search(r"^class \w+\((\w*Provider\w*)", text, re.MULTILINE)
    is_dumped = re.search(r"^\s*_target_:\s*megatron\.bridge\.", text, re.MULTILINE)
    return bool(is_class or is_dumped) and "num_layers" in text


def _read_provider(text: str, file: str, own_fields: Mapping[str, object]) -> Imported:
    return reader("bridge")(text, file, own_fields)


FORMATS: tuple[Format, ...] = (
    Format(
        name="gguf",
        kind="model",
        title="header of a GGUF file",
        looks_like=_is_gguf,
        read=_read_gguf,
    ),
    Format(
        name="bridge",
        kind="model",
        title="model provider of Megatron-Bridge",
        looks_like=looks_like_provider,
        read=_read_provider,
    ),
    Format(
        name="huggingface",
        kind="model",
        title="Hugging Face config.json",
        looks_like=huggingface.looks_like,
        read=_read_config,
    ),
    Format(
        name="cluster",
        kind="cluster",
        title="dump of a cluster",
        looks_like=_is_dump,
        read=_read_dump,
    ),
    Format(
        name="megatron",
        kind="model",
        title="Megatron-LM arguments",
        looks_like=looks_like_megatron,
        read=_read_megatron,
    ),
)
"""In the order in which they are tried."""


def find_format(text: str) -> Format | None:
    """Return the format of a text; None when it is none of them, such as one of our own files."""
    return next((form for form in FORMATS if form.looks_like(text)), None)


def document_text(data: Mapping[str, Any]) -> str:
    """Return Python data as the text that a reader takes; empty where it is not JSON's."""
    try:
        return json.dumps(data)
    except (TypeError, ValueError, RecursionError):
        return ""
