"""What plans on fewer of the joined pools are held to."""

from dataclasses import dataclass

import pytest

from planner.solver.together.problems import JoinedProblem
from tests.searches.mixed.instances import random_problem


@dataclass(frozen=True)
class _ByCount(JoinedProblem):
    """Stragglers by the number of pools alone."""

    def straggler_factor(self, places):
        return 1.0 + 0.01 * len(places)


@pytest.mark.parametrize(("n_pools", "least"), [(3, 1.0), (4, 1.02 / 1.03), (5, 1.02 / 1.04)])
def test_bounds_without_a_pool_hold_for_plans_over_two(n_pools, least):
    joined = _ByCount(random_problem(0), (None,) * n_pools, tuple(range(n_pools)))
    assert joined.least_factor_frac(0) == pytest.approx(least)
