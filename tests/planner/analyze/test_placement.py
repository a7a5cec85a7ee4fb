"""Groups against the definitions, the frameworks' own examples, and what the cost model prices."""

import itertools
import json
import math
import random
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import planner
from costmodels.axes import RANK_ORDERS
from costmodels.comm.dispatch import expert_group
from costmodels.comm.placement import Group, place_group, tier_names
from costmodels.examples import DEEPSEEK_V3, GPT3_175B, LLAMA3_8B, LLAMA3_405B, MIXTRAL_8X7B
from costmodels.plans import PIPELINES_INSIDE, Layout, PlanTable
from costmodels.problem import Problem
from costmodels.shape_terms import boundary_hops, data_groups, end_pair, expert_data_groups
from costmodels.shapes import ModelShape, TrainingJob
from costmodels.stacks import STACKS
from hardware.parts import Cluster, Fabric, Pool
from planner.cli.commands.inspection import run_place
from planner.cli.commands.plans import run_emit
from planner.errors import EmitError, UsageError
from planner.frameworks.launchers.hosts import read_hosts
from planner.frameworks.launchers.placement import (
    MEANINGS,
    Placement,
    dense_grid,
    expert_grid,
    place_plan,
    process_groups,
)
from planner.frameworks.launchers.rank_files import placement_files, placement_json
from planner.frameworks.registry import framework as framework_record
from planner.render.answers.placement import placement_document
from planner.render.terminal import terminal_text
from planner.solver.answer.result_store import save_result
from planner.specs.examples import example_names
from planner.specs.loader import load_cluster
from searches.frameworks.registry import framework_names
from tests.planner.emitting import layout, pool
from tests.searches.instances import one_in

ROOT = Path(__file__).resolve().parents[3]
INSIDE = RANK_ORDERS[PIPELINES_INSIDE]
Groups = set[tuple[int, ...]]


def as_set(groups: Iterable[Iterable[int]]) -> Groups:
    return {tuple(int(rank) for rank in group) for group in groups}


def groups_of(plan: Layout, shape: ModelShape = LLAMA3_8B) -> dict[str, Groups]:
    found = process_groups(plan, shape, pool(), Fabric())
    return {group.name: as_set(group.ranks) for group in found}


def spread_layout(
    n: int, tp: int = 1, pp: int = 1, cp: int = 1, ep: int = 1, etp: int = 1, **more: Any
) -> Layout:
    """A layout of n devices; the stages do not matter here."""
    return layout(
        n_devices=n,
        tp=tp,
        pp=pp,
        cp=cp,
        dp=n // (tp * pp * cp),
        ep=ep,
        etp=etp,
        cp_comm="p2p" if cp > 1 else "",
        stage_layers=(1,) * pp,
        **more,
    )


# The frameworks' own examples.


def test_the_example_of_megatrons_docstring() -> None:
    """initialize_model_parallel: 16 GPUs, tensor parallel 2, pipeline parallel 4."""
    found = groups_of(spread_layout(16, tp=2, pp=4))
    assert found["dp"] == {(0, 2), (1, 3), (4, 6), (5, 7), (8, 10), (9, 11), (12, 14), (13, 15)}
    assert found["tp"] == {(2 * i, 2 * i + 1) for i in range(8)}
    assert found["pp"] == {(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)}


def test_megatrons_example_of_context_parallelism() -> None:
    """The same docstring: 8 GPUs, tensor parallel 4, context parallel 2."""
    found = groups_of(spread_layout(8, tp=4, cp=2))
    assert found["cp"] == {(0, 4), (1, 5), (2, 6), (3, 7)}
    assert found["dp-cp"] == found["cp"]  # gradients are summed over cp too


def test_deepspeeds_pipeline_topology() -> None:
    """runtime/pipe/topology.py: axes pipe, data; a row-major grid of 2 x 4."""
    found = groups_of(spread_layout(8, pp=2))
    assert found["dp"] == {(0, 1, 2, 3), (4, 5, 6, 7)}
    assert found["pp"] == {(0, 4), (1, 5), (2, 6), (3, 7)}


