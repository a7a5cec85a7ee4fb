"""Kubernetes: labels, taints, conditions, what pods hold, shared devices, racks."""

import json

import pytest
import yaml

from planner.errors import SpecError
from planner.specs.importers.clusters.reader import import_cluster
from planner.specs.importers.dumps import kubernetes
from tests.planner.specs.importers.dumps import (
    assumed,
    dump,
    imported,
    loaded,
    note,
    pools,
    question,
)


def test_nodes_with_feature_discovery_and_topology_labels():
    found = imported("kubectl-dgx-nodes.json")
    (pool,) = pools(found)
    # Of 16: one cordoned, one not ready; one tainted for others; one offers 7 of its 8 GPUs.
    assert (pool["instance"], pool["nodes"]) == ("dgx-h100", 14)
    assert pool["free_devices"] == [8] * 12 + [7, 0]
    assert note(found, "left out: ") == (
        "left out: dgx-03 cordoned; dgx-06 not ready, not reachable"
    )
    assert note(found, "not free now") == "not free now: dgx-10 tainted dedicated=inference"
    assert note(found, "not whole") == "not whole: dgx-14 1 of 8 GPUs not offered"
    assert "kubectl get pods -A -o json" in note(found, "what pods hold is not said")
    # Three usable nodes below each of four leaves, two leaves below each of two spines.
    tiers = found.document["fabric"]["tiers"]
    assert [(t["name"], t["nodes"]) for t in tiers] == [("leaf", 3), ("spine", 6)]
    assert loaded(found).sources[0].hosts[:6] == (
        "dgx-01",
        "dgx-02",
        "dgx-04",
        "dgx-05",
        "dgx-07",
        "dgx-08",
    )


def test_pods_hold_devices():
    """dgx-01 is full, dgx-02 holds 2 + 1, dgx-05 4 for an init container; ended pods hold none."""
    found = imported("kubectl-dgx-nodes.json", "kubectl-dgx-pods.json")
    (pool,) = pools(found)
    assert pool["free_devices"] == [8] * 9 + [7, 5, 4, 0, 0]
    assert pool["hosts"].endswith("14,02,05,01,10]")
    assert not [x for x in found.notes if x.startswith("what pods hold")]
    assert "dgx-[02,05,14]" in note(found, "not used: 16 free GPUs")


def test_nodes_and_pods_in_one_list():
    items = [
        x for n in ("nodes", "pods") for x in json.loads(dump(f"kubectl-dgx-{n}.json")[1])["items"]
    ]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    facts = kubernetes.read_kubernetes(text, "x")
    assert len(facts.nodes) == 17
    assert facts.in_use is not None
    assert facts.in_use["dgx-02"] == {"nvidia.com/gpu": 3}
    assert facts.in_use["dgx-05"] == {"nvidia.com/gpu": 4}
    assert "dgx-04" not in facts.in_use


def test_taints_that_the_job_tolerates():
    for tolerated in ("dedicated", "dedicated=inference"):
        found = imported("kubectl-dgx-nodes.json", tolerated=(tolerated,))
        assert pools(found)[0]["free_devices"] == [8] * 13 + [7]
    found = imported("kubectl-dgx-nodes.json", tolerated=("dedicated=training",))
    assert pools(found)[0]["free_devices"] == [8] * 12 + [7, 0]


def test_selector():
    leaf = {"network.topology.nvidia.com/leaf": "leaf1"}
    assert pools(imported("kubectl-dgx-nodes.json", selector=leaf))[0]["nodes"] == 3
    assert "no node has a=b" in question("kubectl-dgx-nodes.json", selector={"a": "b"})


def test_nodes_without_labels_are_one_question():
    text = question("kubectl-no-labels.json")
    assert "which accelerator is nvidia.com/gpu (4 nodes x 8)?" in text
    assert "--accelerator NAME" in text
    found = imported("kubectl-no-labels.json", accelerators={"*": "b200"})
    assert (pools(found)[0]["accelerator"], pools(found)[0]["nodes"]) == ("b200-sxm-180gb", 4)
    same = imported("kubectl-no-labels.json", accelerators={"gpu": "b200"})
    assert same.document == found.document


def test_slices_and_shared_devices_are_left_out():
    found = imported("kubectl-shared.json")
    eight, six = pools(found)
    assert (eight["nodes"], eight["hosts"]) == (2, "whole-[1-2]")
    # With the mixed strategy six GPUs of that node are whole.
    assert (six["accelerators_per_node"], six["hosts"]) == (6, "mixed-1")
    assert note(found, "left out, training") == (
        "left out, training needs whole GPUs: mig-1,mixed-1 MIG slices; mps-1 shared by MPS;"
        " ts-1 time-sliced"
    )


