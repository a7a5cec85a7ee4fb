"""One plan opened up: terms add up, traffic agrees with time, volumes by hand."""

import random
from dataclasses import replace

import pytest

from costmodels.breakdown import (
    break_down,
    join_one,
    virtual_stage_times,
    virtual_weight_grad_times,
)
from costmodels.documentation.terms import TIME_TERMS
from costmodels.examples import GPT3_175B
from costmodels.stacks import STACKS
from costmodels.step import (
    boundary_hops_s,
    outside_pipeline,
    peak_bytes,
    stage_times,
    straggler_factor,
)
from hardware.parts import Fabric, Tier
from tests.costmodels.pipelines import exact_s

LAYOUTS = [
    {"dp": 8},
    {"dp": 8, "zero": 1},
    {"dp": 8, "zero": 2},
    {"dp": 8, "zero": 3, "recompute": "full"},
    {"tp": 8},
    {"tp": 8, "sp": True, "dp": 8, "zero": 1},
    {"tp": 2, "sp": True, "dp": 4, "zero": 1, "recompute": "full", "recompute_layers": 5},
    {"pp": 4, "dp": 4, "zero": 1},
    {"pp": 4, "dp": 4, "zero": 1, "schedule": "gpipe", "recompute": "selective"},
    {"tp": 4, "pp": 4, "dp": 2, "vpp": 3, "sp": True, "zero": 1},
    {"tp": 2, "pp": 8, "dp": 2, "vpp": 3, "zero": 1, "recompute": "full", "recompute_layers": 1},
    {"tp": 2, "pp": 4, "dp": 8, "split": "ends"},
    {"tp": 2, "pp": 2, "dp": 8, "vpp": 4, "split": "ends", "recompute": "full"},
    {"tp": 2, "pp": 4, "dp": 2, "zero": 1, "schedule": "zb-h1", "recompute": "full"},
    {"tp": 2, "pp": 4, "dp": 2, "vpp": 2, "schedule": "zb-v", "sp": True, "split": "ends"},
    {"tp": 2, "pp": 4, "dp": 2, "zero": 1, "schedule": "dualpipe", "sp": True},
    {"tp": 2, "pp": 4, "dp": 2, "vpp": 2, "schedule": "dualpipe-v", "recompute": "full"},
]
STACK_NAMES = ("megatron-core", "megatron-lm-2022", "eager")


@pytest.fixture(scope="module")
def opened(toy_problem, plain_layout):
    """Every layout on every stack, tied and not: (problem, breakdown)."""
    found = []
    plain = toy_problem().shape
    for stack in STACK_NAMES:
        for tied in (False, True):
            shape = replace(plain, tied=tied, dropout=tied, flash_attention=not tied)
            for degrees in LAYOUTS:
                uneven = degrees.get("split") == "ends"
                problem = toy_problem(
                    replace(shape, layers=22 if uneven else 24), stack=stack, gbs=64
                )
                found.append((problem, break_down(problem, plain_layout(problem, **degrees))))
    return found


def test_terms_add_up_to_the_step(opened):
    for _, found in opened:
        assert tuple(found.time_s) == TIME_TERMS
        assert sum(found.time_s.values()) == found.step_s
        assert all(value >= 0.0 for value in found.time_s.values())


def test_terms_are_the_simulated_pipeline_and_what_lies_outside(opened):
    for problem, found in opened:
        layout, rows = found.layout, found.rows
        forward, backward = virtual_stage_times(rows, layout)
        args = (layout.schedule, layout.pp, layout.vpp, layout.n_micro, forward, backward)
        late = virtual_weight_grad_times(rows, layout)
        flush = exact_s(*args, boundary_hops_s(rows, layout), late)
        factor = straggler_factor(problem, layout.n_devices)
        outside = outside_pipeline(rows, stage_times(rows)).item()
        assert found.step_s == pytest.approx(factor * flush + outside, rel=1e-9)
        inside = sum(
            found.time_s[term]
            for term in TIME_TERMS
            if term not in ("dp", "optimizer", "straggler", "fixed", "overlap")
        )
        assert inside <= (flush + rows.shapes.embedding_sync_s.item()) * (1 + 1e-9)
        sync = rows.shapes.embedding_sync_s.item()
        waited = flush - exact_s(*args, 0.0, late)
        assert found.time_s["pp"] == pytest.approx(waited + sync, abs=1e-9)


def test_shares_are_of_the_step(opened):
    for _, found in opened:
        assert found.bubble_frac == found.time_s["bubble"] / found.step_s
        waits = sum(found.time_s[axis] for axis in ("tp", "pp", "dp"))
        assert found.exposed_comm_frac == pytest.approx(waits / found.step_s)
        assert 0.0 <= found.bubble_frac < 1.0


