"""Every command keeps the table of exit codes in docs/results.md."""

import re
from pathlib import Path

import pytest

from tests.planner.command import run_here

DOC = Path(__file__).parents[3] / "docs" / "results.md"
SMALL = ("llama3-8b", "h100-x8")
FILES_THAT_ARE_NOT_THERE = [
    ("solve", "nope", "h100-x8"),
    ("solve", "llama3-8b", "nope"),
    ("solve", "nope.yaml", "h100-x8"),
    ("evaluate", "nope", "h100-x8"),
    ("scale", "nope", "h100-x8"),
    ("recommend", "layout", "nope", "h100-x8"),
    ("check", "nope", "h100-x8"),
    ("check-spec", "nope"),
    ("sweep", "nope"),
    ("measure", "nope"),
    ("solve", *SMALL, "--calibration", "nope"),
    ("solve", *SMALL, "--reference", "nope"),
    ("calibrate", "nope.csv"),
    ("calibrate", "--from", "nope"),
    ("calibrate", "--nccl-tests", "nope"),
    ("calibrate", "--measured", "nope"),
    ("validate", "nope.csv"),
    ("import", "model", "nope"),
    ("import", "cluster", "nope"),
    ("explain", "nope.json#1"),
    ("show", "nope.json#1"),
    ("emit", "nope.json#1"),
    ("place", "nope.json#1"),
    ("replan", "nope.json#1", "--lost", "1"),
    ("diff", "nope.json#1", "nope.json#2"),
    ("neighbours", "nope.json#1"),
    ("trace", "nope.json#1"),
    ("compare", "nope.json", "nope.json#1"),
    ("report", "nope.parquet"),
    ("trial", "--read", "nope"),
    ("explain", "last#1"),
    ("--server", "http://127.0.0.1:9", "--token-file", "nope", "rule"),
]
WRONG_FIELDS = [
    ("solve", *SMALL, "--set", "pools.0.nodez=3"),
    ("solve", *SMALL, "--set", "pools.0.accelerator=nope"),
    ("sweep", *SMALL, "--vary", "pools.0.nodez=1,2"),
    ("evaluate", *SMALL, "--pin", "tp=3"),
    ("import", "cluster", __file__),
]
UNKNOWN_NAMES = [
    ("nope",),
    ("catalog", "nope"),
    ("solve", *SMALL, "--nope"),
    ("solve",),
    ("rule", "NOPE"),
    ("catalog", "show", "nope"),
    ("learn", "nope"),
    ("recommend", "nope", *SMALL),
    ("solve", *SMALL, "--pin", "nope=1"),
    ("solve", *SMALL, "--framework", "nope"),
    ("solve", *SMALL, "--stack", "nope"),
    ("solve", *SMALL, "--pool", "nope"),
    ("solve", *SMALL, "--objective", "nope"),
    ("solve", *SMALL, "--format", "nope"),
    ("solve", *SMALL, "--executor", "nope"),
    ("solve", *SMALL, "--allow", "nope"),
    ("scale", *SMALL, "--over", "nope"),
    ("calibrate", "--fit", "nope"),
    ("validate", "--by", "nope"),
    ("show", "{}#nope"),
    ("show", "{}#77"),
    ("explain", "{}#1", "--term", "nope"),
    ("emit", "{}#1", "--for", "nope"),
    ("emit", "{}#1", "--launcher", "nope"),
    ("replan", "{}#1", "--lost", "1", "--via", "nope"),
    ("replan", "{}#1"),
    ("neighbours", "{}#1", "--framework", "nope"),
]


@pytest.fixture(autouse=True)
def _nothing_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "r.json"
    done = run_here("evaluate", *SMALL, "--pin", "tp=2", "--format", "json", "--no-cache")
    path.write_text(done.stdout)
    return path


@pytest.mark.parametrize("words", [*FILES_THAT_ARE_NOT_THERE, *WRONG_FIELDS], ids=" ".join)
def test_what_a_file_says_is_1(words: tuple[str, ...]) -> None:
    done = run_here(*words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")


@pytest.mark.parametrize("words", UNKNOWN_NAMES, ids=" ".join)
def test_what_the_command_says_is_2(words: tuple[str, ...], result: Path) -> None:
    done = run_here(*(word.format(result) for word in words))
    assert done.returncode == 2
    assert done.stderr.startswith(("error: ", "Usage: "))


def test_an_answer_is_0_3_or_4() -> None:
    assert run_here("rule", "TP002").returncode == 0
    assert run_here("evaluate", *SMALL, "--pin", "tp=1,zero=0,mbs=8").returncode == 3
    assert run_here("solve", *SMALL, "--time-limit", "0.000001").returncode in (3, 4)


def test_the_table_has_every_code_once() -> None:
    table = DOC.read_text().partition("## Exit codes")[2].partition("\n## ")[0]
    assert re.findall(r"^\| (\d+) \|", table, re.MULTILINE) == ["0", "1", "2", "3", "4", "130"]
