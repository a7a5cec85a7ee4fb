"""What groups of parameters take more than one figure a parameter, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.comm.collectives import collective_s
from costmodels.comm.placement import place_group
from costmodels.layers.kinds import layer_run
from costmodels.optimizers.groups import Part, RankMatrices, group_terms, rank_matrices, rank_terms
from costmodels.optimizers.matrices import Matrix
from costmodels.optimizers.matrix_times import matrix_times, newton_schulz_s
from costmodels.optimizers.records import MuonOptions
from costmodels.plans import ShapeTable
from costmodels.problem import Problem
from costmodels.shape_terms import kind_params, kinds_of_stages
from costmodels.shapes import Mamba2Shape, VisionShape
from tests.searches.instances import GQA, context, real_pool
from tests.searches.wider_instances import MOE

THREE = ((Matrix(8, 4), 3),)


def problem(optimizer: str, model=GQA, **muon: object) -> Problem:
    p = context(model, real_pool("h100", 1, 8), batch=8, stack="megatron-core").problem
    return replace(p, job=replace(p.job, optimizer=optimizer, muon=MuonOptions(**muon)))


def hbm(p: Problem) -> float:
    part = p.pool.accelerator
    return part.hbm_bytes_per_s * part.efficiency.hbm_frac


def test_muon_on_one_rank():
    # Matrices take what all are counted with, 4 + 4; 10 other parameters 4 + 8.
    p = problem("muon")
    terms = rank_terms(p, RankMatrices(THREE, 10.0, 1, 1))
    assert (terms.state_bytes, terms.moved_params) == (40.0, 0.0)
    # Of the others 2 (4 + 8) in place of 2 (4 + 4) bytes are moved.
    steps = 3 * newton_schulz_s(p, 4.0, 8.0)
    assert terms.update_s == pytest.approx(8 * 10 / hbm(p) + steps)


def test_three_matrices_over_two_ranks():
    # The fuller rank has 2 of 3, 64 parameters of 96; buffers are 2 x 64 long.
    p = problem("muon")
    terms = rank_terms(p, RankMatrices(THREE, 10.0, 1, 2))
    assert terms.moved_params == 2 * 64 - 96
    states = 8 * 64 - 8 * 96 / 2 + 4 * 10 / 2 + (2 + 4) * 32
    assert terms.state_bytes == states
    moved = (4 * 4 + 6 + 16) * (64 - 96 / 2) + 8 * 10 / 2
    assert terms.update_s == pytest.approx(moved / hbm(p) + 2 * newton_schulz_s(p, 4.0, 8.0))


def test_without_the_layout_nothing_is_padded():
    p = problem("muon", param_layout=False)
    terms = rank_terms(p, RankMatrices(THREE, 10.0, 1, 2))
    assert terms.moved_params == 0.0
    assert terms.state_bytes == 8 * 64 - 8 * 96 / 2 + 4 * 10 / 2


def test_lion_beside_muon_takes_what_the_matrices_take():
    p = problem("muon", scalar_optimizer="lion")
    assert rank_terms(p, RankMatrices(THREE, 10.0, 1, 1)).state_bytes == 0.0


def test_preconditioners_of_soap_stand_beside_its_moments():
    terms = rank_terms(problem("soap"), RankMatrices(THREE, 10.0, 1, 1))
    assert terms.state_bytes == 3 * (8 * (64 + 16) + 4 * 12)


def test_syrk_saves_half_of_two_products_and_no_launch():
    plain, half = (newton_schulz_s(problem("muon", use_syrk=x), 4096.0, 8192.0) for x in (0, 1))
    share = (3 * 4096**2 * 8192 + 4096**3) / (4 * 4096**2 * 8192 + 2 * 4096**3)
    assert half / plain == pytest.approx(share, rel=0.03)


def test_queries_keys_and_values_are_orthogonalized_apart():
    p = problem("muon")
    fused = Matrix(6144, 4096, cut="rows", parts=(4096, 1024, 1024))
    apart = newton_schulz_s(p, 4096.0, 4096.0) + 2 * newton_schulz_s(p, 1024.0, 4096.0)
    assert matrix_times(p, fused, 1).compute_s == pytest.approx(apart)


def shapes(ep: int, etp: int) -> ShapeTable:
    degrees = {"tp": 1, "pp": 1, "dp": 8, "ep": ep, "etp": etp}
    return ShapeTable.of_columns(8, {name: [value] for name, value in degrees.items()})


def test_experts_of_a_rank_are_matrices_of_their_own():
    p, alone = problem("muon", MOE), shapes(2, 1)
    kinds = kinds_of_stages(p, alone, with_held=False)
    routed = rank_matrices(p, alone, kinds, routed=True)
    n_layers = sum(MOE.expert_layers)
    each = n_layers * MOE.n_experts // 2
    assert [m.rows * m.columns for m in routed.matrices] == [
        (2 if MOE.gated else 1) * MOE.expert_ffn * MOE.hidden,
        MOE.hidden * MOE.expert_ffn,
    ]
    assert routed.counts[..., 0].tolist() == [[each], [each]]


def test_adafactor_by_hand():
    # Sums of rows over 4 ranks, sums of columns whole; embedding and head as one matrix.
    p, alone = problem("adafactor"), shapes(1, 1)
    kinds = kinds_of_stages(p, alone, with_held=False)
    params = kind_params(p, alone, kinds)
    group = place_group(np.array([4], dtype=np.int32), 1, p.pool, p.fabric)
    part = Part(params, alone.tp, np.array([[4.0]]), group, is_routed=False)
    terms = group_terms(p, alone, kinds, part)
    assert terms is not None
    held = rank_matrices(p, alone, kinds, routed=False)
    sizes = [(m.rows, m.columns, int(n[0, 0])) for m, n in zip(*vars_of(held), strict=True)]
    ends = (params[0, 0] - sum(m * n * count for m, n, count in sizes)) / GQA.hidden
    by_hand = sum(4 * count * (m / 4 + n) for m, n, count in sizes)
    assert terms.state_bytes[0, 0, 0] == pytest.approx(by_hand + 4 * (ends / 4 + GQA.hidden))
    sums = [*sizes, (0, GQA.hidden, 1)]
    wire = sum(c * collective_s("all-reduce", 4.0 * n, group, p.pool).item() for _, n, c in sums)
    assert terms.update_s[0, 0, 0] == pytest.approx(wire)


def vars_of(held):
    return held.matrices, held.counts


def test_adam_has_no_groups():
    p, alone = problem("adam"), shapes(1, 1)
    kinds = kinds_of_stages(p, alone, with_held=False)
    group = place_group(np.array([4], dtype=np.int32), 1, p.pool, p.fabric)
    part = Part(kind_params(p, alone, kinds), alone.tp, np.ones((1, 1)), group, is_routed=False)
    assert group_terms(p, alone, kinds, part) is None


SEES = replace(
    GQA,
    vision=VisionShape(3, 64, 4, 256, False, 14, 256, merge=4, projector=(96,)),
)


def counted(p: Problem) -> dict[Matrix, int]:
    """Return the matrices beside routed experts of a rank."""
    table = shapes(1, 1)
    found = rank_matrices(p, table, kinds_of_stages(p, table, with_held=False), routed=False)
    return {m: int(n[0, 0]) for m, n in zip(found.matrices, found.counts, strict=True)}


def test_a_tower_brings_its_matrices_and_those_of_its_projector():
    own = counted(problem("muon", SEES))
    plain = counted(problem("muon"))
    more = {m: n for m, n in own.items() if m not in plain}
    assert more == {
        Matrix(192, 64, cut="rows", parts=(64, 64, 64)): 3,
        Matrix(64, 64, cut="columns"): 3,
        Matrix(256, 64, cut="rows"): 3,
        Matrix(64, 256, cut="columns"): 3,
        # Four patches of 64 side by side, and the width of the language model.
        Matrix(96, 256, cut="rows"): 1,
        Matrix(GQA.hidden, 96, cut="columns"): 1,
    }


@pytest.mark.parametrize(("trained", "n_more"), [("all", 6), ("projector", 2), ("none", 0)])
def test_frozen_parts_of_a_tower_have_no_matrices(trained, n_more):
    model = replace(SEES, vision=replace(SEES.vision, trained=trained))
    plain = counted(problem("muon"))
    assert len(counted(problem("muon", model))) == len(plain) + n_more


def test_inputs_of_mamba_go_to_the_scalar_optimizer_where_they_are_left_to_it():
    sizes = Mamba2Shape(heads=8, head_dim=16, groups=2, state=32, conv=4, chunk=64)
    run = (layer_run("mamba2+none", GQA.layers),)
    model = replace(GQA, mamba2=sizes, layer_runs=run)
    rows = 2 * 128 + 2 * 2 * 32 + 8
    inputs = Matrix(rows, GQA.hidden, cut="rows", is_state_input=True)
    output = Matrix(GQA.hidden, 128, cut="columns")
    assert set(counted(problem("muon", model))) == {inputs, output}
    assert set(counted(problem("muon", model, mamba_in_proj=False))) == {output}
