"""Cells about switches against the axes of the layout, the fields of the job, the pool."""

from dataclasses import replace

import pytest

from costmodels.axes import MAX_VALUE
from planner.measure.validate.described import Skip
from planner.measure.validate.prediction import PricedCase, case_of, price
from planner.measure.validate.rows import run_layout_key
from tests.planner.measure.validate.test_predict import HARDWARE, MODELS, POINT

RACK = {"gpu": "gb200-186gb", "gpus_per_node": 4, "intra_gbs": 900, "inter_gbs": 50}
RACKS = HARDWARE | {"rack": RACK}
EXPERTS = {"model": "moe", "ep": 4, "etp": 1, "moe_routing": "forced-balance"}


def priced(**cells: object) -> PricedCase:
    return case_of(replace(POINT, **cells), MODELS, RACKS)  # type: ignore[arg-type]


def test_experts_are_dispatched_overlapped_and_captured_as_stated() -> None:
    one_stage = {"pp": 1, "dp": 8, "schedule": "none"}
    x = priced(
        **EXPERTS,
        **one_stage,
        dispatcher="deepep",
        ep_overlap=True,
        cuda_graph="moe_router+moe_preprocess",
    ).layout
    assert x.switches == (
        ("dispatcher", "deepep"),
        ("ep_overlap", "1f1b"),
        ("cuda_graph", "moe_router+moe_preprocess"),
    )
    words = priced(**EXPERTS, **one_stage, overlap="EP all-to-all overlapped with compute").layout
    assert words.value("ep_overlap") == "1f1b"
    off = priced(
        **EXPERTS, **one_stage, ep_overlap=False, overlap="EP communication overlap"
    ).layout
    assert off.value("ep_overlap") == "off"


def test_all_to_all_is_the_value_at_rest() -> None:
    case = priced(**EXPERTS, dispatcher="alltoall", ep_overlap=False, cuda_graph="none")
    assert case.layout.switches == ()
    assert case.assumptions == ()


def test_switches_of_experts_mean_nothing_to_a_dense_model() -> None:
    assert priced(dispatcher="deepep", ep_overlap=True).layout.switches == ()


def test_a_run_is_priced_as_it_ran_whatever_a_plan_may_have() -> None:
    case = priced(**EXPERTS, dispatcher="alltoall", cuda_graph="layer")
    assert case.layout.value("cuda_graph") == "layer"
    assert case.assumptions == ()


def test_graphs_of_kinds_of_layers_without_a_price_are_left_out() -> None:
    assert priced(cuda_graph="attn+mamba").layout.value("cuda_graph") == "attn"
    assert priced(cuda_graph="mamba").layout.value("cuda_graph") == "none"
    assert "cuda_graph 'all of it': not known, none" in priced(cuda_graph="all of it").assumptions


@pytest.mark.parametrize(
    ("cells", "tp_overlap"),
    [
        ({"tp_overlap": "userbuffers"}, "userbuffers"),
        ({"tp_overlap": "none", "framework": "NeMo 24.07"}, "none"),
        ({"tp_overlap": "async"}, "pieces"),
        ({"tp_overlap": "bulk", "overlap": "async TP"}, "bulk"),
        ({"overlap": "grad reduce + param gather + TP + PP p2p (README)"}, "userbuffers"),
        ({"overlap": "PP p2p"}, "bulk"),
        ({"overlap": "PP p2p", "framework": "NeMo 24.07"}, "userbuffers"),
        ({"overlap": "EP communication overlap", "framework": "Megatron-Bridge"}, "userbuffers"),
        ({"overlap": "vanilla TP"}, "none"),
        ({"overlap": "none (no TP or DP overlap)"}, "none"),
        ({"overlap": "TP", "stack": "eager"}, "none"),
    ],
)
def test_words_about_overlap_are_facts_about_what_they_name(cells, tp_overlap) -> None:
    assert priced(**cells).problem.stack.tp_overlap == tp_overlap


def test_words_about_other_traffic_leave_data_parallelism_alone() -> None:
    assert priced(overlap="TP (userbuffers)").problem.stack.zero1_overlap == "both"
    assert priced(overlap="grad reduce-scatter+PP p2p").problem.stack.zero1_overlap == "reduce"


def test_widths_of_the_job() -> None:
    job = priced(optimizer="adam-bf16-moments").problem.job
    assert job.optimizer_states == "bf16-moments"
    assert job.recipe.state_bytes < priced().problem.job.recipe.state_bytes
    fp8 = priced(precision="fp8", fp8_recipe="tensorwise", fp8_attention=True)
    assert fp8.problem.job.fp8_attention
    gathered = priced(precision="fp8", fp8_recipe="tensorwise", fp8_param_gather=True)
    assert gathered.problem.job.fp8_param_gather
    plain = priced(fp8_param_gather=True)
    assert not plain.problem.job.fp8_param_gather
    assert any("it has no quantised weights: left out" in text for text in plain.assumptions)
    with pytest.raises(Skip, match="optimizer not modelled"):
        priced(optimizer="adamw-8bit")


