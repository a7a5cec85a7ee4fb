"""Ranks of a grid over several pools, by pool."""

import pytest

from costmodels.mixed.rank_runs import fills_nodes, pipelines_inside, rank_runs

UNLIKE = [("ab", 2), ("bb", 1)]
"""Three pipelines of two stages: two over both pools, one on the second alone."""


def test_stages_follow_one_another_kind_by_kind():
    assert rank_runs([("aab", 3)], 4, inside=False) == [("a", 24), ("b", 12)]
    assert rank_runs(UNLIKE, 2, inside=False) == [("a", 4), ("b", 2 + 6)]


def test_whole_pipelines_follow_one_another():
    assert rank_runs([("aab", 2)], 1, inside=True) == [("a", 2), ("b", 1), ("a", 2), ("b", 1)]
    assert rank_runs(UNLIKE, 2, inside=True) == [("a", 2), ("b", 2), ("a", 2), ("b", 6)]


@pytest.mark.parametrize(
    ("kinds", "per_node", "inside"),
    [
        ([("ab", 2)], 2, False),
        ([("aabb", 1)], 2, False),
        ([("aabb", 3)], 2, False),
        ([("aabb", 3)], 4, None),
        ([("aa", 1), ("bb", 1)], 2, True),
        ([("aa", 2), ("bb", 2)], 2, False),
        ([("ab", 1)], 2, None),
    ],
)
def test_the_order_of_ranks_is_the_one_that_fills_nodes(kinds, per_node, inside):
    assert pipelines_inside(kinds, 1, per_node) is inside
    if inside is not None:
        assert fills_nodes(rank_runs(kinds, 1, inside), per_node)
