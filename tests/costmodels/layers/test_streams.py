"""Several residual streams (hyper-connections), by hand."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.breakdown import break_down
from costmodels.examples import LLAMA3_8B, MIXTRAL_8X7B
from costmodels.layers.flops import model_flops_per_token
from costmodels.layers.kinds import kinds_of, layer_run, present_kinds
from costmodels.layers.layer_kind import LayerInputs, SplitDegrees
from costmodels.layers.layer_terms import layer_terms
from costmodels.modes import ModeRows
from costmodels.parameters import total_params
from costmodels.shapes import StreamsShape

ONE = np.ones(1, dtype=np.int32)
H, N = 4096, 4
FOUR = replace(LLAMA3_8B, residual_streams=StreamsShape(N))
NUMBERS = N + N + N * N
CONNECTION = NUMBERS * N * H + NUMBERS + 3
COLLAPSE = N * N * H + N + 1


def inputs_of(problem, tp: int = 1, sp: int = 0) -> LayerInputs:
    split = SplitDegrees(tp * ONE, ONE, ONE, ONE, 0 * ONE)
    tokens = np.full(1, float(problem.job.seq_len))
    return LayerInputs(problem, split, tokens, ModeRows.of_sp(sp * ONE))


@pytest.mark.parametrize("plain", [LLAMA3_8B, MIXTRAL_8X7B])
def test_parameters_of_every_kind(plain):
    """Two connections a layer, whole on every rank; one stream of four in front of the head."""
    shape = replace(plain, residual_streams=StreamsShape(N))
    for (kind, _), (old, _) in zip(present_kinds(shape), present_kinds(plain), strict=True):
        for tp in (ONE, 8 * ONE):
            more = kind.params(shape, tp).item() - old.params(plain, tp).item()
            assert more == pytest.approx(2 * CONNECTION, abs=1)
        assert kind.replicated_params(shape) - old.replicated_params(plain) == 2 * CONNECTION
    more = total_params(shape, 4096) - total_params(plain, 4096)
    assert more == plain.layers * 2 * CONNECTION + COLLAPSE


def test_flops():
    """FlopCounterMode counts 2 x 4 x 512 x 24 of the numbers and 2 x 16 x 512 of the mix."""
    narrow = replace(FOUR, hidden=512, residual_streams=StreamsShape(N))
    for n_sublayers, name in ((2, "dense"), (1, "none+dense"), (1, "attention+none")):
        shape = replace(narrow, layer_runs=(layer_run(name, narrow.layers),))
        one = replace(shape, residual_streams=None)
        more = kinds_of(shape)[-1].macs(shape).projections
        more -= kinds_of(one)[-1].macs(one).projections
        assert 2 * more * 1024 == n_sublayers * (100663296 + 16777216)
    more = model_flops_per_token(FOUR, 4096) - model_flops_per_token(LLAMA3_8B, 4096)
    per_layer = 2 * (NUMBERS * N * H + N * N * H)
    assert more == 6 * (32 * per_layer + N * N * H)


def test_a_module_of_prediction_projects_every_stream():
    """Embedding and each stream through a matrix of their own, and a collapse of its own."""
    one, two = (replace(FOUR, mtp_layers=n) for n in (0, 1))
    plain = replace(LLAMA3_8B, mtp_layers=1)
    layer = 2 * (NUMBERS * N * H + N * N * H)
    with_one = model_flops_per_token(two, 4096) - model_flops_per_token(one, 4096)
    without = model_flops_per_token(plain, 4096) - model_flops_per_token(LLAMA3_8B, 4096)
    assert with_one - without == 6 * (layer + 3 * H * H + N * N * H)


def test_matrices_for_optimizers():
    """One of 24 x 16384 a connection, which no rank cuts."""
    shape = replace(FOUR, n_experts=8, top_k=2, expert_ffn=2048, dense_layers=2)
    for kind, old in zip(
        kinds_of(shape), kinds_of(replace(shape, residual_streams=None)), strict=True
    ):
        assert kind.matrices is not None
        assert old.matrices is not None
        more = kind.matrices(shape)[len(old.matrices(shape)) :]
        assert [(x.rows, x.columns, x.cut, x.count) for x in more] == [(24, N * H, "", 1)] * 2


@pytest.mark.parametrize("sp", [0, 1])
def test_kept_bytes_of_fused_kernels(sp, toy_problem):
    """Of each sublayer: its streams, what it gave, the numbers before and after in fp32."""
    terms = []
    for shape in (LLAMA3_8B, FOUR):
        problem = toy_problem(shape, stack="megatron-core")
        terms.append(kinds_of(shape)[0].terms(inputs_of(problem, 2, sp)))
    more = terms[1].kept_bytes.item() - terms[0].kept_bytes.item()
    of_one = 2 * N * H + 2 * H + 2 * 4 * NUMBERS
    assert more == pytest.approx(4096 * 2 * of_one / (2 if sp else 1), rel=1e-9)
    working = terms[1].working_bytes.item() - terms[0].working_bytes.item()
    assert working == pytest.approx(4096 * 2 * 3 * 2 * H / (2 if sp else 1), rel=1e-9)
    assert terms[1].scratch_bytes.item() == terms[0].scratch_bytes.item()


def test_kept_bytes_of_eager_operators(toy_problem):
    """scripts/check_layers counts these of transformers' class: 20 turns, four streams of 512."""
    narrow = replace(LLAMA3_8B, hidden=512, heads=8, kv_heads=8, head_dim=64)
    kept = []
    for streams in (None, StreamsShape(N, 20)):
        shape = replace(narrow, residual_streams=streams)
        problem = toy_problem(shape, stack="hf-fsdp2", seq_len=1024)
        kept.append(kinds_of(shape)[0].terms(inputs_of(problem)).kept_bytes.item() / 1024)
    # Streams in 16 bits and twice in fp32, the sublayer's output, numbers, steps of Sinkhorn.
    one = 2 * N * 512 + 2 * 4 * N * 512 + 2 * 512 + 4 + 4 * NUMBERS + 14 * N + 2 * N * N
    one += 4 * N * N * 40 + 4 * N * 39
    assert kept[1] - kept[0] == pytest.approx(2 * one, rel=1e-9)


