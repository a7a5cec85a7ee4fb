"""How the store takes the errors of its databases."""

import pickle
import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, insert, select
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from service.handlers.problems import Refusal
from service.jobs.queue import Jobs
from service.jobs.records import NewJob, RowBatch, State
from service.jobs.store import (
    SCHEMA_VERSION,
    WRITTEN_S,
    Clock,
    Store,
    StoreBroken,
    StoreError,
    StoreFull,
    StoreUnavailable,
    jobs,
    results,
    store_row,
    why,
)
from tests.service.clocks import Clocks
from tests.service.conftest import STORES


def sqlite_error(name: str) -> DBAPIError:
    original = sqlite3.OperationalError(name)
    original.sqlite_errorname = name
    return OperationalError("SELECT 1", {}, original)


def postgresql_error(state: str | None, kind: Any = psycopg.OperationalError) -> DBAPIError:
    original = type(kind.__name__, (kind,), {"sqlstate": state})("said")
    return OperationalError("SELECT 1", {}, original)


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (sqlite_error("SQLITE_FULL"), "full"),
        (sqlite_error("SQLITE_IOERR_WRITE"), "full"),
        (sqlite_error("SQLITE_IOERR_READ"), "broken"),
        (sqlite_error("SQLITE_IOERR_FSYNC"), "broken"),
        (sqlite_error("SQLITE_CORRUPT"), "broken"),
        (sqlite_error("SQLITE_READONLY_DBMOVED"), "broken"),
        (sqlite_error("SQLITE_BUSY_SNAPSHOT"), "passing"),
        (sqlite_error("SQLITE_CONSTRAINT_NOTNULL"), "defect"),
        (postgresql_error("53100"), "full"),  # disk_full
        (postgresql_error("57P01"), "passing"),  # admin_shutdown
        (postgresql_error("57P03"), "passing"),  # cannot_connect_now: it starts
        (postgresql_error("40P01"), "passing"),  # deadlock_detected
        (postgresql_error("40001"), "passing"),  # serialization_failure
        (postgresql_error("53300"), "passing"),  # too_many_connections
        (postgresql_error(None), "passing"),  # no server has spoken
        (postgresql_error("28P01"), "defect"),  # invalid_password
        (postgresql_error("42P01", psycopg.ProgrammingError), "defect"),  # undefined_table
        (postgresql_error(None, psycopg.ProgrammingError), "defect"),
        (PoolTimeout(), "passing"),
    ],
)
def test_what_is_behind_an_error(error, wanted):
    assert why(error) == wanted


def faulty(store: Store, errors: list[DBAPIError]) -> Any:
    def work(connection: Any) -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    return work


def test_what_passes_is_waited_for_with_growing_pauses_and_not_for_ever(tmp_path):
    clocks, pauses = Clocks(), []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        clocks.pass_(seconds)

    store = Store(
        f"sqlite:///{tmp_path}/x", patience_s=5.0, clock=Clock(clocks.monotonic, pause=pause)
    )
    busy = [sqlite_error("SQLITE_BUSY")] * 8
    assert store.write(faulty(store, list(busy))) == "done"
    assert pauses == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0])
    with pytest.raises(StoreUnavailable) as caught:
        store.write(faulty(store, 100 * busy))
    assert caught.value.retry_after_s
    assert sum(pauses) < 10.0
    store.close()


def test_a_full_disk_is_not_waited_for(tmp_path):
    store = Store(f"sqlite:///{tmp_path}/x", clock=Clock(pause=lambda _: pytest.fail("waited")))
    with pytest.raises(StoreFull, match="nothing was accepted"):
        store.write(faulty(store, [sqlite_error("SQLITE_FULL")]))
    store.close()


def test_problems_of_the_store_come_through_from_other_processes():
    import pickle

    for problem in (StoreFull("disk"), StoreUnavailable("gone")):
        again = pickle.loads(pickle.dumps(problem))
        assert isinstance(again, Refusal)
        assert again.to_json() == problem.to_json()


def test_the_file_of_the_store_is_its_owners_alone(tmp_path):
    folder = tmp_path / "new"
    store = Store(f"sqlite:///{folder}/service.sqlite")
    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / "service.sqlite").stat().st_mode & 0o077 == 0
    store.close()


def version_of(connection: Any) -> Any:
    return connection.execute(select(store_row.c.version)).scalar()


def without_tenants(execute: Callable[[str], Any]) -> None:
    """Take out what version 4 brought."""
    execute("DROP INDEX planner_jobs_tenant")
    for column in ("tenant", "priority", "charged_s"):
        execute(f"ALTER TABLE planner_jobs DROP COLUMN {column}")
    execute("ALTER TABLE planner_results DROP COLUMN n_bytes")
    for table in ("planner_shares", "planner_usage"):
        execute(f"DROP TABLE {table}")


