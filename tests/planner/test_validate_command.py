"""`planner validate` on the shipped runs."""

import json

import pytest

from planner.validation.report import run_validate


@pytest.mark.slow
def test_the_shipped_runs_stay_as_close_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    # A guard, not a target: bounds lie a little above what is reached; move them with the model.
    assert run_validate(form="json") == 0
    data = json.loads(capsys.readouterr().out)
    medians = {s["source"]: s["step_time"]["median_ape"] for s in data["sources"]}
    assert medians["korthikanti22"] < 0.02
    assert medians["dgxc"] < 0.07
    assert medians["aa"] < 0.24
    assert medians["tt"] < 0.09
    memory = {s["source"]: s["memory"]["median_ape"] for s in data["sources"]}
    assert memory["smx"] < 0.015
    aa = [s for s in data["sweeps"] if s["mode"] == "layout-only" and s["source"] == "aa"]
    assert len(aa) == 15
    assert sum(s["regret_1"] for s in aa) / len(aa) < 0.025
