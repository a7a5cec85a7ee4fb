"""Slurm: nodes as text and JSON, tables of sinfo, topology."""

import pytest

from planner.errors import SpecError
from planner.specs.importers.clusters.options import ImportOptions
from planner.specs.importers.clusters.reader import import_cluster
from planner.specs.importers.dumps import sinfo, slurm, slurm_topology
from planner.specs.importers.dumps.slurm import Gres, is_state, parse_gres
from tests.planner.specs.importers.dumps import (
    assumed,
    dump,
    imported,
    loaded,
    note,
    pools,
    question,
)


def test_a_tree_of_switches_with_every_kind_of_state():
    found = imported("scontrol-tree-nodes.txt", "scontrol-tree-topology.txt")
    (pool,) = pools(found)
    # 20 GPU nodes, two of them unhealthy; n007 holds 6 free GPUs, n009, n014, n015 none.
    assert pool["nodes"] == 18
    assert pool["free_devices"] == [8] * 14 + [6, 0, 0, 0]
    assert pool["accelerator"] == "h100-sxm-80gb"
    assert pool["nic"] == "ib-ndr-400"  # the feature ib_ndr
    assert assumed(found) >= {"accelerator", "nics_per_node", "fabric.tiers.0.oversubscription"}
    assert "nic" not in assumed(found)
    assert (
        note(found, "left out: ") == "left out: n003 drained; n012 not responding, down, drained"
    )
    assert note(found, "not free now") == (
        "not free now: n009 allocated; n015 planned for another job; n014 reserved"
    )
    assert "n007" in note(found, "not used: 6 free GPUs")
    (told,) = [line for line in found.assumptions if "CPU work" in line]
    assert told.startswith("pools.0.nodes = 18: healthy ones of 20 nodes; 1 node with CPU work")
    assert "(n020)" in told
    assert note(found, "left out, without GPUs") == "left out, without GPUs: 1 node"
    # Usable: leaf1 has 6, leaf2 and leaf3 have 4: groups of 4 hold 12 of 14.
    (tier,) = found.document["fabric"]["tiers"]
    assert (tier["name"], tier["nodes"]) == ("leaf", 4)
    read = loaded(found)
    assert read.cluster.pools[0].n_nodes == 14
    assert read.sources[0].hosts[:8] == (
        "n001",
        "n002",
        "n004",
        "n005",
        "n010",
        "n011",
        "n013",
        "n016",
    )
    assert read.sources[0].hosts[-2:] == ("n006", "n008")  # fill no whole group


def test_nodes_and_topology_in_one_text():
    text = dump("scontrol-tree-nodes.txt")[1] + dump("scontrol-tree-topology.txt")[1]
    both = import_cluster([("all.txt", text)])
    apart = imported("scontrol-tree-nodes.txt", "scontrol-tree-topology.txt")
    assert both.document["pools"] == apart.document["pools"]
    assert both.document["fabric"] == apart.document["fabric"]


def test_all_ignores_what_is_in_use():
    found = imported("scontrol-tree-nodes.txt", everything=True)
    (pool,) = pools(found)
    assert pool["nodes"] == 18
    assert not {"free_nodes", "free_devices"} & set(pool)
    assert loaded(found).cluster.pools[0].n_devices == 144


def test_partial_uses_the_free_gpus_of_nodes_in_use():
    found = imported("scontrol-nodes.json", nodes="h[06-07]", partial=True)
    read = loaded(found)
    assert read.cluster.pools[0].n_devices == 8  # 4 on each of two: as many as one whole node
    assert (read.cluster.pools[0].n_nodes, read.sources[0].hosts) == (1, ("h06",))


def test_most_takes_the_first_nodes_of_the_network():
    found = imported("scontrol-tree-nodes.txt", "scontrol-tree-topology.txt", most_nodes=8)
    (pool,) = pools(found)
    assert pool["free_nodes"] == 8
    assert pool["hosts"] == "n[001-002,004-005,010-011,013,016]"


def test_nodes_and_partition_restrict():
    assert pools(imported("scontrol-tree-nodes.txt", nodes="n[001-002]"))[0]["nodes"] == 2
    assert "not in the dump: n099,zz" in question(
        "scontrol-tree-nodes.txt", nodes="zz,n[001-002],n099"
    )
    assert "runs backwards" in question("scontrol-tree-nodes.txt", nodes="n[2-1]")
    assert "no node is in 'gpus'" in question("scontrol-tree-nodes.txt", partition="gpus")
    assert "cpu, gpu" in question("scontrol-tree-nodes.txt", partition="gpus")


