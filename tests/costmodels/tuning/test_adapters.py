"""Adapters: their sizes, what they cost, what frozen weights take and free."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.examples import LLAMA3_8B, MIXTRAL_8X7B
from costmodels.layers.compute import head_weight_grad_s, linear_times
from costmodels.layers.flops import model_flops_per_step, model_flops_per_token
from costmodels.layers.params import linear_params
from costmodels.memory import MicroBatch, layer_activation_bytes
from costmodels.parameters import frozen_model_bytes, trained_params
from costmodels.plans import PlanTable
from costmodels.problem import run_by
from costmodels.shape_terms import shape_terms
from costmodels.shapes import ModelShape, TrainingJob
from costmodels.stacks import STACKS
from costmodels.step import join, memory_terms
from costmodels.tuning.adapters import dequantize_s, launches_frac, layer_adapter_params
from costmodels.tuning.records import BASES, TuningJob
from costmodels.tuning.targets import attention_linears, mlp_linears, target_names

ALL = ("q", "k", "v", "o", "gate", "up", "down")
ONE = np.ones(1, dtype=np.int32)
QV = TuningJob(8, ("q", "v"))


def tuned(problem, tuning):
    """Return the problem with adapters, as its stack lays it out."""
    job = replace(problem.job, task="lora", tuning=tuning)
    return run_by(problem.stack, problem.shape, job, problem.pool, problem.fabric)


def test_nf4_takes_half_a_byte_and_its_scales():
    assert BASES["nf4"].weight_bytes == pytest.approx(0.5 + 0.127 / 8, rel=1e-4)
    assert BASES["nf4-plain"].weight_bytes == 0.5 + 0.5 / 8


def test_sizes_of_the_linear_layers_of_llama():
    sizes = {x.name: (x.inner, x.outer) for x in attention_linears(LLAMA3_8B)}
    assert sizes == {
        "q": (4096, 4096),
        "k": (4096, 1024),
        "v": (4096, 1024),
        "qkv": (4096, 6144),
        "o": (4096, 4096),
    }
    assert [(x.name, x.inner, x.outer) for x in mlp_linears(LLAMA3_8B)] == [
        ("gate", 4096, 14336),
        ("up", 4096, 14336),
        ("gate_up", 4096, 28672),
        ("down", 14336, 4096),
    ]


def test_the_linear_layers_are_all_of_a_layer():
    latent = {"q_rank": 192, "kv_rank": 128, "qk_nope": 64, "qk_rope": 32, "v_head": 64}
    for shape in (LLAMA3_8B, replace(LLAMA3_8B, head_dim=96, **latent)):
        linears = (*attention_linears(shape), *mlp_linears(shape))
        named = [x for x in linears if x.name not in ("qkv", "gate_up")]
        assert sum(x.inner * x.outer for x in named) == linear_params(shape, ONE).item()


@pytest.mark.parametrize(
    ("targets", "tp", "expected"),
    [
        (("q", "v"), 1, 8 * (4096 + 4096) + 8 * (4096 + 1024)),
        (("qkv",), 1, 8 * (4096 + 6144)),
        (("down",), 1, 8 * (14336 + 4096)),
        (("q", "v"), 4, (8 * (4096 + 4096) + 8 * (4096 + 1024)) / 4),
        (("down",), 4, 8 * (14336 + 4096) / 4),
        (("v",), 16, 8 * 4096 / 16 + 8 * 128),  # 8 KV heads on 16 ranks: each has one
    ],
)
def test_parameters_of_a_layer(targets, tp, expected):
    found = layer_adapter_params(
        LLAMA3_8B, TuningJob(8, targets), np.array([tp], dtype=np.int32), routed=False
    )
    assert found.item() == expected


def test_adapters_of_experts_are_each_experts_own():
    tuning = TuningJob(4, ("experts",))
    each = 4 * (4096 + 2 * 14336) + 4 * (14336 + 4096)
    assert trained_params(MIXTRAL_8X7B, 4096, tuning) == 32 * 8 * each


def test_names_of_other_software():
    assert target_names(["q_proj", "linear_fc2"], LLAMA3_8B) == ("q", "down")
    plain = replace(LLAMA3_8B, gated=False)
    assert target_names(["linear_fc1"], plain) == ("up",)
    assert target_names(["strange", "q"], LLAMA3_8B) == ("q", "strange")


def test_frozen_linear_layers_have_a_data_gradient_alone(toy_problem):
    problem = toy_problem()
    part, tokens = problem.pool.accelerator, np.full(1, 4096.0)

    def times(tuning):
        job = replace(problem.job, tuning=tuning)
        return linear_times(problem.shape, job, part, problem.stack, tokens, ONE)

    trained, frozen = times(None), times(TuningJob(8, ()))
    for name in ("column_forward_s", "column_dgrad_s", "row_forward_s", "row_dgrad_s"):
        assert getattr(frozen, name) == getattr(trained, name)
    assert frozen.column_wgrad_s == frozen.row_wgrad_s == 0.0
    assert trained.column_wgrad_s > 0.0
    adapted = times(TuningJob(8, ("q",)))
    assert adapted.column_wgrad_s > 0.0
    assert adapted.row_wgrad_s == 0.0
    frozen_head = replace(problem.job, tuning=QV)
    assert head_weight_grad_s(problem.shape, frozen_head, part, tokens, ONE) == 0.0


def test_widening_reads_and_writes_once_a_use(toy_problem):
    part = toy_problem().pool.accelerator
    eff = part.efficiency
    rate = part.hbm_bytes_per_s * eff.hbm_frac
    found = dequantize_s(1e8, TuningJob(8, (), base="nf4-plain"), part)
    assert found == pytest.approx(2.5625e8 / rate + eff.kernel_latency_s)
    assert dequantize_s(1e8, TuningJob(8, ()), part) == 0.0


def test_quantized_weights_are_widened_again_with_recomputation(toy_problem):
    problem = toy_problem()
    part, tokens = problem.pool.accelerator, np.full(1, 4096.0)

    def both(base):
        job = replace(problem.job, tuning=TuningJob(8, (), base=base))
        return linear_times(problem.shape, job, part, problem.stack, tokens, ONE).both

    plain, narrow = both("bf16"), both("nf4")
    more = narrow.forward_s - plain.forward_s
    assert more > 0.0
    assert narrow.backward_s - plain.backward_s == pytest.approx(more)


def test_model_flops():
    job = TrainingJob(8192, 4, task="lora", tuning=QV)
    core = 6 * 32 * 4096 * 8192
    weights = (model_flops_per_token(LLAMA3_8B, 8192) - core) / 6
    adapters = 32 * 8 * (8192 + 5120)
    expected = 4 * weights + core + 6 * adapters
    assert model_flops_per_step(LLAMA3_8B, job) == pytest.approx(expected * 4 * 8192)


TINY = ModelShape("tiny", 1, 512, 8, 2, 64, 1408, True, 256, True)


@pytest.mark.parametrize(
    ("targets", "dropout", "kept"),
    [
        (ALL, 0.0, 20232),
        (("q", "v"), 0.0, 16232),
        (("q", "k", "v", "o"), 0.0, 16296),
        (("gate",), 0.0, 16200),
        (("down",), 0.0, 17992),
        (ALL, 0.1, 28808),
    ],
)
def test_kept_bytes_are_those_of_autograd(targets, dropout, kept):
    """Saved tensors of transformers' LlamaDecoderLayer (tools/checkers/lora_kept.py), a token."""
    batch = MicroBatch(512.0, 512, tuning=TuningJob(16, targets, dropout=dropout))
    stack = STACKS["hf-fsdp2"]
    found = layer_activation_bytes(TINY, stack, batch, ONE, 0 * ONE, 1.0).item() / 512
    assert found == kept - 8  # two reciprocal deviations in fp32, which we leave out