def test_stages_without_a_pipeline_have_no_bubble(opened):
    for _, found in opened:
        if found.layout.pp == 1:
            assert found.time_s["bubble"] == pytest.approx(0.0, abs=1e-9)
            assert found.time_s["pp"] == 0.0


def exposed(found, axis: str) -> float:
    return sum(t.exposed_s for t in found.transfers if t.axis == axis)


def test_exposed_transfers_agree_with_the_time_terms(opened):
    for _, found in opened:
        for axis in ("tp", "pp", "dp"):
            assert exposed(found, axis) == pytest.approx(found.time_s[axis], rel=1e-9)


def test_no_transfer_waits_longer_than_it_takes(opened):
    for _, found in opened:
        for t in found.transfers:
            if t.axis != "pp":
                assert t.exposed_s <= t.time_s * (1 + 1e-9)
            assert t.n_calls > 0
            assert t.message_bytes > 0
            assert t.sent_bytes > 0


def test_what_leaves_the_domain_goes_through_the_nics_in_time(opened):
    """No dot of a communication roofline lies above its roof: bytes over bandwidth <= time."""
    for problem, found in opened:
        for t in found.transfers:
            assert 0.0 <= t.scale_out_bytes <= t.sent_bytes
            assert (t.scale_out_bytes > 0) == (t.tier not in ("scale-up", "host"))
            nic_s = t.scale_out_bytes / problem.pool.nic_bytes_per_s
            assert nic_s <= t.time_s * (1 + 1e-9)


def test_what_leaves_the_domain_by_hand(toy_problem, plain_layout):
    problem = toy_problem(gbs=64)
    assert problem.pool.scale_up_domain == 8
    # Rings of 16 ranks, 8 of them in each domain, leave it with every eighth message.
    (near,) = by_axis(break_down(problem, plain_layout(problem, dp=16)), "dp").values()
    assert near.scale_out_bytes == near.sent_bytes / 8
    # Behind tp8 every rank of a group is in a domain of its own.
    (far,) = by_axis(break_down(problem, plain_layout(problem, tp=8, dp=2)), "dp").values()
    assert far.scale_out_bytes == far.sent_bytes


def by_axis(found, axis: str) -> dict[str, object]:
    of_axis = [t for t in found.transfers if t.axis == axis]
    return {t.collective: t for t in of_axis if axis != "tp" or t.dtype != "fp32"}


def test_tensor_parallel_volumes_by_hand(toy_problem, plain_layout):
    # x = 2 * 4096 * 2048 = 16.8 MB; 24 layers, 8 micro-batches.
    problem = toy_problem(gbs=8, stack="fused")
    x, passes = 2 * 4096 * 2048, 24 * 8
    plain = by_axis(break_down(problem, plain_layout(problem, tp=8)), "tp")
    assert list(plain) == ["all-reduce"]
    # One more for each end of the model, and two of 12 bytes a token together for the loss.
    assert plain["all-reduce"].n_calls == 4 * passes + 2 * 8
    assert plain["all-reduce"].sent_bytes == (4 * passes + 2 * 8) * 2 * 7 / 8 * x
    found = break_down(problem, plain_layout(problem, tp=8))
    (loss,) = [t for t in found.transfers if t.axis == "tp" and t.dtype == "fp32"]
    assert (loss.n_calls, loss.message_bytes) == (2 * 8, 6 * 4096)
    # Sequence parallel: 4 gathers and 4 reductions, and two gathers again in backward; the head's
    # input is gathered twice, too.
    split = by_axis(break_down(problem, plain_layout(problem, tp=8, sp=True)), "tp")
    assert split["all-gather"].n_calls == 6 * passes + 3 * 8
    assert split["reduce-scatter"].n_calls == 4 * passes + 2 * 8
    assert sum(t.sent_bytes for t in split.values()) == (10 * passes + 5 * 8) * 7 / 8 * x
    assert {t.tier for t in split.values()} == {"scale-up"}
    assert {t.message_bytes for t in split.values()} == {x}
    # Full recompute repeats the forward's.
    full = plain_layout(problem, tp=8, sp=True, recompute="full")
    again = by_axis(break_down(problem, full), "tp")
    assert again["all-gather"].n_calls == 8 * passes + 3 * 8
    assert again["reduce-scatter"].n_calls == 6 * passes + 2 * 8
    # Once a step the gradients of the norms: two of 2048 in 24 layers, and the last.
    found = break_down(problem, plain_layout(problem, tp=8, sp=True)).transfers
    norms = [t.message_bytes for t in found if t.axis == "tp" and t.n_calls == 1]
    assert norms == [4 * 49 * 2048]


