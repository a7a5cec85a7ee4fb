"""The framework of docs/extending.md, installed beside planner, is found wherever one is named."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.frameworks.registry import framework
from planner.solver.solve import evaluate, solve
from planner.specs.loader import load_model
from searches.frameworks import registry
from searches.frameworks.table import refusals, rules_by_code
from service.handlers.calls import call
from service.handlers.problems import Refusal
from service.handlers.schemas import SolveBody
from tests.planner.command import run_here

DOCS = Path(__file__).parents[3] / "docs" / "extending.md"
JOB = {"model": "llama3-8b", "cluster": "h100-x8"}
PLAN = {"tp": 2, "zero": 3, "sp": True, "recompute": "none", "mbs": 1}


def write_package(folder: Path) -> None:
    """Write the files of the section, and what pip would write of its line."""
    section = DOCS.read_text(encoding="utf-8").partition("## Add a framework")[2]
    section = section.partition("\n## ")[0]
    blocks = re.findall(r"^```python\n# (\S+)\n(.*?)^```$", section, re.M | re.S)
    assert [name for name, _ in blocks] == [
        f"plain_trainer/{name}.py" for name in ("__init__", "rules", "files")
    ]
    for name, text in blocks:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    group, line = re.findall(r'^\[project\.entry-points\."(.+)"\]\n(.+)$', section, re.M)[0]
    info = folder / "plain_trainer-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plain_trainer\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{line.replace(chr(34), '')}\n")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("site")
    write_package(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.chdir(folder)
        registry.refresh()
        yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "plain_trainer"]:
        del sys.modules[name]
    registry.refresh()


@pytest.fixture(scope="module")
def answer(installed: Path) -> dict[str, Any]:
    return solve(*JOB.values(), framework="plain", top=3).to_json()


def test_it_is_listed_after_our_own(installed: Path) -> None:
    assert registry.framework_names()[-1] == "plain"
    assert registry.framework_spaces()[-2:] == ("plain", "any")
    assert framework("plain").title == "Plain trainer"
    assert {"PLN100", "PLN101", "PLN102"} <= rules_by_code().keys()


def test_its_rules_restrict_the_search(answer: dict[str, Any]) -> None:
    assert answer["plans"]
    for plan in answer["plans"]:
        assert plan["layout"]["pp"] == 1
        assert "plain" in plan["runs_on"]
    masked = evaluate(*JOB.values(), pins={"pp": 2, "tp": 2, "zero": 1}).plans[0].layout
    model = load_model(JOB["model"])
    assert refusals("plain", masked, model.shape, model.job) == (
        "pipeline of 2 stages: there are none; closest: pp 1",
    )


def test_the_command_line_writes_reads_and_explains(installed: Path) -> None:
    words = [f"{axis}={value}" for axis, value in PLAN.items() if axis != "sp"]
    done = run_here(
        "solve", *JOB.values(), "--framework", "plain", "--pin", ",".join(words), "--top", "1"
    )
    assert done.returncode == 0, done.stderr
    done = run_here("emit", "last#1", "--for", "plain", "--out", "out", "--launcher", "slurm")
    assert done.returncode == 0, done.stderr
    (folder,) = Path("out").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == [
        "plain.json",
        "plain.sh",
        "slurm-plain.sbatch",
    ]
    explained = run_here("explain", "last#1")
    assert explained.returncode == 0, explained.stderr
    checked = run_here(
        "check", str(folder / "plain.json"), "h100-x8", "--model", "llama3-8b", "--format", "json"
    )
    report = json.loads(checked.stdout)
    assert (report["framework"], report["release"], report["accepted"]) == ("plain", "1.0", True)
    assert report["plan"]["layout"]["tp"] == 2
    assert "PLN102" in run_here("rule", "PLN102").stdout
    Path("notes.txt").write_text("nothing of a run")
    assert "Plain trainer JSON" in " ".join(
        run_here("check", "notes.txt", "h100-x8").stderr.split()
    )


def test_a_plan_that_it_does_not_run_is_refused_in_its_words(installed: Path) -> None:
    plan = evaluate(*JOB.values(), pins={"pp": 2, "tp": 2, "zero": 1}).plans[0]
    assert "plain" not in plan.runs_on


def test_the_service_has_it(installed: Path, answer: dict[str, Any]) -> None:
    found = call("solve", {**JOB, "framework": "plain", "top": 3})
    assert [plan["plan_id"] for plan in found["plans"]] == [
        plan["plan_id"] for plan in answer["plans"]
    ]
    files = call("emit", {"result": found, "plan": 1, "for": ["plain"]})["files"]
    assert json.loads(files["plain.json"])["trainer"] == "plain"
    with pytest.raises(Refusal) as refused:
        call("solve", {**JOB, "framework": "plainer"})
    assert "plain" in refused.value.detail
    named, free = SolveBody.model_json_schema()["properties"]["framework"]["anyOf"]
    assert set(named["enum"]) - {""} == set(registry.framework_spaces())
    assert free == {"type": "string"}


def test_a_framework_that_cannot_be_loaded_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[planner.frameworks]\nbroken = nowhere:FRAMEWORK\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.refresh()
    try:
        with pytest.warns(UserWarning, match="framework broken"):
            assert "broken" not in registry.framework_names()
    finally:
        monkeypatch.undo()
        registry.refresh()
