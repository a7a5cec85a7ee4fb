"""Gradient buckets of Megatron-Core, counted by hand."""

from dataclasses import replace

import pytest

from costmodels.breakdown import break_down
from costmodels.comm.buckets import n_buckets, rank_buckets
from costmodels.examples import LLAMA3_8B, MIXTRAL_8X7B
from costmodels.layers.kinds import layer_run
from costmodels.shapes import Mamba2Shape, VisionShape
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


MAMBA = Mamba2Shape(heads=128, head_dim=64, groups=8, state=128, conv=4, chunk=128)


def runs(*names):
    return tuple(layer_run(name, 1) for name in names)


def test_layers_of_a_hybrid_have_the_tensors_of_their_own_kinds(toy_problem, plain_layout):
    kinds = ("mamba2+none", "none+dense", "mamba2+none", "none+dense", "attention+none")
    shape = replace(LLAMA3_8B, layers=5, mamba2=MAMBA, vocab=32_000, layer_runs=runs(*kinds))
    problem = toy_problem(shape, gbs=64)
    layout = plain_layout(problem, dp=16)
    # Backwards, by 40e6: head 131.1e6; norm, output and QKV of attention 41.9e6; down projection
    # 58.7e6; up projection 117.4e6; the norm, and of Mamba output 33.6e6, vectors, input 76.0e6;
    # twice; the embedding with the norm of the first layer.
    assert rank_buckets(shape, problem.job, CORE, layout, 0) == (0, 1 + 1 + 2 * 3 + 1)
    # On a stage of the first two layers: the MLP's two, Mamba, the embedding.
    staged = replace(layout, pp=2, dp=8, stage_layers=(2, 3))
    assert rank_buckets(shape, problem.job, CORE, staged, 0) == (0, 2 + 1 + 1)
    assert rank_buckets(shape, problem.job, CORE, staged, 1) == (0, 1)


def test_layers_of_windows_are_cut_as_attention_over_all_keys(toy_problem, plain_layout):
    shape = replace(LLAMA3_8B, layers=2)
    problem = toy_problem(shape, gbs=64)
    layout, by_kinds = plain_layout(problem, dp=16), runs("window+dense", "dense")
    found = [
        rank_buckets(replace(shape, layer_runs=each), problem.job, CORE, layout, 0)
        for each in ((), by_kinds)
    ]
    assert found[0] == found[1] == (0, 1 + 2 * 3 + 1)


def test_latent_experts_are_as_wide_as_what_they_take(toy_problem, plain_layout):
    shape = replace(MIXTRAL_8X7B, layers=1, moe_latent=1024)
    problem = toy_problem(shape, gbs=64)
    layout = replace(plain_layout(problem, dp=16), ep=4)
    # Of either of two experts 29.4e6 and 14.7e6: 44.0e6 and 44.0e6. Of the rest the head 131e6;
    # two projections of 4.2e6, router, attention 41.9e6; the embedding.
    assert rank_buckets(shape, problem.job, CORE, layout, 0) == (2, 3)


def test_a_vision_tower_stands_before_the_embedding(toy_problem, plain_layout):
    tower = VisionShape(
        layers=1, hidden=4096, heads=32, ffn=16_384, gated=False, patch=16, patches=256
    )
    shape = replace(LLAMA3_8B, layers=1, vocab=32_000)
    problem = toy_problem(shape, gbs=64)
    layout = plain_layout(problem, dp=16)
    plain = rank_buckets(shape, problem.job, CORE, layout, 0)

    def more(**changed):
        seen = replace(shape, vision=replace(tower, **changed))
        return rank_buckets(seen, problem.job, CORE, layout, 0)[1] - plain[1]

    # The embedding ends a bucket. A projector of 16.8e6 and the down projection 67.1e6 make one,
    # the up projection 67.1e6, QKV 50.3e6 with its norm; output 16.8e6 and patches 3.1e6 are left.
    assert plain == (0, 1 + 2 + 1 + 1)
    assert more() == 4
    assert more(trained="projector") == 1
    assert more(trained="none") == 0


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
