"""What FSDP2 sends and torchtitan keeps, against numbers counted by hand and replayed."""

from dataclasses import replace

import pytest

from costmodels.breakdown import break_down
from costmodels.comm.fsdp import Units, gathers, grad_wire_bytes
from costmodels.examples import LLAMA3_8B, LLAMA3_70B, MIXTRAL_8X7B
from costmodels.precision import RECIPES
from costmodels.stacks import STACKS

N_70B, TAIL_70B = 70_553_706_496, 8192 * 128_256 + 8192
H, VOCAB = 8192, 128_256


def sums(problem, layout, of_rank=None):
    """Return {(axis, collective): (calls, bytes of their logical tensors)}."""
    found: dict[tuple[str, str], tuple[float, float]] = {}
    for one in break_down(problem, layout, of_rank).transfers:
        key = one.axis, one.collective
        calls, size = found.get(key, (0, 0.0))
        found[key] = calls + one.n_calls, size + one.n_calls * one.message_bytes
    return found


@pytest.mark.parametrize("zero", [2, 3])
def test_accelerate_sends_each_unit_in_16_bits(toy_problem, plain_layout, zero):
    """80 layers, embedding, norm with head: 82 units, for each of 4 micro-batches.

    ZeRO-3 gathers 81 twice and the last once, ZeRO-2 all once.
    """
    problem = toy_problem(LLAMA3_70B, seq_len=4096, stack="hf-fsdp2")
    layout = replace(plain_layout(problem, dp=8, zero=zero), mbs=1, gbs=32)
    found = sums(problem, layout)
    assert found["dp", "reduce-scatter"] == (4 * 82, pytest.approx(4 * 2 * N_70B))
    calls, params = (82, N_70B) if zero == 2 else (2 * 81 + 1, 2 * N_70B - TAIL_70B)
    assert found["dp", "all-gather"] == (4 * calls, pytest.approx(4 * 2 * params))


def test_torchtitan_gathers_every_unit_again_and_reduces_in_32_bits(toy_problem, plain_layout):
    problem = toy_problem(LLAMA3_70B, seq_len=4096, stack="torchtitan")
    found = sums(problem, replace(plain_layout(problem, dp=8, zero=3), mbs=1, gbs=16))
    assert found["dp", "all-gather"] == (2 * 2 * 82, pytest.approx(2 * 2 * 2 * N_70B))
    assert found["dp", "reduce-scatter"] == (2 * 82, pytest.approx(2 * 4 * N_70B))


def test_replicas_are_reduced_for_each_micro_batch(toy_problem, plain_layout):
    problem = toy_problem(LLAMA3_8B, seq_len=4096, stack="torchtitan")
    found = sums(problem, replace(plain_layout(problem, dp=8, zero=0), mbs=1, gbs=32))
    assert found["dp", "all-reduce"] == (4 * 34, pytest.approx(4 * 4 * 8_030_261_248))


def test_experts_travel_with_their_layer_without_expert_parallelism(toy_problem, plain_layout):
    """32 layers of Mixtral, 34 units; over ep their experts are 32 calls more."""
    problem = toy_problem(MIXTRAL_8X7B, seq_len=4096, stack="torchtitan")
    plain = replace(plain_layout(problem, dp=8, zero=3), mbs=1, gbs=8)
    assert sums(problem, plain)["dp", "reduce-scatter"][0] == 34
    assert sums(problem, replace(plain, ep=4))["dp", "reduce-scatter"][0] == 34 + 32


def test_replicated_tensors_are_summed_over_tp(toy_problem, plain_layout):
    """Three sums of the loss, 4 bytes a token; 2 x 80 + 1 norms of 8192 in fp32."""
    problem = toy_problem(LLAMA3_70B, seq_len=4096, stack="torchtitan")
    layout = replace(plain_layout(problem, tp=8, dp=1, sp=True), mbs=1, gbs=1)
    calls, size = sums(problem, layout)["tp", "all-reduce"]
    assert (calls, size) == (3 + 161, 3 * 4 * 4096 + 161 * 4 * H)
    whole = replace(layout, sp=False)
    assert sums(problem, whole)["tp", "all-reduce"][0] == 4 * 80 + 2 + 3


def test_gathered_keys_are_kept(toy_problem, plain_layout):
    """cp 4 of 32k tokens: 2 gathers and 2 scatters a layer, 4 * 3 * 8192 * 8 * 128 bytes kept."""
    kept, calls = {}, {}
    for name in ("eager", "torchtitan"):
        problem = toy_problem(LLAMA3_8B, seq_len=32768, stack=name)
        layout = replace(
            plain_layout(problem, dp=2, zero=3), cp=4, cp_comm="all-gather", mbs=1, gbs=2
        )
        opened = break_down(problem, layout)
        kept[name] = opened.stages[0]["activations"]
        calls[name] = [t.n_calls for t in opened.transfers if t.axis == "cp"]
    assert calls == {"eager": [32 * 4, 32 * 2], "torchtitan": [32 * 2, 32 * 2]}
    more = 32 * 4 * 3 * 8192 * 8 * 128
    assert kept["torchtitan"] - kept["eager"] == pytest.approx(more)


def test_transformers_norms_keep_their_input_in_32_bits(toy_problem, plain_layout):
    """Beside fused norms 2 x 4 h a token and layer: 4 (fp32) + 2 (scaled) - 2 (the input)."""
    kept = {}
    for name in ("eager", "hf-fsdp2"):
        problem = toy_problem(LLAMA3_8B, seq_len=4096, stack=name)
        layout = replace(plain_layout(problem, dp=8, zero=3), mbs=1, gbs=8)
        kept[name] = break_down(problem, layout).stages[0]["activations"]
    assert kept["hf-fsdp2"] - kept["eager"] == pytest.approx(32 * 4096 * 2 * 4 * 4096)


def test_scores_after_the_experts_keep_their_outputs(toy_problem, plain_layout):
    """4 h a row of top 2 of 4096 tokens, in each of 32 layers."""
    kept = {}
    for name in ("eager", "torchtitan"):
        problem = toy_problem(MIXTRAL_8X7B, seq_len=4096, stack=name)
        layout = replace(plain_layout(problem, dp=8, zero=3), mbs=1, gbs=8)
        kept[name] = break_down(problem, layout).stages[0]["activations"]
    assert kept["torchtitan"] - kept["eager"] == pytest.approx(32 * 4096 * 2 * 4 * 4096)


def test_a_pipeline_of_two_sends_one_way_from_each_rank(toy_problem, plain_layout):
    """Two stages: activations or gradients of 8 micro-batches; four: both, of inner ranks.

    Two stages of two chunks: three boundaries, of which either rank sends three messages.
    """
    problem = toy_problem(LLAMA3_8B, seq_len=4096, stack="torchtitan")
    for pp, vpp, schedule, rank, each in (
        (2, 1, "1f1b", 0, 1),
        (4, 1, "1f1b", 1, 2),
        (4, 1, "1f1b", 3, 1),
        (2, 2, "interleaved", 0, 3),
    ):
        layout = plain_layout(problem, pp=pp, vpp=vpp, dp=1, schedule=schedule)
        layout = replace(layout, mbs=1, gbs=8)
        assert sums(problem, layout, rank)["pp", "point-to-point"][0] == 8 * each


def test_units_of_a_stage_without_a_tail():
    """Nothing stays gathered where a rank has no head."""
    inner = Units(10, 1e9, 0, 0.0)
    assert gathers(inner, STACKS["hf-fsdp2"], 3, 1) == (20, 2e9)


def test_learned_positions_stay_gathered_with_the_root(toy_problem, plain_layout):
    """12 layers, tied vocabulary, a table of 2,048 x 768: 2 * 12 + 1 + 1 calls a micro-batch."""
    sizes = {"layers": 12, "hidden": 768, "heads": 12, "kv_heads": 12, "head_dim": 64, "ffn": 3072}
    names = {"norm": "layernorm", "positions": "learned", "bias": True, "gated": False}
    ends = {"vocab": 50304, "tied": True, "max_positions": 2048}
    shape = replace(LLAMA3_8B, **sizes, **names, **ends)
    problem = toy_problem(shape, seq_len=1024, stack="hf-fsdp2")
    layout = replace(plain_layout(problem, dp=8, zero=3), mbs=1, gbs=8)
    n_calls, n_bytes = sums(problem, layout, 0)["dp", "all-gather"]
    stays = 50304 * 768 + 2 * 768 + 2048 * 768
    assert n_calls == 26
    assert n_bytes == pytest.approx(2 * (2 * 12 * (12 * 768**2 + 13 * 768) + stays))


def test_gradients_travel_as_weights_or_as_the_recipe_says():
    titan, hf = STACKS["torchtitan"], STACKS["hf-fsdp2"]
    widths = {
        name: [grad_wire_bytes(RECIPES[name, "adam"], stack) for stack in (titan, hf)]
        for name in ("bf16", "fp16", "fp32")
    }
    assert widths == {"bf16": [4, 2], "fp16": [2, 2], "fp32": [4, 4]}
