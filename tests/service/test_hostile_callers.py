"""Callers who want more than their share, or what is not theirs; and what they are told."""

import asyncio
import hashlib
import io
import json
import logging
import threading
from dataclasses import replace
from typing import Any

import httpx
import pytest

from service.access.auth import Auth, address_network, read_tokens, tokens_of
from service.access.caller import Caller
from service.engine import CallTerms, Engine
from service.handlers.limits import job_request
from service.handlers.problems import Refusal
from service.jobs.queue import Jobs
from service.jobs.records import Bounds, NewJob
from service.jobs.store import Clock, Store, StoreUnavailable
from service.rest.application import Rest
from service.telemetry import logs
from tests.service.identified import identified
from tests.service.inline import SETTINGS, inline_engine
from tests.service.waiting import PATIENCE_S, until

TOKEN = "hostile-0123456789"
ANN = Caller("ann", "solve")
SMALL = 1_000
"""Bytes of a body that is read at once, in these tests."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.engine.SMALL_BODY", SMALL)


def in_engine(tmp_path: Any, work: Any) -> Any:
    async def run() -> Any:
        async with inline_engine(tmp_path) as engine:
            return await asyncio.wait_for(work(engine), PATIENCE_S)

    return asyncio.run(run())


# Jobs


def test_a_large_body_of_a_job_is_read_by_a_worker(tmp_path, monkeypatch):
    seen: list[str] = []

    async def work(engine: Engine) -> list[str]:
        pool: Any = engine._pool
        run = pool.run

        async def noted(task: Any, *given: Any, **named: Any) -> Any:
            seen.append(task.what)
            return await run(task, *given, **named)

        pool.run = noted
        large = {"n": 3, "text": "x" * SMALL}
        for request in ({"n": 2}, large):
            body = json.dumps({"call": "sweep", "request": request, "time_limit_s": 2}).encode()
            job = await engine.submit_body(body, ANN)
            assert job.call == "sweep"
        with pytest.raises(Refusal, match="unknown field"):
            await engine.submit_body(
                b'{"call": "solve", "request": {}, "x": "%s"}' % (b"y" * SMALL), ANN
            )
        return seen

    assert in_engine(tmp_path, work)[:3] == ["read", "job", "read"]
    assert job_request(b'{"call": "a", "request": {"b": 1}}') == ("a", b'{"b": 1}', 0.0, {})


def test_a_role_is_asked_for_before_a_job_is_accepted(tmp_path):
    async def work(engine: Engine) -> int:
        body = json.dumps({"call": "solve", "request": {"text": "x" * SMALL}}).encode()
        with pytest.raises(Refusal) as caught:
            await engine.submit_body(body, Caller("bob", "read"))
        return caught.value.status

    assert in_engine(tmp_path, work) == 403


def test_an_owner_keeps_no_more_jobs_and_keys_than_there_may_be(tmp_path):
    store = Store(f"sqlite:///{tmp_path}/service.sqlite")
    jobs = Jobs(store, Bounds(kept_per_owner=3, keys_per_owner=2))
    for n in range(3):
        job = jobs.submit(NewJob("ann", "solve", f"{n}", b"{}"))
        jobs.cancel(job.job_id, "ann")
    with pytest.raises(Refusal, match="as many as one caller may have"):
        jobs.submit(NewJob("ann", "solve", "4", b"{}"))
    jobs.submit(NewJob("bob", "solve", "4", b"{}"))
    assert jobs.claim("ann", "k1", "f", "c1") is None
    assert jobs.claim("ann", "k2", "f", "c2") is None
    with pytest.raises(Refusal) as caught:
        jobs.claim("ann", "k3", "f", "c3")
    assert (caught.value.status, caught.value.code) == (429, "too-many-keys")
    assert jobs.claim("ann", "k1", "f", "c1") is None  # a known one goes on
    assert jobs.claim("bob", "k3", "f", "c3") is None
    store.close()


def test_bodies_go_when_jobs_end_and_are_not_read_to_show_them(tmp_path):
    store = Store(f"sqlite:///{tmp_path}/service.sqlite")
    jobs = Jobs(store, Bounds(max_attempts=1))

    def size(job_id: str) -> int:
        query = "SELECT length(body) FROM planner_jobs WHERE job_id = '" + job_id + "'"
        return store.read(lambda c: c.exec_driver_sql(query).scalar_one())

    done, failed, cancelled = (
        jobs.submit(NewJob("ann", "solve", x, b"{}" * 99)).job_id for x in "abc"
    )
    assert size(done) > 0
    statements: list[str] = []
    from sqlalchemy import event

    event.listen(
        store._engine, "before_cursor_execute", lambda *given: statements.append(given[2])
    )
    jobs.get(done, "ann")
    jobs.page("ann")
    assert statements
    assert not any("body" in statement for statement in statements)
    lease = jobs.lease()
    assert lease is not None
    assert jobs.finish(lease, b"{}")
    lease = jobs.lease()
    assert lease is not None
    assert not jobs.retry(lease, "died")
    jobs.cancel(cancelled, "ann")
    assert [size(each) for each in (done, failed, cancelled)] == [0, 0, 0]
    store.close()


@pytest.mark.parametrize("job_id", ["\0", "x" * 65, "", "a b", "\ud800", "%", "é"])
def test_no_database_is_asked_for_what_is_no_id(tmp_path, job_id):
    store = Store(f"sqlite:///{tmp_path}/service.sqlite")
    store.read = store.read  # type: ignore[method-assign]
    with pytest.raises(Refusal) as caught:
        Jobs(store).get(job_id, "ann")
    assert caught.value.status == 404
    json.dumps(caught.value.to_json()).encode()
    store.close()


def test_a_caller_opens_no_more_streams_than_its_share(tmp_path):
    async def work(engine: Engine) -> tuple[str, str]:
        engine.options = replace(engine.options, watchers=3, watchers_per_caller=2)
        job = await engine.submit("sweep", {"n": 1, "steps": 50, "step_s": 0.01}, ANN)
        bobs = await engine.submit("sweep", {"n": 2}, Caller("bob", "solve"))
        streams = [engine.watch(job.job_id, ANN) for _ in range(3)]
        for each in streams[:2]:
            await anext(each)
        with pytest.raises(Refusal) as mine:
            await anext(streams[2])
        other = engine.watch(bobs.job_id, Caller("bob", "solve"))
        await anext(other)
        with pytest.raises(Refusal) as all_of_them:
            await anext(engine.watch(bobs.job_id, Caller("bob", "solve")))
        for each in (*streams, other):
            await each.aclose()
        return mine.value.detail, all_of_them.value.detail

    mine, all_of_them = in_engine(tmp_path, work)
    assert "of yours" in mine
    assert "of yours" not in all_of_them


def test_who_reads_very_much_keeps_nobody_else_and_no_job_waiting(tmp_path, monkeypatch):
    async def work(engine: Engine) -> tuple[str, int]:
        go, page = threading.Event(), engine.jobs.page

        def slow(*given: Any, **named: Any) -> Any:
            go.wait(60.0)
            return page(*given, **named)

        monkeypatch.setattr(engine.jobs, "page", slow)
        flood = [asyncio.ensure_future(engine.list_jobs(ANN)) for _ in range(100)]
        await asyncio.sleep(0)
        try:
            bob = Caller("bob", "solve")
            job = await engine.submit("sweep", {"n": 2}, bob)
            async for _ in engine.watch(job.job_id, bob):
                pass
            state = (await engine.get_job(job.job_id, bob)).state.value
            n_answered = sum(each.done() for each in flood)
        finally:
            go.set()
            await asyncio.gather(*flood)
        return state, n_answered

    assert in_engine(tmp_path, work) == ("SUCCEEDED", 0)


def test_large_bodies_of_one_caller_do_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("service.http.bodies.LARGE_BODY", 100)

    async def work(engine: Engine) -> tuple[Any, list[int]]:
        app, over = Rest(engine, None, SETTINGS), asyncio.Event()
        part = {"type": "http.request", "body": b" " * 200, "more_body": True}
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/plans:solve",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "client": None,
        }

        async def one() -> Any:
            parts, sent = [part], []

            async def receive() -> Any:
                if parts:
                    return parts.pop()
                await over.wait()
                return {"type": "http.request", "body": b'{"n": 1}'}

            async def send(message: Any) -> None:
                sent.append(message)

            await app(dict(scope), receive, send)
            return sent[0]

        most = SETTINGS.per_caller
        asked = [asyncio.ensure_future(one()) for _ in range(most + 1)]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        refused = next(each.result() for each in asked if each.done())
        over.set()
        answers = [each["status"] for each in await asyncio.gather(*asked)]
        assert not app._bodies._n_large
        return refused, answers

    refused, answers = in_engine(tmp_path, work)
    assert refused["status"] == 429
    assert (b"connection", b"close") in refused["headers"]
    assert sorted(answers) == [200] * SETTINGS.per_caller + [429]


# Who leaves


def test_a_key_is_free_again_where_its_caller_left_while_it_was_taken(tmp_path, monkeypatch):
    async def work(engine: Engine) -> int:
        taking, go, taken = threading.Event(), threading.Event(), threading.Event()
        claim = engine.jobs.claim

        def slow(*given: Any) -> Any:
            taking.set()
            go.wait(60.0)
            found = claim(*given)
            taken.set()
            return found

        monkeypatch.setattr(engine.jobs, "claim", slow)
        terms = CallTerms(idempotency_key="k")
        asked = asyncio.ensure_future(engine.call("solve", {"n": 5}, ANN, terms))
        await asyncio.to_thread(taking.wait, 60.0)
        asked.cancel()
        asyncio.get_running_loop().call_later(0.05, go.set)
        with pytest.raises(asyncio.CancelledError):
            await asked
        await asyncio.to_thread(taken.wait, 60.0)
        monkeypatch.undo()
        answer = await engine.call("solve", {"n": 5}, ANN, terms)
        return answer.status

    assert in_engine(tmp_path, work) == 200


def test_who_asks_again_after_leaving_is_known_until_the_answer_is_there(tmp_path):
    """The first computation ends after the second has begun, and must not be taken for it."""

    async def work(engine: Engine) -> tuple[int, int]:
        pool: Any = engine._pool
        pool.held.clear()
        first = asyncio.ensure_future(engine.call("solve", {"n": 6}, ANN))
        while not engine._flights:
            await asyncio.sleep(0)
        (left,) = engine._flights.values()
        first.cancel()
        second = asyncio.ensure_future(engine.call("solve", {"n": 6}, ANN))
        await asyncio.wait([left.task])
        await asyncio.sleep(0)
        n_known = len(engine._flights)
        pool.held.set()
        return n_known, (await second).status

    assert in_engine(tmp_path, work) == (1, 200)


def test_jobs_are_counted_by_state_for_metrics(tmp_path):
    async def work(engine: Engine) -> str:
        app = Rest(engine, None, SETTINGS)
        job = await engine.submit("sweep", {"n": 1}, ANN)
        async for _ in engine.watch(job.job_id, ANN):
            pass
        await until(lambda: engine.snapshot().jobs.get("SUCCEEDED"))
        return app.metrics.text().decode()

    text = in_engine(tmp_path, work)
    assert 'planner_jobs{state="SUCCEEDED"} 1.0' in text
    assert 'planner_jobs{state="PENDING"} 0.0' in text


# Who calls


def test_an_address_that_fails_too_often_is_refused_and_others_are_not():
    auth = Auth(read_tokens(f"ann solve {TOKEN}", "tokens"), failed_logins=3)
    for _ in range(3):
        with pytest.raises(Refusal) as caught:
            identified(auth, "Bearer wrong", "10.0.0.1")
        assert caught.value.status == 401
    with pytest.raises(Refusal) as caught:
        identified(auth, None, "10.0.0.1")
    assert (caught.value.status, caught.value.code) == (429, "too-many-failures")
    assert caught.value.retry_after_s
    with pytest.raises(Refusal) as caught:
        identified(auth, "Bearer wrong", "10.0.0.2")
    assert caught.value.status == 401
    assert identified(auth, f"Bearer {TOKEN}", "10.0.0.1").name == "ann"  # behind the same proxy


def test_who_has_an_ipv6_network_is_one_caller():
    assert (
        address_network("2001:db8::1")
        == address_network("2001:db8::ffff")
        != address_network("2001:db9::1")
    )
    assert address_network("10.0.0.1") != address_network("10.0.0.2")
    assert address_network("") == ""


def test_a_token_that_repeats_itself_is_none():
    from planner.errors import UsageError

    with pytest.raises(UsageError, match="different ones"):
        read_tokens("ann solve aaaaaaaaaaaaaaaaaaaa", "tokens")


def test_a_token_file_that_others_may_write_is_refused(tmp_path, caplog):
    from planner.errors import UsageError

    file = tmp_path / "tokens"
    file.write_text(f"ann solve {TOKEN}\n")
    file.chmod(0o606)
    with pytest.raises(UsageError, match="written by every user"):
        tokens_of(file)
    file.chmod(0o604)
    assert tokens_of(file)
    assert "chmod 600" in caplog.text
    caplog.clear()
    file.chmod(0o600)
    tokens_of(file)
    assert not caplog.text
    file.write_text(f"ann solve sha256:{hashlib.sha256(TOKEN.encode()).hexdigest()}\n")
    file.chmod(0o604)  # as deploy/planner.service has it: a hash opens nothing
    tokens_of(file)
    assert not caplog.text


# What is told


def test_a_path_begins_no_line_of_a_text_log():
    stream = io.StringIO()
    logs.configure("info", "text", stream)
    logs.log_access(logging.INFO, "GET /v1/jobs/\n12:00:00 INFO forged\x1b[31m", job_id="\r\nx")
    (line,) = stream.getvalue().splitlines()
    assert r"\n12:00:00 INFO forged\x1b[31m" in line
    assert r"job_id=\r\nx" in line


def test_what_a_database_says_is_for_the_log_alone(tmp_path, caplog):
    from tests.service.jobs.test_store import sqlite_error

    store = Store(
        f"sqlite:///{tmp_path}/secret-place.sqlite",
        patience_s=0.0,
        clock=Clock(pause=lambda _: None),
    )

    def busy(connection: Any) -> None:
        raise sqlite_error("SQLITE_BUSY")

    with pytest.raises(StoreUnavailable) as caught:
        store.write(busy)
    assert "secret-place" not in json.dumps(caught.value.to_json())
    assert "secret-place" in caplog.text
    with pytest.raises(Exception, match="hidden") as defect:
        store.write(lambda c: c.exec_driver_sql("SELECT ? FROM nowhere", ("a body",)))
    assert "a body" not in str(defect.value)
    store.close()


def test_a_store_that_others_can_read_is_said(tmp_path, caplog):
    file = tmp_path / "service.sqlite"
    file.touch(mode=0o644)
    file.chmod(0o644)
    Store(f"sqlite:///{file}").close()
    assert "chmod 600" in caplog.text


def test_the_store_is_asked_once_however_many_ask_whether_it_is_ready(tmp_path, monkeypatch):
    async def work(engine: Engine) -> int:
        asked = 0
        ready = engine.ready

        async def counted() -> None:
            nonlocal asked
            asked += 1
            await asyncio.sleep(0.05)
            await ready()

        monkeypatch.setattr(engine, "ready", counted)
        transport = httpx.ASGITransport(app=Rest(engine, None, SETTINGS))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answers = await asyncio.gather(*(client.get("/readyz") for _ in range(20)))
        assert {each.status_code for each in answers} == {200}
        return asked

    assert in_engine(tmp_path, work) == 1


def test_who_asks_a_service_that_stops_goes_elsewhere_with_the_next_request(tmp_path, monkeypatch):
    async def work(engine: Engine) -> str:
        monkeypatch.setattr(engine, "_draining", True)
        transport = httpx.ASGITransport(app=Rest(engine, None, SETTINGS))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answer = await client.get("/livez")
        monkeypatch.undo()
        return answer.headers["connection"]

    assert in_engine(tmp_path, work) == "close"


TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    ("parent", "trace_id"),
    [
        (f"00-{TRACE}-b7ad6b7169203331-01", int(TRACE, 16)),
        ("", 0),
        ("00-zz", 0),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", 0),
        ("\xff" * 90, 0),
    ],
)
def test_a_span_is_the_child_of_the_one_that_traceparent_names(tmp_path, parent, trace_id):
    from opentelemetry import trace

    seen: list[int] = []

    class Tracer:
        def start_as_current_span(self, name: str, context: Any = None, **named: Any) -> Any:
            seen.append(trace.get_current_span(context).get_span_context().trace_id)
            return trace.use_span(trace.INVALID_SPAN)

    async def work(engine: Engine) -> int:
        app = Rest(engine, None, SETTINGS)
        app.tracer = Tracer()
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://localhost"
        ) as client:
            given = [(b"traceparent", parent.encode("latin-1"))] if parent else []
            return (await client.get("/v1/version", headers=given)).status_code

    assert in_engine(tmp_path, work) == 200
    assert seen == [trace_id]
