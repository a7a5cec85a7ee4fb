"""What a calculator asks for: named inputs with units and ranges, read from text.

Inputs of a calculator are the fields of a frozen dataclass, declared with `count_field`,
`size_field`, ...; `read_fields` turns texts (an address, `--set key=value`) into one of them, or
into a message for each field that is wrong. A number without a unit is in the unit of its field;
others are converted: `400 Gb/s` in a field of GB/s is 50. A field may follow others: left empty it
takes its value from them (the peak of the chosen device, the width of the chosen model).
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, TypeVar

from planner import units
from planner.errors import BadValue
from planner.specs.yaml.document import close_names

Follow = Callable[[Mapping[str, Any]], "float | None"]
"""The value of a field from those read before it; None where they do not say."""
MAX_CHARACTERS = 64
"""Longest text that is looked at."""

MOST_NAMED = 8
"""Names that a message lists."""

_PARSERS: dict[str, Callable[[object], float]] = {
    "size": units.parse_size,
    "bandwidth": units.parse_bandwidth,
    "time": units.parse_time,
    "rate": units.parse_rate,
}
_UNITS = {
    "B": 1.0,
    "kB": 1e3,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "GB/s": 1e9,
    "TB/s": 1e12,
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "TFLOP/s": 1e12,
    "billion": 1e9,
    "million": 1e6,
    "": 1.0,
    "%": 0.01,
    "tokens": 1.0,
}
_THOUSANDS = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?", re.ASCII)
_NICE = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)


class BadInput(Exception):
    """An input that does not go with the others."""

    def __init__(self, name: str, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.name = name
        self.message = f"{message}: {fix}" if fix else message


@dataclass(frozen=True, slots=True)
class InputRange:
    """Smallest and largest value of an input, in its unit."""

    lowest: float
    highest: float
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a calculator."""

    label: str
    kind: str
    """`count` (whole), `number`, `size`, `bandwidth`, `time`, `rate`, `percent` or `choice`."""
    span: InputRange
    """Its unit is that of a number without one, and of the box that shows it."""
    default: Any = None
    """Base units; None where it follows others."""
    choices: tuple[tuple[str, str], ...] = ()
    """(value, what it is called) of a choice."""
    note: str = ""
    follow: Follow | None = None
    follows: str = ""
    """What an empty field takes its value from, in words."""
    group: str = ""
    """Heading of the fieldset that it stands in."""

    @property
    def unit(self) -> str:
        """Unit of a number without one."""
        return self.span.unit

    @property
    def factor(self) -> float:
        """Base units in one unit of the field."""
        return _UNITS[self.unit]

    @property
    def lowest(self) -> float:
        """Smallest value, base units (bytes, bytes/s, s, FLOP/s)."""
        return self.span.lowest * self.factor

    @property
    def highest(self) -> float:
        """Largest value, base units."""
        return self.span.highest * self.factor

    def text(self, value: Any) -> str:
        """Return a value as the field shows it: a number in its unit, no unit behind it."""
        if self.kind == "choice":
            return str(value)
        shown = value / self.factor
        return str(int(shown)) if shown == int(shown) and abs(shown) < 1e15 else f"{shown:.7g}"

    def steps(self) -> list[str]:
        """Return the places of a slider from least to most, as the field writes them."""
        if self.kind == "choice":
            return []
        if self.kind == "percent":
            low, high = self.lowest / 0.01, self.highest / 0.01
            stride = 5 if high - low > 40 else 1
            inner = [float(x) for x in range(0, int(high) + 1, stride) if low < x < high]
            return [f"{x:.7g}" for x in (low, *inner, high)]
        low, high = self.lowest / self.factor, self.highest / self.factor
        start = math.floor(math.log10(low)) if low > 0 else -3
        if self.kind == "count":
            nice = [float(base * 2**k) for k in range(41) for base in (1, 1.5) if k or base == 1]
            nice = sorted({x for x in nice if x == int(x)})
        else:
            decades = range(start, math.ceil(math.log10(high)) + 1)
            nice = [step * 10.0**k for k in decades for step in _NICE]
        inner = [x for x in nice if low < x < high]
        return list(dict.fromkeys(f"{x:.7g}" for x in (low, *inner, high)))


def _declared(spec: Input) -> Any:
    default = spec.default if spec.default is not None else 0
    return field(default=default, metadata={"input": spec})


def count_field(
    label: str,
    default: int | Follow,
    span: InputRange,
    *,
    note: str = "",
    follows: str = "",
    group: str = "",
) -> Any:
    """Declare a whole number."""
    return _quantity(Input(label, "count", span, note=note, follows=follows, group=group), default)


def number_field(
    label: str,
    default: float | Follow,
    span: InputRange,
    *,
    note: str = "",
    follows: str = "",
    group: str = "",
) -> Any:
    """Declare a plain number."""
    return _quantity(
        Input(label, "number", span, note=note, follows=follows, group=group), default
    )


def percent_field(
    label: str,
    default: float,
    span: InputRange = InputRange(1, 100, "%"),
    *,
    note: str = "",
    group: str = "",
) -> Any:
    """Declare a share in per cent; its value is a fraction."""
    return _quantity(Input(label, "percent", span, note=note, group=group), default)


def size_field(
    label: str,
    default: float | Follow,
    span: InputRange,
    *,
    note: str = "",
    follows: str = "",
    group: str = "",
) -> Any:
    """Declare a number of bytes."""
    return _quantity(Input(label, "size", span, note=note, follows=follows, group=group), default)


def bandwidth(
    label: str,
    default: float | Follow,
    *,
    note: str = "one way, per device",
    follows: str = "",
    group: str = "",
) -> Any:
    """Declare a bandwidth in GB/s, from 0.01 to 100,000."""
    span = InputRange(0.01, 1e5, "GB/s")
    spec = Input(label, "bandwidth", span, note=note, follows=follows, group=group)
    return _quantity(spec, default)


def time(
    label: str,
    default: float | Follow,
    span: InputRange,
    *,
    note: str = "",
    follows: str = "",
    group: str = "",
) -> Any:
    """Declare a time."""
    return _quantity(Input(label, "time", span, note=note, follows=follows, group=group), default)


def rate(
    label: str, default: float | Follow, *, note: str = "", follows: str = "", group: str = ""
) -> Any:
    """Declare a compute rate in TFLOP/s, from 0.1 to 1,000,000."""
    span = InputRange(0.1, 1e6, "TFLOP/s")
    return _quantity(Input(label, "rate", span, note=note, follows=follows, group=group), default)


def choice(
    label: str,
    default: str,
    choices: tuple[tuple[str, str], ...],
    *,
    note: str = "",
    group: str = "",
) -> Any:
    """Declare a choice of names."""
    spec = Input(label, "choice", InputRange(0, 0), default=default, choices=choices, note=note)
    return _declared(replace(spec, group=group))


def _quantity(spec: Input, default: float | Follow) -> Any:
    """Declare an input that takes its value from a number in its unit, or from others."""
    if callable(default):
        return _declared(replace(spec, follow=default))
    value = default * spec.factor
    return _declared(replace(spec, default=round(value) if spec.kind == "count" else value))


def calculator_inputs(kind: type) -> dict[str, Input]:
    """Return the inputs of a calculator by name, in their order."""
    return {x.name: x.metadata["input"] for x in fields(kind) if "input" in x.metadata}


T = TypeVar("T")


@dataclass(frozen=True)
class Read(Generic[T]):
    """What came out of a set of texts."""

    values: T | None
    """The inputs; None where one of them is wrong."""
    problems: dict[str, str]
    """By name: what is wrong with an input, and what to write."""
    texts: dict[str, str]
    """By name: what the field shows, as it was given; empty where the field follows others."""
    resolved: dict[str, Any]
    """By name: the value of every input that has one, base units."""