def test_mig_slices_shards_and_sums_of_typed_use():
    """Slices are left out; `gres/gpu` beside typed entries is their sum; shards hide what is free.

    Reason holds blanks, equals signs and the names of other fields.
    """
    found = imported("scontrol-oneline-mig.txt")
    eight, four = pools(found)
    assert (eight["nodes"], eight["free_devices"]) == (3, [8, 5, 0])
    assert eight["hosts"] == "rack1-g[01-02],rack2-g01"
    assert (four["nodes"], four["accelerators_per_node"], four["hosts"]) == (1, 4, "rack1-g03")
    assert {pool["accelerator"] for pool in (eight, four)} == {"a100-sxm-80gb"}
    assert "rack1-g[03-04] MIG slices" in note(found, "left out, training")
    assert note(found, "left out: ") == "left out: rack2-g02 in maintenance"
    assert "rack2-g01" in note(found, "Slurm does not say")


def test_json_with_lists_of_states():
    found = imported("scontrol-nodes.json")
    (pool,) = pools(found)
    assert (pool["nodes"], pool["free_devices"]) == (8, [8, 8, 8, 8, 8, 8, 4, 0])
    assert pool["accelerator"] == "h200-sxm-141gb"
    assert "accelerator" not in assumed(found)
    assert note(found, "left out") == (
        "left out: h09 down, not responding; h08 drained; h10 in maintenance"
    )
    assert pools(imported("scontrol-nodes.json", partition="debug"))[0]["nodes"] == 7


def test_old_json_with_states_as_text():
    found = imported("sinfo-2108.json")
    (pool,) = pools(found)
    assert (pool["nodes"], pool["free_nodes"], pool["hosts"]) == (4, 3, "g[1,4,10]")
    # `a100` alone is ambiguous: the features sxm4 and 80gb decide.
    assert pool["accelerator"] == "a100-sxm-80gb"
    assert "accelerator" not in assumed(found)


def test_sinfo_json_groups_nodes_that_look_the_same():
    found = imported("sinfo.json")
    (pool,) = pools(found)
    # a5 and a6 share an entry: what each has in use is not said.
    assert (pool["nodes"], pool["free_devices"]) == (6, [8, 8, 8, 3, 0, 0])
    assert "a[5-6]" in note(found, "Slurm does not say")


def test_sinfo_table_with_partitions_repeated():
    found = imported("sinfo-wide.txt", accelerators={"v100": "v100-sxm-32gb"}, nic="hdr")
    h100, v100 = pools(found)
    assert (h100["nodes"], h100["free_devices"]) == (5, [8, 8, 8, 6, 0])
    assert h100["hosts"] == "node[001,006,010,003,002]"
    assert (v100["accelerator"], v100["nodes"], v100["accelerators_per_node"]) == (
        "v100-sxm-32gb",
        1,
        4,
    )
    text = question("sinfo-wide.txt")
    assert "which accelerator is v100 (1 node x 4)?" in text
    assert "--accelerator v100=v100-sxm-16gb (or v100-sxm-32gb" in text


def test_sinfo_without_a_header():
    found = imported("sinfo-pipes.txt")
    (pool,) = pools(found)
    assert (pool["nodes"], pool["free_nodes"], pool["hosts"]) == (16, 12, "node[001-012]")
    assert (
        note(found, "left out: ")
        == "left out: node019 in maintenance; node016 not responding, down"
    )
    assert "node017 MIG slices" in note(found, "left out, training")
    assert "node015 powered down" in note(found, "not free now")
    assert "node018 planned for another job" in note(found, "not free now")


@pytest.mark.parametrize("name", ["sinfo-cut.txt", "sinfo-cut-end.txt"])
def test_columns_that_are_cut_are_refused(name):
    text = question(name)
    assert "GRES" in text
    assert "cut" in text
    assert "sinfo -N -O" in text


@pytest.mark.parametrize(
    "text",
    [
        "PARTITION AVAIL TIMELIMIT NODES STATE NODELIST\ngpu* up infinite 4 idle n[1-4]\n",
        "Mon Aug  3 09:00:00 2026\nNODELIST NODES PARTITION STATE CPUS S:C:T MEMORY TMP_DISK"
        " WEIGHT AVAIL_FE REASON\nn1 1 gpu* idle 8 2:4:1 1000 0 1 (null) none\n",
    ],
)
def test_a_table_without_gres_says_which_command_has_it(text):
    assert sinfo.looks_like_sinfo(text)
    with pytest.raises(SpecError, match=r"no column GRES[\s\S]*sinfo -N -O"):
        sinfo.read_table(text, "x")