def version_1(file: Any, with_turn: bool) -> None:
    """Make the file of the first release, which leased jobs in order of arrival."""
    Store(f"sqlite:///{file}").close()
    database = sqlite3.connect(file)
    database.execute("UPDATE planner_store SET version = 1")
    database.execute("DROP TABLE planner_sweep_rows")
    without_tenants(database.execute)
    if not with_turn:
        database.execute("DROP INDEX planner_jobs_state")
        database.execute("ALTER TABLE planner_jobs DROP COLUMN turn")
        database.execute("CREATE INDEX planner_jobs_state ON planner_jobs (state, seq)")
    database.commit()
    database.close()


@pytest.mark.parametrize("with_turn", [False, True])
def test_tables_of_the_first_version_are_carried_on_with_their_jobs(tmp_path, with_turn):
    file = tmp_path / "service.sqlite"
    version_1(file, with_turn)
    database = sqlite3.connect(file)
    turn = ", turn" if with_turn else ""
    database.execute(
        "INSERT INTO planner_jobs (job_id, owner, call, request_id, body, time_limit_s, state,"
        f" attempts, fence, beat, holder, claim, n_events, created_at{turn}) VALUES ('old', 'ann',"
        f" 'solve', 'r', x'789c030000000001', 0, 'PENDING', 0, 0, 0, '', '', 1, 0{turn and ', 0'})"
    )
    database.commit()
    database.close()
    for _ in range(2):  # the second time there is nothing to do
        store = Store(f"sqlite:///{file}")
        jobs = Jobs(store)
        assert jobs.get("old", "ann").state is State.PENDING
        new = jobs.submit(NewJob("ann", "solve", "s", b"{}"))
        assert store.read(version_of) == SCHEMA_VERSION
        jobs.cancel(new.job_id, "ann")
        store.close()
    store = Store(f"sqlite:///{file}")
    lease = Jobs(store).lease()
    assert lease is not None
    assert lease.job_id == "old"
    store.close()


@pytest.mark.parametrize("database", STORES, indirect=True)
def test_tables_of_the_second_version_get_rows_of_sweeps_and_keep_their_jobs(open_store):
    store = open_store()
    jobs = Jobs(store)
    waits, runs = (jobs.submit(NewJob("ann", "sweep", f"r{n}", b"{}")).job_id for n in range(2))
    lease = jobs.lease()
    assert lease is not None

    def undo(connection: Any) -> None:
        connection.exec_driver_sql("UPDATE planner_store SET version = 2")
        connection.exec_driver_sql("DROP TABLE planner_sweep_rows")
        without_tenants(connection.exec_driver_sql)

    store.write(undo)
    for _ in range(2):  # the second time there is nothing to do
        now = Jobs(open_store(), holder=jobs.holder)
        assert now.store.read(version_of) == SCHEMA_VERSION
    assert now.keep_rows(lease, RowBatch(0, "s", 1, b"row", 1.0))
    assert {now.get(job_id, "ann").state for job_id in (waits, runs)} == {"PENDING", "RUNNING"}
    now.give_back(lease)
    assert [now.lease().rows for _ in range(2)] == [(b"row",), ()]


@pytest.mark.parametrize("database", STORES, indirect=True)
def test_tables_of_the_third_version_get_groups_and_keep_their_results(open_store):
    store = open_store()
    jobs = Jobs(store)
    job_id = jobs.submit(NewJob("ann", "solve", "r", b"{}")).job_id
    lease = jobs.lease()
    assert lease is not None
    assert jobs.finish(lease, b"x" * 10_000)

    def undo(connection: Any) -> None:
        connection.exec_driver_sql("UPDATE planner_store SET version = 3")
        without_tenants(connection.exec_driver_sql)

    store.write(undo)
    for _ in range(2):  # the second time there is nothing to do
        now = Jobs(open_store())
    assert now.result(job_id, "ann")[1] == b"x" * 10_000
    used = {use.quota: use.used for use in now.uses(now.tenants.group("default"))}
    assert used["stored_results"] == 1
    assert 0 < used["stored_bytes"] < 10_000  # as it lies in the store, compressed