def test_experts_fold_into_tensor_and_data_parallel_ranks() -> None:
    """tp 2 x dp 4 of a stage hold ep 4 x edp 2: a group of experts takes both ranks of tp."""
    found = groups_of(spread_layout(16, tp=2, pp=2, ep=4), MIXTRAL_8X7B)
    assert found["ep"] == {(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15)}
    assert found["edp"] == {(i, i + 4) for i in (0, 1, 2, 3, 8, 9, 10, 11)}
    sliced = groups_of(spread_layout(16, tp=2, pp=2, ep=4, etp=2), MIXTRAL_8X7B)
    assert sliced["etp"] == sliced["tp"]
    assert sliced["ep"] == {(0, 2, 4, 6), (1, 3, 5, 7), (8, 10, 12, 14), (9, 11, 13, 15)}
    assert sliced["edp"] == {(i,) for i in range(16)}


def test_experts_may_span_more_than_the_data_parallel_ranks() -> None:
    """Cp ranks are expert ranks too: ep 8 with dp 2, tp 2 and cp 2."""
    found = groups_of(spread_layout(8, tp=2, cp=2, ep=8), DEEPSEEK_V3)
    assert found["ep"] == {tuple(range(8))}


# Every grid, by definition: ranks that agree in every other coordinate.

DEGREES = st.tuples(*[st.sampled_from([1, 2, 3, 4])] * 5)


