"""The command line: output, exit codes, start-up, and what a user gets for a mistake."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from searches import search
from searches.pricing.shard_prices import ShardAnswer
from searches.space.shards import Shard
from tests.planner.command import run_here

ROOT = Path(__file__).resolve().parents[3]
PLANNER = [sys.executable, "-c", "from planner.cli.app import main; main()"]


OTHERS = "--framework torchtitan or --framework automodel or --framework any"
"""Frameworks of schedules that the default ones do not run."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str, **settings: object) -> subprocess.CompletedProcess[str]:
    if not settings:
        return run_here(*words)
    return subprocess.run(
        [*PLANNER, *words], capture_output=True, text=True, check=False, **settings
    )  # type: ignore[call-overload]


def test_solve_show_explain_emit_in_one_sitting(folder: Path) -> None:
    solved = run("solve", "llama3-8b", "h100-x8", "--top", "3")
    assert solved.returncode == 0
    assert solved.stderr == ""
    assert "* " in solved.stdout
    assert max(len(line) for line in solved.stdout.splitlines()) <= 100
    shown = run("show", "last#1")
    assert "memory: stage" in shown.stdout
    explained = run("explain", "last#1")
    assert "├─ device " in explained.stdout
    assert "├─ compute" not in explained.stdout  # a part of what binds, another number
    opened = run("explain", "last#2", "--term", "activations")
    assert "Korthikanti" in opened.stdout
    assert "with this plan's numbers" in opened.stdout
    written = run("emit", "last#1", "--for", "megatron,deepspeed", "--out", "plans")
    assert written.returncode == 0
    scripts = list(folder.glob("plans/1-*/megatron.sh"))
    assert len(scripts) == 1
    assert os.access(scripts[0], os.X_OK)
    assert run("rule", "mem001").stdout.startswith("MEM001")
    assert {"TP002", "MLM302", "TTN401"} <= set(run("rule").stdout.split())
    assert run("rule", "mlm302").stdout.startswith(
        "MLM302: experts with tp and no sequence parallelism"
    )


def test_every_term_opens(folder: Path) -> None:
    from costmodels.documentation.terms import TERMS
    from planner.analyze.explain import explain
    from planner.render.document import text_of
    from planner.solver.answer.result_store import open_plan
    from planner.solver.options import SolveOptions

    run("evaluate", "gpt3-175b", "a100-x1024", "--pin", "tp=8,pp=8,vpp=3,recompute=full")
    _, _, problem, plan = open_plan("last#1")
    for name in TERMS:
        text = text_of(explain(problem, plan, SolveOptions(), name))
        assert "with this plan's numbers:" in text
        assert "costmodels." in text


def test_json_goes_through_a_file(folder: Path) -> None:
    solved = run("solve", "llama3-8b", "h100-x8", "--format", "json", "--no-cache")
    data = json.loads(solved.stdout)
    (folder / "result.json").write_text(solved.stdout)
    plan = data["plans"][1]
    for reference in (
        "result.json#2",
        f"result.json#{plan['plan_id']}",
        f"result.json#{plan['plan_id'][:6]}",
    ):
        shown = run("show", reference, "--format", "json")
        assert json.loads(shown.stdout)["plan_id"] == plan["plan_id"]
        assert shown.stderr == ""
    assert run("show", "last#1").returncode == 1
    plan["step_time_s"] *= 1.25
    (folder / "older.json").write_text(json.dumps(data))
    assert "older.json was priced with shipped by version" in run("show", "older.json#2").stderr
    data["inputs"]["model"]["model"]["layers"] = 16
    (folder / "edited.json").write_text(json.dumps(data))
    assert "edited" in run("show", "edited.json#1").stderr


@pytest.mark.parametrize("form", ["csv", "md"])
def test_other_formats(folder: Path, form: str) -> None:
    text = run("solve", "llama3-8b", "h100-x8", "--format", form, "--top", "4").stdout
    lines = text.splitlines()
    if form == "csv":
        assert len(lines) == 5
    else:
        assert lines[0].startswith("## Use ")
        assert [line.split("|")[1].strip() for line in lines[-4:]] == ["1", "2", "3", "4"]


