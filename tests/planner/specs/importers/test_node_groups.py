"""Tiers and network order of uneven groups."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.specs.importers.clusters.facts import Position
from planner.specs.importers.clusters.node_groups import arrange, common_size, rack_size


def nodes(*groups: tuple[tuple[str, ...], int]) -> list[tuple[str, Position]]:
    levels = ("spine", "leaf")
    out = []
    for path, n in groups:
        here = Position(path, levels[-len(path) :] if path else ())
        out += [(f"{'-'.join(path)}-n{i}", here) for i in range(1, n + 1)]
    return out


@pytest.mark.parametrize(
    ("counts", "size"),
    [
        ([16, 16, 16], 16),
        ([16, 16, 13], 16),  # the smaller one comes last
        ([16, 13, 16], 16),
        ([16, 13, 12], 12),  # 36 of 41 nodes lie in whole groups
        ([20, 10, 10], 10),
        ([32, 32, 32, 31, 2], 31),
        ([3, 3, 2, 1], 3),  # no size holds three quarters: the one that holds most
        ([1, 1, 1], 1),
        ([8], 8),
    ],
)
def test_one_size_for_uneven_groups(counts, size):
    assert common_size(counts) == size


@pytest.mark.parametrize(
    ("counts", "size"),
    [
        ([18, 18], 18),
        ([18, 17], 16),
        ([18, 18, 18, 17], 16),  # 64 nodes; whole racks would be 54
        ([18] * 20 + [17], 18),
        ([17], 16),
        ([18, 18, 9], 18),
        ([9, 9], 9),  # half racks
        ([16, 16], 16),
        ([5], 4),
        ([1], 1),
    ],
)
def test_trays_of_a_rack(counts, size):
    assert rack_size(counts, 18) == size


def test_two_levels():
    found = arrange(nodes((("s1", "a"), 4), (("s1", "b"), 4), (("s2", "c"), 4), (("s2", "d"), 4)))
    assert [(x.name, x.n_nodes, x.n_rest) for x in found.levels] == [
        ("leaf", 4, 0),
        ("spine", 8, 0),
    ]
    assert found.order[:5] == ("s1-a-n1", "s1-a-n2", "s1-a-n3", "s1-a-n4", "s1-b-n1")


def test_whole_groups_come_first():
    found = arrange(nodes((("s", "a"), 16), (("s", "b"), 13), (("s", "c"), 16)))
    (leaf,) = found.levels  # one spine joins everything
    assert (leaf.n_nodes, leaf.sizes, leaf.n_rest) == (16, (16, 16, 13), 13)
    assert found.order[15:17] == ("s-a-n16", "s-c-n1")
    assert found.order[32] == "s-b-n1"


def test_groups_of_single_nodes_say_nothing():
    found = arrange(nodes((("s1", "a"), 1), (("s1", "b"), 1), (("s2", "c"), 1), (("s2", "d"), 1)))
    assert found.lonely == ("leaf",)
    assert [(x.name, x.n_nodes) for x in found.levels] == [("spine", 2)]


def test_nodes_without_a_place_come_last():
    found = arrange([*nodes((("a",), 2), (("b",), 2)), ("z", Position()), ("m", Position())])
    assert found.order[-2:] == ("m", "z")
    assert found.unplaced == ("m", "z")


def test_branches_of_different_depth_are_counted_from_the_leaves():
    found = arrange(nodes((("s1", "a"), 2), (("s1", "b"), 2), (("c",), 2)))
    assert found.levels[0].n_nodes == 2
    assert len(found.order) == 6


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(1, 9)), min_size=1, max_size=9
    )
)
def test_every_node_stands_once_and_whole_groups_are_real(groups):
    merged = {(f"s{s}", f"l{s}{leaf}"): n for s, leaf, n in groups}
    given_ = nodes(*merged.items())
    found = arrange(given_)
    assert sorted(found.order) == sorted(name for name, _ in given_)
    sizes = [level.n_nodes for level in found.levels]
    assert all(b % a == 0 and b > a for a, b in pairwise(sizes))
    if not found.levels or found.levels[0].name != "leaf":
        return
    # As many groups of the first tier as are whole hold nodes of one leaf each.
    where = {name: at.path for name, at in given_}
    size = sizes[0]
    n_whole = (len(found.order) - found.n_loose) // size
    for i in range(n_whole):
        assert len({where[name] for name in found.order[i * size : (i + 1) * size]}) == 1
