"""Which catalogue part a name, a figure or an id means."""

import pytest

from hardware.catalogue import load_catalogue
from hardware.device_names import load_device_names, plain_name
from planner.specs.importers.clusters.accelerators import identify, is_mig, is_vgpu
from planner.specs.importers.clusters.facts import Evidence

MIB = 2.0**20


def match(evidence: Evidence, n: int = 8):
    return identify(evidence, n, load_catalogue(), {})


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("nvidia_h100_80gb_hbm3", "h100-sxm-80gb"),  # Slurm, AutoDetect=nvml
        ("NVIDIA-H100-80GB-HBM3", "h100-sxm-80gb"),  # GPU feature discovery
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("NVIDIA H100 PCIe", "h100-pcie-80gb"),
        ("NVIDIA H100 NVL", "h100-nvl-94gb"),
        ("h100-sxm-80gb", "h100-sxm-80gb"),
        ("h100_sxm", "h100-sxm-80gb"),
        ("h100sxm", "h100-sxm-80gb"),
        ("dgxh100", "h100-sxm-80gb"),
        ("hgx_h200", "h200-sxm-141gb"),
        ("H200", "h200-sxm-141gb"),
        ("NVIDIA-H200-NVL", "h200-nvl-141gb"),
        ("h20", "h20-sxm-96gb"),
        ("a100-sxm4-80gb", "a100-sxm-80gb"),
        ("NVIDIA-A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA-A100-80GB-PCIe", "a100-pcie-80gb"),
        ("nvidia_a100-sxm4-80gb", "a100-sxm-80gb"),
        ("Tesla-V100-SXM2-32GB", "v100-sxm-32gb"),
        ("tesla_v100-sxm2-16gb", "v100-sxm-16gb"),
        ("NVIDIA-GH200-480GB", "gh200-96gb"),
        ("gb200", "gb200-186gb"),
        ("NVIDIA GB300", "gb300-288gb"),
        ("nvidia_b200", "b200-sxm-180gb"),
        ("NVIDIA-B300-SXM6-AC", "b300-sxm-288gb"),
        ("mi300x", "mi300x-192gb"),
        ("AMD_Instinct_MI300X_OAM", "mi300x-192gb"),
        ("AMD Instinct MI355X", "mi355x-288gb"),
        ("L40S", "l40s-48gb"),
        ("rtxproserver6000", "rtx-pro-6000-96gb"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-96gb"),
    ],
)
@pytest.mark.parametrize("n", [1, 4, 8])
def test_names_that_say_it_all(name, part, n):
    found = match(Evidence(name), n)
    assert (found.part, found.assumed, found.elsewhere) == (part, False, False)


@pytest.mark.parametrize(
    ("name", "n", "part"),
    [
        ("h100", 8, "h100-sxm-80gb"),
        ("a100_80gb", 8, "a100-sxm-80gb"),
        ("nvidia-h100-mega-80gb", 8, "h100-sxm-80gb"),
    ],
)
def test_family_names_are_assumed_where_one_form_comes_in_such_nodes(name, n, part):
    found = match(Evidence(name), n)
    assert (found.part, found.assumed) == (part, True)
    assert found.why.startswith(name)


@pytest.mark.parametrize(
    ("name", "n", "candidates"),
    [
        ("h100", 4, {"h100-sxm-80gb", "h100-pcie-80gb", "h100-nvl-94gb"}),
        ("h100", 2, {"h100-sxm-80gb", "h100-pcie-80gb", "h100-nvl-94gb"}),
        ("a100", 8, {"a100-sxm-80gb", "a100-sxm-40gb", "a100-pcie-80gb"}),
        ("nvidia-tesla-a100", 8, {"a100-sxm-80gb", "a100-sxm-40gb", "a100-pcie-80gb"}),
        ("a100_80", 4, {"a100-sxm-80gb", "a100-pcie-80gb"}),
        ("v100", 8, {"v100-sxm-16gb", "v100-sxm-32gb"}),
        ("gh200", 4, {"gh200-96gb", "gh200-144gb"}),
        ("a800", 8, {"a800-sxm-80gb"}),  # PCIe cards are not in the catalogue
        ("h100_94gb", 8, {"h100-nvl-94gb", "h100-sxm-96gb-hbm2e-500w"}),
    ],
)
def test_family_names_that_have_to_be_asked_for(name, n, candidates):
    found = match(Evidence(name), n)
    assert (found.part, found.elsewhere) == ("", False)
    assert set(found.candidates) == candidates


@pytest.mark.parametrize("name", ["", "gpu", "hopper", "accel", "h1000", "xh100x"])
def test_names_that_say_nothing(name):
    found = match(Evidence(name))
    assert (found.part, found.elsewhere) == ("", False)
    assert len(found.candidates) > 20


