"""Units of what a report shows: base units to what people read, chosen by the largest value."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner.units import GIB

SECONDS_PER_DAY = 86400.0
JOULES_PER_MWH = 3.6e9


@dataclass(frozen=True, slots=True)
class Scale:
    """How numbers of one quantity are written: `number / factor`, then the unit."""

    factor: float = 1.0
    unit: str = ""

    def shown(self, value: float | None) -> float | None:
        """Return the number in this unit; None where there is none."""
        if value is None or not math.isfinite(value):
            return None
        return value / self.factor

    def number(self, value: float | None, digits: int = 4) -> str:
        """Return the bare number with so many significant digits; `-` where there is none."""
        shown = self.shown(value)
        return "-" if shown is None else short_number(shown, digits)

    def text(self, value: float | None, digits: int = 4) -> str:
        """Return the number and its unit; dollars stand in front."""
        bare = self.number(value, digits)
        if bare == "-" or not self.unit:
            return bare
        if self.unit.startswith("$"):
            sign, bare = ("-", bare[1:]) if bare.startswith("-") else ("", bare)
            return f"{sign}${bare}{self.unit[1:]}"
        return f"{bare} {self.unit}"


def short_number(value: float, digits: int = 4) -> str:
    """Return a number with `digits` significant digits, thousands apart, no trailing zeros.

    >>> short_number(1234.5678), short_number(0.00012), short_number(1e6)
    ('1,235', '0.00012', '1,000,000')
    """
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if magnitude < -5 or magnitude > 14:
        return f"{value:.{digits - 1}e}"
    decimals = max(0, digits - 1 - magnitude)
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


_LADDERS: dict[str, tuple[tuple[float, float, str], ...]] = {
    # From this value on, divided by this, in this unit; the last holds for everything below.
    "bytes": (
        (10 * 2.0**40, 2.0**40, "TiB"),
        (2.0**29, GIB, "GiB"),
        (2.0**19, 2.0**20, "MiB"),
        (0.0, 1.0, "B"),
    ),
    "bytes_per_s": ((1e12, 1e12, "TB/s"), (1e9, 1e9, "GB/s"), (1e6, 1e6, "MB/s"), (0, 1, "B/s")),
    "link_bytes_per_s": ((1e9 / 8, 1e9 / 8, "Gb/s"), (0.0, 1e6 / 8, "Mb/s")),
    "flops_per_s": ((1e15, 1e15, "PFLOP/s"), (1e12, 1e12, "TFLOP/s"), (0, 1e9, "GFLOP/s")),
    "seconds": ((1.0, 1.0, "s"), (1e-3, 1e-3, "ms"), (0.0, 1e-6, "us")),
    "run_seconds": ((SECONDS_PER_DAY, SECONDS_PER_DAY, "days"), (3600, 3600, "h"), (0, 1, "s")),
    "usd": ((1e6, 1e6, "$ million"), (0.0, 1.0, "$")),
    "joules": (
        (JOULES_PER_MWH, JOULES_PER_MWH, "MWh"),
        (3.6e6, 3.6e6, "kWh"),
        (1e3, 1e3, "kJ"),
        (0.0, 1.0, "J"),
    ),
    "watts": ((1e6, 1e6, "MW"), (1e4, 1e3, "kW"), (0.0, 1.0, "W")),
    "tokens_per_s": ((1e6, 1e6, "million tokens/s"), (0.0, 1.0, "tokens/s")),
    "fraction": ((0.0, 0.01, "%"),),
    "": ((1e12, 1e12, "T"), (1e9, 1e9, "B"), (1e7, 1e6, "M"), (0.0, 1.0, "")),
}


def scale_for(kind: str, values: Iterable[float | None]) -> Scale:
    """Return the scale in which the largest of the values reads well; plain for unknown kinds."""
    ladder = _LADDERS.get(kind)
    if ladder is None:
        return Scale()
    largest = max((abs(v) for v in values if v is not None and math.isfinite(v)), default=0.0)
    for floor, factor, unit in ladder:
        if largest >= floor:
            return Scale(factor, unit)
    return Scale(ladder[-1][1], ladder[-1][2])


_UNIT_KINDS = {
    "bytes": "bytes",
    "b": "bytes",
    "byte": "bytes",
    "bytes/s": "bytes_per_s",
    "b/s": "bytes_per_s",
    "bytes_per_s": "bytes_per_s",
    "flop/s": "flops_per_s",
    "flops": "flops_per_s",
    "flops_per_s": "flops_per_s",
    "s": "seconds",
    "seconds": "seconds",
    "w": "watts",
    "watts": "watts",
    "usd": "usd",
    "$": "usd",
    "j": "joules",
    "joules": "joules",
    "tokens": "",
    "": "",
}

_PATH_KINDS = (
    # The last word of a path that holds one of these, first match wins.
    (("bandwidth", "_bytes_per_s"), "bytes_per_s"),
    (("memory", "_bytes"), "bytes"),
    (("flops", "peak", "tensor_rate"), "flops_per_s"),
    (("latency", "overhead", "_s", "time"), "seconds"),
    (("power", "tdp", "_w"), "watts"),
)


def kind_of_axis(path: str, unit: str | None) -> str:
    """Return the kind of quantity of an axis: from its unit, or its path where none is stated."""
    kind = _UNIT_KINDS.get((unit or "").strip().lower(), "")
    if unit and not kind:
        return f"unit:{unit}"
    keys = path.lower().split(".")
    if not unit and "price" in keys[-1]:
        return "usd"
    if kind == "seconds" and keys[-1] in ("deadline", "mtbf"):
        return "run_seconds"
    if unit is None:
        for endings, path_kind in _PATH_KINDS:
            if any(
                keys[-1].endswith(ending) if ending.startswith("_") else ending in keys[-1]
                for ending in endings
            ):
                kind = path_kind
                break
    if kind == "bytes_per_s" and any(
        word in part for part in keys for word in ("nic", "port", "link")
    ):
        return "link_bytes_per_s"
    return kind


def axis_scale(kind: str, values: Sequence[float]) -> Scale:
    """Return the scale of an axis: that of the geometric middle of its numbers."""
    if kind.startswith("unit:"):
        return Scale(1.0, kind.removeprefix("unit:"))
    sizes = [abs(value) for value in values if value]
    return scale_for(kind, [math.sqrt(min(sizes) * max(sizes))] if sizes else [])


def percent_change(ratio: float) -> str:
    """Return a ratio as a change in words, behind "costs".

    >>> percent_change(0.875), percent_change(1.03), percent_change(3.0), percent_change(1.0001)
    ('12.5 % less', '3 % more', '3 times as much', 'the same')
    """
    if not math.isfinite(ratio):
        return "-"
    change = abs(ratio - 1) * 100
    if change < 0.05:
        return "the same"
    if ratio >= 2:
        return f"{short_number(ratio, 3)} times as much"
    return f"{short_number(change, 3)} % {'less' if ratio < 1 else 'more'}"
