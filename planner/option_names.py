"""Options in messages: `--pin tp=8` on the command line, `"pins": {"tp": 8}` in a request.

Who writes a message names an option by `option("pin", "tp=8")`, and a command that tells more by
`command("catalog list")`. The errors of `planner.errors` make a `Said` of such a text: a plain
text with the words of the command line, which can also be said with the names that another
interface has for them.
"""

import json
import re
from collections.abc import Mapping

_BEGIN, _END = "\ue000", "\ue001"
_NAMED = re.compile(f"{_BEGIN}([a-z-]+)(?: ([^{_BEGIN}{_END}]*))?{_END}", re.DOTALL)

REQUEST_FIELDS: Mapping[str, str] = {
    **{
        name: name
        for name in (
            "only",
            "max",
            "set",
            "top",
            "framework",
            "stack",
            "pool",
            "allow",
            "objective",
            "within",
            "deadline",
            "pareto",
            "calibration",
            "reference",
            "from",
            "to",
            "points",
            "over",
            "scaling",
            "via",
            "lost",
            "gained",
            "hosts",
            "launcher",
            "for",
            "term",
            "model",
            "version",
            "env",
        )
    },
    "pin": "pins",
    "step-limit": "step_limit_s",
    "time-limit": "time_limit_s",
    "point-limit": "point_limit_s",
}
"""Fields of a service's requests by the options of the command line that say the same."""
SWEEP_FIELDS: Mapping[str, str] = {
    **{
        name: name
        for name in (
            "only",
            "max",
            "set",
            "framework",
            "stack",
            "pool",
            "allow",
            "objective",
            "within",
            "deadline",
            "vary",
            "design",
            "samples",
            "seed",
            "where",
            "let",
            "pin",
            "top",
            "pareto",
        )
    },
    "step-limit": "step_limit_s",
    "time-limit": "time_limit_s",
    "point-limit": "point_limit_s",
}
"""Keys of a sweep's `spec`, its section `search` included, by the same options."""
CALLS: Mapping[str, str] = {
    "catalog list": "GET /v1/catalogue",
    "rule": "GET /v1/rules",
}
"""Calls of a service that say what commands do; `rule TP002` is that of `rule` with the code."""
_COMMAND = "planner"
_MAPPINGS = ("pin", "set", "max", "only", "env", "vary", "let")
_LISTS = ("allow", "pareto", "launcher", "for", "where")


def option(name: str, value: str = "") -> str:
    """Return an option for a message of an error, as the command line writes its value.

    `name` is without its dashes. The text is for `planner.errors` alone, which reads it.
    """
    return f"{_BEGIN}{name.removeprefix('--')}{f' {value}' if value else ''}{_END}"


def command(words: str) -> str:
    """Return a command for a message of an error: one of `CALLS`, `rule TP002`."""
    return option(_COMMAND, words)


def given_as(where: str, value: str = "") -> str:
    """Return an option where `where` is one (`--pin`), else a section of a file as it is named."""
    if where.startswith("--"):
        return option(where, value)
    return f"{where} {value}" if value else where


class Said(str):
    """A text in the words of the command line, which knows where it names options."""

    __slots__ = ("_parts",)
    _parts: tuple[str | tuple[str, str], ...]

    def __new__(cls, parts: tuple[str | tuple[str, str], ...]) -> "Said":
        """Join texts and options, the latter as name and value."""
        result = super().__new__(
            cls, "".join(x if isinstance(x, str) else _flag(*x) for x in parts)
        )
        result._parts = parts
        return result

    def __getnewargs__(self) -> tuple[tuple[str | tuple[str, str], ...]]:  # type: ignore[override]
        """Return what makes a copy."""
        return (self._parts,)

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options, in the order of the text."""
        return tuple(x[0] for x in self._parts if not isinstance(x, str) and x[0] != _COMMAND)

    def named(self, fields: Mapping[str, str]) -> str:
        """Return the text with fields of JSON in the place of options; others stay."""
        return "".join(
            x
            if isinstance(x, str)
            else _call(x[1])
            if x[0] == _COMMAND
            else _field(fields[x[0]], *x)
            if x[0] in fields
            else _flag(*x)
            for x in self._parts
        )


def said(text: str) -> str:
    """Return a text as `Said` where it names options, as it is where it names none.

    >>> text = said(f"{option('pin')} tp twice; such as {option('pin', 'tp=8')}")
    >>> text
    '--pin tp twice; such as --pin tp=8'
    >>> named(text, REQUEST_FIELDS)
    'pins tp twice; such as "pins": {"tp": 8}'
    """
    if isinstance(text, Said) or _BEGIN not in text:
        return text
    parts: list[str | tuple[str, str]] = []
    end = 0
    for found in _NAMED.finditer(text):
        parts += [text[end : found.start()], (found[1], found[2] or "")]
        end = found.end()
    return Said((*parts, text[end:]))


def named(text: str, fields: Mapping[str, str]) -> str:
    """Return a text with fields in the place of the options that it names."""
    return text.named(fields) if isinstance(text, Said) else text


def _call(words: str) -> str:
    """Return the call of a service that says what a command does."""
    name = next(name for name in CALLS if f"{words} ".startswith(f"{name} "))
    code = words.removeprefix(name).strip()
    return f"{CALLS[name]}?code={code}" if code else CALLS[name]


def _flag(name: str, value: str) -> str:
    if name == _COMMAND:
        return f"{name} {value}"
    return f"--{name} {value}" if value else f"--{name}"


def _field(field: str, name: str, value: str) -> str:
    """Return a field, with its value as JSON where one is given."""
    if not value:
        return field
    if value.startswith("'") and value.endswith("'"):
        value = value[1:-1]  # of a shell
    if name in _MAPPINGS:
        key, equals, text = value.partition("=")
        if not equals:
            return f"{field} {value}"
        several = [_scalar(x) for x in text.split(",")]
        inner = f"[{', '.join(several)}]" if name in ("only", "vary") else _scalar(text)
        return f'"{field}": {{{json.dumps(key, ensure_ascii=False)}: {inner}}}'
    if name in _LISTS:
        items = ", ".join(_scalar(x.strip()) for x in value.split(","))
        return f'"{field}": [{items}]'
    return f'"{field}": {_scalar(value)}'


def _scalar(text: str) -> str:
    """Return a value as JSON: a number or a switch as such, all else as a text."""
    text = text.strip("'")
    if text in ("true", "false") or re.fullmatch(r"-?\d+(\.\d+)?(e[+-]?\d+)?", text):
        return text
    return json.dumps(text, ensure_ascii=False)
