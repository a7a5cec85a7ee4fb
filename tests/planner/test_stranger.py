"""A folder of the user's that has the name of one of our packages: one error, both paths."""

import subprocess
import sys
from pathlib import Path

import pytest

import planner

ROOT = Path(planner.__file__).resolve().parents[1]


@pytest.mark.parametrize("name", ["hardware", "costmodels", "searches", "service"])
def test_it_is_named_beside_ours(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    module = [sys.executable, "-m", "planner", "--version"]
    done = subprocess.run(module, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert str(tmp_path / name) in done.stderr
    assert str(ROOT / name) in done.stderr


def test_the_library_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "hardware.py").write_text("")
    code = [sys.executable, "-c", "import planner"]
    done = subprocess.run(code, cwd=tmp_path, capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: planner needs its package 'hardware'")


def test_a_folder_without_modules_is_no_stranger(tmp_path: Path) -> None:
    (tmp_path / "hardware").mkdir()
    module = [sys.executable, "-m", "planner", "--version"]
    done = subprocess.run(module, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout
