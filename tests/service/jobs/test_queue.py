"""The contract of the store: one suite over SQLite and PostgreSQL."""

import random
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import func, insert, select, update

from service.handlers.problems import Refusal
from service.jobs.leases import new_claim, this_process
from service.jobs.queue import Jobs
from service.jobs.records import Bounds, JobQueueFull, Lease, NewJob, Reply, RowBatch, State
from service.jobs.store import (
    SCHEMA_VERSION,
    Clock,
    Store,
    StoreError,
    database_url,
    elapsed_s,
    job_rows,
    jobs,
    results,
    store_row,
)
from tests.service.clocks import Clocks
from tests.service.conftest import STORES

pytestmark = pytest.mark.parametrize("database", STORES, indirect=True)

LEASE_S = 15.0
LOOK_S = 5.0
BOUNDS = Bounds(
    queued=40,
    queued_per_owner=30,
    max_attempts=3,
    max_leases=6,
    lease_s=LEASE_S,
    retention_s=3600.0,
    memory_s=7200.0,
    key_s=1800.0,
    claim_s=300.0,
)


@dataclass
class Service:
    """Processes of a service that share a database, and the clocks of their machine."""

    open_store: Callable[..., Store]
    clocks: Clocks = field(default_factory=Clocks)

    def process(self, holder: str, bounds: Bounds = BOUNDS) -> Jobs:
        store = self.open_store(clock=Clock(self.clocks.monotonic, self.clocks.wall))
        return Jobs(store, bounds, holder, monotonic=self.clocks.monotonic)


@pytest.fixture
def service(open_store: Callable[..., Store]) -> Service:
    return Service(open_store)


def submit(process: Jobs, n: int = 0, owner: str = "ann", **given: Any) -> str:
    """Submit job `n` and return its id; its request id is the number."""
    limit_s = given.pop("time_limit_s", 0.0)
    job = NewJob(owner, "solve", f"{n:064d}", b'{"n": %d}' % n, limit_s)
    return process.submit(job, **given).job_id


def leased(process: Jobs) -> Lease:
    lease = process.lease()
    assert lease is not None
    return lease


def watched(process: Jobs, clocks: Clocks, seconds: float) -> int:
    """Let a process look after the others for a time; return the jobs it took back."""
    n = 0
    for _ in range(int(seconds / LOOK_S)):
        n += process.take_back()
        clocks.pass_(LOOK_S)
    return n + process.take_back()


def states(process: Jobs, job_id: str) -> list[str]:
    return [event.data["state"] for event in process.events(job_id, None)[1]]


def refusal(work: Callable[[], Any]) -> tuple[int, str]:
    with pytest.raises(Refusal) as caught:
        work()
    return caught.value.status, caught.value.code


# Accepted, worked on, finished


def test_a_job_is_a_row_before_it_is_work(service):
    first, second = service.process("a"), service.process("b")
    job_id = submit(first, 7)
    assert second.get(job_id, "ann").state is State.PENDING
    lease = leased(second)
    assert (lease.job_id, lease.body, lease.attempt) == (job_id, b'{"n": 7}', 1)
    assert second.finish(lease, b"49")
    view, payload = first.result(job_id, "ann")
    assert (view.state, payload, view.complete) == (State.SUCCEEDED, b"49", True)
    assert states(first, job_id) == ["PENDING", "RUNNING", "SUCCEEDED"]


def test_the_job_that_waited_longest_is_first_and_none_is_leased_twice(service):
    process = service.process("a")
    wanted = [submit(process, n) for n in range(4)]
    assert [leased(process).job_id for _ in wanted] == wanted
    assert process.lease() is None


def test_jobs_of_some_calls_are_leased_before_older_ones_of_others(service):
    process = service.process("a")
    older = submit(process, 1)
    page = process.submit(NewJob("ann", "page-plans", "2" * 64, b"{}", 0.0)).job_id
    assert process.lease(("page-walk",)) is None
    lease = process.lease(("page-plans", "page-walk"))
    assert lease is not None
    assert (lease.job_id, lease.call) == (page, "page-plans")
    assert process.lease(("page-plans", "page-walk")) is None
    assert leased(process).job_id == older


