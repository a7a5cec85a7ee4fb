"""The Lua plugin for slurmctld, run by Lua against the interface that job_submit/lua gives it.

The stand-ins refuse what the plugin's C code refuses (src/plugins/job_submit/lua/job_submit_lua.c
of Slurm, `_set_job_req_field`): fields that it does not know, and values of another kind.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import lupa.lua54
import pytest

import planner
from planner.specs.search.axis_values import layout_to_json
from tests.examples.conftest import ROOT
from tests.repeats import slow

PLUGIN = (ROOT / "examples" / "schedulers" / "job_submit.lua").read_text()
NUMBERS = {"min_nodes", "max_nodes", "ntasks_per_node", "num_tasks", "min_cpus"}
TEXTS = {"tres_per_node", "comment", "script"}
CPUS = {"min_cpus": 5.0, "cpus_per_task": 65534.0}
"""What sbatch makes of --nodes=5 without --cpus-per-task: 65534 is none."""
SCRIPT = "#!/bin/bash\n#SBATCH --nodes=5\n#PLAN {}\nsrun train\n"
HOST = """
return function(read, write, read_env, write_env)
  local environment = setmetatable({}, {
    __index = function(_, name) return read_env(name) end,
    __newindex = function(_, name, value)
      assert(type(name) == "string" and type(value) == "string", "environment: no text")
      write_env(name, value)
    end,
  })
  return setmetatable({}, {
    __index = function(_, name)
      if name == "environment" then return environment end
      return read(name)
    end,
    __newindex = function(_, name, value) write(name, value, math.type(value) or type(value)) end,
  })
end
"""
FAKE_CURL = """#!/usr/bin/env bash
while [ $# -gt 0 ]; do
  case $1 in
    --data-binary) cp "${2#@}" "$FOLDER/body"; shift ;;
    --config) echo "$2" > "$FOLDER/config"; shift ;;
  esac
  shift
done
cat "$FOLDER/answer"
"""


class Job:
    """A job as slurmctld hands it to the plugin, and what the plugin made of it."""

    def __init__(self, script: str | None) -> None:
        self.fields: dict[str, Any] = {"script": script, "min_nodes": 5, **CPUS}
        self.environment: dict[str, str] = {"HOME": "/nobody"}
        self.said: list[str] = []

    def write(self, name: str, value: Any, kind: str) -> None:
        assert name in NUMBERS | TEXTS, f"unrecognized field: {name}"
        assert kind == ("integer" if name in NUMBERS else "string"), (name, value, kind)
        self.fields[name] = value

    def popen(self, lua: Any) -> Any:
        """Return `io.popen`, which the wheel's Lua does not have: `sh -c`, as POSIX says."""

        def popen(command: str) -> Any:
            text = self.release if "/exe -V" in command and self.release else ""
            done = subprocess.run(["sh", "-c", command], text=True, capture_output=True)
            text = text or done.stdout
            read = lua.eval("function(text) return function() return text end end")(text)
            return lua.table_from({"read": read, "close": lua.eval("function() end")})

        return popen

    release = ""
    """What the program that loads the plugin says of itself; empty: what this process says."""

    def submit(self) -> int:
        """Return what `slurm_job_submit` returns."""
        lua = lupa.lua54.LuaRuntime()
        lua.globals().slurm = lua.table_from(
            {"SUCCESS": 0, "ERROR": -1, "log_user": lambda form, *x: self.said.append(form % x)}
        )
        lua.globals().io.popen = self.popen(lua)
        assert lua.execute(PLUGIN) == 0
        make = lua.execute(HOST)
        job = make(
            self.fields.get,
            self.write,
            self.environment.get,
            self.environment.__setitem__,
        )
        assert lua.globals().slurm_job_modify(job, None, None, 0) == 0
        return int(lua.globals().slurm_job_submit(job, lua.table(), 1000))


