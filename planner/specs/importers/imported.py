"""What an importer found: the content of one of our files, and where every field came from."""

import copy
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import yaml

Kind = Literal["model", "cluster"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where one field of an imported file came from."""

    path: tuple[str | int, ...]
    """Keys and list indices from the top of the document."""
    text: str
    """The key or line it was read from, or why its value was assumed."""
    assumed: bool = False
    """The input does not say it; the value is a stated assumption."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A model or cluster file made from another format."""

    kind: Kind
    document: dict[str, Any]
    """Structure of a model or cluster file, see docs/files.md."""
    origins: tuple[Origin, ...]
    """One for every field that the importer set."""
    source: str
    """File (or files) it came from, as the user named it."""
    format: str
    """What the input is, in words: `Hugging Face config.json (qwen3_moe)`."""
    notes: tuple[str, ...] = ()
    """What the user should know: nodes left out, parts not modelled, copies that are quantized."""
    marks: Mapping[tuple[str | int, ...], tuple[int, int]] = field(default_factory=dict)
    """Line and column of the input from which a field was read, where it has lines."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumed fields, as `path = value: why`."""
        return tuple(
            f"{'.'.join(map(str, o.path))} = {scalar(value_at(self.document, o.path))}: {o.text}"
            for o in self.origins
            if o.assumed
        )

    def changed(self, path: tuple[str | int, ...], value: object, text: str) -> "Imported":
        """Return a copy with another value at a path, `text` being where that one comes from."""
        document = copy.deepcopy(self.document)
        value_at(document, path[:-1])[path[-1]] = value
        origins = [o for o in self.origins if o.path != path]
        return replace(self, document=document, origins=(*origins, Origin(path, text)))

    def to_yaml(self) -> str:
        """Return the file as YAML, each field with its origin as a comment."""
        head = [
            line
            for text in (f"Imported from {self.source}: {self.format}.", *self.notes)
            for line in textwrap.wrap(
                text, 97, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
            )
        ]
        comments = {o.path: ("assumed: " if o.assumed else "") + o.text for o in self.origins}
        lines = list(_lines(self.document, (), 0, comments))
        width = min(max((len(text) for text, comment in lines if comment), default=0), 44)
        body = [f"{text:<{width}}  # {note}" if note else text for text, note in lines]
        return "\n".join([*(f"# {line}" for line in head), *body]) + "\n"


def value_at(document: Any, path: tuple[str | int, ...]) -> Any:
    """Return the value at a path of a document."""
    for key in path:
        document = document[key]
    return document


def scalar(value: Any) -> str:
    """Return a value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
    return text.removesuffix("\n").removesuffix("...").strip()


def _lines(
    value: Any,
    path: tuple[str | int, ...],
    indent: int,
    comments: Mapping[tuple[str | int, ...], str],
) -> Iterator[tuple[str, str]]:
    """Yield the lines of a mapping or a list, each with its comment."""
    pad = " " * indent
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, item in pairs:
        here = (*path, key)
        label = "-" if isinstance(key, int) else f"{key}:"
        note = comments.get(here, "")
        if isinstance(item, Mapping) and item and isinstance(key, int):
            inner = list(_lines(item, here, indent + 2, comments))
            yield f"{pad}- {inner[0][0].lstrip()}", inner[0][1]
            yield from inner[1:]
        elif (isinstance(item, Mapping) and item) or _is_block(item):
            yield f"{pad}{label}", note
            yield from _lines(item, here, indent + 2, comments)
        else:
            yield f"{pad}{label} {scalar(item)}", note


def _is_block(item: Any) -> bool:
    """Tell whether a list is written with one item a line: its items are mappings."""
    return (
        isinstance(item, Sequence)
        and not isinstance(item, str)
        and any(isinstance(x, Mapping) for x in item)
    )
