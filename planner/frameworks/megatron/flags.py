"""Words of a Megatron-LM command line to settings, as the framework's own parser reads them.

The table of flags (`planner/data/megatron_flags.json`) was asked of the parser of one release by
scripts/megatron_flags. Settings stand under argparse's dest names, as in Megatron-LM's own code.
"""

import ast
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

from planner.errors import UsageError
from planner.frameworks.shell.marks import unmarked, unresolved
from planner.option_names import option
from planner.specs.yaml.document import close_names
from searches.frameworks.megatron.settings import default_at


@dataclass(frozen=True, slots=True)
class Flag:
    """One option of the parser."""

    flags: tuple[str, ...]
    dest: str
    kind: str
    """`int`, `float`, `str`, `bool`, `pattern`, or without a value: `on`, `off`, `on-off`."""
    nargs: str | int | None = None
    """`+`, `*` or a number where it takes several values."""
    default: Any = None
    choices: tuple[Any, ...] = ()

    @property
    def is_switch(self) -> bool:
        """Whether the flag stands alone."""
        return self.kind in ("on", "off", "on-off")


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a command line sets."""

    settings: dict[str, Any]
    """Values by dest, only of flags that are given."""
    written: dict[str, str]
    """The flag as written, with its value, by dest."""
    unknown: tuple[str, ...]
    """Flags that this release does not have, as written."""
    faults: tuple[str, ...]
    """Values that the parser refuses, in words."""
    open_values: dict[str, tuple[str, ...]]
    """Names that a value depends on and the script does not say, by dest."""
    odd_words: dict[str, str] = field(default_factory=dict)
    """Values outside the choices of their flag, in words, by dest; they stand in the settings."""
    open_words: tuple[str, ...] = ()
    """Names of words that the script does not say and that may hold flags."""


@cache
def flag_table() -> tuple[str, Mapping[str, Flag], Mapping[str, Flag]]:
    """Return the release of the table, its flags by option string and by dest."""
    data = json.loads(
        (files("planner") / "data" / "megatron_flags.json").read_text(encoding="utf-8")
    )
    by_name, by_dest = flags_of_rows(data["flags"])
    return data["release"], by_name, by_dest


def flags_of_rows(
    rows: Iterable[Mapping[str, Any]],
) -> tuple[Mapping[str, Flag], Mapping[str, Flag]]:
    """Return the flags of a table by option string and by dest."""
    results = [
        Flag(
            flags=tuple(entry["flags"]),
            dest=entry["dest"],
            kind=entry["kind"],
            nargs=entry.get("nargs"),
            default=entry.get("default"),
            choices=tuple(entry.get("choices", ())),
        )
        for entry in rows
    ]
    by_name = {name: flag for flag in results for name in flag.flags}
    by_dest: dict[str, Flag] = {}
    for flag in results:
        by_dest.setdefault(flag.dest, flag)
    return by_name, by_dest


def default_of(dest: str, release: str = "") -> Any:
    """Return the parser's default of a setting in a release, the newest where none is named.

    None where the table does not know the setting.
    """
    flag = flag_table()[2].get(dest)
    return default_at(dest, release, flag.default) if flag else None


def parse_flags(tokens: Sequence[str], by_name: Mapping[str, Flag] | None = None) -> Parsed:
    """Read the words after the training script, by Megatron-LM's flags or those of `by_name`.

    Abbreviations are not taken, as in Megatron-LM. A word that is nothing but a variable that the
    script does not set is dropped, as an empty one is in bash.
    """
    by_name = flag_table()[1] if by_name is None else by_name
    settings: dict[str, Any] = {}
    written: dict[str, str] = {}
    unknown: list[str] = []
    faults: list[str] = []
    open_values: dict[str, tuple[str, ...]] = {}
    odd_words: dict[str, str] = {}
    open_words: dict[str, None] = {}
    i = 0
    while i < len(tokens):
        word = tokens[i]
        i += 1
        name, equals, inline = word.partition("=")
        flag = by_name.get(name)
        if flag is None:
            if not _is_flag(word):
                open_words |= dict.fromkeys(unresolved(word))
                if word.strip() and not unresolved(word):
                    faults.append(f"{unmarked(word)!r} belongs to no flag")
                continue
            unknown.append(unmarked(name))
            while i < len(tokens) and not _is_flag(tokens[i]):
                i += 1
            continue
        if flag.is_switch:
            settings[flag.dest] = _switched(flag, name)
            written[flag.dest] = name
            if equals:
                faults.append(f"{name} takes no value")
            continue
        values = [inline] if equals else []
        while not equals and i < len(tokens) and not _is_flag(tokens[i]):
            if (flag.nargs is None and values) or len(values) == flag.nargs:
                break
            values.append(tokens[i])
            i += 1
        fault = _count_fault(flag, name, values)
        if fault:
            faults.append(fault)
            continue
        written[flag.dest] = " ".join([name, *(unmarked(v) for v in values)])
        names = tuple(n for value in values for n in unresolved(value))
        if names:
            open_values[flag.dest] = names
            settings[flag.dest] = " ".join(unmarked(v) for v in values)
            continue
        open_values.pop(flag.dest, None)
        try:
            read = [_value(flag, value) for value in values]
        except ValueError as error:
            faults.append(f"{name}: {error}")
            continue
        settings[flag.dest] = read[0] if flag.nargs is None else read
        odd = [value for value in read if flag.choices and value not in flag.choices]
        if odd:
            odd_words[flag.dest] = f"{name}: {odd[0]!r} is not one of {_listed(flag.choices)}"
    unknown_flags = tuple(dict.fromkeys(unknown))
    return Parsed(
        settings, written, unknown_flags, tuple(faults), open_values, odd_words, tuple(open_words)
    )


def set_flags(
    parsed: Parsed,
    changes: Iterable[tuple[str, object]],
    tables: tuple[Mapping[str, Flag], Mapping[str, Flag]] | None = None,
) -> Parsed:
    """Return the settings with some set by hand: `tensor_model_parallel_size=4`, or the flag.

    None takes a setting away. `tables` are those of another parser, as of `flags_of_rows`.
    """
    by_name, by_dest = flag_table()[1:] if tables is None else tables
    settings, written = dict(parsed.settings), dict(parsed.written)
    open_values, odd_words = dict(parsed.open_values), dict(parsed.odd_words)
    for path, change in changes:
        key, text = path.strip().lstrip("-"), str(change).strip()
        flag = by_dest.get(key.replace("-", "_")) or by_name.get(f"--{key}")
        if flag is None:
            flag_names = [*by_dest, "model.<field>", "training.<field>", "pools.0.<field>"]
            close = close_names(key.replace("-", "_"), flag_names, 1)
            guess = f"did you mean {close[0]}? " if close else ""
            raise UsageError(
                option("set") + f" {path}: Megatron-LM has no such flag",
                f"{guess}a flag (tensor_model_parallel_size), or model.layers, pools.0.nodes",
            )
        open_values.pop(flag.dest, None)
        odd_words.pop(flag.dest, None)
        if change is None:
            settings.pop(flag.dest, None)
            written.pop(flag.dest, None)
            continue
        written[flag.dest] = option("set", f"{path}={text}")
        if flag.is_switch:
            if text.lower() not in ("true", "false"):
                message = option("set") + f" {path}: true or false, not {text!r}"
                raise UsageError(message, f"{path}=true")
            settings[flag.dest] = text.lower() == "true"
            continue
        try:
            read = [_value(flag, part) for part in (text.split() if flag.nargs else [text])]
            if any(flag.choices and value not in flag.choices for value in read):
                raise ValueError(f"{text!r} is not one of {_listed(flag.choices)}")
        except ValueError as error:
            message = option("set") + f" {path}: {error}"
            raise UsageError(message, f"for example {path}=1") from None
        settings[flag.dest] = read if flag.nargs else read[0]
    return replace(
        parsed, settings=settings, written=written, open_values=open_values, odd_words=odd_words
    )


def _is_flag(word: str) -> bool:
    """Tell whether a word begins an option: not a negative number, not an empty word."""
    return bool(re.match(r"--?[A-Za-z]", word))


def _switched(flag: Flag, name: str) -> bool:
    if flag.kind == "on-off":
        return not name.startswith("--no-")
    return flag.kind == "on"


def _count_fault(flag: Flag, name: str, values: Sequence[str]) -> str:
    """Return what is wrong with the number of values, "" when it is right."""
    n = len(values)
    if flag.nargs is None and n != 1:
        return f"{name} needs a value"
    if flag.nargs == "+" and n == 0:
        return f"{name} needs at least one value"
    if isinstance(flag.nargs, int) and n != flag.nargs:
        return f"{name} needs {flag.nargs} values, not {n}"
    return ""


def _value(flag: Flag, text: str) -> Any:
    """Return one value as argparse would; `ValueError` says why it would not."""
    if flag.kind == "int":
        try:
            value: Any = int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
    elif flag.kind == "float":
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a number") from None
    elif flag.kind == "bool":
        value = bool(text)
    elif flag.kind == "pattern":
        value = pattern_value(text)
    else:
        value = text
    return value


_PATTERN = re.compile(r"[\d,+*\[\]()]*\[[\d,+*\[\]()]*")
"""A Python expression of lists of numbers, which Megatron-LM evaluates."""
MAX_LENGTH = 10_000
"""Longest pattern of layers."""


def pattern_value(text: str) -> int | list[int]:
    """Return a pattern of layers as Megatron-LM's parser stores it: a number, or one a layer.

    Raises `ValueError` for what is neither.

    >>> pattern_value("4"), pattern_value("([0]*3+[1]*2)")
    (4, [0, 0, 0, 1, 1])
    """
    message = text.strip("'\"")
    if re.fullmatch(r"-?\d+", message):
        return int(message)
    try:
        if _PATTERN.fullmatch(message):
            value = _evaluated(ast.parse(message, mode="eval").body)
            if isinstance(value, list) and all(isinstance(item, int) for item in value):
                return value
    except (SyntaxError, ValueError, TypeError, RecursionError):
        pass
    raise ValueError(f"{text!r} is neither a number nor a list such as ([0]*3+[1]*5)")


def _evaluated(node: ast.expr) -> Any:
    """Return a list expression of numbers, + and *: nothing is called, nothing is large."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.List):
        return [_evaluated(item) for item in node.elts]
    if isinstance(node, ast.BinOp):
        left, right = _evaluated(node.left), _evaluated(node.right)
        n = [len(x) if isinstance(x, list) else x for x in (left, right)]
        if max(n) > MAX_LENGTH or (n[0] * n[1] > MAX_LENGTH and isinstance(node.op, ast.Mult)):
            raise ValueError("too large")
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Mult):
            return left * right
    raise ValueError("not a pattern")


def _listed(choices: Sequence[Any]) -> str:
    return ", ".join(map(str, choices))
