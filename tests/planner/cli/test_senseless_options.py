"""Options that contradict each other or say nothing: one clear error, never an empty answer."""

from pathlib import Path

import pytest

import planner
from planner.cli.commands.scaling.batch_solve import show_batch
from planner.errors import SearchError, SpecError, UsageError
from planner.specs.loader import load_model
from tests.planner.command import run_here

JOB = ("solve", "llama3-8b", "h100-x8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--pin", "tp=4", "--max", "tp=2"), "--pin tp=4 and --max tp=2 contradict each other"),
        (("--only", "tp=4,8", "--max", "tp=2"), "--only tp=4,8 and --max tp=2 contradict"),
        (("--pin", "devices=8", "--max", "devices=4"), "--pin devices=8 and --max devices=4"),
        (("--step-limit", "0"), "--step-limit must be a number above 0, not 0"),
        (("--step-limit", "-2.5"), "--step-limit must be a number above 0, not -2.5"),
        (("--time-limit", "0"), "--time-limit must be a number above 0, not 0"),
        (("--time-limit", "nan"), "--time-limit must be a number above 0, not nan"),
        (("--objective", "memory", "--within", "0"), "--within must be a number above 0, not 0"),
    ],
)
def test_a_usage_error_says_what_is_wrong(options: tuple[str, ...], message: str) -> None:
    done = run_here(*JOB, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert "  fix: " in done.stderr


def test_no_micro_batches_are_none_to_draw() -> None:
    done = run_here("trace", "last#1", "--micro-batches", "0")
    assert done.returncode == 2
    assert "--micro-batches must be a number above 0, not 0" in done.stderr


def test_a_bound_that_leaves_something_is_no_contradiction() -> None:
    found = planner.solve(
        "llama3-8b",
        "h100-x8",
        pins={"pp": 1, "cp": 1, "mbs": 1},
        only={"tp": [2, 8]},
        at_most={"tp": 2},
        top=1,
    )
    assert found.best.layout.tp == 2


@pytest.mark.parametrize("pins", [{"dp_shard": 3}, {"dp_shard": 8, "tp": 2}])
def test_groups_that_no_plan_has_are_the_same_error_in_solve_and_evaluate(
    pins: dict[str, int],
) -> None:
    ranks = 8 // pins.get("tp", 1)
    message = f"dp_shard {pins['dp_shard']} cuts the {ranks} ranks of dp x cp into no equal groups"
    for ask in (planner.solve, planner.evaluate):
        with pytest.raises(SearchError, match=message) as refused:
            ask("llama3-8b", "h100-x8", pins=pins)
        assert refused.value.hint == f"a divisor of {ranks} above 1, or drop dp_shard"


def test_pinned_groups_stay_although_whole_ones_would_be_as_fast() -> None:
    pins = {"dp_shard": 4, "tp": 1, "mbs": 1, "zero": 3}
    found = planner.solve("llama3-8b", "h100-x8", pins=pins)
    assert {plan.layout.dp_shard for plan in found.plans} == {4}
    few = planner.solve("llama3-8b", "h100-x8", at_most={"dp_shard": 2}, pins={"mbs": 1})
    assert {plan.layout.dp_shard for plan in few.plans} <= {1, 2}


PLAIN = (Path(__file__).parents[3] / "examples/models/llama3-8b.yaml").read_text()


@pytest.mark.parametrize(
    ("section", "place", "message"),
    [
        ("only: {tp: }", (2, 12), "search.only.tp: expected a number or a word, got nothing"),
        ("pin: {tp: }", (2, 11), "search.pin.tp: expected a number or a word, got nothing"),
        ("only: {tp: [4, null]}", (2, 18), "search.only.tp.1: expected a number or a word"),
        ("max: {pp: [1, 2]}", (2, 13), "search.max.pp: expected a number or a word, got a list"),
        ("pin: {tp: 4}\n  max: {tp: 2}", (3, 13), "search.max.tp: 2 leaves nothing of pin: tp 4"),
        ("only: {tp: [4, 8]}\n  max: {tp: 2}", (3, 13), "leaves nothing of only: tp 4, 8"),
        ("step_limit_s: 0", (2, 17), "search.step_limit_s: 0 is out of range"),
        ("time_limit_s: 0", (2, 17), "search.time_limit_s: 0 is out of range"),
    ],
)
def test_a_senseless_section_is_one_problem_with_its_line(
    section: str, place: tuple[int, int], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"{PLAIN.rstrip()}\nsearch:\n  {section}\n")
    with pytest.raises(SpecError) as refused:
        load_model(str(file))
    (problem,) = refused.value.problems
    before = PLAIN.rstrip().count("\n") + 1
    line, column = place
    assert message in str(problem)
    assert (problem.line, problem.column) in ((before + line, column), (before + line, column + 1))
    assert problem.hint


def test_the_library_refuses_contradictions_too() -> None:
    with pytest.raises(UsageError, match="contradict each other"):
        planner.solve("llama3-8b", "h100-x8", pins={"zero": 2}, at_most={"zero": 1})


def test_a_file_of_a_batch_names_what_is_neither_name_nor_content(tmp_path: Path) -> None:
    file = tmp_path / "batch.yaml"
    file.write_text("jobs: {a: null}\nclusters: {b: 8xh100}\ncounts: [8]\n")
    done = run_here("batch-solve", str(file))
    assert done.returncode == 2
    assert "jobs.a: None is neither a name nor a mapping" in " ".join(done.stderr.split())


FP8 = """jobs:
  good: llama3-8b
  fp8:
    model: {layers: 2, hidden: 512, heads: 4, gated: true, ffn: 1024, vocab: 1000, tied: false}
    training: {seq_len: 512, global_batch: 8, precision: fp8}
clusters: {b: 8xa100}
counts: [8]
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("jobs: {a: llama3-8b, v1.5: nope}", "batch.yaml:1:22: jobs.v1.5: no file"),
        ("jobs:\n  a: {model: {hiden: 4}}", "batch.yaml:2:15: jobs.a.model.hiden: unknown key"),
        ("jobs:\n  a: mine.yaml", "mine.yaml:1:9: jobs.a.model.hiden: unknown key"),
        ("jobs: {a: 3}", "batch.yaml:1:11: jobs.a: 3 is neither"),
        ("jobs: {a: llama3-8b}\nclusters: {b: nope}", "batch.yaml:2:12: clusters.b: no file"),
        (FP8, "batch.yaml:3:3: jobs.fp8 on clusters.b: a100-sxm-80gb has no fp8"),
    ],
)
def test_what_is_wrong_with_one_job_of_a_batch_names_it(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("model: {hiden: 4}\n")
    rest = "" if "clusters" in text else "\nclusters: {b: 8xh100}"
    Path("batch.yaml").write_text(f"{text}{rest}" + ("" if text is FP8 else "\ncounts: [8]\n"))
    done = run_here("batch-solve", "batch.yaml")
    assert (done.returncode in (1, 2), done.stdout) == (True, "")
    assert f"error: {said}" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("jobs: {a: llama3-8b}\nclusters: {b: 8xh100}\n", "`counts` is missing"),
        ("jobs: {}\nclusters: {}\ncounts: [8]\ncount: 8\n", "`count` is an unknown key"),
        ("- 8\n", "must be a mapping of jobs, clusters, counts"),
    ],
)
def test_a_file_of_a_batch_names_its_keys(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "batch.yaml"
    file.write_text(text)
    done = run_here("batch-solve", str(file))
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())


def test_a_batch_says_why_rows_have_no_plan_and_why_some_are_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    columns = dict.fromkeys(("step_time_s", "tokens_per_s", "plan_id"))
    row = {"job": "a", "cluster": "h100", "n_devices": 7, "status": "no layout", **columns}
    data = {"rows": [{**row, "reason": "no whole nodes"}], "n_cells": 3, "stopped": "time limit"}
    assert show_batch(data, "table") == 4
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [
        "no layout: no whole nodes (a on 7 of h100)",
        "stopped by the time limit: 1 of 3 rows; raise --time-limit",
    ]
