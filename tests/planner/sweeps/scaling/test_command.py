"""`planner scale` on the command line."""

import json

import pytest

from tests.planner.command import run_here

SMALL = (
    "scale",
    "llama3-8b",
    "h100-x8",
    "--from",
    "8",
    "--only",
    "tp=2,4",
    "--only",
    "pp=1",
    "--set",
    "training.global_batch=64",
)


def test_formats_and_exit_codes() -> None:
    found = run_here(*SMALL, "--to", "16")
    assert found.returncode == 0, found.stderr
    assert "break-even by cost:" in found.stdout
    assert found.stderr == ""
    data = json.loads(run_here(*SMALL, "--format", "json").stdout)
    assert [row["n_devices"] for row in data["rows"]] == [8]
    cells = run_here(*SMALL, "--format", "csv").stdout.splitlines()
    assert cells[0].startswith("scale.size,scale.layers,")
    assert cells[1].startswith("8,32,")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--format", "md"), "one of table, json, csv"),
        (("--from", "0"), "--from must be at least 1"),
        (("--to", "-3"), "--to must be at least 1"),
        (("--over", "width"), "one of devices, seq_len, layers"),
        (("--time-limit", "0"), "--time-limit must be"),
    ],
)
def test_bad_options(words: tuple[str, ...], said: str) -> None:
    found = run_here(*SMALL, *words)
    assert found.returncode == 2
    assert said in found.stderr
    assert found.stderr.count("error:") == 1
