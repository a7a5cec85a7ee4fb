"""Dumps of one node: nvidia-smi, NCCL and RCCL topology, rocm-smi and amd-smi."""

import re

import pytest

from planner.errors import SpecError
from planner.specs.importers.clusters.facts import Hardware
from planner.specs.importers.clusters.options import ImportOptions
from planner.specs.importers.clusters.reader import import_cluster
from planner.specs.importers.dumps import nccl_topology, nvidia_smi, rocm_smi
from tests.planner.specs.importers.dumps import assumed, dump, imported, loaded, pools, question


def inside(name: str) -> Hardware:
    """Return what a sample says of the inside of a node."""
    name, text = dump(name)
    readers = [
        (nvidia_smi.looks_like_nvidia_smi, nvidia_smi.read_nvidia_smi),
        (nccl_topology.looks_like_nccl_topology, nccl_topology.read_nccl_topology),
        (rocm_smi.looks_like_rocm_smi, rocm_smi.read_rocm_smi),
    ]
    (read,) = [read for fits, read in readers if fits(text)]
    found = read(text, name).hardware
    assert found is not None
    return found


def test_matrix_with_a_switch_and_rails():
    found = inside("smi-topo-h100.txt")
    (devices,) = found.devices
    assert (devices.n, found.domain, devices.evidence.bridged) == (8, 8, False)
    assert devices.evidence.n_links == {18, 126}  # of a switch, or one after the other
    assert found.ports.n == 8  # nine are near a GPU: one for each, and one for storage


def test_matrix_of_an_old_driver_with_colours():
    found = inside("smi-topo-a100-ansi.txt")
    assert (found.devices[0].n, found.domain) == (8, 8)
    assert 12 in found.devices[0].evidence.n_links
    assert found.ports.n == 8
    text = question("smi-topo-a100-ansi.txt")
    assert "--accelerator a100-sxm-80gb (or a100-sxm-40gb, none" in text


def test_matrix_of_cards_without_nvlink():
    """The sample holds blanks only, as pastes do."""
    assert "\t" not in dump("smi-topo-pcie.txt")[1]
    found = inside("smi-topo-pcie.txt")
    assert (found.devices[0].n, found.domain, found.ports.n) == (4, 1, 0)
    assert found.devices[0].evidence.n_links == {0}
    text = question("smi-topo-pcie.txt")
    # More cards go without NVLink than a question lists.
    assert "--accelerator NAME (from `planner catalog list`" in " ".join(text.split())


def test_cards_that_the_driver_names():
    (pool,) = pools(imported("rocm-smi-mi210.txt"))
    assert (pool["accelerator"], pool["accelerators_per_node"]) == ("mi210-64gb", 4)


def test_matrix_of_eight_devices_behind_a_switch_is_of_no_superchips():
    """GB200 and GH200 come with four in a node at most."""
    text = " ".join(question("smi-topo-h100.txt").split())
    assert "h100-sxm-80gb" in text
    assert not re.search("g[bh][23]00-", text)
    four = re.sub(r"(?m)^GPU[4-7].*\n", "", dump("smi-topo-h100.txt")[1])
    with pytest.raises(SpecError) as caught:
        import_cluster([("four.txt", four)])
    assert "--accelerator gb200-186gb (or" in " ".join(str(caught.value).split())


def test_hybrid_mesh():
    found = inside("smi-topo-v100-mesh.txt")
    # Direct links add up: 1 + 1 + 2 + 2; the most to one peer are 2.
    assert found.devices[0].evidence.n_links == {2, 6}
    assert (found.domain, found.ports.n) == (8, 4)
    text = question("smi-topo-v100-mesh.txt")
    assert "--accelerator v100-sxm-16gb (or v100-sxm-32gb, none" in text
    (pool,) = pools(imported("smi-topo-v100-mesh.txt", accelerators={"*": "v100-32gb"}))
    assert (pool["accelerator"], pool["nics_per_node"]) == ("v100-sxm-32gb", 4)