def test_pipeline_volumes_by_hand(toy_problem, plain_layout):
    problem = toy_problem(gbs=64)
    x = 2 * 4096 * 2048
    layout = plain_layout(problem, tp=4, pp=4, dp=4, vpp=3)
    (sent,) = [t for t in break_down(problem, layout).transfers if t.axis == "pp"]
    assert (sent.collective, sent.group_size, sent.tier) == ("point-to-point", 4, "scale-out")
    # The last rank sends nothing on from its last chunk, an interior one from every chunk.
    assert sent.n_calls == 16 * (2 * 3 - 1)
    assert sent.sent_bytes == 16 * (2 * 3 - 1) * x
    inside = break_down(problem, layout, 1).transfers
    assert [t.n_calls for t in inside if t.axis == "pp"] == [16 * 2 * 3]
    split = replace(layout, sp=True)
    (sent,) = [t for t in break_down(problem, split).transfers if t.axis == "pp"]
    assert sent.message_bytes == x / 4
    scatter = replace(problem, stack=STACKS["megatron-lm-2022"])
    (sent,) = [t for t in break_down(scatter, layout).transfers if t.axis == "pp"]
    assert sent.message_bytes == x / 4


PARAMS = 24 * 62_918_656 + 2 * 32_000 * 2_048 + 2_048


@pytest.mark.parametrize(
    ("zero", "passes"),
    [
        # fp32 gradients on the wire, bf16 weights; 4 micro-batches.
        (0, {"all-reduce": 2 * 4}),
        (1, {"reduce-scatter": 4, "all-gather": 2}),
        (2, {"reduce-scatter": 4 * 4, "all-gather": 2}),
        (3, {"reduce-scatter": 4 * 4, "all-gather": 2 * 4 * 2}),
    ],
)
def test_data_parallel_volumes_by_hand(toy_problem, plain_layout, zero, passes):
    problem = toy_problem(gbs=64)
    found = by_axis(break_down(problem, plain_layout(problem, dp=16, zero=zero)), "dp")
    assert list(found) == list(passes)
    for name, widths in passes.items():
        assert found[name].sent_bytes == pytest.approx(15 / 16 * widths * PARAMS, rel=1e-9)
        assert found[name].dtype == ("bf16" if name == "all-gather" else "fp32")
    # Head, MLP of a layer with the attention of the one before it 24 times, attention of the
    # first with the embedding: 26 buckets of at least 40e6; layer by layer: 25.
    pieces = 26 if zero < 2 else 25
    assert found[next(iter(passes))].n_calls == pieces * (1 if zero < 2 else 4)


def test_the_tied_embedding_is_summed_between_the_ends(toy_problem, toy_pool, plain_layout):
    problem = toy_problem(GPT3_175B, toy_pool(8), "megatron-core", seq_len=2048, gbs=16)
    found = break_down(problem, plain_layout(problem, tp=8, pp=8))
    (pair,) = [t for t in found.transfers if t.collective == "all-reduce" and t.axis == "pp"]
    assert (pair.group_size, pair.n_calls, pair.tier) == (2, 1, "scale-out")
    assert pair.message_bytes == 4 * 51_200 / 8 * 12_288
    # Ring over two nodes, one NIC: 314.6 MB at 50 GB/s is the floor.
    assert pair.exposed_s == pytest.approx(pair.message_bytes / 50e9, rel=0.02)


def test_tiers_name_the_level_that_a_group_spans(toy_problem, plain_layout):
    pods = Fabric((Tier("pod", 2, 3.0),))
    problem = toy_problem(fabric=pods, gbs=64)
    found = break_down(problem, plain_layout(problem, tp=4, pp=2, dp=8, sp=True, zero=1))
    tiers = {t.axis: t.tier for t in found.transfers}
    assert tiers == {"tp": "scale-up", "pp": "top", "dp": "top"}
    near = break_down(problem, plain_layout(problem, tp=4, pp=4, dp=4, zero=1))
    assert {t.axis: t.tier for t in near.transfers}["dp"] == "pod"


def test_the_critical_stage_is_the_slowest(toy_problem, plain_layout):
    # Equal layers: the head makes the last rank the slowest.
    problem = toy_problem(gbs=64)
    found = break_down(problem, plain_layout(problem, pp=4, dp=4))
    assert found.critical_stage == 3
    assert found.time_s["head"] > 0
    assert found.time_s["embedding"] == 0
    forward, backward = virtual_stage_times(join_one(problem, found.layout), found.layout)
    assert max(range(4), key=lambda r: forward[r] + backward[r]) == 3


