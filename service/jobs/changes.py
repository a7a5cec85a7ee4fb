"""The history of jobs: what changed, in the order of its commits, for whoever watches.

A change of a job is a change of its state; progress is none. Every change has a version. The
versions come from a counter in one row, which a transaction moves on in its last statements and
keeps locked until it has committed: so versions are committed in their order, and a watcher who
has seen version N misses nothing that comes after it.

Changes are kept for a while. Who asks for those after a version that is older than they are is
told to list again.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Column, Connection, bindparam, delete, func, insert, select, update

from service.handlers.problems import Refusal
from service.jobs.feed_tables import changes, feed_row, labels
from service.jobs.labels import Selector
from service.jobs.records import Bounds, JobView, State
from service.jobs.store import Store, elapsed_s, jobs

PAGE = 500
"""Changes that are read at once."""
PENDING = "planner_changes"
"""Where a connection holds the jobs that its transaction has changed."""


class Kind(StrEnum):
    """What happened to a job."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a job."""

    version: int
    kind: Kind
    owner: str
    job: Mapping[str, Any]
    """The job as JSON, after the change; before it where it was deleted."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of the job."""
        found: Mapping[str, str] = self.job.get("labels", {})
        return found


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs are listed."""

    state: State | None = None
    call: str = ""
    """Empty for all."""
    selector: Selector = ()
    created_after: float | None = None
    """Time of day, seconds since 1970; so is the next."""
    created_before: float | None = None

    def conditions(self) -> list[Any]:
        """Return what holds for the rows of such jobs."""
        found: list[Any] = [each.condition() for each in self.selector]
        if self.state is not None:
            found.append(jobs.c.state == self.state.value)
        if self.call:
            found.append(jobs.c.call == self.call)
        if self.created_after is not None:
            found.append(jobs.c.created_at > self.created_after)
        if self.created_before is not None:
            found.append(jobs.c.created_at < self.created_before)
        return found


@dataclass(frozen=True, slots=True)
class JobPage:
    """Jobs of a list, the newest first."""

    jobs: Sequence[JobView]
    next_cursor: str
    """Empty after the last page."""
    version: int
    """Whoever watches from it on misses nothing that is not on this page."""


@dataclass(frozen=True, slots=True)
class ChangePage:
    """Changes after a version, in order."""

    changes: Sequence[Change]
    version: int
    """All changes up to it are here, or were not asked for."""


class Changes:
    """The history of the jobs of a store."""

    def __init__(
        self,
        store: Store,
        bounds: Bounds,
        view: Callable[[Any], JobView],
        outbox: Callable[[Connection, Sequence[Change]], object],
    ) -> None:
        """Prepare; from now on the store's transactions record what they noted.

        `view` makes a job of its row, without its body. `outbox` is told the changes within the
        transaction that makes them.
        """
        self._store, self._bounds, self._view, self._outbox = store, bounds, view, outbox
        self._viewed: tuple[Column[Any], ...] = tuple(x for x in jobs.c if x.name != "body")
        store.before_commit = self.record

    # Writing

    def note(self, connection: Connection, job_id: str, kind: Kind = Kind.MODIFIED) -> None:
        """Let this transaction record a change of a job; one, however often it is noted."""
        pending = self._pending(connection)
        if kind is Kind.DELETED:
            pending[job_id] = kind, self._seen(connection, [job_id]).get(job_id)
        else:
            pending.setdefault(job_id, (kind, None))

    def _pending(self, connection: Connection) -> dict[str, tuple[Kind, JobView | None]]:
        """Return what was noted in this transaction; a connection is used for many."""
        own = connection.get_transaction()
        held = connection.info.get(PENDING)
        if held is None or held[0] is not own:
            held = connection.info[PENDING] = (own, {})
        found: dict[str, tuple[Kind, JobView | None]] = held[1]
        return found

    def _seen(self, connection: Connection, job_ids: Sequence[str]) -> dict[str, JobView]:
        rows = connection.execute(select(*self._viewed).where(jobs.c.job_id.in_(job_ids))).all()
        return {row.job_id: self._view(row) for row in rows}

    def record(self, connection: Connection) -> None:
        """Record what was noted; a transaction may call it itself, to read versions of its own.

        Nothing but reading may follow, as the counter of versions is locked until it commits.
        """
        pending = self._pending(connection)
        connection.info.pop(PENDING, None)
        if not pending:
            return
        there = self._seen(connection, [x for x, (_, view) in pending.items() if view is None])
        whole = [
            (kind, view)
            for job_id, (kind, before) in pending.items()
            if (view := before or there.get(job_id)) is not None
        ]
        if not whole:
            return
        at_s = elapsed_s(connection)
        last: int = connection.execute(
            update(feed_row)
            .where(feed_row.c.id == 1)
            .values(version=feed_row.c.version + len(whole))
            .returning(feed_row.c.version)
        ).scalar_one()
        recorded = []
        for version, (kind, view) in enumerate(whole, last - len(whole) + 1):
            job = view.to_json() | {"resource_version": version}
            recorded.append((Change(version, kind, view.owner, job), view.call))
        rows = [
            {
                "version": change.version,
                "owner": change.owner,
                "call": call,
                "kind": change.kind.value,
                "at_s": at_s,
                "text": json.dumps(change.job),
            }
            for change, call in recorded
        ]
        connection.execute(insert(changes), rows)
        versions = [
            {"of_job": change.job["job_id"], "to_version": change.version}
            for change, _ in recorded
            if change.kind is not Kind.DELETED
        ]
        if versions:
            own = jobs.c.job_id == bindparam("of_job")
            connection.execute(
                update(jobs).where(own).values(version=bindparam("to_version")), versions
            )
        self._outbox(connection, [change for change, _ in recorded])

    def label(self, connection: Connection, job_id: str, given: Mapping[str, str]) -> None:
        """Keep the labels of a new job where they are selected by."""
        if given:
            rows = [{"job_id": job_id, "name": x, "value": y} for x, y in given.items()]
            connection.execute(insert(labels), rows)

    # Reading

    def version(self) -> int:
        """Return the version of the last change of any job."""
        return self._store.read(_version)

    def page(
        self,
        owner: str | None,
        wanted: JobFilter = JobFilter(),
        *,
        before: int | None = None,
        limit: int = 50,
    ) -> JobPage:
        """Return jobs of an owner, None for all; those that came before number `before`."""

        def work(connection: Connection) -> JobPage:
            listed = select(*self._viewed).where(*wanted.conditions())
            if owner is not None:
                listed = listed.where(jobs.c.owner == owner)
            if before is not None:
                listed = listed.where(jobs.c.seq < before)
            rows = connection.execute(listed.order_by(jobs.c.seq.desc()).limit(limit + 1)).all()
            cursor = str(rows[limit - 1].seq) if len(rows) > limit else ""
            return JobPage([self._view(row) for row in rows[:limit]], cursor, _version(connection))

        return self._store.snapshot(work)

    def since(self, owner: str | None, after: int, call: str = "") -> ChangePage:
        """Return changes after a version; `Refusal` 410 where some of them are forgotten."""

        def work(connection: Connection) -> ChangePage:
            state = connection.execute(select(feed_row)).one()
            if not state.trimmed <= after <= state.version:
                raise history_trimmed(after)
            listed = select(changes).where(changes.c.version > after)
            if owner is not None:
                listed = listed.where(changes.c.owner == owner)
            if call:
                listed = listed.where(changes.c.call == call)
            rows = connection.execute(listed.order_by(changes.c.version).limit(PAGE)).all()
            found = [
                Change(row.version, Kind(row.kind), row.owner, json.loads(row.text))
                for row in rows
            ]
            return ChangePage(found, rows[-1].version if len(rows) == PAGE else state.version)

        return self._store.snapshot(work)

    # Clean-up

    def trim(self, now_s: float) -> int:
        """Forget the oldest changes and return how many; to be called once a minute."""

        def forget(connection: Connection) -> int:
            oldest_s = now_s - self._bounds.history_s
            old = select(func.max(changes.c.version)).where(changes.c.at_s <= oldest_s)
            by_age = connection.execute(old).scalar_one() or 0
            by_number = _version(connection) - self._bounds.history_rows
            last: int = max(by_age, by_number)
            own = (feed_row.c.id == 1, feed_row.c.trimmed < last)
            connection.execute(update(feed_row).where(*own).values(trimmed=last))
            return last

        def some(connection: Connection) -> int:
            # Those that the row of the feed calls forgotten already: no watcher is given them.
            first = select(changes.c.version).where(changes.c.version <= last)
            chosen = first.order_by(changes.c.version).limit(PAGE)
            gone = delete(changes).where(changes.c.version.in_(chosen.scalar_subquery()))
            return len(connection.execute(gone.returning(changes.c.version)).all())

        last = self._store.write(forget)
        n = 0
        while forgotten := self._store.write(some):
            n += forgotten
        return n


def _version(connection: Connection) -> int:
    found: int = connection.execute(select(feed_row.c.version)).scalar_one()
    return found


def history_trimmed(after: int) -> Refusal:
    """Return the problem of a version whose changes are not all there any more."""
    return Refusal(
        410,
        "history-trimmed",
        "the changes after this version are not kept any more",
        f"resource_version {after} is too old, or of another store: list the jobs again, and"
        " watch from the resource_version of the list",
    )