def test_nvlink_cliques_are_racks():
    """Two racks of 18, one tray not ready: 16 of each."""
    found = imported("kubectl-gb200.json")
    (pool,) = pools(found)
    assert (pool["instance"], pool["nodes"], pool["free_nodes"]) == ("a4x-highgpu-4g", 35, 32)
    assert pool["scale_up_domain"] == 64
    assert pool["hosts"] == "gke-a4x-[00-15,18-19,21-34]"
    assert "scale_up_domain" not in assumed(found)
    assert loaded(found).cluster.pools[0].n_devices == 128
    one = imported("kubectl-gb200.json", nodes="gke-a4x-[00-17]")
    assert (pools(one)[0]["nodes"], pools(one)[0]["scale_up_domain"]) == (18, 72)


def test_cloud_machine_with_its_network():
    found = imported("kubectl-eks.json")
    (pool,) = pools(found)
    assert (pool["instance"], pool["nodes"]) == ("p5.48xlarge", 8)
    assert found.document["fabric"]["rail_optimized"] is False
    tiers = found.document["fabric"]["tiers"]
    assert [(t["name"], t["nodes"]) for t in tiers] == [("layer-3", 2), ("layer-2", 4)]
    assert loaded(found).cluster.pools[0].nic.name == "efa-100"
    assert pool["hosts"] == "ip-10-0-[0-7]-17.us-east-2.compute.internal"


def test_amd_labels():
    (pool,) = pools(imported("kubectl-amd.json"))
    assert (pool["accelerator"], pool["nodes"], pool["accelerators_per_node"]) == (
        "mi300x-192gb",
        4,
        8,
    )


def test_mixed_types_ask_for_their_network():
    text = question("kubectl-mixed.json")
    assert "4 h100-pcie-80gb (2 nodes); 8 v100-sxm-32gb (2 nodes)" in text
    none = {"Tesla-T4": "none"}
    found = imported("kubectl-mixed.json", nic="ib-edr-100", accelerators=none)
    assert [(p["name"], p["nodes"], p["nic"]) for p in pools(found)] == [
        ("v100", 2, "ib-edr-100"),
        ("h100", 2, "ib-edr-100"),
    ]
    assert note(found, "left out, as --accelerator says").endswith("t-1 Tesla-T4 x 4")


def test_efa_ports_without_an_instance_type_name_the_machine():
    data = json.loads(dump("kubectl-eks.json")[1])
    for item in data["items"]:
        del item["metadata"]["labels"]["node.kubernetes.io/instance-type"]
        item["metadata"]["labels"]["nvidia.com/gpu.product"] = "NVIDIA-H200"
    found = import_cluster([("x", json.dumps(data))])
    assert pools(found)[0]["instance"] == "p5e.48xlarge"  # 32 ports; p5en has 16
    assert "instance" in assumed(found)


def test_what_kubectl_writes_as_yaml():
    data = json.loads(dump("kubectl-dgx-nodes.json")[1])
    text = yaml.safe_dump(data, sort_keys=True)
    assert text.startswith("apiVersion: v1\nitems:")
    found = import_cluster([("x", text)])
    assert pools(found) == pools(imported("kubectl-dgx-nodes.json"))


def test_labels_without_a_device_plugin():
    """The labels say eight GPUs, and the node offers none of them."""
    data = json.loads(dump("kubectl-dgx-nodes.json")[1])
    del data["items"][0]["status"]["capacity"]["nvidia.com/gpu"]
    found = import_cluster([("x", json.dumps(data))])
    assert pools(found)[0]["nodes"] == 13
    assert "dgx-01 offering none of its GPUs" in note(found, "left out: ")


def test_nodes_in_two_zones_are_said():
    data = json.loads(dump("kubectl-eks.json")[1])
    data["items"][7]["metadata"]["labels"]["topology.kubernetes.io/zone"] = "us-east-2c"
    found = import_cluster([("x", json.dumps(data))])
    assert "us-east-2b, us-east-2c" in note(found, "nodes lie in zones")


@pytest.mark.parametrize(
    "text", ['{"kind": "Node"}', '{"kind": "NodeList", "items": [{}, 3, null, {"metadata": 1}]}']
)
def test_objects_without_content_are_one_error(text):
    with pytest.raises(SpecError, match="has no name"):
        import_cluster([("x", text)])


def test_other_objects_are_not_taken_for_nodes():
    assert not kubernetes.looks_like_kubernetes('{"kind": "List", "items": [{"kind": "Service"}]}')
    assert not kubernetes.looks_like_kubernetes('{"kind": "ConfigMap", "data": {}}')
    assert not kubernetes.looks_like_kubernetes("kind: Node\n")


def test_a_list_of_nothing_is_told_from_another_format():
    text = '{"apiVersion": "v1", "items": [], "kind": "List", "metadata": {"resourceVersion": ""}}'
    with pytest.raises(SpecError, match="lists neither nodes nor pods"):
        import_cluster([("nodes.json", text)])