def test_bridges_between_pairs():
    found = inside("smi-topo-nvl.txt")
    assert (found.domain, found.devices[0].evidence.bridged) == (2, True)
    text = question("smi-topo-nvl.txt")
    assert "a100-pcie-80gb (or h100-pcie-80gb, h100-nvl-94gb, none" in text


def test_two_boards_of_four():
    """Eight A100 on two boards: NVLink joins four."""
    text = dump("smi-topo-a100-ansi.txt")[1]
    rows = []
    for line in text.splitlines():
        cells = line.split("\t")
        if line.startswith("GPU"):
            i = int(cells[0][3:])
            for j in range(8):
                if i != j:
                    cells[1 + j] = "NV4" if i // 4 == j // 4 else "SYS"
        rows.append("\t".join(cells))
    found = import_cluster([("x", "\n".join(rows)), dump("smi-query-noheader.csv")])
    (pool,) = pools(found)
    assert (pool["accelerator"], pool["scale_up_domain"]) == ("a100-sxm-40gb", 4)
    assert loaded(found).cluster.pools[0].scale_up_domain == 4


@pytest.mark.parametrize(
    ("name", "part", "n"),
    [
        ("smi-q-h100.txt", "h100-sxm-80gb", 8),
        ("smi-query.csv", "h200-sxm-141gb", 8),
        ("smi-query-noheader.csv", "a100-sxm-40gb", 8),
        ("smi-list-mig.txt", "a100-sxm-80gb", 6),  # two of eight are cut up
        ("smi-nvlink-s.txt", "h800-sxm-80gb", 8),
        ("smi-table-b200.txt", "b200-sxm-180gb", 8),
        ("nccl-h100-ib.xml", "h100-sxm-80gb", 8),
        ("nccl-h200-roce.xml", "h200-sxm-141gb", 8),
        ("rccl-mi300x.xml", "mi300x-192gb", 8),
        ("nccl-gb200-two-hosts.xml", "gb200-186gb", 4),
        ("rocm-smi-mi300x.txt", "mi300x-192gb", 8),
        ("rocm-smi-productname.txt", "mi325x-256gb", 8),
        ("rocm-smi.json", "mi300x-192gb", 8),
        ("amd-smi-static.json", "mi355x-288gb", 8),
    ],
)
def test_what_one_node_has(name, part, n):
    found = imported(name)
    (pool,) = pools(found)
    assert (pool["accelerator"], pool["accelerators_per_node"], pool["nodes"]) == (part, n, 1)
    assert "accelerator" not in assumed(found)
    assert "hosts" not in pool
    assert "fabric" not in found.document


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("smi-q-mig.txt", "MIG slices"),
        ("smi-q-vgpu.txt", "virtual GPUs"),
        ("smi-q-cut.txt", "8 GPUs are attached, but 5 are listed"),
        ("smi-table-cut.txt", "cut off: 'NVIDIA A100-SXM...'"),
        ("smi-topo-h100.txt", "which accelerator is gpu (1 node x 8)?"),
        ("rocm-smi-cpx.txt", "parts of GPUs (CPX)"),
        ("rocm-smi-showtopo.txt", "--accelerator mi300x-192gb (or mi325x-256gb"),
        ("amd-smi-topology.txt", "--accelerator mi300x-192gb (or mi325x-256gb"),
        ("amd-smi-list.txt", "which accelerator is gpu (1 node x 8)?"),
        ("nccl-entities.xml", "declares entities"),
        ("nccl-cut.xml", "is no XML"),
    ],
)
def test_what_is_refused_or_asked(name, words):
    assert words in question(name)


