"""The catalogue: figures against the documents they cite, and the rules every entry keeps."""

import datetime
import math
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hardware
from hardware.catalogue import Catalogue, UnknownPartError, load_catalogue, ridge_points
from hardware.parts import Accelerator, Link

DATA = Path(hardware.__file__).parent / "data"
GB, TFLOP = 1e9, 1e12

NAMES_OF_THE_MEASURED_RUNS = [
    *("a100-sxm-80gb", "a800-sxm-80gb", "b200-sxm-180gb", "gb200-186gb", "h100-sxm-80gb"),
    *("h100-sxm-96gb-hbm2e-500w", "h200-sxm-141gb", "tpu-v4", "tpu-v5e", "tpu-v5p"),
    *("v100-sxm-16gb", "v100-sxm-32gb"),
]


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load_catalogue()


def _parts(catalogue: Catalogue) -> list[Accelerator | Link]:
    return [*catalogue.accelerators.values(), *catalogue.links.values()]


@pytest.mark.parametrize("name", NAMES_OF_THE_MEASURED_RUNS)
def test_every_name_of_the_measured_runs_is_a_catalogue_name(catalogue, name):
    assert catalogue.accelerator(name).name == name


@pytest.mark.parametrize(
    ("name", "precision", "tflops"),
    [
        ("a100", "bf16", 312),  # 624 is the sparse figure
        ("a100", "tf32", 156),
        ("h100", "bf16", 989),  # 1979 is sparse
        ("h100", "tf32", 494.5),
        ("h100", "fp8", 1979),  # 3958 is sparse
        ("h800", "bf16", 989),  # only the links were cut
        ("h20", "bf16", 148),
        ("b200", "bf16", 2250),
        ("b200", "fp4", 9000),
        ("gb200", "fp8", 5000),
        ("b300", "int8", 153.5),  # not 4500
        ("mi300x", "fp8", 2610),
        ("mi355x", "fp8", 5000),  # AMD's 10100 is sparse
        ("mi250x", "bf16", 191.5),  # one of the two dies
        ("gaudi3", "bf16", 1677),  # not the white paper's 1835
        ("trainium2", "fp8", 1299),
        ("tpu-v5p", "bf16", 459),
        ("mi455x", "fp8", 10000),  # AMD's 20100 is read as sparse
    ],
)
def test_peaks_are_dense(catalogue, name, precision, tflops):
    assert catalogue.accelerator(name).peak_flops_per_s[precision] == tflops * TFLOP


def test_v100_has_fp16_but_no_bf16(catalogue):
    peaks = catalogue.accelerator("v100").peak_flops_per_s
    assert peaks["fp16"] == 125 * TFLOP
    assert "bf16" not in peaks


@pytest.mark.parametrize(
    ("name", "memory_bytes"),
    [
        ("a100", 85_899_345_920),  # 81920 MiB = 80 GiB, not 80 GB
        ("h100", 85_520_809_984),  # 81559 MiB
        ("h200", 150_754_820_096),
        ("b200", 192_265_846_784),  # sold as 180 GB
        ("gb200", 198_674_743_296),
        ("b300", 288_400_343_040),  # 268.6 GiB, sold as 288 GB
        ("gb300", 298_013_687_808),
        ("mi300x", 206_141_652_992),
        ("tpu-v5p", 95 * 2**30),
    ],
)
def test_memory_is_what_the_driver_reports(catalogue, name, memory_bytes):
    assert catalogue.accelerator(name).memory_bytes == memory_bytes


@pytest.mark.parametrize(
    ("name", "scale_up_gb_per_s", "ring_gb_per_s"),
    [
        ("v100", 150, 120),  # 6 links x 20.0
        ("a100", 300, 240),  # 600 is both ways; ring 12 x 20.0
        ("h100", 450, 370.8),  # 900 is both ways; ring 18 x 20.6
        ("h800", 200, 164.8),  # 8 x 20.6
        ("a800", 200, 160),
        ("b200", 900, 721.8),  # 18 x 40.1
        ("mi300x", 448, 313),
        ("tpu-v5p", 600, 540),  # 1200 is both ways
    ],
)
def test_scale_up_bandwidth_is_one_way(catalogue, name, scale_up_gb_per_s, ring_gb_per_s):
    accelerator = catalogue.accelerator(name)
    assert accelerator.scale_up_bytes_per_s == scale_up_gb_per_s * GB
    assert accelerator.ring_bytes_per_s == ring_gb_per_s * GB


