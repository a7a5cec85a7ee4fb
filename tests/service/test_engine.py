"""The engine over worker processes and a store, with calls that do what a test wants."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sqlalchemy import event, func, select

from service.access.caller import Caller
from service.engine import CallAnswer, CallTerms, Engine
from service.handlers.limits import RequestLimits
from service.handlers.problems import Refusal
from service.jobs.records import JobView, State
from service.jobs.store import Store, StoreFull, job_rows
from service.settings.options import Options
from tests.service.waiting import PATIENCE_S, until

Found = TypeVar("Found")

CALLS = "tests.service.fake_calls"
SETTINGS = RequestLimits(worker_bytes=500_000_000, queue_length=2, per_caller=4, hard_s=20.0)
OPTIONS = Options(
    workers=1, job_workers=1, lease_s=3.0, poll_s=0.05, drain_s=0.2, grace_s=0.4, watchers=4
)
ANN, BOB = Caller("ann", "solve"), Caller("bob", "solve")

pytestmark = pytest.mark.service


@asynccontextmanager
async def running(store: Store, **options: Any) -> AsyncIterator[Engine]:
    engine = Engine(store, SETTINGS, replace(OPTIONS, **options), CALLS)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


class Runs:
    """One engine for many tests, on one event loop."""

    def __init__(self, folder: Path) -> None:
        self.runner = asyncio.Runner()
        self.store = Store(f"sqlite:///{folder}/service.sqlite")
        self._context = running(self.store)
        self.engine: Engine = self.runner.run(self._context.__aenter__())

    def __call__(self, work: Callable[[Engine], Awaitable[Found]]) -> Found:
        async def limited() -> Found:
            return await asyncio.wait_for(work(self.engine), PATIENCE_S)

        return self.runner.run(limited())

    def call(self, request: dict[str, Any], caller: Caller = ANN, **terms: Any) -> CallAnswer:
        return self(lambda engine: engine.call("solve", request, caller, CallTerms(**terms)))

    def close(self) -> None:
        self.runner.run(self._context.__aexit__(None, None, None))
        self.runner.close()
        self.store.close()


def test_jobs_stand_back_behind_requests_and_pages(engine):
    """A question on the page takes as long beside sweeps as without: theirs is what is left."""

    async def niceness(engine: Engine) -> dict[str, set[int]]:
        pools = {"requests": engine._pool, "jobs": engine._job_pool, "pages": engine._page_pool}
        return {
            name: {os.getpriority(os.PRIO_PROCESS, each) for each in pool.process_ids()}
            for name, pool in pools.items()
        }

    found, ours = engine(niceness), os.getpriority(os.PRIO_PROCESS, 0)
    assert found == {"requests": {ours}, "jobs": {19}, "pages": {ours}}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    runs = Runs(tmp_path_factory.mktemp("engine"))
    yield runs
    runs.close()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a file that gets a line for every time that the work of a request is done."""
    return tmp_path / "log"


