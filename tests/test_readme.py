"""The outputs that README.md prints are those of the commands above them."""

import re
import shlex
from pathlib import Path

import pytest

from tests.planner.command import run_here

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = re.compile(r"^```\n\$ planner (?P<words>[^\n]+)\n(?P<output>.*?)^```$", re.M | re.S)
SAMPLES = [match.groups() for match in SAMPLE.finditer((ROOT / "README.md").read_text("utf-8"))]


def test_the_readme_prints_outputs() -> None:
    assert [words.split()[0] for words, _ in SAMPLES] == ["solve", "check"]


@pytest.mark.slow
@pytest.mark.parametrize(("words", "output"), SAMPLES, ids=[words for words, _ in SAMPLES])
def test_outputs_are_current(
    words: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(ROOT)
    assert run_here(*shlex.split(words)).stdout.startswith(output)
