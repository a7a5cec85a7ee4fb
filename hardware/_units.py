"""Quantities as people write them in the catalogue files, turned into SI numbers."""

from decimal import Decimal, InvalidOperation

_UNITS = {
    "bytes": {"GB": "1e9", "MiB": str(2**20), "GiB": str(2**30)},
    "bytes_per_s": {"MB/s": "1e6", "GB/s": "1e9", "TB/s": "1e12", "Gb/s": "0.125e9"},
    "watts": {"W": "1"},
    "seconds": {"us": "1e-6", "s": "1", "h": "3600"},
}
"""Accepted units by dimension. `Gb/s` counts bits, `GB/s` bytes."""


def parse_quantity(text: str, dimension: str) -> float:
    """Return `text`, such as '3.35 TB/s', in bytes, bytes/s, watts or seconds.

    Decimal arithmetic keeps the digits that the file shows: 370.8 GB/s is 370800000000.0.

    >>> parse_quantity("400 Gb/s", "bytes_per_s")
    50000000000.0
    >>> parse_quantity("80 GiB", "bytes")
    85899345920.0
    """
    number, _, unit = text.partition(" ")
    factor = _UNITS[dimension].get(unit)
    if factor is None:
        raise ValueError(f"{text!r} has no unit among {', '.join(_UNITS[dimension])}")
    try:
        return float(Decimal(number) * Decimal(factor))
    except InvalidOperation:
        raise ValueError(f"{text!r} does not start with a number") from None


def unit_scale(value: float, factor: str) -> float:
    """Return `value` times the decimal `factor` without binary rounding: 11.8 us is 1.18e-05 s.

    >>> unit_scale(11.8, "1e-6")
    1.18e-05
    """
    if value in (float("inf"), float("-inf")):
        return value
    return float(Decimal(str(value)) * Decimal(factor))
