"""The client of the service against a server that is scripted: retries, jobs, refusals, files."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from planner.client import Client, ServiceError, document, file_name, plan_of, transport
from planner.errors import PlannerError, SpecError, UsageError
from planner.frameworks.runs.companions import files_beside
from planner.solver.answer.result_store import plan_named
from tests.planner.scripted_server import Asked, Reply, Scripted, scripted

OK: Reply = (200, {"ETag": '"e1"'}, {"plans": []})
QUESTION = {"model": "llama3-8b", "cluster": "h100-x8"}


def problem(status: int, code: str, detail: str = "why", **more: Any) -> Reply:
    data = {
        "type": "t",
        "title": "title",
        "status": status,
        "detail": detail,
        "code": code,
        **more,
    }
    return status, {"Content-Type": "application/problem+json"}, data


@contextmanager
def talking(
    *replies: Reply | Callable[[Asked], Reply], **options: Any
) -> Iterator[tuple[Scripted, Client]]:
    """Give a server with its script, and a client of it."""
    with scripted(*replies) as server, Client(server.url, **options) as service:
        yield server, service


def job(state: str = "PENDING", **more: Any) -> dict[str, Any]:
    return {"job_id": "j1", "state": state, "problem": None, **more}


def events(*items: tuple[int, str]) -> Reply:
    text = "".join(f"id: {n}\nevent: state\ndata: {data}\n\n" for n, data in items)
    return 200, {"Content-Type": "text/event-stream"}, ": still here\n\n" + text


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the pauses between tries, none of which is made."""
    found: list[float] = []
    monkeypatch.setattr(transport.time, "sleep", found.append)
    return found


def test_one_connection_carries_many_questions_and_the_token() -> None:
    with talking(OK, token="abc") as (server, service):
        for _ in range(3):
            assert service.solve("llama3-8b", "h100-x8", top=2) == {"plans": []}
    assert len({asked.connection for asked in server.asked}) == 1
    first = server.asked[0]
    assert (first.method, first.path) == ("POST", "/v1/plans:solve")
    assert first.body == {**QUESTION, "top": 2}
    assert first.headers["authorization"] == "Bearer abc"
    assert first.headers["content-type"] == "application/json"
    assert "idempotency-key" not in first.headers  # a repeated question is answered from memory


def test_threads_ask_at_the_same_time_and_connections_are_kept() -> None:
    together = threading.Barrier(3, timeout=30.0)

    def reply(asked: Asked) -> Reply:
        if len(server.asked) <= 3:
            together.wait()  # none of the three is answered before all have come
        return OK

    with talking(reply) as (server, service):
        threads = [threading.Thread(target=service.rules) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        service.rules()
    connections = [asked.connection for asked in server.asked]
    assert len({*connections[:3]}) == 3
    assert connections[3] in connections[:3]


def test_a_service_that_is_silent_is_not_asked_again() -> None:
    silent = threading.Event()

    def reply(asked: Asked) -> Reply:
        silent.wait(30.0)
        return OK

    with talking(reply, timeout_s=0.05) as (server, service):
        with pytest.raises(ServiceError, match="timed out"):
            service.rules()
        silent.set()
    assert len(server.asked) == 1


def test_an_interrupt_cancels_the_job_that_a_question_became() -> None:
    def interrupt(event: Any) -> None:
        raise KeyboardInterrupt

    replies = [(202, {}, job()), events((1, '{"state": "RUNNING"}')), (200, {}, job("CANCELLED"))]
    with talking(*replies) as (server, service), pytest.raises(KeyboardInterrupt):
        service.ask("solve", QUESTION, progress=interrupt)
    assert server.asked[-1].path == "/v1/jobs/j1:cancel"


def test_an_answer_that_is_known_is_asked_for_by_its_etag() -> None:
    with talking(OK, (304, {"ETag": '"e1"'}, b"")) as (server, service):
        assert service.ask("solve", QUESTION) == service.ask("solve", QUESTION)
    assert [asked.headers.get("if-none-match") for asked in server.asked] == [None, '"e1"']


def test_kept_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "KEPT_ANSWERS", 2)
    with talking(OK) as (server, service):
        for top in (1, 2, 3, 1, 1):
            service.ask("solve", {**QUESTION, "top": top})
    known = [asked.headers.get("if-none-match") for asked in server.asked]
    assert known == [None, None, None, None, '"e1"']


