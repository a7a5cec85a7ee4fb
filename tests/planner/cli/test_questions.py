"""The ten questions of docs/questions.md: each answered on the first screen of one command."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.planner.command import run_here
from tests.repeats import slow

ROOT = Path(__file__).resolve().parents[3]
ROW = re.compile(r"^\| ([^|`]+) \| `planner ([^`]+)` \| `([^`]+)` \|$", re.M)
QUESTIONS = ROW.findall((ROOT / "docs" / "questions.md").read_text("utf-8"))
SCREEN = 24
"""Lines of the first screen."""


def test_there_are_ten_questions() -> None:
    assert len(QUESTIONS) == 10


def plan(answer: dict[str, Any]) -> dict[str, Any]:
    """The first plan of an answer."""
    first: dict[str, Any] = answer["plans"][0]
    return first


def gib(amount_bytes: float) -> str:
    return f"{amount_bytes / 2**30:.1f}"


def of_scale(answer: dict[str, Any]) -> tuple[str, ...]:
    """Step, tokens/s and speedup of the larger size."""
    large = answer["rows"][-1]
    step, rate = large["best.step_time_s"], large["best.tokens_per_s"]
    return f"{step:.3f}", f"{rate:,.0f}", f"{large['scale.speedup']:.2f}"


NUMBERS: dict[str, Callable[[dict[str, Any]], tuple[str, ...]]] = {
    "Does it fit?": lambda x: (
        gib(x["closest"]["peak_bytes"]),
        gib(x["closest"]["usable_bytes"]),
    ),
    "How many GPUs does it need?": lambda x: (str(x["answer"]["n_devices"]),),
    "Which precision?": lambda x: (plan(x)["precision"],),
    "Why is my run slower?": lambda x: (
        f"{x['standing']['ratio']:.2f}",
        f"{x['standing']['rank']:,}",
    ),
    "What if the network has 400 Gb/s?": lambda x: (f"{plan(x)['step_time_s']:.2f}",),
    "What do 8 more nodes buy?": of_scale,
    "Which recomputation?": lambda x: (
        str(plan(x)["layout"]["recompute_layers"]),
        str(x["inputs"]["model"]["model"]["layers"]),
    ),
    "Does a context of 128 k fit?": lambda x: (
        gib(plan(x)["memory"]["peak_bytes"]),
        gib(plan(x)["memory"]["usable_bytes"]),
    ),
    "What does it cost?": lambda x: (f"{plan(x)['run']['cost_usd']:,.0f}",),
    "Where is the script?": lambda _: ("megatron",),
}
"""What each answer's JSON puts in place of the dots of the table."""


QUICK = (
    "How many GPUs does it need?",
    "What if the network has 400 Gb/s?",
    "What does it cost?",
    "Where is the script?",
)


@pytest.mark.parametrize(
    ("question", "command", "words"), [row if row[0] in QUICK else slow(*row) for row in QUESTIONS]
)
def test_the_first_screen_holds_the_number(
    question: str, command: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    done = run_here(*shlex.split(command))
    assert done.returncode in (0, 3), (question, done.stderr)
    screen = " ".join(" ".join(done.stdout.splitlines()[:SCREEN]).split())
    shown = re.search(re.escape(words).replace(r"\.\.\.", r"(\S+)"), screen)
    assert shown, (question, screen)
    data = json.loads(run_here(*shlex.split(command), "--format", "json").stdout)
    assert shown.groups() == NUMBERS[question](data), question
    if "--emit" in command:
        assert len(list(tmp_path.glob("run/1-*/slurm-megatron.sbatch"))) == 1


@pytest.mark.slow
def test_a_script_for_64_gpus_of_a_config_in_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = ROOT / "examples" / "imports" / "mixtral-8x7b-config.json"
    (tmp_path / "config.json").write_text(config.read_text("utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    words = "solve config.json 64xH100 --emit megatron --launcher slurm --out run"
    done = run_here(*words.split())
    assert done.returncode == 0
    assert done.stdout.startswith("Use ")
    (script,) = tmp_path.glob("run/1-*/slurm-megatron.sbatch")
    assert "--nodes=8" in script.read_text("utf-8").replace(" ", "=").replace("==", "=")
