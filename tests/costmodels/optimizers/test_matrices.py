"""Matrices, their Newton-Schulz steps and preconditioners, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.examples import LLAMA3_8B, MIXTRAL_8X7B
from costmodels.layers.kinds import kinds_of
from costmodels.optimizers.matrices import Matrix, dense_matrices, moe_matrices
from costmodels.optimizers.orthogonalization import newton_schulz_flops, orthogonalization
from costmodels.optimizers.packing import packed
from costmodels.optimizers.preconditioning import preconditioner_bytes, preconditioning_flops
from costmodels.optimizers.records import OPTIMIZERS, MuonOptions
from costmodels.precision import Numerics, numerics_fault, recipe_of
from costmodels.shapes import ModelShape
from tests.searches.wider_instances import EVERYTHING, LATENT

ONE = np.ones(1, dtype=np.int32)


def test_matrices_of_a_layer():
    fused_qkv, output, up, down = dense_matrices(LLAMA3_8B)
    assert (fused_qkv.rows, fused_qkv.columns, fused_qkv.parts) == (6144, 4096, (4096, 1024, 1024))
    assert (output.rows, output.columns, output.cut) == (4096, 4096, "columns")
    assert (up.rows, up.columns, up.cut) == (2 * 14336, 4096, "rows")
    assert (down.rows, down.columns) == (4096, 14336)


@pytest.mark.parametrize("shape", [LLAMA3_8B, MIXTRAL_8X7B, LATENT, EVERYTHING])
def test_they_are_the_weights_of_the_linear_layers(shape: ModelShape):
    for kind in kinds_of(shape):
        assert kind.matrices is not None
        own = [m for m in kind.matrices(shape) if not m.is_routed]
        router = shape.hidden * shape.n_experts * (kind.is_routed and shape.n_experts > 1)
        total = sum(m.elements * m.count for m in own)
        assert total - router == kind.linear_weights(shape, ONE).item()


def test_experts_are_matrices_of_their_own():
    routed = [m for m in moe_matrices(MIXTRAL_8X7B) if m.is_routed]
    assert [(m.rows, m.columns, m.count) for m in routed] == [(28672, 4096, 8), (4096, 14336, 8)]


def test_newton_schulz_by_hand():
    # 5 steps on 2 x 4: A = X X^T is 2 * 2 * 2 * 4 = 32, A A 16, B X 32.
    assert newton_schulz_flops(2, 4, MuonOptions()) == 5 * (32 + 16 + 32)
    assert newton_schulz_flops(2, 4, MuonOptions(use_syrk=True)) == 5 * (16 + 8 + 32)
    assert newton_schulz_flops(2, 4, MuonOptions(num_ns_steps=1)) == 80


@pytest.mark.parametrize(
    ("mode", "cut", "expected"),
    [
        # The momentum of 8 x 4 has 128 bytes; whatever is cut, the whole is multiplied.
        ("duplicated", "rows", (4, 8, 128.0, 0.0)),
        ("duplicated", "columns", (4, 8, 128.0, 0.0)),
        # The Gram matrix of what is not cut: 4 x 4, or 8 x 8 where columns are cut.
        ("distributed", "rows", (4, 4, 0.0, 32.0)),
        ("distributed", "columns", (8, 2, 0.0, 128.0)),
        ("blockwise", "rows", (4, 4, 0.0, 0.0)),
        ("blockwise", "columns", (2, 8, 0.0, 0.0)),
        ("layer-sharded", "rows", (4, 8, 0.0, 0.0)),
        ("distributed", "", (4, 8, 0.0, 0.0)),
    ],
)
def test_what_a_rank_of_two_multiplies(mode, cut, expected):
    work = orthogonalization(Matrix(8, 4, cut=cut), 2, MuonOptions(tp_mode=mode))
    assert (work.gram, work.other, work.gathered_bytes, work.reduced_bytes) == expected
    assert work.n_reductions == (5 if work.reduced_bytes else 0)


def test_preconditioners_by_hand():
    # L, Q_L of 2 x 2 and R, Q_R of 4 x 4 in fp32, 2 + 4 eigenvalues.
    assert preconditioner_bytes(2, 4) == 4 * (2 * 4 + 2 * 16 + 6)
    # 12 (4 * 4 + 2 * 16) + 26 / 3 (8 + 64)
    assert preconditioning_flops(2, 4) == pytest.approx(576 + 624)


def test_the_costliest_matrix_goes_to_the_least_loaded():
    # 5; 5; then 4 + 4 against 5: 5+2, 4+4... costs 5 5 4 4 2 over two ranks: 5+4+2 and 5+4.
    assert packed((5.0, 4.0, 2.0), (2, 2, 1), 2) == ((1, 1, 0), (1, 1, 1))
    assert packed((5.0,), (3,), 8) == ((0,), (1,))
    assert packed((5.0, 4.0), (7, 3), 1) == ((7, 3),)


def test_the_fullest_of_many_ranks_as_one_by_one():
    costs, counts, n_ranks = (9.0, 7.0, 6.0, 1.0), (13, 5, 22, 8), 7
    loads = [0.0] * n_ranks
    for cost, count in zip(costs, counts, strict=True):
        for _ in range(count):
            loads[loads.index(min(loads))] += cost
    held = packed(costs, counts, n_ranks)
    found = {sum(c * n for c, n in zip(costs, holding, strict=True)) for holding in held}
    assert found == set(loads)


@pytest.mark.parametrize(
    ("optimizer", "muon", "states", "moved"),
    [
        ("adam", MuonOptions(), 4 + 4 + 4, 24),
        ("sgd", MuonOptions(), 4 + 4, 16),
        ("lion", MuonOptions(), 4 + 4, 16),
        ("adam-8bit", MuonOptions(), 4 + 2 * (1 + 4 / 256), 2 * (4 + 2 * (1 + 4 / 256))),
        ("adafactor", MuonOptions(), 4, 8 + 4),
        ("muon", MuonOptions(), 4 + 4, 16),
        ("soap", MuonOptions(), 4 + 4 + 4, 24),
    ],
)
def test_least_states_of_a_parameter(optimizer, muon, states, moved):
    recipe = recipe_of(Numerics(optimizer=optimizer, muon=muon))
    assert (recipe.state_bytes, recipe.adam_bytes) == (states, moved)
    assert (recipe.param_bytes, recipe.grad_bytes) == (2, 4)


@pytest.mark.parametrize(
    ("numerics", "field"),
    [
        (Numerics(optimizer="muon", optimizer_states="bf16-moments"), "optimizer_states"),
        (Numerics("fp16", optimizer="muon"), "precision"),
        (Numerics("fp8-mxfp8", optimizer="soap", fp8_param_gather=True), "fp8_param_gather"),
        (Numerics(muon=MuonOptions(num_ns_steps=3)), "muon"),
        (Numerics(optimizer="adagrad"), "no"),
    ],
)
def test_numbers_that_do_not_go_with_an_optimizer(numerics, field):
    assert numerics_fault(numerics).split()[0] == field
    assert not numerics_fault(replace(numerics, **usual(numerics)))


def usual(numerics: Numerics) -> dict[str, object]:
    plain = {"optimizer": "adam", "muon": MuonOptions()}
    return plain


def test_every_optimizer_goes_with_bf16():
    assert not any(numerics_fault(Numerics(optimizer=name)) for name in OPTIMIZERS)
