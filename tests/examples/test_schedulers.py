"""The examples for schedulers against a service that runs; `sbatch` is a stand-in."""

import ast
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.examples.conftest import ROOT

SCHEDULERS = ROOT / "examples" / "schedulers"
PROGRAMS = sorted(SCHEDULERS.glob("*.py"))
SBATCH = """#!/usr/bin/env bash
printf '%s\\n' "$@" > "$SBATCH_KEPT.options"
cat > "$SBATCH_KEPT.script"
echo "Submitted batch job 42"
"""
BATCH = """#!/bin/bash
#SBATCH --job-name=train
#SBATCH -N 3
#PLAN model=llama3-8b cluster=h100-x8 framework=megatron {more}
#SBATCH --time=1:00:00
#SBATCH --nodes=5
srun torchrun train.py --tensor-model-parallel-size $PLAN_TP
"""


def test_each_is_short_and_named_in_the_readme() -> None:
    readme = (SCHEDULERS / "README.md").read_text()
    assert [path.name for path in PROGRAMS] == [
        "admission.py",
        "ray_train.py",
        "skypilot_policy.py",
        "slurm_submit.py",
        "volcano_submit.py",
    ]
    for path in PROGRAMS:
        assert len(path.read_text().splitlines()) < 100
        assert f"({path.name})" in readme


def test_ray_train_compiles_and_calls_what_the_client_has() -> None:
    from planner.client import Client

    source = (SCHEDULERS / "ray_train.py").read_text()
    tree = ast.parse(source)
    compile(tree, "ray_train.py", "exec")
    asked = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "service"
    }
    assert asked == {"solve", "check_spec"}
    assert all(hasattr(Client, name) for name in asked)


def _module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, SCHEDULERS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_a_line_of_a_batch_script_is_a_request() -> None:
    line = "#PLAN model=llama3-8b cluster=h100-x8 pools.0.nodes=2 pins.tp=8 pool=h100"
    assert _module("slurm_submit").question(line) == {
        "model": "llama3-8b",
        "cluster": "h100-x8",
        "pool": "h100",
        "top": 1,
        "set": {"pools.0.nodes": "2"},
        "pins": {"tp": "8"},
    }


def submit(service: dict[str, str], folder: Path, more: str) -> subprocess.CompletedProcess[str]:
    """Submit a batch script with a stand-in for sbatch in the path."""
    fake = folder / "bin" / "sbatch"
    fake.parent.mkdir()
    fake.write_text(SBATCH)
    fake.chmod(0o755)
    script = folder / "train.sbatch"
    script.write_text(BATCH.format(more=more))
    env = service | {
        "PATH": f"{fake.parent}:{service['PATH']}",
        "SBATCH_KEPT": str(folder / "kept"),
    }
    program = [sys.executable, str(SCHEDULERS / "slurm_submit.py"), str(script), "--partition=p"]
    return subprocess.run(program, env=env, text=True, capture_output=True)


@pytest.mark.service
def test_slurm_gets_the_lines_of_the_best_plan(service: dict[str, str], tmp_path: Path) -> None:
    import planner
    from planner.specs.search.axis_values import layout_to_json

    done = submit(service, tmp_path, "pools.0.nodes=2 pins.tp=4")
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 42\n"), done.stderr
    assert (tmp_path / "kept.options").read_text() == "--partition=p\n"
    best = planner.solve(
        "llama3-8b",
        "h100-x8",
        framework="megatron",
        pins={"tp": 4},
        top=1,
        overrides=(("pools.0.nodes", 2),),
    ).best
    head, _, rest = (tmp_path / "kept.script").read_text().partition("export ")
    assert head == (
        "#!/bin/bash\n"
        "#SBATCH --job-name=train\n"
        f"# plan {best.plan_id}: {best.step_time_s:.3f} s a step predicted\n"
        "#SBATCH --nodes=2\n"
        "#SBATCH --ntasks-per-node=1\n"
        "#SBATCH --gpus-per-node=8\n"
        f"#SBATCH --comment=planner:{best.plan_id}\n"
        "#SBATCH --time=1:00:00\n"
    )
    *exports, command = f"export {rest}".splitlines()
    assert command == "srun torchrun train.py --tensor-model-parallel-size $PLAN_TP"
    variables = dict(shlex.split(line)[1].split("=", 1) for line in exports)
    layout = layout_to_json(best.layout)
    assert {f"PLAN_{axis.upper()}" for axis in layout} < variables.keys()
    assert variables["PLAN_TP"] == "4"
    assert variables["PLAN_SP"] == str(layout["sp"]).lower()
    assert variables["PLAN_STAGE_LAYERS"] == ",".join(map(str, layout["stage_layers"]))
    script = Path(variables["PLAN_FILES"]) / "megatron.sh"
    assert best.plan_id in script.read_text()
    assert subprocess.run(["bash", "-n", str(script)]).returncode == 0