def test_owners_take_turns(service):
    process = service.process("a")
    for n, owner in enumerate(["ann"] * 5 + ["bob"] * 2 + ["eve"]):
        submit(process, n, owner)
    found = []
    for n in range(9):
        found.append(process.get(leased(process).job_id, None).owner)
        if n == 3:
            submit(process, 9, "eve")  # again: she joins the turn that is on
    assert found == ["ann", "bob", "eve", "ann", "bob", "eve", "ann", "ann", "ann"]


def test_processes_at_the_same_time_share_the_jobs(service):
    processes = [service.process(name) for name in "abcd"]
    wanted = {submit(processes[0], n) for n in range(24)}
    found: list[str] = []

    def work(process: Jobs) -> None:
        while (lease := process.lease()) is not None:
            assert process.finish(lease, lease.body)
            found.append(lease.job_id)

    threads = [threading.Thread(target=work, args=(process,)) for process in processes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(wanted)
    assert processes[0].counts()["SUCCEEDED"] == 24


def test_a_problem_is_an_end_too(service):
    process = service.process("a")
    job_id = submit(process)
    process.finish(leased(process), None, problem=Refusal(422, "bad-option", "no", "not so"))
    assert process.get(job_id, "ann").state is State.FAILED
    assert refusal(lambda: process.result(job_id, "ann")) == (422, "bad-option")


def test_events_are_numbered_without_gaps_and_read_from_any_of_them(service):
    process = service.process("a")
    job_id = submit(process)
    lease = leased(process)
    assert process.beat({lease: [{"phase": "search", "done": n} for n in (1, 2)]}) == {lease}
    process.finish(lease, b"x")
    view, found = process.events(job_id, "ann", after=2)
    assert view.is_final
    assert [(e.n, e.data.get("done")) for e in found] == [(3, 1), (4, 2), (5, None)]


# Leases


def test_a_late_worker_of_a_lease_that_was_lost_finishes_nothing(service):
    late, other = service.process("a"), service.process("b")
    job_id = submit(late)
    old = leased(late)
    assert watched(other, service.clocks, LEASE_S) == 1
    new = leased(other)
    assert new.fence > old.fence
    assert late.beat({old: []}) == set()
    assert not late.finish(old, b"late")
    late.give_back(old)
    assert late.retry(old, "died") is False
    assert other.finish(new, b"right")
    assert not late.finish(old, b"late")
    assert other.result(job_id, "ann")[1] == b"right"
    assert states(other, job_id) == ["PENDING", "RUNNING", "PENDING", "RUNNING", "SUCCEEDED"]


def test_heartbeats_keep_a_lease(service):
    holder, other = service.process("a"), service.process("b")
    submit(holder)
    lease = leased(holder)
    for _ in range(10):
        assert watched(other, service.clocks, LOOK_S) == 0
        assert holder.beat({lease: []}) == {lease}
    assert holder.finish(lease, b"x")


@pytest.mark.parametrize("years", [-10, 10])
def test_a_clock_that_jumps_ends_no_lease_and_prolongs_none(service, years):
    holder, other = service.process("a"), service.process("b")
    submit(holder)
    lease = leased(holder)
    assert other.take_back() == 0
    service.clocks.set_wall(years * 365 * 86_400.0)
    assert watched(other, service.clocks, LEASE_S - LOOK_S) == 0
    assert holder.beat({lease: []}) == {lease}
    assert watched(other, service.clocks, LEASE_S) == 1  # silent from now on


def test_after_a_pause_of_its_own_a_process_takes_nobody_for_dead(service):
    holder, other = service.process("a"), service.process("b")
    submit(holder)
    leased(holder)
    assert other.take_back() == 0
    service.clocks.pass_(10 * LEASE_S)  # the database was away: no heartbeat could be seen
    assert other.take_back() == 0
    assert watched(other, service.clocks, LEASE_S) == 1


def test_a_process_of_this_machine_that_is_gone_loses_its_jobs_at_once(service):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    place, mine, started, _ = this_process().split("/")
    for pid, start in ((str(ended.pid), started), (mine, "1")):  # ended; its id is another's now
        gone, other = service.process(f"{place}/{pid}/{start}/x"), service.process("b")
        job_id = submit(gone)
        leased(gone)
        assert other.take_back() == 1
        again = leased(other)
        assert (again.attempt, again.fence) == (1, 2)  # the death of a process is not its fault
        other.cancel(job_id, None)
    alive, elsewhere = this_process(), f"elsewhere/{ended.pid}/{started}/x"
    for holder in (alive, elsewhere):
        process = service.process(holder)
        submit(process)
        leased(process)
    assert other.take_back() == 0


def test_a_lease_that_this_process_forgot_is_taken_back_too(service):
    process = service.process("a")
    job_id = submit(process)
    leased(process)
    for _ in range(4):
        assert process.take_back([job_id]) == 0
        service.clocks.pass_(LOOK_S)
    assert watched(process, service.clocks, LEASE_S) == 1


def test_a_job_is_tried_as_often_as_it_may_be(service):
    process = service.process("a")
    job_id = submit(process)
    tries = [process.retry(leased(process), "its worker died") for _ in range(3)]
    assert tries == [True, True, False]
    view = process.get(job_id, "ann")
    assert (view.state, view.attempts) == (State.FAILED, 3)
    assert refusal(lambda: process.result(job_id, "ann")) == (500, "gave-up")
    assert process.lease() is None


def test_a_job_whose_process_dies_again_and_again_is_given_up_in_the_end(service):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    place, _, started, _ = this_process().split("/")
    other = service.process("b")
    most = other.bounds.max_leases
    job_id = submit(other)
    for n in range(most):
        leased(service.process(f"{place}/{ended.pid}/{started}/{n}"))
        assert other.take_back() == (n < most - 1)
    assert other.get(job_id, "ann").state is State.FAILED
    assert refusal(lambda: other.result(job_id, "ann")) == (500, "gave-up")


def test_a_job_that_is_given_back_has_lost_no_attempt(service):
    process = service.process("a")
    submit(process)
    for _ in range(5):
        process.give_back(leased(process))
    assert leased(process).attempt == 1


# Rows of sweeps


def batch(lease: Lease, k: int = 0, request_id: str = "s") -> RowBatch:
    """Return the `k`-th batch of a lease: one row."""
    n = lease.n_batches + k
    return RowBatch(n, request_id, 1, b"row %d of %s" % (n, request_id.encode()), 2.5)


def n_kept(process: Jobs) -> int:
    count = select(func.count()).select_from(job_rows)
    return process.store.read(lambda connection: connection.execute(count).scalar())


def test_rows_are_there_for_the_next_lease_until_the_answer_is(service):
    first, second = service.process("a"), service.process("b")
    job_id, other = submit(first, 1), submit(first, 2)
    lease = leased(first)
    assert (lease.rows, lease.n_batches, lease.spent_s) == ((), 0, 0.0)
    assert first.keep_rows(lease, batch(lease))
    assert first.keep_rows(lease, batch(lease, 1))
    first.give_back(lease)
    again = leased(second)
    assert (again.job_id, again.rows) == (job_id, (b"row 0 of s", b"row 1 of s"))
    assert (again.n_batches, again.spent_s) == (2, 5.0)
    assert second.keep_rows(again, batch(again))
    assert leased(second).job_id == other  # with rows of its own: none
    assert second.finish(again, b"x")
    assert n_kept(first) == 0


def test_a_lease_that_was_lost_keeps_no_rows(service):
    late, other = service.process("a"), service.process("b")
    submit(late)
    old = leased(late)
    assert late.keep_rows(old, batch(old))
    assert watched(other, service.clocks, LEASE_S) == 1
    assert not late.keep_rows(old, batch(old, 1))  # it waits
    new = leased(other)
    assert not late.keep_rows(old, batch(old, 1))
    assert other.keep_rows(new, batch(new))
    other.finish(new, b"x")
    assert not other.keep_rows(new, batch(new, 1))
    assert n_kept(other) == 0


def test_rows_outlive_a_cancelled_and_a_failed_job_until_these_expire(service):
    process = service.process("a")
    for n, end in enumerate(
        (
            lambda lease: process.cancel(lease.job_id, None),
            lambda lease: process.finish(lease, None, problem=Refusal(504, "late", "no", "late")),
        )
    ):
        submit(process, n)
        lease = leased(process)
        process.keep_rows(lease, batch(lease))
        end(lease)
        assert n_kept(process) == n + 1
    service.clocks.pass_(3601.0)
    process.clean_up()
    assert n_kept(process) == 0


def test_rows_of_another_release_are_forgotten_with_the_first_of_this_one(service):
    process = service.process("a")
    submit(process)
    lease = leased(process)
    process.keep_rows(lease, batch(lease, request_id="old"))
    process.give_back(lease)
    lease = leased(process)
    assert lease.rows == (b"row 0 of old",)  # whoever reads them looks at the id
    process.keep_rows(lease, batch(lease, request_id="new"))
    process.give_back(lease)
    assert leased(process).rows == (b"row 1 of new",)


def test_a_sweep_that_goes_on_is_not_given_up_because_workers_die(service):
    process = service.process("a")
    job_id = submit(process)
    for n in range(4 * process.bounds.max_leases):
        lease = leased(process)
        if n % 3 == 2:  # twice in vain, then a row
            assert process.keep_rows(lease, batch(lease))
        assert lease.attempt == n % 3 + 1
        assert process.retry(lease, "its worker died")
    assert process.get(job_id, None).state is State.PENDING


def test_a_sweep_without_a_new_row_is_given_up_all_the_same(service):
    process = service.process("a")
    job_id = submit(process)
    lease = leased(process)
    process.keep_rows(lease, batch(lease))
    tries = [process.retry(lease, "its worker died")]
    tries += [process.retry(leased(process), "its worker died") for _ in range(3)]
    assert tries == [True, True, True, False]
    assert "at attempt 3 of 3" in process.get(job_id, None).problem["detail"]


# Cancelling, owners


def test_cancelling_ends_a_job_whether_or_not_it_runs(service):
    process = service.process("a")
    running, waiting, done = (submit(process, n) for n in range(3))
    lease = leased(process)
    assert process.cancel(waiting, "ann").state is State.CANCELLED
    assert process.cancel(running, "ann").state is State.CANCELLED
    assert process.beat({lease: []}) == set()
    assert not process.finish(lease, b"x")
    process.finish(leased(process), b"y")
    assert process.cancel(done, "ann").state is State.SUCCEEDED
    assert refusal(lambda: process.result(running, "ann")) == (409, "no-result")
    assert process.lease() is None


def test_jobs_of_others_are_unknown_but_to_all_seeing_callers(service):
    process = service.process("a")
    job_id = submit(process, owner="ann")
    for work in (process.get, process.cancel, process.events, process.result):
        assert refusal(lambda work=work: work(job_id, "bob")) == (404, "unknown-job")
        assert refusal(lambda work=work: work("f" * 32, None)) == (404, "unknown-job")
    assert process.get(job_id, None).owner == "ann"
    assert process.page("bob") == ([], "")
    assert [job.job_id for job in process.page(None)[0]] == [job_id]


# Idempotency, answers from the store


def test_the_same_key_and_body_are_one_job(service):
    first, second = service.process("a"), service.process("b")
    job_id = submit(first, key="k", fingerprint="f")
    assert submit(second, key="k", fingerprint="f") == job_id
    first.finish(leased(first), b"x")
    again = second.submit(NewJob("ann", "solve", "0" * 64, b"{}"), key="k", fingerprint="f")
    assert (again.job_id, again.state) == (job_id, State.SUCCEEDED)
    assert submit(first, owner="bob", key="k", fingerprint="f") != job_id
    other = refusal(lambda: submit(second, key="k", fingerprint="other"))
    assert other == (422, "key-reused")
    assert first.counts()["SUCCEEDED"] == 2  # bob's was answered from the store


def test_the_same_key_from_many_at_once_is_one_job(service):
    processes = [service.process(name) for name in "abcd"]
    with ThreadPoolExecutor(8) as pool:
        asked = [
            pool.submit(submit, process, key="k", fingerprint="f") for process in 2 * processes
        ]
        assert len({each.result() for each in asked}) == 1
    assert sum(processes[0].counts().values()) == 1


def test_a_repeated_request_is_answered_from_the_store(service):
    first, second = service.process("a"), service.process("b")
    submit(first, 3)
    first.finish(leased(first), b"nine")
    again = second.submit(NewJob("bob", "solve", f"{3:064d}", b"{}"))
    assert (again.state, again.complete, again.attempts) == (State.SUCCEEDED, True, 0)
    assert second.result(again.job_id, "bob")[1] == b"nine"
    assert second.lease() is None


def test_an_answer_that_was_stopped_answers_nobody_else(service):
    process = service.process("a")
    job_id = submit(process, 3)
    process.finish(leased(process), b"some", complete=False)
    view = process.get(job_id, "ann")
    assert (view.complete, view.etag) == (False, view.sha256)
    assert process.get(submit(process, 3), "ann").state is State.PENDING


def test_a_key_of_a_call_is_in_use_then_answered_then_forgotten(service):
    first, second = service.process("a"), service.process("b")
    assert first.claim("ann", "k", "f", "claim-1") is None
    assert first.claim("ann", "k", "f", "claim-1") is None  # asked again
    assert refusal(lambda: second.claim("ann", "k", "f", "claim-2")) == (409, "key-in-use")
    assert refusal(lambda: second.claim("ann", "k", "g", "claim-2")) == (422, "key-reused")
    first.reply("ann", "k", "claim-1", Reply(b"49", "etag"))
    assert second.claim("ann", "k", "f", "claim-2") == Reply(b"49", "etag")
    assert second.claim("bob", "k", "g", "claim-3") is None
    second.release("bob", "k", "claim-3")
    assert second.claim("bob", "k", "h", "claim-4") is None
    second.release("ann", "k", "claim-1")  # answered: nothing to free
    assert second.claim("ann", "k", "f", "claim-5") == Reply(b"49", "etag")


def test_a_key_whose_process_died_is_free_after_a_while(service):
    first, second = service.process("a"), service.process("b")
    first.claim("ann", "k", "f", "claim-1")
    service.clocks.set_wall(86_400.0)
    second.clean_up()  # the clock was only set
    assert refusal(lambda: second.claim("ann", "k", "f", "claim-2")) == (409, "key-in-use")
    service.clocks.pass_(BOUNDS.claim_s)
    second.clean_up()
    assert second.claim("ann", "k", "f", "claim-2") is None
    first.reply("ann", "k", "claim-1", Reply(b"late", "e"))
    assert refusal(lambda: second.claim("ann", "k", "f", "claim-3")) == (409, "key-in-use")


# Lists, limits, expiry


def test_pages_are_complete_while_jobs_come(service):
    process = service.process("a")
    wanted = [submit(process, n) for n in range(12)][::-1]
    found, cursor = process.page("ann", limit=5)
    submit(process, 99)
    seen = [job.job_id for job in found]
    while cursor:
        found, cursor = process.page("ann", cursor=cursor, limit=5)
        seen += [job.job_id for job in found]
    assert seen == wanted
    assert refusal(lambda: process.page("ann", cursor="x")) == (400, "bad-cursor")
    leased(process)
    running, _ = process.page("ann", state=State.RUNNING)
    assert [job.job_id for job in running] == wanted[-1:]


def test_a_full_queue_takes_no_job_but_answers_what_it_knows(service):
    process = service.process("a", Bounds(queued=3, queued_per_owner=2))
    submit(process, 0)
    process.finish(leased(process), b"x")
    submit(process, 1)
    submit(process, 2)
    with pytest.raises(JobQueueFull, match="of yours"):
        submit(process, 3)
    submit(process, 3, owner="bob")
    with pytest.raises(JobQueueFull, match="as many as this service keeps"):
        submit(process, 4, owner="eve")
    assert process.get(submit(process, 0), "ann").state is State.SUCCEEDED
    leased(process)
    submit(process, 4, owner="eve")


def test_results_expire_and_are_cleaned_up(service):
    process = service.process("a")
    early = submit(process, 1)
    process.finish(leased(process), b"same")
    service.clocks.pass_(3000.0)
    process.clean_up()
    late = submit(process, 2)
    process.finish(leased(process), b"same")  # one copy of the bytes, held by two jobs
    service.clocks.pass_(601.0)
    process.clean_up()
    assert process.get(early, "ann").state is State.EXPIRED
    assert refusal(lambda: process.result(early, "ann")) == (410, "expired")
    assert process.result(late, "ann")[1] == b"same"
    assert process.get(submit(process, 1), "ann").state is State.PENDING  # computed anew
    process.cancel(leased(process).job_id, "ann")
    for _ in range(3):
        service.clocks.pass_(7200.0)
        process.clean_up()
    assert process.page(None) == ([], "")
    assert refusal(lambda: process.get(early, "ann")) == (404, "unknown-job")
    left = process.store.read(
        lambda connection: connection.execute(select(func.count()).select_from(results)).scalar()
    )
    assert left == 0


def test_a_job_that_waits_or_runs_never_expires(service):
    process = service.process("a")
    waits = [submit(process, n) for n in range(2)]
    lease = leased(process)
    service.clocks.pass_(10 * 365 * 86_400.0)
    process.clean_up()
    assert process.finish(lease, b"x")
    assert process.get(waits[1], "ann").state is State.PENDING


def test_a_clock_that_is_set_moves_the_stores_clock_by_no_more_than_passed(service):
    first, second = service.process("a"), service.process("b")
    start_s = first.store.tick()
    service.clocks.pass_(30.0)
    assert first.store.tick() == start_s + 30.0
    service.clocks.set_wall(365 * 86_400.0)
    service.clocks.pass_(10.0)
    assert first.store.tick() == start_s + 40.0
    service.clocks.set_wall(-2 * 365 * 86_400.0)
    service.clocks.pass_(10.0)
    assert second.store.tick() == start_s + 40.0  # what passed before it was set is not known
    service.clocks.pass_(10.0)
    assert first.store.tick() == start_s + 50.0
    assert second.store.read(elapsed_s) == start_s + 50.0


# The store itself


def test_many_processes_may_create_the_tables_at_once(open_store):
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(lambda _: open_store(), range(4)))
    count = select(func.count()).select_from(store_row)
    assert stores[0].read(lambda connection: connection.execute(count).scalar()) == 1


