"""A search that may be stopped looks often, and finds the same where it is not."""

from dataclasses import replace
from itertools import count

import pytest

from planner.solver.problem import make_problem
from planner.solver.request import SolveRequest
from planner.solver.sources import read_inputs
from searches.executors.executor import ProcessExecutor, SerialExecutor
from searches.options import SearchOptions
from searches.rules import Context
from searches.search import search
from searches.space import shards
from searches.space.shards import STOPPABLE_SHAPES


def context_of() -> Context:
    chosen = SolveRequest.of(top=1).options()
    problem = make_problem(*read_inputs("llama3-70b", "h100-x512"), chosen)
    at_most = {"mbs": 1}
    only = {"zero": frozenset([1])}
    return Context(problem, SearchOptions(at_most=at_most, only=only, n_finalists=8), 512)


@pytest.mark.slow
def test_a_search_that_is_not_stopped_finds_what_one_that_cannot_be_finds() -> None:
    context = context_of()
    whole = search(context)
    n_looks = count()
    watched = search(context, stop=lambda: next(n_looks) < 0)
    spread = search(context, ProcessExecutor(2), stop=lambda: False)
    assert whole.complete
    assert watched.complete
    assert replace(watched, shards=whole.shards) == whole
    assert replace(spread, shards=whole.shards) == whole
    assert watched.shards[1] > whole.shards[1]
    assert next(n_looks) >= watched.shards[1] - 1
    # Without bounds all shapes are priced, some at a time.
    open_to_all = replace(context, options=replace(context.options, bound=False))
    watched = search(open_to_all, stop=lambda: False)
    assert watched.shards[1] >= watched.n_shapes / STOPPABLE_SHAPES


def test_a_search_stops_at_the_next_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "FIRST_SHAPES", 0)  # all shards go to the executor
    context = context_of()
    for n_shards in (1, 2, 3):
        executor = Counting()
        found = search(
            context, executor, stop=lambda executor=executor, n=n_shards: executor.n_shards >= n
        )
        assert (found.stopped, found.shards[0]) == ("time limit", n_shards)
        assert found.shards[1] > 3


class Counting(SerialExecutor):
    """Counts the shards that it was given."""

    n_shards = 0

    def map(self, run, shards):
        self.n_shards += len(shards)
        return super().map(run, shards)
