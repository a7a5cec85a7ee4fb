"""Embeddings of each layer (Gemma 3n and 4), by hand."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.examples import LLAMA3_8B
from costmodels.layers.flops import model_flops_per_token
from costmodels.layers.kinds import kind_of, layer_run, reads_earlier_layers
from costmodels.layers.layer_kind import LayerInputs, SplitDegrees
from costmodels.modes import ModeRows
from costmodels.parameters import embedding_params, total_params
from costmodels.shapes import PerLayerShape

ONE = np.ones(1, dtype=np.int32)
H, P, V = 4096, 256, 1000
D, KEYS = 128, 1024
"""Width of a head, and of all keys."""
SHAPE = replace(
    LLAMA3_8B,
    layers=4,
    per_layer=PerLayerShape(P, V),
    layer_runs=(layer_run("attention+injected", 4),),
)
PLAIN = replace(LLAMA3_8B, layers=4)
INJECTED, DENSE = kind_of("attention+injected"), kind_of("dense")


def test_parameters_and_products_beside_those_of_a_dense_layer():
    more = INJECTED.params(SHAPE, ONE) - DENSE.params(PLAIN, ONE)
    norms = 3 * H + 2 * D  # behind attention, MLP and injection; of queries and keys
    assert more == 3 * H * P + norms
    assert INJECTED.params(SHAPE, 8 * ONE) - DENSE.params(PLAIN, 8 * ONE) == 3 * H * P + norms
    assert INJECTED.replicated_params(SHAPE) - DENSE.replicated_params(PLAIN) == 3 * H * P + norms
    assert INJECTED.macs(SHAPE).mlp - DENSE.macs(PLAIN).mlp == 3 * H * P
    assert INJECTED.macs(SHAPE).modules == DENSE.macs(PLAIN).modules
    weights = INJECTED.linear_weights(SHAPE, ONE).item()
    assert sum(x.elements * x.count for x in INJECTED.matrices(SHAPE)) == weights


def test_tables_of_the_layers_stand_with_the_embedding():
    tables = 4 * V * P
    plain = [embedding_params(PLAIN, 4096, tp * ONE) for tp in (1, 2)]
    ours = [embedding_params(SHAPE, 4096, tp * ONE) for tp in (1, 2)]
    assert [a - b for a, b in zip(ours, plain, strict=True)] == [tables, tables / 2]
    more = total_params(SHAPE, 4096) - total_params(PLAIN, 4096)
    assert more == tables + 4 * (3 * H * P + 3 * H + 2 * D)
    assert reads_earlier_layers(SHAPE)
    assert not reads_earlier_layers(PLAIN)


def terms(problem, kind, tp: int = 1, sp: int = 0):
    tokens = np.array([float(problem.job.seq_len)])
    split = SplitDegrees.of_tp(tp * ONE)
    return kind.terms(LayerInputs(problem, split, tokens, ModeRows.of_sp(sp * ONE)))


@pytest.mark.parametrize(("tp", "sp"), [(1, 0), (2, 0), (2, 1)])
def test_kept_bytes_of_the_injection(toy_problem, tp, sp):
    ours = terms(toy_problem(SHAPE, seq_len=4096), INJECTED, tp, sp)
    plain = terms(toy_problem(PLAIN, seq_len=4096), DENSE, tp, sp)
    rows = 4096 / (tp if sp else 1)
    more = ours.kept_bytes - plain.kept_bytes
    # The gate's input and those of three norms, 2 h each; gate, activation, row, product and
    # shared norm; inputs of norms of queries, keys and values.
    heads = 4096 * 2 * (H + 2 * KEYS) / tp
    assert more == pytest.approx(rows * (8 * H + 10 * P) + heads, rel=1e-12)
    assert ours.tp_forward.total_s == pytest.approx(plain.tp_forward.total_s)


def test_the_traffic_of_its_operators(toy_problem):
    problem = toy_problem(SHAPE, seq_len=4096)
    ours, plain = terms(problem, INJECTED), terms(toy_problem(PLAIN, seq_len=4096), DENSE)
    part = problem.pool.accelerator
    rate = part.hbm_bytes_per_s * part.efficiency.hbm_frac / problem.stack.elementwise_factor
    norm = 1.0 if problem.stack.fused_norms else problem.stack.unfused_norm_factor
    besides = 2 * H + H + 2 * KEYS  # norms behind attention and MLP, of queries, keys and values
    moved = [(4 * norm + 6) * H + 20 * P + 4 * norm * besides]
    moved += [(6 * norm + 4) * H + 26 * P + 6 * norm * besides]
    more = [
        getattr(ours.elementwise, way).item() - getattr(plain.elementwise, way).item()
        for way in ("forward_s", "backward_s")
    ]
    launches = 3 * part.efficiency.kernel_latency_s
    for seconds, one in zip(more, moved, strict=True):
        assert seconds == pytest.approx(4096 * one / rate + launches, rel=0.02)


STREAMS, RANK = 4, 64
MIXED = replace(SHAPE, per_layer=PerLayerShape(P, V, STREAMS, RANK))


def test_streams_and_laurel_by_hand():
    more = INJECTED.params(MIXED, ONE) - INJECTED.params(SHAPE, ONE)
    laurel = 2 * H * RANK + H
    altup = H * STREAMS + STREAMS**3 + STREAMS**2 + 2 * H
    assert more == laurel + altup
    ends = 3 * H * H  # each of the further streams is made by a matrix, and joined by one
    assert total_params(MIXED, 4096) - total_params(SHAPE, 4096) == 4 * (laurel + altup) + 2 * ends
    macs = INJECTED.macs(MIXED).mlp - INJECTED.macs(SHAPE).mlp
    # Each stream is predicted of all four; a router before and behind the layer.
    assert macs == 2 * H * RANK + 16 * H + 2 * 4 * H + 4 * 16 + 4 * 4
    flops = [model_flops_per_token(x, 4096) for x in (MIXED, SHAPE)]
    assert flops[0] - flops[1] == 6 * (4 * macs + 2 * ends)


def test_kept_bytes_of_streams(toy_problem):
    ours, plain = (terms(toy_problem(x, seq_len=4096), INJECTED) for x in (MIXED, SHAPE))
    # Streams, predictions but the one that is kept anyhow, innovations; two of the active one and
    # the output of LAuReL; its inner product.
    elements = (3 * STREAMS - 1) * H + 2 * H + H + RANK
    assert ours.kept_bytes - plain.kept_bytes == pytest.approx(4096 * 2 * elements, rel=1e-12)
    assert ours.working_bytes - plain.working_bytes == pytest.approx(4096 * 6 * 3 * H)


@pytest.mark.parametrize(("shape", "n_norms"), [(SHAPE, 3), (MIXED, 6)])
def test_norms_that_are_not_fused_keep_copies_in_fp32(toy_problem, shape, n_norms):
    of_stack = {}
    for name in ("megatron-core", "hf-fsdp2"):
        ours = terms(toy_problem(shape, stack=name, seq_len=4096), INJECTED)
        plain = terms(toy_problem(PLAIN, stack=name, seq_len=4096), DENSE)
        of_stack[name] = (ours.kept_bytes - plain.kept_bytes).item()
    more = of_stack["hf-fsdp2"] - of_stack["megatron-core"]
    # Gemma's norms keep 6 bytes an element more than fused ones, and the two before attention and
    # MLP 2 more than those of Llama; those of values, which have no weights, 2.
    wide = 6 * n_norms * H + 2 * 2 * H + 6 * (H + KEYS) + 2 * KEYS
    assert more == pytest.approx(4096 * wide, rel=1e-12)
