"""What runs with the slow tests alone: more instances of what the default run holds on a few."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

STEADY = 40
"""Examples of a property with the slow tests; `conftest` states them."""


def slow(*row: Any, id: str | None = None) -> Any:
    """Return a row of parameters that is a slow test: another row holds the same sooner."""
    return pytest.param(*row, id=id, marks=pytest.mark.slow)


def examples(n: int) -> int:
    """Return how many examples a property is tried on: n with the slow tests, else a quarter."""
    return max(1, n * min(settings().max_examples, STEADY) // STEADY)


def halved(rows: Iterable[Any]) -> list[Any]:
    """Return parameters of which every second slow one runs before a release only."""
    result, n = list[Any](), 0
    for row in rows:
        if any(mark.name == "slow" for mark in getattr(row, "marks", ())):
            n += 1
            if n % 2 == 0:
                marks = [*row.marks, pytest.mark.fit]
                row = pytest.param(*row.values, marks=marks, id=row.id)
        result.append(row)
    return result
