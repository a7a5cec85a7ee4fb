"""Collectives and placement: alpha-beta forms by hand, published tables, choice of algorithm."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.comm.collectives import (
    ALGORITHMS,
    chosen_algorithm,
    collective_s,
    inside_bytes_per_s,
    nvls_all_reduce_s,
    pat_all_gather_s,
    point_to_point_s,
    ring_all_gather_s,
    ring_all_reduce_s,
    sharp_all_reduce_s,
    tree_all_reduce_s,
)
from costmodels.comm.placement import NON_RAIL_HOP_S, Group, place_group, tier_names
from costmodels.examples import toy_accelerator
from hardware.parts import Fabric, Pool, Tier

KIB, MIB, GIB = 2**10, 2**20, 2**30
US = 1e-6


def together(n: int, pool: Pool, stride: int = 1, fabric: Fabric | None = None) -> Group:
    return place_group(n, stride, pool, fabric or Fabric())


# Alpha-beta forms. Toy node: base 10 us, hop 2 us and 250 GB/s inside; hop 5 us, 50 GB/s a NIC.


@pytest.mark.parametrize(
    ("collective", "latency_us", "seconds"),
    [
        # 1 GB on 8 ranks of one domain: 7/8 GB over 250 GB/s = 3.5 ms.
        ("all-reduce", 10 + 2 * 7 * 2, 7.0e-3),
        ("all-gather", 10 + 7 * 2, 3.5e-3),
        ("reduce-scatter", 10 + 7 * 2, 3.5e-3),
        ("all-to-all", 10 + 7 * 2, 3.5e-3),
        ("broadcast", 10 + 7 * 2, 4.0e-3),
        ("reduce", 10 + 7 * 2, 4.0e-3),
        ("gather", 10, 3.5e-3),
        ("scatter", 10, 3.5e-3),
    ],
)
def test_one_domain_by_hand(toy_pool, collective, latency_us, seconds):
    pool = toy_pool()
    found = collective_s(collective, 1e9, together(8, pool), pool).item()
    assert found == pytest.approx(latency_us * US + seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("collective", "latency_us", "seconds"),
    [
        # 16 ranks on two nodes: 14 hops inside, 1 outside; the ring may use 8 NICs = 400 GB/s,
        # so NVLink's 250 is the limit: 15/16 GB over it = 3.75 ms.
        ("all-reduce", 10 + 2 * (14 * 2 + 5), 7.5e-3),
        ("all-gather", 10 + 14 * 2 + 5, 3.75e-3),
        ("reduce-scatter", 10 + 14 * 2 + 5, 3.75e-3),
        ("broadcast", 10 + 14 * 2 + 5, 4.0e-3),
        ("reduce", 10 + 14 * 2 + 5, 4.0e-3),
        # Half of all pairs are on the other node: 8/16 GB over one NIC = 10 ms.
        ("all-to-all", 10 + 7 * 2 + 8 * 5, 10e-3),
        # The root's own NIC takes all but its own part.
        ("gather", 10, 15 / 16 / 50),
        ("scatter", 10, 15 / 16 / 50),
    ],
)
def test_two_nodes_by_hand(toy_pool, collective, latency_us, seconds):
    pool = toy_pool(2)
    found = collective_s(collective, 1e9, together(16, pool), pool).item()
    assert found == pytest.approx(latency_us * US + seconds, rel=1e-12)


def test_the_table_holds_the_eight_collectives():
    assert sorted(ALGORITHMS) == [
        *("all-gather", "all-reduce", "all-to-all", "broadcast"),
        *("gather", "reduce", "reduce-scatter", "scatter"),
    ]


def test_tree_by_hand(toy_pool):
    # Two nodes: base + 2 (7 hops inside + log2(2) outside) + 2 n / (0.92 * 250 GB/s).
    pool = toy_pool(2)
    found = tree_all_reduce_s(1e9, together(16, pool), pool).item()
    # LL128 with the same wire would be slower (120/128), LL 3.8 times slower.
    assert found == pytest.approx((10 + 2 * (14 + 5)) * US + 2 / (0.92 * 250), rel=1e-12)


def test_tree_loses_bandwidth_with_the_low_latency_protocols(toy_pool, toy_link):
    # A base of 1 s rules out the other two: LL at 1/3.8; LL128 at 7/9 on one node, 120/128 on two.
    def tree(protocol: int, nodes: int) -> float:
        base = tuple(0.0 if p == protocol else 1.0 for p in range(3))
        pool = toy_pool(nodes, scale_up=toy_link("l", "scale-up", tree_base_s=base))
        return tree_all_reduce_s(1e9, together(8 * nodes, pool), pool).item()

    wire = 0.92 * 250
    assert tree(0, 1) == pytest.approx(28 * US + 2 / wire * 3.8, rel=1e-12)
    assert tree(1, 1) == pytest.approx(28 * US + 2 / wire * 9 / 7, rel=1e-12)
    assert tree(1, 2) == pytest.approx(38 * US + 2 / wire * 128 / 120, rel=1e-12)
    assert tree(2, 2) == pytest.approx(38 * US + 2 / wire, rel=1e-12)


def test_in_switch_all_reduce_by_hand(toy_pool):
    part = toy_accelerator(in_switch_all_reduce_bytes_per_s=400e9, in_switch_min_ranks=6)
    pool = toy_pool(4, accelerator=part)
    inside = nvls_all_reduce_s(1e9, together(8, pool), pool).item()
    assert inside == pytest.approx(25 * US + 1.75 / 400, rel=1e-12)
    # Four domains: 25 + 2 log2(4) 18 us; 2 * 3/4 * 1 GB over 8 NICs = 3.75 ms < 4.375 ms inside.
    across = nvls_all_reduce_s(1e9, together(32, pool), pool).item()
    assert across == pytest.approx((25 + 4 * 18) * US + 1.75 / 400, rel=1e-12)
    slow = replace(pool, nics_per_node=4)  # 200 GB/s: now the network decides
    across = nvls_all_reduce_s(1e9, together(32, slow), slow).item()
    assert across == pytest.approx((25 + 4 * 18) * US + 1.5 / 200, rel=1e-12)
    nvls = ALGORITHMS["all-reduce"]["hierarchical"]
    assert nvls.time_s(1e9, together(5, pool), pool).item() == math.inf


def test_logarithmic_all_gather_is_for_one_rank_per_domain(toy_pool):
    pool = toy_pool(16)
    # 16 ranks, one a node: 8 + log2(16) 5/3.5 + 2.8 * 16 us; 15/16 GB over 0.75 * 50 GB/s.
    found = pat_all_gather_s(1e9, together(16, pool, stride=8), pool).item()
    latency = 8 + 4 * 5 / 3.5 + 2.8 * 16
    assert found == pytest.approx(latency * US + 15 / 16 / 37.5, rel=1e-12)
    pat = ALGORITHMS["all-gather"]["logarithmic"]
    assert pat.time_s(1e9, together(16, pool), pool).item() == math.inf
    assert pat.time_s(1e9, together(1, pool, stride=8), pool).item() == 0.0


def test_point_to_point_by_hand(toy_pool):
    pool = toy_pool(2)
    inside = point_to_point_s(1e9, together(8, pool), pool).item()
    assert inside == pytest.approx(4 * US + 1 / 250, rel=1e-12)
    # One message has one NIC, whatever the group.
    across = point_to_point_s(1e9, together(16, pool), pool).item()
    assert across == pytest.approx(20 * US + 1 / 50, rel=1e-12)
    assert point_to_point_s(1e9, together(1, pool), pool).item() == 0.0


def test_ring_latency_grows_by_the_plateau_on_several_nodes_with_simple(toy_pool, toy_link):
    only_simple = {"protocol_bytes_per_s": (1.0, 1.0, math.inf)}
    pool = toy_pool(
        2,
        scale_up=toy_link("l", "scale-up", **only_simple),
        nic=toy_link("n", "scale-out", **only_simple),
    )
    found = ring_all_reduce_s(1e9, together(16, pool), pool).item()
    assert found == pytest.approx(1.4 * 76 * US + 7.5e-3, rel=1e-12)
    gather = ring_all_gather_s(1e9, together(16, pool), pool).item()
    assert gather == pytest.approx(43 * US + 3.75e-3, rel=1e-12)


def test_a_lockstep_link_is_paid_by_every_rank_of_a_ring(toy_pool, toy_link):
    # 16 ranks on two nodes, 1 GB: base 10 us, then 14 hops inside (2 us) and one outside (5 us),
    # or 15 of 5 us.
    pool = toy_pool(2)
    slow = replace(pool, nic=replace(pool.nic, lockstep=True))
    times = [ring_all_gather_s(1e9, together(16, p), p).item() for p in (pool, slow)]
    assert times[1] - times[0] == pytest.approx(14 * (5 - 2) * US)
    inside = [ring_all_gather_s(1e9, together(8, p), p).item() for p in (pool, slow)]
    assert inside[0] == inside[1]


def test_all_gathers_over_efa_as_published(real_pool):
    # Ultra-Scale Playbook, 256 MB over 1 to 64 nodes of p5: 250, 185, 119, 69, 55, 28, 11 GB/s
    # of bus bandwidth. Reached: within 40 % from two nodes on; without the hop per rank the last
    # would be 17 times too fast.
    for n_nodes, measured in (
        (2, 184.6),
        (4, 119.0),
        (8, 69.0),
        (16, 55.0),
        (32, 28.0),
        (64, 11.0),
    ):
        pool = real_pool("h100-sxm-80gb", n_nodes, "efa-400")
        ranks = 8 * n_nodes
        time_s = collective_s("all-gather", 256e6, together(ranks, pool), pool).item()
        bus = 256e6 * (ranks - 1) / ranks / time_s / 1e9
        assert bus == pytest.approx(measured, rel=0.4)


def test_the_protocol_follows_the_size(toy_pool, toy_link):
    # LL: 1 us hops, half the wire; LL128: 2 us, 0.9; Simple: 5 us, all of it.
    link = toy_link(
        "l",
        "scale-up",
        ring_base_s=(0.0,) * 3,
        ring_hop_s=(1e-6, 2e-6, 5e-6),
        protocol_frac=(0.5, 0.9, 1.0),
    )
    pool = toy_pool(scale_up=link)

    def gather(size: float) -> float:
        return ring_all_gather_s(size, together(8, pool), pool).item()

    assert gather(1e3) == pytest.approx(7e-6 + 875 / 125e9, rel=1e-12)
    assert gather(5e6) == pytest.approx(14e-6 + 4.375e6 / 225e9, rel=1e-12)
    assert gather(1e9) == pytest.approx(35e-6 + 0.875 / 250, rel=1e-12)


# Choice of algorithm.


def test_ring_for_large_tree_for_small_across_many_nodes(real_pool):
    pool = real_pool("a100-sxm-80gb", 64, "ib-hdr-200")
    group = together(512, pool)
    assert chosen_algorithm("all-reduce", MIB, group, pool).name == "tree"
    assert chosen_algorithm("all-reduce", 8 * GIB, group, pool).name == "ring"


def test_in_switch_sums_where_the_part_has_them_and_the_group_is_large_enough(real_pool):
    h200 = real_pool("h200-sxm-141gb")
    assert chosen_algorithm("all-reduce", 64 * MIB, together(8, h200), h200).name == "hierarchical"
    # Picked from 5 GPUs on H200, from 6 on B200 (stas00/ml-engineering).
    assert chosen_algorithm("all-reduce", 64 * MIB, together(4, h200), h200).name == "ring"
    b200 = real_pool("b200-sxm-180gb")
    assert chosen_algorithm("all-reduce", 64 * MIB, together(4, b200), b200).name == "ring"
    a100 = real_pool("a100-sxm-80gb")
    assert chosen_algorithm("all-reduce", 64 * MIB, together(8, a100), a100).name == "ring"


def test_gathers_of_some_megabytes_of_one_rank_per_node_are_logarithmic(real_pool):
    # Below, a ring with LL has the lower latency (2.7 against 2.8 us a rank); above, the wire.
    pool = real_pool("h100-sxm-80gb", 64)
    group = together(64, pool, stride=8)
    for name in ("all-gather", "reduce-scatter"):
        assert chosen_algorithm(name, 4 * MIB, group, pool).name == "logarithmic"
        assert chosen_algorithm(name, KIB, group, pool).name == "ring"
        assert chosen_algorithm(name, 8 * GIB, group, pool).name == "ring"


def test_equal_times_are_broken_by_name(toy_pool):
    pool = toy_pool()
    assert chosen_algorithm("all-reduce", 1e6, together(1, pool), pool).name == "hierarchical"
    assert chosen_algorithm("gather", 1e6, together(8, pool), pool).name == "direct"


# Published tables, microseconds by size of the whole tensor.
# Source: nccl-tests style runs of aiconfigurator, NCCL 2.29.2 (A100: 2.27.3), hardware_facts 5.3.

SIZES = [256 * KIB, 2 * MIB, 8 * MIB, 32 * MIB, 128 * MIB, 512 * MIB]
ONE_NODE = {
    ("all-reduce", 8, "a100-sxm-80gb"): [28, 54, 128, 367, 1169, 4226],
    ("all-reduce", 8, "h100-sxm-80gb"): [19, 38, 79, 200, 579, 2111],
    ("all-reduce", 8, "h200-sxm-141gb"): [21, 37, 78, 197, 565, 2040],
    ("all-reduce", 4, "h200-sxm-141gb"): [12, 27, 60, 172, 612, 2311],
    ("all-reduce", 2, "h200-sxm-141gb"): [9, 27, 46, 139, 463, 1704],
    ("all-gather", 8, "a100-sxm-80gb"): [21, 33, 74, 218, 660, 2288],
    ("all-gather", 8, "h200-sxm-141gb"): [15, 24, 43, 123, 380, 1395],
    ("all-gather", 4, "h200-sxm-141gb"): [9, 19, 44, 105, 344, 1272],
    ("reduce-scatter", 8, "a100-sxm-80gb"): [18, 34, 79, 210, 624, 2207],
    ("reduce-scatter", 8, "h200-sxm-141gb"): [13, 20, 45, 112, 376, 1393],
}
ON_B200 = {
    ("all-reduce", 8, "b200-sxm-180gb"): [28, 32, 72, 168, 398, 1335],
    ("all-reduce", 4, "b200-sxm-180gb"): [17, 26, 85, 123, 342, 1271],
    ("all-gather", 8, "b200-sxm-180gb"): [19, 24, 44, 114, 207, 761],
    ("reduce-scatter", 8, "b200-sxm-180gb"): [18, 21, 44, 107, 208, 766],
}
ALL_TO_ALL = {
    ("all-to-all", 8, "a100-sxm-80gb"): [18, 39, 68, 191, 640, 2314],
    ("all-to-all", 8, "h200-sxm-141gb"): [14, 18, 40, 124, 404, 1510],
    ("all-to-all", 8, "b200-sxm-180gb"): [17, 22, 35, 89, 237, 834],
}


def errors(table: dict, real_pool, smallest: int) -> list[float]:
    """Model over measurement less one, from `smallest` bytes up."""
    found = []
    for (collective, n, part), microseconds in table.items():
        pool = real_pool(part)
        group = together(n, pool)
        for size, measured in zip(SIZES, microseconds, strict=True):
            if size >= smallest:
                ours = collective_s(collective, size, group, pool).item()
                found.append(ours / (measured * US) - 1)
    return found


def test_one_node_of_a100_h100_and_h200_against_published_tables(real_pool):
    # Reached: from 2 MiB 13 % in the median and 30 % at worst (the in-switch all-reduce of 8 to
    # 32 MiB), from 128 MiB 9 % and 21 %; 36 % at 256 KiB. The model is too fast nearly everywhere.
    middle = errors(ONE_NODE, real_pool, 2 * MIB)
    assert np.median(np.abs(middle)) < 0.15
    assert np.max(np.abs(middle)) < 0.31
    large = errors(ONE_NODE, real_pool, 128 * MIB)
    assert np.median(np.abs(large)) < 0.10
    assert np.max(np.abs(large)) < 0.22
    assert np.max(np.abs(errors(ONE_NODE, real_pool, 256 * KIB))) < 0.37


def test_one_node_of_b200_against_published_tables(real_pool):
    # NCCL on B200 changes protocol between 4 and 32 MiB and loses twofold there, which a
    # latency-bandwidth line misses: up to 47 % too fast. From 128 MiB 24 %, at 512 MiB 15 %.
    assert np.max(np.abs(errors(ON_B200, real_pool, 2 * MIB))) < 0.48
    assert np.max(np.abs(errors(ON_B200, real_pool, 128 * MIB))) < 0.25
    assert np.max(np.abs(errors(ON_B200, real_pool, 512 * MIB))) < 0.16


def test_all_to_all_against_published_tables(real_pool):
    # Direct exchange at ring rate: always too fast, 48 % at 2 MiB on A100, 26 % from 128 MiB.
    found = errors(ALL_TO_ALL, real_pool, 2 * MIB)
    assert min(found) > -0.50
    assert max(found) < 0.0
    assert min(errors(ALL_TO_ALL, real_pool, 128 * MIB)) > -0.27


# All-reduce bus bandwidth across nodes of 8 H100, one 400 Gb/s NIC each, GB/s (hardware_facts
# 5.4): ring or tree measured up to 64 nodes, NVLSTree on 4 to 1024.
BUS_SIZES = [16 * MIB, 64 * MIB, 256 * MIB, 512 * MIB, GIB, 4 * GIB, 16 * GIB]
ACROSS_NODES = [
    (4, [115, 217, 275, 315, 337, 352, 360]),
    (16, [72, 162, 265, 303, 320, 345, 355]),
    (64, [45, 137, 247, 290, 303, 332, 350]),
    (4, [126, 230, 314, 338, 351, 366, 379]),
    (16, [72, 176, 297, 330, 350, 371, 380]),
    (64, [57, 150, 265, 308, 340, 359, 372]),
    (128, [48, 125, 255, 299, 332, 358, 372]),
    (1024, [33, 107, 217, 268, 307, 347, 367]),
]


def bus_bandwidth_error(nodes: int, size: int, measured: float, real_pool) -> float:
    pool = real_pool("h100-sxm-80gb", nodes)
    n = 8 * nodes
    ours = collective_s("all-reduce", size, together(n, pool), pool).item()
    return 2 * (n - 1) / n * size / ours / (measured * 1e9) - 1


def test_all_reduce_across_h100_nodes_against_published_tables(real_pool):
    # The model is an upper bound on the measured bandwidth (no congestion, none of NCCL's losses
    # to chunking and its own correction of trees): too fast by 136 % in the median at 16 MiB, 67 %
    # at 64, 36 % at 256, 21 % at 1 GiB, 10 % at 16 GiB. Worst are 4 nodes with a ring: 39 to 67 %
    # from 256 MiB, because the model takes the in-switch sum that those runs did not use.
    by_size = {
        size: [bus_bandwidth_error(nodes, size, row[i], real_pool) for nodes, row in ACROSS_NODES]
        for i, size in enumerate(BUS_SIZES)
    }
    assert min(min(found) for found in by_size.values()) > 0.0
    for size, median, worst in [
        (16 * MIB, 1.6, 2.5),
        (64 * MIB, 0.8, 1.1),
        (256 * MIB, 0.45, 0.7),
        (512 * MIB, 0.3, 0.55),
        (GIB, 0.25, 0.5),
        (4 * GIB, 0.2, 0.45),
        (16 * GIB, 0.15, 0.40),
    ]:
        assert np.median(by_size[size]) < median
        assert max(by_size[size]) < worst


def test_vendor_plateaus(real_pool):
    # NVIDIA S72583: all-reduce on 8 GPUs: A100 232, H100 480 in the switch, B200 850 GB/s.
    for part, plateau in [("a100-sxm-80gb", 232), ("h100-sxm-80gb", 480), ("b200-sxm-180gb", 850)]:
        pool = real_pool(part)
        ours = collective_s("all-reduce", 64 * GIB, together(8, pool), pool).item()
        assert 1.75 * 64 * GIB / ours / 1e9 == pytest.approx(plateau, rel=0.04)
    # And on 32 GPUs over 8 x HDR: 192; the ring's NICs bound it: 8 * 23.5 = 188.
    pool = real_pool("a100-sxm-80gb", 4, "ib-hdr-200")
    ours = collective_s("all-reduce", 64 * GIB, together(32, pool), pool).item()
    assert 2 * 31 / 32 * 64 * GIB / ours / 1e9 == pytest.approx(192, rel=0.04)


# Placement.


@pytest.mark.parametrize(
    ("n", "stride", "per_domain", "domains"),
    [
        (8, 1, 8, 1),  # tp of a node
        (4, 2, 4, 1),  # dp beside tp 2
        (16, 2, 4, 4),
        (16, 8, 1, 16),  # dp beside tp 8
        (4, 16, 1, 4),  # pp
        (16, 1, 8, 2),  # tp over two nodes
        (1, 8, 1, 1),
        (6, 3, 1, 3),  # 18 devices: the second group starts two before a boundary
        (12, 1, 4, 2),  # 8 + 4, or 4 + 8
        (3, 1, 1, 2),  # ranks 6, 7, 8
    ],
)
def test_groups_fall_into_domains_of_eight(toy_pool, n, stride, per_domain, domains):
    group = together(n, toy_pool(16), stride)
    assert (group.n_ranks, group.ranks_per_domain, group.n_domains) == (n, per_domain, domains)
    assert group.tier == (1 if domains > 1 else 0)
    if domains > 1:
        assert group.wire_bytes_per_s == per_domain * 50e9


@pytest.mark.parametrize(
    ("n", "stride", "per_domain", "domains"),
    [(64, 1, 8, 2), (72, 1, 72, 1), (144, 1, 72, 2), (9, 8, 9, 1), (18, 16, 4, 4), (16, 8, 1, 3)],
)
def test_groups_fall_into_odd_domains(toy_pool, n, stride, per_domain, domains):
    # 72 devices in a rack of 18 trays; groups follow one another, so 64 of 72 straddle racks.
    pool = toy_pool(36, devices_per_node=4, scale_up_domain=72, nics_per_node=4)
    group = together(n, pool, stride)
    assert (group.ranks_per_domain, group.n_domains) == (per_domain, domains)


@pytest.mark.parametrize("domain", [8, 12, 72])
def test_placement_agrees_with_counting_ranks(toy_pool, domain):
    pool = toy_pool(12, devices_per_node=domain, scale_up_domain=domain)
    for stride in range(1, domain * 2 + 1):
        if (domain % stride) and (stride % domain):
            continue
        for n in range(2, 25):
            span = n * stride
            fewest, most = n, 1
            for first in range(0, math.lcm(span, domain), span):
                domains = [rank // domain for rank in range(first, first + span, stride)]
                fewest = min(fewest, *(domains.count(d) for d in domains))
                most = max(most, len(set(domains)))
            group = together(n, pool, stride)
            assert (group.ranks_per_domain, group.n_domains) == (fewest, most), (n, stride)


def test_groups_of_8_to_72_stay_inside_a_rack_and_leave_a_node(real_pool, catalogue):
    """GB200 NVL72 against HGX B200: the same group on NVLink, and on the NICs of its nodes."""
    hgx = real_pool("b200-sxm-180gb", 72)
    rack = replace(real_pool("gb200-186gb", 144, size=4), scale_up_domain=72)
    size = 2 * 8192 * 8192
    for n in (18, 24, 36, 72):
        inside, outside = together(n, rack), together(n, hgx)
        assert (inside.n_domains, inside.tier) == (1, 0)
        assert outside.tier == 1
        assert outside.n_domains >= n / 8
        for collective in ALGORITHMS:
            fast = collective_s(collective, size, inside, rack)
            assert fast < collective_s(collective, size, outside, hgx), (n, collective)
    # By hand, 134 MB over 72 with LL128: 71 hops of 1.9 us, capped at 640 GB/s; nine HGX nodes
    # have 8 NICs of 48.5 GB/s each.
    inside = ring_all_gather_s(size, together(72, rack), rack).item()
    assert inside == pytest.approx(14e-6 + 71 * 1.9e-6 + 71 / 72 * size / 640e9, rel=1e-9)
    assert together(72, hgx).wire_bytes_per_s == pytest.approx(8 * 48.5e9)


def test_of_64_devices_a_rack_groups_of_16_and_32_stay_inside(real_pool):
    racks = replace(real_pool("gb300-288gb", 128, size=4), scale_up_domain=64)
    for n in (16, 32, 64):
        assert together(n, racks).n_domains == 1
    full = replace(racks, scale_up_domain=72)
    assert [together(n, full).n_domains for n in (16, 32, 64)] == [2, 2, 2]


@pytest.mark.parametrize(
    ("n_racks", "size_mib", "bus_gb_per_s", "rel"),
    [
        # CoreWeave's nccl-tests on GB200 NVL72, NCCL 2.26, all-reduce. The latency of one rack is
        # fitted to the first three rows; the others follow from a ring.
        *[(1, 512, 586, 0.05), (1, 1024, 702, 0.05), (1, 4096, 839, 0.06)],
        *[(2, 512, 494, 0.26), (2, 1024, 596, 0.19), (2, 4096, 743, 0.15), (2, 16384, 810, 0.15)],
        *[(20, 512, 151, 0.13), (20, 1024, 219, 0.07), (20, 4096, 346, 0.03)],
        *[(20, 8192, 381, 0.20), (20, 16384, 406, 0.40)],
    ],
)
def test_all_reduces_of_nvl72_racks(real_pool, n_racks, size_mib, bus_gb_per_s, rel):
    pool = replace(real_pool("gb200-186gb", 18 * n_racks, size=4), scale_up_domain=72)
    n, ranks = size_mib * MIB, 72 * n_racks
    time_s = collective_s("all-reduce", n, together(ranks, pool), pool).item()
    assert 2 * (ranks - 1) / ranks * n / time_s == pytest.approx(bus_gb_per_s * 1e9, rel=rel)


# Links between pairs. Eight MI300X: seven links each; 313 GB/s for all eight, 44.7 for two.


@pytest.mark.parametrize(
    ("n", "stride", "ring_gb_per_s"),
    [
        (2, 1, 313 / 7),
        (2, 4, 313 / 7),
        (4, 1, 313 * 3 / 7),
        (4, 2, 313 * 3 / 7),
        (8, 1, 313.0),
        (3, 2, 313 / 7),  # 18 of 24: some group has two of its three in a node
        (16, 1, 313.0),
    ],
)
def test_a_group_has_the_links_between_its_members(real_pool, n, stride, ring_gb_per_s):
    pool = real_pool("mi300x-192gb", 8)
    group = together(n, pool, stride)
    assert inside_bytes_per_s(group, pool) == pytest.approx(ring_gb_per_s * 1e9)


# A DGX-1 as `nvidia-smi topo -m` prints it: links between the eight devices.
CUBE_MESH = (
    (0, 1, 1, 2, 2, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (1, 2, 0, 2, 0, 0, 1, 0),
    (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 1, 2, 0, 2),
    (0, 0, 0, 1, 2, 1, 2, 0),
)


def test_a_group_in_a_hybrid_cube_mesh_has_the_links_of_its_least_linked_device(real_pool):
    assert [sum(row) for row in CUBE_MESH] == [6] * 8
    pool = real_pool("v100-sxm-16gb")
    for g in (2, 4, 8):
        groups = [range(first, first + g) for first in range(0, 8, g)]
        links = min(sum(CUBE_MESH[i][j] for j in group) for group in groups for i in group)
        assert inside_bytes_per_s(together(g, pool), pool) == pytest.approx(links * 20e9)


def test_in_a_node_of_four_v100_every_pair_has_two_links(real_pool):
    pool = real_pool("v100-sxm-16gb", size=4)
    rates = [inside_bytes_per_s(together(g, pool), pool).item() for g in (2, 4)]
    assert rates == pytest.approx([40e9, 120e9])


def test_two_and_eight_mi300x_by_hand_and_as_measured(real_pool):
    pool = real_pool("mi300x-192gb")
    n = 4 * GIB
    two, eight = (
        2 * (k - 1) / k * n / ring_all_reduce_s(n, together(k, pool), pool).item() for k in (2, 8)
    )
    assert two == pytest.approx(313e9 / 7, rel=0.001)
    assert two == pytest.approx(47.7e9, rel=0.07)  # nccl-tests, all-reduce on two
    assert eight == pytest.approx(313e9, rel=0.005)
    # A pair exchanges 134 MB over its one link of 44.7 GB/s; the same eight do so at once.
    message = 2 * 8192 * 8192
    assert point_to_point_s(message, together(2, pool), pool).item() == pytest.approx(
        11.8e-6 + message / (313e9 / 7), rel=1e-12
    )
    # All-to-all: every rank sends n/8 to each of seven peers over a link of its own.
    time_s = collective_s("all-to-all", message, together(8, pool), pool).item()
    assert time_s == pytest.approx(8.4e-6 + 7 * 0.6e-6 + message / 8 / (313e9 / 7), rel=1e-9)


def test_behind_a_switch_the_size_of_a_group_does_not_matter(real_pool):
    pool = real_pool("h100-sxm-80gb", 8)
    for n in (2, 3, 4, 8, 16):
        assert inside_bytes_per_s(together(n, pool), pool) == 370.8e9
    assert pool.accelerator.pair_bytes_per_s == pool.accelerator.ring_bytes_per_s


def test_larger_groups_of_a_mesh_never_have_less_bandwidth(real_pool):
    pool = real_pool("mi355x-288gb")
    rates = [inside_bytes_per_s(together(n, pool), pool).item() for n in (1, 2, 4, 8)]
    assert rates == sorted(rates)
    assert rates[1] == pool.accelerator.pair_bytes_per_s


# Sums in the switches of the network. Toy: base 10 us, hop 2 us, ring 250 GB/s, NICs of 50 GB/s.


def test_in_network_sums_by_hand(toy_pool):
    pool = toy_pool(16, n_summing_tiers=1)
    group = together(16, pool)
    # Two nodes of eight: n over 8 NICs = 2.5 ms for 1 GB; 2 * 7/8 GB over 250 GB/s inside = 7 ms.
    found = sharp_all_reduce_s(1e9, group, pool).item()
    assert found == pytest.approx((10 + 2 * 7 * 2 + 31) * US + 7e-3, rel=1e-12)
    # One rank a node: 1 GB over one NIC, 20 ms, where a ring of 16 takes 2 * 15/16 of 20 ms.
    alone = together(16, pool, 8)
    assert sharp_all_reduce_s(1e9, alone, pool).item() == pytest.approx(
        (10 + 31) * US + 20e-3, rel=1e-12
    )
    assert chosen_algorithm("all-reduce", 1e9, alone, pool).name == "in-network"
    # With sums in the scale-up switch, 400 GB/s from six ranks on: 25 + 18 us, 2 * 7/8 / 400.
    part = toy_accelerator(in_switch_all_reduce_bytes_per_s=400e9, in_switch_min_ranks=6)
    both = sharp_all_reduce_s(1e9, group, replace(pool, accelerator=part)).item()
    assert both == pytest.approx(43 * US + 1.75 / 400, rel=1e-12)


def test_h100_nodes_with_sums_in_the_network_as_nvidia_shows_them(real_pool):
    # NVIDIA, GTC S72583: all-reduce on 32 GPUs of DGX H100 reaches 480 GB/s with SHARP. Without, a
    # ring or tree over many nodes is held to its NICs, 8 x 48.5 = 388.
    plain = real_pool("h100-sxm-80gb", 64)
    sharp = replace(plain, n_summing_tiers=1)

    def bus_bytes_per_s(pool, n_ranks):
        n = 16 * GIB
        time_s = collective_s("all-reduce", n, together(n_ranks, pool), pool).item()
        return 2 * (n_ranks - 1) / n_ranks * n / time_s

    assert bus_bytes_per_s(sharp, 32) == pytest.approx(480e9, rel=0.12)
    assert bus_bytes_per_s(plain, 512) == pytest.approx(8 * 48.5e9, rel=0.03)
    assert bus_bytes_per_s(sharp, 512) == pytest.approx(480e9, rel=0.15)


def test_sums_reach_as_far_as_the_tiers_that_sum(toy_pool):
    fabric = Fabric((Tier("unit", 2, 1.0, sharp=True), Tier("hall", 8, 1.0)))
    pool = toy_pool(16, n_summing_tiers=fabric.n_summing_tiers)
    inside, above = (place_group(n, 8, pool, fabric) for n in (2, 4))
    assert (inside.tier, above.tier) == (1, 2)
    sharp = ALGORITHMS["all-reduce"]["in-network"]
    assert np.isfinite(sharp.time_s(1e9, inside, pool))
    assert np.isinf(sharp.time_s(1e9, above, pool))
    assert np.isinf(sharp.time_s(1e9, place_group(8, 1, pool, fabric), pool))


@pytest.mark.parametrize(
    ("fabric", "levels"),
    [
        (Fabric(), 0),
        (Fabric(sharp=True), 1),
        (Fabric((Tier("a", 2, 1.0), Tier("b", 4, 1.0)), sharp=True), 3),
        (Fabric((Tier("a", 2, 1.0, sharp=True), Tier("b", 4, 1.0))), 1),
        (Fabric((Tier("a", 2, 1.0, sharp=True), Tier("b", 4, 1.0, sharp=True))), 2),
        (Fabric((Tier("a", 2, 1.0),)), 0),
    ],
)
def test_levels_that_sum(fabric, levels):
    assert fabric.n_summing_tiers == levels


def test_arrays_of_groups_are_placed_elementwise(toy_pool):
    pool = toy_pool(16)
    fabric = Fabric((Tier("pod", 4, 7.0),))
    n, stride = np.array([1, 8, 16, 64, 16]), np.array([8, 1, 8, 1, 2])
    many = place_group(n, stride, pool, fabric)
    for i in range(len(n)):
        one = place_group(n[i], stride[i], pool, fabric)
        for name in ("n_ranks", "ranks_per_domain", "n_domains", "wire_bytes_per_s", "tier"):
            assert getattr(many, name)[i] == getattr(one, name)


def test_nics_are_shared_by_the_devices_of_a_node(toy_pool):
    assert toy_pool(2).nic_bytes_per_s == 50e9
    assert toy_pool(2, nics_per_node=2).nic_bytes_per_s == 12.5e9
    # One rank per node (dp beside tp 8): a quarter of the bandwidth takes four times as long.
    fast, slow = toy_pool(4), toy_pool(4, nics_per_node=2)
    long, short = (
        ring_all_gather_s(1e9, together(4, pool, 8), pool).item() - (10 + 3 * 5) * US
        for pool in (slow, fast)
    )
    assert short == pytest.approx(0.75 / 50, rel=1e-12)
    assert long == pytest.approx(4 * short, rel=1e-12)


def test_oversubscription_is_paid_by_groups_that_climb_past_the_pod(toy_pool):
    pool = toy_pool(8)
    fabric = Fabric((Tier("pod", 4, 7.0),))
    inside = together(4, pool, 8, fabric)
    assert (inside.wire_bytes_per_s, inside.tier) == (50e9, 1)
    # Eight ranks, one a node, four in a pod: four shares of 1/7 of a NIC: 28.6 GB/s.
    across = together(8, pool, 8, fabric)
    assert across.wire_bytes_per_s == pytest.approx(4 * 50e9 / 7)
    assert across.tier == 2
    # A pipeline neighbour in the other pod has one share.
    assert together(2, pool, 32, fabric).wire_bytes_per_s == pytest.approx(50e9 / 7)
    # All 64: 32 shares of 1/7 = 228.6 GB/s for 8 NICs of 400 GB/s.
    assert together(64, pool, 1, fabric).wire_bytes_per_s == pytest.approx(32 * 50e9 / 7)
    assert tier_names(fabric) == ("scale-up", "pod", "top")
    assert tier_names(Fabric()) == ("scale-up", "scale-out", "top")


def test_a_unit_that_holds_all_devices_holds_every_group(toy_pool):
    # 17 nodes under a pod of 20: 136 neighbours do not divide its 160 devices, and stay inside.
    fabric = Fabric((Tier("pod", 20, 7.0),))
    inside = together(136, toy_pool(17), 1, fabric)
    assert (inside.wire_bytes_per_s, inside.tier) == (8 * 50e9, 1)
    # 34 nodes: two such groups, and the second one starts in the first pod.
    assert together(136, toy_pool(34), 1, fabric).tier == 2


def test_two_tiers_name_the_highest_that_is_crossed(toy_pool):
    pool = toy_pool(64)
    fabric = Fabric((Tier("rack", 2, 1.0), Tier("pod", 16, 2.0)))
    assert [int(together(n, pool, 8, fabric).tier) for n in (1, 2, 4, 16, 32)] == [0, 1, 2, 2, 3]
    # Out of the rack a half, out of the pod a half of that.
    twice = Fabric((Tier("rack", 2, 2.0), Tier("pod", 16, 2.0)))
    assert together(2, pool, 128, twice).wire_bytes_per_s == pytest.approx(50e9 / 4)
    assert tier_names(fabric) == ("scale-up", "rack", "pod", "top")


def test_fabrics_without_rails_pay_more_per_hop(toy_pool):
    pool = toy_pool(4)
    railed, loose = (together(4, pool, 8, Fabric((), rails)) for rails in (True, False))
    for name, hops in [("all-gather", 3), ("reduce-scatter", 3), ("broadcast", 3)]:
        more = collective_s(name, 1e9, loose, pool) - collective_s(name, 1e9, railed, pool)
        assert more == pytest.approx(hops * NON_RAIL_HOP_S, rel=1e-6)


# Properties.

GROUPS = {
    "n": st.sampled_from([1, 2, 3, 4, 8, 16, 24, 64, 512]),
    "stride": st.sampled_from([1, 2, 4, 8, 16, 64]),
}
names = st.sampled_from(sorted(ALGORITHMS))


@given(collective=names, stride=st.integers(1, 64), size=st.floats(0, 1e12))
def test_one_rank_costs_nothing(toy_pool, collective, stride, size):
    pool = toy_pool(64)
    assert collective_s(collective, size, together(1, pool, stride), pool).item() == 0.0


@given(collective=names, **GROUPS)
def test_no_bytes_cost_nothing(real_pool, collective, n, stride):
    pool = real_pool("h100-sxm-80gb", 64)
    group = together(n, pool, stride)
    assert collective_s(collective, 0.0, group, pool).item() == 0.0
    nothing, something = collective_s(collective, [0.0, 1e6], group, pool)
    assert (nothing, something) == (0.0, collective_s(collective, 1e6, group, pool).item())


PARTS = st.sampled_from(["h100-sxm-80gb", "mi300x-192gb"])


@given(
    part=PARTS, collective=names, size=st.floats(1e3, 1e10), factor=st.floats(1.0, 10.0), **GROUPS
)
def test_more_bytes_never_take_less_time_and_more_bandwidth_never_more(
    real_pool, part, collective, size, factor, n, stride
):
    pool = real_pool(part, 64)
    base = collective_s(collective, size, together(n, pool, stride), pool).item()
    assert base >= 0.0
    larger = collective_s(collective, size * factor, together(n, pool, stride), pool).item()
    assert larger >= base
    part = pool.accelerator
    faster_link = replace(part, ring_bytes_per_s=factor * part.ring_bytes_per_s)
    faster_nic = replace(pool.nic, bytes_per_s=factor * pool.nic.bytes_per_s)
    summing = replace(pool, n_summing_tiers=1)
    for faster in (
        replace(pool, accelerator=faster_link),
        replace(pool, nic=faster_nic),
        summing,
    ):
        better = collective_s(collective, size, together(n, faster, stride), faster).item()
        assert better <= base * (1 + 1e-12)


@given(size=st.floats(1e3, 1e10), over=st.floats(1.0, 16.0), collective=names, **GROUPS)
def test_oversubscription_and_missing_rails_never_help(
    real_pool, size, over, collective, n, stride
):
    pool = real_pool("h100-sxm-80gb", 64)
    full = place_group(n, stride, pool, Fabric((Tier("pod", 8, 1.0),)))
    less = place_group(n, stride, pool, Fabric((Tier("pod", 8, over),), False))
    assert collective_s(collective, size, less, pool) >= collective_s(collective, size, full, pool)


@given(size=st.floats(1e3, 1e10), **GROUPS)
def test_an_all_reduce_is_its_two_halves_up_to_the_plateau_factor(real_pool, size, n, stride):
    pool = real_pool("h100-sxm-80gb", 64)
    group = together(n, pool, stride)
    halves = 2 * ring_all_gather_s(size, group, pool)
    assert ring_all_reduce_s(size, group, pool) <= 1.4 * halves * (1 + 1e-12)
