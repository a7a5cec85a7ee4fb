"""What a calculator answers: numbers that open to their formula, and what other pages print."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from planner.errors import UsageError
from planner.learn.fields import Input, Read, calculator_inputs, read_fields
from planner.render.report.answers import AnswerTable
from planner.render.report.quantities import short_number

if TYPE_CHECKING:
    from planner.render.charts.chart import Chart

_LADDERS: dict[str, tuple[tuple[float, str], ...]] = {
    "bytes": (
        (1e15, "PB"),
        (1e12, "TB"),
        (1e9, "GB"),
        (1e6, "MB"),
        (1e3, "kB"),
        (1.0, "bytes"),
    ),
    "binary": (
        (2.0**40, "TiB"),
        (2.0**30, "GiB"),
        (2.0**20, "MiB"),
        (2.0**10, "KiB"),
        (1.0, "bytes"),
    ),
    "seconds": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")),
    "bytes_per_s": ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")),
    "bits_per_s": ((1e12 / 8, "Tb/s"), (1e9 / 8, "Gb/s"), (1e6 / 8, "Mb/s"), (1e3 / 8, "kb/s")),
    "flops": ((1e21, "ZFLOP"), (1e18, "EFLOP"), (1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP")),
    "flops_per_s": ((1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s")),
    "params": ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"), (1.0, "")),
    "elements": (
        (1e12, "T elements"),
        (1e9, "G elements"),
        (1e6, "M elements"),
        (1.0, "elements"),
    ),
}
_EXPRESSION = re.compile(r"[\d(-]|(?:min|max|ceil)\(")
_ZERO = {"seconds": "s", "flops": "FLOP", "bytes_per_s": "GB/s", "bits_per_s": "Gb/s"}
_PLAIN = {
    "count": "",
    "ratio": "",
    "tokens": " tokens",
    "times": " times",
    "flops_per_byte": " FLOP/byte",
    "sequences": " sequences",
    "devices": " devices",
}


def shown(value: float, kind: str, digits: int = 4) -> str:
    """Return a value with the unit that fits, as people read it.

    >>> shown(0.2727272, "fraction"), shown(33554432.0, "binary"), shown(7.9e-5, "seconds")
    ('27.27 %', '32 MiB', '79 us')
    """
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "never" if kind == "seconds" else "no limit"
    if kind == "fraction":
        return f"{short_number(value * 100, digits)} %"
    if kind in _PLAIN:
        return f"{short_number(value, digits)}{_PLAIN[kind]}"
    ladder = _LADDERS[kind]
    if value == 0:
        return f"0 {_ZERO.get(kind, ladder[-1][1])}".rstrip()
    for factor, unit in ladder:
        if abs(value) >= factor * (1 - 10.0**-digits / 2):
            return f"{short_number(value / factor, digits)} {unit}".rstrip()
    factor, unit = ladder[-1]
    return f"{short_number(value / factor, digits)} {unit}".rstrip()


@dataclass(frozen=True, slots=True)
class Number:
    """One number of an answer, with how it came about."""

    key: str
    title: str
    value: float
    """Base units: bytes, seconds, bytes/s, fractions of one."""
    kind: str
    """How it is written: `fraction`, `bytes`, `seconds`, `count`, ... (`shown`)."""
    formula: str
    substituted: str
    """The formula with the numbers put in."""
    source: str
    """Where the formula is from, and the function that computes it, if the cost model has one."""
    note: str = ""
    mark: str = ""
    """A word that sets it off from the others, such as `binds`."""

    @property
    def put(self) -> str:
        """The formula with the numbers put in, behind an equals sign where it is an expression."""
        return f"= {self.substituted}" if _EXPRESSION.match(self.substituted) else self.substituted

    @property
    def text(self) -> str:
        """The value with its unit; memory with its binary size beside it."""
        if self.kind == "memory":
            return f"{shown(self.value, 'bytes')} ({shown(self.value, 'binary')})"
        if self.kind == "link":
            return f"{shown(self.value, 'bytes_per_s')} ({shown(self.value, 'bits_per_s')})"
        return shown(self.value, self.kind)


@dataclass(frozen=True, slots=True)
class Difference:
    """What a page in circulation prints for the same inputs, beside ours, and why."""

    key: str
    claim: str
    """The formula or sentence as seen."""
    where: str
    """What kind of page it stands on, in words."""
    printed: float
    """What it gives for these inputs."""
    ours: float
    kind: str
    why: str

    @property
    def agrees(self) -> bool:
        """Whether both give the same number for these inputs."""
        return math.isclose(self.printed, self.ours, rel_tol=5e-3)

    @property
    def texts(self) -> tuple[str, str]:
        """Both numbers as people read them: theirs, ours."""
        kind = {"memory": "bytes", "link": "bits_per_s"}.get(self.kind, self.kind)
        return shown(self.printed, kind), shown(self.ours, kind)


@dataclass(frozen=True, slots=True)
class NamedTable:
    """A table of an answer."""

    title: str
    table: AnswerTable
    note: str = ""


@dataclass(frozen=True, slots=True)
class CalculatorResult:
    """The answer of a calculator."""

    headline: str
    numbers: tuple[Number, ...]
    advice: tuple[str, ...] = ()
    tables: tuple[NamedTable, ...] = ()
    differences: tuple[Difference, ...] = ()
    left_out: tuple[str, ...] = ()

    def number(self, key: str) -> Number:
        """Return the number of a key; `KeyError` where there is none."""
        return next_of(self.numbers, key)

    def difference(self, key: str) -> Difference:
        """Return the difference of a key; `KeyError` where there is none."""
        return next_of(self.differences, key)


K = TypeVar("K", Number, Difference)


def next_of(entries: tuple[K, ...], key: str) -> K:
    """Return the entry of a key; `KeyError` where there is none."""
    for entry in entries:
        if entry.key == key:
            return entry
    raise KeyError(key)


@dataclass(frozen=True, slots=True)
class Preset:
    """Inputs worth looking at."""

    title: str
    values: dict[str, str]


T = TypeVar("T")


@dataclass(frozen=True)
class Calculator(Generic[T]):
    """One calculator: its inputs, its answer, its figures."""

    name: str
    title: str
    question: str
    """What it answers, one sentence."""
    inputs: type[T]
    compute: Callable[[T], CalculatorResult]
    charts: "Callable[[T], tuple[Chart, ...]]"
    presets: tuple[Preset, ...]

    @property
    def specs(self) -> dict[str, Input]:
        """The inputs by name."""
        return calculator_inputs(self.inputs)

    def read(self, texts: dict[str, str]) -> Read[T]:
        """Return what texts by name say (`read_fields`)."""
        return read_fields(self.inputs, texts)

    def answer(self, texts: dict[str, str]) -> CalculatorResult:
        """Return the answer to texts by name; `UsageError` names every input that is wrong."""
        result = self.read(texts)
        if result.values is None:
            lines = [f"{name}: {message}" for name, message in result.problems.items()]
            raise UsageError(
                f"learn {self.name}: {'; '.join(lines)}",
                f"`planner learn {self.name} --format json` shows every input with its range",
            )
        return self.compute(result.values)

    def to_json(self, texts: dict[str, str]) -> dict[str, Any]:
        """Return inputs and answer as plain data, base units."""
        result, outcome = self.answer(texts), self.read(texts)
        return {
            "calculator": self.name,
            "title": self.title,
            "question": self.question,
            "inputs": {
                name: {
                    "value": outcome.resolved[name],
                    "label": spec.label,
                    "kind": spec.kind,
                    "unit": spec.unit,
                    "shown": spec.text(outcome.resolved[name]),
                    **(
                        {"choices": [x for x, _ in spec.choices]}
                        if spec.choices
                        else {"least": spec.lowest, "most": spec.highest}
                    ),
                }
                for name, spec in self.specs.items()
            },
            "headline": result.headline,
            "numbers": [
                {
                    "key": x.key,
                    "title": x.title,
                    "value": finite(x.value),
                    "kind": x.kind,
                    "text": x.text,
                    "formula": x.formula,
                    "substituted": x.substituted,
                    "source": x.source,
                    "note": x.note,
                    "mark": x.mark,
                }
                for x in result.numbers
            ],
            "advice": list(result.advice),
            "tables": [
                {
                    "title": x.title,
                    "heads": list(x.table.heads),
                    "rows": [[finite(cell) for cell in row] for row in x.table.rows],
                }
                for x in result.tables
            ],
            "differences": [
                {
                    "key": x.key,
                    "claim": x.claim,
                    "where": x.where,
                    "printed": finite(x.printed),
                    "ours": finite(x.ours),
                    "kind": x.kind,
                    "printed_text": x.texts[0],
                    "ours_text": x.texts[1],
                    "agrees": x.agrees,
                    "why": x.why,
                }
                for x in result.differences
            ],
            "left_out": list(result.left_out),
        }


def finite(value: Any) -> Any:
    """Return a value that JSON can hold: None for infinities."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def sig(value: float, digits: int = 4) -> str:
    """Return a number for a substituted formula.

    >>> sig(0.375), sig(1979e12), sig(2048)
    ('0.375', '1.979e15', '2,048')
    """
    if value and abs(value) >= 1e7:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        mantissa = mantissa.rstrip("0").rstrip(".")
        return f"{mantissa}e{int(exponent)}"
    return short_number(value, digits)
