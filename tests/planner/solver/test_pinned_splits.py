"""`evaluate --pin split=9-11-11-9`: the uneven split that `solve` prints, priced again."""

from pathlib import Path

import pytest

import planner
from planner.errors import SearchError, UsageError
from planner.render.document import text_of
from planner.solver.answer.reasons import stage_words
from planner.solver.answer.result_store import open_plan
from planner.specs.search.axis_values import axis_text, axis_values, layout_to_json, pinned_stages
from tests.planner.command import run_here

JOB = ("llama3-8b", "h100-x8")
PINS = {"pp": 2, "tp": 1, "cp": 1, "mbs": 1, "recompute": "full"}


def test_a_split_that_solve_found_is_priced_again_as_the_same_plan() -> None:
    found = planner.solve(*JOB, pins=PINS, top=3)
    plan = next(p for p in found.plans if p.layout.split not in ("even", "ends"))
    x = plan.layout
    assert f"{stage_words(x.stage_layers)} in {plan.plan_id}" in text_of(found)
    same = {axis: getattr(x, axis) for axis in ("zero", "vpp", "recompute_layers")}
    for text in (x.split, stage_words(x.stage_layers), layout_to_json(x)["split"]):
        pins = {**PINS, **same, "dp_shard": x.dp_shard, "split": text}
        (again,) = planner.evaluate(*JOB, pins=pins).plans
        assert again.layout == x
        assert again.plan_id == plan.plan_id
        assert again.step_time_s == plan.step_time_s


@pytest.mark.parametrize(
    ("text", "counts"),
    [("17-15", (17, 15)), ("3-2-2x1-3-2", (3, 2, 1, 1, 3, 2)), ("15x4-1", (*[4] * 15, 1))],
)
def test_every_spelling_is_read_and_written_back(text: str, counts: tuple[int, ...]) -> None:
    code = axis_values("split", text, "--pin")
    assert pinned_stages(code) == counts
    assert axis_values("split", axis_text("split", code), "--pin") == code
    assert stage_words(counts) == text
    assert [pinned_stages(axis_values("split", x, "--pin")) for x in ("even", "ends")] == [()] * 2


def test_a_split_says_how_many_stages_there_are() -> None:
    (plan,) = planner.evaluate(*JOB, pins={"split": "7-2x9-7"}).plans
    assert (plan.layout.pp, plan.layout.dp) == (4, 2)
    (plan,) = planner.evaluate(*JOB, pins={"split": "8-8-8-8", "vpp": 2}).plans
    assert (plan.layout.pp, plan.layout.vpp, plan.layout.split) == (2, 2, "even")


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        ({"split": "17-14"}, "split 17-14 holds 31 layers, and the model has 32"),
        ({"split": "17-15", "pp": 4}, "split 17-15 has 2 stages, and pp 4 x vpp 1 makes 4"),
        ({"split": "10-11-11"}, "8 devices are not a multiple of tp 1 x pp 3"),
        ({"split": "17-15", "pp": 2, "vpp": 2}, "has 2 stages, and pp 2 x vpp 2 makes 4"),
    ],
)
def test_a_split_of_other_layers_or_stages_is_refused(
    pins: dict[str, object], message: str
) -> None:
    with pytest.raises(SearchError, match=message) as refused:
        planner.evaluate(*JOB, pins=pins)
    assert refused.value.hint


@pytest.mark.parametrize("text", ["17-x", "17--15", "-17", "2x", "1234567-1"])
def test_what_is_no_split_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="split cannot be"):
        planner.evaluate(*JOB, pins={"split": text})


def test_two_splits_are_one_too_many() -> None:
    done = run_here("evaluate", *JOB, "--pin", "split=17-15", "--pin", "split=16-16")
    assert done.returncode == 2
    assert "--pin: split is pinned to 17-15 and to 16-16\n  fix: keep one" in done.stderr


def test_a_search_takes_named_splits_only() -> None:
    with pytest.raises(UsageError, match="a search finds uneven splits by itself"):
        planner.solve(*JOB, pins={"split": "17-15"})
    with pytest.raises(UsageError, match="--only: split cannot be"):
        planner.solve(*JOB, only={"split": ["17-15"]})


def test_the_command_and_its_saved_result(tmp_path: Path) -> None:
    words = ("evaluate", *JOB, "--pin", "split=17-15,mbs=1,recompute=full", "--no-cache")
    assert "layers 17-15" in run_here(*words).stdout
    assert "layers per virtual stage: 17, 15" in run_here(*words, "-v").stdout
    file = tmp_path / "one.json"
    file.write_text(run_here(*words, "--format", "json").stdout, encoding="utf-8")
    _, _, _, plan = open_plan(f"{file}#1")
    assert plan.layout.stage_layers == (17, 15)