@pytest.mark.parametrize(
    ("name", "bus_gb_per_s", "min_ranks"),
    [("h100", 480, 5), ("h200", 480, 5), ("b200", 850, 6), ("a100", 0, 0), ("h100-pcie", 0, 0)],
)
def test_in_switch_all_reduce(catalogue, name, bus_gb_per_s, min_ranks):
    accelerator = catalogue.accelerator(name)
    assert accelerator.in_switch_all_reduce_bytes_per_s == bus_gb_per_s * GB
    assert accelerator.in_switch_min_ranks == min_ranks


@pytest.mark.parametrize(
    ("name", "power_w"),
    [("v100", 300), ("h100", 700), ("b300", 1100), ("gb300", 1400), ("tpu-v5p", 0)],
)
def test_power_limit_or_zero_where_none_is_published(catalogue, name, power_w):
    assert catalogue.accelerator(name).tdp_w == power_w


@pytest.mark.parametrize(
    ("name", "port_gb_per_s", "reached_gb_per_s"),
    [("ib-hdr-200", 25, 23.5), ("ib-ndr-400", 50, 48.5), ("ib-xdr-800", 100, 97)],
)
def test_nic_speed_counts_bytes_and_one_way(catalogue, name, port_gb_per_s, reached_gb_per_s):
    link = catalogue.link(name)
    assert link.bytes_per_s == port_gb_per_s * GB
    assert link.bytes_per_s * link.efficiency == pytest.approx(reached_gb_per_s * GB)


def test_link_latencies_are_nccl_constants_in_seconds(catalogue):
    nvlink, nic = catalogue.link("nvlink4"), catalogue.link("ndr")
    assert nvlink.ring_base_s == (6.6e-6, 14e-6, 8.4e-6)
    assert nvlink.ring_hop_s == (0.6e-6, 1.9e-6, 3.4e-6)
    assert nvlink.tree_hop_s == (0.6e-6, 1.25e-6, 4.0e-6)
    assert nic.ring_hop_s == (2.7e-6, 4e-6, 14e-6)
    assert nic.tree_hop_s == (5e-6, 8.5e-6, 14e-6)
    assert nvlink.protocol_bytes_per_s == (141e9, 440.4e9, math.inf)
    assert nvlink.protocol_frac == (0.5, 0.92, 1.0)


def test_efa_hop_is_several_times_that_of_infiniband(catalogue):
    assert catalogue.link("efa-400").ring_hop_s[2] > 3 * catalogue.link("ndr").ring_hop_s[2]


def test_500_w_h100_is_slower_than_the_700_w_part(catalogue):
    full, limited = catalogue.accelerator("h100"), catalogue.accelerator("h100-500w")
    assert limited.generation == "hopper-500w"
    assert limited.efficiency.gemm_frac < full.efficiency.gemm_frac
    assert limited.efficiency.power_note


def test_attention_shares_reproduce_the_flash_attention_figures(catalogue):
    """FA2 A100 at 4096: 173 TFLOP/s both passes; FA3 H100 at 8192: 602 forward, within 4 %."""
    a100, h100 = catalogue.accelerator("a100"), catalogue.accelerator("h100")
    forward, backward = a100.efficiency.attention_frac["flash2"]
    both = 3.5 / (1 / forward + 2.5 / backward) * 312
    assert both * 4096 / (4096 + a100.efficiency.attention_seq_half) == pytest.approx(
        173, rel=0.04
    )
    fa3 = h100.efficiency.attention_frac["flash3"][0] * 989
    assert fa3 * 8192 / (8192 + h100.efficiency.attention_seq_half) == pytest.approx(602, rel=0.04)


def test_flash_attention_is_not_offered_on_volta(catalogue):
    assert set(catalogue.accelerator("v100").efficiency.attention_frac) == {"unfused"}


def test_every_accelerator_has_an_unfused_kernel(catalogue):
    kernels = [a.efficiency.attention_frac for a in catalogue.accelerators.values()]
    assert all("unfused" in shares for shares in kernels)


def test_quantities_are_positive_and_shares_at_most_one(catalogue):
    for part in catalogue.accelerators.values():
        efficiency = part.efficiency
        shares = [efficiency.gemm_frac, efficiency.wgrad_frac, efficiency.hbm_frac]
        shares += [share for pair in efficiency.attention_frac.values() for share in pair]
        assert all(0 < share <= 1 for share in shares), part.name
        assert part.n_sms > 0
        assert part.scale_up_domain >= 1
        assert 0 < part.ring_bytes_per_s <= part.scale_up_bytes_per_s, part.name
        assert all(peak > 0 for peak in part.peak_flops_per_s.values())
    for link in catalogue.links.values():
        assert 0 < link.efficiency <= 1
        assert (link.bytes_per_s > 0) == (link.kind == "scale-out")
        assert all(0 < share <= 1 for share in link.protocol_frac)