@pytest.mark.parametrize("status", [429, 503])
def test_a_refusal_that_passes_is_waited_out(status: int, pauses: list[float]) -> None:
    after = problem(status, "busy", retry_after_s=7.0)
    plain = (status, {"Retry-After": "3"}, b"a proxy says no")
    with talking(after, plain, OK) as (server, service):
        assert service.solve("llama3-8b", "h100-x8") == {"plans": []}
    assert len(server.asked) == 3
    assert 7.0 <= pauses[0] <= 7.0 * 1.25
    assert 3.0 <= pauses[1] <= 3.0 * 1.25


def test_it_does_not_wait_for_ever(pauses: list[float]) -> None:
    with (
        scripted(problem(429, "busy", retry_after_s=1e6)) as server,
        Client(server.url, retries=3) as service,
        pytest.raises(ServiceError) as caught,
    ):
        service.rules()
    assert caught.value.code == "busy"
    assert caught.value.retry_after_s == 1e6
    assert len(server.asked) == 4
    assert max(pauses) <= 1.25 * transport.LONGEST_PAUSE_S


@pytest.mark.parametrize(("frees_in_s", "n_asked"), [(5.0, 2), (3_600.0, 1)])
def test_a_quota_is_waited_for_where_it_frees_soon(
    frees_in_s: float, n_asked: int, pauses: list[float]
) -> None:
    used_up = problem(429, "quota-exceeded", retry_after_s=frees_in_s)
    with talking(used_up, OK) as (server, service):
        if n_asked > 1:
            service.rules()
        else:
            with pytest.raises(ServiceError) as caught:
                service.rules()
            assert caught.value.code == "quota-exceeded"
    assert len(server.asked) == n_asked


def test_a_priority_goes_with_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_PRIORITY", "background")
    with scripted(OK) as server:
        monkeypatch.setenv("PLANNER_SERVER", server.url)
        with Client.from_environment() as service:
            service.rules()
            service.usage("a b")
        with Client(server.url) as service:
            service.rules()
        with pytest.raises(UsageError, match="no priority"):
            Client(server.url, priority="a\nb")
    seen = [asked.headers.get("planner-priority") for asked in server.asked]
    assert seen == ["background", "background", None]
    assert server.asked[1].path == "/v1/usage?group=a%20b"


def test_pauses_grow() -> None:
    shortest = [min(transport.pause_s(tried) for _ in range(50)) for tried in (1, 3, 5, 20)]
    assert shortest == sorted(shortest)
    assert transport.pause_s(20) <= transport.LONGEST_PAUSE_S


def test_a_lost_connection_is_opened_again(pauses: list[float]) -> None:
    lost: Reply = (0, {}, b"")
    with talking(OK, lost, lost, OK) as (server, service):
        service.rules()
        service.rules("TP002")  # the kept connection is closed, and so is the next one
    assert [asked.path for asked in server.asked] == ["/v1/rules", *["/v1/rules?code=TP002"] * 3]
    assert len(pauses) == 1


def test_nobody_there_is_said(pauses: list[float]) -> None:
    with scripted(OK) as server:
        url = server.url
    with Client(url, retries=2) as service, pytest.raises(ServiceError) as caught:
        service.rules()
    assert caught.value.code == "unreachable"
    assert url in str(caught.value)
    assert "planner serve" in caught.value.hint
    assert len(pauses) == 2
    assert not service.is_ready()


def test_a_refusal_says_what_to_change() -> None:
    fault = {
        "message": "unknown accelerator 'h1000'",
        "fix": "did you mean h100-sxm-80gb?",
        "source": "c.yaml",
        "line": 7,
        "column": 18,
        "field": "pools.0.accelerator",
        "rule": "",
    }
    reply = problem(422, "bad-specification", "c.yaml:7: ...", errors=[fault], instance="r9")
    with talking(reply) as (server, service), pytest.raises(ServiceError) as caught:
        service.solve("llama3-8b", "h100-x8")
    error = caught.value
    assert isinstance(error, PlannerError)
    assert (error.status, error.code, error.exit_code, error.request_id) == (
        422,
        "bad-specification",
        1,
        "r9",
    )
    assert error.hint == "did you mean h100-sxm-80gb?"
    assert str(error) == (
        "c.yaml:7:18: pools.0.accelerator: unknown accelerator 'h1000'\n"
        "  fix: did you mean h100-sxm-80gb?"
    )
    assert len(server.asked) == 1  # no use in asking again


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("bad-option", 2), ("malformed", 2), ("no-plan", 3), ("bad-layout", 1), ("defect", 1)],
)
def test_exit_codes_are_those_of_the_command_line(code: str, exit_code: int) -> None:
    with talking(problem(422, code)) as (_, service), pytest.raises(ServiceError) as caught:
        service.rules()
    assert caught.value.exit_code == exit_code


