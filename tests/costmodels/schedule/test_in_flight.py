"""Unequal interleaved chunks in flight: closed forms beside the program of each rank."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.breakdown import break_down
from costmodels.plans import Layout
from costmodels.schedule.in_flight import ROUNDS, beyond_mean, chunks_in_flight
from costmodels.schedule.pipeline import rank_program
from costmodels.schedule.rank_costs import rank_costs
from costmodels.schedule.stages import spelled
from costmodels.step import peak_bytes
from planner.solver.problem import make_problem
from planner.solver.request import SolveRequest
from planner.solver.sources import read_inputs


def replayed_peak(rank: int, pp: int, vpp: int, n_micro: int, chunks: list[float]) -> float:
    """The most that a rank holds over its program, given what each chunk keeps."""
    held = most = 0.0
    for stage, _, backward in rank_program("interleaved", rank, pp, vpp, n_micro):
        held += -chunks[stage // pp] if backward else chunks[stage // pp]
        most = max(most, held)
    return most


@given(
    pp=st.integers(2, 9),
    vpp=st.integers(2, 6),
    rounds=st.integers(1, 5),
    data=st.data(),
)
def test_the_peak_is_that_of_the_program(pp, vpp, rounds, data):
    rank = data.draw(st.integers(0, pp - 1))
    chunks = data.draw(st.lists(st.integers(1, 20), min_size=vpp, max_size=vpp))
    counts = chunks_in_flight(rank, pp, vpp, min(rounds, ROUNDS))
    peak = replayed_peak(rank, pp, vpp, rounds * pp, chunks)
    assert (counts @ np.array(chunks)).max() == peak
    beyond = beyond_mean(rank, pp, vpp, min(rounds, ROUNDS))
    assert np.allclose(beyond.sum(axis=1), 0.0)  # equal chunks: nothing beyond the mean


def test_early_chunks_count_more_by_hand():
    # Rank 0 of 4 with two chunks: 11 in flight, 7 or 8 of the first. Layers 1 and 9, or 9 and 1.
    counts = chunks_in_flight(0, 4, 2, 3)
    assert (counts @ np.array([1, 9])).max() == 7 * 1 + 4 * 9
    assert (counts @ np.array([9, 1])).max() == 8 * 9 + 3 * 1
    assert replayed_peak(0, 4, 2, 12, [9, 1]) == 75  # by the mean of both it were 11 / 2 x 10 = 55


def problem_of(model: str, cluster: str):
    options = SolveRequest.of(top=1, framework="any").options()
    return make_problem(*read_inputs(model, cluster, ()), options)


CASES = {
    "dense": ("llama3-70b", "h100-x512", 4, 4, 3, {}),
    "recomputed": ("llama3-70b", "h100-x512", 4, 8, 2, {"recompute": "full"}),
    "experts in some chunks": ("deepseek-v3", "h800-x2048", 2, 8, 2, {"ep": 16}),
    "two rounds": ("llama3-70b", "h100-x512", 4, 8, 3, {"n_micro": 16}),
}


@pytest.mark.parametrize("name", CASES)
def test_memory_of_a_plan_is_what_its_program_holds(name):
    """Every rank, chunk by chunk from a layer's bytes, against breakdown, table and costs."""
    model, cluster, tp, pp, vpp, changes = CASES[name]
    problem = problem_of(model, cluster)
    shape, n = problem.shape, problem.pool.n_devices
    chance = random.Random(name)
    dp, n_micro = n // (tp * pp), int(changes.get("n_micro", 6 * pp))
    fields = {key: value for key, value in changes.items() if key != "n_micro"}
    cuts = sorted(chance.sample(range(1, shape.layers), pp * vpp - 1))
    counts = tuple(b - a for a, b in zip([0, *cuts], [*cuts, shape.layers], strict=True))
    depth = 2 if fields.get("recompute") == "full" else 0
    layout = Layout(
        n_devices=n,
        tp=tp,
        pp=pp,
        dp=dp,
        vpp=vpp,
        split=spelled(counts),
        mbs=1,
        gbs=n_micro * dp,
        zero=1,
        sp=True,
        schedule="interleaved",
        recompute_layers=depth,
        stage_layers=counts,
        **{"recompute": "none", **fields},
    )
    found = break_down(problem, layout)
    layers, experts = found.rows.layers, shape.expert_layers
    dense, routed = layers.kept_bytes.item(), 0.0
    if layers.experts:
        routed = layers.experts.kept_bytes.item()
    starts = np.cumsum((0, *counts))
    for rank, stage in enumerate(found.stages):
        chunks = []
        for j in range(rank, pp * vpp, pp):
            kinds = experts[starts[j] + min(depth, counts[j]) : starts[j + 1]]
            size = sum(routed if expert else dense for expert in kinds)
            chunks.append(size + min(depth, counts[j]) * layers.checkpoint_bytes.item())
        ends = 0.0
        flying = sum(chunks_in_flight(rank, pp, vpp, min(ROUNDS, n_micro // pp))[0])
        if rank == 0:
            ends = flying / vpp * layers.embedding_bytes.item()
        if rank == pp - 1 and shape.mtp_layers:
            ends = flying / vpp * shape.mtp_layers * (routed or dense)
        peak = replayed_peak(rank, pp, vpp, n_micro, chunks) + ends
        assert stage["activations"] == pytest.approx(peak, rel=1e-12)
    assert found.peak_bytes == pytest.approx(peak_bytes(found.rows).item(), rel=1e-12)
    (costs,) = rank_costs(problem, [layout])
    totals = [sum(terms.values()) for terms in found.stages]
    assert costs.rank_bytes(counts, depth) == pytest.approx(totals, rel=1e-12)