def brute_force(sizes: dict[str, int], axes: set[str]) -> Groups:
    """Ranks counted up like an odometer, the last axis fastest, put together by the others."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, place in enumerate(itertools.product(*(range(n) for n in sizes.values()))):
        key = tuple(x for axis, x in zip(sizes, place, strict=True) if axis not in axes)
        groups.setdefault(key, []).append(rank)
    return as_set(groups.values())


@given(degrees=DEGREES, order=st.sampled_from(RANK_ORDERS))
def test_groups_by_definition(degrees: tuple[int, ...], order: str) -> None:
    tp, pp, dp, cp, _ = degrees
    plan = spread_layout(tp * pp * dp * cp, tp, pp, cp, rank_order=order)
    sizes = {"pp": pp, "dp": dp, "cp": cp, "tp": tp}
    if order == INSIDE:
        sizes = {"dp": dp, "pp": pp, "cp": cp, "tp": tp}
    grid = dense_grid(plan)
    for axes in ({"tp"}, {"cp"}, {"dp"}, {"pp"}, {"dp", "cp"}):
        assert as_set(grid.groups(*axes)) == brute_force(sizes, axes)
    for axis in sizes:  # ranks of a group differ in their place along its axis alone
        places = grid.coordinate(axis)
        for group in grid.groups(axis):
            assert places[group].tolist() == list(range(sizes[axis]))


@given(degrees=DEGREES)
def test_groups_of_experts_by_definition(degrees: tuple[int, ...]) -> None:
    ep, pp, edp, etp, tp = degrees
    n = ep * pp * edp * etp
    if n % (tp * pp):
        return
    grid = expert_grid(spread_layout(n, tp, pp, ep=ep, etp=etp))
    sizes = {"pp": pp, "edp": edp, "ep": ep, "etp": etp}
    for axis in sizes:
        assert as_set(grid.groups(axis)) == brute_force(sizes, {axis})


@pytest.mark.parametrize("framework", framework_names())
@pytest.mark.parametrize(
    ("degrees", "shard"),
    [((2, 4, 2, 4, 4), 0), ((4, 2, 1, 8, 8), 4), ((1, 1, 4, 8, 8), 8), ((2, 2, 2, 8, 4), 4)],
)
def test_every_framework_numbers_its_ranks_alike(
    framework: str, degrees: tuple[int, ...], shard: int
) -> None:
    """The axes as the framework names them, counted row by row, give the groups of the plan."""
    tp, pp, cp, dp, ep = degrees
    order = framework_record(framework).grid
    assert order is not None
    if "pp" not in order.dense and "pipe" not in order.dense:
        pp = 1
    if "data" in order.dense:
        shard = 0  # DeepSpeed has no such replicas
    if "expert" in order.dense:
        ep = 1  # MaxText has experts inside of tensor parallelism (docs/tpu.md)
    n = tp * pp * cp * dp
    plan = spread_layout(n, tp, pp, cp, ep, zero=1, shard=shard)
    found = groups_of(plan, MIXTRAL_8X7B)
    replicas = dp * cp // plan.dp_shard
    sizes = {"pp": pp, "pipe": pp, "dp": dp, "data": dp, "cp": cp, "sequence": cp, "sp": 1}
    sizes |= {"fsdp": dp, "context": cp, "tensor_sequence": tp, "expert": 1}
    if "fsdp" in order.dense:
        sizes["data"] = 1
    sizes |= {"tp": tp, "model": tp, "dp_replicate": replicas, "dp_shard": dp // replicas}
    dense = {name: sizes[name] for name in order.dense.split()}
    assert math.prod(dense.values()) == n
    tensor = {"tp", "model", "tensor_sequence"} & set(dense)
    context = {"cp", "sequence", "context"} & set(dense)
    data = {"dp", "data", "dp_replicate", "dp_shard", "fsdp"} & set(dense)
    assert brute_force(dense, tensor) == found["tp"]
    assert brute_force(dense, context) == found["cp"]
    assert brute_force(dense, data) == found["dp"]
    assert brute_force(dense, {"pp", "pipe"}) == found["pp"]
    if "dp_shard" in dense:  # FSDP shards over dp_shard and cp together
        assert brute_force(dense, {"dp_shard", "cp"}) == found["zero"]
        if replicas > 1:
            assert brute_force(dense, {"dp_replicate"}) == found["zero-replica"]
    if order.expert:
        copies = n // (pp * ep)
        sizes |= {"ep": ep, "expert": ep, "etp": 1, "edp": copies, "expert_data": copies}
        sizes |= {"efsdp": copies // replicas, "ep_shard": copies}
        experts = {name: sizes[name] for name in order.expert.split()}
        assert brute_force(experts, {"ep", "expert"}) == found["ep"]
        wide = {"edp", "expert_data", "dp_replicate", "efsdp", "ep_shard"}
        assert brute_force(experts, wide) == found["edp"]
        if "efsdp" in experts and sizes["efsdp"] > 1:
            assert brute_force(experts, {"efsdp"}) == found["expert-zero"]


def test_zero_groups_are_neighbours_among_the_copies() -> None:
    found = groups_of(spread_layout(16, tp=2, zero=2, shard=4))
    assert found["zero"] == {(0, 2, 4, 6), (8, 10, 12, 14), (1, 3, 5, 7), (9, 11, 13, 15)}
    assert found["zero-replica"] == {(i, i + 8) for i in range(8)}
    assert "zero" not in groups_of(spread_layout(16, tp=2, zero=0))


def test_both_ends_of_a_pipeline_share_a_tied_embedding() -> None:
    tied = replace(LLAMA3_8B, tied=True)
    assert groups_of(spread_layout(8, pp=4), tied)["embedding"] == {(0, 6), (1, 7)}
    assert "embedding" not in groups_of(spread_layout(8, pp=4), LLAMA3_8B)
    folded = spread_layout(8, pp=4, schedule="zb-v")
    folded = replace(folded, vpp=2, stage_layers=(1,) * 8)  # rank 0 holds both ends
    assert "embedding" not in groups_of(folded, tied)
    both_ways = groups_of(spread_layout(8, pp=4, schedule="dualpipe"), tied)
    assert both_ways["mirror"] == {(0, 6), (1, 7), (2, 4), (3, 5)}
    assert set(groups_of(spread_layout(8, pp=4), tied)) <= set(MEANINGS)


def test_orders_and_degrees_that_no_framework_takes() -> None:
    with pytest.raises(EmitError, match="do not divide the 4 ranks"):
        expert_grid(spread_layout(8, pp=2, ep=8))
    inside = spread_layout(16, tp=2, pp=2, ep=4, rank_order=INSIDE)
    with pytest.raises(EmitError, match="not those of attention"):
        expert_grid(inside)
    assert expert_grid(replace(inside, etp=1, ep=2)).groups("pp").tolist()[0] == [0, 2]
    with pytest.raises(EmitError, match="do not divide into 2"):
        groups_of(spread_layout(6, ep=6, zero=1, shard=3), MIXTRAL_8X7B)


# What the cost model assumed.


def assumed(plan: Layout, where: Pool, fabric: Fabric) -> dict[str, tuple[Group, int]]:
    """Where `costmodels` puts each kind of group, and its span in rank order."""
    table = PlanTable.from_layouts([plan])
    shapes, shardings = table.shapes, table.shardings
    problem = problem_on(where, fabric)
    dense = data_groups(problem, shapes, shardings)
    experts = expert_data_groups(problem, shapes, shardings)
    of_stage = plan.n_devices // plan.pp
    whole = plan.n_devices if plan.pipelines_inside else of_stage
    pipeline = plan.pp * plan.stage_stride
    shard = whole * plan.dp_shard // (plan.dp * plan.cp)
    if plan.pipelines_inside and plan.dp_shard < plan.cp:
        shard = plan.tp * plan.dp_shard
    asked = {
        "tp": (place_group(plan.tp, 1, where, fabric), plan.tp),
        "cp": (place_group(plan.cp, plan.tp, where, fabric), plan.tp * plan.cp),
        "dp": (place_dp(plan, where, fabric), whole),
        "dp-cp": (dense.all_ranks, whole),
        "zero": (dense.shard, shard),
        "zero-replica": (dense.replicas, whole),
        "pp": (place_group(plan.pp, plan.stage_stride, where, fabric), pipeline),
        "etp": (place_group(plan.etp, 1, where, fabric), plan.etp),
        "ep": (expert_group(problem, shapes.ep, shapes.etp), plan.ep * plan.etp),
        "edp": (experts.all_ranks, whole),
        "expert-zero": (experts.shard, whole * plan.dp_shard // (plan.dp * plan.cp)),
        "expert-replica": (experts.replicas, whole),
        "embedding": (end_pair(problem, shapes), pipeline),
    }
    return asked


def place_dp(plan: Layout, where: Pool, fabric: Fabric) -> Group:
    """The ranks of dp alone: the cost model asks for them with those of cp."""
    stride = plan.tp * plan.cp * (plan.pp if plan.pipelines_inside else 1)
    return place_group(plan.dp, stride, where, fabric)


def problem_on(where: Pool, fabric: Fabric, shape: ModelShape = DEEPSEEK_V3) -> Problem:
    return Problem(shape, TrainingJob(8192, 576), where, fabric, STACKS["megatron-core"])


def some_layouts(
    where: Pool, rng: random.Random, count: int, order: str = RANK_ORDERS[0]
) -> list[Layout]:
    def divisors(n: int) -> list[int]:
        return [d for d in range(1, n + 1) if n % d == 0]

    found, n = [], where.n_devices
    while len(found) < count:
        tp = rng.choice([d for d in divisors(n) if d <= where.scale_up_domain])
        pp = rng.choice(divisors(n // tp))
        cp = rng.choice(divisors(n // (tp * pp))) if rng.random() < 0.4 else 1
        stage, copies = n // pp, n // (tp * pp)
        ep = rng.choice(divisors(stage))
        etp = rng.choice([d for d in divisors(tp) if stage // ep % d == 0])
        if order == INSIDE:  # pipelines of experts are those of attention
            etp = rng.choice(divisors(tp))
            ep = tp * cp // etp
        edp = stage // (ep * etp)
        replicas = rng.choice([d for d in divisors(copies) if edp % d == 0])
        shard = 0 if replicas == 1 else copies // replicas
        found.append(spread_layout(n, tp, pp, cp, ep, etp, zero=1, shard=shard, rank_order=order))
    return found


def clusters() -> list[tuple[str, Pool, Fabric]]:
    """Every example whole and in parts, so that groups straddle domains and leaves."""
    rng, found = random.Random(5), []
    for name in example_names("cluster"):
        cluster: Cluster = load_cluster(name).cluster
        for whole in cluster.pools:
            sizes = {whole.n_nodes, *(rng.randint(1, whole.n_nodes) for _ in range(3))}
            for n_nodes in sorted(n for n in sizes if n * whole.devices_per_node <= 2048):
                domain = min(whole.scale_up_domain, n_nodes * whole.devices_per_node)
                part = replace(whole, n_nodes=n_nodes, scale_up_domain=domain)
                found.append((f"{name}-{whole.name}-{n_nodes}", part, cluster.fabric))
    return found


@pytest.mark.parametrize(
    ("where", "fabric"), [x[1:] for x in clusters()], ids=[x[0] for x in clusters()]
)
@pytest.mark.parametrize("order", one_in(6, RANK_ORDERS))
def test_groups_reach_as_far_as_the_cost_model_assumed(
    where: Pool, fabric: Fabric, order: str
) -> None:
    rng, n_exact, n_groups = random.Random(where.n_nodes), 0, 0
    tied = replace(DEEPSEEK_V3, tied=True)
    for plan in some_layouts(where, rng, 12, order):
        priced = assumed(plan, where, fabric)
        for group in process_groups(plan, tied, where, fabric):
            model, span = priced[group.name]
            assert group.n_members == model.n_ranks.item()
            domain, members = where.scale_up_domain, model.n_ranks.item()
            fewest = fewest_in_a_unit(group.ranks, domain)
            strides = {group.stride or span // members}
            if plan.pipelines_inside and plan.cp > 1 and group.name in RUNS:
                strides = {plan.tp, plan.tp * plan.cp * plan.pp}
            # The model takes the worst place at which groups of this span can start. With fewer
            # groups than places it may be missing, and with a stride that does not fit the domain
            # a group may skip a domain: then the model is never too favourable.
            all_places = where.n_devices // span >= domain // math.gcd(span, domain)
            fit = all(0 in (domain % stride, stride % domain) for stride in strides)
            parts = plan.cp % plan.dp_shard and plan.dp_shard % plan.cp
            odd = plan.pipelines_inside and parts and group.name.startswith("zero")
            tier = tier_names(fabric)[model.tier.item()]
            if (all_places and fit and not odd) or model.n_domains == 1:
                assert group.n_domains == model.n_domains.item(), (plan, group.name)
                assert fewest == model.ranks_per_domain.item(), (plan, group.name)
                n_exact += 1
            else:
                assert group.n_domains <= model.n_domains.item(), (plan, group.name)
                assert fewest >= model.ranks_per_domain.item(), (plan, group.name)
            assert odd or group.tier == tier, (plan, group.name)
            n_groups += 1
    assert n_exact > n_groups / 5


RUNS = ("dp-cp", "zero", "zero-replica")
"""Groups that are several runs where pipelines lie inside: the ranks of cp, once for each dp."""


def fewest_in_a_unit(ranks: np.ndarray[Any, Any], unit: int) -> int:
    """Return the fewest members that a group has in a unit that it touches."""
    units = ranks // unit
    key = np.arange(len(ranks))[:, None] * (units.max() + 1) + units
    return int(np.unique(key, return_counts=True)[1].min())


@pytest.mark.parametrize(
    ("tp", "cp", "pp"),
    [(8, 1, 4), (4, 1, 8), (2, 1, 3), (1, 1, 12), (8, 1, 9), (6, 1, 16), (4, 3, 4), (1, 2, 18)],
)
@pytest.mark.parametrize("name", ["gb200-nvl72-x576", "h100-x512"])
@pytest.mark.parametrize("order", RANK_ORDERS)
def test_boundaries_leave_a_domain_where_the_cost_model_says(
    name: str, tp: int, cp: int, pp: int, order: str
) -> None:
    cluster = load_cluster(name).cluster
    n = 576
    where = replace(cluster.pools[0], n_nodes=n // cluster.pools[0].devices_per_node)
    problem = problem_on(where, cluster.fabric, LLAMA3_405B)
    plan = spread_layout(n, tp=tp, pp=pp, cp=cp, rank_order=order)
    pipelines = dense_grid(plan).groups("pp") // where.scale_up_domain
    leaves = (pipelines != np.roll(pipelines, -1, axis=1)).any(axis=0)
    blocks = plan.dp if plan.pipelines_inside else 1
    latency, _ = boundary_hops(problem, plan.stage_stride, pp, blocks)
    assert ((latency > where.scale_up.p2p_latency_s) == leaves).all()


def test_the_price_of_a_boundary_is_that_of_its_slowest_pipeline() -> None:
    """Nodes of 8: four stages, 4 ranks apart, lie in two; blocks of three begin at two places."""
    cluster = load_cluster("h100-x512").cluster
    where = replace(cluster.pools[0], n_nodes=12)
    problem = problem_on(where, Fabric(), LLAMA3_405B)
    near, far = where.scale_up.p2p_latency_s, where.nic.p2p_latency_s
    latency, per_byte = boundary_hops(problem, 4, 4, 6)
    assert latency.tolist() == [near, far, near, far]
    assert per_byte[1] == 1 / where.nic_bytes_per_s
    # blocks of 12 ranks begin at 0 and 4 of a node: either boundary is the node's somewhere
    assert boundary_hops(problem, 4, 3, 8)[0].tolist() == [far, far, far]
    assert boundary_hops(problem, 4, 3, 1)[0].tolist() == [near, far, far]
    assert boundary_hops(problem, 2, 4, 12)[0].tolist() == [near] * 4


@pytest.mark.parametrize(
    ("model", "cluster", "pins"),
    [
        ("llama3-70b", "h100-x512", {"tp": 8, "pp": 4}),
        ("llama3-70b", "h100-x512", {"tp": 4, "cp": 2, "pp": 8}),
        ("gpt3-175b", "a100-x1024", {"tp": 8, "pp": 16}),
        ("deepseek-v3", "gb200-nvl72-x576", {"ep": 64, "pp": 9}),
        ("mixtral-8x7b", "h100-x512", {"ep": 8, "tp": 2, "etp": 2}),
        ("llama3-8b", "mi300x-x64", {"zero": 3}),
    ],
)
def test_the_traffic_of_a_priced_plan_names_the_tiers_of_its_groups(
    model: str, cluster: str, pins: dict[str, object]
) -> None:
    given = planner.specs.loader.load_model(model), load_cluster(cluster)
    plan = planner.evaluate(model, cluster, pins=pins).plans[0]
    where, fabric = given[1].cluster.pools[0], given[1].cluster.fabric
    found = process_groups(plan.layout, given[0].shape, where, fabric)
    kinds = {
        "tp": {"tp"},
        "cp": {"cp"},
        "ep": {"ep", "etp"},
        "pp": {"pp", "embedding"},
        "dp": {"dp", "dp-cp", "zero", "zero-replica", "edp", "expert-zero", "expert-replica"},
    }
    shown = {(axis, g.n_members, g.tier) for g in found for axis in kinds if g.name in kinds[axis]}
    priced = {(x["axis"], x["group_size"], x["tier"]) for x in plan.to_json()["comm"]}
    assert priced
    assert priced <= shown


# Hosts.


def small(hosts: tuple[str, ...] = (), n: int = 16, shape: ModelShape = LLAMA3_8B) -> Placement:
    plan = spread_layout(n, tp=2, pp=2, ep=4 if shape.n_experts else 1)
    return place_plan(plan, shape, pool(), Fabric(), hosts)


def test_ranks_stand_on_hosts_in_the_order_given() -> None:
    placed = small(("b", "a", "spare"))
    assert placed.hosts == ("b", "a")
    assert [placed.host(rank) for rank in (0, 7, 8, 15)] == ["b", "b", "a", "a"]
    assert [placed.local_rank(rank) for rank in (0, 7, 8, 15)] == [0, 7, 0, 7]
    assert small().hosts == ("node0000", "node0001")
    assert small(n=4).hosts == ("node0000",)
    assert small(n=4).devices_per_node == 4


def test_a_domain_larger_than_a_node_is_shown() -> None:
    cluster = load_cluster("gb200-nvl72-x576").cluster
    plan = spread_layout(576, tp=4, pp=2, ep=72, zero=1)
    placed = place_plan(plan, DEEPSEEK_V3, cluster.pools[0], cluster.fabric)
    assert placed.nodes_per_domain == 18
    experts = placed.group("ep")
    assert (experts.n_nodes, experts.n_domains, experts.tier) == (18, 1, "scale-up")
    text = terminal_text(placement_document(placed))
    assert "domains" in text
    assert "node0007: ranks 28-31, domain 0" in text
    assert "node0143: ranks 572-575, domain 7" in text


@pytest.mark.parametrize(
    ("hosts", "reason"),
    [(("a",), "needs 2 hosts, named: 1"), (("a", "a"), "host a is named 2 times")],
)
def test_hosts_that_do_not_do(hosts: tuple[str, ...], reason: str) -> None:
    with pytest.raises(EmitError, match=reason):
        small(hosts)


def test_devices_that_fill_no_whole_nodes() -> None:
    with pytest.raises(EmitError, match="do not fill whole nodes"):
        place_plan(spread_layout(12), LLAMA3_8B, pool(), Fabric())


def test_host_files(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# network order\nn[003,001] slots=8\n\nm1  # last\n")
    assert read_hosts(str(file)) == ("n003", "n001", "m1")
    assert read_hosts("n[1-2]") == ("n1", "n2")
    file.write_text("n1\nn[2-1]\n")
    with pytest.raises(UsageError, match=r"hosts:2: .*backwards"):
        read_hosts(str(file))
    with pytest.raises(UsageError, match=r"--hosts: .*is not a host list"):
        read_hosts("n[1-2")
    file.write_text("# none\n")
    with pytest.raises(UsageError, match="names no host"):
        read_hosts(str(file))
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot read"):
        read_hosts(str(file))


# Text and files.


def test_large_jobs_stay_small_on_the_screen() -> None:
    cluster = load_cluster("h100-x16384").cluster
    plan = spread_layout(16384, tp=8, pp=16, zero=1)
    text = terminal_text(
        placement_document(place_plan(plan, LLAMA3_405B, cluster.pools[0], cluster.fabric))
    )
    lines = text.splitlines()
    assert len(lines) < 40
    assert max(map(len, lines)) <= 100
    rows = {line.split()[0]: line.split() for line in lines if line}
    assert rows["dp"][:7] == ["dp", "128", "128", "8", "128", "pod", "0-1016"]
    assert rows["pp"][:6] == ["pp", "16", "1024", "1024", "16", "top"]
    assert "rank = tp + 8 dp + 1024 pp" in lines
    assert "cp" not in rows


def test_irregular_groups_are_listed() -> None:
    plan = spread_layout(32, tp=2, pp=2, cp=2, rank_order=INSIDE)
    placed = place_plan(plan, LLAMA3_8B, pool(), Fabric())
    assert placed.group("dp-cp").stride == 0
    assert "0+2+8+10+16+18+...+26" in terminal_text(placement_document(placed))


def test_json_has_every_rank_and_every_group() -> None:
    placed = small(("b", "a"), shape=MIXTRAL_8X7B)
    read = placement_json(placed, "0123456789ab")
    assert read["plan_id"] == "0123456789ab"
    assert [rank["rank"] for rank in read["ranks"]] == list(range(16))
    assert read["ranks"][13] == {
        "rank": 13,
        "host": "a",
        "local_rank": 5,
        "tp": 1,
        "pp": 1,
        "dp": 2,
        "cp": 0,
        "ep": 1,
        "etp": 0,
        "edp": 1,
    }
    for name, group in read["groups"].items():
        assert sorted(itertools.chain(*group["ranks"])) == list(range(16)), name
        assert len(group["ranks"]) == group["n_groups"]
    assert set(read["frameworks"]) == set(framework_names())


def test_rank_files() -> None:
    files = placement_files(small(("b", "a"), shape=MIXTRAL_8X7B), ["plan x", "planner 1"])
    ranks = files["ranks.txt"].splitlines()
    assert ranks[:3] == [
        "# plan x",
        "# planner 1",
        "# rank host local_rank tp pp dp cp ep etp edp",
    ]
    assert ranks[3 + 13] == "13 a 5 1 1 2 0 1 0 1"
    assert len(ranks) == 19
    assert files["hostfile"].splitlines() == ["# plan x", "# planner 1", "b slots=8", "a slots=8"]
    assert files["slurm-hostfile"].splitlines() == ["b"] * 8 + ["a"] * 8
    mapped = [x for x in files["openmpi-rankfile"].splitlines() if not x.startswith("#")]
    assert mapped[0] == "rank 0=b slot=0"
    assert mapped[13] == "rank 13=a slot=5"
    dense = placement_files(small(), [])["ranks.txt"].splitlines()
    assert dense[0] == "# rank host local_rank tp pp dp cp ep"
    assert dense[1] == "0 node0000 0 0 0 0 0 0"


@pytest.mark.slow
def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    pins: dict[str, object] = {"tp": 4, "pp": 2}
    save_result(
        planner.evaluate("llama3-8b", "h100-x8", pins=pins, overrides=(("pools.0.nodes", 2),))
    )
    run_place("last#1", None, "", "table")
    shown = capsys.readouterr().out
    assert "rank = tp + 4 dp + 8 pp" in shown
    assert "node0001: ranks 8-15" in shown
    words = ["place", "last#1", "--hosts", "n[2,1]", "--out", "files", "--format", "json"]
    program = [sys.executable, "-c", "from planner.cli.app import main; main()"]
    done = subprocess.run([*program, *words], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["hosts"] == ["n2", "n1"]
    assert sorted(path.name for path in (tmp_path / "files").iterdir()) == [
        "hostfile",
        "openmpi-rankfile",
        "ranks.txt",
        "slurm-hostfile",
    ]
    head = (tmp_path / "files" / "ranks.txt").read_text().splitlines()[0]
    assert head.startswith("# plan ")
    with pytest.raises(EmitError, match="needs 2 hosts"):
        run_place("last#1", "n1", "", "table")
    with pytest.raises(UsageError, match="not a host list"):
        run_place("last#1", "n[1", "", "table")
    with pytest.raises(UsageError, match="table or json"):
        run_place("last#1", None, "", "csv")
    (tmp_path / "taken").write_text("")
    with pytest.raises(EmitError, match="cannot write taken"):
        run_place("last#1", None, "taken", "table")
    for empty in ("", " "):  # a variable of the shell that is not set
        with pytest.raises(UsageError, match="--hosts is empty"):
            run_place("last#1", empty, "", "table")
        with pytest.raises(UsageError, match="--hosts is empty"):
            run_emit("last#1", "megatron", "", "torchrun", empty)
    assert not capsys.readouterr().out


def test_shapes_without_experts_have_no_expert_groups() -> None:
    names = [g.name for g in process_groups(spread_layout(8), GPT3_175B, pool(), Fabric())]
    assert names == ["tp", "cp", "dp", "zero", "pp"]


def test_hosts_of_the_cluster_file_are_taken_unless_others_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pool_of = {"accelerator": "h100-sxm-80gb", "nodes": 2, "hosts": "b[07,03]"}
    save_result(
        planner.evaluate("llama3-8b", {"name": "two", "pools": [pool_of]}, pins={"tp": 4, "pp": 2})
    )
    run_place("last#1", None, "", "table")
    shown = capsys.readouterr().out
    assert "hosts in network order:\n  b07: ranks 0-7\n  b03: ranks 8-15\n" in shown
    run_place("last#1", "x[1-2]", "", "json")
    assert json.loads(capsys.readouterr().out)["hosts"] == ["x1", "x2"]
    run_emit("last#1", "megatron", "", "slurm")
    assert "#SBATCH --nodelist=b[07,03]\n" in capsys.readouterr().out


def test_a_file_of_hosts_that_is_not_there_is_no_host() -> None:
    with pytest.raises(UsageError, match=r"no file hosts\.txt"):
        read_hosts("hosts.txt")
    assert read_hosts("gpubox.lab.example") == ("gpubox.lab.example",)