@pytest.mark.service
def test_what_does_not_fit_is_not_submitted(service: dict[str, str], tmp_path: Path) -> None:
    done = submit(service, tmp_path, "pins.tp=3")
    assert done.returncode == 3
    assert "what would help" in done.stderr
    assert not (tmp_path / "kept.script").exists()
    (tmp_path / "none").mkdir()
    wrong = submit(service, tmp_path / "none", "pins.tx=64")
    assert wrong.returncode == 1
    assert "unknown axis 'tx'" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def job(nodes: str) -> dict[str, Any]:
    container = {"name": "c", "image": "i", "env": [{"name": "PLAN_TP", "value": "old"}]}
    annotations = {
        "planner/model": "llama3-8b",
        "planner/cluster": "h100-x8",
        "planner/nodes": nodes,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "annotations": annotations},
        "spec": {"suspend": True, "template": {"spec": {"containers": [container]}}},
    }


def admit(
    service: dict[str, str], nodes: str, free: int, *options: str
) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, str(SCHEDULERS / "admission.py"), "--free-nodes", str(free), *options],
        env=service,
        text=True,
        capture_output=True,
        input=json.dumps(job(nodes)),
    )
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.service
def test_a_job_is_admitted_at_the_largest_good_size(service: dict[str, str]) -> None:
    import planner

    code, found = admit(service, "1-4", 2, "--efficiency", "0.5")
    assert code == 0
    best = planner.solve("llama3-8b", "h100-x8", top=1, overrides=(("pools.0.nodes", 2),)).best
    assert found["spec"]["suspend"] is False
    assert (found["spec"]["parallelism"], found["spec"]["completions"]) == (2, 2)
    notes = found["metadata"]["annotations"]
    assert (notes["planner/admitted"], notes["planner/plan"]) == ("Ready", best.plan_id)
    (container,) = found["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    env = {one["name"]: one["value"] for one in container["env"]}
    assert (env["PLAN_TP"], env["PLAN_DP"]) == (str(best.layout.tp), str(best.layout.dp))
    assert len(env) == len(container["env"])
    assert env["PLAN_RECOMPUTE"] == best.layout.recompute
    assert env["PLAN_PRECISION"] == "bf16"
    # No device does more than at the smallest size: 1.01 of it is out of reach.
    assert admit(service, "1-2", 2, "--efficiency", "1.5")[1]["spec"]["parallelism"] == 1


@pytest.mark.service
def test_a_job_waits_where_too_few_nodes_are_free(service: dict[str, str]) -> None:
    code, found = admit(service, "4-8", 2)
    assert code == 3
    assert found["spec"]["suspend"] is True
    assert found["metadata"]["annotations"]["planner/reason"] == "2 nodes are free, and it takes 4"


@pytest.mark.service
def test_one_question_is_asked_three_ways(service: dict[str, str]) -> None:
    done = subprocess.run(
        [
            str(ROOT / "examples" / "service" / "ask.sh"),
            service["PLANNER_SERVER"],
            service["GRPC"],
        ],
        env=service | {"PATH": f"{Path(sys.executable).parent}:{service['PATH']}"},
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    plans = [line for line in done.stdout.splitlines() if line.startswith("  plan ")]
    assert len(plans) == 3
    assert len({*plans}) == 1
    assert "planner.v1.Planner" in done.stdout


def test_the_readme_starts_and_asks_with_two_commands() -> None:
    import os
    import tomllib

    readme = (ROOT / "README.md").read_text()
    block = readme.partition("## As a service")[2].split("```")[1].strip().splitlines()
    assert len(block) == 2
    assert block[0].endswith(".venv/bin/planner serve &")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "'.[service]'" in block[0]
    assert "service" in extras["optional-dependencies"]
    assert os.access(ROOT / block[1], os.X_OK)


@pytest.mark.parametrize(
    ("program", "words", "stdin", "said"),
    [
        ("slurm_submit", ["nowhere.sbatch"], "", "error: .*nowhere.sbatch"),
        ("admission", ["--free-nodes", "4"], "x", "error: standard input is no job in JSON"),
        ("admission", ["--free-nodes", "4"], "{}", "error: the job has no 'metadata'"),
        ("volcano_submit", [], "{}", "error: the job has no 'metadata'"),
        ("volcano_submit", [], "[", "error: standard input is no Volcano job"),
        ("volcano_submit", [], "x", "error: standard input is no Volcano job"),
    ],
)
def test_bad_input_of_a_scheduler_is_one_message(
    program: str, words: list[str], stdin: str, said: str
) -> None:
    command = [sys.executable, str(SCHEDULERS / f"{program}.py"), *words]
    env = {
        **os.environ,
        "PYTHONPATH": str(SCHEDULERS.parents[1]),
        "PLANNER_SERVER": "http://[::1]:1",
    }
    done = subprocess.run(command, input=stdin, env=env, text=True, capture_output=True)
    assert done.returncode == 1
    assert re.match(said, done.stderr)
    assert "Traceback" not in done.stderr