def test_a_connection_is_bound_by_memory(toy_problem):
    """Forward 4 n + 2 widths in place of 3, backward 12 n + 3 in place of 2, and launches."""
    times = []
    for shape in (LLAMA3_8B, FOUR):
        problem = toy_problem(shape, stack="fused")
        times.append(kinds_of(shape)[0].terms(inputs_of(problem)).elementwise)
    part = toy_problem().pool.accelerator
    launch = part.efficiency.kernel_latency_s
    width = 2 * 4096 * H / (part.hbm_bytes_per_s * part.efficiency.hbm_frac)
    width *= problem.stack.elementwise_factor
    forward = times[1].forward_s.item() - times[0].forward_s.item()
    backward = times[1].backward_s.item() - times[0].backward_s.item()
    assert forward == pytest.approx(2 * ((4 * N + 2 - 3) * width + 4 * launch), rel=1e-9)
    assert backward == pytest.approx(2 * ((12 * N + 3 - 2) * width + 8 * launch), rel=1e-9)


def test_streams_multiply_messages_and_checkpoints(toy_problem):
    one, four = (
        layer_terms(toy_problem(shape), SplitDegrees.of_tp(2 * ONE), ONE, ModeRows.of_sp(ONE))
        for shape in (LLAMA3_8B, FOUR)
    )
    assert four.message_bytes.item() == 4 * one.message_bytes.item()
    assert four.checkpoint_bytes.item() == 4 * one.checkpoint_bytes.item()
    assert four.logits_bytes.item() - one.logits_bytes.item() == 2 * 4096 * 4 * H / 2
    assert one.checkpoint_bytes.item() == 2 * 4096 * H / 2


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_step_has_them(recompute, toy_problem, plain_layout):
    """The parts of a step and of a rank's memory add up with streams as without."""
    steps = []
    for shape in (LLAMA3_8B, FOUR):
        problem = toy_problem(shape)
        layout = plain_layout(problem, tp=2, pp=4, dp=8, sp=True, zero=1, recompute=recompute)
        found = break_down(problem, layout)
        assert sum(found.time_s.values()) == pytest.approx(found.step_s, rel=1e-9)
        for axis in ("tp", "pp", "dp"):
            shown = sum(x.exposed_s for x in found.transfers if x.axis == axis)
            assert shown == pytest.approx(found.time_s[axis], rel=1e-6, abs=1e-9)
        steps.append(found)
    assert steps[1].step_s > 1.1 * steps[0].step_s
    assert steps[1].peak_bytes > steps[0].peak_bytes