def test_a_table_without_states_counts_all_as_free():
    text = (
        "NODELIST          GRES             CPUS  MEMORY\n"
        "node030           gpu:v100:4(S:0)  40    196608\n"
        "node[001-016]     gpu:h100:8       224   2000000\n"
    )
    found = import_cluster([("x", text)], ImportOptions(accelerators={"v100": "none"}))
    (pool,) = pools(found)
    assert (pool["nodes"], pool["hosts"]) == (16, "node[001-016]")
    assert "no column STATE" in note(found, "x has")


def test_the_mark_of_a_default_partition_is_no_part_of_its_name():
    for name in ("gpu", "gpu*"):
        found = imported("sinfo-wide.txt", partition=name, accelerators={"h100": "h100"})
        assert pools(found)[0]["nodes"] == 5


def test_nothing_is_asked_about_nodes_that_are_down():
    record = "NodeName={} Gres=gpu:{}:4 State={} CPUAlloc=0 Partitions=gpu\n"
    text = (
        record.format("n1", "gb200", "IDLE")
        + record.format("n2", "v100", "DOWN")
        + record.format("n3", "h800", "IDLE+DRAIN")
    )
    found = import_cluster([("x", text)])
    assert [p["name"] for p in pools(found)] == ["gb200"]
    assert sorted(x for x in found.notes if x.startswith("left out")) == [
        "left out: n2 down",
        "left out: n3 drained",
    ]


def test_nodes_with_and_without_features_are_one_pool():
    record = "NodeName={} Gres=gpu:h100:8 ActiveFeatures={} State=IDLE CPUAlloc=0 Partitions=gpu\n"
    words = ("ndr", "(null)", "h100,ib", "rack_7")
    text = "".join(record.format(f"n{i}", word) for i, word in enumerate(words))
    (pool,) = pools(import_cluster([("x", text)]))
    assert (pool["nodes"], pool["nic"]) == (4, "ib-ndr-400")


def test_racks_from_blocks():
    """Three racks of 18 trays, one tray is drained: 16 of each, so that all domains are equal."""
    found = imported("scontrol-gb200-nodes.txt", "scontrol-gb200-blocks.txt")
    (pool,) = pools(found)
    assert (pool["nodes"], pool["free_nodes"], pool["scale_up_domain"]) == (53, 48, 64)
    assert pool["hosts"] == "gb[001-016,019,021-035,037-052]"
    assert "not used: gb[053-054,017-018,036]" in note(found, "not used")
    assert "scale_up_domain" not in assumed(found)
    (tier,) = found.document["fabric"]["tiers"]
    assert (tier["name"], tier["nodes"]) == ("aggregated-block", 32)  # two racks of 16
    whole = imported(
        "scontrol-gb200-nodes.txt", "scontrol-gb200-blocks.txt", nodes="gb[001-018,037-054]"
    )
    assert pools(whole)[0]["scale_up_domain"] == 72
    assert "free_nodes" not in pools(whole)[0]


def test_racks_without_topology_are_assumed_and_said():
    found = imported("scontrol-gb200-nodes.txt")
    assert "scale_up_domain" in assumed(found)
    # gb020 is down and shows that the first rack ends with gb018.
    assert pools(found)[0]["hosts"] == "gb[001-016,019,021-035,037-052]"


def test_mixed_types_and_a_type_that_nobody_knows():
    text = question("scontrol-mixed.txt")
    assert (
        "which accelerators are a100 (4 nodes x 8); accel (1 node x 8); h100 (1 node x 4)?" in text
    )
    assert "--accelerator a100=a100-sxm-80gb (or a100-sxm-40gb, a100-pcie-80gb" in text
    answers = {"a100": "a100-40gb", "accel": "none", "gpu:h100": "h100-nvl", "t4": "none"}
    text = question("scontrol-mixed.txt", accelerators=answers)
    # The catalogue has no server with these that says its ports.
    assert "which network ports have nodes with 8 a100-sxm-40gb (4 nodes)?" in text
    assert "add --nic ib-hdr-200 --nics 8 (or " in text
    found = imported("scontrol-mixed.txt", accelerators=answers, nic="hdr", nics=4)
    assert {(p["nic"], p["nics_per_node"]) for p in pools(found)} == {("ib-hdr-200", 4)}
    assert [(p["name"], p["accelerator"], p["nodes"]) for p in pools(found)] == [
        ("a100", "a100-sxm-40gb", 4),
        ("h100", "h100-nvl-94gb", 1),
    ]
    left = note(found, "left out, not in the catalogue")
    assert left.endswith(": r[1-2] rtx_2080ti x 4")
    said = note(found, "left out, as --accelerator says")
    assert said.endswith("x1 accel x 8; m1 t4 x 2; t[1-2] t4 x 4")