def test_every_figure_has_a_source_a_date_and_a_status(catalogue):
    for part in _parts(catalogue):
        for origin in part.provenance.values():
            assert len(origin.source) > 20, part.name
            assert datetime.date.fromisoformat(origin.date)
            assert origin.status in ("confirmed", "assumed")


@pytest.mark.parametrize(
    "field",
    [
        *("memory_bytes", "hbm_bytes_per_s", "n_sms", "scale_up_bytes_per_s", "tdp_w"),
        *("ring_bytes_per_s", "scale_up_domain", "efficiency.gemm_frac", "efficiency.hbm_frac"),
        *("efficiency.attention_frac", "efficiency.kernel_latency_s"),
    ],
)
def test_every_accelerator_says_where_a_figure_comes_from(catalogue, field):
    missing = [a.name for a in catalogue.accelerators.values() if field not in a.provenance]
    assert missing == []


def test_every_peak_says_where_it_comes_from(catalogue):
    for part in catalogue.accelerators.values():
        assert {f"peak_flops_per_s.{p}" for p in part.peak_flops_per_s} <= set(part.provenance)


ANNOUNCED = [
    *("rubin", "rubin-ultra", "mi455x", "tpu-8t", "trainium4", "ascend-950dt"),
    *("nvlink6", "nvlink7", "ualink", "ib-gdr-1600", "roce-1600", "uec-800"),
]


@pytest.mark.parametrize("name", ANNOUNCED)
def test_no_figure_of_an_announced_part_is_confirmed(catalogue, name):
    links = {key: link for link in catalogue.links.values() for key in (link.name, *link.aliases)}
    part = links.get(name) or catalogue.accelerator(name)
    assert part.status == "assumed"
    assert {origin.status for origin in part.provenance.values()} == {"assumed"}


def test_parts_that_ship_are_not_announced(catalogue):
    announced = {part.name for part in _parts(catalogue) if part.status == "assumed"}
    keys = {catalogue.accelerator(name).name for name in ANNOUNCED[:6]}
    assert announced == keys | set(ANNOUNCED[6:])


@pytest.mark.parametrize(
    ("name", "n_ports", "gb_per_s"),
    [("vera-rubin-nvl72-tray", 8, 200), ("helios-tray", 12, 300), ("hgx-b300", 8, 100)],
)
def test_ports_of_announced_trays(catalogue, name, n_ports, gb_per_s):
    """Rubin: 8 x 800 Gb/s over four packages is 200 GB/s each; Helios: 12 x 800 Gb/s is 300."""
    tray = catalogue.platform(name)
    assert tray.nics_per_node == n_ports
    port = catalogue.link(tray.nic).bytes_per_s
    assert port * n_ports / tray.devices_per_node == gb_per_s * GB


@pytest.mark.parametrize(
    ("name", "gb_per_s"),
    [("roce-800", 100), ("uec-800", 100), ("ib-gdr-1600", 200), ("roce-1600", 200)],
)
def test_ports_of_800_and_1600_gigabits(catalogue, name, gb_per_s):
    assert catalogue.link(name).bytes_per_s == gb_per_s * GB


def test_sources_do_not_name_our_working_notes(catalogue):
    text = " ".join(o.source for part in _parts(catalogue) for o in part.provenance.values())
    assert not re.search(r"/work/|physics\.md|hardware_facts|\[mem\]", text)


def test_every_link_that_an_accelerator_names_exists(catalogue):
    for name, part in catalogue.accelerators.items():
        assert catalogue.links[part.scale_up_link].kind == "scale-up"
        assert catalogue.links[catalogue.typical_nics[name].link].kind == "scale-out"


def test_names_and_aliases_are_unique_lower_case(catalogue):
    for group in (catalogue.accelerators, catalogue.links):
        names = [key for part in group.values() for key in (part.name, *part.aliases)]
        assert len(names) == len(set(names))
        assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in names)


