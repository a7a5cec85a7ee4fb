"""Options as messages name them: `--pin tp=8`, `"pins": {"tp": 8}` in a request of a service.

Who writes a message joins texts and references: `option("pin", "tp=8") + ": ..."`, and for a
command that tells more `command("catalog list")`. The result is a `Message`: a text with the names
of the command line, which each interface renders with its own.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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
KEYWORDS: Mapping[str, str] = {
    **REQUEST_FIELDS,
    "max": "at_most",
    "set": "overrides",
    "from": "least",
    "to": "most",
}
"""Arguments of the library by the same options."""
CALLS: Mapping[str, str] = {
    "catalog list": "GET /v1/catalogue",
    "rule": "GET /v1/rules",
}
"""Calls of a service that say what commands do; `rule TP002` is that of `rule` with the code."""
_MAPPINGS = ("pin", "set", "max", "only", "env", "vary", "let")
_LISTS = ("allow", "pareto", "launcher", "for", "where")


@dataclass(frozen=True, slots=True)
class OptionRef:
    """An option that a message names, and the value that it shows it with."""

    name: str
    """Without its dashes."""
    value: str = ""
    """As the command line writes it."""

    def on_command_line(self) -> str:
        """Return the option as it is typed: `--pin tp=8`."""
        return f"--{self.name} {self.value}" if self.value else f"--{self.name}"

    def in_request(self, fields: Mapping[str, str]) -> str:
        """Return the field of a request that says the same; the option where none does.

        >>> OptionRef("pin", "tp=8").in_request(REQUEST_FIELDS)
        '"pins": {"tp": 8}'
        """
        if self.name not in fields:
            return self.on_command_line()
        field, value = fields[self.name], self.value
        if not value:
            return field
        if value.startswith("'") and value.endswith("'"):
            value = value[1:-1]  # of a shell
        if self.name in _MAPPINGS:
            key, equals, text = value.partition("=")
            if not equals:
                return f"{field} {value}"
            items = [_scalar(x) for x in text.split(",")]
            inner = f"[{', '.join(items)}]" if self.name in ("only", "vary") else _scalar(text)
            return f'"{field}": {{{json.dumps(key, ensure_ascii=False)}: {inner}}}'
        if self.name in _LISTS:
            return f'"{field}": [{", ".join(_scalar(x.strip()) for x in value.split(","))}]'
        return f'"{field}": {_scalar(value)}'


@dataclass(frozen=True, slots=True)
class CommandRef:
    """A command that a message names: one of `CALLS`, `rule TP002`."""

    text: str

    def on_command_line(self) -> str:
        """Return the command as it is typed."""
        return f"planner {self.text}"

    def in_request(self, fields: Mapping[str, str]) -> str:
        """Return the call of a service that says what the command does."""
        name = next(name for name in CALLS if f"{self.text} ".startswith(f"{name} "))
        code = self.text.removeprefix(name).strip()
        return f"{CALLS[name]}?code={code}" if code else CALLS[name]


Part = str | OptionRef | CommandRef


class Message(str):
    """A text with the names of the command line, which knows where it names options.

    Joined with `+` it stays one; inside an f-string only its text is left.

    >>> message = option("pin") + " tp twice; such as " + option("pin", "tp=8")
    >>> message
    '--pin tp twice; such as --pin tp=8'
    >>> message.in_request(REQUEST_FIELDS)
    'pins tp twice; such as "pins": {"tp": 8}'
    """

    __slots__ = ("parts",)
    parts: tuple[Part, ...]

    def __new__(cls, *parts: Part) -> "Message":
        """Join texts and references."""
        message = super().__new__(
            cls, "".join(x if isinstance(x, str) else x.on_command_line() for x in parts)
        )
        message.parts = parts
        return message

    def __getnewargs__(self) -> tuple[Part, ...]:  # type: ignore[override]
        """Return what makes a copy."""
        return self.parts

    def __add__(self, other: str) -> "Message":
        """Return the text followed by another."""
        return Message(*self.parts, *_parts(other))

    def __radd__(self, other: str) -> "Message":
        """Return the text after a plain one."""
        return Message(other, *self.parts)

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options, in the order of the text."""
        return tuple(x.name for x in self.parts if isinstance(x, OptionRef))

    def in_request(self, fields: Mapping[str, str]) -> str:
        """Return the text with fields of JSON in the place of options; others stay."""
        return "".join(x if isinstance(x, str) else x.in_request(fields) for x in self.parts)


def option(name: str, value: str = "") -> Message:
    """Return an option for a message, as the command line writes its value."""
    return Message(OptionRef(name.removeprefix("--"), value))


def command(text: str) -> Message:
    """Return a command for a message: one of `CALLS`, `rule TP002`."""
    return Message(CommandRef(text))


def option_or_section(place: str, value: str = "") -> str:
    """Return an option where `place` is one (`--pin`), else a section of a file by its name."""
    if place.startswith("--"):
        return option(place, value)
    return f"{place} {value}" if value else place


def joined(separator: str, texts: Iterable[str]) -> Message:
    """Return texts and messages in one, parted by a separator.

    >>> joined(" or ", [option("pin"), option("only")]).in_request(REQUEST_FIELDS)
    'pins or only'
    """
    parts: list[Part] = []
    for text in texts:
        parts += [separator] if parts else []
        parts += _parts(text)
    return Message(*parts)


def in_request(text: str, fields: Mapping[str, str]) -> str:
    """Return a text with fields in the place of the options that it names."""
    return text.in_request(fields) if isinstance(text, Message) else text


def _parts(text: str) -> tuple[Part, ...]:
    return text.parts if isinstance(text, Message) else (text,)


def _scalar(text: str) -> str:
    """Return a value as JSON: a number or a switch as such, all else as a text."""
    text = text.strip("'")
    if text in ("true", "false") or re.fullmatch(r"-?\d+(\.\d+)?(e[+-]?\d+)?", text):
        return text
    return json.dumps(text, ensure_ascii=False)
