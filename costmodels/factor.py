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


@dataclass(frozen=True, slots=True)
class Distinct:
    """The distinct combinations of some columns, and where each row finds its own."""

    columns: tuple[Ints, ...]
    """One array per input column, `(n_distinct,)`."""
    index: NDArray[np.intp]
    """Row -> position among the distinct combinations, `(n,)`."""


def _codes(column: Ints) -> tuple[NDArray[np.intp], Ints]:
    """Return small consecutive codes of non-negative integers, and the values they stand for."""
    values = np.flatnonzero(np.bincount(column))
    table = np.zeros(int(values.max(initial=-1)) + 1, dtype=np.intp)
    table[values] = np.arange(len(values))
    return table[column], values.astype(np.int32)


def distinct(columns: Sequence[Ints]) -> Distinct:
    """Return the distinct combinations of non-negative integer columns, in ascending order.

    >>> d = distinct([np.array([2, 1, 2]), np.array([5, 5, 5])])
    >>> d.columns[0].tolist(), d.index.tolist()
    ([1, 2], [1, 0, 1])
    """
    combined = np.zeros(len(columns[0]), dtype=np.intp)
    coded = [_codes(column) for column in columns]
    for codes, values in coded:
        combined = combined * len(values) + codes
    index, present = _codes(combined.astype(np.intp))
    remainder, out = present.astype(np.intp), []
    for _, values in reversed(coded):
        remainder, code = np.divmod(remainder, len(values))
        out.append(values[code])
    return Distinct(tuple(reversed(out)), index)
