"""The table of keys of NeMo AutoModel, and what is odd in recipes."""

import pytest
import yaml

from planner.frameworks.automodel.options import (
    default_value,
    odd_values,
    option_table,
    own_architectures,
    unknown_keys,
)
from planner.frameworks.emit import emit_plan
from planner.frameworks.emit_request import EmitRequest
from searches.frameworks.automodel.layouts import SCHEDULES
from searches.frameworks.registry import framework_rules
from tests.planner.frameworks.random_plans import random_plans
from tests.repeats import slow


def test_the_table_is_of_the_release_that_is_written_for() -> None:
    where, sections = option_table()
    assert where["release"] == framework_rules("automodel").release
    assert "TrainFinetuneRecipeForNextTokenPrediction" in where["recipes"]
    assert sections["distributed"]["tp_size"].kind == "int"
    assert sections["model.backend"]["dispatcher"].choices[:2] == ("torch", "deepep")
    assert default_value("step_scheduler", "global_batch_size") == 32
    assert {"LlamaForCausalLM", "Qwen3MoeForCausalLM"} <= own_architectures()
    assert "MixtralForCausalLM" not in own_architectures()


@pytest.mark.parametrize(
    ("recipe", "fault"),
    [
        ({"distributed": {"tp_size": 2, "dp_size": "none"}}, ""),
        ({"distributed": {"tp_size": "two"}}, "distributed.tp_size: 'two' is no int"),
        ({"distributed": {"tp_size": True}}, "distributed.tp_size: True is no int"),
        ({"distributed": {"activation_checkpointing": True}}, ""),
        ({"distributed": {"sequence_parallel": 1}}, "1 is no bool"),
        ({"model": {"backend": {"dispatcher": "nccl"}}}, "is not one of torch, deepep"),
        ({"model": {"backend": {"dispatcher": "${WAY,torch}"}}}, ""),
        ({"step_scheduler": {"max_steps": None}}, ""),
    ],
)
def test_values_are_of_the_kind_of_their_key(recipe: dict[str, object], fault: str) -> None:
    found = odd_values(recipe)
    assert len(found) == bool(fault)
    assert not fault or fault in found[0]


def test_keys_are_those_of_the_strategy() -> None:
    ddp = {"distributed": {"strategy": "ddp", "static_graph": True, "tp_plan": None}}
    assert unknown_keys(ddp) == ["distributed.tp_plan"]
    sharded = {"distributed": {"static_graph": True, "tp_plan": None}}
    assert unknown_keys(sharded) == ["distributed.static_graph"]


def counts() -> tuple[object, ...]:
    return (
        pytest.param(6, id="few"),
        slow(20, id="more"),
        pytest.param(1000, id="thousand", marks=pytest.mark.fit),
    )


@pytest.mark.parametrize("n", counts())
def test_random_plans_hold_no_key_or_value_that_it_has_not(n: int) -> None:
    for plan in random_plans("automodel", n):
        x, pool = plan.layout, plan.cluster.cluster.pools[0]
        files = emit_plan("automodel", EmitRequest(x, plan.model.shape, plan.model.job, pool))
        tree = yaml.safe_load(files["automodel.yaml"])
        assert (unknown_keys(tree), odd_values(tree)) == ([], []), plan.text
        keys, batch = tree["distributed"], tree["step_scheduler"]
        sizes = [keys[f"{name}_size"] for name in ("tp", "pp", "cp", "ep", "dp")]
        assert sizes == [x.tp, x.pp, x.cp, x.ep, x.dp]
        whole = batch["local_batch_size"] * x.dp
        assert batch["global_batch_size"] == x.gbs == whole * (1 if x.pp > 1 else x.n_micro)
        assert ("pipeline" in keys) == (x.pp > 1)
        if x.pp > 1:
            assert keys["pipeline"]["pp_schedule"] == SCHEDULES[x.schedule]
