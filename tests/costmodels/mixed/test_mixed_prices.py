"""Prices of plans over several pools: by hand, and beside the model of plans on one pool."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.examples import LLAMA3_8B, toy_accelerator
from costmodels.mixed.layer_tables import Degrees, mixed_problem
from costmodels.mixed.plans import MixedPlan, MixedStage, PipelineKind
from costmodels.mixed.prices import fits, price
from costmodels.mixed.tables import LinkFacts, MixedPool, MixedProblem, Prefix, Ring, StageTable
from costmodels.plans import Layout, PlanTable
from costmodels.problem import run_by
from costmodels.shape_terms import shape_terms
from costmodels.shapes import TrainingJob
from costmodels.stacks import STACKS
from costmodels.step import join, memory_terms, step_times
from hardware.catalogue import load_catalogue
from hardware.parts import Cluster, Fabric, Pool


def _flat(layer: float, n: int = 4, embedding: float = 0.0, head: float = 0.0) -> Prefix:
    return Prefix(np.arange(n + 1) * layer, embedding, head)


def _table(pool: int, layer_s: float) -> StageTable:
    return StageTable(
        pool=pool,
        tp=1,
        cp=1,
        mbs=1,
        recompute="none",
        forward_s=_flat(layer_s, head=0.5),
        backward_s=_flat(2 * layer_s, embedding=0.25),
        whole_bytes=_flat(10.0),
        shared_bytes=_flat(8.0, embedding=4.0),
        activation_bytes=_flat(3.0),
        working_bytes=_flat(0.0, head=2.0),
        fixed_bytes=1.0,
        grad_bytes=_flat(6.0),
        weight_bytes=_flat(3.0),
        update_s=_flat(0.2),
        clear_s=_flat(0.01),
        message_bytes=7.0,
    )


def _problem() -> MixedProblem:
    ring = Ring((0.1, 0.01), (0.2, 0.02), (0.3, 0.03))
    pools = tuple(
        MixedPool(name, 4, 4, 100.0, nic, {(1, 2): ring}, (0.01, 0.001))
        for name, nic in (("fast", 10.0), ("slow", 5.0))
    )
    tables = (_table(0, 1.0), _table(1, 2.0))
    return MixedProblem(pools, {(0, 1): LinkFacts(20.0, 0.5)}, tables, 4, 8, fixed_s=0.125)


def _stage(pool: int, layers: int) -> MixedStage:
    return MixedStage(pool, 1, 1, layers, "none")


def test_one_kind_over_two_pools_by_hand():
    kind = PipelineKind((_stage(0, 3), _stage(1, 1)), 2, 1, 4, 8)
    priced = price(MixedPlan((kind,), 1), _problem())
    one = priced.kinds[0]
    # 3 layers of 3 s and the embedding; 1 of 6 s and the head.
    assert [x.forward_s + x.backward_s for x in one.stages] == pytest.approx([9.25, 6.5])
    assert one.compute_s == pytest.approx(4 * 9.25)
    assert one.bubble_s == pytest.approx(6.5)
    # Both pipelines send 7 bytes over the link of 20 bytes/s; a NIC takes 7/5 s.
    assert one.hops_s == pytest.approx((0.5 + 1.4,))
    # 2 (p - 1) + 2 (m - 1 - ceil((m - 1)/p)) crossings.
    assert one.messages_s == pytest.approx((2 + 2 * (3 - 2)) * 1.9)
    # 18 bytes of gradients, 9 of weights round the ring; Adam of half of 3 layers.
    assert one.sync_s == pytest.approx(0.1 + 0.18 + 0.2 + 0.18)
    assert one.update_s == pytest.approx(0.6 / 2 + 0.03)
    assert one.exchange_s == 0.0
    assert priced.step_s == pytest.approx(37 + 6.5 + 7.6 + 0.66 + 0.33 + 0.125)
    # In flight 2 and 1; states 10 and half of 8 a layer, half of the embedding's 4.
    assert [x.peak_bytes for x in one.stages] == pytest.approx(
        [30 + 12 + 2 + 2 * 9 + 1, 10 + 4 + 3 + 1 + 2]
    )
    # Both directions, 8 micro-batches of 7 bytes.
    assert priced.crossing_bytes == {(0, 1): pytest.approx(2 * 8 * 7.0)}


def test_two_kinds_exchange_their_gradients_by_hand():
    fast = PipelineKind((_stage(0, 4),), 2, 1, 3, 6)
    slow = PipelineKind((_stage(1, 4),), 1, 1, 2, 2)
    priced = price(MixedPlan((fast, slow), 1), _problem())
    # 24 bytes of gradients cross a link of 20 bytes/s: 1.2 s, as slow as 24 over a NIC of 5,
    # 4.8 s, is on the one pipeline; 2 (U - 1)/U = 1, two messages of 0.5 s.
    assert priced.kinds[0].exchange_s == pytest.approx(max(12 / 10, 1.2) + 1.0)
    assert priced.kinds[1].exchange_s == pytest.approx(4.8 + 1.0)
    assert priced.crossing_bytes == {(0, 1): pytest.approx(2 * 24.0)}
    assert priced.step_s == max(x.step_s for x in priced.kinds)


def test_messages_of_all_kinds_share_a_link():
    problem = _problem()
    link = replace(problem.links[0, 1], bytes_per_s=1e-3)  # the network ports do not decide
    problem = replace(problem, links={(0, 1): link})
    one = PipelineKind((_stage(0, 2), _stage(1, 2)), 1, 1, 4, 4)
    alone = price(MixedPlan((one,), 1), problem).kinds[0]
    both = price(MixedPlan((one, one), 1), problem).kinds[0]
    size = problem.tables[0].message_bytes
    assert alone.hops_s == pytest.approx((link.latency_s + size / 1e-3,))
    assert both.hops_s == pytest.approx((link.latency_s + 2 * size / 1e-3,))


def test_more_devices_than_a_pool_has_do_not_fit():
    problem = _problem()
    kind = PipelineKind((_stage(0, 3), _stage(1, 1)), 4, 1, 2, 8)
    plan = MixedPlan((kind,), 1)
    assert fits(plan, problem, price(plan, problem))
    more = MixedPlan((replace(kind, n_pipelines=5),), 1)
    assert not fits(more, problem, price(more, problem))


@pytest.fixture(scope="module")
def pool() -> Pool:
    catalogue = load_catalogue()
    return Pool(
        name="toy",
        accelerator=toy_accelerator(),
        n_nodes=8,
        devices_per_node=8,
        scale_up_domain=8,
        scale_up=catalogue.link("nvlink4"),
        nics_per_node=8,
        nic=catalogue.link("ib-ndr-400"),
        memory_margin_bytes=0.0,
    )


@pytest.mark.parametrize(("tp", "recompute"), [(1, "none"), (2, "selective"), (4, "full")])
def test_tables_agree_with_the_model_of_plans_on_one_pool(pool, tp, recompute):
    fabric = Fabric()
    job = TrainingJob(seq_len=4096, global_batch=64, precision="bf16")
    problem = run_by(STACKS["megatron-core"], LLAMA3_8B, job, pool, fabric)
    mixed = mixed_problem(
        [problem], Cluster("c", (pool,), fabric), degrees=[[Degrees(tp, 1, 1, 1)]]
    )
    dp, counts = 64 // (4 * tp), (7, 9, 9, 7)
    stages = tuple(MixedStage(0, tp, 1, n, recompute) for n in counts)
    plan = MixedPlan((PipelineKind(stages, dp, 1, 64 // dp, 64),), 1)
    priced = price(plan, mixed)
    layout = Layout(
        n_devices=64,
        tp=tp,
        pp=4,
        dp=dp,
        vpp=1,
        split="7-9-9-7",
        mbs=1,
        gbs=64,
        zero=1,
        sp=tp > 1,
        schedule="1f1b",
        recompute=recompute,
        recompute_layers=9 if recompute == "full" else 0,
        stage_layers=counts,
    )
    table = PlanTable.from_layouts([layout])
    rows = join(problem, shape_terms(problem, table.shapes, table.shardings), table)
    memory = np.asarray(sum(memory_terms(rows).values()))[:, 0]
    peaks = [x.peak_bytes for x in priced.kinds[0].stages]
    assert max(peaks) == pytest.approx(float(memory.max()), rel=1e-3)
    # Collectives are linear in their bytes, and messages leave the node: within 1 %.
    assert priced.step_s == pytest.approx(float(step_times(rows)[0]), rel=0.01)
