"""`planner.batch_solve`: rows are those of single questions, whichever are there already."""

import pytest

import planner
from planner.errors import UsageError
from planner.solver.execution import Execution
from planner.solver.options import SolveOptions
from planner.solver.request import SolveRequest
from planner.solver.solve import Extent, solve_inputs
from planner.specs.loader import load_cluster, load_model
from planner.sweeps.scaling.batch import answered, batch_cells
from searches.executors.executor import SerialExecutor
from tests.repeats import slow

ASKED = ({"small": "llama3-8b"}, {"h100": "h100-x8", "words": "8xa100"}, [8, 7])


@pytest.fixture(scope="module")
def cells():
    return batch_cells(*ASKED, SolveRequest())


@pytest.fixture(scope="module")
def whole(cells):
    return answered(cells)


def test_a_row_is_the_answer_to_its_question(whole):
    places = [(row["cluster"], row["n_devices"], row["status"]) for row in whole.rows]
    assert places == [
        ("h100", 7, "no layout"),
        ("h100", 8, "ok"),
        ("words", 7, "no layout"),
        ("words", 8, "ok"),
    ]
    for row, cluster in ((whole.rows[1], "h100-x8"), (whole.rows[3], "8xa100")):
        plans = planner.solve("llama3-8b", cluster, pins={"devices": 8}, top=64, all_variants=True)
        best = min(plans.plans, key=lambda plan: plan.step_time_s)
        assert row["plan_id"] == best.plan_id
        assert row["step_time_s"] == best.step_time_s
        assert row["peak_bytes"] == best.to_json()["memory"]["peak_bytes"]
        assert row["tokens_per_s"] == best.tokens_per_s
        assert row["layout"]["tp"] == best.layout.tp
        assert row["n_nodes"] == 1
    assert (whole.n_cells, whole.stopped, whole.exit_code) == (4, "", 0)


def test_rows_that_are_there_are_not_searched_again(cells, whole):
    came = []
    there = {row["index"]: row for row in whole.rows if row["index"] != 0}
    again = answered(cells, there=there, came=came.append)
    assert again.dumps() == whole.dumps()
    assert [row["index"] for row in came] == [0]


def test_what_a_time_limit_leaves_out_is_said(cells):
    stopped = answered(cells, stop=lambda: True)
    data = stopped.to_json()
    assert (data["stopped"], data["complete"], stopped.exit_code) == ("time limit", False, 4)
    assert len(data["rows"]) < 4


def test_rows_are_those_of_a_curve_and_do_not_depend_on_processes(monkeypatch):
    monkeypatch.setattr("planner.sweeps.scaling.batch.CELLS_FOR_PROCESSES", 2)
    cells = batch_cells({"a": "llama3-8b"}, {"h100": "h100-x8"}, [4, 8], SolveRequest())
    here, there = answered(cells), answered(cells, executor="processes")
    assert there.dumps() == here.dumps()
    curve = planner.scale("llama3-8b", "h100-x8", least=4, most=8)
    steps = {row["scale.size"]: row["best.step_time_s"] for row in curve.rows}
    assert {row["n_devices"]: row["step_time_s"] for row in here.rows} == steps


@pytest.mark.parametrize("limits", [{"step_limit_s": 1.0}, slow({"objective": "memory"})])
def test_limits_and_objectives_are_kept(limits):
    request = SolveRequest(**limits)
    (row,) = answered(batch_cells({"a": "llama3-8b"}, {"b": "h100-x8"}, [8], request)).rows
    result = planner.solve("llama3-8b", "h100-x8", pins={"devices": 8}, top=1, **limits)
    assert (row["status"] == "ok") == bool(result.plans)
    if result.plans:
        assert row["peak_bytes"] <= 1.001 * result.plans[0].breakdown.peak_bytes


@pytest.mark.parametrize(
    ("jobs", "clusters", "counts", "said"),
    [
        ({}, {"a": "h100-x8"}, [8], "jobs"),
        ({"a": "llama3-8b"}, {}, [8], "clusters"),
        ({"a": "llama3-8b"}, {"a": "h100-x8"}, [], "counts"),
        ({"a": "llama3-8b"}, {"a": "h100-x8"}, [8, 8], "twice"),
        ({"a": "llama3-8b"}, {"a": "h100-x8"}, [0], "0 is no number"),
        ({"a": "llama3-8b"}, {"a": "mixed-h100-a100"}, [8], "2 pools"),
    ],
)
def test_what_makes_no_sense_is_refused(jobs, clusters, counts, said):
    with pytest.raises(UsageError) as found:
        planner.batch_solve(jobs, clusters, counts)
    assert said in found.value.message


def test_where_the_states_alone_are_too_large_nothing_is_searched(monkeypatch):
    cells = batch_cells({"large": "llama3-405b"}, {"h100": "h100-x8"}, [8], SolveRequest())
    inputs = load_model("llama3-405b"), load_cluster("h100-x8")
    options, extent = SolveOptions(pins={"devices": 8}), Extent(reasons=False)
    assert not solve_inputs(*inputs, options, Execution(SerialExecutor()), extent=extent).plans
    monkeypatch.setattr("planner.sweeps.scaling.batch_rows.search", pytest.fail)
    (row,) = answered(cells).rows
    assert (row["status"], row["plan_id"]) == ("nothing fits", None)
    # Weights alone: 405.9e9 parameters x 2 bytes = 0.81 TB, and 8 x 80 GiB = 0.69 TB.
    assert "states alone" in row["reason"]
