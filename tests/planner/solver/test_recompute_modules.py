"""Sets of recomputed modules in and out of the product: pins, JSON, neighbours, runs."""

from dataclasses import replace

import pytest

from costmodels.axes import MODULE_SETS, modules_code, modules_of
from costmodels.examples import DEEPSEEK_V3, GPT3_175B, LLAMA3_70B, MIXTRAL_8X7B
from costmodels.shapes import ModelShape
from planner import evaluate
from planner.analyze.neighborhood import neighbours, single_changes
from planner.errors import SearchError, UsageError
from planner.frameworks.runs.nearest_layout import nearest_layout
from planner.specs.search.axis_values import axis_values, layout_from_json, layout_to_json
from searches.rules import broken_module_rule, module_sets

RUN = {"tp": 1, "mbs": 1, "gbs": 16, "recompute": "selective"}


def test_sets_are_named_in_any_order():
    code = modules_code(["layernorm", "mlp"])
    assert axis_values("recompute_modules", "mlp+layernorm", "--pin") == code
    assert axis_values("recompute_modules", "layernorm+mlp", "--pin") == code
    assert axis_values("recompute_modules", "none", "--pin") == 0
    assert MODULE_SETS[code] == "layernorm+mlp"
    assert all(modules_code(modules_of(i)) == i for i in range(len(MODULE_SETS)))
    with pytest.raises(UsageError, match="no module 'layer_norm'"):
        axis_values("recompute_modules", "mlp+layer_norm", "--only")


def test_modules_alone_mean_selective():
    layout = evaluate("llama3-8b", "h100-x8", pins={"recompute_modules": "mlp"}).best.layout
    assert (layout.recompute, layout.recompute_modules) == ("selective", ("mlp",))
    with pytest.raises(SearchError, match="recompute_modules mlp contradicts recompute full"):
        evaluate("llama3-8b", "h100-x8", pins={"recompute": "full", "recompute_modules": "mlp"})
    pins = {"recompute": "selective", "recompute_modules": "none"}
    with pytest.raises(SearchError, match="recompute_modules none contradicts recompute sel"):
        evaluate("llama3-8b", "h100-x8", pins=pins)
    with pytest.raises(SearchError, match="REC002"):
        evaluate("llama3-8b", "h100-x8", pins={"recompute_modules": "moe"})
    with pytest.raises(SearchError, match="REC003"):
        evaluate("mixtral-8x7b", "h100-x512", pins={"ep": 8, "recompute_modules": "moe+moe_act"})


def test_a_layout_goes_through_json():
    layout = evaluate("llama3-8b", "h100-x8", pins={"recompute_modules": "mlp"}).best.layout
    data = layout_to_json(layout)
    assert data["recompute_modules"] == ["mlp"]
    assert layout_from_json(data) == layout
    older = {k: v for k, v in data.items() if k != "recompute_modules"}
    assert layout_from_json(older).recompute_modules == ("core_attn",)


@pytest.mark.parametrize(
    ("shape", "n_sets"),
    [
        (LLAMA3_70B, 1),  # mlp
        (replace(GPT3_175B, flash_attention=False), 3),  # core_attn, mlp, both
        (MIXTRAL_8X7B, 5),  # layernorm or not, with moe_act or moe or neither
        # The norms, the up-projections, the dense layers' mlp, and of experts: none, moe_act,
        # shared_experts, both, moe.
        (DEEPSEEK_V3, 2 * 2 * 2 * 5 - 1),
    ],
    ids=["llama", "unfused", "mixtral", "deepseek"],
)
def test_a_model_has_the_sets_that_its_layers_allow(shape: ModelShape, n_sets: int):
    sets = module_sets(shape)
    assert len(sets) == n_sets
    for code in range(1, len(MODULE_SETS)):
        assert (code in sets) == (not broken_module_rule(shape, code))


@pytest.mark.slow
def test_neighbours_add_and_drop_one_module():
    plan = evaluate("mixtral-8x7b", "h100-x512", pins={"ep": 8, "pp": 4}).best
    problem, layout = plan.breakdown.rows.problem, plan.layout

    def sets(found) -> set[str]:
        named = {x for near in found for x in near.changes}
        return {new for axis, _, new in named if axis == "recompute_modules"}

    near = neighbours(problem, layout, "megatron", pairs=False)
    assert sets(near) == {"layernorm", "moe_act", "moe"}
    some = replace(layout, recompute="selective", recompute_modules=("layernorm",))
    near = neighbours(problem, some, "megatron", pairs=False)
    assert sets(near) == {"moe_act+layernorm", "layernorm+moe"}
    assert any(x.layout == layout for x in near)  # by recompute none
    changes = single_changes(problem, some, "megatron")
    said = {c.new: c.rule for c in changes if c.axis == "recompute_modules"}
    assert said == {"moe_act+layernorm": "", "layernorm+moe": ""}


def test_a_run_keeps_the_modules_that_change_something():
    def read(shape: ModelShape, *names: str):
        stated = {**RUN, "recompute_modules": names}
        return nearest_layout(stated, shape, 4096, 8, 8)

    dense = read(LLAMA3_70B, "layernorm", "mlp")
    assert dense.layout.recompute_modules == ("mlp",)
    assert "without recompute of layernorm" in dense.repairs[0]
    nothing = read(LLAMA3_70B, "layernorm")
    assert (nothing.layout.recompute, nothing.layout.recompute_modules) == ("none", ())
    routed = read(MIXTRAL_8X7B, "moe", "moe_act", "layernorm")
    assert routed.layout.recompute_modules == ("layernorm", "moe")
    assert "recompute of moe alone: moe_act lies in it" in routed.repairs
    core = nearest_layout(RUN, LLAMA3_70B, 4096, 8, 8)
    assert core.layout.recompute_modules == ("core_attn",)
