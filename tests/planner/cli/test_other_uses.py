"""Other uses of a pool's nodes: parts of nodes, and parts of scale-up domains."""

from dataclasses import replace
from random import Random
from typing import Any, Unpack

import pytest

from costmodels.comm.placement import place_group
from hardware.parts import Fabric, Tier, used_tiers
from planner.errors import SpecError
from planner.frameworks.emit import emit_plan
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.launchers.files import launcher_files
from planner.frameworks.launchers.placement import place_plan
from planner.solver.answer.result import Plan, Result
from planner.solver.answer.result_store import plan_of_result
from planner.solver.keywords import SolveKeywords
from planner.solver.solve import evaluate, solve
from planner.specs.cluster.segments import in_segments, segments, whole_segment, with_segment
from planner.specs.loader import cluster_from_dict

RACKS: dict[str, Any] = {
    "pools": [{"accelerator": "gb200", "nodes": 144, "scale_up_domain": 72}],
    "fabric": {"tiers": [{"name": "rack", "nodes": 18}, {"name": "row", "nodes": 72}]},
}


def racks(**fields: object) -> dict[str, Any]:
    return {**RACKS, "pools": [{**RACKS["pools"][0], **fields}]}


def partial(free: list[int], partial_nodes: bool, **fields: object) -> dict[str, Any]:
    pool = {"accelerator": "h100", "nodes": len(free), "free_devices": free}
    return {"pools": [{**pool, "partial_nodes": partial_nodes, **fields}]}


def reopened(result: Result) -> tuple[Any, Any, Any, Plan]:
    return plan_of_result(result.to_json(), "1", "result")


class TestPartsOfNodes:
    def test_every_number_of_devices_of_a_node_is_a_use(self):
        given = cluster_from_dict(partial([8, 8, 7, 0], True, hosts="n[1-4]"))
        pools = given.with_other_uses().cluster.pools
        sizes = {pool.devices_per_node: pool.n_nodes for pool in pools}
        assert sizes == {8: 2, 7: 3, 6: 3, 5: 3, 4: 3, 3: 3, 2: 3, 1: 3}
        # The first is the one that uses most devices, as before.
        assert (pools[0].n_nodes, pools[0].devices_per_node) == (3, 7)
        for pool, source in zip(pools, given.with_other_uses().sources, strict=True):
            assert pool.nic_bytes_per_s == pytest.approx(pools[0].nic_bytes_per_s)
            assert len(source.hosts) == pool.n_nodes
        assert given.pool(f"{pools[0].name}-8-a-node").sources[0].hosts == ("n1", "n2")

    def test_whole_nodes_have_no_other_use(self):
        for cluster in (
            partial([8, 8, 7, 0], False),
            {"pools": [{"accelerator": "h100", "nodes": 4}]},
        ):
            given = cluster_from_dict(cluster)
            assert given.with_other_uses() is given

    @pytest.mark.slow
    def test_whole_nodes_win_where_they_are_faster(self):
        """Three nodes with seven free devices give 21, of which no degree is a power of two.

        Stages may be 9 or 21 with layers split unevenly; where few are allowed 16 devices win.
        """
        few: SolveKeywords = {"top": 1, "at_most": {"pp": 8}}
        part, whole = (
            solve("llama3-8b", partial([8, 8, 7], on), **few).plans[0] for on in (True, False)
        )
        old = evaluate_use("llama3-8b", partial([8, 8, 7], True), **few)
        assert (whole.layout.n_devices, part.layout.n_devices) == (16, 16)
        assert part.step_time_s == whole.step_time_s < old
        free = solve("llama3-8b", partial([8, 8, 7], True), top=1).plans[0]
        assert free.layout.n_devices > 16
        assert free.step_time_s < part.step_time_s

    @pytest.mark.parametrize(
        "seed", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 8))]
    )
    def test_nodes_in_part_are_never_slower(self, seed):
        random = Random(seed)
        free = [random.randint(1, 4) for _ in range(random.randint(2, 4))]
        free[0] = 4  # a whole node at least
        found = [
            solve("llama2-7b", partial(free, on, accelerators_per_node=4), top=1).plans
            for on in (True, False)
        ]
        if found[1]:
            assert found[0][0].step_time_s <= found[1][0].step_time_s * (1 + 1e-9)

    @pytest.mark.slow
    def test_files_and_placement_have_the_devices_of_the_plan(self):
        result = solve("llama3-8b", partial([8, 8, 7], True, hosts="n[1-3]"), top=1)
        model, cluster, problem, plan = reopened(result)
        nodes, per_node = problem.pool.n_nodes, problem.pool.devices_per_node
        assert plan.pool.endswith(f"-{per_node}-a-node")
        assert nodes * per_node == plan.layout.n_devices == 18
        script = emit_plan(
            "megatron", EmitRequest(plan.layout, model.shape, model.job, problem.pool)
        )
        assert "--nnodes 3 --nproc-per-node 6 " in script["megatron.sh"]
        placed = place_plan(
            plan.layout, model.shape, problem.pool, problem.fabric, cluster.sources[0].hosts
        )
        assert placed.hosts == ("n1", "n2", "n3")
        assert placed.devices_per_node == 6


