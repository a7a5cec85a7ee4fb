"""`planner sweep` as a user meets it: a run, a second one, a dry run, progress, errors."""

import csv
import io
from collections import Counter
from pathlib import Path

import pytest

from planner.cli.arguments import short_time
from planner.cli.commands.sweep import ProgressLine, progress_text, sweep_run_text
from planner.sweeps import estimate as estimating
from planner.sweeps.estimate import Timing, estimate, work_s
from planner.sweeps.run import SweepProgress, SweepRun
from planner.sweeps.spec.spec import sweep_from_options
from tests.planner.command import run_here

SMALL = ("llama3-8b", "h100-x8", "--pin", "tp=2,zero=1", "--quiet", "--executor", "serial")
VARY = ("--vary", "pools.0.price_per_hour=2,3", "--vary", "training.global_batch=64..128*2")


def test_a_sweep_from_the_first_point_to_nothing_to_do(tmp_path: Path):
    out = tmp_path / "rows.csv"
    words = ("sweep", *SMALL, *VARY, "--let", "mw=facility_power / 1 MW", "-o", str(out))
    first = run_here(*words)
    assert (first.returncode, first.stderr) == (0, "")
    lead, wrote, _ = first.stdout.partition(f"\nwrote {out}: 4 points (4 ok)\n")
    assert wrote
    assert lead.startswith("Best is ")
    assert "global batch across, price per hour ($) down" in " ".join(lead.split())
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert [(r["in.pools.0.price_per_hour"], r["in.training.global_batch"]) for r in rows] == [
        ("2.0", "64"),
        ("2.0", "128"),
        ("3.0", "64"),
        ("3.0", "128"),
    ]
    # 8 devices of 700 W, 1.3 in the node and 1.2 in the building
    assert [float(r["let.mw"]) for r in rows] == pytest.approx([8 * 700 * 1.56e-6] * 4)
    assert {r["best.tp"] for r in rows} == {"2"}
    assert rows[0]["best.step_time_s"] == rows[2]["best.step_time_s"]
    ratio = [float(r["best.usd_per_million_tokens"]) for r in rows]
    assert ratio[2] / ratio[0] == pytest.approx(1.5)
    written = out.read_bytes()

    again = run_here(*words)
    assert again.stdout == f"{lead}\n{out} is this sweep already: 4 points, nothing to do\n"
    assert out.read_bytes() == written
    other = run_here(*words, "--where", "n_devices > 1")
    assert other.returncode == 1
    assert "holds another sweep" in " ".join(other.stderr.split())

    listed = run_here("sweep", str(out))
    assert listed.returncode == 2
    assert "is the result of a sweep" in " ".join(listed.stderr.split())


def test_a_dry_run_counts_and_times_and_writes_nothing(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run_here("sweep", *SMALL, *VARY, "--where", "training.global_batch < 100", "--dry-run")
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert lines[0].startswith("sweep llama3-8b-h100-x8 (")
    assert lines[1:5] == [
        "  pools.0.price_per_hour: 2 values: 2, 3",
        "  training.global_batch: 2 values: 64, 128",
        "points: 4 before constraints, 2 after",
        "  1 differ from others in price, power or failures alone and need no search",
    ]
    assert lines[5].startswith("time: about ")
    assert lines[5].endswith("on one processor of this machine, as busy as it is now")
    assert "timed: 1 point of 1 of 1 groups" in lines[6]
    assert list(tmp_path.iterdir()) == []


def test_check_spec_reads_sweep_files_and_solve_refuses_them(tmp_path: Path):
    file = tmp_path / "s.yaml"
    file.write_text(
        "model: llama3-8b\ncluster: h100-x8\nvary:\n  training.seq_len: 1024..4096*2\n"
        "  pools.0.accelerator.memory: 80 GB..100 GB\ndesign: latin\nsamples: 5\n"
    )
    done = run_here("check-spec", str(file))
    assert done.stdout.splitlines()[0] == f"{file}: a sweep file, no problems found"
    assert done.stdout.splitlines()[2:] == [
        "    training.seq_len: 3 values: 1024, 2048, 4096",
        "    pools.0.accelerator.memory: 80 to 100 GB",
        "  points: 5",
    ]
    refused = run_here("solve", str(file), "h100-x8")
    assert "this is a sweep file, and a model file is needed here" in " ".join(
        refused.stderr.split()
    )


def test_no_point_left_says_what_each_constraint_leaves(tmp_path: Path):
    where = ("--where", "n_devices > 100", "--where", "training.global_batch < 100")
    for more in (("--dry-run",), ("-o", str(tmp_path / "x.jsonl"))):
        done = run_here("sweep", *SMALL, *VARY, *where, *more)
        assert done.returncode == 1
        assert "'n_devices > 100' leaves 0 of 4" in " ".join(done.stderr.split())
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("llama3-8b", "h100-x8"), 1, "the sweep varies nothing"),
        (("a", "b", "c"), 2, "or a model and a cluster, not 3 names"),
        (("nothing.yaml",), 1, "nothing.yaml: no such file"),
        ((*SMALL, "--vary", "pools.0.nodes=1,,2"), 2, "an empty value in '1,,2'"),
        ((*SMALL, "--vary", "pools.0.nodes="), 1, "has no values"),
        ((*SMALL, "--vary", "pools.0.nodes=1..1e9+1"), 1, "1,000,000,000 values"),
        ((*SMALL, *VARY, "--executor", "gpu"), 2, "unknown 'gpu'"),
        ((*SMALL, *VARY, "--format", "xls"), 2, "--format: unknown 'xls'"),
        ((*SMALL, *VARY, "--let", "x"), 2, "is not of the form NAME=EXPRESSION"),
        ((*SMALL, *VARY, "--let", "x=y"), 1, "unknown name 'y'"),
        ((*SMALL, *VARY, "--point-limit", "0"), 2, "--point-limit must be a number above 0"),
        ((*SMALL, *VARY, "--pin", "tq=1"), 2, "unknown axis 'tq'"),
        ((*SMALL, *VARY, "--framework", "jax"), 1, "--framework: unknown 'jax'"),
        ((*SMALL, *VARY, "--set", "pools.0.nics=1"), 1, "--set pools.0.nics=1: unknown field"),
        ((*SMALL, *VARY, "-o", "/proc/none/x.csv"), 1, "cannot write /proc/none"),
    ],
)
def test_each_bad_command_has_one_message(words, code, message):
    done = run_here("sweep", *words)
    assert done.returncode == code
    assert message in " ".join(done.stderr.split())
    assert done.stderr.count("error: ") == 1
    assert not done.stdout


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def progress(n_done: int, **more: int) -> SweepProgress:
    statuses = Counter({"ok": n_done - sum(more.values()), **more})
    return SweepProgress(n_done, 200, 0, statuses, 10.0, 30.0 if n_done else None)