def test_a_database_of_another_version_is_refused(open_store):
    store = open_store()
    newer = update(store_row).values(version=SCHEMA_VERSION + 1)
    store.write(lambda connection: connection.execute(newer) and None)
    with pytest.raises(StoreError, match=f"version {SCHEMA_VERSION + 1}"):
        open_store()


def test_a_defect_is_not_repeated(open_store):
    store, n = open_store(), []

    def wrong(connection: Any) -> None:
        n.append(1)
        connection.execute(insert(jobs).values(job_id="x"))  # columns are missing

    with pytest.raises(Exception, match=r"(?i)not.null"):
        store.write(wrong)
    assert len(n) == 1


class _LostError(sqlite3.OperationalError):
    """What a driver raises when the connection is lost, whichever it is."""

    sqlstate = "08006"
    sqlite_errorname = "SQLITE_BUSY"


@pytest.fixture
def loses_commits(monkeypatch: pytest.MonkeyPatch) -> Callable[[Jobs], list[int]]:
    """Make every first commit of a transaction happen, and look as if it had not."""

    def break_(process: Jobs) -> list[int]:
        engine = process.store._writing
        commit, lost = engine.dialect.do_commit, [0]
        error = _error_of(engine)

        def commit_and_lose(connection: Any) -> None:
            commit(connection)
            lost[0] += 1
            if lost[0] % 2:
                raise error

        monkeypatch.setattr(engine.dialect, "do_commit", commit_and_lose)
        return lost

    return break_


