"""Jobs: accepted, leased, finished once; and idempotency keys.

    PENDING -> RUNNING -> SUCCEEDED | FAILED
       |  ^________|           |
       v       v               v
       CANCELLED           EXPIRED (the result is gone, its row says so for a while)

A job is a row before it is work: `submit` returns when the row is committed, and from then on some
process will finish it. A process works on it under a lease with a number, the fence, that grows
with every lease; whatever it writes is conditional on that number, so that a process that was
taken for dead finishes nothing.

A lease is never compared with a time of day. Its holder adds one to `beat` at every heartbeat;
others take a job back once they have themselves seen the same fence and the same beat for
`lease_s`, by their own monotonic clock (`Watcher`), or at once where the holder was a process of
the same machine that is gone. So a clock that jumps, and clocks of machines that differ, neither
end a lease nor prolong one.

Rows of a job are kept as they come, in batches under the number of their lease (`keep_rows`).
The next lease of the job comes with them; they go when the answer is there or the job expires.
"""

import json
import re
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, delete, func, insert, or_, select, update

from service.handlers.problems import Fault, Refusal
from service.jobs.accounts import (
    charge,
    charge_jobs,
    check_quotas,
    cpu_use,
    first_priority,
    forget_usage,
    join_line,
    next_job,
    uses_of,
)
from service.jobs.changes import Changes, JobFilter, Kind
from service.jobs.feed_tables import labels
from service.jobs.idempotency import Keys, key_conflict, key_in_use
from service.jobs.leases import Watcher, is_abandoned, is_gone, new_claim, this_process
from service.jobs.records import (
    FINAL,
    OPEN,
    Bounds,
    Event,
    JobQueueFull,
    JobView,
    KeptRows,
    Lease,
    NewJob,
    Reply,
    RowBatch,
    State,
    no_such_job,
    problem_from_json,
)
from service.jobs.store import (
    Store,
    answers,
    compressed,
    elapsed_s,
    events,
    has_as_many,
    insert_once,
    job_rows,
    jobs,
    keep,
    kept,
    keys,
    lock_results,
    opened_store,
    results,
)
from service.jobs.webhooks import Webhooks
from service.tenants.groups import Group, Tenants
from service.tenants.quotas import QuotaUse

__all__ = [
    "FINAL",
    "OPEN",
    "Bounds",
    "Event",
    "JobQueueFull",
    "JobView",
    "Jobs",
    "KeptRows",
    "Lease",
    "Reply",
    "RowBatch",
    "State",
    "Watcher",
    "cursor_number",
    "is_abandoned",
    "is_gone",
    "new_claim",
    "no_such_job",
    "problem_from_json",
    "this_process",
]

JOB_ID = re.compile(r"[A-Za-z0-9]{1,64}")
"""What an id can look like; no database is asked for others, which some cannot even hold."""
VIEWED = tuple(column for column in jobs.c if column.name != "body")
"""Columns of a job that its owner sees: a body may have megabytes."""
CLEAN_UP_ROWS = 500
"""Rows that one transaction of the clean-up changes, so that none is long."""


