"""Groups of several runs against their rank lists, and which ranks the cost model means."""

from dataclasses import replace
from math import gcd

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.comm.placement import RankSpacing, place_group, place_spaced_group, spread_runs
from costmodels.plans import PIPELINES_INSIDE, ShapeTable
from costmodels.shape_terms import boundary_hops, copy_spacing, end_pair, replica_spacing
from hardware.parts import Fabric, Pool, Tier
from tests.repeats import examples
from tests.searches.instances import GQA, ONE_TIER, context, real_pool, toy_pool

SMALL = st.integers(1, 4)


def worst(n: int, stride: int, between: int, copies: int, unit: int) -> tuple[int, int]:
    """(fewest ranks in a unit, most units) of all groups whose runs are `between` runs apart."""
    fewest, most, apart = n * copies, 1, n * stride * between
    for block in range(unit // gcd(copies * apart, unit)):
        for place_of in range(between):
            for offset in range(stride):
                start = block * copies * apart + place_of * n * stride + offset
                ranks = [start + j * apart + i * stride for j in range(copies) for i in range(n)]
                _, counts = np.unique(np.array(ranks) // unit, return_counts=True)
                fewest, most = min(fewest, int(counts.min())), max(most, len(counts))
    return fewest, most


@settings(max_examples=examples(300), derandomize=True, deadline=None, database=None)
@given(n=SMALL, stride=SMALL, between=SMALL, copies=SMALL, unit=st.integers(2, 72))
def test_groups_of_runs_are_never_placed_too_well(
    n: int, stride: int, between: int, copies: int, unit: int
) -> None:
    apart = n * stride * between
    runs = (np.float64(n), np.float64(stride))
    found = spread_runs(runs, np.float64(copies), np.float64(apart), unit, 10**9)
    ranks, units = (int(x) for x in found)
    fewest, most = worst(n, stride, between, copies, unit)
    assert ranks <= fewest
    assert units >= most
    steps = (stride, apart) if n > 1 else (apart,)
    if all(unit % step == 0 or step % unit == 0 for step in steps):
        assert (ranks, units) == (fewest, most)


def test_one_run_is_a_plain_group() -> None:
    pool, fabric = toy_pool(96, 8), Fabric((Tier("leaf", 2, 3.0), Tier("pod", 4, 2.0)))
    several = RankSpacing(np.array([4, 4]), 2, np.array([1, 2]), np.array([1, 32]))
    both = place_spaced_group(several, pool, fabric)
    one = place_group(4, 2, pool, fabric)
    for field in ("n_ranks", "ranks_per_domain", "n_domains", "wire_bytes_per_s", "tier"):
        assert getattr(both, field)[0] == getattr(one, field)
    # runs of 4 in nodes of 8, in leaves of 16 of their own and in one pod of 32 each
    assert (both.n_ranks[1], both.ranks_per_domain[1], both.n_domains[1]) == (8, 4, 2)
    assert both.tier[1] == 3
    assert both.wire_bytes_per_s[1] == min(4.0, 4.0 / 3, 4.0 / 6) * pool.nic_bytes_per_s


def inside(tp: int, pp: int, cp: int, dp: int) -> ShapeTable:
    """One shape whose pipelines lie inside."""
    columns = {"tp": [tp], "pp": [pp], "dp": [dp], "cp": [cp], "rank_order": [1]}
    table = ShapeTable.of_columns(tp * pp * cp * dp, columns)
    assert PIPELINES_INSIDE == 1
    return table


def numbers(spacing: RankSpacing) -> tuple[int, ...]:
    columns = (spacing.n_ranks, spacing.stride, spacing.copies, spacing.apart)
    return tuple(int(np.asarray(column).item()) for column in columns)


@pytest.mark.parametrize(
    ("shard", "ranks", "replicas"),
    [
        (16, (4, 2, 4, 24), (1, 32, 1, 1)),  # all: the cp ranks, once for each dp
        (8, (4, 2, 2, 24), (2, 48, 1, 1)),  # two whole runs, one replica 2 runs further on
        (4, (4, 2, 1, 1), (4, 24, 1, 1)),
        (2, (2, 2, 1, 1), (2, 4, 4, 24)),  # half a run, and two of each run hold the same half
        (1, (1, 2, 1, 1), (4, 2, 4, 24)),
    ],
)
def test_neighbours_among_the_copies_where_pipelines_lie_inside(
    shard: int, ranks: tuple[int, ...], replicas: tuple[int, ...]
) -> None:
    """tp 2, cp 4, pp 3, dp 4: ranks of cp are 2 apart, those of dp 24."""
    shapes = inside(2, 3, 4, 4)
    assert numbers(copy_spacing(shapes, np.array([shard]))) == ranks
    assert numbers(replica_spacing(shapes, np.array([shard]))) == replicas


def test_shards_that_cut_runs_unevenly_are_priced_at_their_worst() -> None:
    """cp 4, dp 3: groups of 6 are a run and half of the next, or the other way round."""
    shapes = inside(1, 2, 4, 3)
    assert numbers(copy_spacing(shapes, np.array([6]))) == (2, 1, 3, 24)
    assert numbers(replica_spacing(shapes, np.array([6]))) == (2, 24, 1, 1)


def test_ends_of_a_pipeline_are_near_where_it_lies_inside_a_node() -> None:
    c = context(pool=toy_pool(32, 8))
    shapes = inside(2, 4, 1, 4)
    usual = replace(shapes, rank_order=0 * shapes.rank_order)
    assert end_pair(c.problem, shapes).n_domains.item() == 1
    assert end_pair(c.problem, usual).n_domains.item() == 2


def test_whole_pipelines_in_a_node_leave_data_parallelism_between_the_nodes() -> None:
    """32 devices in nodes of 8, tp 2, pp 4, dp 4: one pipeline fills a node."""
    pool: Pool = toy_pool(32, 8)
    shapes = inside(2, 4, 1, 4)
    assert shapes.stage_stride.item() == 2
    data = place_spaced_group(copy_spacing(shapes, shapes.replicas), pool, Fabric())
    assert (data.ranks_per_domain.item(), data.n_domains.item()) == (1, 4)


def test_a_message_inside_a_rack_climbs_no_tier():
    """Leaves of two trays under racks of 18: only the way from rack to rack climbs."""
    trays = replace(real_pool("gb200", 36, 4), scale_up_domain=72)
    latency, per_byte = boundary_hops(context(GQA, trays, fabric=ONE_TIER).problem, 36, 4)
    near = 1.0 / trays.accelerator.pair_bytes_per_s
    assert per_byte.tolist() == [
        near,
        3.0 / trays.nic_bytes_per_s,
        near,
        3.0 / trays.nic_bytes_per_s,
    ]
    assert latency[0] == latency[2] == trays.scale_up.p2p_latency_s
    assert latency[1] == latency[3] == pytest.approx(trays.nic.p2p_latency_s + 1e-6)