@pytest.mark.parametrize("text", ["3,5", "Ettt|tttttL", "Et*3|(t)*5L"])
def test_stages_as_stated(text: str) -> None:
    case = priced(stage_layers=text)
    assert case.layout.stage_layers == (3, 5)
    assert case.layout.split == "3-5"
    assert price(case)[0].step_s != price(priced())[0].step_s


def test_stages_that_are_not_those_of_the_run() -> None:
    case = priced(stage_layers="3,3")
    assert case.layout.stage_layers == (4, 4)
    assert "stage_layers are 2 stages of 6 layers: not those of the run" in case.assumptions


def test_what_lies_on_the_host() -> None:
    one_stage = {"pp": 1, "dp": 8, "schedule": "none"}
    assert (
        priced(**one_stage, offload="activations:3 layers").layout.activation_offload_layers == 3
    )
    assert priced(**one_stage, offload="optimizer").layout.optimizer_offload
    huge = priced(**one_stage, offload=f"activations:{10**30} layers")
    assert huge.layout.activation_offload_layers == MAX_VALUE


def test_modules_on_the_host() -> None:
    """Modules of the axis that the model has; others stay, and the row says so."""
    one_stage = {"pp": 1, "dp": 8, "schedule": "none"}
    dense = priced(**one_stage, offload="activations:qkv_linear+expert_fc1+mlp")
    assert dense.layout.value("offload_modules") == "qkv_linear"
    assert dense.layout.activation_offload_layers == 0
    assert [text for text in dense.assumptions if text.startswith("offload of")] == [
        "offload of expert_fc1: not priced, stays",
        "offload of mlp: not priced, stays",
    ]
    experts = priced(**EXPERTS, **one_stage, offload="activations:fused_group_mlp")
    assert experts.layout.value("offload_modules") == "expert_fc1+moe_act"
    assert price(experts)[0].peak_bytes < price(priced(**EXPERTS, **one_stage))[0].peak_bytes
    alone = priced(**one_stage, offload="activations:attn_proj")
    assert alone.layout.value("offload_modules") == "none"
    both = priced(**one_stage, offload="activations:attn_proj+core_attn, optimizer")
    assert both.layout.value("offload_modules") == "core_attn+attn_proj"
    assert both.layout.optimizer_offload


def test_a_power_limit_of_the_run_comes_before_that_of_its_hardware() -> None:
    """(350 / 700)^0.6 of the rate of products, and of nothing else."""
    limited, free = (priced(power_w=x).problem.pool.accelerator for x in (350.0, None))
    assert limited.power_limit_w == 350.0
    share = limited.efficiency.gemm_frac / free.efficiency.gemm_frac
    assert share == pytest.approx((350.0 / free.tdp_w) ** 0.6)
    assert free.tdp_w == 700.0
    assert limited.efficiency.hbm_frac == free.efficiency.hbm_frac


def test_a_block_of_recomputed_layers() -> None:
    x = priced(recompute="full (block, 2 of 8 layers)").layout
    assert (x.recompute, x.recompute_layers) == ("full", 2)


@pytest.mark.parametrize(
    ("n_gpus", "segment", "domain"),
    [
        (256, 64, 64),
        (256, None, 64),
        (144, None, 72),
        (96, None, 48),
        (80, None, 40),
        (64, None, 72),
        (72, 8, 8),
    ],
)
def test_what_a_run_uses_of_a_rack(n_gpus: int, segment: int | None, domain: int) -> None:
    """64 of 72 where the devices are no whole racks: the most nodes of 18 that divide theirs."""
    cells = {"n_gpus": n_gpus, "dp": n_gpus // 4, "gbs": 2 * n_gpus, "hardware": "rack"}
    case = priced(**cells, segment=segment)
    pool = case.problem.pool
    assert pool.scale_up_domain == domain
    assert pool.domain_nodes == (0 if domain == 72 else 18)
    assumed = segment is None and n_gpus in (256, 96, 80)
    assert any("segment not stated" in text for text in case.assumptions) == assumed


def test_layouts_that_differ_in_a_switch_are_not_repeats() -> None:
    keys = {run_layout_key(replace(POINT, line=line)) for line in (1, 2)}
    assert len(keys) == 1
    keys |= {
        run_layout_key(replace(POINT, **cell))
        for cell in ({"cuda_graph": "layer"}, {"segment": 64}, {"fp8_attention": True})
    }
    assert len(keys) == 4