def _error_of(engine: Any) -> Exception:
    if engine.dialect.name == "sqlite":
        return _LostError("connection lost")
    import psycopg

    return type("_Lost", (psycopg.OperationalError,), {"sqlstate": "08006"})("connection lost")


def test_nothing_happens_twice_where_a_commit_was_lost_on_the_way(service, loses_commits):
    process, reader = service.process("a"), service.process("b")
    lost = loses_commits(process)
    job_id = submit(process, 1)
    with_key = submit(process, 2, key="k", fingerprint="f")
    assert [job.job_id for job in reader.page(None)[0]] == [with_key, job_id]
    lease = leased(process)
    assert (lease.job_id, lease.attempt) == (job_id, 1)
    process.give_back(lease)
    lease = leased(process)
    assert (lease.job_id, lease.attempt) == (job_id, 1)
    assert process.beat({lease: []}) == {lease}
    assert process.keep_rows(lease, batch(lease))
    assert n_kept(reader) == 1
    assert process.finish(lease, b"x")
    assert reader.result(job_id, "ann")[1] == b"x"
    assert states(reader, job_id) == ["PENDING", "RUNNING", "PENDING", "RUNNING", "SUCCEEDED"]
    assert process.cancel(with_key, "ann").state is State.CANCELLED
    assert states(reader, with_key) == ["PENDING", "CANCELLED"]
    assert process.claim("ann", "c", "f", "claim") is None
    process.reply("ann", "c", "claim", Reply(b"r", "e"))
    assert reader.claim("ann", "c", "f", "other") == Reply(b"r", "e")
    assert lost[0] >= 18