def test_a_field_that_the_message_names_is_not_said_twice() -> None:
    fault = {"message": "model: no example called 'x'", "fix": "f", "field": "model"}
    reply = problem(422, "bad-specification", errors=[fault])
    with (
        talking(reply) as (_, service),
        pytest.raises(ServiceError, match=r"^model: no example called 'x'\n  fix: f$"),
    ):
        service.solve("x", "h100-x8")


def test_messages_call_a_file_what_the_user_did(tmp_path: Path) -> None:
    path = tmp_path / "my job.yaml"
    path.write_text("model: {}\n")

    def reply(asked: Asked) -> Reply:
        assert asked.body["model"] == {"text": "model: {}\n", "name": "my_job.yaml"}
        fault = {"message": "wrong", "source": "my_job.yaml", "line": 1, "column": 2}
        return problem(422, "bad-specification", errors=[fault])

    with talking(reply) as (_, service), pytest.raises(ServiceError) as caught:
        service.solve(path, "h100-x8")
    assert str(caught.value) == f"{path}:1:2: wrong"


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"", b"\xff"])
def test_what_is_no_service_is_said(body: bytes) -> None:
    with (
        talking((200, {}, body)) as (_, service),
        pytest.raises(ServiceError, match="none of a service"),
    ):
        service.version()
    with (
        talking((404, {}, body)) as (_, service),
        pytest.raises(ServiceError, match="HTTP 404"),
    ):
        service.version()


# Jobs


def test_a_question_that_became_a_job_is_waited_for() -> None:
    told: list[Any] = []
    replies = [
        (202, {}, job()),
        events(
            (1, '{"state": "PENDING"}'),
            (2, '{"phase": "search", "done": 1, "total": 2}'),
            (3, '{"state": "SUCCEEDED"}'),
        ),
        (200, {}, job("SUCCEEDED")),
        OK,
    ]
    with talking(*replies) as (server, service):
        answer = service.ask("solve", QUESTION, progress=told.append)
    assert (answer.json(), answer.job_id, answer.etag) == ({"plans": []}, "j1", "e1")
    assert [event["n"] for event in told] == [1, 2, 3]
    paths = [asked.path for asked in server.asked]
    assert paths[1:] == ["/v1/jobs/j1/events", "/v1/jobs/j1", "/v1/jobs/j1/result"]


def test_a_watcher_comes_back_where_it_was(pauses: list[float]) -> None:
    replies = [
        events((1, '{"state": "PENDING"}'), (2, '{"state": "RUNNING"}')),
        (200, {}, job("RUNNING")),
        (503, {}, b""),
        (0, {}, b""),
        events((3, '{"state": "SUCCEEDED"}')),
    ]
    with talking(*replies) as (server, service):
        found = list(service.watch("j1"))
    assert [event["n"] for event in found] == [1, 2, 3]
    asked = [x.headers.get("last-event-id") for x in server.asked if x.path.endswith("/events")]
    assert asked == [None, "2", "2", "2"]
    assert len(pauses) == 3


def test_a_watcher_of_a_service_that_stops_goes_on_with_the_next(pauses: list[float]) -> None:
    _, _, begun = events((1, '{"state": "PENDING"}'), (2, '{"state": "RUNNING"}'))
    stops = '{"code": "draining", "detail": "the service stops", "status": 503}'
    replies: list[Reply] = [
        (200, {"Content-Type": "text/event-stream"}, f"{begun}event: problem\ndata: {stops}\n\n"),
        events((3, '{"state": "SUCCEEDED"}')),
    ]
    with talking(*replies) as (server, service):
        found = list(service.watch("j1"))
    assert [event["n"] for event in found] == [1, 2, 3]
    assert server.asked[-1].headers["last-event-id"] == "2"
    assert len(pauses) == 1


