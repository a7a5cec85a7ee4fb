"""The only place where GiB, GB/s, ms and TFLOP/s exist: text to plain numbers and back.

Inside the program everything is bytes, bytes per second, seconds, FLOP/s and plain counts. Parsers
take what people write and raise `BadValue` with a proposal; case matters, because `Gb` is a
gigabit and `GB` a gigabyte. Formatters give what the tables print.
"""

import math
import re
from collections.abc import Mapping, Sequence

from planner.errors import BadValue

GIB = 1024.0**3
"""Bytes in a GiB."""

_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}

_BYTE_UNITS = {f"{prefix}B": scale for prefix, scale in (_DECIMAL | _BINARY).items()}
_BIT_UNITS = {f"{prefix}b": scale / 8 for prefix, scale in _DECIMAL.items()}
_BANDWIDTH_UNITS = (
    {f"{unit}/s": scale for unit, scale in (_BYTE_UNITS | _BIT_UNITS).items()}
    | {f"{unit}ps": scale for unit, scale in (_BYTE_UNITS | _BIT_UNITS).items()}
    | {f"{unit}it/s": scale for unit, scale in _BIT_UNITS.items()}
)
_TIME_UNITS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "day": 86400.0,
    "days": 86400.0,
}
_POWER_UNITS = {"W": 1.0, "kW": 1e3, "MW": 1e6, "GW": 1e9}
_COUNT_UNITS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_RATE_UNITS = {
    f"{prefix}{name}": scale
    for prefix, scale in _DECIMAL.items()
    for name in ("FLOP/s", "FLOPS", "OP/s", "OPS")
}

_QUANTITY = re.compile(
    r"\s*(?P<number>[-+]?(?:\d[\d_]*(?:\.[\d_]*)?|\.\d+)(?:[eE][-+]?\d+)?)\s*(?P<unit>.*?)\s*",
    re.ASCII,
)
_MAX_CHARACTERS = 64
"""Longest text that is looked at as a quantity."""


def parse_size(value: object) -> float:
    """Return a memory size in bytes: `80 GiB` (binary), `80 GB` (decimal), `512 MiB`.

    >>> parse_size("80 GiB"), parse_size("80 GB")
    (85899345920.0, 80000000000.0)
    """
    return _parse(value, _BYTE_UNITS, "a size", ("GiB", "GB"))


def parse_bandwidth(value: object) -> float:
    """Return a bandwidth in bytes per second: `400 Gb/s` (bits), `50 GB/s`, `3.35 TB/s` (bytes).

    >>> parse_bandwidth("400 Gb/s"), parse_bandwidth("50 GB/s")
    (50000000000.0, 50000000000.0)
    """
    return _parse(value, _BANDWIDTH_UNITS, "a bandwidth", ("Gb/s", "GB/s"))


def parse_time(value: object) -> float:
    """Return a time in seconds: `3 us`, `4 ms`, `1.5 s`, `2 h`, `30 days`.

    >>> parse_time("3 us")
    3e-06
    """
    return _parse(value, _TIME_UNITS, "a time", ("ms", "s"))


def parse_power(value: object) -> float:
    """Return a power in watts: `700 W`, `1.2 kW`.

    >>> parse_power("1.2 kW")
    1200.0
    """
    return _parse(value, _POWER_UNITS, "a power", ("W",))


def parse_rate(value: object) -> float:
    """Return a compute rate in FLOP/s: `989 TFLOP/s`, `2 PFLOP/s`, `1979 TOPS` for integers.

    >>> parse_rate("989 TFLOP/s")
    989000000000000.0
    """
    return _parse(value, _RATE_UNITS, "a compute rate", ("TFLOP/s",))