@pytest.mark.parametrize(
    "name",
    [
        "a16",
        "NVIDIA A30",
        "rtx_2080ti",
        "rtx 3080",
        "NVIDIA-A10",
        "a40",
        "NVIDIA L40",
        "l20",
        "p100",
        "AMD Instinct MI100",
        "mi250",
        "NVIDIA-GeForce-RTX-4080",
        "A100-PCIE-40GB",
        "v100s",
        "Tesla V100-PCIE-16GB",
        "H20-3e",
        "quadro_rtx_6000",
        "a4000",
        "NVIDIA H800 PCIe",
    ],
)
def test_accelerators_that_the_catalogue_does_not_hold(name):
    assert match(Evidence(name)).elsewhere


@pytest.mark.parametrize(
    ("evidence", "n", "part", "assumed"),
    [
        (Evidence("", labels=("h100", "ib")), 8, "h100-sxm-80gb", True),
        (Evidence("", labels=("nvidia_h100_80gb_hbm3",)), 4, "h100-sxm-80gb", False),
        (Evidence("h100", labels=("pcie",)), 8, "h100-pcie-80gb", False),
        (Evidence("h100", labels=("80gb", "nvlink")), 4, "h100-sxm-80gb", False),
        (Evidence("a100", labels=("sxm4", "40gb")), 8, "a100-sxm-40gb", False),
        (Evidence("a100", labels=("NVIDIA A100-SXM4-80GB",)), 8, "a100-sxm-80gb", False),
        (Evidence("h100", n_links=frozenset({18, 126})), 4, "h100-sxm-80gb", False),
        (Evidence("h100", memory_bytes=95830 * MIB), 4, "h100-nvl-94gb", False),
        (
            Evidence("h100", memory_bytes=97280 * MIB, n_links=frozenset({18})),
            8,
            "h100-sxm-96gb-hbm2e-500w",
            False,
        ),
        (Evidence("a100", memory_bytes=40536 * MIB), 8, "a100-sxm-40gb", True),
        (
            Evidence("", memory_bytes=81559 * MIB, capability="9.0", n_links=frozenset({18})),
            8,
            "h100-sxm-80gb",
            False,
        ),
        (Evidence("", pci_id="2335"), 8, "h200-sxm-141gb", False),
        (Evidence("", pci_id="74a1"), 8, "mi300x-192gb", False),
    ],
)
def test_other_words_and_figures_decide(evidence, n, part, assumed):
    found = match(evidence, n)
    assert (found.part, found.assumed) == (part, assumed)


@pytest.mark.parametrize(
    "evidence",
    [
        Evidence("nvidia_h100_80gb_hbm3", memory_bytes=143771 * MIB),
        Evidence("a100", labels=("NVIDIA H100 80GB HBM3",)),
        Evidence("NVIDIA H100 PCIe", n_links=frozenset({18})),
        Evidence("h100", pci_id="2330", capability="8.0"),
    ],
)
def test_contradictions_are_not_resolved(evidence):
    found = match(evidence)
    assert (found.part, found.contradiction) == ("", True)


def test_features_with_two_families_decide_nothing():
    assert match(Evidence("", labels=("a100", "h100"))).part == ""


@pytest.mark.parametrize("name", ["nvidia_a100_1g.5gb", "h100_2g.20gb", "nvidia_b200_2g.45gb"])
def test_slices(name):
    assert is_mig(name)
    assert not is_mig(name.split("_")[0])


def test_virtual_gpus():
    assert is_vgpu("GRID A100-40C")
    assert is_vgpu("NVIDIA H100-80C")
    assert not is_vgpu("NVIDIA H100 80GB HBM3")
    assert not is_vgpu("Tesla V100-SXM2-32GB")


def test_every_part_of_the_two_makers_has_a_name():
    catalogue = load_catalogue()
    named = {form.part for form in load_device_names().forms if form.part}
    ours = {p.name for p in catalogue.accelerators.values() if p.vendor in ("NVIDIA", "AMD")}
    assert named <= set(catalogue.accelerators)
    # Announced: no driver names them yet.
    assert ours - named == {"rubin-288gb", "rubin-ultra-1024gb", "mi455x-432gb"}


def test_names_and_ids_are_unique():
    forms = load_device_names().forms
    for values in ([x for f in forms for x in f.names], [x for f in forms for x in f.pci_ids]):
        assert len(values) == len(set(values))
    assert all(plain_name(name) == name for form in forms for name in form.names)
    assert all(len(i) == 4 and int(i, 16) for form in forms for i in form.pci_ids)


def test_links_are_those_of_the_catalogue():
    """NVLink 2 and 3 have 25 GB/s one-way a link, NVLink 4 25, NVLink 5 50."""
    rate = {"nvlink2": 25e9, "nvlink3": 25e9, "nvlink4": 25e9, "nvlink5": 50e9}
    parts = load_catalogue().accelerators
    checked = 0
    for form in load_device_names().forms:
        part = parts.get(form.part)
        if part and part.scale_up_link in rate:
            assert form.n_nvlinks * rate[part.scale_up_link] == part.scale_up_bytes_per_s
            checked += 1
    assert checked > 10
