"""Evaluate a term once per distinct combination of the columns that it depends on.

A table of plans repeats few combinations many times (a layer's time depends on tp, mbs and sp
only), so a term is computed on the distinct combinations and gathered. The gathered numbers are
bit for bit those of a direct evaluation, because every term is elementwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]

MOST_CODES = 1 << 16
"""Numbers of combinations, beside four for each row, up to which they are not counted anew."""


@dataclass(frozen=True, slots=True)
class Distinct:
    """The distinct combinations of some columns, and where each row finds its own."""

    columns: tuple[Ints, ...]
    """One array per input column, `(n_distinct,)`."""
    index: NDArray[np.intp]
    """Row -> position among the distinct combinations, `(n,)`."""


def _present(column: Ints | NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the distinct values of non-negative integers, ascending."""
    return np.bincount(column).nonzero()[0]


def _codes(column: Ints | NDArray[np.intp], values: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return where each of some integers stands among their distinct `values`."""
    table = np.empty(values[-1] + 1 if len(values) else 0, dtype=np.intp)
    table[values] = np.arange(len(values))
    return table[column]


def distinct(columns: Sequence[Ints]) -> Distinct:
    """Return the distinct combinations of non-negative integer columns, in ascending order.

    >>> d = distinct([np.array([2, 1, 2]), np.array([5, 5, 5])])
    >>> d.columns[0].tolist(), d.index.tolist()
    ([1, 2], [1, 0, 1])
    """
    combined = np.zeros(len(columns[0]), dtype=np.intp)
    present = [_present(column) for column in columns]
    before: list[NDArray[np.intp] | None] = []
    size, most_codes = 1, MOST_CODES + 4 * len(combined)
    for column, values in zip(columns, present, strict=True):
        known = None
        if len(values) > 1:
            if size * len(values) > most_codes:  # few of many numbers are in use: count those
                known = _present(combined)
                combined, size = _codes(combined, known), len(known)
            combined, size = combined * len(values) + _codes(column, values), size * len(values)
        before.append(known)
    remainder = _present(combined)
    index, n, out = _codes(combined, remainder), len(remainder), []
    for values, known in zip(reversed(present), reversed(before), strict=True):
        if len(values) > 1:
            remainder, code = np.divmod(remainder, len(values))
            out.append(values[code].astype(np.int32))
            remainder = remainder if known is None else known[remainder]
        else:
            out.append(values.astype(np.int32).repeat(n))
    return Distinct(tuple(reversed(out)), index)