def parse_count(value: object) -> float:
    """Return a plain count: `15e12`, `15T`, `4096`, `1_000`, `1.5M`.

    The letters k, M, B and T are powers of 1000.

    >>> parse_count("15T"), parse_count("1_000")
    (15000000000000.0, 1000.0)
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _finite(value, value)
    return _parse(value, _COUNT_UNITS, "a count", ("T", "B"))


def parse_ratio(value: object) -> float:
    """Return an oversubscription of at least 1: `7`, `7:1` or `1:7` (both ways of writing it).

    >>> parse_ratio("1:7"), parse_ratio("7:1"), parse_ratio(1)
    (7.0, 7.0, 1.0)
    """
    fix = "write a number of 1 or more, or a ratio such as 7:1 (1 is non-blocking)"
    if isinstance(value, str) and value.count(":") == 1:
        left, right = (parse_count(part) for part in value.split(":"))
        if min(left, right) <= 0:
            raise BadValue(f"{value!r} is not an oversubscription", fix)
        return _finite(max(left, right) / min(left, right), value)
    if not isinstance(value, bool) and isinstance(value, int | float | str):
        number = parse_count(value)
        if number >= 1:
            return number
    raise BadValue(f"{shown_value(value)} is not an oversubscription", fix)


def shown_value(value: object) -> str:
    """Return a value as a user wrote it: text in quotes, `true`, `null`, long ones cut.

    >>> shown_value(True), shown_value("32"), shown_value(None), shown_value(7)
    ('true', "'32'", 'null', '7')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of more than 4300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:56]}...{text[-1]}"


def _parse(value: object, units: Mapping[str, float], noun: str, usual: Sequence[str]) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise BadValue(
            f"{shown_value(value)} has no unit", f"write {_examples(shown_value(value), usual)}"
        )
    text = value if isinstance(value, str) and len(value) <= _MAX_CHARACTERS else ""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise BadValue(
            f"{shown_value(value)} is not {noun}",
            f"write a number and a unit, such as 80 {usual[0]}",
        )
    number, unit = match["number"], match["unit"]
    if unit not in units:
        raise BadValue(*_unknown_unit(number, unit, units, noun, usual))
    return _finite(float(number.replace("_", "")) * units[unit], value)


def _finite(number: float, value: object) -> float:
    try:
        number = float(number)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise BadValue(f"{shown_value(value)} is not a finite number")
    return number


def _unknown_unit(
    number: str, unit: str, units: Mapping[str, float], noun: str, usual: Sequence[str]
) -> tuple[str, str]:
    """Return the message and the fix for a unit that is not in the table."""
    if not unit:
        return f"{number} has no unit", f"write {_examples(number, usual)}"
    if "," in unit:
        return f"'{number}{unit}' has a comma", "write a point for decimals and _ for thousands"
    if units is _BANDWIDTH_UNITS and f"{unit}/s" in units:
        return f"'{number} {unit}' is a size, not a bandwidth", f"write {number} {unit}/s"
    if units is _BYTE_UNITS and unit in _BIT_UNITS:
        bytes_unit = unit[:-1] + "B"
        return (
            f"'{number} {unit}' is in bits, and memory is counted in bytes",
            f"write {number} {bytes_unit} (decimal) or {number} {unit[:-1]}iB (binary)",
        )
    alike = [name for name in units if name.lower() == unit.lower()]
    if units is _BANDWIDTH_UNITS:
        alike = alike or [name for name in units if name.lower() == f"{unit.lower()}/s"]
    if len(alike) > 1 or (alike and units is _BANDWIDTH_UNITS):
        meanings = " or ".join(f"{number} {name} ({_meaning(name)})" for name in sorted(alike))
        return f"'{number} {unit}' is unclear: case matters", f"write {meanings}"
    if alike:
        return f"unknown unit {unit!r}: case matters", f"write {number} {alike[0]}"
    return f"unknown unit {unit!r} in {noun}", f"write {_examples(number, usual)}"


def _examples(number: str, usual: Sequence[str]) -> str:
    return " or ".join(f"{number} {unit}" for unit in usual)


def _meaning(unit: str) -> str:
    return "bits" if "b" in unit else "bytes"


def exact_size(n_bytes: float) -> str:
    """Return a size that `parse_size` reads back to the same number, whatever unit it came in."""
    return f"{_exact(n_bytes)} B"