@pytest.mark.parametrize("base", ["bf16", "nf4", "int8"])
def test_states_are_frozen_weights_and_18_bytes_an_adapter(toy_problem, plain_layout, base):
    case = tuned(toy_problem(LLAMA3_8B), TuningJob(8, ("q", "v"), base=base))
    table = PlanTable.from_layouts([plain_layout(case)])
    terms = shape_terms(case, table.shapes, table.shardings)
    found = memory_terms(join(case, terms, table))["states"].max()
    linear = 32 * 218103808
    frozen = 2.0 * (8030261248 - linear) + BASES[base].weight_bytes * linear
    assert frozen == frozen_model_bytes(LLAMA3_8B, 4096, case.job.tuning)
    assert found == frozen + 18.0 * 32 * 8 * (8192 + 5120)


def test_zero_3_shares_frozen_weights_out(toy_problem, plain_layout):
    case = tuned(toy_problem(), QV)
    layouts = [plain_layout(case, dp=8, zero=zero) for zero in (0, 1, 3)]
    table = PlanTable.from_layouts(layouts)
    terms = shape_terms(case, table.shapes, table.shardings)
    whole, sharded_states, sharded = memory_terms(join(case, terms, table))["states"][0]
    assert whole > sharded_states > sharded
    frozen = frozen_model_bytes(case.shape, 4096, QV)
    ranks = layouts[0].dp
    assert sharded == pytest.approx(frozen / ranks, rel=0.05)
    gathers = terms.data_parallel.gather_s[:, 0, 0]
    assert gathers[0] == 0.0
    assert gathers[2] > 100 * gathers[1]  # weights against adapters


def test_gradients_of_adapters_alone_are_reduced(toy_problem, plain_layout):
    problem = toy_problem()
    layout = plain_layout(problem, dp=8)
    times = []
    for case in (problem, tuned(problem, QV)):
        table = PlanTable.from_layouts([layout])
        terms = shape_terms(case, table.shapes, table.shardings)
        times.append(terms.data_parallel.reduce_s.item())
        assert (terms.frozen_bytes is None) == (case is problem)
    assert times[1] < times[0] / 20
    assert terms.optimizer_s < 1e-3


def test_kernels_of_adapters_and_of_weight_gradients_that_are_gone():
    assert launches_frac(LLAMA3_8B, None) == 1.0
    assert launches_frac(LLAMA3_8B, QV) == pytest.approx(1.0 - 0.03 + 2 * 0.09)
    narrow = TuningJob(8, ("q",), base="nf4")
    assert launches_frac(LLAMA3_8B, narrow) == pytest.approx(1.0 - 0.03 + 0.09 + 0.1)
