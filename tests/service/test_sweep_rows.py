"""A sweep that goes on with rows of an earlier attempt: the same bytes, no point twice."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from planner.sweeping.running import PointSolver
from service.calls import Running, answer, dumps, read_request
from service.job_work import RowKeeper
from service.jobs import Jobs, State
from service.store import Store, sweep_rows
from service.store import jobs as jobs_table
from service.sweep_rows import packed, rows_of
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
N_POINTS = 8


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the points that are computed, as they are."""
    found: list[int] = []
    row = PointSolver._row

    def counted(self: PointSolver, point: Any, first: Any) -> Any:
        found.append(point.index)
        return row(self, point, first)

    monkeypatch.setattr(PointSolver, "_row", counted)
    return found


def swept(**given: Any) -> tuple[str, list[tuple[str, Any]]]:
    """Return the bytes of the sweep, and what was to be kept on the way."""
    kept: list[tuple[str, Any]] = []
    running = Running(keep=lambda sweep_id, rows: kept.append((sweep_id, rows)), **given)
    return dumps(answer(read_request("sweep", SWEEP), running), "sweep"), kept


def test_the_answer_is_the_same_whichever_rows_are_there(computed):
    whole, kept = swept()
    sweep_id, rows = kept[0][0], [row for _, rows in kept for row in rows]
    assert sorted(computed) == sorted(index for index, _ in rows) == list(range(N_POINTS))
    for some in (rows[:1], rows[:3], rows[1::2], rows[2:], rows):
        computed.clear()
        told: list[dict[str, Any]] = []
        again, new = swept(rows=[packed(sweep_id, some[:2]), packed(sweep_id, some[2:])],
                           progress=told.append)  # fmt: skip
        assert again == whole
        left = set(range(N_POINTS)) - {index for index, _ in some}
        assert set(computed) == left
        assert len(computed) == len(left)
        assert {index for _, rows in new for index, _ in rows} == left
        assert (told[0]["done"], told[-1]["done"]) == (len(some), N_POINTS)
        assert told[0]["best_step_time_s"] >= told[-1]["best_step_time_s"]


def test_rows_of_another_sweep_are_not_taken(computed):
    whole, kept = swept()
    computed.clear()
    wrong = packed("another", [(0, json.dumps({"index": 0, "status": "ok"}))])
    assert swept(rows=[wrong])[0] == whole
    assert len(computed) == N_POINTS
    assert rows_of([wrong], kept[0][0]) == {}


def test_a_sweep_whose_time_is_spent_answers_with_the_rows_that_it_has(computed):
    _, kept = swept()
    computed.clear()
    sweep_id, rows = kept[0]
    text, _ = swept(rows=[packed(sweep_id, rows)], time_limit_s=60.0, spent_s=60.0)
    found = json.loads(text)
    assert (found["complete"], found["stopped"], computed) == (False, "time limit", [])
    assert found["rows"] == [json.loads(row) for _, row in rows]


def test_of_one_job_so_many_bytes_of_rows_are_kept(tmp_path, monkeypatch):
    store = Store(f"sqlite:///{tmp_path}/service.sqlite")
    jobs = Jobs(store)
    jobs.submit("ann", "sweep", "r", b"{}")
    lease = jobs.lease()
    assert lease is not None
    monkeypatch.setattr("service.job_work.ROW_BYTES", 500)
    keeper = RowKeeper(jobs, lease)
    for i in range(20):
        keeper.add("s", [(i, os.urandom(40).hex())])
        assert keeper.store()
        assert not keeper.waits
    jobs.give_back(lease)
    again = jobs.lease()
    assert again is not None
    assert 300 < sum(map(len, again.rows)) <= 500
    assert list(rows_of(again.rows, "s")) == list(range(len(again.rows)))
    keeper = RowKeeper(jobs, again)  # what was kept before counts
    keeper.add("s", [(99, os.urandom(200).hex())])
    assert keeper.store()
    jobs.give_back(again)
    assert len(jobs.lease().rows) == len(again.rows)
    store.close()


def stored(jobs: Jobs) -> set[int]:
    """Return the points that are in the store."""
    payloads = jobs.store.read(lambda connection: connection.execute(sweep_rows.select()).all())
    return {i for each in payloads for i in rows_of([each.payload], each.sweep_id)}


def worker_of(jobs: Jobs) -> int:
    """Return the id of the process that works on the only job; 0 where none does."""
    running = select(jobs_table.c.holder).where(jobs_table.c.state == "RUNNING")
    holder = jobs.store.read(lambda connection: connection.execute(running).scalar())
    return int(holder.split("/")[1]) if holder else 0


@pytest.mark.service
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_sweep_outlives_kills_of_its_process_and_computes_no_stored_point_again(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real sweep; kill -9 of the process that works on it, then of the one that took over."""
    counted, module = tmp_path / "counted", "tests.service.counted_calls"
    monkeypatch.setenv("COUNTED_POINTS", str(counted))
    accepted: dict[int, str] = {}
    jobs = Jobs(Store(database))
    processes = [Process(database, accepted, module) for _ in range(2)]
    assert all(each.ready.wait(PATIENCE_S) for each in processes)
    processes[0].ask(0, SWEEP)
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
    assert payload.decode() == swept()[0]
    lines = [int(line) for line in counted.read_text().split()]
    assert not set(lines[n_seen:]) & known
    assert set(lines) == set(range(N_POINTS))
    assert stored(jobs) == set()
    jobs.store.close()
