"""Recomputed FLOPs by hand: whole layers, modules, experts, latent attention."""

from dataclasses import replace

import pytest

from costmodels.examples import GPT3_175B, LLAMA3_8B, MIXTRAL_8X7B
from costmodels.layers.flops import model_flops_per_step, model_flops_per_token
from costmodels.layers.hardware_flops import (
    hardware_flops_per_step,
    recomputed_flops_per_token,
    recomputed_parts,
)
from costmodels.shapes import TrainingJob
from tests.costmodels.timelines import case


def test_full_recomputation_of_llama3_8b_by_hand():
    # A layer holds 218,103,808 weights (see test_flops); with the causal half of the scores its
    # forward is 2 x 218,103,808 + 2 x 4096 x 8192 = 503,316,480 FLOPs a token.
    _, layout = case("1f1b recompute")  # four stages of eight layers, three of each again
    one = 2 * 218_103_808 + 2 * 4_096 * 8_192
    assert one == 503_316_480
    assert recomputed_flops_per_token(LLAMA3_8B, 8192, layout) == 12 * one
    whole = replace(layout, recompute_layers=8)
    assert recomputed_flops_per_token(LLAMA3_8B, 8192, whole) == 32 * one
    job = TrainingJob(8192, 128)
    assert hardware_flops_per_step(LLAMA3_8B, job, whole) == 1_048_576 * (
        51_470_401_536 + 32 * 503_316_480
    )
    # A third of all but the head, which never runs again: HFU / MFU of 1.313.
    share = hardware_flops_per_step(LLAMA3_8B, job, whole) / model_flops_per_step(LLAMA3_8B, job)
    assert share == pytest.approx(1 + (1 - 6 * 525_336_576 / 51_470_401_536) / 3)


def test_nothing_is_computed_again_without_recomputation():
    problem, layout = case("1f1b")
    assert recomputed_parts(problem.shape, 4096, layout) == ()
    flops = hardware_flops_per_step(problem.shape, problem.job, layout)
    assert flops == model_flops_per_step(problem.shape, problem.job)


def test_the_attention_core_of_gpt3_by_hand():
    _, layout = case("selective")
    (core,) = recomputed_parts(GPT3_175B, 2048, layout)
    assert (core.name, core.n_layers) == ("core_attn", 96)
    assert core.flops_per_token == 2 * 12_288 * 2_048


@pytest.mark.parametrize("name", ["experts", "mtp"])
def test_modules_of_a_model_of_experts_by_hand(name):
    problem, layout = case(name)
    shape = replace(problem.shape, shared_ffn=1024)
    layout = replace(
        layout,
        recompute="selective",
        recompute_layers=0,
        recompute_modules=("core_attn", "moe_act", "layernorm", "moe"),
    )
    found = recomputed_parts(shape, 4096, layout)
    parts = {p.name: (p.n_layers, p.flops_per_token) for p in found}
    layers = 32 + (name == "mtp")
    moe = 2 * 3 * 4096 * (2 * 14336 + 1024)
    assert parts == {"core_attn": (layers, 2 * 4096 * 4096), "moe": (layers, moe)}
    shared = replace(layout, recompute_modules=("shared_experts",))
    (part,) = recomputed_parts(shape, 4096, shared)
    assert part.flops_per_token == 2 * 3 * 4096 * 1024


def test_layers_with_and_without_experts_apart():
    _, layout = case("experts")  # four stages of eight layers, the first three of each again
    shape = replace(MIXTRAL_8X7B, dense_layers=2, ffn=14336)
    parts = {p.name: p.n_layers for p in recomputed_parts(shape, 4096, layout)}
    assert parts == {"dense layer": 2, "expert layer": 10}


def test_all_layers_again_is_a_third_of_the_model_without_its_head():
    """Whatever the attention: what the model counts three times runs once more."""
    for name in ("1f1b recompute", "experts"):
        problem, layout = case(name)
        shape = problem.shape
        whole = replace(layout, recompute_layers=max(layout.stage_layers))
        again = recomputed_flops_per_token(shape, 4096, whole)
        head = 6 * shape.hidden * shape.vocab
        assert 3 * again == pytest.approx(model_flops_per_token(shape, 4096) - head, rel=1e-12)
