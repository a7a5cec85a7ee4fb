"""Jobs that go on with rows of an earlier attempt: the same bytes, no row twice."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from planner.sweeps.run import PointSolver
from planner.sweeps.scaling import curve
from service.handlers.calls import CALLS, answer, dumps, read_request
from service.handlers.partial_results import KeptRow, Rows, packed_rows, rows_of
from service.handlers.running_call import RunningCall
from service.jobs.queue import Jobs
from service.jobs.records import NewJob, State
from service.jobs.store import Store, job_rows
from service.jobs.store import jobs as jobs_table
from service.jobs.work import RowKeeper
from tests.searches.instances import one_in
from tests.service.test_chaos import Process, wait_for_end
from tests.service.waiting import PATIENCE_S, wait_until

SWEEP = {
    "spec": {
        "model": "llama3-8b",
        "cluster": "h100-x8",
        # Twins, which differ in price alone; searches that share tables; others.
        "vary": {
            "pools.0.nodes": [1, 2],
            "training.global_batch": [64, 128],
            "pools.0.price_per_hour": [16, 24],
        },
        "search": {"pin": {"tp": 8}},
    }
}
SCALE = {
    "model": "llama3-8b",
    "cluster": "h100-x512",
    "from": 2,
    "to": 256,
    "points": 8,
    "set": {"training.global_batch": 64, "pools.0.accelerator.memory": "48GiB"},
    "only": {"tp": [2], "pp": [1, 2], "cp": [1], "mbs": [1], "vpp": [2], "recompute": ["none"]},
}
"""The first and the last size have no legal layout and so no row, on the second nothing fits."""
ASKED = {"sweep": SWEEP, "scale": SCALE}


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the rows that are computed, as they are."""
    found: list[int] = []
    row, size_row = PointSolver._row, curve._size_row

    def counted(self: PointSolver, point: Any, first: Any) -> Any:
        found.append(point.index)
        return row(self, point, first)

    def counted_size(index: int, *given: Any) -> curve.SizeRow:
        size = size_row(index, *given)
        if size.row is not None:
            found.append(index)
        return size

    monkeypatch.setattr(PointSolver, "_row", counted)
    monkeypatch.setattr(curve, "_size_row", counted_size)
    return found


def answered(call: str, **given: Any) -> tuple[str, list[KeptRow]]:
    """Return the bytes of an answer, and the rows that were to be kept on the way."""
    kept: list[KeptRow] = []
    running = RunningCall(keep=kept.extend, **given)
    return dumps(answer(read_request(call, ASKED[call]), running), call), kept


@cache
def whole(call: str) -> tuple[str, tuple[KeptRow, ...]]:
    """Return the bytes of an answer without rows of an earlier attempt, and its rows."""
    text, rows = answered(call)
    return text, tuple(rows)


def by_index(rows: Rows) -> dict[int, KeptRow]:
    """Return rows as an attempt gets them that the store kept for it."""
    found = rows_of([packed_rows("this", rows[:2]), packed_rows("this", rows[2:])], "this")
    assert found == {row.place: row for row in rows}
    return found


@pytest.mark.parametrize("call", one_in(2, ASKED))
@pytest.mark.parametrize(
    "parts",
    [
        [slice(1, None, 2)],
        pytest.param([slice(1), slice(3), slice(2, None), slice(None)], marks=pytest.mark.slow),
    ],
    ids=["every-second", "others"],
)
def test_the_answer_is_the_same_whichever_rows_are_there(call, parts, computed):
    text, rows = answered(call)
    every = {row.place for row in rows}
    assert CALLS[call].rows
    assert len(rows) == len(json.loads(text)["rows"]) > 5
    assert sorted(computed) == sorted(every)
    for part in parts:
        some = rows[part]
        computed.clear()
        told: list[dict[str, Any]] = []
        again, new = answered(call, rows=by_index(some), progress=told.append)
        assert again == text
        left = every - {row.place for row in some}
        assert sorted(computed) == sorted(left)
        assert {row.place for row in new} == left
        assert told[-1]["done"] == told[-1]["total"] >= len(rows)


def test_progress_of_a_sweep_begins_with_the_points_that_are_there(computed):
    _, rows = whole("sweep")
    told: list[dict[str, Any]] = []
    answered("sweep", rows=by_index(rows[:3]), progress=told.append)
    assert (told[0]["done"], told[-1]["done"]) == (3, len(rows))
    assert told[0]["best_step_time_s"] >= told[-1]["best_step_time_s"]


