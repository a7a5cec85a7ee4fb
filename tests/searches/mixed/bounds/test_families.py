"""Families of plans: which sites a thin link parts, and which pipelines they hold."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.mixed.tables import LinkFacts, MixedProblem
from searches.mixed.bounds.families import Family, families_of, sites_of
from searches.mixed.fills import ways_of
from tests.searches.mixed.instances import random_problem


def _with_links(**rates: float) -> MixedProblem:
    """Return a job over as many pools as links name, with rates such as `ab=5.0`, bytes/s."""
    problem = random_problem(3)
    names = sorted({x for pair in rates for x in pair})
    pools = tuple(replace(problem.pools[0], name=x) for x in names)
    links = {
        (names.index(a), names.index(b)): LinkFacts(rate, 0.0) for (a, b), rate in rates.items()
    }
    return replace(problem, pools=pools, links=links)


def test_sites_are_parted_by_the_thinnest_link_that_a_ring_has_to_take():
    sites, rate = sites_of(_with_links(ab=40.0, ac=1.0, bc=3.0, ad=2.0, bd=1.0, cd=30.0))
    assert sites == [frozenset({0, 1}), frozenset({2, 3})]
    assert rate == 3.0


def test_pools_that_are_left_out_part_nothing():
    problem = _with_links(ab=1.0, ac=5.0, bc=2.0)
    pools = (problem.pools[0], replace(problem.pools[1], n_devices=0), problem.pools[2])
    sites, rate = sites_of(replace(problem, pools=pools))
    assert sites == [frozenset({0}), frozenset({2})]
    assert rate == 5.0


@pytest.mark.parametrize(("bytes_per_s", "n_families"), [(1e9, 2), (1e-3, 8)])
def test_sites_are_told_apart_where_gradients_take_long_over_the_link(bytes_per_s, n_families):
    problem = random_problem(3)
    links = {pair: LinkFacts(bytes_per_s, 0.0) for pair in problem.links}
    problem = replace(problem, links=links)
    assert len(families_of(problem, ways_of(problem), 3, 1.0)) == n_families


def test_a_family_holds_the_pipelines_that_lie_in_no_spanned_site_alone():
    devices = np.array([[4.0, 0.0, 0.0], [4.0, 2.0, 0.0], [0.0, 2.0, 2.0], [4.0, 0.0, 1.0]])
    one, two = frozenset({0, 1}), frozenset({2})
    assert Family(2).holds(devices).tolist() == [True] * 4
    assert Family(2, (one,)).holds(devices).tolist() == [False, False, True, True]
    assert Family(2, (one, two)).holds(devices).tolist() == [False, False, True, True]


def test_layers_in_a_spanned_site_cross_the_link():
    one = frozenset({0, 1})
    assert Family(3, (), (0.0, 1.0)).crosses([0, 1, 2]).tolist() == [True] * 3
    assert Family(3, (one,), (0.0, 1.0)).crosses([0, 1, 2]).tolist() == [True, True, False]
    assert Family(3, (one,)).crosses([0, 1, 2]).tolist() == [False] * 3
    assert Family(4, (), (0.0, 2.0)).exchange_s.tolist() == [0.0, 3.0]
