"""Where jobs, results and idempotency keys are kept: SQLite or PostgreSQL, one schema.

A transaction that fails because the connection was lost, the database is starting or another
process was in the way is repeated with growing pauses, for `patience_s` in all. A connection can
be lost while it commits, so that nobody knows whether it did: whatever is passed to `Store.write`
must find out by itself that it has happened before.

No decision is made by the wall clock. Times of day are kept to be shown; what expires is measured
by the store's own clock (`Store.tick`), which a jump of the machine's clock does not move.
"""

import hashlib
import logging
import math
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Engine,
    Float,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    create_engine,
    event,
    func,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from service.handlers.problems import Refusal
from service.jobs.feed_tables import FEED_TABLES, ID, add_feed, begin_feed, tables
from service.tenants.groups import OPEN_GROUP, Priority

Found = TypeVar("Found")

log = logging.getLogger("planner.service")

SCHEMA_VERSION = 5
"""Version of the tables below; raised with every change of them, and `MIGRATIONS` with it."""
CREATION_LOCK = 0x706C616E6E6572
"""Advisory lock of PostgreSQL under which the tables are created: `planner` in ASCII."""
RESULTS_LOCK = CREATION_LOCK + 1
"""Advisory lock between those who keep results and those who delete them."""
BUSY_S = 5.0
"""How long SQLite waits for another process that writes."""
PATIENCE_S = 15.0
"""How long a transaction is repeated before the store is called unavailable."""
WRITTEN_S = 3.0
"""How long a commit tells that something can be written."""
FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0
CONNECTIONS = 8
"""Connections, and so threads that may talk to the store at a time."""

