"""Searches over the stacks of FSDP2 and torchtitan: no plan that a bound left out is faster."""

import pytest

from searches.options import SearchOptions
from searches.rules import Context
from searches.search import search
from tests.searches.certificate import with_bounds
from tests.searches.instances import FLAT, GQA, context, pins, toy_pool
from tests.searches.wider_instances import MIXED

CASES: dict[str, Context] = {
    "fsdp2": context(
        GQA,
        toy_pool(8, 4),
        batch=16,
        stack="hf-fsdp2",
        options=SearchOptions(framework="fsdp2", at_most={"mbs": 2}),
    ),
    "fsdp2-little-memory": context(
        FLAT,
        toy_pool(8, 4),
        batch=24,
        stack="hf-fsdp2",
        options=SearchOptions(framework="fsdp2"),
    ),
    "torchtitan": context(
        GQA,
        toy_pool(8, 4),
        batch=8,
        stack="torchtitan",
        options=SearchOptions(framework="torchtitan", at_most={"mbs": 2}),
    ),
    "torchtitan-experts": context(
        MIXED,
        toy_pool(6, 2),
        batch=6,
        stack="torchtitan",
        options=pins(mbs=1, vpp=1, recompute=(0, 1)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_search_finds_what_a_search_without_bounds_finds(name):
    c = CASES[name]
    bounded, everything = (search(with_bounds(c, 3, bound=on)) for on in (True, False))
    assert bounded.n_legal == everything.n_legal > 30
    assert bounded.finalists[0].step_s == everything.finalists[0].step_s
    assert bounded.finalists[0].layout == everything.finalists[0].layout
