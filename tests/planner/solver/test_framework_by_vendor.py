"""Which framework is searched where none is named, by the accelerators of the cluster."""

from typing import Any

import pytest

import planner
from planner.solver.options import SolveOptions
from planner.solver.problem import of_able_framework
from planner.solver.sources import read_inputs

H100 = {"name": "gpus", "accelerator": "h100", "nodes": 1}
ASCEND = {"name": "npus", "accelerator": "ascend-910b", "nodes": 2}
V5P = {"name": "chips", "accelerator": "tpu-v5p", "nodes": 4}


@pytest.mark.parametrize(
    ("pools", "asked", "searched", "stack"),
    [
        ([V5P], "default", "maxtext", "maxtext"),
        ([V5P], "any", "any", "maxtext"),
        ([V5P], "megatron", "megatron", "megatron-core"),
        ([ASCEND], "default", "mindspeed", "mindspeed"),
        ([ASCEND, H100], "default", "default", "megatron-core"),
        ([H100], "default", "default", "megatron-core"),
        ([V5P, H100], "default", "default", "megatron-core"),
        ([H100, V5P], "default", "default", "megatron-core"),
    ],
)
def test_a_framework_of_the_vendor_is_searched_where_every_pool_is_its(
    pools: list[dict[str, Any]], asked: str, searched: str, stack: str
) -> None:
    inputs = read_inputs("llama3-8b", {"pools": pools})
    options, notes = of_able_framework(*inputs, SolveOptions(framework=asked))
    assert (options.framework, options.stack_name) == (searched, stack)
    assert bool(notes) == (searched != asked)


@pytest.mark.slow
def test_more_nodes_are_those_of_a_slice() -> None:
    cluster = {"pools": [{"accelerator": "tpu-v5p", "nodes": 16}]}
    pins = {"mbs": 1, "recompute_modules": "layernorm"}
    result = planner.solve("llama3-8b", cluster, pins=pins)
    assert not result.plans
    assert [x.kind for x in result.relaxations] == ["restriction"]