@pytest.mark.slow
def test_rows_of_a_curve_are_kept_as_its_answer_has_them(computed):
    """What compares a size to the first, and what the curve says of it, are there at once."""
    text, rows = whole("scale")
    found = json.loads(text)
    assert [json.loads(row.text) for row in rows] == found["rows"]
    assert found["rows"][0]["scale.speedup"] is None
    assert found["rows"][-1]["scale.speedup"] > 1.0
    assert {note for row in rows for note in row.notes} <= set(found["notes"])
    assert any("left out" in note for note in found["notes"])
    assert any(row.notes for row in rows)


def test_rows_of_another_request_are_not_taken():
    payloads = [
        packed_rows("another", [KeptRow(0, "{}", ("note",))]),
        packed_rows("s", [KeptRow(1, "[]")]),
    ]
    assert rows_of(payloads, "s") == {1: KeptRow(1, "[]")}
    assert rows_of(payloads, "another") == {0: KeptRow(0, "{}", ("note",))}


@pytest.mark.parametrize("call", one_in(2, ASKED))
def test_a_job_whose_time_is_spent_answers_with_the_rows_that_it_has(call, computed):
    _, rows = whole(call)
    computed.clear()
    given = by_index(rows[:3])
    text, _ = answered(call, rows=given, time_limit_s=60.0, spent_s=60.0)
    found = json.loads(text)
    assert (found["complete"], found["stopped"], computed) == (False, "time limit", [])
    assert found["rows"] == [json.loads(row.text) for row in sorted(rows[:3])]


def test_of_one_job_so_many_bytes_of_rows_are_kept(tmp_path, monkeypatch):
    store = Store(f"sqlite:///{tmp_path}/service.sqlite")
    jobs = Jobs(store)
    jobs.submit(NewJob("ann", "sweep", "r", b"{}"))
    lease = jobs.lease()
    assert lease is not None
    monkeypatch.setattr("service.jobs.work.ROW_BYTES", 500)
    keeper = RowKeeper(jobs, lease)
    for i in range(20):
        keeper.add("s", [KeptRow(i, os.urandom(40).hex())])
        assert keeper.store()
        assert not keeper.waits
    jobs.give_back(lease)
    again = jobs.lease()
    assert again is not None
    assert 300 < sum(map(len, again.rows)) <= 500
    assert list(rows_of(again.rows, "s")) == list(range(len(again.rows)))
    keeper = RowKeeper(jobs, again)  # what was kept before counts
    keeper.add("s", [KeptRow(99, os.urandom(200).hex())])
    assert keeper.store()
    jobs.give_back(again)
    assert len(jobs.lease().rows) == len(again.rows)
    store.close()


def stored(jobs: Jobs) -> set[int]:
    """Return the rows that are in the store."""
    payloads = jobs.store.read(lambda connection: connection.execute(job_rows.select()).all())
    return {i for each in payloads for i in rows_of([each.payload], each.request_id)}


def worker_of(jobs: Jobs) -> int:
    """Return the id of the process that works on the only job; 0 where none does."""
    running = select(jobs_table.c.holder).where(jobs_table.c.state == "RUNNING")
    holder = jobs.store.read(lambda connection: connection.execute(running).scalar())
    return int(holder.split("/")[1]) if holder else 0


@pytest.mark.service
@pytest.mark.parametrize("call", ASKED)
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_job_outlives_kills_of_its_process_and_computes_no_stored_row_again(
    database: str, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real calls; kill -9 of the process that works on it, then of the one that took over."""
    counted, module = tmp_path / "counted", "tests.service.counted_calls"
    monkeypatch.setenv("COUNTED_ROWS", str(counted))
    accepted: dict[int, str] = {}
    jobs = Jobs(Store(database))
    processes = [Process(database, accepted, module) for _ in range(2)]
    assert all(each.ready.wait(PATIENCE_S) for each in processes)
    processes[0].ask(0, ASKED[call], call)
    known: set[int] = set()
    n_seen = 0
    for _ in range(2):
        pid = 0

        def has_more() -> bool:
            nonlocal pid
            pid = worker_of(jobs)
            return bool(pid and stored(jobs) > known)  # noqa: B023  # called at once

        wait_until(has_more)
        victim = next(each for each in processes if each.pid == pid)
        victim.kill()
        before, known = known, stored(jobs)
        lines = [int(line) for line in counted.read_text().split()]
        assert not set(lines[n_seen:]) & before
        n_seen = len(lines)
        processes.remove(victim)
    last = Process(database, accepted, module)
    wait_for_end(jobs, accepted)
    assert last.ready.wait(PATIENCE_S)
    last.close()
    view, payload = jobs.result(accepted[0], None)
    assert (view.state, view.is_final) == (State.SUCCEEDED, True)
    text, rows = answered(call)
    assert payload.decode() == text
    lines = [int(line) for line in counted.read_text().split()]
    assert not set(lines[n_seen:]) & known
    assert set(lines) >= {row.place for row in rows}
    assert stored(jobs) == set()
    jobs.store.close()
