"""The search on measured sweeps: its pick among what was measured, and what it finds besides."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from planner.cli.commands.validate import run_validate
from planner.measure.validate import search as searching
from planner.measure.validate.eras import is_tuned
from planner.measure.validate.report import DATA
from planner.measure.validate.rows import MeasuredSweep, Used, measured_sweeps, use
from planner.measure.validate.search import (
    EQUAL,
    best_of,
    by_problem,
    fitting,
    restricted,
    search_sweep,
    searched_name,
    unrestricted,
)
from tests.planner.conftest import price_shipped

SOURCES = ("bs3", "bsg", "dlp")
"""Families of the default run: ten sweeps that take a few seconds."""
N_SWEEPS, N_LAYOUTS = 185, 3788
"""What ships: sweeps, and layouts that are priced."""


@pytest.fixture(scope="module")
def few() -> tuple[Used, ...]:
    return use(price_shipped(*SOURCES))


def check_picks(found: Sequence[MeasuredSweep]) -> None:
    """Assert that the restricted search picks what ranking one by one picks."""
    for sweep in found:
        first = min(sweep.plans, key=lambda plan: plan.prediction.step_s)
        groups = (restricted(group) for group in by_problem(sweep.plans))
        picked, step_s = min(groups, key=lambda x: x[1])
        assert step_s == pytest.approx(first.prediction.step_s, rel=EQUAL), sweep.key
        assert picked == searched_name(first.case.problem, first.case.layout), sweep.key


def check_covers(used: tuple[Used, ...], one_in: int = 1) -> None:
    """Assert that the unrestricted search predicts no longer step than any published layout.

    Of layouts of one problem the fastest stands for all: among those that fit by the model, and
    among all with room for it. Of `one_in` problems one is searched.
    Runs with adapters ran on frameworks that plan them otherwise, and are left out.
    """
    used = tuple(plan for plan in used if not is_tuned(plan))
    for group in by_problem(used)[::one_in]:
        fit = [plan for plan in group if plan.prediction.fits]
        for plans in (group, *([fit] if 0 < len(fit) < len(group) else [])):
            first = min(plans, key=lambda plan: plan.prediction.step_s)
            found, step_s = best_of(plans)
            assert step_s <= first.prediction.step_s * (1 + EQUAL), (first.point.id, found)


@pytest.mark.slow
def test_the_restricted_search_picks_what_ranking_one_by_one_picks(few):
    found = measured_sweeps(few, "any")
    assert len(found) == 6
    check_picks(found)


@pytest.mark.slow
def test_the_open_search_is_never_slower_than_a_published_layout(few):
    check_covers(few[::25])


@pytest.mark.slow
def test_every_shipped_sweep_has_the_pick_of_ranking_one_by_one(shipped_runs):
    assert len(shipped_runs) == N_LAYOUTS
    found = measured_sweeps(shipped_runs, "any")
    assert len(found) == N_SWEEPS
    # All of them: planner validate --by search.
    check_picks(found[::6])


@pytest.mark.slow
def test_no_shipped_layout_is_predicted_faster_than_what_the_search_finds(shipped_runs):
    # All of them: planner validate --by search.
    check_covers(shipped_runs, one_in=8)


@pytest.mark.slow
def test_layouts_have_the_names_of_the_search(few):
    plans = [(plan.case.problem, plan.case.layout) for plan in few]
    alone = [searched_name(*plan) for plan in plans if plan[1].dp * plan[1].cp == 1]
    assert alone
    assert {layout.zero for layout in alone} == {0}
    problem, layout = next(x for x in plans if x[1].dp > 1)
    core = replace(layout, recompute="selective", recompute_layers=0, recompute_modules=())
    unfused, fused = (
        replace(problem, shape=replace(problem.shape, flash_attention=flash))
        for flash in (False, True)
    )
    assert searched_name(unfused, core) == core
    assert searched_name(fused, core).recompute == "none"


@pytest.mark.slow
def test_memory_is_raised_to_what_a_published_run_needs(few):
    case = few[0].case
    usable = case.problem.pool.usable_bytes
    assert fitting(case.problem, usable) is case.problem
    assert fitting(case.problem, 2 * usable).pool.usable_bytes > 2 * usable
    tiny = replace(case.problem.pool.accelerator, memory_bytes=1e6)
    none = replace(case.problem, pool=replace(case.problem.pool, accelerator=tiny))
    assert unrestricted(none, case.layout.n_devices) == (None, float("inf"))


def test_a_pick_that_differs_is_said(few, monkeypatch):
    sweep = measured_sweeps(few, "any")[0]
    whole = search_sweep(sweep)
    assert whole.agrees
    assert whole.covers
    assert whole.best_s <= whole.picked_s
    monkeypatch.setattr(searching, "restricted", lambda plans: (whole.ranked, 9e9))
    monkeypatch.setattr(searching, "unrestricted", lambda *x: (None, float("inf")))
    other = search_sweep(sweep)
    assert (other.agrees, other.covers) == (False, False)
    text = searching.searched_text([whole, other])
    assert "ANOTHER" in text
    assert "nothing fits, LONGER" in text
    assert "2 sweeps: the same pick in 1, no longer step in 1" in text


@pytest.mark.slow
def test_the_command_searches_the_sweeps(tmp_path, capsys):
    lines = (DATA / "points.csv").read_text(encoding="utf-8").splitlines()
    mine = tmp_path / "dlp.csv"
    mine.write_text("\n".join([lines[0], *(x for x in lines if x.startswith("dlp-"))]) + "\n")
    assert run_validate(str(mine), form="json", by="search") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["n_agree"] == found["n_cover"] == len(found["sweeps"]) == 2
    assert all(one["best_s"] <= one["ranked_s"] for one in found["sweeps"])
