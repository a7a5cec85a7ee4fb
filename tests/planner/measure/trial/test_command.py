"""`planner trial`: shortlist, scripts, and the logs read back, through the command line."""

import json
import os
import re
from pathlib import Path

import pytest

from tests.planner.command import run_here
from tests.planner.measure.trial.test_logs import megatron

QUESTION = ("trial", "llama3-8b", "h100-x8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("trial")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        done = run_here(*QUESTION, "--pin", "pp=1", "--out", str(place / "t"))
    assert done.returncode == 0, done.stderr
    assert "with probability" in done.stdout
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 100
    return place / "t"


def copied(written: Path, folder: Path) -> tuple[Path, list[dict[str, object]]]:
    """Return a copy of a trial without logs, and its plans."""
    import shutil

    shutil.copytree(written, folder / "t")
    return folder / "t", json.loads((folder / "t" / "trial.json").read_text())["plans"]


def log(place: Path, plan: dict[str, object], factor: float, **more: object) -> None:
    """Write the log of a run that took `factor` times its prediction."""
    step = factor * float(str(plan["predicted_s"]))
    lines = [megatron(i, step * (3 if i == 1 else 1), **more) for i in range(1, 26)]  # type: ignore[arg-type]
    (place / str(plan["folder"]) / "log.txt").write_text("\n".join(lines) + "\n")


def test_the_runs_are_short_and_keep_nothing(written: Path) -> None:
    plans = json.loads((written / "trial.json").read_text())["plans"]
    assert len(plans) == 3
    readme = (written / "README.md").read_text()
    for plan in plans:
        script = written / plan["folder"] / "megatron.sh"
        assert os.access(script, os.X_OK)
        text = script.read_text()
        assert re.search(r"--train-iters 25\b", text)
        assert "--log-interval 1 " in text
        assert not re.search(r"^ +.*--save", text, re.M)
        assert f"bash {plan['folder']}/megatron.sh --log-memory-interval 5" in readme
    assert "planner trial --read ." in readme
    assert "Written by `planner trial llama3-8b h100-x8" in readme


def test_megatron_knows_the_flag_that_a_trial_adds() -> None:
    from planner.frameworks.megatron.flags import flag_table
    from planner.frameworks.registry import framework

    command = framework("megatron").start_command
    assert set(re.findall(r"--[a-z-]+", command)) <= set(flag_table()[1])


@pytest.mark.slow
def test_every_framework_has_its_start(folder: Path) -> None:
    from planner.frameworks.registry import framework, frameworks

    assert all(one.start_command and one.log_note for one in frameworks())
    for name in ("torchtitan", "deepspeed"):
        done = run_here(*QUESTION, "--framework", name, "--out", name, "--steps", "30")
        assert done.returncode == 0, done.stderr
        started = framework(name).start_command.split(" ")[0]
        scripts = list(Path(name).glob(f"*/{started}"))
        assert len(scripts) == 3
        texts = [path.read_text() for path in Path(name).glob("*/*") if path.is_file()]
        assert (
            sum(bool(re.search(r"steps[\"= ]+30\b|--train-steps 30", text)) for text in texts) >= 3
        )


@pytest.mark.slow
def test_the_fastest_measured_is_first(written: Path, folder: Path) -> None:
    place, plans = copied(written, folder)
    for plan, factor in zip(plans, (1.20, 1.05, 1.12), strict=True):
        log(place, plan, factor)
    done = run_here("trial", "--read", "t", "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [one["step_time_s"] is not None for one in found["logs"]] == [True] * 3
    measured = [row for row in found["plans"] if row["measured"]]
    assert measured[0]["plan_id"] == plans[1]["plan_id"]
    assert measured[0]["step_time_s"] == pytest.approx(1.05 * plans[1]["predicted_s"], rel=1e-4)
    times = [row["step_time_s"] for row in found["plans"]]
    assert times == sorted(times)
    assert found["calibration"]["anchored"]
    factors = found["calibration"]["anchors"].values()
    assert all(1.0 < x < 1.3 for x in factors)
    text = run_here("trial", "--read", "t").stdout
    assert f"{measured[0]['plan_id']}" in text
    assert "was." in text or "stays first" in text


@pytest.mark.slow
def test_the_reference_that_is_written_gives_the_same_anchors(written: Path, folder: Path) -> None:
    place, plans = copied(written, folder)
    for plan, factor in zip(plans, (1.20, 1.05, 1.12), strict=True):
        log(place, plan, factor)
    found = json.loads(run_here("trial", "--read", "t", "--format", "json").stdout)
    done = run_here("calibrate", "--reference", "t/reference.yaml", "--format", "json")
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)["calibration"]["values"]
    assert values["anchor.compute"] == found["calibration"]["anchors"]["compute"]
    solved = run_here(
        "solve",
        "t/model.yaml",
        "t/cluster.yaml",
        "--reference",
        "t/reference.yaml",
        "--top",
        "1",
        "--framework",
        "megatron",
        "--format",
        "json",
    )
    assert json.loads(solved.stdout)["calibration"]["hash"] == found["calibration"]["hash"]


@pytest.mark.slow
def test_a_plan_out_of_memory_is_out(written: Path, folder: Path) -> None:
    place, plans = copied(written, folder)
    log(place, plans[1], 1.05)
    out = place / str(plans[0]["folder"]) / "log.txt"
    out.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    found = json.loads(run_here("trial", "--read", "t", "--format", "json").stdout)
    assert found["out_of_memory"] == [plans[0]["plan_id"]]
    assert plans[0]["plan_id"] not in [row["plan_id"] for row in found["plans"]]
    assert any("measured peaks set" in note for note in found["notes"])
    text = run_here("trial", "--read", "t").stdout
    assert f"out: {plans[0]['plan_id']} ran out of memory" in text
    assert "no log" in text


@pytest.mark.slow
def test_logs_of_other_runs_are_not_used(written: Path, folder: Path) -> None:
    place, plans = copied(written, folder)
    log(place, plans[0], 0.5, gbs=256)
    log(place, plans[1], 1.05)
    done = run_here("trial", "--read", "t")
    assert done.returncode == 0
    assert "the log is of another run: global batch 256, not 512" in done.stdout
    found = json.loads(run_here("trial", "--read", "t", "--format", "json").stdout)
    assert [one["used"] for one in found["logs"]] == [False, True, False]


@pytest.mark.slow
def test_a_time_that_cannot_be_is_not_used(written: Path, folder: Path) -> None:
    place, plans = copied(written, folder)
    log(place, plans[0], 0.001)
    log(place, plans[1], 1.05)
    done = run_here("trial", "--read", "t")
    assert done.returncode == 0
    assert "times the peak of the devices" in " ".join(done.stdout.split())
    found = json.loads(run_here("trial", "--read", "t", "--format", "json").stdout)
    assert [one["used"] for one in found["logs"]] == [False, True, False]


@pytest.mark.slow
def test_a_log_elsewhere(written: Path, folder: Path) -> None:
    place, plans = copied(written, folder)
    log(place, plans[2], 1.1)
    (place / str(plans[2]["folder"]) / "log.txt").rename("far.log")
    name = str(plans[2]["plan_id"])[:6]
    done = run_here("trial", "--read", "t", "--log", f"{name}=far.log", "--format", "json")
    assert json.loads(done.stdout)["logs"][2]["step_time_s"] is not None


def test_no_logs_change_nothing(written: Path, folder: Path) -> None:
    copied(written, folder)
    done = run_here("trial", "--read", "t")
    assert done.returncode == 3
    assert "nothing to go by" in done.stdout
    assert not Path("t/reference.yaml").exists()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("trial",), "needs MODEL and CLUSTER"),
        (("trial", "--read", "nowhere"), "nowhere/trial.json"),
        (("trial", "llama3-8b", "h100-x8", "--read", "t"), "MODEL does not go with --read"),
        (("trial", "llama3-8b", "h100-x8", "--framework", "nemo"), "unknown framework"),
        (("trial", "llama3-8b", "h100-x8", "--steps", "3"), "--steps must be 10"),
        (("trial", "llama3-8b", "h100-x8", "--log", "a=b"), "--log belongs to --read"),
        (("trial", "llama3-8b", "h100-x8", "--time-limit", "-1"), "--time-limit must be a number"),
        (("trial", "--read", "t", "--steps", "25"), "--steps does not go with --read"),
        (("trial", "--read", "t", "--launcher", "slurm"), "--launcher does not go with --read"),
        (("trial", "llama3-8b", "h100-x8", "--format", "csv"), "table or json"),
    ],
)
def test_mistakes(folder: Path, words: tuple[str, ...], what: str) -> None:
    done = run_here(*words)
    assert done.returncode == (1 if "nowhere" in words else 2)
    assert what in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_nothing_fits(folder: Path) -> None:
    done = run_here("trial", "llama3-70b", "h100-x8")
    assert done.returncode == 3
    assert "No plan" in done.stdout or "fits" in done.stdout


def test_a_damaged_folder(written: Path, folder: Path) -> None:
    place, _ = copied(written, folder)
    (place / "trial.json").write_text("{")
    done = run_here("trial", "--read", "t")
    assert done.returncode == 1
    assert "is not as written" in done.stderr