def n_lines(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def refusal(work: Callable[[], Any]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        work()
    return caught.value


async def ended(engine: Engine, job: JobView, caller: Caller = ANN) -> JobView:
    async for _ in engine.watch(job.job_id, caller):
        pass
    return await engine.get_job(job.job_id, caller)


# Calls


def test_a_repeated_call_is_answered_from_memory(engine, log):
    first = engine.call({"n": 3, "log": str(log)})
    again = engine.call({"n": 3, "log": str(log)}, BOB)
    assert json.loads(first.payload)["square"] == 9
    assert (first.cached, again.cached, first.complete) == (False, True, True)
    assert (first.payload, first.etag) == (again.payload, again.etag)
    assert n_lines(log) == 1
    as_bytes = engine.call(json.dumps({"n": 3, "log": str(log)}).encode())
    assert as_bytes.cached


def test_the_same_request_in_flight_is_computed_once(engine, log):
    go = log.with_name("go")
    request = {"n": 4, "log": str(log), "go": str(go)}

    async def many(it: Engine) -> list[CallAnswer]:
        asked = [asyncio.ensure_future(it.call("solve", request, ANN)) for _ in range(4)]
        await until(lambda: n_lines(log))
        go.touch()
        return await asyncio.gather(*asked)

    answers = engine(many)
    assert len({answer.payload for answer in answers}) == 1
    assert n_lines(log) == 1


def test_a_deadline_gives_the_best_so_far_and_only_that_caller(engine):
    request = {"n": 5, "steps": 60, "step_s": 0.02}
    patient = replace(OPTIONS, grace_s=PATIENCE_S)  # of a slow machine the worker is not killed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.engine, "options", patient)
        short = engine.call(request, deadline_s=0.3)
    assert not short.complete
    assert 0 < json.loads(short.payload)["done"] < 60
    whole = engine.call(request)
    assert (whole.complete, whole.cached) == (True, False)
    assert whole.etag != short.etag
    assert engine.call(request, deadline_s=0.1).complete


def test_a_worker_that_does_not_stop_is_killed_and_the_next_request_works(engine):
    problem = refusal(lambda: engine.call({"deaf_s": 20}, deadline_s=0.1))
    assert (problem.status, problem.code) == (504, "out-of-time")
    assert json.loads(engine.call({"n": 6}).payload)["square"] == 36


def test_a_request_that_needs_too_much_memory_is_refused_and_the_next_works(engine):
    problem = refusal(lambda: engine.call({"bytes": 1_000_000_000}))
    assert (problem.status, problem.code) == (422, "too-much-work")
    assert "0.5 GB" in problem.detail
    assert json.loads(engine.call({"n": 7}).payload)["square"] == 49


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_a_worker_that_dies_gives_a_problem_and_the_next_request_works(engine, number):
    problem = refusal(lambda: engine.call({"die": int(number)}))
    assert (problem.status, problem.code) == (500, "worker-died")
    assert number.name in problem.detail
    assert json.loads(engine.call({"n": 8}).payload)["square"] == 64
    assert engine.engine.snapshot().workers_died >= 2


def test_a_caller_whose_worker_is_killed_once_gets_the_answer_all_the_same(engine, tmp_path):
    answer = engine.call({"n": 9, "die_once": str(tmp_path / "died")})
    assert json.loads(answer.payload)["square"] == 81


def test_what_a_call_refuses_comes_through(engine):
    assert refusal(lambda: engine.call({"refuse": "not so"})).detail == "not so"
    malformed = refusal(lambda: engine(lambda it: it.call("solve", b"{", ANN)))
    assert (malformed.status, malformed.code) == (400, "malformed")
    unknown = refusal(lambda: engine(lambda it: it.call("fold", b"{}", ANN)))
    assert (unknown.status, unknown.code) == (404, "unknown-call")
    large = refusal(lambda: engine(lambda it: it.call("sweep", b"{}", ANN)))
    assert (large.status, large.code) == (413, "needs-job")


def test_roles_bound_what_a_caller_may_ask_even_where_the_answer_is_known(engine):
    engine.call({"n": 3})
    reader = Caller("eve", "read")
    problem = refusal(lambda: engine.call({"n": 3}, reader))
    assert (problem.status, problem.code) == (403, "not-allowed")
    engine(lambda it: it.call("catalogue", {}, reader))
    assert refusal(lambda: engine(lambda it: it.submit("sweep", {}, reader))).status == 403
    assert refusal(lambda: engine(lambda it: it.cancel("f" * 32, reader))).status == 403


def test_too_many_requests_are_refused_with_a_time_to_come_back(engine):
    async def flood(it: Engine) -> list[Any]:
        callers = [Caller(f"caller-{n}", "solve") for n in range(6)]
        asked = (
            it.call("solve", {"n": 100 + n, "step_s": 0.1}, caller)
            for n, caller in enumerate(callers)
        )
        return await asyncio.gather(*asked, return_exceptions=True)

    answers = engine(flood)
    refused = [each for each in answers if isinstance(each, Refusal)]
    served = [each for each in answers if isinstance(each, CallAnswer)]
    assert (len(refused), len(served)) == (2, 4)  # one is worked on, one by the spare, two wait
    assert {(p.status, p.code) for p in refused} == {(429, "overloaded")}
    assert all(p.retry_after_s and p.retry_after_s > 0 for p in refused)
    assert engine.call({"n": 9}).status == 200


def test_one_caller_holds_so_many_places(engine):
    async def flood(it: Engine) -> list[Any]:
        same = {"n": 200, "step_s": 0.1}  # computed once, but each of them is held open
        asked = (it.call("solve", same, ANN) for _ in range(6))
        return await asyncio.gather(*asked, return_exceptions=True)

    refused = [each for each in engine(flood) if isinstance(each, Refusal)]
    assert len(refused) == 2
    assert "of yours" in refused[0].detail


def test_work_that_nobody_waits_for_is_stopped(engine, log):
    async def leave(it: Engine) -> None:
        request = {"steps": 5_000_000, "step_s": 0.02, "log": str(log)}
        asked = asyncio.create_task(it.call("solve", request, ANN))
        await until(lambda: n_lines(log))
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await until(lambda: not it.snapshot().in_flight)

    engine(leave)  # the work would take a day
    engine.call({"n": 10})


def test_an_idempotency_key_gives_the_first_answer_again(engine, log, tmp_path):
    request = {"n": 11, "log": str(log)}
    first = engine.call(request, idempotency_key="key-1")
    again = engine.call(request, idempotency_key="key-1")
    assert (first.payload, first.etag) == (again.payload, again.etag)
    assert n_lines(log) == 1
    reused = refusal(lambda: engine.call({"n": 12}, idempotency_key="key-1"))
    assert (reused.status, reused.code) == (422, "key-reused")

    async def twice(it: Engine) -> list[Any]:
        slow = {"n": 13, "go": str(tmp_path / "go")}
        asked = [
            asyncio.ensure_future(it.call("solve", slow, ANN, CallTerms(idempotency_key="key-2")))
            for _ in range(2)
        ]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        (tmp_path / "go").touch()
        return await asyncio.gather(*asked, return_exceptions=True)

    answers = engine(twice)
    assert sorted(getattr(each, "code", "answer") for each in answers) == ["answer", "key-in-use"]
    refused = {"refuse": "no"}
    for _ in range(2):  # a refusal frees the key
        assert refusal(lambda: engine.call(refused, idempotency_key="key-3")).detail == "no"
    wrong = refusal(lambda: engine.call({}, idempotency_key="x" * 300))
    assert (wrong.status, wrong.code) == (400, "bad-key")


# Jobs


def test_watchers_hear_of_the_last_progress_before_the_end(engine):
    """However short the job was: no heartbeat had the time to bring it."""

    async def work(it: Engine) -> None:
        job = await it.submit("sweep", {"n": 8, "steps": 3}, ANN)
        told = [each.data async for each in it.watch(job.job_id, ANN)]
        assert [told[-2].get(name) for name in ("phase", "done", "total")] == ["squares", 3, 3]
        assert told[-1] == {"state": "SUCCEEDED"}

    engine(work)


def test_a_job_is_accepted_watched_and_its_result_read_by_page(engine, tmp_path):
    async def work(it: Engine) -> None:
        go = tmp_path / "go"
        job = await it.submit("sweep", {"n": 6, "items": 5, "go": str(go)}, ANN)
        assert job.state is State.PENDING
        events = []
        async for each in it.watch(job.job_id, ANN):
            events.append(each)
            if "phase" in each.data:
                go.touch()
        assert [each.n for each in events] == list(range(1, len(events) + 1))
        assert events[0].data == {"state": "PENDING"}
        assert events[-1].data == {"state": "SUCCEEDED"}
        assert any(each.data.get("phase") == "waits" for each in events)
        later = [each.n async for each in it.watch(job.job_id, ANN, after=2)]
        assert later == [each.n for each in events[2:]]
        answer = await it.result(job.job_id, ANN)
        assert json.loads(answer.payload)["square"] == 36
        assert answer.etag == job.request_id
        items, cursor, n_pages = [], "", 0
        while True:
            page = json.loads((await it.result_page(job.job_id, ANN, cursor, 2)).payload)
            items += page["items"]
            assert ("answer" in page) == (not cursor)
            assert (page["list"], page["total"]) == ("list", 5)
            n_pages, cursor = n_pages + 1, page["next_cursor"]
            if not cursor:
                break
        assert (items, n_pages) == ([0, 1, 2, 3, 4], 3)
        with pytest.raises(Refusal, match="no job"):
            await it.result(job.job_id, BOB)

    engine(work)


def test_a_job_that_cannot_be_read_is_refused_and_leaves_no_row(engine):
    async def work(it: Engine) -> None:
        before = it.jobs.counts()
        with pytest.raises(Refusal) as caught:
            await it.submit("sweep", b"{", ANN)
        assert caught.value.status == 400
        assert it.jobs.counts() == before

    engine(work)


def test_jobs_fail_with_the_problem_of_their_request(engine):
    async def work(it: Engine) -> None:
        for request, code in (
            ({"refuse": "no"}, "bad-option"),
            ({"bytes": 10**9}, "too-much-work"),
        ):
            job = await ended(it, await it.submit("sweep", request, ANN))
            assert (job.state, job.attempts) == (State.FAILED, 1)
            with pytest.raises(Refusal) as caught:
                await it.result(job.job_id, ANN)
            assert (caught.value.status, caught.value.code) == (422, code)

    engine(work)


def test_a_job_whose_worker_was_killed_is_done_again(engine, tmp_path, log):
    async def work(it: Engine) -> None:
        request = {"n": 5, "die_once": str(tmp_path / "died"), "log": str(log)}
        job = await ended(it, await it.submit("sweep", request, ANN))
        assert (job.state, job.attempts) == (State.SUCCEEDED, 2)
        assert json.loads((await it.result(job.job_id, ANN)).payload)["square"] == 25
        assert n_lines(log) == 2
        hopeless = await ended(it, await it.submit("sweep", {"die": int(signal.SIGKILL)}, ANN))
        assert (hopeless.state, hopeless.attempts) == (State.FAILED, 3)
        assert hopeless.problem["code"] == "gave-up"

    engine(work)


def squares(n: int) -> list[dict[str, int]]:
    return [{"index": i, "square": i * i} for i in range(n)]


SQUARES = squares(8)


async def rows_of(engine: Engine, job: JobView) -> list[Any]:
    return json.loads((await engine.result(job.job_id, ANN)).payload)["rows"]


def n_stored(engine: Engine, job: JobView) -> int:
    """Return how many points of a job are in the store."""
    count = select(func.sum(job_rows.c.n_rows)).where(job_rows.c.job_id == job.job_id)
    return engine.jobs.store.read(lambda connection: connection.execute(count).scalar()) or 0


def test_a_question_of_a_page_passes_sweeps_on_all_workers(engine, tmp_path):
    log, go = tmp_path / "sweeps", tmp_path / "go"

    async def work(it: Engine) -> tuple[JobView, int, list[JobView]]:
        request = {"points": 1, "log": str(log), "go": str(go)}
        sweeps = [await it.submit("sweep", {**request, "n": n}, ANN) for n in range(3)]
        await until(lambda: n_lines(log))  # the only worker for jobs is busy now
        page = await ended(it, await it.submit("page-plans", {"n": 5}, ANN))
        begun = n_lines(log)
        go.touch()
        return page, begun, [await ended(it, each) for each in sweeps]

    page, begun, sweeps = engine(work)
    assert page.state is State.SUCCEEDED
    assert begun == 1
    assert [each.state for each in sweeps] == [State.SUCCEEDED] * 3
    assert n_lines(log) == 3


def test_a_sweep_whose_worker_dies_at_every_point_goes_on_and_computes_each_once(engine, tmp_path):
    async def work(it: Engine) -> None:
        counted = tmp_path / "counted"
        die_at = {str(i): str(tmp_path / f"died-{i}") for i in range(8)}
        request = {"points": 8, "counted": str(counted), "die_at": die_at}
        job = await ended(it, await it.submit("sweep", request, ANN))
        assert job.state is State.SUCCEEDED
        assert await rows_of(it, job) == SQUARES
        assert counted.read_text().split() == [str(i) for i in range(8)]
        assert n_stored(it, job) == 0

    engine(work)


def test_rows_of_a_sweep_are_read_while_it_runs_and_when_it_was_cancelled(engine, tmp_path):
    async def work(it: Engine) -> None:
        go = tmp_path / "go"
        request = {"points": 100_000, "step_s": 0.02, "go": str(go)}
        job = await it.submit("sweep", request, ANN)
        items, cursor, n_empty = [], "", 0
        while len(items) < 20:
            answer = await it.result_page(job.job_id, ANN, cursor, 3, so_far=True)
            page = json.loads(answer.payload)
            assert (len(page["items"]) <= 3, answer.complete) == (True, False)
            items, cursor = items + page["items"], page["next_cursor"]
            assert cursor == str(len(items))  # more will come
            n_empty += not page["items"]
            go.touch()
            await asyncio.sleep(0.0 if page["items"] else 0.05)
        assert n_empty
        await it.cancel(job.job_id, ANN)
        while cursor:
            page = json.loads(
                (await it.result_page(job.job_id, ANN, cursor, 500, so_far=True)).payload
            )
            items, cursor = items + page["items"], page["next_cursor"]
        assert items == [{"index": i, "square": i * i} for i in range(len(items))]
        assert page["total"] == len(items)
        with pytest.raises(Refusal, match="no job"):
            await it.result_page(job.job_id, BOB, so_far=True)

    engine(work)


def test_a_cancelled_job_stops(engine):
    async def work(it: Engine) -> None:
        job = await it.submit("sweep", {"steps": 5_000_000, "step_s": 0.01}, ANN)
        async for each in it.watch(job.job_id, ANN):
            if each.data.get("state") == "RUNNING":
                break
        assert (await it.cancel(job.job_id, ANN)).state is State.CANCELLED
        follower = await ended(
            it, await it.submit("sweep", {"n": 2}, ANN)
        )  # one worker: it is free
        assert follower.state is State.SUCCEEDED

    engine(work)


def test_a_time_limit_of_a_job_gives_the_best_so_far(engine):
    async def work(it: Engine) -> None:
        slow = {"n": 3, "steps": 500, "step_s": 0.01}
        job = await ended(it, await it.submit("sweep", slow, ANN, time_limit_s=0.1))
        assert (job.state, job.complete) == (State.SUCCEEDED, False)
        assert not (await it.result(job.job_id, ANN)).complete

    engine(work)


def test_so_many_watch_at_once(engine):
    async def work(it: Engine) -> None:
        job = await it.submit("sweep", {"steps": 50, "step_s": 0.01}, ANN)
        watches = [it.watch(job.job_id, ANN) for _ in range(5)]
        for watch in watches[:4]:
            await anext(watch)
        with pytest.raises(Refusal) as caught:
            await anext(watches[4])
        assert caught.value.status == 429
        for watch in watches:
            await watch.aclose()
        await it.cancel(job.job_id, ANN)

    engine(work)


# Life


def test_a_service_that_stops_gives_its_jobs_back_and_another_ends_them(tmp_path):
    async def work() -> None:
        store = Store(f"sqlite:///{tmp_path}/service.sqlite")
        async with running(store) as first:
            job = await first.submit("sweep", {"n": 7, "steps": 60, "step_s": 0.02}, ANN)
            async for each in first.watch(job.job_id, ANN):
                if each.data.get("state") == "RUNNING":
                    break
            waits = asyncio.create_task(
                first.call("solve", {"n": 1, "steps": 5000, "step_s": 0.02}, ANN)
            )
            await until(lambda: first.snapshot().in_flight)
            await first.close()
            with pytest.raises(Refusal) as caught:
                await waits
            assert (caught.value.status, caught.value.code) == (503, "draining")
            with pytest.raises(Refusal, match="another process"):
                await first.ready()
        view = Store(f"sqlite:///{tmp_path}/service.sqlite")
        async with running(view) as second:
            job = await ended(second, job)
            assert (job.state, job.attempts) == (State.SUCCEEDED, 1)
            assert (await second.call("solve", {"n": 2}, ANN)).status == 200
            await second.ready()

    asyncio.run(work())


def test_a_sweep_that_is_given_back_goes_on_in_another_process(tmp_path):
    async def work() -> None:
        counted = tmp_path / "counted"
        # Long enough that a slow machine gives it back in the middle too.
        n, request = 40, {"points": 40, "step_s": 0.1, "counted": str(counted)}
        store = Store(f"sqlite:///{tmp_path}/service.sqlite")
        async with running(store, drain_s=0.0, grace_s=PATIENCE_S) as first:
            job = await first.submit("sweep", request, ANN)
            await until(lambda: n_lines(counted) >= 3)
        n_first = n_lines(counted)
        assert 3 <= n_first < n
        view = Store(f"sqlite:///{tmp_path}/service.sqlite")
        async with running(view) as second:
            assert n_stored(second, job) in (n_first - 1, n_first)  # one more may have been begun
            n_first = n_stored(second, job)
            job = await ended(second, job)
            assert (job.state, job.attempts) == (State.SUCCEEDED, 1)
            assert await rows_of(second, job) == squares(n)
        points = [int(line) for line in counted.read_text().split()]
        assert sorted(set(points)) == list(range(n))
        assert points[-(n - n_first) :] == list(range(n_first, n))

    asyncio.run(work())


def test_rows_wait_for_a_disk_that_is_full_and_leave_the_reserve_alone(tmp_path):
    async def work() -> None:
        store = Store(f"sqlite:///{tmp_path}/service.sqlite")
        async with running(store) as engine:
            request = {"points": 8, "step_s": 0.1, "counted": str(tmp_path / "n")}
            job = await engine.submit("sweep", request, ANN)
            store._reserve_bytes = 10**18
            await until(lambda: n_lines(tmp_path / "n") >= 4)
            assert n_stored(engine, job) <= 1
            assert (await ended(engine, job)).state is State.SUCCEEDED
            assert await rows_of(engine, job) == SQUARES

    asyncio.run(work())


def test_a_service_that_stops_finishes_what_takes_little_time(tmp_path):
    async def work() -> None:
        store = Store(f"sqlite:///{tmp_path}/service.sqlite")
        async with running(store, drain_s=20.0) as engine:
            job = await engine.submit("sweep", {"n": 7, "steps": 10, "step_s": 0.02}, ANN)
            call = asyncio.create_task(engine.call("solve", {"n": 8, "step_s": 0.2}, ANN))
            async for each in engine.watch(job.job_id, ANN):
                if each.data.get("state") == "RUNNING":
                    break
            await engine.close()
            assert json.loads((await call).payload)["square"] == 64
            assert engine.jobs.get(job.job_id, None).state is State.SUCCEEDED

    asyncio.run(work())


def test_a_full_disk_refuses_submissions_and_loses_no_answer(tmp_path, caplog):
    """SQLite's own limit of pages stands for the disk: the same error at the same places."""
    store = Store(f"sqlite:///{tmp_path}/service.sqlite")
    full = False

    @event.listens_for(store._engine, "begin")
    def _bound(connection: Any) -> None:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        most = pages if full else 1_000_000
        connection.exec_driver_sql(f"PRAGMA max_page_count={most}").scalar()

    async def work() -> None:
        nonlocal full
        async with running(store) as engine:
            request = {"n": 7, "items": 50_000, "go": str(tmp_path / "go")}
            job = await engine.submit("sweep", request, ANN)
            async for each in engine.watch(job.job_id, ANN):
                if each.data.get("state") == "RUNNING":
                    break
            full = True
            problem = None
            for n in range(200):  # until the free pages are used up
                try:
                    await engine.submit("sweep", {"n": n}, BOB)
                except StoreFull as refused:
                    problem = refused
                    break
            assert problem is not None
            assert problem.status == 507
            assert "nothing was accepted" in problem.detail
            (tmp_path / "go").touch()  # its answer is there now, and cannot be written
            await until(lambda: "the end of a job waits for the store" in caplog.text)
            assert engine.jobs.get(job.job_id, None).state is State.RUNNING
            full = False
            assert (await ended(engine, job)).state is State.SUCCEEDED
            assert (
                len(json.loads((await engine.result(job.job_id, ANN)).payload)["list"]) == 50_000
            )
            accepted, _ = engine.jobs.page("bob", limit=1000)
            for each in accepted:
                assert (await ended(engine, each, BOB)).state is State.SUCCEEDED

    asyncio.run(asyncio.wait_for(work(), PATIENCE_S))


def test_a_reserve_of_the_disk_is_for_jobs_that_were_accepted(tmp_path):
    store = Store(f"sqlite:///{tmp_path}/service.sqlite", reserve_bytes=10**18)
    problem = refusal(store.check_space)
    assert (problem.status, problem.code) == (507, "store-full")