def evaluate_use(model: str, cluster: dict[str, Any], **options: Unpack[SolveKeywords]) -> float:
    """Return the best step on the one use that was searched before: most devices."""
    pool = cluster_from_dict(cluster).cluster.pools[0]
    alone = {
        "accelerator": "h100",
        "nodes": pool.n_nodes,
        "accelerators_per_node": pool.devices_per_node,
    }
    plans = solve(model, {"pools": [alone]}, **options).plans
    return plans[0].step_time_s if plans else float("inf")


class TestPartsOfDomains:
    @pytest.mark.parametrize(
        ("nodes", "domain", "found"),
        [
            (144, 72, {64: 128}),  # 8 racks of 16
            (16, 64, {}),  # a part of one rack, a power of two already
            (17, 68, {64: 16}),
            (18, 72, {64: 16}),
            (32, 72, {64: 32}),  # two racks share them evenly
            (20, 72, {40: 20, 32: 16}),
            (8, 32, {}),
        ],
    )
    def test_parts(self, nodes, domain, found):
        pool = cluster_from_dict(racks(nodes=nodes)).cluster.pools[0]
        assert pool.scale_up_domain == domain
        assert {size: in_segments(pool, size).n_nodes for size in segments(pool)} == found

    def test_a_job_of_all_nodes_takes_the_even_part_where_there_is_one(self):
        """One rule for pools and for measured runs: `segments` first, where it uses all nodes."""
        n_checked = 0
        for nodes in range(19, 145):
            pool = cluster_from_dict(racks(nodes=nodes)).cluster.pools[0]
            used = 4 * whole_segment(nodes, 18)
            even = [size for size in segments(pool) if in_segments(pool, size).n_nodes == nodes]
            if even:
                n_checked += 1
                assert even[0] == used
                assert in_segments(pool, used) == with_segment(pool, used // 4)
        assert n_checked > 20

    def test_groups_of_powers_of_two_stay_inside(self):
        given = cluster_from_dict(RACKS).with_other_uses()
        whole, part = given.cluster.pools
        for size in (16, 32, 64):
            assert place_group(size, 1, whole, given.cluster.fabric).n_domains > 1
            assert place_group(size, 1, part, given.cluster.fabric).n_domains == 1

    def test_tiers_count_the_nodes_in_use(self):
        given = cluster_from_dict(RACKS).with_other_uses()
        whole, part = given.cluster.pools
        fabric = given.cluster.fabric
        assert used_tiers(fabric, whole) is fabric.tiers
        assert [tier.n_nodes for tier in used_tiers(fabric, part)] == [16, 64]
        # As if the cluster had racks of 16 nodes.
        alone = replace(part, domain_nodes=0)
        small = Fabric((Tier("rack", 16, 1.0), Tier("row", 64, 1.0)))
        for ranks, stride in ((64, 1), (8, 64), (2, 256), (128, 4)):
            assert place_group(ranks, stride, part, fabric) == place_group(
                ranks, stride, alone, small
            )

    def test_a_stated_part(self):
        given = cluster_from_dict(racks(segment=64, hosts="n[001-144]"))
        pool = given.cluster.pools[0]
        assert (pool.n_nodes, pool.scale_up_domain, pool.domain_nodes) == (128, 64, 18)
        assert given.with_other_uses() is given
        assert given.n_given == 576
        hosts = given.sources[0].hosts
        assert (hosts[15], hosts[16], len(hosts)) == ("n016", "n019", 128)
        assert cluster_from_dict(given.document).cluster == given.cluster
        assert cluster_from_dict(given.document).document == given.document

    def test_all_of_it_asks_for_no_part(self):
        given = cluster_from_dict(racks(segment=72))
        assert given.cluster.pools[0].domain_nodes == 0
        assert given.with_other_uses() is given

    @pytest.mark.parametrize(
        ("cluster", "words"),
        [
            (racks(segment=30), "30 devices are no whole nodes of 4"),
            (
                {"pools": [{"accelerator": "h100", "nodes": 4, "segment": 4}]},
                "no more than a node",
            ),
        ],
    )
    def test_parts_that_are_none(self, cluster, words):
        with pytest.raises(SpecError, match=words):
            cluster_from_dict(cluster)

    def test_sixteen_nodes_are_one_domain(self):
        result = solve(
            "deepseek-v2",
            "gb200-nvl72-x576",
            top=1,
            overrides=(("pools.0.nodes", "16"),),
            pins={"ep": 32, "tp": 1, "mbs": 1, "zero": 1},
        )
        model, _, problem, plan = reopened(result)
        assert problem.pool.scale_up_domain == 64
        placed = place_plan(plan.layout, model.shape, problem.pool, problem.fabric, ())
        assert {group.n_domains for group in placed.groups} == {1}

    @pytest.mark.slow
    def test_a_plan_over_eight_racks(self):
        result = solve("deepseek-v3", "gb200-nvl72-x576", top=1, pins={"ep": 64, "pp": 2})
        model, _, problem, plan = reopened(result)
        assert plan.plan_id == result.plans[0].plan_id
        assert plan.pool == "gb200-64-of-72"
        assert (plan.layout.n_devices, plan.n_idle) == (512, 64)
        assert any("64 of 576 devices stay idle" in note for note in result.notes)
        placed = place_plan(plan.layout, model.shape, problem.pool, problem.fabric, ())
        domains = {group.name: group.n_domains for group in placed.groups}
        assert domains["ep"] == 1
        files = {"megatron.sh": 'torchrun --node-rank "${NODE_RANK}" train.py\n'}
        request = EmitRequest(plan.layout, model.shape, model.job, problem.pool)
        written = launcher_files(
            ("slurm", "jobset"), files, request, placed, problem.fabric, "0123"
        )
        assert "#SBATCH --segment=16\n" in written["slurm-megatron.sbatch"]
        assert "replicas: 8\n" in written["jobset-megatron.yaml"]

    @pytest.mark.slow
    def test_the_whole_domains_are_tried_too(self):
        result = solve("llama3-70b", "gb200-nvl72-x576", top=3, pins={"tp": 8})
        assert {count.pool for count in result.devices} == {"gb200", "gb200-64-of-72"}

    def test_one_layout_is_priced_on_whole_domains(self):
        """`evaluate` has one pool as before; a part of a domain is asked for by name."""
        pins = {"tp": 8, "pp": 2, "dp": 32}
        small = (("pools.0.nodes", "128"),)
        whole = evaluate("llama3-70b", "gb200-nvl72-x576", pins=pins, overrides=small)
        part = evaluate("llama3-70b", "gb200-nvl72-x576", pins=pins, pool="gb200-64-of-72")
        assert whole.plans[0].pool == "gb200"
        assert part.plans[0].pool == "gb200-64-of-72"