@pytest.mark.parametrize("n_steps", [80, pytest.param(250, marks=pytest.mark.slow)])
def test_any_order_of_events_ends_every_job_once(service, n_steps):
    """A random walk of three processes, with deaths and jumps, against what must hold."""
    random_ = random.Random(7)
    processes = [service.process(name) for name in "abc"]
    held: list[tuple[Jobs, Lease]] = []
    ended: dict[str, bytes | None] = {}
    accepted: list[str] = []
    for step in range(n_steps):
        process = random_.choice(processes)
        what = random_.randrange(9)
        if what < 2 and len(accepted) < 30:
            accepted.append(submit(process, step))
        elif what < 4 and (lease := process.lease()):
            held.append((process, lease))
        elif what < 6 and held:
            owner, lease = held.pop(random_.randrange(len(held)))
            payload = b"%d by %d" % (step, lease.fence)
            if owner.finish(lease, payload):
                assert ended.setdefault(lease.job_id, payload) == payload
        elif what == 6 and held and random_.random() < 0.3:
            owner, lease = random_.choice(held)
            owner.give_back(lease)
        elif what == 7 and accepted and random_.random() < 0.1:
            job_id = random_.choice(accepted)
            if process.cancel(job_id, None).state is State.CANCELLED:
                assert ended.setdefault(job_id, None) is None
        elif what == 8:
            service.clocks.set_wall(random_.choice([-1e6, 1e6, 0.0]))
            watched(process, service.clocks, random_.choice([LOOK_S, 3 * LEASE_S]))
    process = processes[0]
    watched(process, service.clocks, 2 * LEASE_S)
    while (lease := process.lease()) is not None:
        if process.finish(lease, b"at last"):
            assert ended.setdefault(lease.job_id, b"at last") == b"at last"
    for job_id in accepted:
        view = process.get(job_id, None)
        assert view.is_final
        assert states(process, job_id).count(view.state.value) == 1
        if view.state is State.SUCCEEDED:
            assert process.result(job_id, None)[1] == ended[job_id]
        elif view.state is State.CANCELLED:
            assert ended[job_id] is None
        else:
            assert "tried as often" in view.problem["title"]
    assert len(ended) > 15


