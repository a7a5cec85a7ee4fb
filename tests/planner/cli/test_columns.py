"""`--columns` in every form, and windows of 40 columns."""

import csv
import io

import pytest

from planner.render.answers.plan_table import named_columns
from tests.planner.command import run_here

SOLVE = ("solve", "llama3-8b", "h100-x8", "--pin", "tp=2,mbs=1", "--top", "2")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "columns"))


def test_csv_and_markdown_have_the_chosen_columns() -> None:
    plain = list(csv.DictReader(io.StringIO(run_here(*SOLVE, "--format", "csv").stdout)))
    text = run_here(*SOLVE, "--format", "csv", "--columns", "tp,step,tok/s,plan").stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    assert list(rows[0]) == ["tp", "step (s)", "tok/s (/GPU)", "plan"]
    assert [row["plan"] for row in rows] == [row["plan_id"] for row in plain]
    for row, whole in zip(rows, plain, strict=True):
        assert float(row["step (s)"]) == pytest.approx(float(whole["step_time_s"]), abs=5e-4)
        rate = float(whole["tokens_per_s"]) / int(whole["n_devices"])
        assert float(row["tok/s (/GPU)"]) == pytest.approx(rate, abs=0.5)
    table = run_here(*SOLVE, "--format", "md", "--columns", "tp,step").stdout
    assert "| tp | step s |\n" in table
    assert run_here(*SOLVE, "--format", "json", "--columns", "tp").returncode == 2


def test_columns_are_named_once_and_all_stands_alone() -> None:
    assert named_columns("tp,pp,tp") == ("tp", "pp")
    assert named_columns("") == ()
    assert named_columns("all") == ("all",)
    for text in ("all,tp", ",", " , "):
        done = run_here(*SOLVE, "--columns", text)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: --columns: ")
        assert "unknown" not in done.stderr


@pytest.mark.parametrize("words", [("explain", "last", "--term", "tp"), ("show", "last"), ()])
def test_forty_columns_hold_every_line(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of functions cannot be broken; all else is."""
    monkeypatch.setenv("COLUMNS", "40")
    run_here(*SOLVE)
    done = run_here(*words)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) > 5
    assert all(len(line) <= 40 or " " not in line.strip() for line in lines)


def test_an_unknown_value_names_the_option_that_was_typed() -> None:
    done = run_here(*SOLVE, "--task", "lor")
    assert done.returncode == 1
    assert done.stderr.startswith("error: --task lor: unknown value 'lor'")
    assert "did you mean lora?" in done.stderr
    long = run_here(*SOLVE, "--set", "training.task=lor")
    assert "--set training.task=lor" in long.stderr
