"""Selective recomputation by module: bytes and times by hand, and what the step makes of them."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.axes import RECOMPUTE_MODULES, modules_code
from costmodels.breakdown import break_down, join_one
from costmodels.comm.collectives import collective_s
from costmodels.comm.placement import place_group
from costmodels.examples import DEEPSEEK_V3, GPT3_175B, LLAMA3_70B, MIXTRAL_8X7B, toy_accelerator
from costmodels.layers.gemm import gemm_s
from costmodels.plans import PlanTable
from costmodels.schedule.timeline import stage_wires
from costmodels.shape_terms import shape_terms
from costmodels.step import join, memory_terms, peak_bytes, stage_times, step_times
from tests.searches.instances import one_in

HBM = 2e12 * 0.8
"""Sustained bytes per second of the toy accelerator; a launch takes 4 us."""
LAUNCH = 4e-6


def terms_of(problem, layout, name, experts=False):
    """Return (seconds again, bytes of attention, bytes of the MLP) of one module of one layer."""
    layers = join_one(problem, layout).layers
    modules = layers.experts.modules if experts else layers.modules
    i = RECOMPUTE_MODULES.index(name)
    return tuple(
        x[i].item() for x in (modules.forward_s, modules.attention_bytes, modules.mlp_bytes)
    )


def selective(layout, *names):
    return replace(
        layout, recompute="selective", recompute_layers=0, recompute_modules=tuple(names)
    )


def product_s(rows, inner, columns):
    rows, inner, columns = (np.array(float(x)) for x in (rows, inner, columns))
    return gemm_s(rows, inner, columns, toy_accelerator(), "bf16", 1.0).item()


# One module ----------------------------------------------------------------------------------


def test_recomputing_the_core_leaves_what_korthikanti_says(toy_problem, plain_layout):
    """34 s b h / t of s b h (34 + 5 a s / h) / t: 96 heads, 2048 tokens, h 12288, t 8 with SP."""
    shape = replace(GPT3_175B, flash_attention=False)
    problem = toy_problem(shape, seq_len=2048, stack="megatron-lm-2022")
    layout = plain_layout(problem, tp=8, dp=1, sp=True)
    kept = join_one(problem, layout).sets.kept_bytes.item()
    less = join_one(problem, selective(layout, "core_attn")).sets.kept_bytes[-1].item()
    unit = 2048 * 12288 / 8
    assert kept / unit == pytest.approx(34 + 5 * 96 * 2048 / 12288)
    assert less / unit == pytest.approx(34)
    # Section 5 of the paper: selective recomputation saves 70 % for GPT-3.
    assert 1 - less / kept == pytest.approx(0.70, abs=0.005)


def test_an_mlp_runs_again_with_its_norm_and_its_collectives(toy_problem, plain_layout):
    """Llama-3 70B, tp 8 with SP, 8192 tokens: h 8192, f 28672."""
    problem = toy_problem(LLAMA3_70B, seq_len=8192)
    layout = plain_layout(problem, tp=8, dp=1, sp=True)
    again, of_attention, of_mlp = terms_of(problem, layout, "mlp")
    # Output of the norm on this rank's share; gate and up, and the activated product.
    assert of_mlp == 8192 * (2 * 8192 / 8 + 6 * 28672 / 8)
    assert of_attention == 0
    products = product_s(8192, 8192, 2 * 28672 / 8) + product_s(8192, 28672 / 8, 8192)
    factor = problem.stack.elementwise_factor
    norm = 8192 * 4 * 8192 / 8 * factor / HBM + LAUNCH
    activation = 8192 * 6 * 28672 / 8 * factor / HBM + LAUNCH
    group = place_group(8, 1, problem.pool, problem.fabric)
    gather = collective_s("all-gather", 2 * 8192 * 8192, group, problem.pool).item()
    gather += 7 * problem.stack.tp_hop_s
    assert problem.stack.tp_overlap in ("none", "bulk")
    assert again == pytest.approx(products + norm + activation + 2 * gather, rel=1e-12)


def test_without_sequence_parallelism_the_norm_is_whole_and_one_sum_is_repeated(
    toy_problem, plain_layout
):
    problem = toy_problem(LLAMA3_70B, seq_len=8192)
    layout = plain_layout(problem, tp=8, dp=1)
    again, _, of_mlp = terms_of(problem, layout, "mlp")
    assert of_mlp == 8192 * (2 * 8192 + 6 * 28672 / 8)
    waits = join_one(problem, layout).layers.tp_forward.exposed_s.item()
    with_sp, _, _ = terms_of(problem, replace(layout, sp=True), "mlp")
    ahead = join_one(problem, replace(layout, sp=True)).layers.tp_forward.exposed_s.item()
    norm = 8192 * 4 * 8192 * 7 / 8 * problem.stack.elementwise_factor / HBM
    assert again - with_sp == pytest.approx((waits - ahead) / 2 + norm, rel=1e-9)


def test_eager_operators_are_dropped_with_their_module(toy_problem, plain_layout):
    """The activated gate 2 f / t, ten bytes a norm, the gathered input, kept whole."""
    problem = toy_problem(LLAMA3_70B, seq_len=8192, stack="eager")
    stack = replace(problem.stack, fused_norms=False)
    problem = replace(problem, stack=stack)
    assert not stack.sp_regather
    layout = plain_layout(problem, tp=8, dp=1, sp=True)
    _, _, of_mlp = terms_of(problem, layout, "mlp")
    by_hand = (2 + 10) * 8192 / 8 + (6 + 2) * 28672 / 8 + 2 * 8192 * 7 / 8
    assert of_mlp == pytest.approx(8192 * by_hand)


def test_latent_attention_drops_heads_and_keeps_latents(toy_problem, plain_layout):
    """DeepSeek-V3: 128 heads, keys of 192, values of 128, latents of 1536 and 512, h 7168."""
    problem = toy_problem(DEEPSEEK_V3, seq_len=4096)
    layout = plain_layout(problem, dp=8)
    again, of_attention, of_mlp = terms_of(problem, layout, "mla_up_proj")
    heads = 2 * 2 * 128 * 192 + 2 * 128 * 128  # queries, keys, values in 16 bits
    assert of_attention == 4096 * (heads + 2 * (1536 + 512))
    assert of_mlp == 0
    products = product_s(4096, 1536, 128 * 192) + product_s(4096, 512, 128 * (128 + 128))
    moved = 4 * (128 * 192 + 128 * 192) + 5 * (1536 + 512)
    rotary = 4096 * moved * problem.stack.elementwise_factor / HBM + LAUNCH
    assert again == pytest.approx(products + rotary, rel=1e-12)


def test_up_projections_gather_the_latents_again(toy_problem, plain_layout):
    problem = toy_problem(DEEPSEEK_V3, seq_len=4096)
    layout = plain_layout(problem, tp=2, dp=4, sp=True)
    layers = join_one(problem, layout).layers
    i = RECOMPUTE_MODULES.index("mla_up_proj")
    group = place_group(2, 1, problem.pool, problem.fabric)
    size = 2 * 4096 * (1536 + 512 + 64)
    gather = collective_s("all-gather", size, group, problem.pool).item() + problem.stack.tp_hop_s
    assert layers.modules.tp.exposed_s[i].item() == pytest.approx(gather, rel=1e-12)
    assert layers.modules.tp.total_s[i].item() == pytest.approx(gather, rel=1e-12)


def test_norms_count_where_they_stand_alone(toy_problem, plain_layout):
    """Before latent attention and before routed experts; 2 h bytes each, 4 h of traffic."""
    layout = plain_layout(toy_problem(LLAMA3_70B), dp=8)
    one = 4096 * 4 * 7168 * toy_problem(DEEPSEEK_V3).stack.elementwise_factor / HBM + LAUNCH
    found = terms_of(toy_problem(DEEPSEEK_V3), layout, "layernorm")
    assert found == (pytest.approx(one), 4096 * 2 * 7168, 0)
    found = terms_of(toy_problem(DEEPSEEK_V3), layout, "layernorm", experts=True)
    assert found == (pytest.approx(2 * one), 4096 * 2 * 7168, 4096 * 2 * 7168)
    assert terms_of(toy_problem(LLAMA3_70B), layout, "layernorm") == (0, 0, 0)
    assert terms_of(toy_problem(MIXTRAL_8X7B), layout, "layernorm") == (0, 0, 0)
    found = terms_of(toy_problem(MIXTRAL_8X7B), layout, "layernorm", experts=True)
    assert found[1:] == (0, 4096 * 2 * 4096)


def test_experts_drop_all_that_they_keep(toy_problem, plain_layout):
    """DeepSeek-V3, ep 8: rows of 8 copies a token; expert and shared expert of width 2048."""
    problem = toy_problem(replace(DEEPSEEK_V3, imbalance=1.0), seq_len=4096)
    layout = replace(plain_layout(problem, dp=8), ep=8)
    rows = 8 * 4096
    layers = join_one(problem, layout).layers.experts
    _, _, activation = terms_of(problem, layout, "moe_act", experts=True)
    assert activation == rows * 2 * 2048
    shared_again, _, shared = terms_of(problem, layout, "shared_experts", experts=True)
    assert shared == 4096 * 6 * 2048
    again, _, everything = terms_of(problem, layout, "moe", experts=True)
    assert everything == rows * (6 * 2048 + 2 * 7168) + 8 * 256 * 4096 + shared
    forward = layers.routed.forward_s + layers.exchange.forward_s
    assert again == pytest.approx(forward.item() + shared_again, rel=1e-12)
    act, _, _ = terms_of(problem, layout, "moe_act", experts=True)
    moved = rows * 6 * 2048 * problem.stack.elementwise_factor / HBM
    assert act == pytest.approx(moved + LAUNCH, rel=1e-12)


# Sets of modules -----------------------------------------------------------------------------

SETS = [
    ("layernorm",),
    ("moe_act", "layernorm", "mla_up_proj"),
    ("moe", "mlp"),
    ("layernorm", "mla_up_proj", "moe"),
    ("mlp", "shared_experts"),
]


@pytest.mark.parametrize("names", SETS, ids="+".join)
@pytest.mark.parametrize("mtp", [0, 1])
def test_a_set_adds_up_over_the_layers(toy_problem, plain_layout, names, mtp):
    """Two dense layers, four with experts, and the module of multi-token prediction behind."""
    shape = replace(DEEPSEEK_V3, layers=6, dense_layers=2, mtp_layers=mtp)
    problem = toy_problem(shape, seq_len=4096, gbs=16)
    layout = replace(plain_layout(problem, tp=2, pp=1, dp=4, sp=True, zero=1), ep=4)
    chosen = selective(layout, *names)
    plain, again = break_down(problem, layout), break_down(problem, chosen)
    layers = plain.rows.layers
    at = [RECOMPUTE_MODULES.index(name) for name in names]
    dense = sum(layers.modules.forward_s[i].item() for i in at)
    routed = sum(layers.experts.modules.forward_s[i].item() for i in at)
    per_micro = 2 * dense + (4 + mtp) * routed
    m = layout.n_micro
    slower = sum(again.time_s[t] - plain.time_s[t] for t in ("recompute", "tp", "ep", "cp"))
    assert slower == pytest.approx(m * per_micro, rel=1e-9)
    unchanged = set(plain.time_s) - {"recompute", "tp", "ep", "dp", "overlap", "straggler"}
    for term in unchanged:
        assert again.time_s[term] == pytest.approx(plain.time_s[term], abs=1e-12), term
    less = {}
    for kind, modules in (("dense", layers.modules), ("routed", layers.experts.modules)):
        parts = [
            sum(x[i].item() for i in at) for x in (modules.attention_bytes, modules.mlp_bytes)
        ]
        less[kind] = parts
    dropped = 2 * sum(less["dense"]) + (4 + mtp) * sum(less["routed"])
    saved = plain.stages[0]["activations"] - again.stages[0]["activations"]
    assert saved == pytest.approx(
        dropped, rel=1e-9
    )  # one micro-batch in flight without a pipeline
    once = max(*less["dense"], *less["routed"])
    logits = layers.logits_bytes.item()
    working = layers.working_bytes.item()
    more = again.stages[0]["working"] - plain.stages[0]["working"]
    by_hand = max(0.0, once + working - logits) - max(0.0, working - logits)
    assert more == pytest.approx(by_hand, rel=1e-9)


@pytest.mark.parametrize("names", one_in(3, SETS), ids="+".join)
def test_tables_price_a_set_as_a_plan_alone(toy_problem, plain_layout, names):
    shape = replace(DEEPSEEK_V3, layers=8, dense_layers=3, mtp_layers=1)
    problem = toy_problem(shape, seq_len=4096, gbs=32)
    plain = replace(plain_layout(problem, tp=2, pp=2, dp=2, sp=True, zero=1), ep=2)
    layouts = [
        plain,
        selective(plain, *names),
        replace(plain, recompute="full", recompute_layers=2),
        selective(plain, "moe_act"),
    ]
    table = PlanTable.from_layouts(layouts)
    rows = join(problem, shape_terms(problem, table.shapes, table.shardings), table)
    steps, peaks = step_times(rows), peak_bytes(rows)
    for i, layout in enumerate(layouts):
        alone = join_one(problem, layout)
        assert table.layout(i, 8) == layout
        assert steps[i] == pytest.approx(step_times(alone).item(), rel=1e-12)
        assert peaks[i] == pytest.approx(peak_bytes(alone).item(), rel=1e-12)
        found = break_down(problem, layout)
        assert found.peak_bytes == pytest.approx(peaks[i], rel=1e-12)
        assert sum(found.time_s.values()) == pytest.approx(found.step_s, rel=1e-12)


def test_traffic_and_timeline_repeat_the_collectives(toy_problem, plain_layout):
    shape = replace(DEEPSEEK_V3, layers=4, dense_layers=2, mtp_layers=0)
    problem = toy_problem(shape, seq_len=4096, gbs=8)
    layout = replace(plain_layout(problem, tp=2, dp=4, sp=True, zero=1), ep=4)
    plain = break_down(problem, layout)
    names = ("mla_up_proj", "mlp", "moe")
    again = break_down(problem, selective(layout, *names))
    for axis in ("tp", "ep"):
        terms = again.time_s[axis] - plain.time_s[axis]
        assert terms > 0
        waits = [sum(t.exposed_s for t in x.transfers if t.axis == axis) for x in (plain, again)]
        assert waits[1] - waits[0] == pytest.approx(terms, rel=1e-9)
        wires = [stage_wires(x.rows, x.layout)[0].backward[axis].exposed_s for x in (plain, again)]
        assert layout.n_micro * (wires[1] - wires[0]) == pytest.approx(terms, rel=1e-9)
    calls = [sum(t.n_calls for t in x.transfers if t.axis == "tp") for x in (plain, again)]
    # A gather and a reduction of each of four MLPs and shared experts; gathers of two latents.
    assert calls[1] - calls[0] == layout.n_micro * (4 * 2 + 2 * 4)
    both = [
        sum(t.n_calls for t in x.transfers if t.collective == "all-to-all") for x in (plain, again)
    ]
    # Of two layers: tokens go and come, weights go.
    assert both[1] - both[0] == layout.n_micro * 2 * 3


def test_more_modules_never_keep_more_nor_take_less(toy_problem, plain_layout):
    problem = toy_problem(replace(DEEPSEEK_V3, layers=4, dense_layers=1), seq_len=4096, gbs=8)
    layout = replace(plain_layout(problem, tp=2, dp=4, sp=True, zero=1), ep=4)
    grown: list[tuple[str, ...]] = [(), ("layernorm",), ("layernorm", "moe_act")]
    grown += [(*grown[-1], "mla_up_proj"), (*grown[-1], "mla_up_proj", "shared_experts")]
    found = [selective(layout, *names) if names else layout for names in grown]
    rows = [join_one(problem, x) for x in found]
    times = [stage_times(x).backward_s.item() for x in rows]
    kept = [memory_terms(x)["activations"].item() for x in rows]
    assert times == sorted(times)
    assert kept == sorted(kept, reverse=True)


def test_weight_gradients_that_wait_need_what_was_computed_again(toy_problem, plain_layout):
    """Zero bubble: recomputed modules count in full until their weight gradient, scores do not."""
    shape = replace(LLAMA3_70B, layers=8, flash_attention=False)
    problem = toy_problem(shape, seq_len=2048, gbs=32)
    layout = plain_layout(problem, pp=8, dp=1, schedule="zb-h1")
    first = [
        break_down(problem, x).stages[-1]["activations"]
        for x in (layout, selective(layout, "mlp"), selective(layout, "core_attn"))
    ]
    # The last rank holds one chunk before its input's gradient, the others wait for weights.
    assert first[2] < first[1] <= first[0]


# Names ---------------------------------------------------------------------------------------


def test_a_selective_layout_names_its_modules_in_order(plain_layout, toy_problem):
    layout = plain_layout(toy_problem(LLAMA3_70B), dp=8)
    assert layout.recompute_modules == ()
    assert replace(layout, recompute="selective").recompute_modules == ("core_attn",)
    named = selective(layout, "mlp", "layernorm", "mlp")
    assert named.recompute_modules == ("layernorm", "mlp")
    assert named.recompute_text == "layernorm+mlp"
    assert selective(layout).recompute_text == "selective"
    assert replace(named, recompute="none").recompute_modules == ()
    assert modules_code(RECOMPUTE_MODULES) == 255
