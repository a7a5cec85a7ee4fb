"""The map of tensor by pipeline degree: every cell is the search with both pinned."""

import pytest

from planner.analyze.degree_map import (
    allowed,
    degree_map,
    map_degrees,
    power_degrees,
    searched_inputs,
)
from planner.solver.execution import Execution, named_executor
from planner.solver.options import SolveOptions
from planner.solver.request import SolveRequest
from planner.solver.solve import solve

SERIAL = Execution(named_executor("serial"))


def cells_of(model, cluster, **request):
    inputs = searched_inputs(model, cluster, SolveRequest.of_json(request))
    return {(cell.tp, cell.pp): cell for cell in degree_map(*inputs, SERIAL)}


def test_the_degrees_are_powers_of_two_within_node_layers_and_gpus():
    model, cluster, options = searched_inputs("llama3-8b", "16xh100", SolveRequest.of_json({}))
    assert map_degrees(model, cluster, options) == ((1, 2, 4, 8), (1, 2, 4, 8, 16))
    assert power_degrees(1) == (1,)
    assert power_degrees(10_000) == (1, 2, 4, 8, 16, 32, 64)


@pytest.mark.parametrize(
    ("options", "degrees"),
    [
        (SolveOptions(pins={"tp": 4}), (4,)),
        (SolveOptions(only={"tp": frozenset([6, 2])}), (2, 6)),
        (SolveOptions(at_most={"tp": 4}), (1, 2, 4)),
        (SolveOptions(), (1, 2, 4, 8)),
    ],
)
def test_pins_lists_and_bounds_leave_fewer(options, degrees):
    assert allowed(options, "tp", (1, 2, 4, 8)) == degrees


def test_a_cell_is_the_best_plan_with_both_degrees_pinned():
    cells = cells_of("llama3-8b", "h100-x8", pins={"mbs": 1})
    assert (2, 8) not in cells  # 16 GPUs
    assert len(cells) == 10
    for tp, pp in ((2, 2), (8, 1)):
        pins = {"mbs": 1, "tp": tp, "pp": pp}
        best = solve("llama3-8b", "h100-x8", pins=pins, top=1).plans[0]
        cell = cells[tp, pp]
        assert cell.plan is not None
        assert cell.plan.plan_id == best.plan_id
        assert cell.plan.step_time_s == best.step_time_s
        assert (cell.reason, cell.kind) == ("", "")


def test_a_cell_without_a_plan_says_what_is_missing():
    cells = cells_of("llama3-70b", "h100-x8", pins={"tp": 8, "mbs": 1}, only={"pp": [1]})
    (cell,) = cells.values()
    result = solve("llama3-70b", "h100-x8", pins={"tp": 8, "pp": 1, "mbs": 1}, top=1)
    miss = result.closest
    assert miss is not None
    assert (cell.tp, cell.pp, cell.plan, cell.kind) == (8, 1, None, "memory")
    assert f"{miss.peak_bytes / 2**30:.1f} GiB per GPU" in cell.reason
    assert f"{(miss.peak_bytes - miss.usable_bytes) / 2**30:.1f} GiB more" in cell.reason


def test_a_cell_that_breaks_a_rule_says_which():
    cell = cells_of("llama3-8b", "h100-x8", pins={"tp": 3, "pp": 1})[3, 1]
    assert (cell.plan, cell.kind) == (None, "rule")
    assert cell.reason


def test_a_search_that_is_stopped_leaves_cells_that_say_so():
    inputs = searched_inputs("llama3-8b", "h100-x8", SolveRequest.of_json({"pins": {"mbs": 1}}))
    done = []
    execution = Execution(named_executor("serial"), stop=lambda: len(done) >= 2)
    cells = degree_map(*inputs, execution, lambda n, total: done.append((n, total)))
    assert done[-1] == (10, 10)
    assert [cell.kind for cell in cells[2:]] == ["stopped"] * 8
