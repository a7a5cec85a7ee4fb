"""Tensor-parallel traffic of a layer: collectives counted, windows by stack."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.comm.collectives import collective_s
from costmodels.comm.tensor_parallel import end_times, layer_exposures, tensor_parallel_group
from costmodels.layers.compute import embedding_times, head_times, linear_times
from costmodels.layers.layer_kind import SplitDegrees
from costmodels.layers.layer_terms import layer_terms
from costmodels.modes import ModeRows
from costmodels.problem import Problem
from costmodels.stacks import STACKS

TOKENS = np.array([4096.0])


def degree(value: int) -> np.ndarray:
    return np.array([value], dtype=np.int32)


def exposures(problem: Problem, tp: int, sp: int):
    part = problem.pool.accelerator
    gemms = linear_times(problem.shape, problem.job, part, problem.stack, TOKENS, degree(tp))
    return gemms, layer_exposures(problem, TOKENS, degree(tp), degree(sp), gemms)


def units(problem: Problem, tp: int) -> tuple[float, float]:
    """One all-gather (or reduce-scatter) and one all-reduce of 2 b s h = 16.8 MB.

    With the wait for the last of the ranks: once a further rank, twice in an all-reduce.
    """
    group = tensor_parallel_group(problem, degree(tp))
    x, late = 2 * 4096 * 2048, problem.stack.tp_hop_s * (tp - 1)
    gather, reduce = (
        collective_s(name, x, group, problem.pool).item() for name in ("all-gather", "all-reduce")
    )
    return gather + late, reduce + 2 * late


@pytest.mark.parametrize(("stack", "gathers"), [("fused", 6), ("eager", 4)])
def test_totals_are_counted_collectives(toy_problem, stack, gathers):
    problem = toy_problem(stack=stack)
    gather, reduce = units(problem, 8)
    _, (forward, backward) = exposures(problem, 8, 0)
    assert forward.total_s.item() == pytest.approx(2 * reduce)
    assert backward.total_s.item() == pytest.approx(2 * reduce)
    _, (forward, backward) = exposures(problem, 8, 1)
    assert forward.total_s.item() == pytest.approx(4 * gather)
    assert backward.total_s.item() == pytest.approx(gathers * gather)


def test_without_overlap_everything_waits(toy_problem):
    _, (forward, backward) = exposures(toy_problem(stack="eager"), 8, 1)
    assert forward.exposed_s == forward.total_s
    assert backward.exposed_s == backward.total_s
    assert forward.hidden_s == 0.0


def test_bulk_hides_the_input_gradient_behind_the_weight_gradient(toy_problem):
    problem = toy_problem(stack="fused")
    for tp in (2, 8):
        gather, reduce = units(problem, tp)
        gemms, (forward, backward) = exposures(problem, tp, 1)
        wgrad, dgrad = gemms.column_wgrad_s.item(), gemms.column_dgrad_s.item()
        by_hand = 2 * gather + max(0, 2 * gather - wgrad) + max(0, 2 * gather - dgrad)
        assert forward.exposed_s == forward.total_s
        assert backward.exposed_s.item() == pytest.approx(by_hand)
        assert backward.hidden_s.item() == pytest.approx(6 * gather - by_hand)
        gemms, (forward, backward) = exposures(problem, tp, 0)
        assert forward.exposed_s.item() == pytest.approx(2 * reduce)
        assert backward.exposed_s.item() == pytest.approx(max(0, 2 * reduce - wgrad))


def test_userbuffers_also_pipe_the_forward(toy_problem):
    stack = replace(STACKS["fused"], tp_overlap="userbuffers")
    problem = toy_problem(stack=stack)
    gather, _ = units(problem, 8)
    gemms, (forward, backward) = exposures(problem, 8, 1)

    def pieces(window: float) -> float:
        return max(2 * gather / 8, 2 * gather - window * 7 / 8)

    by_hand = pieces(gemms.column_forward_s.item()) + pieces(gemms.row_forward_s.item())
    assert forward.exposed_s.item() == pytest.approx(by_hand)
    assert forward.exposed_s < forward.total_s
    behind = max(0, 2 * gather - gemms.column_wgrad_s.item())
    behind += max(0, 2 * gather - gemms.column_dgrad_s.item())
    by_hand = behind + pieces(gemms.row_dgrad_s.item())
    assert backward.exposed_s.item() == pytest.approx(by_hand)
    # Without sequence parallelism there is nothing to pipe.
    _, (forward, _) = exposures(problem, 8, 0)
    assert forward.exposed_s == forward.total_s


def test_ends_by_hand(toy_problem):
    problem = toy_problem()
    gather, reduce = units(problem, 8)
    group = tensor_parallel_group(problem, degree(8))
    late = 2 * 7 * problem.stack.tp_hop_s
    # The largest logit; then label and sum of exponentials at once: 12 bytes a token in two calls.
    loss = 2 * (collective_s("all-reduce", 6 * 4096, group, problem.pool).item() + late)
    embedding, forward, backward = end_times(problem, TOKENS, degree(8), degree(1))
    assert embedding.item() == pytest.approx(2 * gather)
    assert forward.item() == pytest.approx(gather + loss)
    assert backward.item() == pytest.approx(gather)
    embedding, forward, backward = end_times(problem, TOKENS, degree(8), degree(0))
    assert embedding.item() == pytest.approx(reduce)
    assert forward.item() == pytest.approx(loss)
    assert backward.item() == pytest.approx(reduce)


def test_a_stack_that_gathers_its_logits_sends_all_of_them(toy_problem):
    problem = toy_problem(stack=replace(STACKS["eager"], logits_sharded=False))
    group = tensor_parallel_group(problem, degree(8))
    # 2 B * 4096 tokens * 32768 rows (32000 padded to a multiple of 8 * 128).
    logits = collective_s("all-gather", 2 * 4096 * 32_768, group, problem.pool).item()
    _, forward, _ = end_times(problem, TOKENS, degree(8), degree(0))
    assert forward.item() == pytest.approx(logits + 7 * problem.stack.tp_hop_s)


def test_async_tensor_parallelism_pipes_every_second_collective(toy_problem):
    stack = replace(STACKS["eager"], tp_overlap="pieces")
    problem = toy_problem(stack=stack)
    gather, reduce = units(problem, 8)
    gemms, (forward, backward) = exposures(problem, 8, 1)
    for found, window in (
        (forward, gemms.both.forward_s.item()),
        (backward, gemms.both.backward_s.item()),
    ):
        by_hand = 2 * gather + max(2 * gather / 8, 2 * gather - window / 2 * 7 / 8)
        assert found.exposed_s.item() == pytest.approx(by_hand)
        assert (
            2 * gather < found.exposed_s.item() < found.total_s.item() == pytest.approx(4 * gather)
        )
    _, (forward, _) = exposures(problem, 8, 0)
    assert forward.exposed_s.item() == pytest.approx(2 * reduce)


def test_one_rank_has_no_traffic(toy_problem):
    problem = toy_problem()
    _, (forward, backward) = exposures(problem, 1, 0)
    assert forward.total_s == backward.total_s == 0.0
    assert [x.item() for x in end_times(problem, TOKENS, degree(1), degree(0))] == [0.0] * 3


def test_the_ends_carry_their_collectives(toy_problem):
    problem = toy_problem()
    part, tp, sp = problem.pool.accelerator, degree(8), degree(1)
    terms = layer_terms(problem, SplitDegrees.of_tp(tp), degree(1), ModeRows.of_sp(sp))
    embedding, forward, backward = end_times(problem, TOKENS, tp, sp)
    lookup = embedding_times(problem.shape, part, TOKENS, tp, sp)
    head = head_times(problem.shape, problem.job, part, problem.stack, TOKENS, tp)
    # The embedding's reduce-scatter is forward, its all-gather backward.
    assert terms.embedding.forward_s == lookup.forward_s + embedding / 2
    assert terms.embedding.backward_s == lookup.backward_s + embedding / 2
    assert terms.head.forward_s == head.forward_s + forward
    assert terms.head.backward_s == head.backward_s + backward


def test_hidden_traffic_slows_compute_and_a_slow_host_fills_the_layer(toy_problem):
    problem = toy_problem()
    problem = replace(problem, stack=replace(problem.stack, host_s_per_layer=1e-3))
    terms = layer_terms(
        problem, SplitDegrees.of_tp(degree(8)), degree(1), ModeRows.of_sp(degree(1))
    )
    assert terms.tax.backward_s == pytest.approx(0.15 * terms.tp_backward.hidden_s)
    device = terms.linear.total_s + terms.attention.total_s + terms.elementwise.total_s
    device += terms.tp_forward.exposed_s + terms.tp_backward.exposed_s + terms.tax.total_s
    assert terms.layer.total_s == pytest.approx(device + terms.host.total_s)
    slow = replace(problem, stack=replace(problem.stack, host_s_per_layer=0.1))
    bound = layer_terms(slow, SplitDegrees.of_tp(degree(8)), degree(1), ModeRows.of_sp(degree(1)))
    assert bound.layer.total_s == pytest.approx(0.1)
    assert 2 * bound.host.forward_s == pytest.approx(bound.host.backward_s)
    again = bound.linear.forward_s + bound.attention.forward_s + bound.elementwise.forward_s
    assert again + bound.tp_forward.exposed_s < 0.1 / 3
    assert bound.recompute_full_s == pytest.approx(0.1 / 3)  # launching it again takes as long
    assert terms.recompute_full_s == pytest.approx(
        terms.linear.forward_s
        + terms.attention.forward_s
        + terms.elementwise.forward_s
        + terms.tp_forward.exposed_s
    )
    assert bound.modules.forward_s[0] == bound.attention.forward_s
