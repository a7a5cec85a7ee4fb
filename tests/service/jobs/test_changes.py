"""The history of jobs: whole, in the order of its commits, over SQLite and PostgreSQL."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from service.handlers.problems import Refusal
from service.jobs.changes import PAGE, Change, JobFilter
from service.jobs.feed_tables import FEED_TABLES, changes, feed_row, labels
from service.jobs.queue import Jobs
from service.jobs.records import Bounds, JobTags, NewJob, State
from service.jobs.store import SCHEMA_VERSION, Clock, Store, store_row
from tests.repeats import slow
from tests.service.clocks import Clocks
from tests.service.conftest import STORES

pytestmark = pytest.mark.parametrize("database", STORES, indirect=True)

BOUNDS = Bounds(retention_s=3_600.0, memory_s=7_200.0, history_s=600.0)
OpenStore = Callable[..., Store]


def new(n: int, owner: str = "ann", **given: str) -> NewJob:
    return NewJob(owner, "solve", f"{n:064d}", b"{}", tags=JobTags(given))


def told(process: Jobs, after: int, owner: str | None = None) -> list[tuple[str, str, str]]:
    page = process.changes.since(owner, after)
    return [(x.kind.value, x.job["job_id"], x.job["state"]) for x in page.changes]


def test_every_change_of_a_state_is_told_once_and_in_order(open_store: OpenStore):
    process = Jobs(open_store(), BOUNDS)
    start = process.changes.version()
    job_id = process.submit(new(1)).job_id
    lease = process.lease()
    assert lease is not None
    process.beat({lease: [{"phase": "x", "done": 1, "total": 2}]})  # progress is no change
    process.give_back(lease)
    lease = process.lease()
    assert lease is not None
    process.finish(lease, b"1", unsent=[{"phase": "x", "done": 2, "total": 2}])
    process.finish(lease, b"1")  # again
    assert told(process, start) == [
        ("ADDED", job_id, "PENDING"),
        ("MODIFIED", job_id, "RUNNING"),
        ("MODIFIED", job_id, "PENDING"),
        ("MODIFIED", job_id, "RUNNING"),
        ("MODIFIED", job_id, "SUCCEEDED"),
    ]
    found = process.changes.since(None, start)
    assert [x.version for x in found.changes] == list(range(start + 1, start + 6))
    assert found.version == process.changes.version() == process.get(job_id, None).version
    assert dict(found.changes[-1].job) == process.get(job_id, None).to_json()


def test_a_known_answer_is_one_change_and_a_repeated_key_none(open_store: OpenStore):
    process = Jobs(open_store(), BOUNDS)
    process.submit(new(1))
    lease = process.lease()
    assert lease is not None
    process.finish(lease, b"1")
    start = process.changes.version()
    job = process.submit(new(1), key="k", fingerprint="f")
    assert process.submit(new(1), key="k", fingerprint="f").job_id == job.job_id
    assert told(process, start) == [("ADDED", job.job_id, "SUCCEEDED")]


def test_a_transaction_that_fails_tells_nothing(open_store: OpenStore):
    store = open_store()
    process = Jobs(store, BOUNDS)
    start = process.changes.version()
    job_id = process.submit(new(1)).job_id

    def fails(connection: Any) -> None:
        process.changes.note(connection, job_id)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.write(fails)
    store.write(lambda connection: None)  # over the same connection
    assert len(told(process, start)) == 1


@pytest.mark.parametrize("n_jobs", [3, slow(25)])
def test_a_watcher_misses_nothing_however_many_change_jobs_at_once(
    open_store: OpenStore, n_jobs: int
):
    """Who reads on from the last version that he has seen has seen every version in the end."""
    processes = [Jobs(open_store(), BOUNDS, f"p{i}") for i in range(4)]
    start = processes[0].changes.version()
    watcher, ended = Jobs(open_store(), BOUNDS, "w"), threading.Event()
    seen: list[Change] = []

    def watch() -> None:
        after, last = start, False
        while not last:
            last = ended.is_set()
            page = watcher.changes.since(None, after)
            seen.extend(page.changes)
            after = page.version

    def work(i: int) -> None:
        process = processes[i]
        for n in range(n_jobs):
            process.submit(new(1_000 * i + n, owner=f"o{i}"))
            lease = process.lease()
            if lease is not None:
                process.finish(lease, b"%d" % n)

    with ThreadPoolExecutor(5) as threads:
        watching = threads.submit(watch)
        for each in [threads.submit(work, i) for i in range(4)]:
            each.result()
        ended.set()
        watching.result()
    versions = [each.version for each in seen]
    assert versions == list(range(start + 1, start + 1 + len(versions)))
    assert watcher.changes.version() == versions[-1]
    added = {x.job["job_id"] for x in seen if x.kind == "ADDED"}
    assert len(added) == 4 * n_jobs
    last = {each.job["job_id"]: each.job["state"] for each in seen}
    listed, _ = watcher.page(None, limit=1_000)
    assert last == {job.job_id: job.state.value for job in listed}


def test_changes_come_in_pages_of_ones_own(open_store: OpenStore):
    bounds = replace(BOUNDS, queued=2 * PAGE, queued_per_owner=2 * PAGE)
    store = open_store()
    process = Jobs(store, bounds)
    start = process.changes.version()
    first = process.submit(new(1, "bob")).job_id

    def many(connection: Any) -> None:
        for n in range(PAGE + 1):
            connection.execute(
                changes.insert().values(
                    version=start + 2 + n,
                    owner="ann",
                    call="solve",
                    kind="MODIFIED",
                    at_s=0.0,
                    text='{"job_id": "x", "state": "RUNNING"}',
                )
            )
        connection.execute(feed_row.update().values(version=start + PAGE + 2))

    store.write(many)
    page = process.changes.since("ann", start)
    assert (len(page.changes), page.version) == (PAGE, start + 1 + PAGE)
    rest = process.changes.since("ann", page.version)
    assert (len(rest.changes), rest.version) == (1, start + PAGE + 2)
    assert told(process, start, "bob") == [("ADDED", first, "PENDING")]
    assert process.changes.since("bob", start).version == start + PAGE + 2
    assert process.changes.since("bob", start, "sweep").changes == []


def test_a_job_that_is_forgotten_is_told_as_deleted(open_store: OpenStore):
    clocks = Clocks()
    process = Jobs(open_store(clock=Clock(clocks.monotonic, clocks.wall)), BOUNDS)
    job_id = process.submit(new(1, team="a")).job_id
    process.cancel(job_id, "ann")
    for _ in range(2):
        start = process.changes.version()
        clocks.pass_(8_000.0)
        process.clean_up()
        found = told(process, start)
        kind, state = ("MODIFIED", "EXPIRED") if not _ else ("DELETED", "EXPIRED")
        assert found == [(kind, job_id, state)]
    (last,) = process.changes.since("ann", start).changes
    assert last.labels == {"team": "a"}
    assert process.store.read(lambda c: c.execute(select(labels)).all()) == []


def test_old_changes_are_forgotten_and_who_asks_for_them_lists_again(open_store: OpenStore):
    clocks = Clocks()
    process = Jobs(open_store(clock=Clock(clocks.monotonic, clocks.wall)), BOUNDS)
    start = process.changes.version()
    process.submit(new(1))
    clocks.pass_(500.0)
    process.clean_up()
    assert len(told(process, start)) == 1
    middle = process.changes.version()
    process.submit(new(2))
    clocks.pass_(200.0)
    process.clean_up()
    with pytest.raises(Refusal) as caught:
        process.changes.since(None, start)
    assert (caught.value.status, caught.value.code) == (410, "history-trimmed")
    assert len(told(process, middle)) == 1
    with pytest.raises(Refusal):
        process.changes.since(None, process.changes.version() + 1)


def test_no_more_changes_are_kept_than_the_bound(open_store: OpenStore):
    process = Jobs(open_store(), replace(BOUNDS, history_rows=3))
    start = process.changes.version()
    for n in range(5):
        process.submit(new(n))
    process.clean_up()
    with pytest.raises(Refusal):
        process.changes.since(None, start + 1)
    assert len(told(process, start + 2)) == 3


def test_a_list_is_as_of_one_moment(open_store: OpenStore):
    """Jobs and version are read together: no change in between is missed or told twice."""
    process, other = Jobs(open_store(), BOUNDS), Jobs(open_store(), BOUNDS)
    first = process.submit(new(1)).job_id
    view, n_seen = process.changes._view, 0

    def late(row: Any) -> Any:
        nonlocal n_seen
        n_seen += 1
        if n_seen == 1:  # the jobs are read, the version is not
            other.cancel(first, "ann")
        return view(row)

    process.changes._view = late
    page = process.changes.page("ann")
    assert page.jobs[0].state is State.PENDING
    assert told(other, page.version) == [("MODIFIED", first, "CANCELLED")]


def test_jobs_are_filtered_in_the_store(open_store: OpenStore):
    clocks = Clocks()
    process = Jobs(open_store(clock=Clock(clocks.monotonic, clocks.wall)), BOUNDS)
    made = []
    for n in range(4):
        made.append(process.submit(new(n, "ann" if n < 3 else "bob", team=f"t{n % 2}")))
        clocks.pass_(10.0)
    process.cancel(made[0].job_id, "ann")

    def listed(owner: str | None, **wanted: Any) -> list[int]:
        ids = [job.job_id for job in process.changes.page(owner, JobFilter(**wanted)).jobs]
        return [[job.job_id for job in made].index(each) for each in ids]

    assert listed(None) == [3, 2, 1, 0]
    assert listed("ann", state=State.PENDING) == [2, 1]
    assert listed(None, call="sweep") == []
    assert listed(None, created_after=made[1].created_at) == [3, 2]
    assert listed(None, created_before=made[1].created_at) == [0]


def test_tables_of_the_third_version_get_the_history_and_keep_their_jobs(open_store: OpenStore):
    store = open_store()
    process = Jobs(store)
    job_id = process.submit(new(1)).job_id

    def undo(connection: Any) -> None:
        connection.execute(store_row.update().values(version=3))
        for table in FEED_TABLES:
            connection.exec_driver_sql(f"DROP TABLE {table.name}")
        for name in ("labels", "version"):
            connection.exec_driver_sql(f"ALTER TABLE planner_jobs DROP COLUMN {name}")

    store.write(lambda connection: undo(connection))
    for _ in range(2):  # the second time there is nothing to do
        now = Jobs(open_store())
        assert now.store.read(lambda c: c.execute(select(store_row.c.version)).scalar()) == (
            SCHEMA_VERSION
        )
    job = now.get(job_id, "ann")
    assert (job.state, job.labels, job.version) == (State.PENDING, {}, 0)
    start = now.changes.version()
    now.cancel(job_id, "ann")
    assert told(now, start) == [("MODIFIED", job_id, "CANCELLED")]


def test_a_new_store_does_not_take_the_versions_of_one_that_was_deleted(open_store: OpenStore):
    clocks = Clocks()
    store = open_store(clock=Clock(clocks.monotonic, clocks.wall))
    process = Jobs(store, BOUNDS)
    old = process.changes.version()
    process.submit(new(1))
    seen = process.changes.version()

    def deleted(connection: Any) -> None:
        connection.execute(feed_row.delete())

    store.write(deleted)
    clocks.pass_(5.0)
    again = Jobs(open_store(clock=Clock(clocks.monotonic, clocks.wall)), BOUNDS)
    assert again.changes.version() > seen > old
    with pytest.raises(Refusal):
        again.changes.since(None, seen)
