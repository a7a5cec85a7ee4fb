"""YAML with line marks, and without YAML's traps.

PyYAML's safe loader keeps the last of two equal keys, reads `15e12` as text, `no` as false and
`1:30` as 90. Here equal keys are refused, every usual way of writing a number is a number, only
`true` and `false` are booleans, everything else is text. Marks say where keys and values stand.
"""

import copy
import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from planner.errors import InputProblem, SpecError
from planner.option_names import option
from planner.units import shown_value

if TYPE_CHECKING:
    from planner.specs.importers.imported import Imported

MAX_BYTES = 1_000_000
"""Largest file that is read."""
MAX_NODES = 50_000
"""Most values in a document with all aliases written out: nested aliases cannot explode."""
MAX_DEPTH = 30
"""Deepest nesting of mappings and lists."""
MAX_OPEN_BRACKETS = 400
"""Most brackets and braces open at once that are read on: PyYAML looks through all of them at each
further one, and ends at about 490 where Python's stack does."""
MAX_NUMBER_CHARACTERS = 64
"""Longest text that is looked at as a number."""

KeyPath = tuple[str | int, ...]
"""Keys and list indices from the top of a document to a value."""

_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """Composes nodes; scalars resolve by the YAML 1.2 core rules with `_` allowed in numbers."""

    yaml_implicit_resolvers = {}  # noqa: RUF012  the name is PyYAML's

    def fetch_flow_collection_start(self, TokenClass: type[yaml.Token]) -> None:
        if self.flow_level >= MAX_OPEN_BRACKETS:
            raise RecursionError
        super().fetch_flow_collection_start(TokenClass)