def test_progress_is_a_bar_on_a_terminal_and_a_line_now_and_then_elsewhere():
    now = [0.0]
    screen, file = Terminal(), io.StringIO()
    bar, lines = (ProgressLine(stream, lambda: now[0]) for stream in (screen, file))
    for n_done, time_s in ((0, 0.0), (10, 0.05), (50, 5.0), (50, 40.0), (200, 41.0)):
        now[0] = time_s
        bar(progress(n_done))
        lines(progress(n_done))
    bar.close()
    drawn = screen.getvalue().split("\r\x1b[K")
    assert drawn[1:-1] == [
        "[........................] 0/200 points (0%)",
        "[######..................] 50/200 points (25%), 5 a second, about 30 s left",
        "[######..................] 50/200 points (25%), 5 a second, about 30 s left",
        "[########################] 200/200 points (100%)",
    ]
    assert file.getvalue() == "50/200 points (25%), 5 a second, about 30 s left\n"


def test_what_went_otherwise_is_counted():
    assert progress_text(progress(50, failed=3, infeasible=7)).endswith("3 failed, 7 infeasible")
    statuses = Counter(ok=5, infeasible=2)
    run = SweepRun(Path("x.csv"), 10, 10, 3, statuses)
    assert sweep_run_text(run).splitlines()[0] == (
        "wrote x.csv: 10 points (2 infeasible, 5 ok, 3 of an earlier run)"
    )
    stopped = sweep_run_text(SweepRun(Path("x.csv"), 10, 4, 0, statuses, interrupted=True))
    assert "4 of 10 points are in x.csv.partial" in stopped
    assert "the same command goes on where it stopped" in stopped


def test_times_are_rounded_to_what_anybody_reads():
    times = [0.2, 59.6, 61, 3599, 3661, 86400 + 7 * 3600, 3 * 86400]
    assert [short_time(x) for x in times] == [
        "1 s",
        "1 min",
        "1 min 1 s",
        "59 min 59 s",
        "1 h 1 min",
        "1 day 7 h",
        "3 days",
    ]


def test_groups_that_were_not_timed_take_what_lies_between():
    timings = [Timing(0.0, 3.0, (0.5, 1.5)), Timing(1.0, 1.0)]
    # 3 + 1, then 2 for the first of the middle group and 1 for each next one, then 1.
    assert work_s([2, 4, 1], timings, 0) == pytest.approx((3 + 1) + (2 + 3 * 1) + 1)
    assert work_s([2, 4, 1], timings, 100) == pytest.approx(10 + 100 * estimating.TWIN_S)
    assert work_s([], [], 5) is None


def test_large_sweeps_are_counted_by_a_part_of_their_combinations(monkeypatch):
    monkeypatch.setattr(estimating, "COUNTED", 200)
    monkeypatch.setattr(estimating, "_seconds", lambda solver, one: 0.5)
    vary = ["pools.0.nodes=1..100+1", "pools.0.price_per_hour=1..10+1"]
    sweep = sweep_from_options("llama3-70b", "h100-x512", vary, {"where": ["n_devices > 400"]})
    found = estimate(sweep, executor="serial")
    assert not found.exact
    assert found.n_combinations == 1000
    assert found.n_points == pytest.approx(500, abs=60)
    assert found.n_searches == pytest.approx(50, abs=6)  # ten prices a search
    assert found.work_s == pytest.approx(50 * 0.5 + 450 * estimating.TWIN_S, rel=0.2)
