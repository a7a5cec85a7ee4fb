"""`megatron.sh --smoke`: what bash hands on and what the program makes of it, without a run."""

import importlib.util
import os
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from costmodels.examples import LLAMA3_8B, MIXTRAL_8X7B
from planner.frameworks.emit import emit_plan
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.programs import FOLDER, MEGATRON_SMOKE, is_program
from tests.planner.emitting import HEADER, JOB, layout, pool


@pytest.fixture
def smoke() -> ModuleType:
    spec = importlib.util.spec_from_file_location("megatron_smoke", FOLDER / "megatron_smoke.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files of a plan, and a Python that prints its words."""
    files = emit_plan(
        "megatron", EmitRequest(layout(LLAMA3_8B, tp=2), LLAMA3_8B, JOB, pool(), HEADER)
    )
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    fake = tmp_path / "fake python"
    fake.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "python" "$@"\n')
    fake.chmod(0o755)
    return tmp_path


def started(folder: Path, *words: str) -> list[str]:
    env = {"PATH": os.environ["PATH"], "PYTHON": str(folder / "fake python")}
    command = ["bash", str(folder / "megatron.sh"), *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_the_programs_lie_beside_the_script(folder: Path) -> None:
    for name in MEGATRON_SMOKE:
        assert (folder / name).read_text() == (FOLDER / name).read_text()
        compile((folder / name).read_text(), name, "exec")
    assert is_program("megatron_smoke.py")
    assert not is_program("bridge_recipe.py")


def test_smoke_hands_all_words_to_the_program(folder: Path, smoke: ModuleType) -> None:
    words = started(folder, "--smoke", "--seed", "7")
    assert words[:2] == ["python", str(folder / "megatron_smoke.py")]
    n_ranks, script, flags = smoke.split_words(words[2:])
    assert (n_ranks, script) == (8, "./pretrain_gpt.py")
    assert flags[:2] == ["--num-layers", "32"]
    assert flags[-2:] == ["--seed", "7"]
    assert "--smoke" not in flags


def test_a_node_starts_its_own_ranks_where_it_is_asked_to(
    folder: Path, smoke: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = started(folder, "--smoke")[2:]
    assert smoke.own_ranks(words) == {}
    monkeypatch.setenv("SMOKE_PER_NODE", "1")
    own = {"node": 0, "per_node": 8, "address": "localhost", "port": 29500}
    assert smoke.own_ranks(words) == own


def test_what_wants_a_gpu_is_left_out_and_the_rest_kept(smoke: ModuleType) -> None:
    flags = ["--fp8-format", "hybrid", "--bf16", "--moe-grouped-gemm", "--seed", "7"]
    kept, dropped = smoke.cpu_flags(flags)
    assert dropped == ["--fp8-format", "--moe-grouped-gemm"]
    assert kept[:3] == ["--bf16", "--seed", "7"]
    assert kept[-2:] == ["--train-iters", "2"]


def test_modules_on_the_host_stay_on_the_device(smoke: ModuleType) -> None:
    flags = ["--fine-grained-activation-offloading", "--offload-modules", "core_attn", "moe_act"]
    kept, dropped = smoke.cpu_flags([*flags, "--recompute-modules", "layernorm"])
    assert dropped == flags[:2]
    assert kept[:2] == ["--recompute-modules", "layernorm"]
    smoke.refuse_moe_act(kept)


def test_a_flag_that_is_left_out_may_end_the_line(smoke: ModuleType) -> None:
    assert smoke.cpu_flags(["--bf16", "--tp-comm-overlap"])[0][0] == "--bf16"


@pytest.mark.parametrize(
    ("n_ranks", "flags", "said"),
    [
        (17, [], "ranks 17"),
        (2, ["--hidden-size", "4096"], "hidden size 4096"),
        (2, ["--seq-length", "64", "--seq-length", "8192"], "sequence length 8192"),
    ],
)
def test_large_jobs_are_refused(
    n_ranks: int, flags: list[str], said: str, smoke: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match=said):
        smoke.refuse_large(n_ranks, flags)
    monkeypatch.setenv("SMOKE_FORCE", "1")
    smoke.refuse_large(n_ranks, flags)


def test_a_missing_megatron_is_said(folder: Path) -> None:
    files = emit_plan(
        "megatron", EmitRequest(layout(MIXTRAL_8X7B), MIXTRAL_8X7B, JOB, pool(), HEADER)
    )
    (folder / "megatron.sh").write_text(files["megatron.sh"])
    env = {"PATH": os.environ["PATH"], "SMOKE_FORCE": "1", "PYTHONNOUSERSITE": "1"}
    command = ["bash", str(folder / "megatron.sh"), "--smoke"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Megatron-LM is neither installed nor in ." in done.stderr
    assert "Traceback" not in done.stderr
