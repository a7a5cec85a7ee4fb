"""One axis of a sweep: a field, or several that change together, and the values it takes.

Values are listed (`[32, 64, 128]`, `32,64,128`) or given as a range: `LOW..HIGH*k` multiplies,
`LOW..HIGH+k` adds, `LOW..HIGH` (`log` or `linear` behind it) is continuous, for sampled designs.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.errors import BadValue
from planner.sweeps.fields import Field, field_at, field_text
from planner.units import shown_value

MAX_VALUES = 100_000
"""Most values of one axis."""
DIGITS = 6
"""Significant digits of a sampled value."""
SCALES = ("linear", "log")
RANGE_KEYS = ("from", "to", "times", "plus", "scale")
"""Keys of a range that is written as a mapping."""
_FORMS = "write LOW..HIGH*k, LOW..HIGH+k, or LOW..HIGH (log) in a sampled design"


class BadItem(BadValue):
    """A wrong item of an axis."""

    def __init__(self, error: BadValue, place: int | None) -> None:
        super().__init__(error.message, error.hint)
        self.place = place
        """Its number in the list; None where there is no list."""


_NUMBER = r"[-+]?(?:\d[\d_]*(?:\.\d[\d_]*)?|\.\d+)(?:[eE][-+]?\d+)?"
_UNIT = r"[A-Za-zµμ][A-Za-zµμ/]*"
_RANGE = re.compile(
    rf"\s*(?P<low>{_NUMBER})\s*(?P<low_unit>{_UNIT})?\s*\.\.\s*"
    rf"(?P<high>{_NUMBER})\s*(?P<high_unit>(?!(?:log|linear)\s*$){_UNIT})?\s*"
    rf"(?:(?P<sign>[*+])\s*(?P<step>{_NUMBER})\s*(?P<step_unit>{_UNIT})?"
    rf"|(?P<scale>{'|'.join(SCALES)}))?\s*",
    re.ASCII,
)

Sets = tuple[tuple[str, object], ...]
"""Fields and the values they get."""


@dataclass(frozen=True, slots=True)
class AxisChoice:
    """One value of an axis that has a list of them."""

    value: object
    """As written, or the name of a group of fields."""
    sets: Sets


@dataclass(frozen=True, slots=True)
class Span:
    """The bounds of a continuous axis, in its own unit."""

    low: float
    high: float
    unit: str
    """As written; empty for plain numbers."""
    log: bool
    is_integer: bool

    def at(self, u: float) -> object:
        """Return the value at a share `u` (0 to 1, 1 excluded) of the span, as one would write it.

        Whole numbers from low to high are equally likely, or by the width of their logarithms.
        """
        low, high = self.low, self.high
        if self.is_integer:
            low, high = low - (0.5 if self.log else 0.0), high + (0.5 if self.log else 1.0)
        if self.log:
            x = math.exp(math.log(low) + u * (math.log(high) - math.log(low)))
        else:
            x = low + u * (high - low)
        if self.is_integer:
            n = round(x) if self.log else math.floor(x)
            return min(max(n, int(self.low)), int(self.high))
        x = min(max(float(f"{x:.{DIGITS}g}"), self.low), self.high)
        return f"{x:.15g} {self.unit}" if self.unit else x


@dataclass(frozen=True, slots=True)
class SweepAxis:
    """A field, or a named column of several fields, and what it takes."""

    name: str
    """Path of the field, or the name of the column."""
    choices: tuple[AxisChoice, ...] = ()
    span: Span | None = None
    """In place of `choices`: any value between two bounds."""
    field: Field | None = None
    """None for a column of several fields."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The fields that the axis sets."""
        if self.field is not None:
            return (self.name,)
        return tuple(dict.fromkeys(path for choice in self.choices for path, _ in choice.sets))

    @property
    def values(self) -> tuple[object, ...]:
        """The listed values as written."""
        return tuple(choice.value for choice in self.choices)

    @property
    def unit(self) -> str:
        """Base unit of the numbers in a table."""
        return self.field.unit if self.field else ""

    def base(self, value: object) -> float | int | str | bool | None:
        """Return a value as a table holds it: a number in base units, else text."""
        return self.field.base(value) if self.field else field_text(value)

    def sets(self, value: object) -> Sets:
        """Return the fields that a value sets."""
        if self.field is not None:
            return ((self.name, value),)
        return next(choice.sets for choice in self.choices if choice.value == value)

    def at(self, u: float) -> object:
        """Return the value at a share `u` (0 to 1, 1 excluded) of the axis."""
        if self.span is not None:
            return self.span.at(u)
        return self.choices[min(int(u * len(self.choices)), len(self.choices) - 1)].value

    def to_json(self) -> dict[str, Any]:
        """Return the axis for the header of a sweep."""
        out: dict[str, Any] = {
            "path": self.name,
            "column": f"in.{self.name}",
            "label": label_of(self.name),
            "unit": self.unit,
            "fields": list(self.paths),
        }
        if self.span is not None:
            span = self.span
            return out | {
                "from": self.base(_written(span.low, span)),
                "to": self.base(_written(span.high, span)),
                "scale": "log" if span.log else "linear",
                "values": [],
                "numbers": [],
            }
        if self.field is None:
            out["sets"] = [[list(pair) for pair in choice.sets] for choice in self.choices]
        return out | {
            "values": list(self.values),
            "numbers": [self.base(value) for value in self.values],
        }


_WORDS = {
    "hbm": "HBM",
    "nic": "NIC",
    "nics": "NICs",
    "pue": "PUE",
    "mtbf": "MTBF",
    "seq": "sequence",
    "len": "length",
    "ffn": "FFN",
    "kv": "KV",
    "moe": "MoE",
    "mla": "MLA",
    "mtp": "MTP",
    "params": "parameters",
}
_PLAIN_PARENTS = ("pools", "fabric", "tiers", "model", "training", "operations", "search")


def label_of(path: str) -> str:
    """Return a name for the axis of a plot.

    >>> label_of("pools.0.accelerator.hbm_bandwidth"), label_of("pools.1.nodes")
    ('accelerator HBM bandwidth', 'pool 1 nodes')
    """
    parts = path.split(".")
    labels: list[str] = []
    for i, part in enumerate(parts):
        if part.isdecimal():
            if part != "0":
                labels += [parts[i - 1].rstrip("s"), part]
        elif i == len(parts) - 1 or part not in _PLAIN_PARENTS:
            labels += [_WORDS.get(word, word) for word in part.replace("-", "_").split("_")]
    return " ".join(labels)


def _written(number: float, span: Span) -> object:
    return f"{number:.15g} {span.unit}" if span.unit else number


def field_axis(path: str, value: object) -> SweepAxis:
    """Return the axis of one field from what a sweep file or an option says of it.

    Raises `BadValue`, and `BadItem` where one item of a list is wrong.
    """
    field = field_at(path)
    if isinstance(value, Mapping) and _is_range(value):
        return _ranged(field, _range_text(value))
    items: Sequence[object] = value if isinstance(value, list) else [value]
    if not items:
        raise BadValue("has no values", "list at least one, such as [1, 2]")
    values: list[object] = []
    for place, item in enumerate(items):
        try:
            if looks_like_range(field, item):
                axis = _ranged(field, str(item))
                if axis.span is not None and len(items) == 1:
                    return axis
                if axis.span is not None:
                    raise BadValue(
                        f"{shown_value(item)} is continuous, and stands in a list", _FORMS
                    )
                values += axis.values
            else:
                field.check(item)
                values.append(item)
        except BadValue as error:
            raise BadItem(error, place if isinstance(value, list) else None) from None
    return SweepAxis(path, _choices(field, values), field=field)


def _choices(field: Field, values: Sequence[object]) -> tuple[AxisChoice, ...]:
    seen: dict[object, object] = {}
    for value in values:
        base = field.base(value)
        key = (type(base) is bool, base)
        if key in seen:
            twice = (
                shown_value(value)
                if seen[key] == value
                else f"{shown_value(seen[key])} and {shown_value(value)}"
            )
            raise BadValue(f"{twice}: the same value twice", "name every value once")
        seen[key] = value
    return tuple(AxisChoice(value, ((field.path, value),)) for value in values)


def column_axis(name: str, groups: Mapping[str, Mapping[str, object]]) -> SweepAxis:
    """Return an axis of several fields: by the name of each value, the fields that it sets."""
    choices = []
    for label, fields in groups.items():
        for path, value in fields.items():
            field_at(path).check(value)
        choices.append(AxisChoice(label, tuple(fields.items())))
    return SweepAxis(name, tuple(choices))


def _is_range(fields: Mapping[Any, Any]) -> bool:
    return "from" in fields or "to" in fields


def _range_text(fields: Mapping[Any, Any]) -> str:
    """Return a range that is written as a mapping in one line."""
    for key in fields:
        if key not in RANGE_KEYS:
            raise BadValue(
                f"unknown key {shown_value(key)}", f"keys of a range: {', '.join(RANGE_KEYS)}"
            )
    for key in ("from", "to"):
        if key not in fields:
            raise BadValue(f"the range has no `{key}:`", "such as {from: 80 GiB, to: 320 GiB}")
    ways = [key for key in ("times", "plus", "scale") if key in fields]
    if len(ways) > 1:
        raise BadValue(f"`{ways[0]}:` and `{ways[1]}:` stand beside each other", "keep one")
    tail = ""
    if "times" in fields:
        tail = f" * {fields['times']}"
    elif "plus" in fields:
        tail = f" + {fields['plus']}"
    elif "scale" in fields:
        tail = f" {fields['scale']}"
    return f"{fields['from']} .. {fields['to']}{tail}"


