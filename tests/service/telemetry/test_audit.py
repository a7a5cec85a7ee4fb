"""The audit log: what a line holds, its bounds, and what happens where it cannot be written."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from planner.errors import UsageError
from service.telemetry.audit import KEPT_FILES, MOST_CHARS, AuditLog, outcome_of


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_says_who_and_what_and_nothing_that_is_empty(tmp_path):
    file = tmp_path / "audit"
    log = AuditLog(str(file), wall=lambda: 1_800_000_000.25)
    log.note("request", caller="ann", code="", status=200, job_id=None)
    log.close()
    assert lines(file) == [
        {"time": "2027-01-15T08:00:00.250Z", "event": "request", "caller": "ann", "status": 200}
    ]
    assert file.stat().st_mode & 0o077 == 0


def test_texts_are_cut_and_cannot_begin_a_line(tmp_path):
    file = tmp_path / "audit"
    log = AuditLog(str(file))
    log.note("request", request='GET /\n{"event": "forged"}\u2028' + "x" * 1_000)
    log.close()
    (line,) = lines(file)
    assert len(line["request"]) == MOST_CHARS
    assert len(file.read_bytes().splitlines()) == 1


def test_a_file_grows_to_a_bound_and_so_many_old_ones_are_kept(tmp_path):
    file = tmp_path / "audit"
    log = AuditLog(str(file), most_bytes=400)
    for n in range(100):
        log.note("request", n=n)
    log.close()
    files = sorted(tmp_path.iterdir())
    assert len(files) == KEPT_FILES + 1
    assert all(each.stat().st_size <= 400 for each in files)
    newest = [line["n"] for line in lines(file)]
    before = [line["n"] for line in lines(tmp_path / "audit.1")]
    assert newest[-1] == 99
    assert before[-1] == newest[0] - 1
    again = AuditLog(str(file), most_bytes=400)
    again.note("request", n=100)
    again.close()
    assert lines(file)[-1]["n"] == 100


def test_another_program_may_move_the_file(tmp_path):
    file = tmp_path / "audit"
    log = AuditLog(str(file))
    log.note("first")
    file.rename(tmp_path / "moved")
    log.reopen()
    log.note("second")
    log.close()
    assert [x["event"] for x in lines(tmp_path / "moved")] == ["first"]
    assert [x["event"] for x in lines(file)] == ["second"]


def test_what_cannot_be_written_is_counted_and_stops_nobody(tmp_path, caplog):
    folder = tmp_path / "logs"
    folder.mkdir()
    log = AuditLog(str(folder / "audit"))
    log.close()
    os.rename(folder, tmp_path / "gone")
    for _ in range(3):
        log.note("request")
    assert log.n_lost == 3
    assert caplog.text.count("cannot be written") == 1
    os.rename(tmp_path / "gone", folder)
    log.note("request")
    assert log.n_lost == 3
    log.close()


def test_a_file_that_cannot_be_opened_stops_the_start(tmp_path):
    with pytest.raises(UsageError, match="cannot be written"):
        AuditLog(str(tmp_path / "none" / "audit"))
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="cannot be written"):
        AuditLog(str(tmp_path / "link"))


def test_without_a_file_nothing_is_written_and_stdout_is_one(capsys):
    AuditLog().note("request")
    assert not AuditLog().is_on
    log = AuditLog("-")
    log.note("request")
    log.close()
    assert json.loads(capsys.readouterr().out)["event"] == "request"


def test_outcomes():
    assert [outcome_of(x) for x in (200, 304, 404, 429, 499, 500, 503)] == [
        "done",
        "done",
        "refused",
        "refused",
        "left",
        "failed",
        "failed",
    ]