def test_only_two_databases_are_known(open_store, tmp_path):
    assert database_url("postgres://u@h/d").drivername == "postgresql+psycopg"
    assert database_url("", tmp_path).database == str(tmp_path / "service.sqlite")
    for wrong in ("mysql://h/d", "sqlite://", "sqlite:///:memory:", "nonsense"):
        with pytest.raises(StoreError):
            database_url(wrong)


def test_sqlite_is_written_to_the_disk_before_it_is_acknowledged(open_store):
    store = open_store()
    if store.is_sqlite:
        with store._engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def test_a_key_whose_process_was_killed_is_free_again_at_once(service):
    code = "from service.jobs.queue import new_claim; print(new_claim())"
    gone = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    process = service.process("a")
    assert len(new_claim()) <= 32  # as many as the store keeps
    assert process.claim("ann", "k", "f" * 64, new_claim()) is None
    assert refusal(lambda: process.claim("ann", "k", "f" * 64, new_claim())) == (409, "key-in-use")
    assert process.claim("ann", "other", "f" * 64, gone.stdout.strip()) is None
    mine = new_claim()
    assert process.claim("ann", "other", "f" * 64, mine) is None
    process.reply("ann", "other", gone.stdout.strip(), Reply(b"late", "e"))  # it holds nothing
    process.reply("ann", "other", mine, Reply(b"answer", "e"))
    found = process.claim("ann", "other", "f" * 64, new_claim())
    assert found is not None
    assert found.payload == b"answer"


def test_a_note_is_kept_beside_the_events_and_told_to_no_watcher(open_store):
    jobs = Jobs(open_store())
    job = jobs.submit(NewJob("ann", "solve", "id-1", b"{}"))
    jobs.note(job.job_id, {"what": "plans of <x>"})
    jobs.note(job.job_id, {"what": "another"})
    assert jobs.notes([job.job_id, "none"]) == {job.job_id: {"what": "plans of <x>"}}
    view, events = jobs.events(job.job_id, "ann")
    assert [event.n for event in events] == [1]
    assert view.n_events == 1
