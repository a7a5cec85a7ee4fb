"""Searches that differ in memory alone share prices; each finds what it would find alone."""

from dataclasses import replace

import numpy as np
import pytest

from searches.pricing import kept_blocks
from searches.pricing.layout_prices import exact_step_s
from searches.pricing.shared_work import SharedWork, shared_each
from searches.rules import Context
from searches.search import search
from searches.space.shape_space import legal_shapes
from tests.searches.instances import INSTANCES, one_in, with_options

NAMES = ("toy-8-tight", "toy-24-tight", "toy-24-racks-of-8", "cp-by-default")
GB = 1e9
MEMORIES_GB = (3.0, 6.0, 7.0, 9.0, 24.0)


def on_memory(name: str, memory_gb: float, work: SharedWork | None) -> Context:
    """Return the search of an instance with bounds, on devices of another memory."""
    c = with_options(INSTANCES[name], bound=True, n_finalists=6)
    part = replace(c.problem.pool.accelerator, memory_bytes=memory_gb * GB)
    problem = replace(c.problem, pool=replace(c.problem.pool, accelerator=part))
    return replace(c, problem=problem, shared=work)


@pytest.mark.parametrize("name", one_in(4, NAMES))
@pytest.mark.parametrize("order", one_in(2, [1, -1]))
def test_each_memory_finds_what_it_finds_alone(name, order, monkeypatch):
    monkeypatch.setattr(kept_blocks, "CHUNK_SHAPES", 16)
    monkeypatch.setattr(kept_blocks, "SLICE_BATCHES", 8)
    work = SharedWork()
    for memory_gb in MEMORIES_GB[::order]:
        together = search(on_memory(name, memory_gb, work))
        alone = search(on_memory(name, memory_gb, None))
        # Only how many shards the shapes are cut into differs.
        assert replace(together, shards=alone.shards) == alone
    n_made, n_found = work.n_made, work.n_found
    for memory_gb in MEMORIES_GB[::order]:
        search(on_memory(name, memory_gb, work))
    assert work.n_found - n_found > 2 * (work.n_made - n_made)


def test_what_does_not_fit_is_priced_by_none(monkeypatch):
    work = SharedWork()
    for memory_gb in (6.0, 6.5):
        search(on_memory("toy-24-tight", memory_gb, work))
    kept = [value for value, _ in work._kept.values() if hasattr(value, "least_bytes")]
    assert kept
    for one in kept:
        usable = 6.5 * GB * kept_blocks.MORE_MEMORY
        assert (one.least_bytes[one.is_priced] <= usable).all()
        n_batches = sum(len(priced.block.mbs) for priced in one.blocks)
        assert n_batches == np.count_nonzero(one.is_priced)
        for priced in one.blocks:
            assert np.isinf(priced.peaks[~priced.block.legal]).all()


def test_the_memory_rule_is_the_only_one_that_differs():
    work = SharedWork()
    for memory_gb in MEMORIES_GB:
        alone = legal_shapes(on_memory("toy-24-tight", memory_gb, None))
        shared = legal_shapes(on_memory("toy-24-tight", memory_gb, work))
        assert (alone.n_candidates, alone.rejected) == (shared.n_candidates, shared.rejected)
        for axis in ("tp", "pp", "dp", "cp", "vpp", "split", "schedule", "rank_order"):
            columns = getattr(alone.shapes, axis), getattr(shared.shapes, axis)
            assert np.array_equal(*columns), axis


def test_only_what_is_missing_is_made():
    work, asked = SharedWork(), []

    def make(items: list[int]) -> list[int]:
        asked.append(items)
        return [x * x for x in items]

    assert shared_each(work, lambda: "squares", [1, 2, 2], make) == [1, 4, 4]
    assert shared_each(work, lambda: "squares", [3, 2], make) == [9, 4]
    assert shared_each(work, lambda: "squares", [3, 1], make) == [9, 1]
    assert asked == [[1, 2], [3]]
    assert shared_each(None, lambda: pytest.fail("asked for"), [5], make) == [25]


@pytest.mark.slow
def test_exact_times_of_layouts_do_not_hang_on_each_other():
    c = on_memory("toy-24-tight", 24.0, None)
    layouts = [x.layout for x in search(c).finalists]
    together = exact_step_s(c.problem, layouts)
    assert together == [exact_step_s(c.problem, [x])[0] for x in layouts]