def test_a_dump_of_one_job_may_hide_devices():
    text = question("nccl-h100-four.xml")
    assert "how many h100-sxm-80gb has a node? The dump shows the 4 of one job" in text
    assert "--devices 8" in text
    found = imported("nccl-h100-four.xml", devices=8, nodes="n[1-4]")
    (pool,) = pools(found)
    assert (pool["accelerators_per_node"], pool["nodes"], pool["nic"]) == (8, 4, "ib-ndr-400")
    # The four ports are those of the job, not of the node.
    assert pool["nics_per_node"] == 8
    assert "nics_per_node" in assumed(found)
    assert "leave it out" in question("smi-q-h100.txt", devices=4)


def test_ports_of_a_job_dump():
    (pool,) = pools(imported("nccl-h100-ib.xml"))
    assert (pool["nic"], pool["nics_per_node"]) == ("ib-ndr-400", 8)  # the bond is slower
    (pool,) = pools(imported("nccl-h200-roce.xml"))
    assert pool["nic"] == "roce-400"
    found = imported("nccl-efa.xml")
    assert pools(found)[0]["instance"] == "p5.48xlarge"
    assert "instance" in assumed(found)


def test_of_ports_beside_those_of_the_gpus_one_for_each_counts():
    name, text = dump("nccl-h100-ib.xml")
    storage = (
        '<pci busid="0000:2b:00.0" class="0x020700" vendor="0x15b3"><nic>'
        '<net name="mlx5_10" speed="400000"/></nic></pci></cpu></system>'
    )
    found = import_cluster([(name, text.replace("</cpu>\n</system>", storage))])
    assert pools(found)[0]["nics_per_node"] == 8


def test_several_dumps_of_one_node():
    found = imported("smi-topo-h100.txt", "smi-q-h100.txt", nodes="h[01-16]", name="lab")
    (pool,) = pools(found)
    assert found.document["name"] == "lab"
    assert (pool["accelerator"], pool["nodes"], pool["hosts"]) == ("h100-sxm-80gb", 16, "h[01-16]")
    assert pool["nics_per_node"] == 8
    assert "nics_per_node" not in assumed(found)
    assert "4 and 8 GPUs" in question("smi-topo-pcie.txt", "smi-q-h100.txt")


def test_dumps_that_contradict_one_another():
    text = question("smi-topo-nvl.txt", "nccl-h100-ib.xml")
    assert "the inputs do not fit together: PCI device 2330" in text
    text = question("scontrol-nodes.json", "smi-q-h100.txt")
    assert "no node type of the list fits smi-q-h100.txt (8 x NVIDIA H100 80GB HBM3)" in text
    assert "h200 x 8" in text


def test_a_dump_of_one_node_decides_for_the_list():
    """`h100` in nodes of eight is assumed to be SXM; a matrix or a job's dump shows it."""
    for name in ("smi-topo-h100.txt", "smi-q-h100.txt", "nccl-h100-ib.xml", "nccl-h100-four.xml"):
        found = imported("scontrol-tree-nodes.txt", name)
        assert pools(found)[0]["accelerator"] == "h100-sxm-80gb"
        assert "accelerator" not in assumed(found), name
    four = imported("scontrol-tree-nodes.txt", "nccl-h100-four.xml")
    assert pools(four)[0]["nics_per_node"] == 8


def test_a_dump_that_fits_several_types():
    text = dump("scontrol-mixed.txt")[1].replace("gpu:accel:8", "gpu:h200:8")
    text = text.replace("gpu:a100:8", "gpu:h100:8").replace("Features=a100", "Features=h100")
    with pytest.raises(SpecError, match="is of which node type: h100 x 8 or h200 x 8"):
        import_cluster([("nodes", text), dump("smi-topo-h100.txt")])
    # The full dump fits one of them; m1 with four H100 is another kind of node.
    found = import_cluster(
        [("nodes", text), dump("smi-topo-h100.txt"), dump("smi-q-h100.txt")],
        ImportOptions(nodes="a[1-4],x1"),
    )
    assert [p["accelerator"] for p in pools(found)] == ["h100-sxm-80gb", "h200-sxm-141gb"]