def looks_like_range(field: Field, item: object) -> bool:
    """Tell whether text is meant as a range: two dots in the value of a number."""
    return field.is_number and isinstance(item, str) and ".." in item


def _ranged(field: Field, text: str) -> SweepAxis:
    """Return the axis of a range."""
    if not field.is_number:
        raise BadValue(
            f"{shown_value(text)} is a range, and {field.path} is no number", "list its values"
        )
    match = _RANGE.fullmatch(text)
    if match is None:
        raise BadValue(f"{shown_value(text)} is not a range", _FORMS)
    unit = match["high_unit"] or match["low_unit"] or ""
    low = _end(field, match["low"], match["low_unit"] or unit)
    high = _end(field, match["high"], unit)
    one = field.parse(f"1 {unit}") if unit and field.parse and field.unit else 1.0
    if low > high:
        raise BadValue(f"{shown_value(text)} runs downwards", "write the smaller end first")
    if not match["sign"]:
        return SweepAxis(
            field.path, span=_span(field, text, match, low / one, high / one, unit), field=field
        )
    step_text, step_unit = match["step"], match["step_unit"] or ""
    if match["sign"] == "*":
        if step_unit:
            raise BadValue(f"{shown_value(text)}: a factor has no unit", f"write * {step_text}")
        numbers = _products(low, high, float(step_text.replace("_", "")), text)
    else:
        numbers = _sums(low, high, _end(field, step_text, step_unit or unit), text)
    values = [_as_written(field, number, one, unit) for number in numbers]
    for value in values:
        field.check(value)
    return SweepAxis(field.path, _choices(field, values), field=field)


def _end(field: Field, number: str, unit: str) -> float:
    """Return one end of a range in base units."""
    assert field.parse is not None
    plain = float(number.replace("_", ""))
    if field.is_integer:
        if unit or not plain.is_integer():
            raise BadValue(f"{number}{unit} is not a whole number", "give whole numbers")
        return plain
    if not unit:
        # A plain number where a unit is needed is refused in the field's own words.
        return field.parse(int(plain) if plain.is_integer() else plain)
    return field.parse(f"{number} {unit}")


def _span(
    field: Field, text: str, match: re.Match[str], low: float, high: float, unit: str
) -> Span:
    log = match["scale"] == "log"
    if low == high:
        raise BadValue(f"{shown_value(text)} holds one value", "list it, or widen the range")
    if log and low <= 0:
        raise BadValue(
            f"{shown_value(text)}: a logarithmic range begins above 0", "or write linear"
        )
    span = Span(low, high, unit if field.unit else "", log, field.is_integer)
    for end in (low, high):
        field.check(int(end) if field.is_integer else _written(end, span))
    return span


def _products(low: float, high: float, factor: float, text: str) -> list[float]:
    if factor <= 1:
        raise BadValue(
            f"{shown_value(text)} never ends: times {factor:g}", "the factor is above 1"
        )
    if low <= 0:
        raise BadValue(
            f"{shown_value(text)} begins at {low:g}, which no factor moves", "begin above 0"
        )
    n = math.floor(math.log(high / low) / math.log(factor) + 1e-9) + 1
    _check_many(n, text)
    return [low * factor**i for i in range(n)]


def _sums(low: float, high: float, step: float, text: str) -> list[float]:
    if step <= 0:
        raise BadValue(f"{shown_value(text)} never ends: plus {step:g}", "the step is above 0")
    n = math.floor((high - low) / step + 1e-9) + 1
    _check_many(n, text)
    return [low + i * step for i in range(n)]


def _check_many(n: int, text: str) -> None:
    if n > MAX_VALUES:
        raise BadValue(
            f"{shown_value(text)} has {n:,} values, more than {MAX_VALUES:,}",
            "take a larger step, or sample: `design: latin` with `samples:`",
        )


def _as_written(field: Field, number: float, one: float, unit: str) -> object:
    if field.is_integer:
        if abs(number - round(number)) > 1e-6:
            raise BadValue(f"{number:g} is not a whole number", "choose a step that keeps them so")
        return round(number)
    plain = float(f"{number / one:.12g}")
    return f"{plain:.12g} {unit}" if unit and field.unit else plain
