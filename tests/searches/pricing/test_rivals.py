"""Rivals in columns are the candidates that they stand for."""

import numpy as np

from costmodels.plans import Layout, PlanTable
from searches.pricing.candidates import Candidate, Rivals


def test_rivals_below_a_limit_are_candidates_in_their_order() -> None:
    layouts = [
        Layout(8, tp, 1, 8 // tp, 1, "even", 1, 64, 1, False, "1f1b", "none", 0, (32,))
        for tp in (1, 2, 4)
    ]
    table = PlanTable.from_layouts(layouts)
    least_s = np.array([1.0, 3.0, 2.0])
    rivals = Rivals(table, 32, np.arange(3), least_s + 1.0, least_s * 10.0, least_s)
    assert rivals.below(4.0) is rivals
    assert rivals.below(2.5).candidates() == [
        Candidate(layouts[0], 2.0, 10.0, least_s=1.0),
        Candidate(layouts[2], 3.0, 20.0, least_s=2.0),
    ]
    assert rivals.below(2.5).below(2.0).candidates() == [
        Candidate(layouts[0], 2.0, 10.0, least_s=1.0)
    ]
    assert len(rivals.below(1.0).rows) == 0
