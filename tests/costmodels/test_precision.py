"""Recipes composed, and what quantised linear layers keep, counted by hand."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.examples import DEEPSEEK_V3, LLAMA3_8B
from costmodels.layers.params import expert_linear_params, linear_params
from costmodels.memory import (
    MicroBatch,
    layer_activation_bytes,
    quantized_inputs,
    state_bytes_per_param,
)
from costmodels.precision import RECIPES, Numerics, numerics_fault, recipe_of
from costmodels.problem import Problem
from costmodels.shapes import ModelShape, TrainingJob
from costmodels.stacks import STACKS
from hardware.parts import Fabric
from tests.searches.instances import real_pool

ONE = np.array([1], dtype=np.int32)


@pytest.mark.parametrize(
    ("numerics", "held"),
    [
        # W + G + K of Megatron's distributed optimizer, docs/framework_switches.md, section 6.3
        (Numerics(), (2, 4, 12)),
        (Numerics(grad_dtype="bf16"), (2, 2, 12)),
        (Numerics(optimizer_states="bf16-moments"), (2, 4, 2 + 2 + 2)),
        (Numerics(grad_dtype="bf16", optimizer_states="bf16-moments"), (2, 2, 6)),
        (Numerics("fp8-delayed", optimizer_states="bf16-moments"), (2, 4, 6)),
        (
            Numerics("fp8-delayed", optimizer_states="bf16-moments", fp8_param_gather=True),
            (2, 4, 4 + 2 + 2),
        ),
        (Numerics("fp8-mxfp8", optimizer_states="bf16-moments"), (2, 4, 8)),
        (Numerics("fp8-blockwise", grad_dtype="bf16"), (2, 2, 12)),
        (Numerics("nvfp4", grad_dtype="bf16", optimizer_states="bf16-moments"), (2, 2, 8)),
    ],
)
def test_bytes_of_a_parameter(numerics, held):
    recipe = recipe_of(numerics)
    assert (recipe.param_bytes, recipe.grad_bytes, recipe.state_bytes) == held
    assert recipe.grad_wire_bytes == held[1]
    assert recipe.adam_bytes == 2 * held[2]
    assert state_bytes_per_param(recipe, 1, 8).item() == held[0] + held[1] + held[2] / 8


def test_a_recipe_without_more_is_that_of_the_table():
    assert all(recipe_of(Numerics(*key)) == recipe for key, recipe in RECIPES.items())
    assert recipe_of(Numerics(grad_dtype="bf16")) == RECIPES["bf16-grads", "adam"]


@pytest.mark.parametrize(
    ("precision", "blackwell", "hopper", "gathered", "wire"),
    [
        # More than a weight in bf16, beside it (one layout, two) and in place of it (one, two).
        ("fp8-delayed", 1.0, 2.0, (1 - 2, 2 - 2), 1.0),
        ("fp8-tensorwise", 1.0, 2.0, (1 - 2, 2 - 2), 1.0),
        ("fp8-blockwise", 2.0, 2.0, (0, 0), 1.0),
        ("fp8-mxfp8", 2.0625, 2.0625, (0.0625, 0.0625), 2.0),
        ("nvfp4", 1.125, 1.125, (1.125 - 2, 1.125 - 2), 0.5),
    ],
)
def test_quantised_weights(precision, blackwell, hopper, gathered, wire):
    beside = recipe_of(Numerics(precision))
    assert beside.quantized_weight_bytes(one_layout=True) == blackwell
    assert beside.quantized_weight_bytes(one_layout=False) == hopper
    instead = recipe_of(Numerics(precision, fp8_param_gather=True))
    found = [instead.quantized_weight_bytes(one_layout=x) for x in (True, False)]
    assert found == list(gathered)
    assert instead.linear_wire_bytes == wire


def test_weights_of_linear_layers():
    # Llama 3 8B: 4096 (4096 + 2 x 1024) + 4096^2 + 3 x 4096 x 14336
    assert linear_params(LLAMA3_8B, ONE).item() == 25165824 + 16777216 + 176160768
    # DeepSeek-V3: queries 7168 -> 1536 -> 128 x 192, keys 7168 -> 512 + 64, 512 -> 128 x 256,
    # output 128 x 128 -> 7168, MLP 3 x 7168 x 18432
    queries = 7168 * 1536 + 1536 * 24576
    keys = 7168 * 576 + 512 * 32768
    assert linear_params(DEEPSEEK_V3, ONE).item() == (
        queries + keys + 16384 * 7168 + 3 * 7168 * 18432
    )
    # 256 experts of 3 x 7168 x 2048 over 64 ranks
    assert expert_linear_params(DEEPSEEK_V3, 64, 1).item() == 4 * 3 * 7168 * 2048


def kept(shape: ModelShape, precision: str, stack: str = "megatron-core", **fields: object):
    """Return what a dense layer keeps of one token."""
    job = replace(TrainingJob(4096, 8, precision), **fields)
    problem = Problem(shape, job, real_pool("h100", 1, 8), Fabric(), STACKS[stack])
    batch = MicroBatch(1.0, 4096, 2.0, quantized_inputs(problem))
    return layer_activation_bytes(shape, STACKS[stack], batch, ONE, 0 * ONE, ONE).item()


@pytest.mark.parametrize(
    ("precision", "q", "copy"),
    [
        ("fp8-tensorwise", 1.0, 0.0),
        ("fp8-delayed", 1.0, 1.0),
        ("fp8-blockwise", 1.03125, 0.0),
        ("fp8-mxfp8", 1.03125, 0.0),
        ("nvfp4", 0.5625, 0.0),
    ],
)
def test_inputs_that_a_dense_layer_keeps(precision, q, copy):
    h, kv, f = 4096, 1024, 14336
    # two norms' inputs; QKV's and the MLP's inputs; q, output; k, v; gate and up; fc2's input
    by_hand = 2 * 2 * h + 2 * q * h + 2 * 2 * h + 2 * 2 * kv + 2 * 2 * f + q * f
    by_hand += copy * h + 4 * 32
    assert kept(LLAMA3_8B, precision) == by_hand
    assert kept(LLAMA3_8B, "bf16") == 4 * 2 * h + 4 * h + 4 * kv + 6 * f + 4 * 32


def test_layers_that_stay_in_bf16_keep_wide_inputs():
    wide, narrow = kept(LLAMA3_8B, "bf16"), kept(LLAMA3_8B, "fp8-tensorwise")
    mixed = kept(LLAMA3_8B, "fp8-tensorwise", bf16_layers=(1, 3))  # of 32
    assert mixed == pytest.approx((4 * wide + 28 * narrow) / 32, rel=1e-15)


def test_inputs_of_latent_attention():
    shape, h = replace(DEEPSEEK_V3, n_experts=0, shared_ffn=0), 7168
    wide, narrow = kept(shape, "bf16"), kept(shape, "fp8-tensorwise")
    # Two down projections share one output of the norm in bf16, and keep a copy each in fp8.
    assert wide - narrow == (2 - 2 * 1) * h + h + 18432 + (1536 + 512)


@pytest.mark.parametrize("stack", ["torchtitan", "eager", "maxtext"])
def test_other_software_keeps_bf16(stack):
    assert kept(LLAMA3_8B, "fp8-tensorwise", stack) == kept(LLAMA3_8B, "bf16", stack)


@pytest.mark.parametrize(
    "numerics",
    [
        Numerics("fp16", grad_dtype="bf16"),
        Numerics("fp16", optimizer_states="bf16-moments"),
        Numerics("bf16", fp8_param_gather=True),
        Numerics("fp8-rowwise", fp8_param_gather=True),
        Numerics("fp8-blockwise", fp8_attention=True),
        Numerics("nvfp4", fp8_attention=True),
        Numerics("fp8-tensorwise", fp8_output=True),
        Numerics("fp7"),
    ],
)
def test_numbers_that_no_job_has(numerics):
    assert numerics.precision in numerics_fault(numerics)