def test_a_watcher_of_a_job_that_has_ended_ends() -> None:
    with talking((204, {}, b""), (200, {}, job("SUCCEEDED"))) as (server, service):
        assert list(service.watch("j1", after=5)) == []
    assert server.asked[0].headers["last-event-id"] == "5"


def test_a_watcher_gives_up(pauses: list[float]) -> None:
    with (
        talking((0, {}, b""), retries=2) as (_, service),
        pytest.raises(ServiceError, match="does not answer"),
    ):
        list(service.watch("j1"))
    assert len(pauses) == 2


def test_a_problem_in_the_events_is_raised() -> None:
    data = '{"code": "expired", "detail": "gone", "status": 410}'
    reply: Reply = (
        200,
        {"Content-Type": "text/event-stream"},
        f"event: problem\ndata: {data}\n\n",
    )
    with talking(reply) as (_, service), pytest.raises(ServiceError, match="gone") as caught:
        list(service.watch("j1"))
    assert caught.value.status == 410


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (
            job("FAILED", problem={"code": "bad-option", "detail": "why", "status": 422}),
            "bad-option",
        ),
        (job("CANCELLED"), "job-cancelled"),
        (job("EXPIRED"), "job-expired"),
    ],
)
def test_a_job_without_an_answer_is_an_error(found: dict[str, Any], code: str) -> None:
    replies = [events((1, f'{{"state": "{found["state"]}"}}')), (200, {}, found)]
    with talking(*replies) as (_, service), pytest.raises(ServiceError) as caught:
        service.wait("j1")
    assert caught.value.code == code


def test_submits_carry_a_key_that_stays_through_tries(pauses: list[float]) -> None:
    lost: Reply = (0, {}, b"")
    with talking(lost, (202, {}, job())) as (server, service):
        service.submit("scale", QUESTION)
        service.submit("scale", QUESTION, idempotency_key="monday", time_limit_s=5.0)
    keys = [asked.headers["idempotency-key"] for asked in server.asked]
    assert keys[0] == keys[1] != keys[2] == "monday"
    assert server.asked[2].body == {"call": "scale", "request": QUESTION, "time_limit_s": 5.0}


def test_a_deadline_is_asked_for_and_bounds_a_job() -> None:
    with talking(OK) as (server, service):
        service.solve("llama3-8b", "h100-x8", wait_s=2.5)
    assert server.asked[0].headers["prefer"] == "wait=2.500"
    assert server.asked[0].body == QUESTION
    replies = [
        (202, {}, job()),
        (200, {}, job("CANCELLED")),
        (202, {}, job(job_id="j2")),
        events((1, '{"state": "SUCCEEDED"}')),
        (200, {}, job("SUCCEEDED")),
        OK,
    ]
    with talking(*replies) as (server, service):
        service.solve("llama3-8b", "h100-x8", wait_s=2.5)
    assert [asked.path for asked in server.asked][1:4] == [
        "/v1/jobs/j1:cancel",
        "/v1/jobs",
        "/v1/jobs/j2/events",
    ]
    assert server.asked[2].body["time_limit_s"] == 2.5
    with talking(OK) as (server, service):
        service.replan({"solve": QUESTION}, 2, lost="n[1-2]", wait_s=3.0, time_limit_s=9.0)
    assert server.asked[0].body == {
        "solve": QUESTION,
        "plan": 2,
        "lost": ["n[1-2]"],
        "gained": 0,
        "time_limit_s": 3.0,
    }
    with pytest.raises(UsageError, match="wait_s"):
        service.solve("llama3-8b", "h100-x8", wait_s=0.0)


def test_lists_and_results_come_by_pages() -> None:
    def page(asked: Asked) -> Reply:
        second = "cursor=c2" in asked.path
        listed = {"jobs": [job(job_id="j2" if second else "j1")], "items": [2 if second else 1]}
        return 200, {}, {**listed, "next_cursor": "" if second else "c2"}

    with talking(page) as (server, service):
        assert [x["job_id"] for x in service.jobs("RUNNING", page=1)] == ["j1", "j2"]
        assert [x["items"] for x in service.pages("j1", 1)] == [[1], [2]]
    assert server.asked[1].path == "/v1/jobs?limit=1&state=RUNNING&cursor=c2"
    assert server.asked[3].path == "/v1/jobs/j1/result?limit=1&cursor=c2"