class Jobs(Keys):
    """Jobs, results and idempotency keys of a store, as one process uses them.

    Every method is one transaction (the clean-up: several) and may be called from any thread. It
    may be run twice where the connection is lost while it commits, and does its work once.
    """

    def __init__(
        self,
        store: Store,
        bounds: Bounds = Bounds(),
        holder: str = "",
        monotonic: Callable[[], float] = time.monotonic,
        tenants: Tenants | None = None,
    ) -> None:
        super().__init__(store, bounds)
        self.tenants = tenants or Tenants()
        self.holder = holder or this_process()
        self._watcher = Watcher(bounds.lease_s, monotonic)
        self.webhooks = Webhooks(store, bounds)
        self.changes = Changes(store, bounds, _view, self.webhooks.put)

    # Submission

    def submit(self, new: NewJob, key: str = "", fingerprint: str = "") -> JobView:
        """Accept a job and return it once it is committed.

        A request with a complete answer in the store becomes a job that has SUCCEEDED. With a
        `key` that its owner has used for the same `fingerprint`, the job of the first time comes
        back. Raises `Refusal`: 422 for a key used otherwise, 409 for one in use, 429 for a quota
        of the group that is used up, `JobQueueFull`, `StoreFull`, `StoreUnavailable`.
        """
        self.store.check_space()
        job_id = secrets.token_hex(16)
        owner, small = new.owner, compressed(new.body)
        group = self.tenants.group(new.tenant)

        def work(connection: Connection) -> JobView:
            earlier = self._submitted(connection, owner, key, fingerprint, job_id)
            if earlier:
                return earlier
            now_s, created_at = elapsed_s(connection), self.store.wall()
            sha256 = self._answered(connection, new.request_id)
            self._check_room(connection, owner, waits=not sha256)
            check_quotas(connection, group, waits=not sha256)
            if key:
                self._check_keys(connection, owner, key)
                expires_s = now_s + self.bounds.key_s
                row: dict[str, Any] = {"owner": owner, "key": key, "fingerprint": fingerprint}
                row |= {"claim": job_id, "job_id": job_id, "expires_s": expires_s}
                if not insert_once(connection, keys, row):  # another request was faster
                    first = self._submitted(connection, owner, key, fingerprint, job_id)
                    if first is None:
                        raise key_in_use(key)
                    return first
            job = {
                "job_id": job_id,
                "owner": owner,
                "call": new.call,
                "request_id": new.request_id,
                "body": small,
                "time_limit_s": new.time_limit_s,
                "created_at": created_at,
                "state": State.PENDING.value,
                "turn": self._turn(connection, new),
                "tenant": new.tenant,
                "priority": new.priority,
                "labels": json.dumps(dict(new.tags.labels)),
            }
            if sha256:
                job |= {"state": State.SUCCEEDED.value, "sha256": sha256, "complete": True}
                job["body"] = b""  # nobody will work on it
                job |= {"finished_at": created_at, "expires_s": now_s + self.bounds.retention_s}
            else:
                join_line(connection, new.tenant, new.priority)
            connection.execute(insert(jobs).values(job))
            self.changes.label(connection, job_id, new.tags.labels)
            if new.tags.webhook is not None:
                self.webhooks.add(connection, new.tags.webhook, job_id)
            self.changes.note(connection, job_id, Kind.ADDED)
            self._tell(connection, job_id, [{"state": job["state"]}])
            self.changes.record(connection)
            return _view(_row(connection, job_id))

        return self.store.write(work)

    def _submitted(
        self, connection: Connection, owner: str, key: str, fingerprint: str, job_id: str
    ) -> JobView | None:
        """Return the job that this submission, or the first with its key, has made already."""
        if not key:
            return _found(connection, job_id)
        row = connection.execute(
            select(keys).where(keys.c.owner == owner, keys.c.key == key)
        ).one_or_none()
        if row is None:
            return None
        if row.fingerprint != fingerprint:
            raise key_conflict(key)
        earlier = _found(connection, row.job_id) if row.job_id else None
        if earlier is None:  # its job is forgotten: the key is free again
            connection.execute(delete(keys).where(keys.c.owner == owner, keys.c.key == key))
        return earlier

    def _check_room(self, connection: Connection, owner: str, waits: bool) -> None:
        if has_as_many(connection, jobs, owner, self.bounds.kept_per_owner):
            raise JobQueueFull(
                f"{self.bounds.kept_per_owner} jobs of yours are kept, as many as one caller may"
                " have: the oldest go when their results have expired"
            )
        if not waits:
            return
        waiting = select(func.count()).where(jobs.c.state == State.PENDING.value)
        n = connection.execute(waiting).scalar_one()
        if n >= self.bounds.queued:
            raise JobQueueFull(f"{n} jobs wait, as many as this service keeps: come back later")
        n = connection.execute(waiting.where(jobs.c.owner == owner)).scalar_one()
        if n >= self.bounds.queued_per_owner:
            raise JobQueueFull(
                f"{n} jobs of yours wait, as many as one caller may have: come back when some are"
                " worked on, or cancel some"
            )

    def _turn(self, connection: Connection, new: NewJob) -> int:
        """Return the turn of a job in its line: one more than that of its owner's last one there.

        An owner with nothing that waits joins the turn that is on. So owners of one group take
        turns, however many jobs one of them has sent.
        """
        line = (jobs.c.tenant == new.tenant, jobs.c.priority == new.priority)
        waits = (jobs.c.state == State.PENDING.value, *line)
        last = select(func.max(jobs.c.turn)).where(*waits, jobs.c.owner == new.owner)
        own: int | None = connection.execute(last).scalar_one()
        if own is not None:
            return own + 1
        now: int | None = connection.execute(
            select(func.min(jobs.c.turn)).where(*waits)
        ).scalar_one()
        return now or 0

    def _answered(self, connection: Connection, request_id: str) -> str:
        """Return the sha256 of the complete answer to a request; empty where there is none."""
        lock_results(connection)
        outcome = connection.execute(
            select(answers.c.sha256).where(answers.c.request_id == request_id)
        ).scalar_one_or_none()
        return outcome or ""

    # Work

    def lease(self, calls: Collection[str] = ()) -> Lease | None:
        """Return the job whose turn it is, leased to this process; None if none waits.

        Priorities come first, then groups share by weight (`service.jobs.shares`); in a group
        owners take turns, and of one owner's jobs it is the one that has waited longest. `calls`
        names the calls whose jobs are wanted; empty for all.
        """
        claim = secrets.token_hex(16)
        wanted = [jobs.c.state == State.PENDING.value]
        if calls:
            wanted.append(jobs.c.call.in_(sorted(calls)))
        waiting = select(jobs.c.seq).where(*wanted).limit(1)
        if self.store.read(lambda connection: connection.execute(waiting).first()) is None:
            return None  # without taking the lock of a writer

        def work(connection: Connection) -> Lease | None:
            # Among the few that run, which an index knows: there may be a million others.
            own = select(jobs).where(jobs.c.state == State.RUNNING.value, jobs.c.claim == claim)
            row = connection.execute(own).one_or_none()
            if row is None:
                seq = next_job(connection, wanted, self.tenants)
                if seq is None:
                    return None
                connection.execute(
                    update(jobs)
                    .where(jobs.c.seq == seq)
                    .values(
                        state=State.RUNNING.value,
                        attempts=jobs.c.attempts + 1,
                        fence=jobs.c.fence + 1,
                        beat=0,
                        holder=self.holder,
                        claim=claim,
                        started_at=self.store.wall(),
                    )
                )
                row = connection.execute(own).one()
                state = {"state": State.RUNNING.value, "attempt": row.attempts}
                self._tell(connection, row.job_id, [state])
            batches = connection.execute(_batches(row.job_id)).all()
            return Lease(
                row.job_id,
                row.fence,
                row.call,
                row.request_id,
                opened_store(row.body),
                row.time_limit_s,
                row.attempts,
                tuple(each.payload for each in batches),
                batches[-1].n + 1 if batches else 0,
                sum(each.spent_s for each in batches),
                row.charged_s,
                row.tenant,
                row.priority,
            )

        return self.store.write(work)

    def beat(
        self,
        leases: Mapping[Lease, Sequence[Mapping[str, Any]]],
        cpu_s: Mapping[Lease, float] = {},
    ) -> set[Lease]:
        """Send a heartbeat for leases, each with its new progress; return those still held.

        `cpu_s` are the CPU seconds that they have had so far. A job whose lease is not held any
        more was cancelled, or taken by another process: its work is to be stopped.
        """
        if not leases:
            return set()

        def work(connection: Connection) -> set[Lease]:
            still_leased = set()
            for lease in sorted(leases, key=lambda lease: lease.job_id):  # no deadlocks
                beaten = update(jobs).where(*_held(lease)).values(beat=jobs.c.beat + 1)
                if connection.execute(beaten).rowcount:
                    still_leased.add(lease)
                    self._tell(connection, lease.job_id, leases[lease])
            spent = {each: cpu_s[each] for each in still_leased if each in cpu_s}
            self._charge(connection, spent)
            return still_leased

        return self.store.write(work)

    def _charge(self, connection: Connection, cpu_s: Mapping[Lease, float]) -> None:
        """Charge groups with the CPU seconds of leases that are held."""
        totals_s = {lease.job_id: lease.charged_s + max(0.0, s) for lease, s in cpu_s.items()}
        charge_jobs(connection, totals_s, self.tenants)

    def charge_cancelled(self, lease: Lease, cpu_s: float) -> None:
        """Charge a job that was cancelled while a lease was held with its CPU seconds."""

        def work(connection: Connection) -> None:
            ended = (
                jobs.c.job_id == lease.job_id,
                jobs.c.fence == lease.fence,
                jobs.c.state == State.CANCELLED.value,
            )
            if connection.execute(select(jobs.c.seq).where(*ended)).first() is not None:
                self._charge(connection, {lease: cpu_s})

        self.store.write(work)

    def most_urgent(self) -> int | None:
        """Return the highest priority of a job that waits and may be leased; None without one."""
        waits = [jobs.c.state == State.PENDING.value]
        return self.store.read(lambda connection: first_priority(connection, waits, self.tenants))

    def keep_rows(self, lease: Lease, batch: RowBatch) -> bool:
        """Keep a batch of rows for the next lease of its job; tell whether this one still holds.

        The same batch again changes nothing. Rows of another request id, which another release
        has computed, are forgotten. Raises `StoreFull` where only the reserve of the disk is left:
        it is for the ends of jobs, `StoreUnavailable`.
        """
        self.store.check_space()

        def work(connection: Connection) -> bool:
            own_job = select(jobs.c.job_id).where(*_held(lease)).with_for_update()
            if connection.execute(own_job).first() is None:
                return False
            row = {
                "job_id": lease.job_id,
                "n": batch.n,
                "fence": lease.fence,
                "request_id": batch.request_id,
                "n_rows": batch.n_rows,
                "spent_s": batch.spent_s,
                "payload": batch.payload,
            }
            if insert_once(connection, job_rows, row):
                old = job_rows.c.job_id == lease.job_id, job_rows.c.request_id != batch.request_id
                connection.execute(delete(job_rows).where(*old))
            return True

        return self.store.write(work)

    def finish(
        self,
        lease: Lease,
        payload: bytes | None,
        *,
        complete: bool = True,
        problem: Refusal | None = None,
        unsent: Sequence[Mapping[str, Any]] = (),
        cpu_s: float | None = None,
    ) -> bool:
        """End a job with its answer, or with the problem that kept it from having one.

        `unsent` is progress that no heartbeat has brought: watchers hear of it before the end.
        `cpu_s` are the CPU seconds of this lease; None: what was charged stays.
        Returns whether it counts: not where the lease was lost. A complete answer also answers
        the same request from now on.
        """
        state = State.FAILED if problem else State.SUCCEEDED

        def work(connection: Connection) -> bool:
            finished_at, now_s = self.store.wall(), elapsed_s(connection)
            sha256 = None if payload is None else keep(connection, payload)
            expires_s = now_s + self.bounds.retention_s
            values: dict[str, Any] = {
                "state": state.value,
                "finished_at": finished_at,
                "expires_s": expires_s,
                "sha256": sha256,
                "complete": complete if sha256 else None,
                "body": b"",
                "problem": json.dumps(problem.to_json()) if problem else None,
            }
            if not connection.execute(update(jobs).where(*_held(lease)).values(values)).rowcount:
                return self._finished_before(connection, lease, state, sha256)
            if sha256 and complete:
                row = {"request_id": lease.request_id, "sha256": sha256, "expires_s": expires_s}
                if not insert_once(connection, answers, row):
                    same = answers.c.request_id == lease.request_id
                    connection.execute(update(answers).where(same).values(row))
            if sha256:  # it has all rows; those of a job that has failed stay until it expires
                connection.execute(delete(job_rows).where(job_rows.c.job_id == lease.job_id))
            self._tell(connection, lease.job_id, [*unsent, {"state": state.value}])
            if cpu_s is not None:
                self._charge(connection, {lease: cpu_s})
            return True

        return self.store.write(work)

    def _finished_before(
        self, connection: Connection, lease: Lease, state: State, sha256: str | None
    ) -> bool:
        """Tell whether it was this very call that finished the job, before it was repeated."""
        row = _row(connection, lease.job_id)
        own = (lease.fence, self.holder, state.value, sha256)
        return row is not None and own == (row.fence, row.holder, row.state, row.sha256)

    def give_back(self, lease: Lease, cpu_s: float | None = None) -> None:
        """Let a job wait again that was not finished; the attempt does not count.

        `cpu_s` as for `finish`.
        """

        def work(connection: Connection) -> None:
            values = {"state": State.PENDING.value, "attempts": jobs.c.attempts - 1}
            if connection.execute(update(jobs).where(*_held(lease)).values(values)).rowcount:
                self._tell(connection, lease.job_id, [{"state": State.PENDING.value}])
                if cpu_s is not None:
                    self._charge(connection, {lease: cpu_s})

        self.store.write(work)

    def retry(self, lease: Lease, reason: str) -> bool:
        """Let a job wait again whose worker died; tell whether it may be tried again.

        After `max_attempts` in a row that kept no row it has FAILED.
        """
        return self.store.write(lambda c: self._retried(c, lease.job_id, _held(lease), reason))

    def take_back(self, own_jobs: Collection[str] = ()) -> int:
        """Let jobs wait again whose process is gone or silent; return how many there were.

        `own_jobs` are those that this process works on. To be called every third of a lease.
        """
        running = select(jobs.c.job_id, jobs.c.fence, jobs.c.beat, jobs.c.holder)
        others = running.where(
            jobs.c.state == State.RUNNING.value,
            or_(jobs.c.holder != self.holder, jobs.c.job_id.not_in(own_jobs)),
        )
        rows = self.store.read(lambda connection: connection.execute(others).all())
        outcome = self._watcher.abandoned((r.job_id, r.fence, r.beat, r.holder) for r in rows)

        def work(connection: Connection) -> int:
            n = 0
            for job_id, fence, beat in sorted(outcome):
                unchanged = (
                    jobs.c.job_id == job_id,
                    jobs.c.fence == fence,
                    jobs.c.beat == beat,
                    jobs.c.state == State.RUNNING.value,
                )
                n += self._retried(connection, job_id, unchanged, "its process died", blamed=False)
            return n

        return self.store.write(work) if outcome else 0

    def _retried(
        self,
        connection: Connection,
        job_id: str,
        condition: tuple[Any, ...],
        reason: str,
        blamed: bool = True,
    ) -> bool:
        """Return a job that meets a condition to those that wait, or end it; tell the first.

        Where the job is not `blamed` the attempt does not count. With an attempt that has kept
        rows the counts of attempts and of leases begin anew: it ends all the same, with the last
        point.
        """
        row = connection.execute(
            select(jobs.c.attempts, jobs.c.fence).where(*condition).with_for_update()
        ).one_or_none()
        if row is None:
            return False
        bounds = self.bounds
        with_rows = select(func.max(job_rows.c.fence)).where(job_rows.c.job_id == job_id)
        in_vain: int = row.fence - (connection.execute(with_rows).scalar_one() or 0)
        has_rows = not in_vain
        may_retry = in_vain < bounds.max_leases
        may_retry = may_retry and (has_rows or not blamed or row.attempts < bounds.max_attempts)
        if may_retry:
            values: dict[str, Any] = {"state": State.PENDING.value}
            if has_rows:
                values["attempts"] = 0
            elif not blamed:
                values["attempts"] = row.attempts - 1
        else:
            tried, maximum = in_vain, bounds.max_leases
            if tried < maximum:
                tried, maximum = row.attempts, bounds.max_attempts
            problem = Refusal(
                500,
                "gave-up",
                "the job was tried as often as it may be",
                f"{reason}, at attempt {tried} of {maximum}",
            )
            values = {
                "state": State.FAILED.value,
                "body": b"",
                "problem": json.dumps(problem.to_json()),
                "finished_at": self.store.wall(),
                "expires_s": elapsed_s(connection) + self.bounds.retention_s,
            }
        connection.execute(update(jobs).where(*condition).values(values))
        self._tell(connection, job_id, [{"state": values["state"], "reason": reason}])
        return may_retry

    def cancel(self, job_id: str, owner: str | None) -> JobView:
        """Cancel a job that is not final, and return it; a final one is returned as it is.

        A job of another owner is unknown; `owner` None may cancel all. Whoever works on it hears
        of it at the next heartbeat. Rows that are kept stay, to be read until the job expires.
        """

        def work(connection: Connection) -> JobView:
            self._view_of(connection, job_id, owner)
            cancelled = (
                update(jobs)
                .where(jobs.c.job_id == job_id, jobs.c.state.in_(OPEN))
                .values(
                    state=State.CANCELLED.value,
                    body=b"",
                    finished_at=self.store.wall(),
                    expires_s=elapsed_s(connection) + self.bounds.retention_s,
                )
            )
            if connection.execute(cancelled).rowcount:
                self._tell(connection, job_id, [{"state": State.CANCELLED.value}])
                self.changes.record(connection)
            return self._view_of(connection, job_id, owner)

        return self.store.write(work)

    def _tell(
        self, connection: Connection, job_id: str, data: Sequence[Mapping[str, Any]]
    ) -> None:
        """Add events to a job; the row of the job, locked first, gives their numbers."""
        if not data:
            return
        counted = (
            update(jobs)
            .where(jobs.c.job_id == job_id)
            .values(n_events=jobs.c.n_events + len(data))
            .returning(jobs.c.n_events)
        )
        last: int = connection.execute(counted).scalar_one()
        first = last - len(data) + 1
        rows = [
            {"job_id": job_id, "n": first + i, "text": json.dumps(dict(each))}
            for i, each in enumerate(data)
        ]
        connection.execute(insert(events), rows)
        if any("state" in each for each in data):
            self.changes.note(connection, job_id)

    # Reading

    def get(self, job_id: str, owner: str | None) -> JobView:
        """Return a job; `Refusal` 404 where it is unknown or another owner's."""
        return self.store.read(lambda connection: self._view_of(connection, job_id, owner))

    def _view_of(self, connection: Connection, job_id: str, owner: str | None) -> JobView:
        outcome = _found(connection, job_id) if JOB_ID.fullmatch(job_id) else None
        if outcome is None or owner not in (None, outcome.owner):
            raise no_such_job(job_id)
        return outcome

    def page(
        self, owner: str | None, *, state: State | None = None, cursor: str = "", limit: int = 50
    ) -> tuple[list[JobView], str]:
        """Return jobs, the newest first, and the cursor of the next page, empty after the last.

        Jobs that come while pages are read move nothing.
        """
        before = cursor_number(cursor) if cursor else None
        found = self.changes.page(owner, JobFilter(state), before=before, limit=limit)
        return list(found.jobs), found.next_cursor

    def note(self, job_id: str, data: Mapping[str, Any]) -> None:
        """Keep what a page calls a job and where its answer stands, as long as its events.

        It is the event 0, which no watcher is told of; the first note of a job stays.
        """
        row = {"job_id": job_id, "n": 0, "text": json.dumps(dict(data))}
        self.store.write(lambda connection: insert_once(connection, events, row) and None)

    def notes(self, job_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the notes of jobs that have one; whoever asks has seen the jobs."""
        wanted = select(events.c.job_id, events.c.text).where(
            events.c.job_id.in_(job_ids), events.c.n == 0
        )
        rows = self.store.read(lambda connection: connection.execute(wanted).all())
        return {row.job_id: json.loads(row.text) for row in rows}

    def events(
        self, job_id: str, owner: str | None, after: int = 0
    ) -> tuple[JobView, list[Event]]:
        """Return a job and its events from number `after` + 1 on, both as of one moment."""

        def work(connection: Connection) -> tuple[JobView, list[Event]]:
            view = self._view_of(connection, job_id, owner)
            rows = connection.execute(
                select(events.c.n, events.c.text)
                .where(events.c.job_id == job_id, events.c.n > after, events.c.n <= view.n_events)
                .order_by(events.c.n)
            ).all()
            return view, [Event(row.n, json.loads(row.text)) for row in rows]

        return self.store.read(work)

    def result(self, job_id: str, owner: str | None) -> tuple[JobView, bytes]:
        """Return a job and the bytes of its answer.

        Raises `Refusal`: 404 unknown, 409 not finished or cancelled, 410 expired, and the job's
        own problem where it failed.
        """

        def work(connection: Connection) -> tuple[JobView, bytes | None]:
            view = self._view_of(connection, job_id, owner)
            return view, kept(connection, view.sha256) if view.sha256 else None

        view, payload = self.store.read(work)
        if payload is not None:
            return view, payload
        if view.problem:
            raise problem_from_json(view.problem)
        if view.is_final and view.state is not State.CANCELLED:
            raise _expired()
        raise Refusal(
            409,
            "no-result",
            "the job has no result",
            f"job {job_id} is {view.state.value}",
            retry_after_s=None if view.is_final else 1.0,
        )

    def rows_so_far(
        self, job_id: str, owner: str | None, first: int, n_items: int
    ) -> tuple[JobView, KeptRows]:
        """Return a job without an answer, and its kept rows from number `first` on.

        They stand in the order in which they came, so that more only follow. Raises `Refusal`:
        404 unknown, 409 has its answer, 410 expired.
        """

        def work(connection: Connection) -> tuple[JobView, KeptRows]:
            view = self._view_of(connection, job_id, owner)
            if view.state is State.EXPIRED:
                raise _expired()
            if view.state is State.SUCCEEDED:
                raise Refusal(
                    409,
                    "has-result",
                    "the job has its answer",
                    "ask for the result without so_far, from its first page",
                )
            own = job_rows.c.job_id == job_id
            sizes = connection.execute(
                select(job_rows.c.n, job_rows.c.n_rows).where(own).order_by(job_rows.c.n)
            ).all()
            total, skipped, wanted = 0, 0, []
            for size in sizes:
                if total + size.n_rows <= first:
                    skipped += size.n_rows
                elif total < first + n_items:
                    wanted.append(size.n)
                total += size.n_rows
            outcome = connection.execute(
                select(job_rows.c.payload)
                .where(own, job_rows.c.n.in_(wanted))
                .order_by(job_rows.c.n)
            )
            return view, KeptRows(tuple(outcome.scalars()), first - skipped, total)

        return self.store.read(work)

    # Groups

    def uses(self, group: Group) -> tuple[QuotaUse, ...]:
        """Return all quotas of a group with what of them is used."""
        return self.store.read(lambda connection: uses_of(connection, group))

    def spend(self, cpu_s: Mapping[str, float]) -> dict[str, QuotaUse]:
        """Charge groups with CPU seconds of calls; return those of groups with a quota of them.

        Where the connection is lost while it commits, some seconds may be charged twice.
        """

        def work(connection: Connection) -> dict[str, QuotaUse]:
            for name in sorted(cpu_s):
                charge(connection, name, cpu_s[name])
            groups = self.tenants.groups.values()
            return {each.name: cpu_use(connection, each) for each in groups if each.quotas.cpu_s}

        return self.store.write(work) if cpu_s else self.store.read(work)

    def open_jobs(self) -> dict[tuple[str, str], int]:
        """Return how many jobs wait and run, by group and state."""
        counted = (
            select(jobs.c.tenant, jobs.c.state, func.count().label("n"))
            .where(jobs.c.state.in_(OPEN))
            .group_by(jobs.c.tenant, jobs.c.state)
        )
        rows = self.store.read(lambda connection: connection.execute(counted).all())
        return {(row.tenant, row.state): row.n for row in rows}

    def counts(self) -> dict[str, int]:
        """Return how many jobs there are in every state."""
        counted = select(jobs.c.state, func.count().label("n")).group_by(jobs.c.state)
        rows = self.store.read(lambda connection: connection.execute(counted).all())
        return {state.value: 0 for state in State} | {row.state: row.n for row in rows}

    # Clean-up

    def clean_up(self) -> int:
        """Remove what has expired and return the rows changed; to be called once a minute.

        Moves the store's clock. A result goes when no job, answer or key holds it any more; the
        job stays as EXPIRED for a while, then goes too.
        """
        now_s = self.store.tick()
        n = self.changes.trim(now_s) + self.webhooks.clean_up(now_s)
        while True:
            changed = self.store.write(lambda connection: self._clean(connection, now_s))
            n += changed
            if changed < CLEAN_UP_ROWS:
                return n

    def _clean(self, connection: Connection, now_s: float) -> int:
        lock_results(connection, to_delete=True)
        due = (
            select(jobs.c.seq, jobs.c.job_id, jobs.c.state)
            .where(jobs.c.expires_s <= now_s)
            .order_by(jobs.c.expires_s)
            .limit(CLEAN_UP_ROWS)
            .with_for_update(skip_locked=True)
        )
        rows = connection.execute(due).all()
        expired = State.EXPIRED.value
        gone = [row.job_id for row in rows if row.state == expired]
        fresh = [row.job_id for row in rows if row.state != expired]
        for job_id in gone:
            self.changes.note(connection, job_id, Kind.DELETED)
        connection.execute(delete(jobs).where(jobs.c.job_id.in_(gone)))
        connection.execute(delete(labels).where(labels.c.job_id.in_(gone)))
        self.webhooks.forget_jobs(connection, gone)
        for table in (events, job_rows):
            connection.execute(delete(table).where(table.c.job_id.in_([*gone, *fresh])))
        connection.execute(
            update(jobs)
            .where(jobs.c.job_id.in_(fresh))
            .values(
                state=expired,
                sha256=None,
                complete=None,
                body=b"",
                expires_s=now_s + self.bounds.memory_s,
            )
        )
        for job_id in fresh:
            self._tell(connection, job_id, [{"state": expired}])
        forget_usage(connection, now_s)
        for table in (answers, keys):
            connection.execute(delete(table).where(table.c.expires_s <= now_s))
        # As a difference of sets: every table is read once, while no other process can write.
        in_use = (select(table.c.sha256) for table in (jobs, answers, keys))
        unused = select(results.c.sha256).except_(*in_use)
        connection.execute(delete(results).where(results.c.sha256.in_(unused)))
        return len(rows)


def cursor_number(cursor: str) -> int:
    """Return the number in a cursor; `Refusal` 400 for one that this service did not give."""
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        detail = "pass the cursor that came with the page before, or none"
        fault = Fault("is the cursor of no page", detail, "cursor")
        raise Refusal(400, "bad-cursor", "there is no such page", detail, errors=[fault])
    return int(cursor)


def _expired() -> Refusal:
    return Refusal(410, "expired", "the result has expired", "submit the request again")


def _held(lease: Lease) -> tuple[Any, ...]:
    return (
        jobs.c.job_id == lease.job_id,
        jobs.c.fence == lease.fence,
        jobs.c.state == State.RUNNING.value,
    )


def _batches(job_id: str) -> Select[Any]:
    """Return what selects the batches of rows of a job, in the order in which they came."""
    return select(job_rows).where(job_rows.c.job_id == job_id).order_by(job_rows.c.n)


def _row(connection: Connection, job_id: str) -> Row[Any] | None:
    return connection.execute(select(*VIEWED).where(jobs.c.job_id == job_id)).one_or_none()


def _found(connection: Connection, job_id: str) -> JobView | None:
    row = _row(connection, job_id)
    return None if row is None else _view(row)


def _view(row: Any) -> JobView:
    return JobView(
        row.job_id,
        row.owner,
        row.call,
        row.request_id,
        State(row.state),
        row.attempts,
        row.n_events,
        row.created_at,
        row.started_at,
        row.finished_at,
        row.complete,
        row.sha256 or "",
        json.loads(row.problem) if row.problem else None,
        row.tenant,
        row.priority,
        labels=json.loads(row.labels),
        version=row.version,
    )