for _name, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?[0-9][0-9_]*|0x[0-9a-fA-F_]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|nan)",
        "-+.0123456789",
    ),
):
    _Loader.add_implicit_resolver(
        _TAG + _name, re.compile(rf"^(?:{_pattern})$", re.ASCII), list(_first)
    )


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data (dict, list, str, int, float, bool, None) and where each part of it stands."""

    data: Any
    file: str = ""
    """File as the user named it; empty for data that came from Python."""
    key_marks: Mapping[KeyPath, tuple[int, int]] = field(default_factory=dict)
    """Line and column, from 1, of the key (or list item) at a path."""
    value_marks: Mapping[KeyPath, tuple[int, int]] = field(default_factory=dict)
    """Line and column, from 1, of the value at a path."""
    overrides: Mapping[KeyPath, str] = field(default_factory=dict)
    """Paths that an option has set, with the option as written."""
    imported: "Imported | None" = None
    """What another format was turned into, if the data comes from one."""

    def problem(
        self, path: KeyPath, message: str, fix: str = "", *, at_key: bool = False
    ) -> InputProblem:
        """Return a problem at a path, placed at the nearest part that stands in the file."""
        text = path_text(path)
        for n in range(len(path), -1, -1):
            if path[:n] in self.overrides:
                return InputProblem(message, fix, self.overrides[path[:n]], path=text)
            # A key that is missing has no mark: its parent's key is the place to add it.
            marks = self.key_marks if at_key or n < len(path) else self.value_marks
            if path[:n] in marks:
                line, column = marks[path[:n]]
                return InputProblem(message, fix, self.file, line, column, text)
        return InputProblem(message, fix, self.file, path=text)


def path_text(path: Iterable[str | int]) -> str:
    """Return a path as it is written in messages and options: `pools.0.nodes`."""
    return ".".join(str(part) for part in path)


def load_yaml(path: str | os.PathLike[str]) -> Document:
    """Read one YAML document from a file; every defect is a `SpecError` with its line."""
    name = os.fspath(path)
    return parse_yaml(read_text(name), name)


def parse_yaml(text: str, file: str = "") -> Document:
    """Read one YAML document from text; `file` is the name that messages give."""
    if len(text) > MOST_KEPT:
        return _parsed(text, file)
    document = _known(text, file)
    return replace(document, data=copy.deepcopy(document.data))  # the reader may change it


MOST_KEPT = 10_000
"""Characters of a text whose values are kept: specifications that are asked about often."""


@lru_cache(maxsize=64)
def _known(text: str, file: str) -> Document:
    return _parsed(text, file)


def _parsed(text: str, file: str) -> Document:
    node = _compose(text, file)
    if node is None:
        raise SpecError(
            InputProblem("the file is empty", "see examples/ for a complete one", file)
        )
    builder = _Builder(file)
    builder.key_marks[()] = _mark(node)
    data = builder.build(node, (), 0)
    return Document(data, file, builder.key_marks, builder.value_marks)


NEW_SECTIONS = frozenset(
    {"training.lora", "training.muon", "training.data", "training.data.lengths"}
)
"""Sections that a field may be set in where the file has none."""


def set_path(document: Document, path: str, text: str, origin: str = "") -> Document:
    """Return a copy of the document with the value at a dotted path replaced (`--set PATH=VALUE`).

    The value is read as YAML, so `16` is a number. Every part of the path but the last must exist,
    or be one of `NEW_SECTIONS`; whether the last is a known key is left to the schema, since
    optional keys may be absent.
    `origin` is the option for messages, where it is not this path and text.
    """
    origin = origin or option("set", f"{path}={text}")
    value = parse_yaml(text, origin).data if text.strip() else None
    data = copy.deepcopy(document.data)
    parts: list[str | int] = []
    target = data
    names = path.split(".")
    for i, name in enumerate(names):
        last = i == len(names) - 1
        if ".".join(names[: i + 1]) in NEW_SECTIONS and not last and isinstance(target, dict):
            target.setdefault(name, {})
        key = _step(target, name, parts, origin, may_be_new=last)
        parts.append(key)
        if last:
            target[key] = value
        else:
            target = target[key]
    overrides = {**document.overrides, tuple(parts): origin}
    return replace(document, data=data, overrides=overrides)


def close_names(name: str, names: Iterable[str], n: int = 3) -> list[str]:
    """Return the known names that look like the given one, best first."""
    by_lower = {candidate.lower(): candidate for candidate in names}
    return [by_lower[hit] for hit in difflib.get_close_matches(name.lower(), by_lower, n, 0.6)]


def _step(
    target: Any, name: str, parts: list[str | int], origin: str, *, may_be_new: bool
) -> str | int:
    """Return the key or index that `name` means in `target`, or raise saying what exists there."""
    here = path_text(parts) or "the top level"
    if isinstance(target, dict):
        if name in target or (may_be_new and name):
            return name
        keys = ", ".join(str(key) for key in target) or "none"
        close = close_names(name, [str(key) for key in target], 1)
        fix = f"did you mean {close[0]}?" if close else "use one of these, or add it to the file"
        raise SpecError(
            InputProblem(f"no key {name!r} in {here}; keys there: {keys}", fix, origin)
        )
    if isinstance(target, list):
        if name.isascii() and name.isdigit() and len(name) < 6 and int(name) < len(target):
            return int(name)
        fix = f"use an index from 0 to {len(target) - 1}" if target else "add items in the file"
        message = f"no item {name!r} in {here}, a list of {len(target)}"
        raise SpecError(InputProblem(message, fix, origin))
    fix = f"set {here} as a whole"
    raise SpecError(
        InputProblem(f"{here} is {shown_value(target)}, and has no {name!r} inside", fix, origin)
    )


def read_text(name: str, most_bytes: int = MAX_BYTES) -> str:
    """Return the text of a file of at most `most_bytes`; one that cannot be read: `SpecError`."""
    path = Path(name)
    if path.is_dir():
        files = sorted(p.name for p in path.iterdir() if p.suffix in (".yaml", ".yml"))
        fix = "name one of its files: " + ", ".join(files[:8]) if files else "name a YAML file"
        raise SpecError(InputProblem("is a directory, not a file", fix, name))
    try:
        with open(path, "rb") as stream:
            raw = stream.read(most_bytes + 1)
    except FileNotFoundError:
        raise SpecError(InputProblem("no such file", _missing_file_fix(path), name)) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(InputProblem(f"cannot be read: {reason}", "", name)) from None
    if len(raw) > most_bytes:
        message = f"is larger than {most_bytes // 1_000_000} MB, too large for a specification"
        raise SpecError(InputProblem(message, "is it the right file?", name))
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        utf16 = raw[:2] in (b"\xff\xfe", b"\xfe\xff")
        message = "is UTF-16, not UTF-8" if utf16 else "is not UTF-8 text"
        raise SpecError(InputProblem(message, "save it as UTF-8", name, line)) from None


MAX_DIGITS = 1_000
"""Most digits in a row: no number of any format has as many, and Python reads no more than 4,300.
"""


def refuse_long_numbers(text: str, file: str = "") -> None:
    """Raise `SpecError` with the line for a text with more digits in a row than any number has."""
    for match in re.finditer(r"\d+", text):
        if match.end() - match.start() > MAX_DIGITS:
            line = text.count("\n", 0, match.start()) + 1
            message = f"a number of {match.end() - match.start():,} digits"
            raise SpecError(InputProblem(message, "is it meant?", file, line))


def _missing_file_fix(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"there is no folder {str(folder)!r} either"
    names = sorted(p.name for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
    close = close_names(path.name, names)
    if not close and not path.suffix:
        close = [name for name in names if Path(name).stem == path.name]
    return "did you mean " + " or ".join(str(folder / n) for n in close) + "?" if close else ""


def _compose(text: str, file: str) -> yaml.Node | None:
    try:
        loader = _Loader(text)
        return loader.get_single_node()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"has a control character (code {error.character!r})"
        raise SpecError(InputProblem(message, "remove it", file, line)) from None
    except yaml.MarkedYAMLError as error:
        raise SpecError(_syntax_problem(error, text, file)) from None
    except RecursionError:
        raise SpecError(InputProblem("is nested too deeply", "", file)) from None


def _syntax_problem(error: yaml.MarkedYAMLError, text: str, file: str) -> InputProblem:
    """Return a YAML error in our words, where we know better words."""
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
    problem, fix = str(error.problem), "check indentation, colons, brackets and quotes near here"
    at_tab = mark is not None and mark.index < len(text) and text[mark.index] == "\t"
    if at_tab or "'\\t'" in problem:
        problem, fix = "a tab, where YAML allows only spaces", "indent with spaces"
    elif "expected a single document" in str(error.context):
        problem, fix = "a second document begins here (`---`)", "keep one document per file"
    elif "mapping values are not allowed" in problem:
        problem = "a second ': ' in one line, or a line indented too far"
        fix = "put one `key: value` on a line; quote text that contains ': '"
    elif "expected <block end>" in problem:
        problem = "this line does not fit the lines above it (a list item beside keys, or indent)"
        fix = "give the keys of one block the same indentation"
    elif "undefined alias" in problem:
        fix = "a value that begins with * must be quoted"
    return InputProblem(f"not valid YAML: {problem}", fix, file, line, column)


class _Builder:
    """Turns nodes into plain data and notes the marks; one per document."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.key_marks: dict[KeyPath, tuple[int, int]] = {}
        self.value_marks: dict[KeyPath, tuple[int, int]] = {}
        self._n_nodes = 0

    def build(self, node: yaml.Node, path: KeyPath, depth: int) -> Any:
        self._n_nodes += 1
        if self._n_nodes > MAX_NODES:
            raise self._error(
                node,
                path,
                f"the document has more than {MAX_NODES:,} values",
                "aliases (*name) repeat too much",
            )
        if depth > MAX_DEPTH:
            raise self._error(node, path, f"is nested deeper than {MAX_DEPTH} levels", "")
        self.value_marks[path] = _mark(node)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            for i, item in enumerate(node.value):
                self.key_marks[*path, i] = _mark(item)
            return [self.build(item, (*path, i), depth + 1) for i, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        raise self._error(node, path, f"the tag {_tag(node)} is not supported", "remove it")

    def _mapping(self, node: yaml.MappingNode, path: KeyPath, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _TAG + "str":
                shown = key if isinstance(key, str) and key else "this key"
                raise self._error(key_node, path, f"{shown} is not a text key", "quote it")
            if key == "<<":
                raise self._error(
                    key_node, path, "merge keys (<<) are not supported", "write the keys out"
                )
            if key in result:
                line = self.key_marks[*path, key][0]
                raise self._error(
                    key_node,
                    (*path, key),
                    f"the key is already on line {line}",
                    "remove one of the two",
                )
            self.key_marks[*path, key] = _mark(key_node)
            result[key] = self.build(value_node, (*path, key), depth + 1)
        return result

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        text, kind = node.value, node.tag.removeprefix(_TAG)
        if kind == "str":
            return text
        if kind == "null":
            return None
        if kind == "bool" and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if kind in ("int", "float") and len(text) <= MAX_NUMBER_CHARACTERS:
            digits = text.replace("_", "").replace(".inf", "inf").replace(".nan", "nan")
            try:
                if kind == "int":
                    return int(digits, 16 if digits.lower().startswith("0x") else 10)
                return float(digits)
            except ValueError:
                pass
        if kind in ("int", "float", "bool"):
            raise self._error(node, path, f"{shown_value(text)} is not a number or a boolean", "")
        raise self._error(node, path, f"the tag {_tag(node)} is not supported", "remove it")

    def _error(self, node: yaml.Node, path: KeyPath, message: str, fix: str) -> SpecError:
        return SpecError(InputProblem(message, fix, self.file, *_mark(node), path_text(path)))


def _mark(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _tag(node: yaml.Node) -> str:
    return str(node.tag).replace(_TAG, "!!")
