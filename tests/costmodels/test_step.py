"""Step time and memory of a table: factored against row by row, order, monotone in hardware."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.axes import SCHEDULES
from costmodels.breakdown import break_down, join_one
from costmodels.layers.flops import model_flops_per_step
from costmodels.plans import Layout, PlanTable, ShapeTable
from costmodels.schedule import pipeline
from costmodels.schedule.stages import SPLITS, stage_layers
from costmodels.shape_terms import shape_terms
from costmodels.stacks import STACKS
from costmodels.step import (
    Scores,
    boundary_hops_s,
    data_parallel_exposed,
    hop_s,
    join,
    score,
    stage_times,
    stalled,
    step_times,
    straggler_factor,
)
from hardware.parts import Fabric, Tier
from tests.costmodels.pipelines import exact_s
from tests.repeats import examples
from tests.searches.instances import one_in

N_DEVICES, GBS, LAYERS = 64, 96, 24


def random_layout(chance: random.Random, **fixed) -> Layout:
    """A legal plan of 24 layers on 64 devices, 96 sequences a step."""
    while True:
        tp = fixed.get("tp", chance.choice([1, 2, 4, 8]))
        pp = fixed.get("pp", chance.choice([1, 2, 4, 8]))
        vpp = fixed.get("vpp", chance.choice([1, 2, 3]) if pp > 1 else 1)
        dp = N_DEVICES // (tp * pp)
        mbs = chance.choice([1, 2, 3])
        split = chance.choice(SPLITS)
        held = stage_layers(LAYERS, pp, vpp, split)
        if not held or GBS % (dp * mbs) or (vpp > 1 and GBS // (dp * mbs) % pp):
            continue
        if vpp > 1:
            schedule = "interleaved"
        else:
            schedule = chance.choice(["1f1b", "gpipe"]) if pp > 1 else "none"
        recompute = chance.choice(["none", "selective", "full"])
        k = chance.randint(1, max(held)) if recompute == "full" else 0
        return Layout(
            N_DEVICES,
            tp,
            pp,
            dp,
            vpp,
            split,
            mbs,
            GBS,
            fixed.get("zero", chance.randrange(4)),
            tp > 1 and chance.random() < 0.6,
            schedule,
            recompute,
            k,
            held,
        )


def scores(problem, layouts: list[Layout]) -> Scores:
    table = PlanTable.from_layouts(layouts)
    return score(problem, shape_terms(problem, table.shapes, table.shardings), table)


@pytest.fixture(scope="module")
def problems(toy_problem, toy_pool):
    """Different switches: overlap or not, tied or not, flash or not, tiers or not."""
    plain = toy_problem(gbs=GBS)
    pods = Fabric((Tier("pod", 2, 3.0),), rail_optimized=False)
    shape = replace(plain.shape, tied=True, flash_attention=False, dropout=True)
    piped = replace(STACKS["fused"], tp_overlap="userbuffers")
    return {
        "plain": plain,
        "tied over pods": toy_problem(shape, toy_pool(8), "megatron-core", pods, gbs=GBS),
        "nothing overlaps": toy_problem(shape, toy_pool(8), "megatron-lm-2022", gbs=GBS),
        "userbuffers": toy_problem(pool=toy_pool(8), stack=piped, gbs=GBS),
        "eager": toy_problem(pool=toy_pool(8, nics_per_node=2), stack="eager", gbs=GBS),
    }


PROBLEMS = ("plain", "tied over pods", "nothing overlaps", "userbuffers", "eager")


@pytest.mark.parametrize("name", one_in(3, PROBLEMS))
def test_a_table_has_the_bits_of_its_rows_alone(problems, name):
    chance, problem = random.Random(name), problems[name]
    layouts = [random_layout(chance) for _ in range(60)]
    together = scores(problem, layouts)
    for i, layout in enumerate(layouts):
        alone = scores(problem, [layout])
        assert together.step_s[i] == alone.step_s[0]
        assert together.peak_bytes[i] == alone.peak_bytes[0]
    assert np.isfinite(together.step_s).all()
    assert (together.step_s > 0).all()


def test_shared_shapes_give_the_bits_of_shapes_of_their_own(problems):
    problem, chance = problems["plain"], random.Random(7)
    layouts = [random_layout(chance) for _ in range(200)]
    own = PlanTable.from_layouts(layouts)
    keys = [
        (x.tp, x.pp, x.dp, x.vpp, SPLITS.index(x.split), SCHEDULES.index(x.schedule))
        for x in layouts
    ]
    distinct = sorted(set(keys))
    assert len(distinct) < len(keys)
    names = ("tp", "pp", "dp", "vpp", "split", "schedule")
    columns = dict(zip(names, zip(*distinct, strict=True), strict=True))
    shapes = ShapeTable.of_columns(N_DEVICES, columns)
    shared = replace(
        own, shapes=shapes, shape=np.array([distinct.index(k) for k in keys], dtype=np.int32)
    )
    a = score(problem, shape_terms(problem, own.shapes, own.shardings), own)
    b = score(problem, shape_terms(problem, shapes, own.shardings), shared)
    assert (a.step_s == b.step_s).all()
    assert (a.peak_bytes == b.peak_bytes).all()


@settings(max_examples=examples(20))
@given(seed=st.integers(0, 10_000), size=st.integers(1, 40))
def test_the_order_of_rows_does_not_matter(problems, seed, size):
    chance = random.Random(seed)
    problem = problems[chance.choice(PROBLEMS)]
    layouts = [random_layout(chance) for _ in range(size)]
    order = chance.sample(range(size), size)
    before, after = scores(problem, layouts), scores(problem, [layouts[i] for i in order])
    assert (before.step_s[order] == after.step_s).all()
    assert (before.peak_bytes[order] == after.peak_bytes).all()


def test_taking_rows_keeps_their_scores(problems):
    problem, chance = problems["plain"], random.Random(3)
    table = PlanTable.from_layouts([random_layout(chance) for _ in range(30)])
    shapes = shape_terms(problem, table.shapes, table.shardings)
    whole = score(problem, shapes, table)
    rows = np.array([4, 4, 29, 0])
    some = score(problem, shapes, table.take(rows))
    assert (whole.step_s[rows] == some.step_s).all()
    assert (whole.peak_bytes[rows] == some.peak_bytes).all()


def test_a_table_gives_its_layouts_back():
    chance = random.Random(11)
    layouts = [random_layout(chance) for _ in range(50)]
    table = PlanTable.from_layouts(layouts)
    assert [table.layout(i, LAYERS) for i in range(50)] == layouts
    assert table.n_micro.tolist() == [x.n_micro for x in layouts]


# The sum by hand, from the pieces.


def test_one_device_by_hand(toy_problem, toy_pool, plain_layout):
    problem = toy_problem(pool=toy_pool(1), gbs=4)
    layout = plain_layout(problem)
    rows = join_one(problem, layout)
    at, layers = rows.index[0], rows.layers
    micro = 24 * layers.layer.total_s[at] + layers.embedding.total_s[at] + layers.head.total_s[at]
    # Parameters: 24 layers of 62,918,656 (2048 (2048 + 2048) + 2048^2 + 3 * 2048 * 8192 + 4096),
    # two matrices of 32000 * 2048, the final norm; 50 B each at 1.6 TB/s; 15 ms fixed.
    params = 24 * 62_918_656 + 2 * 32_000 * 2_048 + 2_048
    by_hand = 4 * micro + params * 50 / 1.6e12 + 15e-3
    assert step_times(rows).item() == pytest.approx(by_hand, rel=1e-12)


def test_pipeline_and_straggler_by_hand(toy_problem, toy_pool, plain_layout):
    problem = toy_problem(pool=toy_pool(8), gbs=32)
    layout = plain_layout(problem, tp=2, pp=4, dp=8, sp=True)
    rows = join_one(problem, layout)
    times = stage_times(rows)
    per_rank = [*(times.forward_s + times.backward_s)[:, 0]]
    first, middle, last = per_rank[:3]
    tau = hop_s(rows).item()
    flush = 4 * last + (first + 2 * middle) + tau * (2 * 3 * 2 - 2)
    assert last > middle
    exposed, hidden = data_parallel_exposed(rows, times)
    extra = (exposed + 0.15 * hidden).max() + rows.shapes.optimizer_s[0, 0] + 15e-3
    factor = 1 + 0.02 * 1.4342  # Blom: Phi^-1(7.625 / 8.25) for 8 nodes
    assert straggler_factor(problem, 64) == pytest.approx(factor, rel=1e-5)
    assert step_times(rows).item() == pytest.approx(factor * flush + extra, rel=1e-5)


def test_hops_cross_a_nic_an_nvlink_or_an_uplink(toy_problem, toy_pool, plain_layout):
    # x = 2 * 4096 * 2048 bytes = 16.8 MB; 250 GB/s and 4 us inside, 50 GB/s and 20 us outside.
    size = 2 * 4096 * 2048

    def hop(fabric=None, **degrees) -> float:
        problem = toy_problem(fabric=fabric, gbs=64)
        return hop_s(join_one(problem, plain_layout(problem, **degrees))).item()

    assert hop(tp=1, pp=8, dp=1) == pytest.approx(4e-6 + size / 250e9)
    assert hop(tp=8, pp=8, dp=1) == pytest.approx(20e-6 + size / 50e9)
    assert hop(tp=8, pp=8, dp=1, sp=True) == pytest.approx(20e-6 + size / 8 / 50e9)
    # Two ranks a node: the slowest boundary leaves it, and sets the pace of 1F1B.
    inside, outside = 4e-6 + size / 250e9, 20e-6 + size / 50e9
    assert hop(tp=4, pp=12, dp=1) == pytest.approx(outside)
    # Pods of two nodes, oversubscribed three times: two ranks in a pod share two thirds of a NIC.
    pods = Fabric((Tier("pod", 2, 3.0),))
    climbing = 20e-6 + size * 3 / 2 / 50e9
    assert hop(pods, tp=8, pp=8, dp=1) == pytest.approx(climbing)
    # Interleaved: 2 chunks over 4 ranks use 3 boundaries twice and the way back once.
    assert hop(tp=4, pp=4, dp=1, vpp=2) == pytest.approx((4 * inside + 3 * outside) / 7)


def test_every_boundary_of_the_pipeline_by_itself(toy_problem, plain_layout):
    problem = toy_problem(gbs=64)
    size = 2 * 4096 * 2048
    layout = plain_layout(problem, tp=4, pp=4, dp=1)
    inside, outside = 4e-6 + size / 250e9, 20e-6 + size / 50e9
    hops = boundary_hops_s(join_one(problem, layout), layout)
    assert hops == pytest.approx([inside, outside, inside, outside])
    # A simulation with one slow boundary lies between all fast and all slow.
    args = ("1f1b", 4, 1, 8, [1.0] * 4, [2.0] * 4)
    mixed = exact_s(*args, [0.0, 0.1, 0.0, 9.0])
    assert exact_s(*args, 0.0) < mixed < exact_s(*args, 0.1)


def test_chunks_of_one_are_plain_1f1b(toy_problem, plain_layout):
    problem = toy_problem(gbs=64)
    a = plain_layout(problem, tp=2, pp=4, dp=8, schedule="1f1b")
    b = replace(a, schedule="interleaved")
    one, two = (join_one(problem, x) for x in (a, b))
    tau = hop_s(one).item() * straggler_factor(problem, 64)
    # 8 micro-batches: 16 crossings of 1F1B against 2 (4 - 1) of the interleaved schedule.
    assert step_times(one).item() - step_times(two).item() == pytest.approx(10 * tau, rel=1e-6)


def test_interleaving_shortens_the_bubble(toy_problem, plain_layout):
    problem = toy_problem(gbs=64)
    steps = [
        break_down(problem, plain_layout(problem, pp=4, dp=8, vpp=v)).time_s["bubble"]
        for v in (1, 2, 3)
    ]
    assert steps[0] > 1.8 * steps[1] > 2.4 * steps[2] > 0


def test_recompute_trades_time_for_memory(toy_problem, plain_layout):
    problem = toy_problem(replace(toy_problem().shape, flash_attention=False), gbs=64)
    plans = [
        plain_layout(problem, tp=2, pp=2, dp=16, recompute=kind)
        for kind in ("none", "selective", "full")
    ]
    found = scores(problem, plans)
    assert found.step_s[0] < found.step_s[1] < found.step_s[2]
    assert found.peak_bytes[0] > found.peak_bytes[1] > found.peak_bytes[2]


def test_zero_stages_hold_less_and_send_more(toy_problem, plain_layout):
    problem = toy_problem(gbs=64)
    found = scores(problem, [plain_layout(problem, dp=16, zero=z) for z in range(4)])
    assert found.peak_bytes[0] > found.peak_bytes[1] > found.peak_bytes[2] > found.peak_bytes[3]
    assert found.step_s[1] < found.step_s[2] < found.step_s[3]  # 4 micro-batches


# Better hardware never makes a plan slower.


def faster(problem, what: str, factor: float):
    """The problem on a pool whose `what` is `factor` times better."""
    pool, part = problem.pool, problem.pool.accelerator
    if what == "peak":
        peaks = {name: factor * peak for name, peak in part.peak_flops_per_s.items()}
        return replace(
            problem, pool=replace(pool, accelerator=replace(part, peak_flops_per_s=peaks))
        )
    if what == "nic":
        nic = replace(pool.nic, bytes_per_s=factor * pool.nic.bytes_per_s)
        return replace(problem, pool=replace(pool, nic=nic))
    value = factor * getattr(part, what)
    return replace(problem, pool=replace(pool, accelerator=replace(part, **{what: value})))


@settings(max_examples=examples(60))
@given(
    seed=st.integers(0, 10_000),
    name=st.sampled_from(PROBLEMS),
    what=st.sampled_from(["peak", "nic", "hbm_bytes_per_s", "ring_bytes_per_s", "memory_bytes"]),
    factor=st.floats(1.01, 4.0),
)
def test_more_peak_bandwidth_or_memory_never_makes_a_plan_slower(
    problems, seed, name, what, factor
):
    chance, problem = random.Random(seed), problems[name]
    layouts = [random_layout(chance) for _ in range(20)]
    base, better = scores(problem, layouts), scores(faster(problem, what, factor), layouts)
    assert (better.step_s <= base.step_s * (1 + 1e-12)).all()
    assert (better.peak_bytes == base.peak_bytes).all()


@settings(max_examples=examples(30))
@given(seed=st.integers(0, 10_000), name=st.sampled_from(PROBLEMS))
def test_a_step_is_never_shorter_than_its_arithmetic(problems, seed, name):
    chance, problem = random.Random(seed), problems[name]
    layouts = [random_layout(chance) for _ in range(20)]
    peak = problem.pool.accelerator.peak_flops_per_s["bf16"] * N_DEVICES
    least = model_flops_per_step(problem.shape, problem.job) / peak
    assert (scores(problem, layouts).step_s > least).all()


@pytest.mark.slow
def test_the_closed_form_is_near_the_recurrence(problems):
    # Without interleaving the closed form is an upper bound up to hops; with it, uneven chunks
    # may exceed it.
    chance = random.Random(5)
    off = []
    for name in PROBLEMS:
        for _ in range(30):
            found = break_down(problems[name], random_layout(chance))
            off.append(found.step_s / found.closed_form_step_s - 1)
    assert np.median(np.abs(off)) < 0.02
    assert min(off) > -0.15
    assert max(off) < 0.06


def test_schedules_have_the_codes_that_the_closed_forms_expect():
    assert SCHEDULES[:4] == ("none", "gpipe", "1f1b", "interleaved")
    assert pipeline.p2p_s(1, 4, 1, 8, 1.0) == 6
    assert pipeline.p2p_s(3, 4, 2, 8, 1.0) == 14


def test_layers_of_a_table_may_be_joined_once(problems):
    problem, chance = problems["plain"], random.Random(2)
    table = PlanTable.from_layouts([random_layout(chance) for _ in range(10)])
    rows = join(problem, shape_terms(problem, table.shapes, table.shardings), table)
    assert rows.recomputed.shape[1] == len(table) == len(rows.index)


def test_blocked_messages_stall_the_collectives_of_a_layer(toy_problem, plain_layout):
    # nanotron: H 4.2 ms and 8 t steps of 0.25 ms, where the pipeline leaves the node; a group over
    # two nodes has four steps more.
    problem = toy_problem(stack="nanotron", gbs=32)
    for tp, pp, dp, late in (
        (4, 2, 4, True),
        (4, 2, 1, False),
        (1, 8, 4, False),
        (4, 1, 8, False),
        (16, 2, 1, True),
    ):
        rows = join_one(problem, plain_layout(problem, tp=tp, pp=pp, dp=dp))
        layer = rows.layers.layer.total_s.item()
        steps = tp + (4 if tp > problem.pool.scale_up_domain else 0)
        least = 4.2e-3 + 8 * steps * STACKS["nanotron"].stalled_hop_s
        missing = stalled(rows)
        assert missing.total_s.item() == pytest.approx(late * max(0.0, least - layer))
        assert not late or least > layer
        assert missing.backward_s.item() == pytest.approx(2 * missing.forward_s.item())
    layout = plain_layout(problem, tp=4, pp=2, dp=4)
    free = replace(problem, stack=replace(problem.stack, blocking_p2p=False))
    slow, fast = (break_down(p, layout) for p in (problem, free))
    assert slow.time_s["host"] > fast.time_s["host"]
    assert slow.closed_form_step_s > fast.closed_form_step_s


def test_blocked_messages_stall_where_tensor_groups_span_more_than_two_nodes(
    toy_problem, plain_layout
):
    # 1F1B exposes 2 (p - 1)(1 + m/p) - 2 messages: 2 (1 + 8/2) - 2 = 8 of 0.65 s.
    problem = toy_problem(stack="nanotron", gbs=8)
    size = problem.pool.scale_up_domain
    for tp, late in ((2 * size, 0.0), (4 * size, STACKS["nanotron"].stalled_message_s)):
        layout = plain_layout(problem, tp=tp, pp=2, dp=1)
        rows = join_one(problem, layout)
        free = replace(problem, stack=replace(problem.stack, blocking_p2p=False))
        usual = hop_s(join_one(free, layout)).item()
        assert hop_s(rows).item() == pytest.approx(usual + late)
        slow, fast = (break_down(p, layout).time_s["pp"] for p in (problem, free))
        straggler = straggler_factor(problem, layout.n_devices)
        assert slow - fast == pytest.approx(8 * late, rel=0.1, abs=straggler * 8 * usual)


def test_a_spelled_out_split_is_priced_like_its_name(toy_problem, plain_layout):
    problem = toy_problem()
    even = plain_layout(problem, tp=2, pp=4, dp=8)
    named = replace(even, split="6-6-6-6")
    assert break_down(problem, named).time_s == break_down(problem, even).time_s
    heavy = replace(even, split="9-6-6-3", stage_layers=(9, 6, 6, 3))
    assert break_down(problem, heavy).step_s > break_down(problem, even).step_s
    table = PlanTable.from_layouts([even, heavy])
    assert [table.layout(i, LAYERS) for i in range(2)] == [even, heavy]
