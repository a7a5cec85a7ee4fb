"""The design review: complete, the same bytes each time, harmless, and its commands work."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import planner
from costmodels.problem import Problem
from hardware.nouns import GPU
from planner.analyze.bottleneck_levers import Bound, bound_of
from planner.documents import Code, Heading
from planner.errors import UsageError
from planner.render.report.review import review, review_document
from planner.solver.answer.result import Plan, Result
from planner.solver.calibration.intervals import regime_words
from planner.units import GIB
from tests.planner.command import run_here
from tests.planner.render.test_notebook import without_plans
from tests.planner.test_documents import Tags

EVIL = "</title><script>alert(1)</script>"
SECTIONS = (
    "Why this plan",
    "The job",
    "The cluster",
    "Assumptions",
    "Where the step goes",
    "Memory",
    "Alternatives and what they cost",
    "What would make it faster",
    "Sensitivities",
    "Risks",
    "Commands",
    "Reproducibility",
)


@cache
def result() -> Result:
    return planner.solve(
        "llama3-8b",
        "h100-x8",
        top=3,
        only={"tp": [1, 2], "mbs": [1]},
        overrides=(("training.global_batch", 64),),
    )


_BOUNDS: dict[str, Bound] = {}


@pytest.fixture(autouse=True)
def bound_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What binds a plan is looked for once, but where everything is computed twice."""
    if "same_bytes" in request.node.name:
        return

    def once(problem: Problem, plan: Plan, framework: str) -> Bound:
        if plan.plan_id not in _BOUNDS:
            _BOUNDS[plan.plan_id] = bound_of(problem, plan, framework)
        return _BOUNDS[plan.plan_id]

    monkeypatch.setattr("planner.render.report.review.bound_of", once)


@cache
def text(form: str = "markdown", plan: int = 1) -> str:
    return review(result(), plan, form)


def test_every_section_is_there() -> None:
    titles = re.findall(r"^## (.*)$", text(), re.MULTILINE)
    assert tuple(titles) == SECTIONS
    assert Tags(text("html")).found.count("h2") == 1 + len(SECTIONS)  # the card has one


def test_figures_are_those_of_the_plan() -> None:
    plan = result().best
    assert f"{plan.step_time_s:.4f} s" in text()
    assert f"{plan.breakdown.peak_bytes / GIB:.1f} GiB" in text()
    for other in result().plans[1:]:
        share = other.step_time_s / plan.step_time_s - 1
        assert f"| {other.step_time_s:.3f} | {share * 100:+.1f}% |" in text()
    for name in (result().result_id, plan.plan_id, result().calibration["hash"]):
        assert name in text()
    assumed = result().notes[-1].split(": ")[1].split(", ")
    assert all(name.replace("_", "\\_") in text() for name in assumed)


def test_another_plan_can_be_reviewed() -> None:
    with pytest.raises(UsageError, match="no plan '9'"):
        review(result(), 9)
    with pytest.raises(UsageError, match="html or markdown"):
        review(result(), form="pdf")


@pytest.mark.slow
def test_same_bytes() -> None:
    assert review(json.loads(result().dumps()), 1, "html") == text("html")


def test_the_page_loads_and_runs_nothing() -> None:
    page = text("html")
    assert "script" not in Tags(page).found
    assert "default-src 'none'" in page
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)", page)


def test_texts_are_escaped() -> None:
    data: dict[str, Any] = json.loads(result().dumps())
    data["notes"].append(EVIL)
    page = review(data, 1, "html")
    assert "<script" not in page
    assert EVIL in Tags(page).text
    assert "<script" not in review(data, 1, "markdown")


def test_the_appendix_gives_the_same_plan(tmp_path: Path) -> None:
    parts = review_document(json.loads(result().dumps()), "1", "the result")
    codes = [part for part in parts if isinstance(part, Code)]
    names = [part.text for part in parts if isinstance(part, Heading) and part.level == 3][-2:]
    assert names == ["model.yaml", "cluster.yaml"]
    for name, code in zip(names, codes[-2:], strict=True):
        (tmp_path / name).write_text("\n".join(code.lines))
    # The batch was changed, so the command names the file of the appendix; the cluster was not.
    assert codes[0].lines[0].startswith("planner solve model.yaml h100-x8 --only ")
    again = planner.solve(
        str(tmp_path / "model.yaml"),
        str(tmp_path / "cluster.yaml"),
        top=1,
        only={"tp": [1, 2], "mbs": [1]},
    )
    assert again.best.plan_id == result().best.plan_id


def test_a_result_without_plans_is_reviewed_too() -> None:
    page = review(without_plans(result()))
    assert "**Nothing fits**" in page
    assert "| a smaller margin | 6.500 | planner solve again |" in page
    assert "cannot all hold: MEM000 too little" in page


@pytest.mark.slow
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "result.json").write_text(result().dumps())
    said = run_here("report", "result.json", "--format", "markdown", "-o", "-")
    assert said.stdout == text()
    assert run_here("report", "result.json#2").returncode == 0
    assert result().plans[1].plan_id in (tmp_path / "review.html").read_text()
    for words, part in (
        (["--format", "pdf"], "html or markdown"),
        (["--x", "tp"], "belong to reports of sweeps"),
    ):
        refused = run_here("report", "result.json", *words)
        assert refused.returncode == 2
        assert part in refused.stderr


def test_the_interval_is_said_in_words() -> None:
    regime = result().plans[0].interval_regime
    assert regime_words(regime, GPU) in text()
    assert regime not in text()
