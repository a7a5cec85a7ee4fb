"""Experiments of Primus for its torchtitan backend: what a job file says, on AMD alone."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from costmodels.examples import LLAMA3_8B, LLAMA3_70B
from costmodels.shapes import ModelShape
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.reader import read_run
from planner.frameworks.torchtitan.emitter import torchtitan_files
from planner.frameworks.torchtitan.primus import FILE, PRESETS
from searches.frameworks.torchtitan.registered import FLAVORS
from tests.planner.emitting import HEADER, JOB, layout, pool

STAGED: dict[str, Any] = {"n_devices": 512, "tp": 8, "pp": 4, "vpp": 5, "sp": True, "zero": 1}


def emitted(shape: ModelShape = LLAMA3_8B, vendor: str = "AMD", **changes: Any) -> dict[str, str]:
    changes.setdefault("zero", 3)
    job = replace(JOB, global_batch=int(changes.get("gbs", JOB.global_batch)))
    plain = pool()
    devices = replace(plain, accelerator=replace(plain.accelerator, vendor=vendor))
    return torchtitan_files(EmitRequest(layout(shape, **changes), shape, job, devices, HEADER))


@pytest.mark.parametrize(
    ("shape", "changes", "preset"),
    [
        (LLAMA3_8B, {"n_devices": 64, "dp": 64}, "llama3.1_8B.yaml"),
        (
            LLAMA3_70B,
            {**STAGED, "gbs": 1024, "recompute": "full", "recompute_layers": 4},
            "llama3.1_70B.yaml",
        ),
    ],
)
def test_an_experiment_says_what_the_job_file_says(
    tmp_path: Path, shape: ModelShape, changes: dict[str, Any], preset: str
) -> None:
    files = emitted(shape, **changes)
    module = yaml.safe_load(files[FILE])["modules"]["pre_trainer"]
    assert (module["framework"], module["model"]) == ("torchtitan", preset)
    said, job_file = module["overrides"], tomllib.loads(files["torchtitan.toml"])
    for section in ("parallelism", "activation_checkpoint", "optimizer"):
        assert said[section] == job_file[section]
    assert said["model"].items() <= job_file["model"].items()
    assert said["training"].pop("mock_data") is True
    assert said["training"].items() <= job_file["training"].items()
    assert said["compile"] == {"enable": False}  # which the presets switch on
    path = tmp_path / FILE
    path.write_text(files[FILE], encoding="utf-8")
    run = read_run(str(path), RunQuery(n_devices=changes["n_devices"]))
    wanted = layout(shape, **changes)
    assert run.format == "Primus experiment (torchtitan)"
    for axis in ("tp", "pp", "cp", "ep", "vpp", "mbs", "gbs", "recompute"):
        assert run.layout.get(axis, getattr(wanted, axis)) == getattr(wanted, axis), axis


def test_it_is_written_for_amd_and_models_of_primus() -> None:
    assert FILE in emitted()
    assert FILE not in emitted(vendor="NVIDIA")
    assert FILE not in emitted(replace(LLAMA3_8B, layers=30))
    assert PRESETS.keys() <= FLAVORS.keys()


def test_an_experiment_without_its_model_is_refused_as_before(tmp_path: Path) -> None:
    from planner.errors import SpecError

    text = emitted()[FILE]
    named = '      model:\n        name: "llama3"\n        flavor: "8B"\n'
    assert named in text
    path = tmp_path / FILE
    path.write_text(text.replace(named, ""), encoding="utf-8")
    with pytest.raises(SpecError, match="does not lie beside it"):
        read_run(str(path), RunQuery(n_devices=8))
