"""Gradient buckets of Megatron-Core, counted by hand."""

from dataclasses import replace

import pytest

from costmodels.breakdown import break_down
from costmodels.comm.buckets import n_buckets, rank_buckets
from costmodels.examples import MIXTRAL_8X7B
from costmodels.stacks import STACKS
from costmodels.traffic import sends_per_pass

CORE = STACKS["megatron-core"]


def test_a_bucket_closes_as_soon_as_it_is_full():
    assert n_buckets([40, 39, 1, 5], 40) == 3
    assert n_buckets([], 40) == 0


def test_only_the_first_chunk_of_the_first_stage_is_cut(toy_problem, plain_layout):
    problem = toy_problem(gbs=64)
    layout = plain_layout(problem, pp=4, dp=4, vpp=3)

    def of(rank, **changed):
        other = replace(layout, **changed)
        return rank_buckets(problem.shape, problem.job, CORE, other, rank)

    # Two layers: MLP 50.3e6; attention 12.6e6 with the MLP below it; attention and embedding.
    assert of(0) == (0, 3 + 2)
    assert of(1) == (0, 3)
    assert of(0, dp_overlap=False) == (0, 3)


def test_routed_experts_have_buckets_of_their_own(toy_problem, plain_layout):
    shape = replace(MIXTRAL_8X7B, layers=2)
    problem = toy_problem(shape, gbs=64)
    layout = replace(plain_layout(problem, dp=16), ep=4)
    # Two experts a layer of 117e6 and 59e6: every matrix is one. Of the rest the head (131e6),
    # twice attention (42e6) as its last matrix comes, the embedding.
    assert rank_buckets(shape, problem.job, CORE, layout, 0) == (8, 4)


def test_experts_cut_as_all_else_lie_in_its_buckets(toy_problem, plain_layout):
    shape = replace(MIXTRAL_8X7B, layers=2)
    problem = toy_problem(shape, gbs=64)
    layout = plain_layout(problem, dp=16)
    # The head; of either layer 16 matrices of experts, then router and attention; the embedding.
    assert rank_buckets(shape, problem.job, CORE, layout, 0) == (36, 36)
    of_one = break_down(problem, replace(layout, gbs=64)).transfers
    assert [(one.axis, one.n_calls) for one in of_one] == [("dp", 36)]


@pytest.mark.parametrize(
    ("rank", "vpp", "sends"), [(0, 1, 1), (1, 1, 2), (3, 1, 1), (0, 3, 5), (2, 3, 6), (3, 3, 5)]
)
def test_ends_of_a_pipeline_send_less(toy_problem, plain_layout, rank, vpp, sends):
    layout = plain_layout(toy_problem(gbs=64), pp=4, dp=4, vpp=vpp)
    assert sends_per_pass(layout, rank) == sends


def test_stages_on_one_rank_send_nothing_to_each_other(toy_problem, plain_layout):
    layout = plain_layout(toy_problem(gbs=64), pp=4, dp=4, vpp=2, schedule="zb-v")
    # Stages 0 and 7, 1 and 6, 3 and 4.
    assert [sends_per_pass(layout, rank) for rank in (0, 1, 3)] == [2, 4, 2]


def test_traffic_of_a_rank_that_is_asked_for_is_its_own(toy_problem, plain_layout):
    problem = toy_problem(gbs=64)
    layout = plain_layout(problem, pp=4, dp=4, zero=1)
    for rank, end in ((0, 32_000 * 2_048), (1, 0), (3, 32_000 * 2_048 + 2_048)):
        found = break_down(problem, layout, rank).transfers
        (reduced,) = [t for t in found if t.collective == "reduce-scatter" and t.axis == "dp"]
        total = reduced.n_calls * reduced.message_bytes
        assert total == pytest.approx(4 * (6 * 62_918_656 + end))


def test_weights_of_the_router_travel_apart(toy_problem, plain_layout):
    problem = toy_problem(replace(MIXTRAL_8X7B, layers=4), gbs=64)
    found = break_down(problem, replace(plain_layout(problem, dp=16), ep=4)).transfers
    tokens, weights = [t for t in found if t.collective == "all-to-all"]
    # 4 layers, 4 micro-batches; tokens go and come both ways, weights go with them alone.
    assert (tokens.n_calls, weights.n_calls) == (4 * 16, 2 * 16)
    assert tokens.message_bytes == 4096 * weights.message_bytes
