"""An answer with plans of sharded replicas over two pools, solved once."""

import pytest

import planner
from planner.solver.answer.result_store import joined_plan_of
from planner.solver.together.opened import open_joined
from tests.planner.solver.together.tiny import MODEL, cluster, pool

JOB = {**MODEL, "training": {"seq_len": 4096, "global_batch": 48}}
NEW = pool("new", nodes=2, hosts="n[1-2]")
OLD = pool("old", "a100-sxm-80gb", nodes=2, hosts="o[1-2]")


@pytest.fixture(scope="package")
def data():
    """An answer of torchtitan whose plans accumulate over two micro-batches or more."""
    result = planner.solve(
        JOB,
        cluster(NEW, OLD),
        framework="torchtitan",
        pools="together",
        executor="serial",
        top=4,
        at_most={"mbs": 4},
        pins={"recompute": "none"},
    )
    return result.to_json()


@pytest.fixture(scope="package")
def plans(data):
    """All its plans, priced again."""
    ranks = [f"t{x['rank']}" for x in data["together"]["plans"]]
    return [open_joined(data, joined_plan_of(data, x), "answer") for x in ranks]