store_row = Table(
    "planner_store",
    tables,
    Column("id", Integer, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("elapsed_s", Float, nullable=False),  # the store's clock
    Column("wall_s", Float, nullable=False),  # time of day at its last tick
)
jobs = Table(
    "planner_jobs",
    tables,
    Column("seq", ID, primary_key=True, autoincrement=True),  # order of arrival
    Column("job_id", String(32), nullable=False, unique=True),
    Column("owner", String(200), nullable=False),
    Column("call", String(40), nullable=False),
    Column("request_id", String(64), nullable=False),
    Column("body", LargeBinary, nullable=False),  # compressed
    Column("time_limit_s", Float, nullable=False),
    Column("state", String(10), nullable=False),
    Column("turn", Integer, nullable=False),  # jobs are leased by it, then in order of arrival
    Column("attempts", Integer, nullable=False, default=0),
    Column("fence", Integer, nullable=False, default=0),  # of the last lease
    Column("beat", Integer, nullable=False, default=0),  # heartbeats of that lease
    Column("holder", String(200), nullable=False, default=""),  # process with the lease
    Column("claim", String(32), nullable=False, default=""),  # random name of the lease
    Column("n_events", Integer, nullable=False, default=0),
    Column("created_at", Float, nullable=False),  # times of day, to be shown
    Column("started_at", Float),
    Column("finished_at", Float),
    Column("sha256", String(64)),  # of the result
    Column("complete", Boolean),  # false: stopped with the best so far
    Column("problem", Text),  # JSON of RFC 9457
    Column("expires_s", Float),  # by the store's clock
    Column("tenant", String(63), nullable=False, server_default=OPEN_GROUP),  # group of the owner
    Column("priority", Integer, nullable=False, server_default=str(Priority.NORMAL.value)),
    Column(
        "charged_s", Float, nullable=False, server_default="0"
    ),  # CPU seconds, of all its leases
    Column("labels", Text, nullable=False, server_default="{}"),  # JSON
    Column("version", BigInteger, nullable=False, server_default="0"),  # of its last change
    Index("planner_jobs_state", "state", "turn", "seq"),
    Index("planner_jobs_tenant", "state", "tenant", "priority", "turn", "seq"),
    Index("planner_jobs_owner", "owner", "seq"),
    Index("planner_jobs_expiry", "expires_s"),
)
events = Table(
    "planner_events",
    tables,
    Column("job_id", String(32), primary_key=True),
    Column("n", Integer, primary_key=True),
    Column("text", Text, nullable=False),  # JSON
)
job_rows = Table(
    "planner_sweep_rows",  # as version 3 calls it, which knew rows of sweeps alone
    tables,
    Column("job_id", String(32), primary_key=True),  # of a job that is not finished
    Column("n", Integer, primary_key=True),  # of the batch, in the order in which they came
    Column("fence", Integer, nullable=False),  # of the lease that kept it
    Column("sweep_id", String(64), key="request_id", nullable=False),  # rows of it alone
    Column("n_rows", Integer, nullable=False),
    Column("spent_s", Float, nullable=False),
    Column("payload", LargeBinary, nullable=False),  # compressed
)
results = Table(
    "planner_results",
    tables,
    Column("sha256", String(64), primary_key=True),  # of the payload
    Column("payload", LargeBinary, nullable=False),  # compressed
    Column("n_bytes", BigInteger),  # not compressed; null in rows of version 3
)
answers = Table(
    "planner_answers",
    tables,
    Column("request_id", String(64), primary_key=True),
    Column("sha256", String(64), nullable=False, index=True),
    Column("expires_s", Float, nullable=False, index=True),
)
keys = Table(
    "planner_keys",
    tables,
    Column("owner", String(200), primary_key=True),
    Column("key", String(200), primary_key=True),
    Column("fingerprint", String(64), nullable=False),  # of the call and the body
    Column("claim", String(32), nullable=False),
    Column("job_id", String(32)),
    Column("sha256", String(64), index=True),  # of the answer that was given at once
    Column("etag", String(64)),
    Column("expires_s", Float, nullable=False, index=True),
)
shares = Table(
    "planner_shares",  # clocks of groups, by which they share workers (service.jobs.shares)
    tables,
    Column("tenant", String(63), primary_key=True),  # empty: the clock of the priority itself
    Column("priority", Integer, primary_key=True),
    Column("virtual_s", Float, nullable=False),
)
usage = Table(
    "planner_usage",
    tables,
    Column("tenant", String(63), primary_key=True),
    Column("slot", BigInteger, primary_key=True),  # of SLOT_S seconds of the store's clock
    Column("cpu_s", Float, nullable=False),
)


def _add_turns(connection: Connection) -> None:
    """Version 1 leased jobs in order of arrival; some of its tables have the column already."""
    columns = {column["name"] for column in inspect(connection).get_columns(jobs.name)}
    if jobs.c.turn.name in columns:
        return
    connection.execute(text("ALTER TABLE planner_jobs ADD COLUMN turn INTEGER NOT NULL DEFAULT 0"))
    connection.execute(text("DROP INDEX IF EXISTS planner_jobs_state"))
    _index("planner_jobs_state").create(connection)


def _add_rows(connection: Connection) -> None:
    """Version 2 began a sweep anew with every lease."""
    job_rows.create(connection, checkfirst=True)


def _index(name: str) -> Index:
    return next(each for each in jobs.indexes if each.name == name)


def _add_tenants(connection: Connection) -> None:
    """Version 3 knew no groups of callers: all jobs are of the one that there is without them."""
    added = {
        jobs: (
            ("tenant", f"VARCHAR(63) NOT NULL DEFAULT '{OPEN_GROUP}'"),
            ("priority", f"INTEGER NOT NULL DEFAULT {Priority.NORMAL.value}"),
            ("charged_s", "FLOAT NOT NULL DEFAULT 0"),
        ),
        results: (("n_bytes", "BIGINT"),),
    }
    for table, columns in added.items():
        there = {column["name"] for column in inspect(connection).get_columns(table.name)}
        for name, kind in columns:
            if name not in there:
                connection.execute(text(f"ALTER TABLE {table.name} ADD COLUMN {name} {kind}"))
    _index("planner_jobs_tenant").create(connection, checkfirst=True)
    for table in (shares, usage):
        table.create(connection, checkfirst=True)


MIGRATIONS: Mapping[int, Callable[[Connection], None]] = {
    1: _add_turns,
    2: _add_rows,
    3: _add_tenants,
    4: add_feed,
}
"""What makes the next version of the tables of a version, within one transaction."""
ADDED = {
    job_rows.name: 3,
    shares.name: 4,
    usage.name: 4,
    **{table.name: 5 for table in FEED_TABLES},
}
"""Tables that came later than the first version, with theirs."""


class StoreError(RuntimeError):
    """The store cannot be opened or used; `fix` says what to change."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


class StoreFull(Refusal):
    """There is no space left to write."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            507,
            "store-full",
            "the store has no space left",
            f"{detail}; nothing was accepted",
            retry_after_s=60.0,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return StoreFull, (self.detail.removesuffix("; nothing was accepted"),)


class StoreUnavailable(Refusal):
    """The database does not answer."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            503, "store-unavailable", "the store does not answer", detail, retry_after_s=5.0
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return StoreUnavailable, (self.detail,)


class StoreBroken(StoreUnavailable):
    """The file of the store cannot be read or written, and trying again does not help."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.code, self.title = "store-broken", "the store is broken"
        self.detail = f"{detail}: the log of the service says why"

    def __reduce__(self) -> tuple[Any, ...]:
        return StoreBroken, (self.detail.removesuffix(": the log of the service says why"),)


def data_folder() -> Path:
    """Return the folder of the service's data (XDG)."""
    home = os.path.join(os.path.expanduser("~"), ".local", "share")
    return Path(os.environ.get("XDG_DATA_HOME") or home) / "parallelism-planner"


def database_url(address: str = "", folder: Path | None = None) -> URL:
    """Return the address of the database; without one that of a file in `folder`.

    Raises `StoreError` for what is neither SQLite nor PostgreSQL, and for a database in memory,
    which no other process could see.
    """
    if not address:
        return URL.create("sqlite", database=str((folder or data_folder()) / "service.sqlite"))
    fix = "name postgresql://USER@HOST/DATABASE or sqlite:///FILE"
    try:
        url = make_url(address)
    except (ArgumentError, ValueError):
        raise StoreError("the address of the database cannot be read", fix) from None
    name = url.get_backend_name()
    if name in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    if name != "sqlite":
        raise StoreError(f"{name} is no database that this service knows", fix)
    if not url.database or url.database == ":memory:" or "mode=memory" in address:
        raise StoreError("a database in memory would lose every job", fix)
    return url


def compressed(payload: bytes) -> bytes:
    """Return bytes as the store keeps them."""
    return zlib.compress(payload, 6)


def opened_store(payload: bytes) -> bytes:
    """Return bytes that `compressed` made smaller."""
    return zlib.decompress(payload)


@dataclass(frozen=True, slots=True)
class Clock:
    """What tells the time, and what waits."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    pause: Callable[[float], None] = time.sleep


class Store:
    """A database with the tables above, opened by one process of the service."""

    def __init__(
        self,
        url: str | URL = "",
        *,
        patience_s: float = PATIENCE_S,
        reserve_bytes: int = 0,
        clock: Clock = Clock(),
    ) -> None:
        """Open the database and create what is missing.

        `reserve_bytes` of the disk are left to jobs that have been accepted: `check_space`
        refuses before they are used (SQLite only, where the disk is ours to look at). Raises
        `StoreError` where the database is of another version or cannot be opened,
        `StoreUnavailable` where it does not answer.
        """
        self.url = url if isinstance(url, URL) else database_url(url)
        self.name = self.url.render_as_string(hide_password=True)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.patience_s = patience_s
        self.last_written_s = -math.inf
        """When something was committed last, by the monotonic clock."""
        self.before_commit: Callable[[Connection], object] = lambda connection: None
        """Last statements of every transaction that writes."""
        self.monotonic, self.wall, self._pause = clock.monotonic, clock.wall, clock.pause
        self._reserve_bytes = reserve_bytes
        self._last_tick_s = clock.monotonic()
        self._engine = self._sqlite() if self.is_sqlite else self._postgresql()
        self._writing = self._engine.execution_options(planner_writes=True)
        # SQLite reads as of one moment anyhow; a server does so only where it is told to.
        self._snapshot = self._engine
        if not self.is_sqlite:
            self._snapshot = self._engine.execution_options(isolation_level="REPEATABLE READ")
        try:
            self.write(self._create)
        except BaseException:
            self.close()
            raise

    def _sqlite(self) -> Engine:
        path = Path(self.url.database or "")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                if os.fstat(file).st_mode & 0o077:  # requests and results of all callers
                    log.warning("%s can be read by other users of this machine: chmod 600", path)
            finally:
                os.close(file)
        except OSError as error:
            raise StoreError(
                f"{path} cannot be opened: {error.strerror}", "name another folder or file"
            ) from None
        engine = create_engine(
            self.url,
            pool_size=CONNECTIONS,
            max_overflow=0,
            connect_args={"check_same_thread": False, "timeout": BUSY_S},
            hide_parameters=True,  # what callers send must not be in a logged statement
        )

        @event.listens_for(engine, "connect")
        def _settings(connection: Any, _: Any) -> None:
            connection.isolation_level = None  # transactions are begun below, not by the module
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")  # what is committed outlives the power

        @event.listens_for(engine, "begin")
        def _begin(connection: Connection) -> None:
            # A writer takes its lock at once: one that reads first may have to be undone.
            writes = connection.get_execution_options().get("planner_writes")
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

        return engine

    def _postgresql(self) -> Engine:
        try:
            return create_engine(
                self.url,
                pool_size=CONNECTIONS,
                max_overflow=0,
                hide_parameters=True,
                connect_args={
                    "connect_timeout": 5,
                    "application_name": "planner",
                    # A peer that is gone: while it is sent to, ms, and while it is waited for, s.
                    "tcp_user_timeout": 10_000,
                    "keepalives_idle": 10,
                    "keepalives_interval": 5,
                    "keepalives_count": 2,
                    "options": "-c statement_timeout=30000 -c lock_timeout=10000",
                },
            )
        except ModuleNotFoundError:
            raise StoreError(
                "PostgreSQL needs the package psycopg",
                "pip install 'parallelism-planner[postgres]'",
            ) from None

    def _create(self, connection: Connection) -> None:
        if not self.is_sqlite:
            connection.execute(select(func.pg_advisory_xact_lock(CREATION_LOCK)))
        tables.create_all(connection, tables=[store_row])
        result = connection.execute(select(store_row.c.version)).scalar()
        if result is None:
            tables.create_all(connection)
            row = {"id": 1, "version": SCHEMA_VERSION, "elapsed_s": 0.0, "wall_s": self.wall()}
            connection.execute(insert(store_row).values(row))
            begin_feed(connection, self.wall())
            return
        expected = {t.name for t in tables.sorted_tables if ADDED.get(t.name, 1) <= result}
        missing = expected - set(inspect(connection).get_table_names())
        if missing:
            raise StoreError(
                f"{self.name} has no table {min(missing)}: it is not whole",
                "restore it from a copy, or name another database",
            )
        while result in MIGRATIONS:
            MIGRATIONS[result](connection)
            result += 1
            connection.execute(update(store_row).values(version=result))
        if result != SCHEMA_VERSION:
            raise StoreError(
                f"{self.name} has tables of version {result}, this release reads {SCHEMA_VERSION}",
                "start the release that made them, or name another database",
            )
        begin_feed(connection, self.wall())

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def read(self, work: Callable[[Connection], Found]) -> Found:
        """Return what `work` finds; `StoreUnavailable` where the database does not answer."""
        return self._repeated(self._engine, work)

    def snapshot(self, work: Callable[[Connection], Found]) -> Found:
        """Return what `work` finds where all that it reads is as of one moment."""
        return self._repeated(self._snapshot, work)

    def write(self, work: Callable[[Connection], Found]) -> Found:
        """Return what `work` finds once it is committed; it may be called several times.

        Raises `StoreFull` where there is no space, `StoreUnavailable` where the database does
        not answer.
        """

        def whole(connection: Connection) -> Found:
            found = work(connection)
            self.before_commit(connection)
            return found

        found = self._repeated(self._writing, whole)
        self.last_written_s = self.monotonic()
        return found

    def _repeated(self, engine: Engine, work: Callable[[Connection], Found]) -> Found:
        begun, wait = self.monotonic(), FIRST_PAUSE_S
        while True:
            try:
                with engine.begin() as connection:
                    return work(connection)
            except (DBAPIError, PoolTimeout) as error:
                fault = why(error)
                # What a driver says may name hosts, users and folders: for the log alone.
                if fault == "full":
                    log.error("the store is full: %s: %s", self.name, _first_line(error))
                    raise StoreFull("the disk of the store is full") from error
                if fault == "broken":
                    log.error("the store is broken: %s: %s", self.name, _first_line(error))
                    raise StoreBroken("the file of the store cannot be read or written") from error
                if fault == "defect":
                    raise
                if self.monotonic() - begun + wait > self.patience_s:
                    log.error("no answer of the store: %s: %s", self.name, _first_line(error))
                    raise StoreUnavailable("the database does not answer") from error
            self._pause(wait)
            wait = min(2 * wait, LONGEST_PAUSE_S)

    def check_writable(self) -> None:
        """Raise `StoreFull`, `StoreBroken` or `StoreUnavailable` where nothing can be written.

        What was written within the last seconds tells as much as another try.
        """
        self.check_space()
        if self.monotonic() - self.last_written_s < WRITTEN_S:
            return self.ping()
        same = update(store_row).values(version=store_row.c.version)
        self.write(lambda connection: connection.execute(same))
        return None

    def check_space(self) -> None:
        """Raise `StoreFull` where only the reserve of accepted jobs is left on the disk."""
        if not (self.is_sqlite and self._reserve_bytes):
            return
        folder = Path(self.url.database or "").resolve().parent
        state = os.statvfs(folder)
        free = state.f_bavail * state.f_frsize
        if free < self._reserve_bytes:
            log.error(
                "%s has %d bytes left, %d are kept for jobs that were accepted",
                folder,
                free,
                self._reserve_bytes,
            )
            raise StoreFull("what is left of the disk is kept for jobs that were accepted")

    def ping(self) -> None:
        """Raise `StoreUnavailable` unless the database answers."""
        self.read(lambda connection: connection.execute(text("SELECT 1")).scalar())

    def tick(self) -> float:
        """Move the store's clock on and return it, in seconds.

        It moves by the time of day since the last tick of any process, but never back, and never
        by more than this process has itself been running since its own last tick: a clock that
        is set forwards expires nothing, one that is set back stops nothing. Time in which no
        process runs does not count.
        """
        now_s = self.monotonic()
        most_s = now_s - self._last_tick_s
        wall_s = self.wall()

        def work(connection: Connection) -> float:
            row = connection.execute(select(store_row).with_for_update()).one()
            elapsed_s: float = row.elapsed_s + min(max(0.0, wall_s - row.wall_s), most_s)
            connection.execute(update(store_row).values(elapsed_s=elapsed_s, wall_s=wall_s))
            return elapsed_s

        elapsed_s = self.write(work)
        self._last_tick_s = now_s
        return elapsed_s

    def reckoned_s(self) -> float:
        """Return what `tick` would make of the store's clock; nothing is written."""
        row = self.read(lambda connection: connection.execute(select(store_row)).one())
        most_s = self.monotonic() - self._last_tick_s
        reckoned: float = row.elapsed_s + min(max(0.0, self.wall() - row.wall_s), most_s)
        return reckoned


def elapsed_s(connection: Connection) -> float:
    """Return the store's clock as its last tick left it."""
    result: float = connection.execute(select(store_row.c.elapsed_s)).scalar_one()
    return result


def lock_results(connection: Connection, to_delete: bool = False) -> None:
    """Keep results from being deleted until this transaction ends, or be the one that deletes.

    A result that is kept again while another process deletes it as unused would be lost. SQLite
    has one writer at a time and needs nothing.
    """
    if connection.dialect.name != "sqlite":
        lock = func.pg_advisory_xact_lock if to_delete else func.pg_advisory_xact_lock_shared
        connection.execute(select(lock(RESULTS_LOCK)))


def keep(connection: Connection, payload: bytes) -> str:
    """Keep a payload under its content and return its sha256; one copy of equal ones."""
    lock_results(connection)
    sha256 = hashlib.sha256(payload).hexdigest()
    row = {"sha256": sha256, "payload": compressed(payload), "n_bytes": len(payload)}
    insert_once(connection, results, row)
    return sha256


def kept(connection: Connection, sha256: str) -> bytes | None:
    """Return the payload with this sha256; None where it has expired."""
    result = connection.execute(
        select(results.c.payload).where(results.c.sha256 == sha256)
    ).scalar_one_or_none()
    return None if result is None else opened_store(result)


def has_as_many(connection: Connection, table: Table, owner: str, limit: int) -> bool:
    """Tell whether an owner has `limit` rows of a table; no more of them are counted."""
    some = select(table.c.owner).where(table.c.owner == owner).limit(limit).subquery()
    n: int = connection.execute(select(func.count()).select_from(some)).scalar_one()
    return n >= limit


def insert_once(connection: Connection, table: Table, row: dict[str, Any]) -> bool:
    """Insert a row unless one with its key is there; tell whether it was inserted."""
    made = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = made(table).values(row).on_conflict_do_nothing()
    # Counts of rows differ between drivers; what comes back does not.
    returned = connection.execute(statement.returning(*table.primary_key.columns))
    return returned.first() is not None


_SQLITE_PASSING = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL", "SQLITE_CANTOPEN")
_SQLITE_GROWING = (
    "SQLITE_IOERR_WRITE",
    "SQLITE_IOERR_TRUNCATE",
    "SQLITE_IOERR_SHMSIZE",
    "SQLITE_IOERR_SHMMAP",
)
"""What makes a file larger: where the disk has no space for it, or the file may not grow."""
_SQLITE_BROKEN = ("SQLITE_IOERR", "SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_READONLY")
"""What cannot be read, is no database any more, or may not be written."""
_POSTGRESQL_PASSING = ("08", "40", "55P03", "57P", "57014", "53300", "25006")
"""Connection, serialization and deadlock, lock timeout, shutdown and start, statement timeout,
too many connections, a standby that still has to take over."""


def why(error: DBAPIError | PoolTimeout) -> str:
    """Return what is behind an error of the database: `full`, `broken`, `passing` or `defect`."""
    if isinstance(error, PoolTimeout):
        return "passing"
    original = error.orig
    if isinstance(original, sqlite3.Error):
        code = getattr(original, "sqlite_errorname", "")
        # A file that may not grow is an I/O error to SQLite, and the disk is full only to some.
        if code == "SQLITE_FULL" or code in _SQLITE_GROWING:
            return "full"
        if code.startswith(_SQLITE_BROKEN):
            return "broken"
        return "passing" if code.startswith(_SQLITE_PASSING) else "defect"
    state = getattr(original, "sqlstate", None)
    if state and state.startswith(("53100", "53200")):
        return "full"
    if error.connection_invalidated or (state or "").startswith(_POSTGRESQL_PASSING):
        return "passing"
    # Without a state no server has spoken: there is no connection.
    lost = state is None and type(original).__name__ in ("OperationalError", "ConnectionTimeout")
    return "passing" if lost else "defect"


def _first_line(error: Exception) -> str:
    original = getattr(error, "orig", None) or error
    return (str(original).strip() or type(original).__name__).splitlines()[0]