def test_answers_are_checked():
    assert "unknown accelerator 'h1000'" in question(
        "scontrol-mixed.txt", accelerators={"a100": "h1000"}
    )
    assert "no device is called 'b200'" in question(
        "scontrol-mixed.txt", accelerators={"b200": "b200"}
    )
    assert "write TYPE=NAME" in question("scontrol-mixed.txt", accelerators={"*": "h100"})
    assert "'nvlink4' is no network port" in question("scontrol-mixed.txt", nic="nvlink4")


def test_cloud_machines_in_features_and_topology_on_the_nodes():
    found = imported("scontrol-cloud.txt")
    (pool,) = pools(found)
    assert (pool["instance"], pool["nodes"], pool["free_nodes"]) == ("p5.48xlarge", 8, 7)
    assert "accelerator" not in pool
    assert assumed(found) == {"fabric.rail_optimized", "fabric.tiers.0.oversubscription"}
    assert found.document["fabric"]["tiers"][0]["nodes"] == 4
    assert note(found, "not free now") == "not free now: q8 powered down"


def test_nothing_free_is_one_error():
    text = question("scontrol-tree-nodes.txt", nodes="n[003,007,009]")
    assert "no node is free" in text
    assert "n009 allocated" in text
    assert "--partial" in text
    assert "--all" in question("scontrol-tree-nodes.txt", nodes="n009")
    assert "healthy" in question("scontrol-tree-nodes.txt", nodes="n003")


def test_topology_of_another_cluster():
    text = question("scontrol-tree-nodes.txt", "scontrol-gb200-blocks.txt")
    assert "names none of the nodes" in text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpu:h100:8(S:0-1)", [("h100", 8)]),
        ("gpu:8", [("", 8)]),
        ("gpu", [("", 1)]),
        ("gpu:h100", [("h100", 1)]),
        ("gpu:3090:4(S:0)", [("3090", 4)]),
        ("gpu:a100:2(IDX:0,3),pfsdir:scratch:1", [("a100", 2)]),
        ("gpu:a100:4(S:0),gpu:a100:4(S:1)", [("a100", 8)]),
        ("gpu:a100:no_consume:4,mps:400,shard:8", [("a100", 4)]),
        ("(null)", []),
        ("N/A", []),
        ("", []),
        ("craynetwork:4", []),
    ],
)
def test_gres(text, found):
    assert [(g.type, g.n) for g in parse_gres(text)] == found


def test_gres_without_a_number_is_told_from_one_with():
    assert parse_gres("gpu:h100") == (Gres("h100", 1, counted=False),)


@pytest.mark.parametrize("word", ["idle", "IDLE*", "mix-", "DOWN*+DRAIN", "IDLE+CLOUD", "alloc+"])
def test_states(word):
    assert is_state(word)


@pytest.mark.parametrize("word", ["gpu", "n001", "h100", "224", ""])
def test_words_that_are_no_states(word):
    assert not is_state(word)


@pytest.mark.parametrize(
    ("state", "unhealthy", "busy"),
    [
        ("IDLE", "", ""),
        ("idle*", "not responding", ""),
        ("IDLE~", "", "powered down"),
        ("idle#", "", "powering up"),
        ("mixed$", "in maintenance", ""),
        ("idle-", "", "planned for another job"),
        ("ALLOCATED+DRAIN", "draining", "allocated"),
        ("MIXED+DRAIN", "draining", ""),
        ("IDLE+DRAIN", "drained", ""),
        ("DOWN*+DRAIN+NOT_RESPONDING", "not responding, down, drained", ""),
        ("IDLE+RESERVED", "", "reserved"),
        ("IDLE+CLOUD+POWERED_DOWN", "", "powered down"),
        ("UNKNOWN", "of unknown state", ""),
        ("SOMETHING", "in state something", ""),
        ("idle^", "rebooting", ""),
        ("COMPLETING", "", "completing a job"),
        ("INVAL", "invalid", ""),
        ("FAIL+DRAIN", "failed, drained", ""),
    ],
)
def test_what_a_state_means(state, unhealthy, busy):
    record = f"NodeName=n1 Gres=gpu:h100:8 State={state} CPUAlloc=0 Partitions=gpu"
    (node,) = slurm.read_nodes(record, "x").nodes
    assert set(node.unhealthy.split(", ")) == set(unhealthy.split(", "))
    assert node.busy == busy