def test_rows_of_a_sweep_that_runs_come_as_far_as_they_are() -> None:
    def page(asked: Asked) -> Reply:
        n = int(asked.path.partition("cursor=")[2].partition("&")[0] or 0)
        items = [x for x in (1, 2, 3) if n < x <= n + 2]
        return 200, {}, {"items": items, "next_cursor": str(n + len(items))}

    with talking(page) as (server, service):
        found = list(service.pages("j1", 2, so_far=True))
        assert [x["items"] for x in found] == [[1, 2], [3]]
        cursor = found[-1]["next_cursor"]
        assert [x["items"] for x in service.pages("j1", 2, so_far=True, cursor=cursor)] == [[]]
    assert server.asked[1].path == "/v1/jobs/j1/result?limit=2&cursor=2&so_far=true"


def sweep_job(asked: Asked) -> Reply:
    """Answer as a service with a sweep of four points, two of which are there before its end."""
    path = asked.path
    if path.endswith("/events"):
        told = [(n, f'{{"phase": "points", "done": {n}, "total": 4}}') for n in (1, 2, 3, 4)]
        return events((5, '{"state": "RUNNING"}'), *told, (6, '{"state": "SUCCEEDED"}'))
    if path.endswith("/j1"):
        return 200, {}, job("SUCCEEDED")
    if path.endswith(":cancel") or asked.method == "POST":
        return 202, {}, job()
    first = int(path.partition("cursor=")[2].partition("&")[0] or 0)
    if "so_far" not in path:
        return 200, {}, {"items": [{"index": i} for i in range(4)], "total": 4, "next_cursor": ""}
    if first == 2:  # it has ended meanwhile
        return problem(409, "has-result")
    items = [{"index": 2 - first}]
    return 200, {}, {"items": items, "total": 1, "next_cursor": str(first + 1)}


def test_rows_come_as_the_service_finds_them_each_once() -> None:
    told: list[Any] = []
    with talking(sweep_job) as (server, service):
        found = service.rows("sweep", {"spec": {}}, progress=told.append)
        assert next(found) == {"index": 2}
        assert len(told) == 2
        assert [row["index"] for row in found] == [1, 0, 3]
    paths = [asked.path for asked in server.asked]
    assert paths[0] == "/v1/sweeps"
    assert next(p for p in paths if "cursor" in p).endswith("cursor=1&so_far=true")
    assert not any(p.endswith(":cancel") for p in paths)


def test_a_sweep_of_which_no_more_rows_are_taken_is_cancelled() -> None:
    with talking(sweep_job) as (server, service):
        found = service.rows("sweep", {"spec": {}})
        next(found)
        found.close()  # type: ignore[attr-defined]  # a generator
    assert server.asked[-1].path == "/v1/jobs/j1:cancel"


# What is sent


def test_calls_send_what_they_are_given(tmp_path: Path) -> None:
    result = {"schema_version": "1.3", "plans": []}
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("n[01-02] slots=8  # rack\nn03\n")
    with talking(OK) as (server, service):
        service.explain(result, "ab12", term="tp")
        service.emit(result, 2, frameworks=["fsdp2"], launcher=["slurm"], hosts=hosts)
        service.place(result, hosts="n[1-2]")
        service.diff((result, 1), ({"solve": QUESTION}, 3))
        service.evaluate("llama3-8b", {"pools": []}, {"tp": 8}, set={"a.b": 1})
        service.scale("llama3-8b", "h100-x8", from_=8, to=16)
        service.sweep({"vary": {}})
        service.check_spec("model: 1\nx: 2\n")
        service.catalogue("h100-sxm-80gb")
        service.check("#!/bin/bash\ntorchrun x\n", "h100-x8", model="llama3-8b", version="0.12")
    bodies = [asked.body for asked in server.asked]
    assert bodies[0] == {"result": result, "plan": "ab12", "term": "tp"}
    assert bodies[1] == {
        "result": result,
        "plan": 2,
        "for": ["fsdp2"],
        "launcher": ["slurm"],
        "hosts": "n01\nn02\nn03",
    }
    assert bodies[2] == {"result": result, "plan": 1, "hosts": "n1\nn2"}
    assert bodies[3]["b"] == {"solve": QUESTION, "plan": 3}
    assert bodies[4]["cluster"] == {"pools": []}
    assert bodies[5] == {**QUESTION, "from": 8, "to": 16}
    assert [x.path for x in server.asked][5:9] == [
        "/v1/plans:scale",
        "/v1/sweeps",
        "/v1/specs:check",
        "/v1/catalogue?name=h100-sxm-80gb",
    ]
    assert "idempotency-key" in server.asked[5].headers
    assert bodies[7] == {"document": {"text": "model: 1\nx: 2\n"}}
    assert bodies[9] == {
        "run": {"text": "#!/bin/bash\ntorchrun x\n"},
        "files": {},
        "cluster": "h100-x8",
        "model": "llama3-8b",
        "version": "0.12",
    }