def read_fields(kind: type[T], inputs: Mapping[str, str]) -> Read[T]:
    """Return the inputs of a calculator from texts by name.

    Never raises for what stands in them. A name that is none of the inputs is a problem of its
    own. `check` of the dataclass, where it has one, raises `BadInput` for inputs that do not go
    together.
    """
    specs = calculator_inputs(kind)
    problems: dict[str, str] = {}
    resolved: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for name in inputs:
        if name not in specs:
            near = close_names(name, list(specs))
            hint = f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join(specs)}"
            problems[shortened_title(name)] = f"no such input; {hint}"
    for name, spec in specs.items():
        text = str(inputs.get(name, "")).strip()
        texts[name] = shortened_title(text) if text else ""
        try:
            value = _value(spec, text, resolved)
        except BadValue as wrong:
            problems[name] = str(wrong)
            continue
        except KeyError:  # it follows a field that is wrong itself
            continue
        if spec.follow is None and not text:
            texts[name] = spec.text(value)
        resolved[name] = value
    if problems:
        return Read(None, problems, texts, resolved)
    result = kind(**resolved)
    try:
        if hasattr(result, "check"):
            result.check()
    except BadInput as wrong:
        return Read(None, {wrong.name: wrong.message}, texts, resolved)
    return Read(result, {}, texts, resolved)


def shortened_title(text: str) -> str:
    """Return text from outside on one line, cut at `MAX_CHARACTERS`."""
    line = "".join(c if c.isprintable() else " " for c in text)
    return line if len(line) <= MAX_CHARACTERS else f"{line[: MAX_CHARACTERS - 3]}..."


def _value(spec: Input, text: str, resolved: Mapping[str, Any]) -> Any:
    """Return the value of one input; raises `BadValue`."""
    if not text:
        if spec.follow is None:
            return spec.default
        result = spec.follow(resolved)
        if result is None:
            raise BadValue(f"nothing to take it from: write a number of {spec.unit or 'it'}")
        return round(result) if spec.kind == "count" else result
    if spec.kind == "choice":
        names = [name for name, _ in spec.choices]
        if text not in names:
            near = close_names(text, names)
            some = ", ".join(names[:MOST_NAMED]) + (", ..." if len(names) > MOST_NAMED else "")
            fix = f"did you mean {' or '.join(near)}?" if near else f"one of {some}"
            raise BadValue(f"{units.shown_value(text)} is not one of them", fix)
        return text
    value = _parsed(spec, text)
    if not spec.lowest * (1 - 1e-9) <= value <= spec.highest * (1 + 1e-9):
        low, high = _bounds(spec)
        raise BadValue(f"{shortened_title(text)} is out of range", f"from {low} to {high}")
    if spec.kind == "count":
        if value != round(value):
            raise BadValue(
                f"{shortened_title(text)} is not whole",
                f"{math.floor(value):,} or {math.ceil(value):,}",
            )
        return round(value)
    return value


def _bounds(spec: Input) -> tuple[str, str]:
    unit = f" {spec.unit}" if spec.unit else ""
    low, high = (x / spec.factor for x in (spec.lowest, spec.highest))
    return f"{low:,.10g}".rstrip(), f"{high:,.10g}{unit}"


def _parsed(spec: Input, text: str) -> float:
    """Return what a text says, base units; a bare number is in the unit of the field."""
    if spec.kind == "percent":
        text = text.removesuffix("%").strip()
    bare = _bare(text)
    if bare is not None:
        return bare * spec.factor
    if spec.kind not in ("percent", "count", "number"):
        return _PARSERS[spec.kind](text)
    try:
        if spec.kind != "percent":
            return units.parse_count(text)  # 7B, 4k
    except BadValue:
        pass
    example = spec.text(spec.default if spec.default is not None else spec.lowest)
    unit = f" {spec.unit}" if spec.unit else ""
    fix = "write a point for decimals" if "," in text else f"write one such as {example}{unit}"
    raise BadValue(f"{units.shown_value(text)} is not a number", fix)


def _bare(text: str) -> float | None:
    """Return a number without a unit; None where the text is more than that."""
    if len(text) > MAX_CHARACTERS:
        return None
    try:
        result = float(text.replace(",", "") if _THOUSANDS.fullmatch(text) else text)
    except ValueError:
        return None
    if not math.isfinite(result):
        raise BadValue(f"{units.shown_value(text)} is not a finite number")
    return result