def test_a_record_that_is_cut_off():
    with pytest.raises(SpecError, match="node n1 has no State"):
        slurm.read_nodes("NodeName=n1 Arch=x86_64\n   Gres=gpu:h100:8(S:0-1)\n", "x")


def test_slurm_conf_lists_nodes_without_states():
    text = (
        "NodeName=DEFAULT CPUs=224\nNodeName=n[01-04] Gres=gpu:b200:8 Feature=ib State=UNKNOWN\n"
        "PartitionName=gpu Nodes=n[01-04]\n"
    )
    assert slurm.looks_like_slurm(text)
    nodes = slurm.read_nodes(text, "x").nodes
    assert [(n.name, n.devices[0].n_free) for n in nodes] == [
        ("n01", 8),
        ("n02", 8),
        ("n03", 8),
        ("n04", 8),
    ]


def test_use_that_is_not_tracked_counts_as_unknown():
    """Where Slurm does not account GPUs, AllocTRES says nothing about them."""
    record = (
        "NodeName=n1 Gres=gpu:h100:8 State=MIXED CPUAlloc=8 Partitions=gpu"
        " CfgTRES=cpu=224,mem=1M AllocTRES=cpu=8"
    )
    facts = slurm.read_nodes(record, "x")
    assert facts.nodes[0].devices[0].n_free == 0
    assert "n1" in facts.notes[0]
    facts = slurm.read_nodes(record + " GresUsed=gpu:h100:2(IDX:0-1)", "x")
    assert facts.nodes[0].devices[0].n_free == 6
    assert facts.notes == ()


def test_tree_paths_go_from_the_root_to_the_leaf():
    facts = slurm_topology.read_topology(dump("scontrol-tree-topology.txt")[1], "x")
    at = facts.positions["n010"]
    assert (at.path, at.levels) == (("spine1", "leaf2"), ("spine", "leaf"))
    assert len(facts.positions) == 21


def slurm_nodes(*use: tuple[str, str, str]) -> str:
    """Return `scontrol show node` of nodes of eight GPUs: name, state, resources in use."""
    return "\n\n".join(
        f"NodeName={name} CPUAlloc=8 Gres=gpu:h100:8 State={state} Partitions=gpu"
        f" CfgTRES=cpu=224,mem=2T,gres/gpu=8,gres/gpu:h100=8 AllocTRES={held}"
        for name, state, held in use
    )


CPU_JOB, GPU_JOB = "cpu=8,mem=64G", "cpu=8,mem=64G,gres/gpu=8,gres/gpu:h100=8"


def cpu_work(text: str, **options: object) -> list[str]:
    """Return what a cluster file assumes of nodes on which only CPU jobs run."""
    found = import_cluster([("nodes.txt", text)], ImportOptions(**options))  # type: ignore[arg-type]
    return [line for line in found.assumptions if "CPU work" in line]


def test_free_gpus_of_nodes_with_cpu_jobs_are_assumed_to_be_of_use():
    all_free = slurm_nodes(("n1", "IDLE", ""), ("n2", "MIXED", CPU_JOB), ("n3", "MIXED", CPU_JOB))
    text = (
        "2 nodes with CPU work of other jobs and no GPU in use, planned as free (n[2-3]): a job"
        " that takes whole nodes waits for them"
    )
    assert cpu_work(all_free) == [f"pools.0.nodes = 3: nodes of this kind; {text}"]
    some_free = slurm_nodes(("n1", "MIXED", CPU_JOB), ("n2", "ALLOCATED", GPU_JOB))
    (line,) = cpu_work(some_free)
    assert line.startswith("pools.0.free_nodes = 1: nodes that nobody uses now; 1 node with CPU")
    assert "(n1)" in line


def test_cpu_work_is_told_of_nodes_that_plans_use_alone():
    text = slurm_nodes(("n1", "IDLE", ""), ("n2", "MIXED", CPU_JOB), ("n3", "MIXED", GPU_JOB))
    assert cpu_work(text, nodes="n1") == []
    assert cpu_work(text, everything=True) == []
    assert len(cpu_work(text)) == 1
    # Where Slurm does not account GPUs they count as in use, and nothing is assumed.
    blind = text.replace(",gres/gpu=8,gres/gpu:h100=8", "")
    assert cpu_work(blind) == []