def test_files_are_read_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "h100-x8").write_text("pools: []\n")
    assert document("llama3-8b", "model") == "llama3-8b"  # an example of the service
    assert document("of-another-version", "model") == "of-another-version"
    assert document("h100-x8", "cluster") == {"text": "pools: []\n", "name": "h100-x8"}
    assert document(Path("llama"), "model") == {
        "text": '{"model_type": "llama"}',
        "name": "config.json",
    }
    with pytest.raises(SpecError, match="no such file"):
        document("no/file.yaml", "model")
    with pytest.raises(SpecError, match="empty"):
        document("", "model")


def test_files_that_a_run_names_are_sent_where_they_lie_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "conf").mkdir(parents=True)
    (tmp_path / "secret.json").write_text("{}")
    (folder / "unnamed.json").write_text("{}")
    (folder / "conf" / "ds.json").write_text('{"see": "more.yaml"}')
    (folder / "more.yaml").write_text("a: 1\n")
    (folder / "link.json").symlink_to(tmp_path / "secret.json")
    text = "deepspeed train.py --deepspeed conf/ds.json ../secret.json link.json run.sh"
    (folder / "run.sh").write_text(text)
    found = files_beside(str(folder / "run.sh"), text)
    assert found == {"conf/ds.json": '{"see": "more.yaml"}', "more.yaml": "a: 1\n"}


def test_a_saved_result_is_read_here(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("{}")
    with pytest.raises(UsageError, match="not a result"):
        plan_of(path)


def test_a_file_that_is_not_there_is_no_plan_of_the_last_result() -> None:
    assert plan_named("there/is.json") == ("there/is.json", "1")
    assert plan_named("eba7b3f3133a") == ("last", "eba7b3f3133a")
    with pytest.raises(UsageError, match=r"no result file none\.json"):
        plan_of("none.json")


def test_what_answers_at_a_wrong_port_is_not_printed(pauses: list[float]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall(b"\x00\x00\x18\x04\xff\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with Client(url, retries=0) as service, pytest.raises(ServiceError) as caught:
            service.rules()
        thread.join()
    assert caught.value.detail.endswith("does not answer: what came back is not HTTP")
    assert "gRPC" in caught.value.hint


def test_https_where_plain_http_is_spoken_is_said(pauses: list[float]) -> None:
    with (
        scripted(OK) as server,
        Client(server.url.replace("http", "https"), retries=0) as service,
        pytest.raises(ServiceError, match="does not answer") as caught,
    ):
        service.rules()
    assert caught.value.hint.startswith("the service may speak plain HTTP")


def test_names_of_files_are_plain() -> None:
    assert file_name("a/b/ä b.yaml") == "__b.yaml"
    assert file_name("..yaml") == "yaml"
    assert len(file_name("x" * 300)) == 128


def test_requests_are_plain_data() -> None:
    with pytest.raises(UsageError, match="no JSON"):
        Client("http://localhost").ask("solve", {"model": {"x": float("nan")}})
    with pytest.raises(UsageError, match="no JSON"):
        Client("http://localhost").ask("solve", {"model": object()})
    with pytest.raises(UsageError, match="plain ASCII"):
        Client("http://localhost").submit("solve", {}, idempotency_key="a\nb")


@pytest.mark.parametrize(
    "url",
    ["localhost:8642", "ftp://host", "http://", "http://u:p@host", "http://h/?a=1", "http://h:x"],
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(UsageError, match="not the address"):
        Client(url)


def test_certificates_are_for_https_and_named_where_wrong(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="for https"):
        Client("http://host", ca="ca.pem")
    with pytest.raises(UsageError, match=r"missing\.pem"):
        Client("https://host", ca=tmp_path / "missing.pem")
    with pytest.raises(UsageError, match="one line"):
        Client("http://host", token="a\nb")
