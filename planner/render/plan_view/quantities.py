"""Numbers as the plan view writes them: shown with few digits, put into formulas with six.

A text of the second kind can be read back as arithmetic: numbers, units of `UNITS`, + − × / ^,
brackets and the functions of `_FUNCTIONS`. `evaluated` does that; the tests use it to see that
every formula with the numbers put in gives the number it stands behind.
"""

import math
import re
from collections.abc import Iterable

from planner.render.report.quantities import short_number

_SECONDS = ((86400.0 * 2, 86400.0, "days"), (1.0, 1.0, "s"), (1e-3, 1e-3, "ms"), (0.0, 1e-6, "us"))
_BYTES = (
    (2.0**43, 2.0**40, "TiB"),
    (2.0**30, 2.0**30, "GiB"),
    (2.0**20, 2.0**20, "MiB"),
    (2.0**10, 2.0**10, "KiB"),
    (0.0, 1.0, "B"),
)
_FLOPS = (
    (1e18, 1e18, "EFLOP"),
    (1e15, 1e15, "PFLOP"),
    (1e12, 1e12, "TFLOP"),
    (1e9, 1e9, "GFLOP"),
    (1e6, 1e6, "MFLOP"),
    (0.0, 1.0, "FLOP"),
)
_RATES = (
    (1e15, 1e15, "PFLOP/s"),
    (1e12, 1e12, "TFLOP/s"),
    (1e9, 1e9, "GFLOP/s"),
    (0.0, 1.0, "FLOP/s"),
)
_BANDWIDTHS = ((1e12, 1e12, "TB/s"), (1e9, 1e9, "GB/s"), (1e6, 1e6, "MB/s"), (0.0, 1.0, "B/s"))
_COUNTS = ((0.0, 1.0, ""),)
_LADDERS = {
    "s": _SECONDS,
    "B": _BYTES,
    "FLOP": _FLOPS,
    "FLOP/s": _RATES,
    "B/s": _BANDWIDTHS,
    "": _COUNTS,
    "%": ((0.0, 0.01, "%"),),
    "FLOP/B": ((0.0, 1.0, "FLOP/B"),),
    "W": ((1e6, 1e6, "MW"), (1e4, 1e3, "kW"), (0.0, 1.0, "W")),
    "J": ((3.6e9, 3.6e9, "MWh"), (3.6e6, 3.6e6, "kWh"), (0.0, 1.0, "J")),
    "USD": ((0.0, 1.0, "USD"),),
    "tokens": ((0.0, 1.0, "tokens"),),
    "tokens/s": ((0.0, 1.0, "tokens/s"),),
    "h": ((0.0, 3600.0, "h"),),
}
"""By kind: from this value on, divided by this, in this unit."""
UNITS: dict[str, float] = {
    unit: factor for ladder in _LADDERS.values() for _, factor, unit in ladder if unit
} | {"MB": 1e6, "GB": 1e9, "bytes": 1.0, "min": 60.0}
"""Factor of every unit to base units: seconds, bytes, FLOP, watts, joules, counts."""


def quantity_text(value: float, kind: str, digits: int = 4) -> str:
    """Return a number of a kind (`_LADDERS`) as people read it, its unit behind it."""
    return _text(value, kind, digits)


def exact(value: float, kind: str = "") -> str:
    """Return a number as formulas hold it: whole counts in full, all else with six digits."""
    if kind == "" and float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return _text(value, kind, 6)


def _text(value: float, kind: str, digits: int) -> str:
    size = abs(value)
    for floor, factor, unit in _LADDERS[kind]:
        if size >= floor and (size > 0.0 or floor == 0.0):
            if size == 0.0:
                factor, unit = _zero_unit(kind, factor, unit)
            number = short_number(value / factor, digits).replace("-", "−")
            return f"{number} {unit}".rstrip()
    raise AssertionError("the last floor is zero")


def _zero_unit(kind: str, factor: float, unit: str) -> tuple[float, str]:
    """Return the unit of nothing: 0 s rather than 0 us."""
    return (1.0, kind) if kind in ("s", "B", "FLOP") else (factor, unit)


def total(parts: Iterable[str]) -> str:
    """Return parts as a sum; `0` for none."""
    return " + ".join(parts) or "0"


_NUMBER = re.compile(
    r"(?<![\w.])(\d[\d,]*(?:\.\d+)?(?:e[−+-]?\d+)?)(?:\s?("
    + "|".join(sorted((re.escape(unit) for unit in UNITS), key=len, reverse=True))
    + r")(?![\w/]))?"
)
_FUNCTIONS = {
    "max": max,
    "min": min,
    "ceil": math.ceil,
    "sqrt": math.sqrt,
    "log2": math.log2,
    "log": math.log,
    "exp": math.exp,
    "expm1": math.expm1,
    "hypot": math.hypot,
}


def evaluated(text: str) -> float:
    """Return the value of a formula with its numbers put in, base units.

    Raises `ValueError` for a text that is no arithmetic of numbers, units and known functions.

    >>> evaluated("2 × (3.5 ms + 500 us) × 1,000 / 4 s")
    2.0
    """

    def number(match: re.Match[str]) -> str:
        value = float(match[1].replace(",", "").replace("−", "-"))
        return repr(value * UNITS[match[2]]) if match[2] else repr(value)

    plain = re.sub(r"(?<=\d),\s", " , ", text)
    plain = _NUMBER.sub(number, plain)
    plain = plain.replace("×", "*").replace("−", "-").replace("^", "**")
    names = set(re.findall(r"(?<![\d.])[A-Za-z_]\w*", plain))
    if names - set(_FUNCTIONS) or not re.fullmatch(r"[\w\s.,()+*/-]+", plain):
        raise ValueError(f"no arithmetic: {text!r} ({sorted(names - set(_FUNCTIONS))})")
    try:
        return float(eval(plain, {"__builtins__": {}}, dict(_FUNCTIONS)))  # checked above
    except (SyntaxError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"no arithmetic: {text!r}: {error}") from None