@pytest.mark.parametrize("file", sorted(DATA.glob("*.yaml")), ids=lambda file: file.stem)
def test_no_entry_stands_twice_in_a_file(file):
    """YAML keeps the last of two equal keys without a word."""
    entries = re.findall(r"^([\w-]+):", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(entries) == len(set(entries))


@pytest.mark.parametrize("spelling", ["h100", "H100", "H100-SXM-80GB", "h100_sxm", " H100 80GB "])
def test_aliases_ignore_case_blanks_and_underscores(catalogue, spelling):
    assert catalogue.accelerator(spelling) is catalogue.accelerators["h100-sxm-80gb"]


def test_unknown_accelerator_says_what_to_change(catalogue):
    with pytest.raises(UnknownPartError, match="Did you mean") as caught:
        catalogue.accelerator("H1000")
    assert caught.value.name == "H1000"
    assert "h100" in caught.value.suggestions
    assert "planner catalog" in str(caught.value)


def test_unknown_link_without_a_near_name_has_no_suggestion(catalogue):
    with pytest.raises(UnknownPartError, match="No link in the catalogue") as caught:
        catalogue.link("zzzzzz")
    assert caught.value.suggestions == ()


def test_unknown_part_error_crosses_a_process_boundary():
    error = UnknownPartError("link", "x", ("y",))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_accelerator_crosses_a_process_boundary(catalogue):
    h100 = catalogue.accelerator("h100")
    assert pickle.loads(pickle.dumps(h100)) == h100


def test_ridge_points_use_dense_peak_over_one_way_bandwidth(catalogue):
    """H100: 989e12 / 3.35e12, / 450e9, / 50e9. A100: 312e12 / 300e9 (520 would be duplex)."""
    h100, a100 = catalogue.accelerator("h100"), catalogue.accelerator("a100")
    ridges = ridge_points(h100, [catalogue.link("ib-ndr-400")])
    assert [point.level for point in ridges] == ["hbm", "scale-up", "scale-out"]
    assert [round(point.flops_per_byte) for point in ridges] == [295, 2198, 19780]
    assert ridge_points(a100)[1].flops_per_byte == pytest.approx(1040)


def test_ridge_points_of_the_typical_platform(catalogue):
    """Gaudi2 has three ports of 12.5 GB/s: 432e12 / 37.5e9 = 11520."""
    nic = catalogue.typical_nics["gaudi2-96gb"]
    gaudi = catalogue.accelerator("gaudi2")
    ridges = ridge_points(gaudi, [catalogue.link(nic.link)], nic.n_per_device)
    assert ridges[-1].flops_per_byte == pytest.approx(11520)


def test_ridge_points_fall_back_to_the_precision_a_part_has(catalogue):
    assert ridge_points(catalogue.accelerator("v100"))[0].precision == "fp16"
    assert ridge_points(catalogue.accelerator("h100"), precision="fp8")[0].flops_per_byte == (
        pytest.approx(1979 / 3.35)
    )


def test_catalogue_is_read_once_and_has_a_stable_hash(catalogue):
    assert load_catalogue() is catalogue
    assert re.fullmatch(r"[0-9a-f]{64}", catalogue.content_hash)
    load_catalogue.cache_clear()
    assert load_catalogue().content_hash == catalogue.content_hash


def test_importing_the_catalogue_does_not_import_yaml():
    code = "import sys, hardware.catalogue; print('yaml' in sys.modules)"
    root = Path(hardware.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True
    )
    assert done.stdout.strip() == "False"


def test_every_source_is_used():
    sources = re.findall(r"^([\w-]+):", (DATA / "sources.yaml").read_text("utf-8"), re.MULTILINE)
    text = "".join(file.read_text("utf-8") for file in DATA.glob("*.yaml"))
    assert [tag for tag in sources if not re.search(rf"source: {tag}\b(?!-)", text)] == []


def test_links_between_peers_are_as_many_as_peers(catalogue):
    mesh = {name: part for name, part in catalogue.accelerators.items() if part.n_peer_links}
    assert {"mi300x-192gb", "mi325x-256gb", "mi350x-288gb", "mi355x-288gb"} <= set(mesh)
    for part in mesh.values():
        if part.generation != "volta":  # a hybrid cube mesh, not one link a peer
            assert part.n_peer_links == part.scale_up_domain - 1
        assert part.pair_bytes_per_s == part.ring_bytes_per_s / part.n_peer_links


def test_racks_hold_whole_nodes(catalogue):
    racks = [p for p in catalogue.accelerators.values() if p.scale_up_domain > p.devices_per_node]
    assert {"gb200-186gb", "gb300-288gb"} <= {part.name for part in racks}
    assert all(part.scale_up_domain % part.devices_per_node == 0 for part in racks)


def test_platforms_say_where_their_ports_come_from(catalogue):
    assert len(catalogue.platforms) > 30
    for platform in catalogue.platforms.values():
        assert {"devices_per_node", "nics_per_node"} <= set(platform.provenance)
        assert catalogue.links[platform.nic].kind == "scale-out"
        part = catalogue.accelerators[platform.accelerator]
        if part.scale_up_link.startswith("pcie"):  # a machine has the slots that it has
            assert platform.devices_per_node <= part.scale_up_domain
        else:
            assert platform.devices_per_node == part.devices_per_node


def test_only_infiniband_from_hdr_on_sums_in_its_switches(catalogue):
    summing = {name for name, link in catalogue.links.items() if link.sums_in_switch}
    assert summing == {"ib-hdr-200", "ib-ndr-400", "ib-xdr-800", "ib-gdr-1600"}