def test_solve_writes_configurations_of_the_top_plans(folder: Path) -> None:
    done = run(
        "solve", "llama3-8b", "h100-x8", "--top", "2", "--emit", "megatron,deepspeed", "--out", "d"
    )
    assert done.returncode == 0
    names = {path.name for path in folder.glob("d/1-*/*")}
    assert "megatron.sh" in names
    assert names & {"deepspeed.json", "deepspeed.txt"}


@pytest.mark.slow
def test_one_target_is_the_framework(folder: Path) -> None:
    """A plan that it cannot run is then never first; a framework that is named stays."""
    asked = ("solve", "llama3-8b", "h100-x8", "--top", "1", "--format", "json")
    for words, framework in (
        (("--emit", "torchtitan", "--out", "a"), "torchtitan"),
        (("--emit", "megatron,torchtitan", "--out", "b"), "default"),
        (("--emit", "torchtitan", "--framework", "megatron", "--out", "c"), "megatron"),
    ):
        done = run(*asked, *words)
        assert json.loads(done.stdout)["inputs"]["options"]["framework"] == framework
    assert list(folder.glob("a/1-*/torchtitan_recipe.py"))


def test_exit_codes(folder: Path) -> None:
    # Without layouts at all: what would help is looked for elsewhere.
    assert run("solve", "llama3-8b", "h100-x8", "--pin", "tp=8,pp=2").returncode == 3
    assert run("evaluate", "llama3-70b", "h100-x8", "--pin", "tp=8").returncode == 3
    assert run("solve", "llama3-70b", "h100-x512", "--time-limit", "0.000001").returncode == 4
    assert run("--version").stdout.startswith("planner ")
    assert run().returncode == 2


BAD = [
    (["solve", "llama3-7b", "h100-x512"], 1, "llama3-70b"),
    (["solve", "llama3-70b", "h100-x51"], 1, "h100-x512"),
    (["solve", "h100-x512", "llama3-70b"], 1, "cluster"),
    (["solve", "llama3-70b"], 2, "CLUSTER"),
    (["solve", "llama3-70b", "h100-x512", "--pin", "tp"], 2, "axis=value"),
    (["solve", "llama3-70b", "h100-x512", "--pin", "tp=0"], 2, "at least 1"),
    (["solve", "llama3-70b", "h100-x512", "--pin", "tp=2", "--pin", "tp=4"], 2, "--only tp=2,4"),
    (["solve", "llama3-70b", "h100-x512", "--top", "0"], 2, "--top"),
    (["solve", "llama3-70b", "h100-x512", "--emit", "nemo", "--out", "d"], 2, "megatron"),
    (["solve", "llama3-70b", "h100-x512", "--emit", "megatron"], 2, "--out"),
    (["solve", "llama3-70b", "h100-x512", "--format", "xml"], 2, "csv"),
    (["solve", "llama3-70b", "h100-x512", "--set", "training.seq_len=0"], 1, "seq_len"),
    (["solve", "llama3-70b", "h100-x512", "--set", "pools.0.accelerator=h1000"], 1, "h100"),
    (["solve", "llama3-70b", "h100-x512", "--set", "nonsense"], 2, "PATH=VALUE"),
    (["solve", "llama3-70b", "h100-x512", "--executor", "dask"], 2, "processes or ray"),
    (
        ["solve", "llama3-70b", "h100-x512", "--executor", "serial", "--ray-address", "h:1"],
        2,
        "--ray-address",
    ),
    (["evaluate", "llama3-70b", "h100-x512", "--pin", "tp=128"], 1, "TP001"),
    (["recommend"], 2, "QUESTION"),
    (["recommend", "devices", "llama3-8b"], 2, "CLUSTER"),
    (["recommend", "speed", "llama3-8b", "h100-x8"], 2, "one of devices"),
    (["recommend", "devices", "llama3-7b", "h100-x8"], 1, "llama3-8b"),
    (["recommend", "devices", "llama3-8b", "h100-x8", "--most", "-1"], 2, "--most"),
    (["recommend", "devices", "llama3-8b", "h100-x8", "--most", "x"], 2, "--most"),
    (["recommend", "devices", "llama3-8b", "h100-x8", "--by", "depth"], 2, "question size"),
    (["recommend", "size", "llama3-8b", "h100-x8", "--by", "heads"], 2, "width, depth"),
    (["recommend", "sequence", "llama3-8b", "h100-x8", "--step", "-5"], 2, "--step"),
    (["recommend", "micro-batch", "llama3-8b", "h100-x8", "--pin", "mbs=4"], 2, "drop mbs"),
    (["recommend", "bandwidth", "llama3-8b", "h100-x8", "--tolerance", "7"], 2, "--tolerance"),
    (["recommend", "size", "llama3-8b", "h100-x8", "--format", "csv"], 2, "table or json"),
    (["recommend", "size", "llama3-8b", "h100-x8", "--pin", "tp=0"], 2, "at least 1"),
    (["recommend", "size", "llama3-8b", "h100-x8", "--set", "pools.0.nodes=-1"], 1, "nodes"),
    (["show", "last#99"], 1, "last"),
    (["show", "nowhere.json#1"], 1, "nowhere.json"),
    (["explain", "last#1", "--term", "nope"], 2, "terms:"),
    (["rule", "TP9"], 2, "planner rule lists them all"),
    (["catalog", "show", "h1000"], 2, "h100"),
    (["check-spec", "missing.yaml"], 1, "missing.yaml"),
    (["frobnicate"], 2, "frobnicate"),
]


@pytest.mark.parametrize(("words", "code", "part"), BAD, ids=[" ".join(w)[:60] for w, _, _ in BAD])
def test_a_mistake_gets_one_helpful_message(
    folder: Path, words: list[str], code: int, part: str
) -> None:
    if words[0] in ("explain",):
        run("evaluate", "llama3-8b", "h100-x8", "--pin", "tp=8")
    done = run(*words)
    assert done.returncode == code
    assert part in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_mistake_in_a_file_is_placed_on_its_line(folder: Path) -> None:
    (folder / "m.yaml").write_text("model:\n  n_layers: 32\n  hidden: 4096\n")
    done = run("solve", "m.yaml", "h100-x8")
    assert done.returncode == 1
    assert "m.yaml:2:" in done.stderr
    assert "layers" in done.stderr


def test_help_is_light(folder: Path) -> None:
    code = (
        "import sys; sys.argv = ['planner', '--help']\n"
        "from planner.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'ortools', 'ray', 'pydantic', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.slow
def test_solve_never_starts_ray(folder: Path) -> None:
    code = (
        "import sys, planner\n"
        "planner.solve('llama3-8b', 'h100-x8')\n"
        "assert 'ray' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.slow
def test_executors_give_the_same_bytes(folder: Path) -> None:
    words = ["solve", "llama3-70b", "h100-x512", "--format", "json", "--executor"]
    answers = {run(*words, name).stdout for name in ("automatic", "serial", "processes")}
    assert len(answers) == 1
    assert json.loads(answers.pop())["plans"]


@pytest.mark.slow
def test_recommend_prints_its_answer(folder: Path) -> None:
    asked = ("recommend", "devices", "llama3-70b", "h100-x512")
    done = run(*asked)
    assert done.returncode == 0
    assert done.stdout.startswith("Fewest devices on which the job fits: 24, in 3 node(s)\n")
    data = json.loads(run(*asked, "--format", "json").stdout)
    assert data["answer"] == {"nodes": 3, "n_devices": 24}
    none = run(*asked, "--most", "2")
    assert none.returncode == 3
    assert none.stdout.startswith("No answer")


def test_the_cache_is_capped_and_optional(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.solver.answer.result_store.MAX_SAVED", 3)
    from planner.solver.answer.result_store import cache_folder, save_result
    from planner.solver.solve import evaluate

    for batch in range(1, 7):
        more = (("training.global_batch", 8 * batch),)
        save_result(evaluate("llama3-8b", "h100-x8", pins={"tp": 8}, overrides=more))
    assert len(list(cache_folder().glob("*.json"))) == 3
    folder.joinpath("cache").rename(folder / "old")
    (folder / "cache").write_text("in the way")
    assert run("solve", "llama3-8b", "h100-x8", "--top", "1").returncode == 0


def test_interrupted_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, seen = search.search_shard, list[object]()

    def shard(x: Shard) -> ShardAnswer:
        if seen:
            raise KeyboardInterrupt
        seen.append(x)
        return first(x)

    monkeypatch.setattr(search, "search_shard", shard)
    done = run("solve", "llama3-70b", "h100-x512", "--top", "2", "--executor", "serial")
    assert done.returncode == 130
    assert "interrupted" in done.stdout
    assert "* " in done.stdout
    assert "Traceback" not in done.stderr


def test_a_closed_pipe_is_quiet(folder: Path) -> None:
    words = " ".join(
        [sys.executable, "-c", "'from planner.cli.app import main; main()'", "catalog", "list"]
    )
    done = subprocess.run(
        f"{words} | head -1", shell=True, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""


@pytest.mark.slow
def test_no_line_is_wider_than_a_terminal(folder: Path) -> None:
    texts = []
    for model, cluster in (
        ("llama3-405b", "h100-x16384"),
        ("gpt3-175b", "a100-x1024"),
        ("llama3-8b", "h100-x16384"),
        ("llama3-70b", "h100-x8"),
        ("llama3-70b", "mixed-h100-a100"),
    ):
        texts.append(run("solve", model, cluster).stdout)
        if texts[-1].count("\n*") or "\n* " in texts[-1]:
            texts += [run("show", "last").stdout, run("explain", "last").stdout]
    texts += [run("rule", code).stdout for code in ("MEM000", "PP002", "ZER001")]
    texts += [run("catalog", "list").stdout]
    texts += [
        run("catalog", "show", name).stdout for name in ("h100", "mi300x", "ib-ndr-400", "p5")
    ]
    texts += [run("evaluate", "llama3-70b", "h100-x512", "--pin", "tp=128").stderr]
    for text in texts:
        assert text
        wide = [line for line in text.splitlines() if len(line) > 100]
        assert not wide, wide[:3]


@pytest.mark.slow
def test_suggested_commands_do_what_they_say(folder: Path) -> None:
    import shlex

    words = [
        "solve",
        "llama3-8b",
        "h100-x8",
        "--set",
        "training.seq_len=131072",
        "--pin",
        "tp=1",
        "--pin",
        "cp=1",
    ]
    data = json.loads(run(*words, "--format", "json").stdout)
    assert data["relaxations"]
    for relaxation in data["relaxations"]:
        again = shlex.split(relaxation["command"])[1:]
        found = json.loads(run(*again, "--format", "json", "--top", "64").stdout)
        assert found["plans"][0]["step_time_s"] <= relaxation["step_time_s"] * 1.05
        # The fastest may be a variant that does not leave the margin of memory free.
        every = run(*again, "--format", "json", "--top", "64", "--all-variants")
        steps = [plan["step_time_s"] for plan in json.loads(every.stdout)["plans"]]
        assert min(steps) >= relaxation["step_time_s"] * (1 - 1e-9)
        assert any(abs(step / relaxation["step_time_s"] - 1) < 1e-9 for step in steps)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--set", "pools.0.accelerator=mi250x"], "links are not modelled"),
        (["--set", "pools.0.accelerator=tpu-8t"], "how the chips"),
        (["--set", "pools.0.accelerator=trainium2"], "Neuron"),
        (["--set", "pools.0.accelerator=gaudi3"], "SynapseAI"),
        (["--set", "pools.0.accelerator=v100", "--set", "training.precision=fp16"], "flash"),
        (["--set", "training.precision=fp32"], "fp32"),
        (["--pin", "zero=4"], "at most 3"),
        (["--pin", "tp=4", "--only", "tp=2"], "contradict"),
        (["--pin", "schedule=gpipe"], OTHERS),
        (["--pin", "schedule=zb-h1"], "--framework any"),
        (["--pin", "schedule=zb-v"], OTHERS),
        (["--pin", "schedule=zb-h1", "--framework", "torchtitan"], "--framework any"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(
    folder: Path, words: list[str], part: str
) -> None:
    done = run("solve", "llama3-8b", "h100-x8", *words)
    assert done.returncode in (1, 2)
    assert part in done.stderr
    assert "defect" not in done.stderr


@pytest.mark.slow
def test_a_batch_that_no_micro_batch_divides_is_named(folder: Path) -> None:
    done = run("solve", "llama3-8b", "h100-x8", "--pin", "mbs=3,tp=8,pp=1,zero=1")
    assert done.returncode == 3
    assert "BAT001" in done.stdout


def test_a_cut_result_file_is_refused(folder: Path) -> None:
    (folder / "cut.json").write_text('{"schema_version": "1.0", "plans": [{"rank": 1}]}')
    done = run("show", "cut.json#1")
    assert done.returncode == 1
    assert "not a whole result" in done.stderr


def test_each_framework_is_held_to_its_own_memory(folder: Path) -> None:
    # Megatron-FSDP fits this plan; DeepSpeed's eager kernels need more than there is.
    run("evaluate", "llama3-8b", "h100-x8", "--pin", "zero=2")
    shown = json.loads(run("show", "last", "--format", "json").stdout)
    assert shown["runs_on"] == ["megatron", "bridge"]
    done = run("emit", "last", "--for", "deepspeed")
    assert "does not fit" in done.stdout


def test_a_folder_that_cannot_be_written_is_said_before_the_search(folder: Path) -> None:
    (folder / "taken").write_text("")
    done = run("solve", "llama3-8b", "h100-x8", "--emit", "megatron", "--out", "taken/plans")
    assert done.returncode == 1
    assert "taken/plans" in done.stderr
    assert done.stdout == ""


def test_the_catalogue_shows_instances_with_their_sources(folder: Path) -> None:
    assert "p5.48xlarge" in run("catalog", "list").stdout
    sheet = run("catalog", "show", "p5").stdout
    assert sheet.startswith("p5.48xlarge (instance, AWS)")
    assert "32 x efa-100, 100 Gb/s each  [2]" in sheet
    assert "[2] GitHub stas00/ml-engineering" in sheet
    assert "two devices reach           44.71 GB/s" in run("catalog", "show", "mi300x").stdout


@pytest.mark.slow
def test_a_plan_of_one_of_two_pools_is_shown_and_written(folder: Path) -> None:
    done = run("solve", "llama3-8b", "mixed-h100-a100", "--pool", "h100", "--top", "1")
    assert done.returncode == 0
    assert run("show", "last#1").returncode == 0
    words = ["--pin", "tp=2", "--top", "2", "--emit", "megatron", "--out", "out"]
    done = run("solve", "llama3-8b", "mixed-h100-a100", *words, "-v")
    assert "on pool 0 (h100): 256 x h100-sxm-80gb in 32 node(s), or pool 1 (a100)" in done.stdout
    found = json.loads(
        run("solve", "llama3-8b", "mixed-h100-a100", *words[:4], "--format", "json").stdout
    )
    best = found["plans"][0]
    script = (folder / "out" / f"1-{best['plan_id']}" / "megatron.sh").read_text()
    assert f'"n_devices":{best["layout"]["n_devices"]}' in script
    assert f"plan {best['plan_id']}" in run("explain", "last#1").stdout


def test_a_framework_that_cannot_run_the_plans_is_named(
    folder: Path, snapshot: Callable[[str], None]
) -> None:
    words = ["solve", "llama3-8b", "h100-x8", "--pin", "pp=2,vpp=2", "--top", "2"]
    done = run(*words, "--emit", "megatron,deepspeed", "--out", "d")
    searched = done.stderr
    assert len(list(folder.glob("d/*/deepspeed.txt"))) == 2
    done = run("emit", "last#1", "--for", "deepspeed", "--out", "e")
    snapshot(
        "".join(f"{line}\n" for line in (*searched.splitlines(), *done.stderr.splitlines()[1:]))
    )


def test_a_launcher_without_files_to_launch_is_refused(folder: Path) -> None:
    done = run("solve", "llama3-8b", "h100-x8", "--launcher", "slurm")
    assert done.returncode == 2
    assert "--emit megatron --launcher slurm --out DIR" in done.stderr


def test_the_next_step_is_for_the_framework_that_was_asked_for(folder: Path) -> None:
    done = run("solve", "llama3-8b", "h100-x8", "--framework", "torchtitan", "--top", "1")
    assert "planner emit last#1 --for torchtitan --launcher slurm" in done.stdout
