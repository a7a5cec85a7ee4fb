"""Answers with plans over several pools, solved once."""

import pytest

import planner
from planner.solver.answer.result_store import joined_plan_of
from planner.solver.together.opened import open_joined
from tests.planner.solver.together.tiny import MODEL, NEW, OLD, PINS, cluster, pool


@pytest.fixture(scope="package")
def data():
    """An answer over two pools of two devices each."""
    named = cluster({**NEW, "hosts": "n01"}, {**OLD, "hosts": "o01"})
    result = planner.solve(MODEL, named, pins=PINS, top=6, executor="serial", pools="together")
    return result.to_json()


@pytest.fixture(scope="package")
def wider():
    """An answer with more than one kind of pipelines, over three pools."""
    few = pool("few", "h200-sxm-141gb", per_node=1)
    pools = [pool("new", per_node=1), OLD, few]
    result = planner.solve(
        MODEL, cluster(*pools), pins=PINS, top=8, executor="serial", pools="together"
    )
    return result.to_json()


def opened_plans(data):
    """Return all plans over several pools of an answer, priced again."""
    ranks = [f"t{x['rank']}" for x in data["together"]["plans"]]
    return [open_joined(data, joined_plan_of(data, x), "answer") for x in ranks]
