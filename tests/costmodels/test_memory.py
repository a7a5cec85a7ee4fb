"""Memory by term: published formulas to the last digit, published peaks within their tolerance."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.axes import SCHEDULES
from costmodels.breakdown import break_down, join_one
from costmodels.examples import GPT3_175B, LLAMA3_8B
from costmodels.layers.params import layer_params
from costmodels.memory import (
    MicroBatch,
    checkpoint_bytes,
    flat_copy_bytes,
    gathered_bytes,
    in_flight_chunks,
    layer_activation_bytes,
    logits_bytes,
    queue_is_full,
    scratch_bytes,
    state_bytes_per_param,
    working_bytes,
    zero3_working_bytes,
)
from costmodels.parameters import embedding_params, head_params
from costmodels.precision import RECIPES
from costmodels.schedule.pipeline import rank_program
from costmodels.shapes import ModelShape
from costmodels.stacks import EAGER, FUSED, STACKS
from costmodels.step import memory_terms, peak_bytes
from tests.costmodels import korthikanti

GIB = 2.0**30
GPIPE, ONE_F_ONE_B, INTERLEAVED = (SCHEDULES.index(x) for x in ("gpipe", "1f1b", "interleaved"))


MODELS = {
    short: korthikanti.MODELS[name]
    for short, name in (
        ("22b", "megatron-22b"),
        ("175b", "gpt3-175b"),
        ("530b", "mt-nlg-530b"),
        ("1t", "gpt-1t"),
    )
}
# Micro-batch, tp, pp, vpp of each.
RUNS = {"22b": (4, 8, 1, 1), "175b": (1, 8, 8, 3), "530b": (1, 8, 35, 3), "1t": (1, 8, 64, 1)}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("t", [1, 2, 8])
def test_the_activation_formulas_of_korthikanti_et_al_exactly(name, t):
    shape, b, s = MODELS[name], RUNS[name][0], 2_048
    h, a = shape.hidden, shape.heads
    sbh = s * b * h

    def kept(sp: int, scores: int) -> float:
        return float(layer_activation_bytes(shape, FUSED, MicroBatch(s * b, s), t, sp, scores))

    exactly = {"rel": 1e-14, "abs": 0}
    # Equation 1 (t = 1), 2 (tensor parallel), 4 (and sequence parallel), section 5 (selective).
    assert kept(0, 1) == pytest.approx(sbh * (10 + 24 / t + 5 * a * s / (h * t)), **exactly)
    assert kept(1, 1) == pytest.approx(sbh / t * (34 + 5 * a * s / h), **exactly)
    assert kept(0, 0) == pytest.approx(sbh * (10 + 24 / t), **exactly)
    assert kept(1, 0) == pytest.approx(sbh / t * 34, **exactly)
    if t == 1:
        assert kept(0, 1) == pytest.approx(sbh * (34 + 5 * a * s / h), **exactly)
    assert float(checkpoint_bytes(shape, s * b, t, 0)) == 2 * sbh
    assert float(checkpoint_bytes(shape, s * b, t, 1)) == 2 * sbh / t


def test_the_activations_of_gpt3_and_its_share_of_scores():
    # 5 a s / h = 80: the scores are 70 % of a layer; all 96 layers 275 GB at b = 1.
    layer = float(layer_activation_bytes(MODELS["175b"], FUSED, MicroBatch(2048, 2048), 1, 0, 1))
    assert layer * 96 == pytest.approx(275.4e9, rel=1e-3)
    assert layer == 2048 * 12_288 * 114


@pytest.mark.parametrize(
    ("name", "sp", "selective", "published_gib"),
    [
        # Activations of the first pipeline rank as calculon (caa4b11) tabulates the paper's
        # figure 7: 59.2500 and 9.5625 GiB (22B), 66.8438 and 12.3516 GiB (175B).
        ("22b", 0, False, 59.25),
        ("22b", 1, True, 9.5625),
        ("175b", 0, False, 66.84375),
        ("175b", 1, True, 12.3515625),
    ],
)
def test_published_activation_totals(name, sp, selective, published_gib):
    shape, (b, t, p, v) = MODELS[name], RUNS[name]
    layer = layer_activation_bytes(
        shape, FUSED, MicroBatch(2048 * b, 2048), t, sp, 0 if selective else 1
    )
    code = INTERLEAVED if v > 1 else ONE_F_ONE_B
    in_flight = in_flight_chunks(code, 0, p, v, 64) / v
    assert in_flight == pytest.approx(p * (1 + (p - 1) / (p * v)) if v > 1 else p, rel=1e-15)
    total = float(layer * in_flight * shape.layers / p)
    assert total / GIB == pytest.approx(published_gib, rel=1e-12)


def test_the_rows_of_a_plan_hold_the_published_total(toy_problem, toy_pool, plain_layout):
    # 175B again, through the whole machine: + token ids (8 B) and the dropout mask (h/t with SP).
    problem = toy_problem(MODELS["175b"], toy_pool(8), "megatron-lm-2022", None, 2048, 64, "fp16")
    layout = plain_layout(problem, tp=8, pp=8, vpp=3, sp=True, recompute="selective")
    terms = memory_terms(join_one(problem, layout))
    ends = 31 / 3 * 2048 * (8 + 12_288 / 8)
    assert (terms["activations"][0, 0] - ends) / GIB == pytest.approx(12.3515625, rel=1e-12)


def test_llama_like_activations():
    # 8 h + 4 h_q + 4 h_kv + 4 a + 6 f: 8B: 139,392 B a token and layer, 34.0 h.
    by_hand = 8 * 4096 + 4 * 4096 + 4 * 1024 + 4 * 32 + 6 * 14_336
    assert by_hand == 139_392
    assert float(layer_activation_bytes(LLAMA3_8B, FUSED, MicroBatch(1, 8192), 1, 0, 1)) == by_hand
    assert (
        float(layer_activation_bytes(LLAMA3_8B, FUSED, MicroBatch(1, 8192), 8, 1, 1))
        == by_hand / 8
    )
    # Without SP the two norm inputs and outputs stay whole; at t = 16 one KV head a rank.
    unsplit = 8 * 4096 + (by_hand - 8 * 4096) / 8
    assert float(layer_activation_bytes(LLAMA3_8B, FUSED, MicroBatch(1, 8192), 8, 0, 1)) == unsplit
    whole = (8 * 4096 + 4 * 4096 + 4 * 32 + 6 * 14_336) / 16 + 4 * 128
    assert float(layer_activation_bytes(LLAMA3_8B, FUSED, MicroBatch(1, 8192), 16, 1, 1)) == whole


def test_without_dropout_no_masks():
    quiet = replace(MODELS["175b"], dropout=False)
    one = float(layer_activation_bytes(quiet, FUSED, MicroBatch(1, 2048), 1, 0, 1)) / 12_288
    assert one == 32 + 4 * 96 * 2048 / 12_288


ZERO_TABLE = {
    # GB on each of 8 devices, 7e9 parameters, ZeRO 0 to 3.
    ("fp16-grads", "adam"): (112.0, 38.5, 26.25, 14.0),  # 16 N: ZeRO paper, figure 1's recipe
    ("bf16-grads", "adam"): (112.0, 38.5, 26.25, 14.0),
    ("bf16", "adam"): (126.0, 52.5, 28.0, 15.75),  # 18 N: fp32 main gradients
    ("bf16-true", "adam"): (56.0, 31.5, 19.25, 7.0),  # 8 N: no copy in fp32
    ("bf16-both", "adam"): (140.0, 66.5, 29.75, 17.5),  # 20 N: bf16 and fp32 gradients
    **{
        (f"fp8-{x}", "adam"): (126.0, 52.5, 28.0, 15.75)  # as bf16
        for x in ("delayed", "tensorwise", "blockwise", "mxfp8", "rowwise")
    },
    ("nvfp4", "adam"): (126.0, 52.5, 28.0, 15.75),
    ("fp16", "adam"): (140.0, 42.0, 29.75, 17.5),  # 20 N: 28 + 112/8, 14 + 126/8, 140/8
    ("fp32", "adam"): (112.0, 63.0, 38.5, 14.0),  # 28 + 28 + 56/8
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_zero_table(recipe):
    held = state_bytes_per_param(RECIPES[recipe], np.arange(4), 8.0) * 7.0
    assert held.tolist() == pytest.approx(list(ZERO_TABLE[recipe]), rel=1e-15)
    alone = state_bytes_per_param(RECIPES[recipe], np.arange(4), 1.0)
    assert alone.tolist() == [RECIPES[recipe].total_bytes] * 4


@pytest.mark.parametrize(
    ("stack", "precision", "held"),
    [
        ("megatron-core", "fp16", [20, 4 + 16 / 8, 2 + 18 / 8, 20 / 8]),  # replayed: fp32 copy cut
        ("megatron-deepspeed", "fp16", [20, 4 + 16 / 8, 2 + 18 / 8, 20 / 8]),
        ("aleph-alpha", "fp16", [20, 8 + 12 / 8, 2 + 18 / 8, 20 / 8]),  # whole
        ("hf-fsdp2", "fp16", [18, 6 + 12 / 8, 2 + 16 / 8, 16 / 8]),  # one gradient, cast weights
        ("hf-fsdp2", "bf16", [18, 6 + 12 / 8, 2 + 16 / 8, 16 / 8]),
        ("torchtitan", "fp32", [16, 8 + 8 / 8, 4 + 12 / 8, 16 / 8]),  # nothing is cast
    ],
)
def test_what_a_stack_keeps_of_a_parameter(stack, precision, held):
    found = state_bytes_per_param(
        RECIPES[precision, "adam"], np.arange(4), 8.0, stack=STACKS[stack]
    )
    assert found.tolist() == held


@pytest.mark.parametrize(
    ("precision", "n", "per_stage"),
    [
        # 0.3e9 parameters over 8 ranks fit in one bucket: 2 x 0.3e9 gathered; the partition's
        # gradients flattened, fp16 (their cast is a state), 16 bits with the cast, or fp32.
        ("fp16", 0.3e9, [1.2e9, 0.6e9 + 0.075e9, 0.6e9 + 0.075e9, 0.0]),
        ("bf16-grads", 0.3e9, [0.0, 0.6e9 + 0.225e9, 0.6e9 + 0.225e9, 0.0]),
        ("bf16", 0.3e9, [0.0, 0.6e9 + 0.15e9, 0.6e9 + 0.15e9, 0.0]),
        # fp32 gradients beside 16-bit ones lie flat already.
        ("bf16-both", 0.3e9, [0.0, 0.6e9, 0.6e9, 0.0]),
        # 1.3e9: gathered in 2 shards of 0.65e9, a second bucket of 5e8 beside it.
        ("fp16", 1.3e9, [5.2e9, 1.3e9 + 1e9 + 0.325e9, 1.3e9 + 1e9 + 0.325e9, 0.0]),
    ],
)
def test_a_flat_optimizer_copies_what_it_moves(precision, n, per_stage):
    recipe, stages = RECIPES[precision, "adam"], np.arange(4)
    found = flat_copy_bytes(recipe, STACKS["megatron-deepspeed"], n, stages, 8.0)
    assert found.tolist() == pytest.approx(per_stage)
    assert not flat_copy_bytes(recipe, FUSED, n, stages, 8.0).any()


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("ranks", [1.0, 8.0, 64.0])
def test_zero_2_holds_what_deepspeed_estimates(precision, ranks):
    """2 + 18 / D bytes a parameter (estimate_zero2_model_states_mem_needs); beyond it what an
    update copies of its partition, which the estimate leaves out: at most 4 / D."""
    recipe, stack, n = RECIPES[precision, "adam"], STACKS["deepspeed"], 1e9
    states = n * state_bytes_per_param(recipe, 2, ranks, stack=stack).item()
    copies = flat_copy_bytes(recipe, stack, n, 2, ranks).item()
    gathered = recipe.grad_wire_bytes * 0.5e9 + recipe.param_wire_bytes * 0.5e9
    estimate = n * (2.0 + 18.0 / ranks)
    assert estimate <= states + copies - gathered <= estimate + 4.0 * n / ranks


def test_gradients_on_the_host_are_not_flattened_on_the_device():
    args = RECIPES["fp16", "adam"], STACKS["deepspeed"], 0.4e9, 2, 4.0
    assert flat_copy_bytes(*args).item() == pytest.approx(0.8e9 + 0.2e9)
    assert flat_copy_bytes(*args, offload=1).item() == pytest.approx(0.8e9)


@pytest.mark.parametrize(
    ("schedule", "p", "v", "m", "chunks"),
    [
        (GPIPE, 4, 1, 8, [8, 8, 8, 8]),
        (ONE_F_ONE_B, 4, 1, 8, [4, 3, 2, 1]),
        (ONE_F_ONE_B, 4, 1, 2, [2, 2, 2, 1]),
        (INTERLEAVED, 4, 2, 8, [11, 9, 7, 5]),
        (INTERLEAVED, 8, 4, 64, [39, 37, 35, 33, 31, 29, 27, 25]),
        (INTERLEAVED, 4, 2, 4, [8, 8, 7, 5]),
    ],
)
def test_chunks_in_flight(schedule, p, v, m, chunks):
    assert in_flight_chunks(schedule, np.arange(p), p, v, m).tolist() == chunks


def test_logits_of_llama3_8b():
    # 8192 tokens * 128256: 6 B fused; 12 B in 2021; 14 B eager; over t = 8 with padding. Gathered
    # over tp: all of the vocabulary, and 14 B more for the gather.
    one, eight = np.array([1], dtype=np.int32), np.array([8], dtype=np.int32)
    assert logits_bytes(LLAMA3_8B, FUSED, 8192, one).item() == 8192 * 128_256 * 6
    old = STACKS["megatron-lm-2021"]
    assert logits_bytes(LLAMA3_8B, old, 8192, one).item() == 8192 * 128_256 * 12
    assert logits_bytes(LLAMA3_8B, EAGER, 8192, eight).item() == 8192 * 129_024 / 8 * 14
    gathered = replace(EAGER, logits_sharded=False)
    assert logits_bytes(LLAMA3_8B, gathered, 8192, eight).item() == 8192 * 129_024 * (14 + 14)
    assert gathered_bytes(LLAMA3_8B, gathered, 8192, eight).item() == 8192 * 129_024 * 14
    assert gathered_bytes(LLAMA3_8B, gathered, 8192, one).item() == 0.0
    assert gathered_bytes(LLAMA3_8B, EAGER, 8192, eight).item() == 0.0


@pytest.mark.parametrize(("sp", "split"), [(False, 1), (True, 4)])
def test_the_last_stage_also_keeps_the_final_norm(toy_problem, plain_layout, sp, split):
    # Two micro-batches of 4096 tokens, V = 32000 -> 32256 over 4: 6 B a logit, norm in and out.
    problem = toy_problem()
    rows = join_one(problem, plain_layout(problem, tp=4, pp=2, dp=8, mbs=2, sp=sp))
    by_hand = 8192 * (6 * 32_256 / 4 + 4 * 2048 / split)
    logits = memory_terms(rows)["logits"][:, 0]
    assert logits[0] == 0.0
    assert logits[1] == by_hand


def test_messages_context_and_communicators(toy_problem, toy_pool, plain_layout):
    problem = toy_problem(stack="megatron-core", pool=toy_pool(8))
    alone = memory_terms(join_one(problem, plain_layout(problem, dp=8)))
    piped = memory_terms(join_one(problem, plain_layout(problem, tp=4, pp=8, dp=2)))
    wide = memory_terms(join_one(problem, plain_layout(problem, tp=4, pp=4, dp=4)))
    # Two tensors of 2 s h bytes to and from the neighbours; the layer's temporaries beside them.
    layer = [
        float(
            working_bytes(problem.shape, 4096, t) + scratch_bytes(problem.shape, problem.stack, t)
        )
        for t in (1, 4)
    ]
    lone_loss = alone["logits"][0, 0]
    scratch = float(scratch_bytes(problem.shape, problem.stack, 1))
    assert alone["working"][0, 0] == scratch + max(0.0, layer[0] - scratch - lone_loss)
    assert piped["working"][0, 0] == layer[1] + 2 * 2 * 4096 * 2048
    # 1.5 GiB, and 0.4 for each communicator that leaves the node: none, pp, pp and dp.
    found = [x["overhead"][0, 0] / GIB for x in (alone, piped, wide)]
    assert found == pytest.approx([1.5, 1.9, 2.3])
    share = alone["fragmentation"] / alone["activations"]
    assert share == pytest.approx(0.05)


def test_scratch_gradients_of_llama3_70b_shapes():
    # 2 B * 8192 * (10240 + 8192 + 57344 + 28672)/2 at t = 2 = 855.6 MB (0.8 GiB).
    shape = replace(LLAMA3_8B, hidden=8192, heads=64, ffn=28_672)
    assert float(scratch_bytes(shape, FUSED, 2)) == 8192 * (10_240 + 8_192 + 57_344 + 28_672)
    assert float(scratch_bytes(shape, EAGER, 2)) == 0.0


def test_a_gather_of_the_logits_is_gone_before_the_last_layer_runs_backward(
    toy_problem, plain_layout
):
    # 4096 tokens, V = 32000 -> 32256 over 4: 28 B a logit at the loss, 14 B beside a layer, whose
    # temporaries are 4096 (6 f / t + 6 h); V / t and h / t where the stack keeps shards.
    whole = toy_problem(stack=replace(EAGER, logits_sharded=False))
    found = memory_terms(join_one(whole, plain_layout(whole, tp=4, dp=2)))
    layer = float(working_bytes(whole.shape, 4096, 4))
    assert found["logits"][0, 0] == 4096 * (28 * 32_256 + 4 * 2048)
    assert layer < 4096 * 14 * 32_256
    assert found["working"][0, 0] == 0.0
    alone = memory_terms(join_one(whole, plain_layout(whole, tp=1, dp=8)))
    assert alone["logits"][0, 0] == 4096 * (14 * 32_000 + 4 * 2048)
    assert alone["working"][0, 0] == float(working_bytes(whole.shape, 4096, 1))


def test_layers_ahead_that_fill_the_queue_of_launches():
    # Chunks in flight less one, times L / (p v) + 1: 32 layers on 4 ranks of 2 chunks, 3 chunks
    # ahead 15, 4 ahead 20.
    at = {"blocking_p2p": False}
    assert not queue_is_full(32, 4, 2, 4, 1, **at)
    assert queue_is_full(32, 4, 2, 5, 1, **at)
    # The last rank holds one micro-batch: it never runs ahead. Nothing waits without a pipeline.
    assert queue_is_full(32, 4, 1, np.array([4, 1]), 1, **at).tolist() == [True, False]
    assert queue_is_full(2, 1, 1, 1, 4, blocking_p2p=True)
    # Messages that block behind groups over three domains hold up the host.
    assert queue_is_full(32, 8, 1, 8, np.array([1, 2, 3]), blocking_p2p=True).tolist() == [
        True,
        True,
        False,
    ]


def test_queued_tensors_of_nanotron(toy_problem, plain_layout):
    # 42 tensors of 2 * 4096 * 2048 bytes with tp, none without.
    problem = toy_problem(stack=STACKS["nanotron"])
    quiet = toy_problem(stack=replace(STACKS["nanotron"], queued_tensors=0.0))
    for tp, more in ((1, 0.0), (2, 42 * 2 * 4096 * 2048)):
        layout = plain_layout(problem, tp=tp, dp=8 // tp)
        held, without = (memory_terms(join_one(x, layout))["working"] for x in (problem, quiet))
        assert held[0, 0] - without[0, 0] == more


def test_working_set_by_hand():
    # Gradients of gate, up (4 f) and their product (2 f), three full-width bf16 tensors.
    by_hand = 8192 * (6 * 14_336 / 2 + 6 * 4_096)
    assert float(working_bytes(LLAMA3_8B, 8192, 2)) == by_hand


def test_what_eager_code_keeps_by_hand():
    # 8B at t = 2, a token: gate 2 f/2, nothing for rotation, two norms 10 h each
    # (whole without SP, halved with it), gathered inputs 4 h (t - 1)/t with SP.
    plain = replace(EAGER, fused_norms=False)
    split = 14_336
    for sp, whole in ((0, 20 * 4096), (1, 20 * 4096 / 2 + 4 * 4096 / 2)):
        fused, eager = (
            float(layer_activation_bytes(LLAMA3_8B, stack, MicroBatch(1, 8192), 2, sp, 1))
            for stack in (FUSED, plain)
        )
        assert eager - fused == split + whole
    # Scores: 4 B each beside the fused softmax's, unless the core is recomputed.
    naive = replace(EAGER, fused_softmax=False)
    shape = replace(LLAMA3_8B, flash_attention=False)
    for keep in (0, 1):
        more = [
            float(layer_activation_bytes(shape, x, MicroBatch(1, 8192), 2, 0, keep))
            for x in (EAGER, naive)
        ]
        assert more[1] - more[0] == keep * 4 * 32 * 8192 / 2


def test_the_loss_and_the_last_layer_do_not_add_up(toy_problem, plain_layout):
    # On the last stage the larger of logits and a layer's temporaries counts, not their sum.
    problem = toy_problem()
    layout = plain_layout(problem, pp=2, dp=16, mbs=2)
    terms = memory_terms(join_one(problem, layout))
    passing = float(working_bytes(problem.shape, 8192, 1))
    messages = 2 * 2 * 8192 * 2048
    scratch = float(scratch_bytes(problem.shape, problem.stack, 1))
    assert terms["working"][0, 0] == passing + scratch + messages
    assert terms["logits"][1, 0] > passing
    assert terms["working"][1, 0] == scratch + messages


def test_zero3_keeps_two_units_and_zero2_their_gradients():
    recipe = RECIPES["bf16", "adam"]
    held = zero3_working_bytes(recipe, 100.0, 500.0, np.arange(4))
    assert held.tolist() == [0, 0, 600 * 2, 600 * 4]
    small_ends = zero3_working_bytes(recipe, 100.0, 5.0, 3)
    assert float(small_ends) == 200 * 4


def test_full_recompute_keeps_checkpoints_and_one_layer(toy_problem, plain_layout):
    problem = toy_problem()
    row = join_one(problem, plain_layout(problem, tp=2, pp=4, dp=8, sp=True, recompute="full"))
    terms, layer = memory_terms(row), row.layers
    by_hand = 4 * (6 * 2 * 4096 * 2048 / 2 + 8 * 4096)  # 4 in flight, 6 layers, token ids
    assert terms["activations"][0, 0] == by_hand
    none = join_one(problem, plain_layout(problem, tp=2, pp=4, dp=8, sp=True))
    more = terms["working"] - memory_terms(none)["working"]
    assert more[0, 0] == pytest.approx(layer.kept_bytes[row.index[0]], rel=1e-12)


def test_partial_recompute_lies_between(toy_problem, plain_layout):
    problem = toy_problem()
    layouts = [
        plain_layout(problem, pp=4, dp=8, recompute="full" if k else "none", recompute_layers=k)
        for k in (0, 1, 3, 6)
    ]
    kept = [memory_terms(join_one(problem, x))["activations"][0, 0] for x in layouts]
    assert kept == sorted(kept, reverse=True)
    whole, mark = (24 / 4) * 4, 2 * 4096 * 2048
    layer = float(
        layer_activation_bytes(problem.shape, problem.stack, MicroBatch(4096, 4096), 1, 0, 1)
    )
    assert kept[0] - kept[2] == pytest.approx(4 * 3 * (layer - mark), rel=1e-12)
    assert kept[0] == pytest.approx(whole * layer + 4 * 8 * 4096, rel=1e-12)


SMX = {
    # SimuMax configs: Llama-3 with few layers; the 405B vocabulary is padded to 128384.
    "smx-llama3-70b-l12": ModelShape(
        "70b-l12", 12, 8192, 64, 8, 128, 28_672, gated=True, vocab=128_256, tied=False
    ),
    "smx-llama3-405b-l4": ModelShape(
        "405b-l4",
        4,
        16_384,
        128,
        8,
        128,
        53_248,
        gated=True,
        vocab=128_256,
        tied=False,
        padded_vocab=128_384,
    ),
}
MEDIAN_TOLERANCE, WORST_TOLERANCE = 0.02, 0.03
"""Against the 24 dense rows: reached 0.7 % in the median and 2.5 % at worst, mostly too low."""


def test_peak_memory_of_the_measured_dense_rows(read_rows, real_pool, toy_problem, plain_layout):
    errors = []
    for row in read_rows("smx_memory.csv"):
        pool = real_pool("b200-sxm-180gb")
        gbs = int(row["gbs"])
        problem = toy_problem(SMX[row["model"]], pool, "megatron-core", None, 4096, gbs)
        layout = plain_layout(
            problem, int(row["tp"]), int(row["pp"]), int(row["dp"]), zero=1, sp=row["sp"] == "1"
        )
        found = break_down(problem, layout)
        # "Max allocated" sees neither the CUDA context and NCCL nor what the allocator wastes.
        unseen = ("overhead", "fragmentation")
        allocated = max(
            sum(size for term, size in stage.items() if term not in unseen)
            for stage in found.stages
        )
        errors.append(allocated / GIB / float(row["peak_gib"]) - 1)
    assert len(errors) == 24
    assert np.median(np.abs(errors)) < MEDIAN_TOLERANCE
    assert np.max(np.abs(errors)) < WORST_TOLERANCE


def replayed_peak(layout, rank: int, chunks: list[float]) -> float:
    """The most that a rank holds over its program, given what each chunk keeps."""
    held = most = 0.0
    for stage, _, backward in rank_program(
        layout.schedule, rank, layout.pp, layout.vpp, layout.n_micro
    ):
        held += -chunks[stage // layout.pp] if backward else chunks[stage // layout.pp]
        most = max(most, held)
    return most


def scalar_states_and_activations(problem, layout, rank: int) -> tuple[float, float]:
    """What one pipeline rank holds, written out for a rank instead of a kind of rank."""
    held = sum(layout.stage_layers[rank :: layout.pp])
    again = sum(min(n, layout.recompute_layers) for n in layout.stage_layers[rank :: layout.pp])
    row = join_one(problem, layout)
    layers, at = row.layers, row.index[0]
    kept = layers.kept_bytes
    if layout.recompute == "selective":
        kept = kept - layers.modules.attention_bytes[0]  # the attention core
    code = SCHEDULES.index(layout.schedule)
    chunks = in_flight_chunks(code, rank, layout.pp, layout.vpp, layout.n_micro)
    flying = float(chunks) / layout.vpp
    size = (held - again) * kept[at] + again * layers.checkpoint_bytes[at]
    by_chunk = [
        (n - min(n, layout.recompute_layers)) * kept[at]
        + min(n, layout.recompute_layers) * layers.checkpoint_bytes[at]
        for n in layout.stage_layers[rank :: layout.pp]
    ]
    activations = flying * size
    if layout.schedule == "interleaved":
        activations = replayed_peak(layout, rank, by_chunk)
    activations += flying * (rank == 0) * layers.embedding_bytes[at]
    tp, pp = np.array([layout.tp], dtype=np.int32), np.array([layout.pp], dtype=np.int32)
    params = held * layer_params(problem.shape, tp).item()
    if rank == 0:
        params += embedding_params(problem.shape, problem.job.seq_len, tp).item()
    if rank == layout.pp - 1:
        params += head_params(problem.shape, tp, pp).item()
    per_param = state_bytes_per_param(problem.job.recipe, layout.zero, layout.dp)
    return params * float(per_param), activations


@given(
    pp=st.sampled_from([1, 2, 3, 4, 6, 8]),
    tp=st.sampled_from([1, 2, 4]),
    vpp=st.integers(1, 3),
    split=st.sampled_from(["even", "ends"]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    zero=st.integers(0, 3),
    tied=st.booleans(),
    schedule=st.sampled_from(["", "gpipe"]),
)
def test_the_peak_over_kinds_is_the_peak_over_all_ranks(
    toy_problem, plain_layout, pp, tp, vpp, split, recompute, zero, tied, schedule
):
    vpp = vpp if pp > 1 else 1
    schedule = schedule if pp > 1 and vpp == 1 else ""
    shape = replace(toy_problem().shape, layers=48 if split == "even" else 46, tied=tied)
    if split == "ends" and (pp == 1 or 48 // (pp * vpp) < 2):
        return
    if split == "even" and 48 % (pp * vpp):
        return
    problem = toy_problem(shape, gbs=48)
    layout = plain_layout(
        problem,
        tp,
        pp,
        2,
        vpp,
        zero=zero,
        sp=tp > 1,
        recompute=recompute,
        split=split,
        schedule=schedule,
        recompute_layers=2 if recompute == "full" else None,
    )
    found = break_down(problem, layout)
    assert len(found.stages) == pp
    assert found.peak_bytes == pytest.approx(peak_bytes(found.rows).item(), rel=1e-14)
    assert found.peak_bytes == max(sum(stage.values()) for stage in found.stages)
    for rank, stage in enumerate(found.stages):
        states, activations = scalar_states_and_activations(problem, layout, rank)
        assert stage["states"] == pytest.approx(states, rel=1e-12)
        assert stage["activations"] == pytest.approx(activations, rel=1e-12)
        assert (stage["logits"] > 0) == (rank == pp - 1)


def test_learned_positions_and_biases_weigh_on_the_first_stage(toy_problem, plain_layout):
    problem = toy_problem(GPT3_175B, seq_len=2048, gbs=64)
    found = break_down(problem, plain_layout(problem, tp=8, pp=8, dp=1))
    first, second, last = (found.stages[r]["states"] for r in (0, 1, 7))
    h = 12_288
    assert (first - second) / 18 == pytest.approx(51_200 * h / 8 + 2048 * h, rel=1e-9)
    assert (last - second) / 18 == pytest.approx(51_200 * h / 8 + 2 * h, rel=1e-9)