def test_virtual_stages_add_up_to_the_kinds_of_rank(toy_problem, plain_layout):
    problem = toy_problem(replace(toy_problem().shape, layers=22), gbs=64)
    chance = random.Random(0)
    for _ in range(20):
        tp, vpp = chance.choice([1, 2, 4]), chance.choice([1, 2, 3])
        recompute = chance.choice(["none", "selective", "full"])
        layout = plain_layout(
            problem,
            tp,
            4,
            2,
            vpp,
            split="ends",
            recompute=recompute,
            recompute_layers=1 if recompute == "full" else 0,
        )
        rows = join_one(problem, layout)
        times, kinds = stage_times(rows), rows.shapes.kinds
        forward, backward = virtual_stage_times(rows, layout)
        for i, rank in enumerate(kinds.rank[0]):
            assert sum(forward[rank::4]) == pytest.approx(times.forward_s[i, 0], rel=1e-12)
            assert sum(backward[rank::4]) == pytest.approx(times.backward_s[i, 0], rel=1e-12)


ZERO_BUBBLE_LAYOUTS = [
    {"pp": 4, "dp": 4, "schedule": "zb-h1"},
    {"pp": 4, "dp": 4, "schedule": "zb-v", "vpp": 2},
    {"pp": 4, "dp": 4, "schedule": "dualpipe"},
    {"pp": 4, "dp": 4, "schedule": "dualpipe-v", "vpp": 2},
]


@pytest.mark.parametrize("degrees", ZERO_BUBBLE_LAYOUTS, ids=lambda x: x["schedule"])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(("split", "layers"), [("even", 24), ("ends", 22)])
@pytest.mark.parametrize("tied", [False, True])
def test_the_ranking_sees_the_memory_and_nearly_the_time_of_the_opened_plan(
    toy_problem, plain_layout, degrees, recompute, split, layers, tied
):
    problem = toy_problem(replace(toy_problem().shape, layers=layers, tied=tied), gbs=64)
    layout = plain_layout(problem, split=split, recompute=recompute, zero=1, **degrees)
    found = break_down(problem, layout)
    # The kinds of rank of the ranking against every rank on its own.
    assert peak_bytes(join_one(problem, layout)).item() == pytest.approx(found.peak_bytes)
    # The head is worth three layers; in a V it is on the first rank, which then waits for nobody.
    assert found.closed_form_step_s == pytest.approx(found.step_s, rel=0.05)


@pytest.mark.parametrize("degrees", ZERO_BUBBLE_LAYOUTS, ids=lambda x: x["schedule"])
def test_split_backwards_beat_1f1b_and_say_what_they_hold(toy_problem, plain_layout, degrees):
    problem = toy_problem(gbs=64)
    plain = break_down(problem, plain_layout(problem, pp=4, dp=4))
    found = break_down(problem, plain_layout(problem, **degrees))
    assert found.time_s["bubble"] < 0.75 * plain.time_s["bubble"]
    # Activations in stages of 6 layers: 4 everywhere, 5 half-stages of two, 9 halves.
    stages = {"zb-h1": 4, "zb-v": 4, "dualpipe": 5, "dualpipe-v": 4.5}[degrees["schedule"]]
    per_stage = plain.stages[3]["activations"]
    for stage in found.stages[1:-1]:
        assert stage["activations"] == pytest.approx(stages * per_stage)
    sends = {t.collective: t.n_calls for t in found.transfers if t.axis == "pp"}
    # The slowest rank has an end; in a V both, and the turn needs no message. Of 16 micro-batches
    # DualPipe sends half each way.
    expected = {"zb-h1": 16, "zb-v": 16 * 2, "dualpipe": 8 * 2, "dualpipe-v": 16 * 2}
    assert sends["point-to-point"] == expected[degrees["schedule"]]


def test_dualpipe_holds_the_model_twice_and_sums_its_gradients(toy_problem, plain_layout):
    problem = toy_problem(gbs=64)
    plain = break_down(problem, plain_layout(problem, pp=4, dp=4))
    found = break_down(problem, plain_layout(problem, pp=4, dp=4, schedule="dualpipe"))
    held = sum(stage["states"] for stage in found.stages)
    assert held == pytest.approx(2 * sum(stage["states"] for stage in plain.stages))
    (pair,) = [t for t in found.transfers if t.collective == "all-reduce" and t.axis == "pp"]
    # Rank 0: 12 of 24 layers and both ends, gradients in fp32.
    ends = 2 * 32_000 * 2_048 + 2_048
    assert pair.message_bytes == pytest.approx(4 * (12 * 62_918_656 + ends), rel=1e-9)
    # A V has both ends on its first rank, and nothing to sum there.
    tied = replace(problem, shape=replace(problem.shape, tied=True))
    folded = break_down(tied, plain_layout(tied, pp=4, dp=4, vpp=2, schedule="zb-v"))
    assert [t.collective for t in folded.transfers if t.axis == "pp"] == ["point-to-point"]
    assert folded.stages[0]["logits"] > 0 == folded.stages[3]["logits"]
