"""Attention over windows and inside chunks, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.examples import LLAMA3_8B
from costmodels.layers.flops import model_flops_per_token
from costmodels.layers.hardware_flops import recomputed_parts
from costmodels.layers.kinds import LAYER_KINDS, layer_run
from costmodels.layers.layer_kind import LayerInputs, SplitDegrees
from costmodels.layers.sublayers.attention import chunk_keys, run_keys, window_keys
from costmodels.modes import ModeRows
from costmodels.shapes import ChunkShape, WindowShape

ONE = np.ones(1, dtype=np.int32)


def pairs(seq_len: int, seen) -> int:
    """Keys of all queries of a sequence, counted one by one."""
    return sum(1 for i in range(seq_len) for j in range(i + 1) if seen(i, j))


@pytest.mark.parametrize(("size", "seq_len"), [(1, 7), (4, 8), (16, 64), (63, 64)])
def test_keys_of_a_window_are_its_pairs(size, seq_len):
    counted = pairs(seq_len, lambda i, j: i - j < size)
    assert window_keys(size, seq_len) * seq_len == pytest.approx(counted, rel=1e-12)


@pytest.mark.parametrize(("size", "seq_len"), [(4, 8), (16, 50)])
def test_keys_of_chunks_are_their_pairs_but_for_half_the_diagonal(size, seq_len):
    counted = pairs(seq_len, lambda i, j: i // size == j // size)
    assert chunk_keys(size, seq_len) * seq_len == pytest.approx(counted - seq_len / 2, rel=1e-12)


def windowed(layers: int = 32, **sizes):
    name = "window+dense" if "window" in sizes else "chunk+dense"
    half = layers // 2
    runs = (layer_run(name, half), layer_run("dense", half))
    return replace(LLAMA3_8B, layers=layers, layer_runs=runs, **sizes)


def test_flops_of_a_model_with_windows_in_half_its_layers():
    plain, shape = LLAMA3_8B, windowed(window=WindowShape(1024))
    # 16 layers of s / 2 keys become w - w (w - 1) / (2 s) = 1024 - 1024 * 1023 / 16384 = 960.0625;
    # 4 FLOPs a key and element of 4096, three times for forward and backward.
    fewer = 16 * 3 * 4 * 4096 * (4096.0 - 960.0625)
    both = [model_flops_per_token(x, 8192) for x in (plain, shape)]
    assert both[0] - both[1] == pytest.approx(fewer, rel=1e-12)


def test_a_window_as_long_as_the_sequence_is_full_attention():
    shape = windowed(window=WindowShape(8192))
    assert model_flops_per_token(shape, 8192) == pytest.approx(
        model_flops_per_token(LLAMA3_8B, 8192), rel=1e-15
    )


def terms_of(problem, kind: str, cp: int = 1, cp_comm: int = 0):
    split = SplitDegrees(ONE, cp * ONE, ONE, ONE, cp_comm * ONE)
    tokens = np.full(1, problem.job.seq_len / cp)
    return LAYER_KINDS[kind].terms(LayerInputs(problem, split, tokens, ModeRows.of_sp(0 * ONE)))


def test_the_core_takes_the_time_of_the_tiles_that_it_runs(toy_problem):
    shape = windowed(window=WindowShape(128))
    problem = toy_problem(shape, seq_len=8192)
    window, full = (terms_of(problem, x) for x in ("window+dense", "dense"))
    eff = problem.pool.accelerator.efficiency
    keys = 128 - 128 * 127 / 16384 + 128  # one tile more: two edges cut in half
    assert run_keys(window_keys(128, 8192), 8192, 1.0) == pytest.approx(keys, rel=1e-12)
    # 2 keys / s of the FLOPs, at the rate of sequences of 2 keys.
    slower = (8192 / (8192 + eff.attention_seq_half)) / (
        2 * keys / (2 * keys + eff.attention_seq_half)
    )
    share = 2 * keys / 8192 * slower
    launch = eff.kernel_latency_s
    for way in ("forward_s", "backward_s"):
        ours, theirs = (getattr(x.attention, way).item() - launch for x in (window, full))
        assert ours == pytest.approx(share * theirs, rel=1e-9)
    assert window.kept_bytes == pytest.approx(full.kept_bytes, rel=1e-12)
    assert window.linear.total_s == pytest.approx(full.linear.total_s, rel=1e-12)


def test_gathered_keys_of_context_parallelism_are_those_of_full_attention(toy_problem):
    problem = toy_problem(windowed(window=WindowShape(128)), seq_len=8192)
    window, full = (terms_of(problem, x, 2, 2) for x in ("window+dense", "dense"))
    assert window.cp_forward.total_s == pytest.approx(full.cp_forward.total_s, rel=1e-12)
    assert window.kept_bytes == pytest.approx(full.kept_bytes, rel=1e-12)


def test_chunks_run_as_packed_sequences(toy_problem):
    problem = toy_problem(windowed(chunk=ChunkShape(1024)), seq_len=8192)
    chunk, full = (terms_of(problem, x) for x in ("chunk+dense", "dense"))
    half = problem.pool.accelerator.efficiency.attention_seq_half
    share = 1 / 8 * (8192 / (8192 + half)) / (1024 / (1024 + half))
    launch = problem.pool.accelerator.efficiency.kernel_latency_s
    ours, theirs = (x.attention.forward_s.item() - launch for x in (chunk, full))
    assert ours == pytest.approx(share * theirs, rel=1e-9)


def test_recomputed_layers_count_their_own_core(toy_problem, plain_layout):
    shape = windowed(layers=24, window=WindowShape(1024))
    problem = toy_problem(shape, seq_len=4096)
    layout = replace(plain_layout(problem, pp=1), recompute="full", recompute_layers=24)
    parts = {x.name: x for x in recomputed_parts(shape, 4096, layout)}
    window, full = parts["window attention and MLP layer"], parts["dense layer"]
    assert (window.n_layers, full.n_layers) == (12, 12)
    keys = 1024 - 1024 * 1023 / 8192
    assert full.flops_per_token - window.flops_per_token == pytest.approx(
        4 * 4096 * (2048 - keys), rel=1e-12
    )