def exact_bandwidth(bytes_per_s: float) -> str:
    """Return a bandwidth that `parse_bandwidth` reads back to the same number."""
    return f"{_exact(bytes_per_s)} B/s"


def exact_time(time_s: float) -> str:
    """Return a time that `parse_time` reads back to the same number."""
    return f"{_exact(time_s)} s"


def exact_rate(flops_per_s: float) -> str:
    """Return a rate that `parse_rate` reads back to the same number."""
    return f"{_exact(flops_per_s)} FLOP/s"


def _exact(number: float) -> str:
    return str(int(number)) if number == int(number) and number < 2**53 else repr(float(number))


def format_gib(n_bytes: float, digits: int = 1) -> str:
    """Return bytes as a bare number of GiB for a column that has the unit in its header.

    >>> format_gib(80 * 2**30)
    '80.0'
    """
    return _number(n_bytes / GIB, digits)


def format_size(n_bytes: float, digits: int = 1) -> str:
    """Return bytes with the binary unit that fits.

    >>> format_size(512 * 2**20)
    '512.0 MiB'
    """
    scales = [("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0)]
    return _scaled(n_bytes, scales, digits)


def format_time(time_s: float, digits: int = 2) -> str:
    """Return seconds with the unit that fits, from us to days.

    >>> format_time(18.81), format_time(0.0042), format_time(86400 * 389.3, 1)
    ('18.81 s', '4.20 ms', '389.3 days')
    """
    scales = [("days", 86400.0), ("h", 3600.0), ("s", 1.0), ("ms", 1e-3), ("us", 1e-6)]
    return _scaled(time_s, scales, digits)


def format_percent(fraction: float, digits: int = 1) -> str:
    """Return a fraction in per cent.

    >>> format_percent(0.43)
    '43.0%'
    """
    return f"{_number(fraction * 100, digits)}%"


def format_count(count: float, digits: int = 1) -> str:
    """Return a large count with K, M, B (10^9) or T; below 1000 as it is.

    >>> format_count(70.6e9), format_count(15e12), format_count(512)
    ('70.6 B', '15.0 T', '512')
    """
    if math.isfinite(count) and abs(count) < 1000 and count == int(count):
        return str(int(count))
    scales = [("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3), ("", 1.0)]
    return _scaled(count, scales, digits).rstrip()


def format_bandwidth(bytes_per_s: float) -> str:
    """Return a bandwidth in bytes per second.

    >>> format_bandwidth(450e9), format_bandwidth(3.35e12)
    ('450 GB/s', '3.35 TB/s')
    """
    return _short(bytes_per_s, [("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6), ("B/s", 1.0)])


def format_link_speed(bytes_per_s: float) -> str:
    """Return the speed of a port in bits per second, as it is sold.

    >>> format_link_speed(50e9)
    '400 Gb/s'
    """
    return _short(bytes_per_s * 8, [("Gb/s", 1e9), ("Mb/s", 1e6), ("b/s", 1.0)])


def format_rate(flops_per_s: float) -> str:
    """Return a compute rate.

    >>> format_rate(989e12)
    '989 TFLOP/s'
    """
    return _short(flops_per_s, [("TFLOP/s", 1e12), ("GFLOP/s", 1e9), ("FLOP/s", 1.0)])


def _number(number: float, digits: int) -> str:
    return f"{number:.{digits}f}" if math.isfinite(number) else "-"


def _scaled(number: float, scales: Sequence[tuple[str, float]], digits: int) -> str:
    """Return the number in the largest unit in which it does not round to less than one."""
    if not math.isfinite(number):
        return "-"
    for unit, scale in scales:
        if round(abs(number) / scale, digits) >= 1:
            return f"{number / scale:.{digits}f} {unit}"
    unit, scale = scales[-1]
    return f"{number / scale:.{digits}f} {unit}"


def _short(number: float, scales: Sequence[tuple[str, float]]) -> str:
    """Return the number with up to two decimals and no trailing zeros."""
    text, _, unit = _scaled(number, scales, 2).partition(" ")
    return f"{text.rstrip('0').rstrip('.')} {unit}" if unit else text
