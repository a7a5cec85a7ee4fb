"""One share of a search of several parts, that never falls."""

from itertools import pairwise
from typing import Any

import pytest

from planner.solver.solve import solve
from planner.specs.progress import TOTAL, pieces_of, whole_of
from tests.searches.instances import one_in


class Listener:
    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []
        self.best_s: list[float] = []

    def __call__(self, done: int, total: int) -> None:
        self.told.append((done, total))

    def found(self, step_s: float) -> None:
        self.best_s.append(step_s)


def test_parts_share_the_whole_and_one_that_starts_anew_adds_nothing() -> None:
    heard = Listener()
    whole = whole_of(heard)
    first, second = pieces_of(whole, 2)
    assert first is not None
    assert second is not None
    for done, total in ((1, 8), (7, 7), (1, 7), (7, 7)):  # the second round of a search
        first(done, total)
    second.piece(0, 5)(1, 1)
    second.found(1.5)
    second(0, 23)
    second(23, 23)
    assert heard.told == [(x, TOTAL) for x in (6, 50, 50, 50, 60, 60, 100)]
    assert heard.best_s == [1.5]


def test_nobody_listens_and_a_plain_function_hears_no_best() -> None:
    assert list(pieces_of(whole_of(None), 3)) == [None, None, None]
    told: list[int] = []
    whole = whole_of(lambda done, _: told.append(done))
    assert whole is not None
    whole.found(1.0)
    whole(0, 0)  # nothing to do is done
    assert told == [TOTAL]


@pytest.mark.parametrize(
    "options",
    one_in(
        6,
        [
            {},
            {"objective": "devices"},
            {"pareto": ("step_time", "memory")},
            {"pareto": ("step_time", "devices")},
            {"pareto": ("memory", "devices")},
            {"pins": {"devices": 8}},
        ],
    ),
    ids=str,
)
def test_the_progress_of_a_search_never_falls_and_ends_with_all(options: dict[str, Any]) -> None:
    heard = Listener()
    solve("llama3-8b", "h100-x8", overrides=(("pools.0.nodes", 3),), progress=heard, **options)
    assert all(a <= b for a, b in pairwise(heard.told))
    assert {total for _, total in heard.told} == {TOTAL}
    assert heard.told[-1] == (TOTAL, TOTAL)


@pytest.mark.slow
def test_all_pools_and_recipes_share_one_progress() -> None:
    heard = Listener()
    solve(
        "llama3-8b", "mixed-h100-a100", only={"precision": ["bf16", "fp8-delayed"]}, progress=heard
    )
    assert len(heard.told) > 4
    assert all(a <= b for a, b in pairwise(heard.told))
    assert heard.told[-1] == (TOTAL, TOTAL)
    assert heard.best_s
