"""Measured groups land in the model's groups: ranks per domain, domains, network ports."""

from dataclasses import replace

import pytest

from costmodels.comm.collectives import collective_s, point_to_point_s
from costmodels.comm.placement import place_group
from hardware.parts import Fabric
from planner.measure.benchmarks.sweep import measured_group, n_domains, predicted_s
from planner.specs.loader import load_cluster
from tests.planner.measure.benchmarks.logs import sweep_of

FLAT = Fabric()


@pytest.fixture(scope="module")
def pool():
    return load_cluster("h100-x512").cluster.pools[0]


@pytest.mark.parametrize(
    ("n_ranks", "n_nodes", "busy", "per_domain", "domains", "wire_gb"),
    [
        (8, 1, 8, 8, 1, None),
        (2, 1, 2, 2, 1, None),
        (2, 1, 8, 2, 1, None),  # four pairs at once
        (16, 2, 8, 8, 2, 8 * 48.5),
        (64, 8, 8, 8, 8, 8 * 48.5),
        (4, 4, 8, 1, 4, 48.5),  # eight groups of one rank a node
        (4, 4, 1, 1, 4, 48.5),  # one group alone: one port for one rank
        (8, 4, 8, 2, 4, 2 * 48.5),  # four groups of two ranks a node
        (8, 2, 4, 4, 2, 4 * 48.5),  # half of each node stands idle
    ],
)
def test_groups_by_hand(pool, n_ranks, n_nodes, busy, per_domain, domains, wire_gb):
    sweep = sweep_of("all-gather", n_ranks, n_nodes, busy)
    group, here = measured_group(sweep, pool, FLAT)
    assert (group.n_ranks, group.ranks_per_domain) == (n_ranks, per_domain)
    assert (group.n_domains, n_domains(sweep, pool)) == (domains, domains)
    assert here.n_devices == n_nodes * busy
    if wire_gb:
        assert group.wire_bytes_per_s == pytest.approx(wire_gb * 1e9)


def test_a_rank_alone_on_its_node_has_a_whole_port(pool):
    # One port for eight devices: in training an eighth each, but all of it for one rank alone.
    shared = replace(pool, nics_per_node=1)
    alone, _ = measured_group(sweep_of("all-gather", 4, 4, 1), shared, FLAT)
    together, _ = measured_group(sweep_of("all-gather", 4, 4, 8), shared, FLAT)
    assert alone.wire_bytes_per_s == pytest.approx(48.5e9)
    assert together.wire_bytes_per_s == pytest.approx(48.5e9 / 8)


def test_the_nodes_of_a_rack_are_one_domain():
    cluster = load_cluster("gb200-nvl72-x576").cluster
    pool = cluster.pools[0]
    group, _ = measured_group(sweep_of("all-gather", 64, 16, 4), pool, FLAT)
    assert (group.n_ranks, group.n_domains) == (64, 1)
    assert n_domains(sweep_of("all-gather", 144, 36, 4), pool) == 2
    wide, _ = measured_group(sweep_of("all-gather", 144, 36, 4), pool, FLAT)
    assert (wide.ranks_per_domain, wide.n_domains) == (72, 2)


def test_times_are_those_that_price_a_plan(pool):
    for name in ("all-reduce", "all-gather", "all-to-all"):
        sweep = sweep_of(name, 64, 8)
        there = replace(pool, n_nodes=8)
        group = place_group(64, 1, there, FLAT)
        expected = collective_s(name, sweep.sizes_bytes, group, there)
        assert predicted_s(sweep, pool, FLAT) == pytest.approx(expected.tolist(), rel=1e-12)
    sweep = sweep_of("send-receive", 8)
    one = place_group(8, 1, replace(pool, n_nodes=1), FLAT)
    expected = point_to_point_s(sweep.sizes_bytes, one, pool)
    assert predicted_s(sweep, pool, FLAT) == pytest.approx(expected.tolist(), rel=1e-12)
