"""Reference runs: files with their faults, anchoring through the whole cost model."""

import math
from pathlib import Path

import pytest

import planner
from planner.errors import SpecError
from planner.solver.calibration.anchors import believed
from planner.solver.calibration.file import load_calibration
from planner.solver.calibration.parameters import ANCHORS, HELD
from planner.solver.calibration.reference import anchored, read_reference, reference_json
from planner.solver.options import SolveOptions
from planner.units import GIB
from tests.planner.command import run_here

RUN = """\
- model: llama3-8b
  cluster: h100-x8
  layout: {tp: 2, mbs: 1}
  step_time_s: 61.0
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(text: str) -> str:
    Path("run.yaml").write_text(text)
    return "run.yaml"


def after_one_run(measured_s: float, predicted_s: float) -> float:
    """Return what the measured layout itself is then predicted to take, seconds."""
    return predicted_s * math.exp(believed(math.log(measured_s / predicted_s), 1))


def test_the_measured_run_is_predicted_nearer_to_what_was_measured(folder: Path) -> None:
    asked = ("llama3-8b", "h100-x8")
    plain = planner.evaluate(*asked, pins={"tp": 2, "mbs": 1}).plans[0].step_time_s
    found = planner.evaluate(*asked, pins={"tp": 2, "mbs": 1}, reference=written(RUN))
    assert found.plans[0].step_time_s == pytest.approx(after_one_run(61.0, plain), rel=1e-5)
    assert plain < found.plans[0].step_time_s < 61.0


def test_other_layouts_scale_by_the_same_factor(folder: Path) -> None:
    pins = {"tp": 4, "pp": 2, "mbs": 2, "recompute": "full"}
    plain = planner.evaluate("llama3-8b", "h100-x8", pins=pins)
    run = planner.evaluate("llama3-8b", "h100-x8", pins={"tp": 2, "mbs": 1})
    found = planner.evaluate("llama3-8b", "h100-x8", pins=pins, reference=written(RUN))
    ratio = after_one_run(61.0, run.plans[0].step_time_s) / run.plans[0].step_time_s
    assert found.plans[0].step_time_s == pytest.approx(
        ratio * plain.plans[0].step_time_s, rel=1e-5
    )
    assert found.result_id != plain.result_id
    assert found.calibration["anchored"]
    assert found.calibration["anchored_by"] == [
        "llama3-8b on h100-x8, tp2 pp1 dp4 vpp1 zero1 mbs1: 61 s"
    ]
    assert list(found.calibration["anchors"].values()) == pytest.approx([ratio] * 3, rel=1e-5)


@pytest.mark.slow
def test_output_says_that_it_is_anchored(folder: Path) -> None:
    solved = run_here("solve", "llama3-8b", "h100-x8", "--top", "1", "--reference", written(RUN))
    assert solved.returncode == 0
    assert "anchored: all times x" in solved.stdout
    assert "tp2 pp1 dp4 vpp1 zero1 mbs1: 61 s" in solved.stdout
    assert "anchored by 1 measured step" in run_here("explain", "last#1").stdout
    asked = run_here(
        "recommend",
        "micro-batch",
        "llama3-8b",
        "h100-x8",
        "--reference",
        "run.yaml",
        "--pin",
        "tp=8",
    )
    assert "--reference run.yaml" in asked.stdout
    assert "anchored: all times x" in asked.stdout


def test_calibrate_writes_an_anchored_file_that_solve_takes(folder: Path) -> None:
    done = run_here("calibrate", "--reference", written(RUN), "--out", "mine.yaml")
    assert done.returncode == 0, done.stderr
    assert "times that" in done.stdout
    found = load_calibration("mine.yaml")
    assert len(found.anchored_by) == 1
    one = planner.evaluate(
        "llama3-8b", "h100-x8", pins={"tp": 2, "mbs": 1}, calibration="mine.yaml"
    )
    plain = planner.evaluate("llama3-8b", "h100-x8", pins={"tp": 2, "mbs": 1})
    wanted = after_one_run(61.0, plain.plans[0].step_time_s)
    assert one.plans[0].step_time_s == pytest.approx(wanted, rel=1e-5)
    wrong = run_here("calibrate", "--reference", "run.yaml", "--fit", "generation")
    assert wrong.returncode == 2
    assert "--fit does not go with --reference" in wrong.stderr
    idle = run_here("calibrate", "--reference", "run.yaml", "--processes", "2")
    assert "--processes does not go with --reference" in idle.stderr


def test_measured_memory_moves_the_predicted_peak(folder: Path) -> None:
    pins = {"tp": 8, "mbs": 1}
    plain = planner.evaluate("llama3-8b", "h100-x8", pins=pins).plans[0].breakdown
    peak = plain.peak_bytes + 2 * GIB
    text = RUN.replace("{tp: 2, mbs: 1}", "{tp: 8, mbs: 1}").replace("61.0", "70.0")
    text += f"  peak_memory: {peak / GIB:.4f} GiB\n"
    found = planner.evaluate("llama3-8b", "h100-x8", pins=pins, reference=written(text))
    assert found.plans[0].breakdown.peak_bytes == pytest.approx(peak, rel=0.003)
    assert found.plans[0].breakdown.peak_bytes >= peak * (1 - 1e-4)
    assert any("measured peaks set" in note for note in found.notes)


def test_memory_beyond_all_slack_is_charged_to_every_plan(folder: Path) -> None:
    text = RUN.replace("{tp: 2, mbs: 1}", "{tp: 8, mbs: 1}") + "  peak_memory: 79 GiB\n"
    options = SolveOptions()
    found = anchored(options.calibration, read_reference(written(text), options))
    assert found.calibration.value(HELD) > 10 * GIB
    assert any("beyond" in note or "charged" in note for note in found.notes)
    run = read_reference("run.yaml", options)[0]
    assert run.priced(found.calibration).peak_bytes >= 79 * GIB * (1 - 1e-6)


def test_a_file_of_one_run_needs_no_list(folder: Path) -> None:
    text = "\n".join(line[2:] for line in RUN.splitlines())
    runs = read_reference(written(text), SolveOptions())
    assert [run.step_s for run in runs] == [61.0]


def test_files_beside_the_reference_are_found(folder: Path) -> None:
    Path("deep").mkdir()
    Path("deep/m.yaml").write_bytes(Path(_example("models", "llama3-8b")).read_bytes())
    Path("deep/run.yaml").write_text(RUN.replace("llama3-8b", "m.yaml"))
    assert read_reference("deep/run.yaml", SolveOptions())[0].model.shape.layers == 32


def _example(kind: str, name: str) -> str:
    root = Path(__file__).resolve().parents[4] / "examples"
    return str(next(root.rglob(f"{name}.yaml")))


def test_what_is_written_reads_back(folder: Path) -> None:
    run = read_reference(written(RUN + "  peak_memory: 60 GiB\n"), SolveOptions())[0]
    import yaml

    Path("again.yaml").write_text(yaml.safe_dump(reference_json(run, "llama3-8b", "h100-x8")))
    again = read_reference("again.yaml", SolveOptions())[0]
    assert again.layout == run.layout
    assert (again.step_s, again.peak_bytes) == (run.step_s, run.peak_bytes)


def test_anchoring_twice_does_not_add_up(folder: Path) -> None:
    options = SolveOptions()
    runs = read_reference(written(RUN), options)
    once = anchored(options.calibration, runs).calibration
    twice = anchored(once, runs).calibration
    assert [once.value(x) for x in ANCHORS] == [twice.value(x) for x in ANCHORS]
    assert once.content_hash == twice.content_hash


def test_a_step_far_off_is_explained(folder: Path) -> None:
    solved = run_here(
        "evaluate",
        "llama3-8b",
        "h100-x8",
        "--pin",
        "tp=2",
        "--reference",
        written(RUN.replace("61.0", "400")),
    )
    assert solved.returncode in (0, 3)
    said = " ".join(solved.stdout.split())
    assert "times slower than predicted" in said
    assert "warm-up" in said


def test_runs_of_other_software_are_pointed_out(folder: Path) -> None:
    text = RUN + "  framework: torchtitan\n"
    solved = run_here("solve", "llama3-8b", "h100-x8", "--top", "1", "--reference", written(text))
    assert "measured with torchtitan, plans are priced with megatron-core" in solved.stdout


FAULTS = [
    (RUN.replace("61.0", "0.061"), "run.yaml:4", "times the peak of the devices"),
    (RUN.replace("61.0", "61000"), "run.yaml:4", "not ms"),
    (RUN.replace("61.0", "soon"), "run.yaml:4", "is no time"),
    (RUN.replace("  step_time_s: 61.0\n", ""), "run.yaml:1", "needs step_time_s"),
    (RUN.replace("step_time_s", "step_time"), "run.yaml:4", "did you mean step_time_s?"),
    (RUN.replace("tp: 2", "tp: 3"), "run.yaml:3", "not a multiple"),
    (RUN.replace("tp: 2", "tp: 2, zero: 2, pp: 2"), "run.yaml:3", "ZER001"),
    (RUN.replace("tp: 2", "tq: 2"), "run.yaml:3", "unknown axis"),
    (RUN.replace("llama3-8b", "llama3-9b"), "", "llama3-8b"),
    (RUN + "  peak_memory: 300 GiB\n", "run.yaml:5", "the device has"),
    (RUN + "  peak_memory: 60\n", "run.yaml:5", "GiB"),
    (RUN + "  memory: all\n", "run.yaml:5", "allocated, reserved, device"),
    (RUN + "  framework: nemo\n", "run.yaml:5", "unknown framework"),
    (RUN + "  out_of_memory: true\n", "run.yaml:4", "has no step time"),
    (RUN * 4, "run.yaml:1", "1 to 3 runs"),
    ("- 3\n", "run.yaml:1", "no measured runs"),
]


@pytest.mark.parametrize(("text", "where", "what"), FAULTS)
def test_faults_say_where_and_what(folder: Path, text: str, where: str, what: str) -> None:
    def use() -> None:
        options = SolveOptions()
        anchored(options.calibration, read_reference(written(text), options))

    with pytest.raises(SpecError) as caught:
        use()
    assert where in str(caught.value)
    assert what in str(caught.value)


def test_a_name_that_no_file_may_have_is_refused_and_a_long_one_stays_readable(
    folder: Path,
) -> None:
    words = ("calibrate", "--reference", written(RUN), "--out", "mine.yaml")
    done = run_here(*words, "--name", "n" * 81)
    assert done.returncode == 2
    assert "--name of 81 characters" in done.stderr
    Path("base.yaml").write_text(f"name: {'n' * 80}\nvalues: {{shared.node_spread: 0.03}}\n")
    assert run_here(*words, "--from", "base.yaml").returncode == 0
    assert load_calibration("mine.yaml").name == "n" * 70 + ", anchored"


def test_it_begins_at_the_priors_like_every_other_fit(folder: Path) -> None:
    words = ("calibrate", "--reference", written(RUN), "--from", "priors", "--out", "mine.yaml")
    assert run_here(*words).returncode == 0
    assert set(load_calibration("mine.yaml").values) == set(ANCHORS)


def test_a_set_that_is_wrong_names_the_file(folder: Path) -> None:
    done = run_here("calibrate", "--reference", written(RUN + "  set: {training.nope: 2}\n"))
    assert done.returncode == 1
    assert "training.nope: unknown key" in done.stderr
