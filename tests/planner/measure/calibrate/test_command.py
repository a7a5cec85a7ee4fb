"""`planner calibrate` from a file of runs to a file that `solve` takes."""

import csv
import json
from pathlib import Path

import pytest

from planner.measure.validate.report import DATA
from planner.solver.calibration.file import load_calibration
from planner.solver.calibration.parameters import known_parameters
from tests.planner.command import run_here

FIT = "generation.ampere.gemm_frac,shared.node_spread"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of six runs of one family."""
    with open(DATA / "points.csv", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    chosen = [row for row in rows if row["id"].startswith("ie-") and row["gbs"]][::9]
    path = tmp_path_factory.mktemp("runs") / "ours.csv"
    with open(path, "w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(chosen)
    assert len(chosen) > 4
    return path


def test_from_runs_to_a_calibration_that_prices(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "ours.yaml"
    done = run_here("calibrate", str(runs), "--fit", FIT, "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "generation.ampere.gemm_frac" in done.stdout
    assert f"wrote {out}" in done.stderr
    found = load_calibration(out)
    assert found.name == "ours"
    assert found.provenance["generation.ampere.gemm_frac"] == "fitted"
    shipped = load_calibration()
    changed = {n for n, x in found.values.items() if shipped.values.get(n) != x}
    assert changed <= set(FIT.split(","))
    before = json.loads(run_here("validate", str(runs), "--format", "json").stdout)
    words = ("validate", str(runs), "--format", "json", "--calibration", str(out))
    after = json.loads(run_here(*words).stdout)
    assert after["calibration"]["name"] == "ours"
    (one,), (two,) = before["sources"], after["sources"]
    assert two["step_time"]["median_ape"] <= one["step_time"]["median_ape"]
    solved = run_here("solve", "llama3-8b", "h100-x8", "--calibration", str(out), "--no-cache")
    assert "priced with ours (" in solved.stdout


@pytest.mark.slow
def test_as_json(runs: Path) -> None:
    words = ("calibrate", str(runs), "--fit", FIT, "--format", "json", "--from", "priors")
    found = json.loads(run_here(*words).stdout)
    assert set(found) == {
        "schema_version",
        "calibration",
        "hash",
        "values",
        "refused",
        "families",
        "headline",
    }
    assert [value["name"] for value in found["values"]] == FIT.split(",")
    (family,) = found["families"]
    assert family["left_out"] is None  # it is the only one
    assert family["before"]["n"] == family["after"]["n"]


def test_the_list() -> None:
    lines = run_here("calibrate", "--list").stdout.splitlines()
    assert [line.split("  ")[0] for line in lines] == list(known_parameters())
    data = json.loads(run_here("calibrate", "--list", "--format", "json").stdout)
    assert list(data) == list(known_parameters())


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--fit", "generation.hoper"), "did you mean"),
        (("--fit", "generation.hopper"), "no run sees"),
        (("--format", "csv"), "unknown 'csv'"),
        (("--out", "/nowhere/at/all.yaml"), "there is no folder"),
        (("--from", "none.yaml"), "no such file"),
        (("--name", "n" * 81), "--name of 81 characters"),
    ],
)
def test_what_is_refused(runs: Path, words: tuple[str, ...], text: str) -> None:
    done = run_here("calibrate", str(runs), *words)
    assert done.returncode in (1, 2)
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_runs_of_which_none_can_be_priced(tmp_path: Path) -> None:
    file = tmp_path / "none.csv"
    file.write_text("id,model,hardware,n_gpus\nx-1,nothing,nowhere,8\n")
    done = run_here("calibrate", str(file))
    assert done.returncode == 1
    assert "no run of the file can be priced" in done.stderr


@pytest.mark.slow
def test_anchors_of_a_reference_run_are_not_carried_on(runs: Path, tmp_path: Path) -> None:
    base, out = tmp_path / "anchored.yaml", tmp_path / "c.yaml"
    base.write_text("name: a\nvalues: {anchor.compute: 1.2, shared.node_spread: 0.03}\n")
    words = ("--fit", "stack", "--no-cross-validate", "--from", str(base), "--out", str(out))
    done = run_here("calibrate", str(runs), *words)
    assert done.returncode == 0, done.stderr
    assert "the anchors of a reference run" in done.stderr
    found = load_calibration(out)
    assert "anchor.compute" not in found.values
    assert found.values["shared.node_spread"] == 0.03


def test_the_list_in_an_unknown_format() -> None:
    done = run_here("calibrate", "--list", "--format", "xml")
    assert done.returncode == 2
    assert "unknown 'xml'" in done.stderr
