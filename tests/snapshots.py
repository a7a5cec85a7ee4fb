"""Texts that tests keep in files beside them; `pytest --renew` writes them anew.

A test asserts numbers and structure itself. What people read stands in a file: a change of wording
is one run with `--renew`, and its diff is read.
"""

import os
from pathlib import Path

RENEW = "PLANNER_RENEW_SNAPSHOTS"
"""Variable of the environment that `--renew` sets, for workers and fixtures alike."""


def check_snapshot(file: Path, text: str) -> None:
    """Compare a text with the file that keeps it."""
    if os.environ.get(RENEW):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert file.exists(), f"no {file}: `pytest --renew` writes it"
    assert text == file.read_text(encoding="utf-8"), f"{file} differs; `pytest --renew` renews it"