@pytest.fixture
def curl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a stand-in for curl: its `answer`, and the `body` that was sent."""
    program = tmp_path / "bin" / "curl"
    program.parent.mkdir()
    program.write_text(FAKE_CURL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("FOLDER", str(tmp_path))
    return tmp_path


def answer(folder: Path, data: Any, status: int = 200) -> None:
    (folder / "answer").write_text(f"{json.dumps(data, indent=1)}\n{status}")


@pytest.mark.parametrize("script", [None, "#!/bin/bash\nsrun train\n", "x #PLAN model=a\n"])
def test_other_jobs_pass_as_they_are(script: str | None) -> None:
    job = Job(script)
    assert job.submit() == 0
    assert job.fields == {"script": script, "min_nodes": 5, **CPUS}
    assert job.environment == {"HOME": "/nobody"}


def test_size_and_layout_are_those_of_the_plan_whatever_the_script_says(curl: Path) -> None:
    result = planner.solve(
        "llama3-8b", "h100-x8", pins={"tp": 4}, top=1, overrides=(("pools.0.nodes", 2),)
    )
    answer(curl, result.to_json())
    job = Job(SCRIPT.format("model=llama3-8b cluster=h100-x8 pools.0.nodes=2 pins.tp=4"))
    assert (job.submit(), job.said) == (0, [])
    assert json.loads((curl / "body").read_text()) == {
        "model": "llama3-8b",
        "cluster": "h100-x8",
        "top": 1,
        "set": {"pools.0.nodes": "2"},
        "pins": {"tp": "4"},
    }
    best = result.best
    assert job.fields | {"script": ""} == {
        "script": "",
        "min_nodes": 2,
        "max_nodes": 2,
        "num_tasks": 2,
        "min_cpus": 2,
        "cpus_per_task": 65534.0,
        "ntasks_per_node": 1,
        "tres_per_node": "gres/gpu:8",
        "comment": f"planner:{best.plan_id}",
    }
    layout = layout_to_json(best.layout)
    assert {f"PLAN_{axis.upper()}" for axis in layout} <= {*job.environment}
    assert job.environment["PLAN_TP"] == "4"
    assert job.environment["PLAN_SP"] == "true"
    assert job.environment["PLAN_STAGE_LAYERS"] == ",".join(map(str, layout["stage_layers"]))
    assert job.environment["PLAN_ID"] == best.plan_id


@pytest.mark.parametrize(
    ("release", "gpus"),
    [
        ("slurm-wlm 22.05.8\n", "gres:gpu:8"),
        slow("slurm 23.02.7\n", "gres:gpu:8"),
        ("slurm 23.11.1\n", "gres/gpu:8"),
        slow("slurm-wlm 25.05.0\n", "gres/gpu:8"),
        slow("", "gres/gpu:8"),
    ],
)
def test_gpus_are_said_as_the_release_reads_them(curl: Path, release: str, gpus: str) -> None:
    pins = {"tp": 2, "zero": 1, "mbs": 1}
    answer(curl, planner.solve("llama3-8b", "h100-x8", pins=pins, top=1).to_json())
    job = Job(SCRIPT.format("model=llama3-8b cluster=h100-x8"))
    job.release = release
    assert (job.submit(), job.fields["tres_per_node"]) == (0, gpus)
    assert job.fields["min_cpus"] == 1
    job.fields["cpus_per_task"] = 12.0
    assert (job.submit(), job.fields["min_cpus"]) == (0, 12)


def test_what_does_not_fit_is_refused_with_what_would_help(curl: Path) -> None:
    result = planner.solve("llama3-8b", "1xh100", top=1)
    answer(curl, result.to_json())
    job = Job(SCRIPT.format("model=llama3-8b cluster=1xh100"))
    assert job.submit() == -1
    assert result.relaxations[0].change in job.said[0]
    assert job.fields["min_nodes"] == 5


@pytest.mark.parametrize(
    ("data", "status", "said"),
    [
        ({"detail": 'model: no "such" \u00e9xample\n'}, 422, 'model: no "such"'),
        ({"code": "unauthenticated"}, 401, "answered 401"),
        ("", 0, "no planning service"),
    ],
)
def test_refusals_of_the_service_are_told(data: Any, status: int, said: str, curl: Path) -> None:
    answer(curl, data, status)
    job = Job(SCRIPT.format("model=a cluster=b"))
    assert job.submit() == -1
    assert said in job.said[0]


def test_no_word_of_a_user_is_run_or_leaves_its_text(curl: Path) -> None:
    answer(curl, {"detail": "no"}, 422)
    word = "$(touch\u00a0here);'\"\\`id`"
    job = Job(SCRIPT.format(f"model={word} cluster=h100-x8"))
    assert job.submit() == -1
    assert json.loads((curl / "body").read_text())["model"] == word
    assert not (curl / "here").exists()
    assert (curl / "config").read_text() == "/etc/slurm/planner.curl\n"


@pytest.mark.service
def test_a_service_answers_it(
    service: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "planner.curl"
    config.write_text(
        f'url = "{service["PLANNER_SERVER"]}/v1/plans:solve"\n'
        f'header = "Authorization: Bearer {service["PLANNER_TOKEN"]}"\nmax-time = 60\n'
    )
    monkeypatch.setenv("PLANNER_CURL_CONFIG", str(config))
    job = Job(SCRIPT.format("model=llama3-8b cluster=h100-x8 pools.0.nodes=2 framework=megatron"))
    assert (job.submit(), job.said) == (0, [])
    assert job.fields["min_nodes"] == 2
    assert job.environment["PLAN_N_DEVICES"] == "16"
    refused = Job(SCRIPT.format("model=llama3-8b cluster=nowhere"))
    assert refused.submit() == -1
    assert "nowhere" in refused.said[0]
