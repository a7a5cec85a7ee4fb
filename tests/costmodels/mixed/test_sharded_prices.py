"""Prices of sharded replicas over several pools: by hand, and beside plans on one pool."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.breakdown import break_down
from costmodels.comm.collectives import collective_s
from costmodels.comm.placement import place_group
from costmodels.examples import LLAMA3_8B
from costmodels.mixed.sharded_plans import ReplicaDegrees, ReplicaKind, ShardedPlan
from costmodels.mixed.sharded_prices import exchange, sharded_fits, sharded_price
from costmodels.mixed.sharded_tables import ReplicaKey, replica_layout, sharded_problem
from costmodels.mixed.tables import LinkFacts
from costmodels.problem import run_by
from costmodels.shapes import TrainingJob
from costmodels.stacks import STACKS
from hardware.parts import Cluster, Fabric
from planner.specs.loader import load_model
from tests.costmodels.mixed.sharded_instances import DEGREES, instance, pool

SLOW = LinkFacts(bytes_per_s=50e9, latency_s=0.01)
TIMES = {(1, "none"): 3.0, (2, "none"): 6.0}
PEAKS = dict.fromkeys(TIMES, 0.5)


def _two(link=SLOW, **changes):
    fast = {key: x / 2 for key, x in TIMES.items()}
    settings = {"nodes": (2, 1), "times": (fast, TIMES), "peaks": (PEAKS, PEAKS), "batch": 16}
    return instance(**{**settings, **changes}, link=link)


def _plan(*kinds, n_micro=2):
    return ShardedPlan(DEGREES, n_micro, tuple(ReplicaKind(*kind) for kind in kinds))


def test_the_exchange_over_a_slow_link_by_hand():
    # Three replicas on two pools: 4/3 of 20 GB of a unit cross 50 GB/s, and two latencies each.
    found = exchange(_two(), DEGREES, [0, 1], 3)
    each = 4 / 3 * (20e9 / 50e9 + 2 * 0.01)
    assert found.piece_s == pytest.approx([each])
    assert found.total_s == pytest.approx(4 * each)


def test_the_exchange_over_a_wide_link_is_that_of_the_slowest_pool():
    problem = _two(LinkFacts(1e15, 0.0))
    found = exchange(problem, DEGREES, [0, 1], 3)
    own = problem.pools[0].with_nodes_of(6)
    group = place_group(3, 2, own.pool, own.fabric)
    each = float(collective_s("all-reduce", np.array(10e9), group, own.pool))
    assert found.total_s == pytest.approx(4 * each)


def test_a_plan_by_hand():
    problem = _two()
    plan = _plan((0, 2, 2, "none"), (1, 1, 1, "none"))
    assert plan.n_sequences == 2 * 2 * (2 * 2 + 1)
    priced = sharded_price(plan, problem)
    fast, slow = priced.kinds
    # 3 s a micro-batch on both, 1 s of it forward. Without exchange 1.1 s of traffic behind the
    # backward of 2 s: the last unit of 0.2 s waits; before the forward the first of 0.1 s.
    assert fast.compute_s == slow.compute_s == pytest.approx(2 * 3.0)
    waits = 0.2 + 0.1
    without = waits + 0.25 * (0.6 + 2 * 0.5 - waits)
    assert slow.sync_s == pytest.approx(2 * without)
    # With it 4 x 0.56 s more behind the backward.
    more = 4 * 4 / 3 * (0.4 + 0.02)
    last = 0.2 + more / 4
    exposed = last + max(0.0, 1.1 + more - last - 2.0) + 0.1
    with_it = exposed + 0.25 * (1.6 + more - exposed)
    assert slow.exchange_s == pytest.approx(2 * (with_it - without))
    assert slow.update_s == pytest.approx(0.25)
    assert slow.fixed_s == 0.125
    assert priced.step_s == pytest.approx(6.0 + 2 * with_it + 0.375)
    # Both directions, two micro-batches of 80 GB round a ring of three.
    assert priced.crossing_bytes == {(0, 1): pytest.approx(2 * 2 * 4 / 3 * 80e9)}


def test_a_narrower_link_never_hurts_less():
    plan = _plan((0, 2, 2, "none"), (1, 1, 1, "none"))
    steps = [
        sharded_price(plan, _two(LinkFacts(rate, 0.01))).step_s for rate in (1e10, 1e11, 1e13)
    ]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > steps[1]


def test_memory_and_devices_decide_what_fits():
    plan = _plan((0, 2, 2, "none"), (1, 1, 1, "none"))
    problem = _two()
    assert sharded_fits(plan, problem, sharded_price(plan, problem))
    full = _two(peaks=(PEAKS, dict.fromkeys(TIMES, 1.5)))
    assert not sharded_fits(plan, full, sharded_price(plan, full))
    more = _plan((0, 3, 2, "none"), (1, 1, 1, "none"))
    assert not sharded_fits(more, problem, sharded_price(more, problem))


@pytest.mark.parametrize("stack", ["torchtitan", "hf-fsdp2"])
@pytest.mark.parametrize(
    ("degrees", "mbs", "recompute"),
    [
        (ReplicaDegrees(8), 2, "none"),
        (ReplicaDegrees(16), 1, "full"),
        (ReplicaDegrees(4, tp=2), 1, "selective"),
        (ReplicaDegrees(4, cp=2), 1, "none"),
    ],
)
def test_two_pools_of_one_part_cost_what_one_pool_does(stack, degrees, mbs, recompute):
    halves, whole = [pool("a", 4, 8), pool("b", 4, 8)], pool("w", 8, 8)
    job = TrainingJob(seq_len=8192, global_batch=64, precision="bf16")
    key, sp = ReplicaKey(degrees, mbs, recompute), None if stack == "torchtitan" else False
    problems = [run_by(STACKS[stack], LLAMA3_8B, job, x, Fabric()) for x in halves]
    problem = sharded_problem(problems, Cluster("c", tuple(halves), Fabric()), [[key]] * 2, sp=sp)
    n = 32 // degrees.n_devices
    kinds = tuple(ReplicaKind(i, n, mbs, recompute) for i in range(2))
    priced = sharded_price(ShardedPlan(degrees, 3, kinds), problem)
    layout = replica_layout(key, LLAMA3_8B.layers, n_replicas=2 * n, n_micro=3, sp=sp)
    alone = run_by(
        STACKS[stack], LLAMA3_8B, replace(job, global_batch=layout.gbs), whole, Fabric()
    )
    one = break_down(alone, layout)
    assert priced.step_s == pytest.approx(one.step_s, rel=1e-12)
    assert priced.kinds[0].peak_bytes == pytest.approx(one.peak_bytes, rel=1e-12)


def test_experts_cost_what_they_do_on_one_pool():
    halves, whole = [pool("a", 4, 8), pool("b", 4, 8)], pool("w", 8, 8)
    shape = load_model("mixtral-8x7b").shape
    job = TrainingJob(seq_len=4096, global_batch=64, precision="bf16")
    stack, key = STACKS["torchtitan"], ReplicaKey(ReplicaDegrees(16), 1, "full")
    problems = [run_by(stack, shape, job, x, Fabric()) for x in halves]
    problem = sharded_problem(problems, Cluster("c", tuple(halves), Fabric()), [[key]] * 2)
    kinds = tuple(ReplicaKind(i, 2, 1, "full") for i in range(2))
    priced = sharded_price(ShardedPlan(key.degrees, 2, kinds), problem)
    layout = replica_layout(key, shape.layers, n_replicas=4, n_micro=2)
    alone = run_by(stack, shape, replace(job, global_batch=layout.gbs), whole, Fabric())
    one = break_down(alone, layout)
    assert priced.step_s == pytest.approx(one.step_s, rel=1e-9)
    assert priced.kinds[0].peak_bytes == pytest.approx(one.peak_bytes, rel=1e-9)