def test_tables_of_another_version_and_parts_of_them_are_refused(tmp_path):
    file = tmp_path / "service.sqlite"
    for change, said in (
        ("UPDATE planner_store SET version = 99", "tables of version 99"),
        ("DROP TABLE planner_keys", "no table planner_keys"),
    ):
        file.unlink(missing_ok=True)
        Store(f"sqlite:///{file}").close()
        database = sqlite3.connect(file)
        database.execute(change)
        database.commit()
        database.close()
        with pytest.raises(StoreError, match=said):
            Store(f"sqlite:///{file}")


@pytest.mark.service
def test_tables_of_the_first_version_on_a_server(postgresql):
    url = postgresql.new_database()
    store = Store(url)

    def undo(connection: Any) -> None:
        connection.exec_driver_sql("UPDATE planner_store SET version = 1")
        connection.exec_driver_sql("DROP TABLE planner_sweep_rows")
        connection.exec_driver_sql("ALTER TABLE planner_jobs DROP COLUMN turn")

    store.write(undo)
    store.close()
    store = Store(url)
    assert Jobs(store).submit(NewJob("ann", "solve", "r", b"{}")).state is State.PENDING
    store.close()


class Steps:
    """Counts, in thousands, the steps of SQLite's machine: its work, whatever else there is."""

    def __init__(self, store: Store) -> None:
        self.n = 0
        event.listen(store._engine, "begin", self._count)

    def _count(self, connection: Any) -> None:
        connection.connection.dbapi_connection.set_progress_handler(self._more, 1_000)

    def _more(self) -> int:
        self.n += 1
        return 0


def steps_of(tmp_path: Any, n_jobs: int) -> tuple[int, int]:
    """Return the steps of a clean-up, and of a lease, of a store with jobs that have ended."""
    store = Store(f"sqlite:///{tmp_path}/{n_jobs}.sqlite")
    ended = [
        {
            "job_id": f"{n:032d}",
            "owner": f"{n % 7}",
            "call": "solve",
            "request_id": f"{n:064d}",
            "body": b"",
            "time_limit_s": 0.0,
            "state": State.SUCCEEDED.value,
            "turn": 0,
            "created_at": 0.0,
            "sha256": f"{n:064d}",
            "complete": False,
            "expires_s": 1e9,
        }
        for n in range(n_jobs)
    ]
    there = [{"sha256": f"{n:064d}", "payload": b"x"} for n in range(n_jobs)]
    store.write(lambda c: c.execute(insert(jobs), ended) and None)
    store.write(lambda c: c.execute(insert(results), there) and None)
    found = Jobs(store)
    steps = Steps(store)
    found.clean_up()
    cleaned, steps.n = steps.n, 0
    found.submit(NewJob("ann", "solve", "f" * 64, b"{}"))
    steps.n = 0
    assert found.lease() is not None
    store.close()
    return cleaned, steps.n


def test_the_work_of_cleaning_up_and_of_leasing_does_not_grow_out_of_bounds(tmp_path):
    """Nobody else can write meanwhile: every job looked at for every result takes minutes."""
    few, many = steps_of(tmp_path, 500), steps_of(tmp_path, 4_000)
    assert many[0] < 12 * max(1, few[0])  # eight times as many
    assert many[1] <= few[1] + 1  # whatever has ended is not looked at


@pytest.mark.service
def test_a_server_that_is_gone_is_not_waited_for_by_the_hour(postgresql):
    store = Store(postgresql.new_database())
    with store._engine.connect() as connection:
        told = connection.connection.dbapi_connection.info.get_parameters()
    store.close()
    assert int(told["keepalives_idle"]) <= 30
    assert int(told["keepalives_interval"]) * int(told["keepalives_count"]) <= 30


def test_a_file_that_cannot_be_read_is_not_a_full_disk(tmp_path):
    store = Store(f"sqlite:///{tmp_path}/store.sqlite")
    with pytest.raises(StoreBroken) as found:
        store.read(lambda connection: faulty_read())
    assert (found.value.status, found.value.code) == (503, "store-broken")
    assert pickle.loads(pickle.dumps(found.value)).detail == found.value.detail
    store.close()


def faulty_read() -> None:
    raise sqlite_error("SQLITE_IOERR_READ")


def test_whether_something_can_be_written_is_tried(tmp_path):
    now_s = 0.0
    store = Store(f"sqlite:///{tmp_path}/store.sqlite")
    store.monotonic = lambda: now_s
    store.write(lambda connection: None)
    writes: list[int] = []
    written = store.write

    def counted(work: Any) -> Any:
        writes.append(1)
        return written(work)

    store.write = counted  # type: ignore[method-assign]
    store.check_writable()
    assert not writes  # the commit before tells as much
    now_s = WRITTEN_S + 1.0
    store.check_writable()
    assert len(writes) == 1
    store.close()
