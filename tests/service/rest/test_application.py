"""The REST transport over the engine, called without a network."""

import asyncio
import io
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import httpx
import pytest

from service.access.auth import Auth, read_tokens
from service.access.caller import ROLES
from service.engine import Engine
from service.handlers.calls import CALLS
from service.handlers.problems import Refusal
from service.http.exchange import Operation, etag_matches, wait_s
from service.rest.application import Rest
from service.rest.operations import OPERATIONS
from service.settings.serving import PublicAddress
from service.telemetry import logs
from service.telemetry.metrics import section
from tests.service.inline import SETTINGS, inline_engine
from tests.service.waiting import PATIENCE_S

Found = TypeVar("Found")

TOKENS = {
    ("ann", "read"): "ann-reads-0123456789",
    ("sue", "solve"): "sue-solves-0123456789",
    ("tom", "solve"): "tom-solves-0123456789",
    ("eve", "admin"): "eve-rules-0123456789",
}
SUE = TOKENS["sue", "solve"]


class Service:
    """One engine for many tests, with two applications: one asks for tokens."""

    def __init__(self, folder: Any) -> None:
        self.runner = asyncio.Runner()
        self._context = inline_engine(folder)
        self.engine: Engine = self.runner.run(self._context.__aenter__())
        text = "\n".join(f"{name} {role} {token}" for (name, role), token in TOKENS.items())
        self.app = Rest(self.engine, Auth(read_tokens(text, "tokens")), SETTINGS)
        self.open_app = Rest(
            self.engine, None, SETTINGS, PublicAddress(only_hosts=frozenset({"localhost"}))
        )

    def __call__(
        self,
        work: Callable[[httpx.AsyncClient], Awaitable[Found]],
        app: Any = None,
        token: str = SUE,
    ) -> Found:
        async def limited() -> Found:
            transport = httpx.ASGITransport(app=app or self.app, client=("10.0.0.7", 1))
            headers = {"authorization": f"Bearer {token}"} if token else {}
            async with httpx.AsyncClient(
                transport=transport, base_url="http://localhost", headers=headers
            ) as client:
                return await asyncio.wait_for(work(client), PATIENCE_S)

        return self.runner.run(limited())

    def ask(
        self, method: str, path: str, *, app: Any = None, token: str = SUE, **given: Any
    ) -> httpx.Response:
        return self(lambda client: client.request(method, path, **given), app, token)

    def close(self) -> None:
        self.runner.run(self._context.__aexit__(None, None, None))
        self.runner.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    found = Service(tmp_path_factory.mktemp("rest"))
    yield found
    found.close()


def problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    data = response.json()
    assert (response.status_code, data["code"]) == (status, code), data
    assert response.headers["content-type"] == "application/problem+json"
    assert data["status"] == status
    assert data["type"].endswith(code)
    assert data["instance"] == response.headers["x-request-id"]
    assert "Traceback" not in response.text
    return data


# Calls


def test_an_answer_is_the_bytes_of_the_engine_with_the_identity_as_etag(service):
    fresh = service.ask("POST", "/v1/plans:solve", json={"n": 7})
    assert fresh.status_code == 200
    assert fresh.content == b'{"n": 7, "square": 49, "list": []}\n'
    assert fresh.headers["cache-status"] == "planner; fwd=miss"
    again = service.ask("POST", "/v1/plans:solve", json={"n": 7})
    assert again.content == fresh.content
    assert again.headers["etag"] == fresh.headers["etag"]
    assert again.headers["cache-status"] == "planner; hit"


@pytest.mark.parametrize("repeated", [False, True])
def test_who_has_an_answer_gets_304(service, repeated):
    body = {"n": 3, "repeated": repeated}
    etag = service.ask("POST", "/v1/plans:solve", json=body).headers["etag"]
    text = json.dumps(body, indent=1 if repeated else 5)  # other bytes: not from memory
    for sent in (etag, f'W/{etag}, "x"', "*"):
        known = service.ask(
            "POST",
            "/v1/plans:solve",
            content=text,
            headers={"if-none-match": sent, "content-type": "application/json"},
        )
        assert (known.status_code, known.content) == (304, b"")
        assert known.headers["etag"] == etag
    other = service.ask("POST", "/v1/plans:solve", json=body, headers={"if-none-match": '"x"'})
    assert other.status_code == 200


def test_facts_are_read_with_get_and_known_by_their_etag(service):
    all_of_them = service.ask("GET", "/v1/catalogue")
    assert all_of_them.status_code == 200
    etag = all_of_them.headers["etag"]
    known = service.ask("GET", "/v1/catalogue", headers={"if-none-match": etag})
    assert known.status_code == 304
    one = service.ask("GET", "/v1/catalogue?name=h100")
    assert one.headers["etag"] != etag


def test_a_deadline_is_answered_with_the_best_so_far(service):
    slow = {"n": 1, "steps": 50, "step_s": 0.05}
    found = service.ask("POST", "/v1/plans:solve", json=slow, headers={"prefer": "wait=0.1"})
    assert found.json()["complete"] is False
    assert found.headers["preference-applied"] == "wait"
    assert found.headers["etag"].startswith('"partial-')


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        ("", None),
        ("wait=2", 2.0),
        ("wait=0", 0.001),
        ("respond-async, wait=0.5", 0.5),
        ('wait="3"', 3.0),
        ("Wait=2 , wait=9", 2.0),
        ("wait=999999", 86_400.0),
        # What cannot be understood is ignored (RFC 7240).
        *((text, None) for text in ("wait", "wait=", "wait=-1", "wait=1e9", "wait=x", "waiter=5")),
    ],
)
def test_seconds_to_wait_are_read(prefer, seconds):
    assert wait_s(prefer) == seconds


def test_a_preference_that_is_applied_says_so_and_others_are_ignored(service):
    for prefer, applied in (("wait=20", "wait"), ("wait=x", None), ("handling=lenient", None)):
        found = service.ask("POST", "/v1/plans:solve", json={"n": 5}, headers={"prefer": prefer})
        assert (found.status_code, found.headers.get("preference-applied")) == (200, applied)


def test_etags_are_compared_as_lists():
    assert etag_matches('"a", W/"b"', "b")
    assert not etag_matches('"a"', "b")
    assert not etag_matches("b", "b")
    assert not etag_matches("*", "")


def test_an_idempotency_key_gives_the_first_answer_and_refuses_another_body(service):
    key = {"idempotency-key": "key-1"}
    first = service.ask("POST", "/v1/plans:solve", json={"n": 11}, headers=key)
    again = service.ask("POST", "/v1/plans:solve", json={"n": 11}, headers=key)
    assert again.content == first.content
    other = service.ask("POST", "/v1/plans:solve", json={"n": 12}, headers=key)
    problem(other, 422, "key-reused")


def test_what_a_call_refuses_comes_with_its_status(service):
    refused = service.ask("POST", "/v1/plans:solve", json={"refuse": "why not"})
    assert problem(refused, 422, "bad-option")["detail"] == "why not"


def test_a_full_service_says_when_to_come_back(service):
    async def crowd(client: httpx.AsyncClient) -> list[httpx.Response]:
        pool: Any = service.engine._pool
        pool.held.clear()
        asked = [
            asyncio.ensure_future(client.post("/v1/plans:solve", json={"n": 100 + i}))
            for i in range(SETTINGS.per_caller + 2)
        ]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        pool.held.set()
        return await asyncio.gather(*asked)

    answers = service(crowd)
    late = [each for each in answers if each.status_code != 200]
    assert 0 < len(late) < len(answers)
    for each in late:
        problem(each, 429, "overloaded")
        assert int(each.headers["retry-after"]) >= 1


def test_a_defect_is_no_trace(service, monkeypatch):
    async def broken(*args: Any, **named: Any) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(service.engine, "from_store", broken)
    data = problem(service.ask("GET", "/v1/jobs"), 500, "defect")
    assert "secret" not in json.dumps(data)


def test_work_ends_when_its_caller_leaves(service):
    async def leave(client: httpx.AsyncClient) -> int:
        pool: Any = service.engine._pool
        pool.held.clear()
        sent: list[Any] = []
        parts = [{"type": "http.request", "body": b'{"n": 999}'}, {"type": "http.disconnect"}]

        async def receive() -> Any:
            if len(parts) == 1:
                while not service.engine._flights:
                    await asyncio.sleep(0)
            return parts.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/plans:solve",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json"), (b"host", b"localhost")],
            "client": None,
            "http_version": "1.1",
            "asgi": {"version": "3.0"},
        }
        await service.open_app(scope, receive, send)
        for _ in range(10):
            await asyncio.sleep(0)
        pool.held.set()
        assert sent[0]["status"] == 499  # for the log: nobody reads it
        return len(service.engine._flights)

    assert service(leave) == 0


# What the gate refuses


@pytest.mark.parametrize(
    ("method", "path", "given", "status", "code"),
    [
        ("GET", "/", {}, 404, "unknown-path"),
        ("GET", "/v1/jobs/", {}, 404, "unknown-path"),
        ("GET", "/docs", {}, 404, "unknown-path"),
        ("GET", "/v1/plans:solve", {}, 405, "wrong-method"),
        ("PUT", "/v1/jobs/abc", {}, 405, "wrong-method"),
        ("OPTIONS", "/v1/plans:solve", {}, 405, "wrong-method"),
        ("POST", "/v1/plans:solve", {"content": b"x" * 10_001}, 413, "too-large"),
        ("POST", "/v1/plans:solve", {"data": {"a": "b"}}, 415, "wrong-media-type"),
        ("POST", "/v1/plans:solve", {"content": b"{}"}, 415, "wrong-media-type"),
        (
            "POST",
            "/v1/plans:solve",
            {"json": {}, "headers": {"content-encoding": "gzip"}},
            415,
            "wrong-media-type",
        ),
        (
            "POST",
            "/v1/plans:solve",
            {"content": b"{", "headers": {"content-type": "application/json"}},
            400,
            "malformed",
        ),
        (
            "POST",
            "/v1/plans:solve",
            {"json": {"n": 0}, "headers": {"idempotency-key": "k" * 201}},
            400,
            "bad-key",
        ),
        ("POST", "/v1/jobs", {"json": []}, 400, "malformed"),
        ("POST", "/v1/jobs", {"json": {"call": "solve"}}, 422, "malformed"),
        ("POST", "/v1/jobs", {"json": {"call": "dance", "request": {}}}, 404, "unknown-call"),
        ("POST", "/v1/jobs", {"json": {"call": "page-learn", "request": {}}}, 404, "unknown-call"),
        (
            "POST",
            "/v1/jobs",
            {"json": {"call": "solve", "request": {"top": 10**400}}},
            400,
            "malformed",
        ),
        ("POST", "/v1/jobs", {"json": {"call": "solve", "request": {}, "x": 1}}, 422, "malformed"),
        (
            "POST",
            "/v1/jobs",
            {"json": {"call": "solve", "request": {}, "time_limit_s": True}},
            422,
            "malformed",
        ),
        ("GET", "/v1/jobs?state=LOST", {}, 400, "malformed"),
        ("GET", "/v1/jobs?limit=0", {}, 400, "malformed"),
        ("GET", "/v1/jobs?limit=1&limit=2", {}, 400, "malformed"),
        ("GET", "/v1/jobs?limits=1", {}, 400, "malformed"),
        ("GET", "/v1/rules?name=TP002", {}, 400, "malformed"),
        ("GET", "/v1/jobs?cursor=!", {}, 400, None),
        ("GET", "/v1/jobs/none", {}, 404, "unknown-job"),
        ("GET", "/v1/jobs/none/result", {}, 404, "unknown-job"),
        ("GET", "/v1/jobs/none/result?so_far=1", {}, 400, "malformed"),
        ("GET", "/v1/jobs/none/events", {}, 404, "unknown-job"),
        ("GET", "/v1/jobs/none/events", {"headers": {"last-event-id": "x"}}, 400, "malformed"),
        ("POST", "/v1/jobs/none:cancel", {}, 404, "unknown-job"),
    ],
)
def test_refusals_are_problem_documents(service, method, path, given, status, code):
    found = service.ask(method, path, **given)
    problem(found, status, code or found.json()["code"])
    if status == 405:
        assert method not in found.headers["allow"].split(", ")


def test_a_body_that_is_sent_in_parts_is_cut_off_at_the_limit(service):
    async def parts() -> Any:
        for _ in range(20):
            yield b" " * 1_000

    found = service.ask(
        "POST", "/v1/plans:solve", content=parts(), headers={"content-type": "application/json"}
    )
    problem(found, 413, "too-large")
    assert found.headers["connection"] == "close"


def test_pages_of_other_origins_are_refused_and_nothing_is_shared_with_them(service):
    theirs = {"origin": "https://evil.example"}
    for app in (service.app, service.open_app):
        found = service.ask("POST", "/v1/plans:solve", json={"n": 1}, headers=theirs, app=app)
        problem(found, 403, "cross-origin")
    read = service.ask("GET", "/v1/version", headers=theirs)
    assert not [name for name in read.headers if name.startswith("access-control")]
    own = {"origin": "http://localhost"}
    assert service.ask("POST", "/v1/plans:solve", json={"n": 1}, headers=own).status_code == 200


def test_without_tokens_the_service_is_called_by_its_own_name(service):
    for host, status in (("localhost:8642", 200), ("LOCALHOST", 200), ("evil.example", 421)):
        found = service.ask(
            "GET", "/v1/version", headers={"host": host}, app=service.open_app, token=""
        )
        assert found.status_code == status, host


def test_every_answer_has_security_headers_and_a_request_id(service):
    for path in ("/livez", "/v1/version", "/nowhere"):
        headers = service.ask("GET", path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert "server" not in headers
    mine = service.ask("GET", "/livez", headers={"x-request-id": "mine-1"})
    assert mine.headers["x-request-id"] == "mine-1"
    forged = service.ask("GET", "/livez", headers={"x-request-id": "a b"})
    assert forged.headers["x-request-id"] != "a b"


# Who may do what


def request_of(operation: Operation, job_id: str) -> dict[str, Any]:
    url = operation.path.replace("{job_id}", job_id).replace("{webhook_id}", job_id)
    given: dict[str, Any] = {"url": url}
    if operation.id == "createWebhook":
        given["json"] = {"url": "https://hooks.invalid/"}
    elif operation.id == "watchJobs":
        given["params"] = {"timeout_s": 0}
    elif operation.id == "submitJob":
        given["json"] = {"call": "rules", "request": {"n": 1}}
    elif operation.request:
        given["json"] = {"n": 5}
    return {"method": operation.method, **given}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.id)
def test_every_operation_lets_in_the_roles_that_its_document_names(service, operation):
    async def statuses(client: httpx.AsyncClient) -> dict[str, int]:
        found = {}
        for (name, role), token in [*TOKENS.items(), (("", "none"), ""), (("", "bad"), "x" * 20)]:
            if name == "tom":
                continue
            headers = {"authorization": f"Bearer {token}"} if token else {}
            answer = await client.request(**request_of(operation, "0" * 32), headers=headers)
            found[role] = answer.status_code
        return found

    found = service(statuses, token="")
    for role, status in found.items():
        if role in ROLES:
            allowed = ROLES.index(role) >= ROLES.index(operation.role or "read")
            assert (status == 403) is not allowed, (role, status)
            assert status in ((200, 201, 202, 404) if allowed else (403,)), (role, status)
        else:
            assert status == (401 if operation.role else 200), (role, status)


@pytest.mark.parametrize("role", ROLES)
def test_a_job_needs_the_role_solve_and_that_of_its_call(service, role):
    async def statuses(client: httpx.AsyncClient) -> dict[str, int]:
        found = {}
        for name in CALLS:
            body = {"call": name, "request": {"n": 2}}
            found[name] = (await client.post("/v1/jobs", json=body)).status_code
        return found

    token = next(token for (_, has), token in TOKENS.items() if has == role)
    for name, status in service(statuses, token=token).items():
        allowed = role != "read"
        assert status == (202 if allowed else 403), name


def test_what_is_refused_without_a_token_says_how_to_send_one(service):
    found = service.ask("GET", "/v1/version", token="")
    problem(found, 401, "unauthenticated")
    assert found.headers["www-authenticate"].startswith("Bearer")


def test_a_repeated_question_is_not_answered_to_who_may_not_ask(service):
    service.ask("POST", "/v1/plans:solve", json={"n": 70})
    found = service.ask("POST", "/v1/plans:solve", json={"n": 70}, token=TOKENS["ann", "read"])
    problem(found, 403, "not-allowed")


# Jobs


def submitted(service: Service, body: dict[str, Any], **given: Any) -> httpx.Response:
    return service.ask("POST", "/v1/sweeps", json=body, **given)


def events_of(text: str) -> list[tuple[int, str, dict[str, Any]]]:
    found = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line[0] != ":")
        found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found


def ended(service: Service, location: str) -> list[tuple[int, str, dict[str, Any]]]:
    watched = service.ask("GET", f"{location}/events")
    assert watched.headers["content-type"].startswith("text/event-stream")
    return events_of(watched.text)


def test_a_job_is_accepted_watched_and_its_answer_fetched(service):
    accepted = submitted(service, {"n": 6, "items": 5})
    assert accepted.status_code == 202
    job = accepted.json()
    assert accepted.headers["location"] == f"/v1/jobs/{job['job_id']}"
    events = ended(service, accepted.headers["location"])
    assert [n for n, _, _ in events] == list(range(1, len(events) + 1))
    assert events[-1][1:] == ("state", {"state": "SUCCEEDED"})
    job = service.ask("GET", accepted.headers["location"]).json()
    assert (job["state"], job["complete"]) == ("SUCCEEDED", True)
    result = service.ask("GET", f"{accepted.headers['location']}/result")
    assert result.json() == {"n": 6, "square": 36, "list": [0, 1, 2, 3, 4]}
    assert result.headers["etag"] == f'"{job["etag"]}"'
    known = service.ask(
        "GET",
        f"{accepted.headers['location']}/result",
        headers={"if-none-match": result.headers["etag"]},
    )
    assert known.status_code == 304


def test_a_watcher_goes_on_after_the_last_event_that_it_has(service):
    location = submitted(service, {"n": 8}).headers["location"]
    events = ended(service, location)
    rest = service.ask("GET", f"{location}/events", headers={"last-event-id": "1"})
    assert events_of(rest.text) == events[1:]
    over = service.ask("GET", f"{location}/events", headers={"last-event-id": str(events[-1][0])})
    assert over.status_code == 204


def test_an_answer_comes_in_pages(service):
    location = submitted(service, {"n": 9, "items": 5}).headers["location"]
    ended(service, location)
    items, cursor, pages = [], "", 0
    while pages < 9:
        more = f"&cursor={cursor}" if cursor else ""
        page = service.ask("GET", f"{location}/result?limit=2{more}").json()
        items, cursor, pages = items + page["items"], page["next_cursor"], pages + 1
        if not cursor:
            break
    assert (items, pages) == ([0, 1, 2, 3, 4], 3)


def test_any_question_becomes_a_job_on_request_and_a_large_one_by_itself(service):
    asked = service.ask(
        "POST", "/v1/plans:solve", json={"n": 21}, headers={"prefer": "respond-async"}
    )
    assert (asked.status_code, asked.json()["call"]) == (202, "solve")
    assert asked.headers["preference-applied"] == "respond-async"
    large = service.ask("POST", "/v1/plans:scale", json={"n": 22})
    assert (large.status_code, large.json()["call"]) == (202, "scale")
    ended(service, large.headers["location"])


def test_a_repeated_submission_with_a_key_is_one_job(service):
    key = {"idempotency-key": "one-job"}
    first = submitted(service, {"n": 31}, headers=key)
    assert (
        submitted(service, {"n": 31}, headers=key).headers["location"]
        == (first.headers["location"])
    )
    problem(submitted(service, {"n": 32}, headers=key), 422, "key-reused")
    ended(service, first.headers["location"])


def test_jobs_are_their_owners_and_of_admins(service):
    location = submitted(service, {"n": 41}).headers["location"]
    ended(service, location)
    tom, eve = TOKENS["tom", "solve"], TOKENS["eve", "admin"]
    for method, path in (
        ("GET", location),
        ("GET", f"{location}/result"),
        ("GET", f"{location}/result?limit=1"),
        ("GET", f"{location}/events"),
        ("POST", f"{location}:cancel"),
    ):
        problem(service.ask(method, path, token=tom), 404, "unknown-job")
        assert service.ask(method, path, token=eve).status_code == 200
    listed = service.ask("GET", "/v1/jobs", token=tom).json()["jobs"]
    assert {job["owner"] for job in listed} <= {"tom"}
    assert "sue" in {
        job["owner"] for job in service.ask("GET", "/v1/jobs", token=eve).json()["jobs"]
    }


def test_jobs_are_listed_by_pages_and_state(service):
    for n in range(3):
        ended(service, submitted(service, {"n": 50 + n}).headers["location"])
    seen, cursor = [], ""
    for _ in range(100):
        query = (
            f"?limit=2&state=SUCCEEDED&cursor={cursor}" if cursor else "?limit=2&state=SUCCEEDED"
        )
        page = service.ask("GET", f"/v1/jobs{query}").json()
        seen += [job["job_id"] for job in page["jobs"]]
        cursor = page["next_cursor"]
        if not cursor:
            break
    assert len(seen) == len(set(seen)) >= 3


# Operations


def test_probes_tell_alive_from_ready(service, monkeypatch):
    assert service.ask("GET", "/livez", token="").text == "ok\n"
    assert service.ask("GET", "/readyz", token="").text == "ready\n"
    monkeypatch.setattr(service.engine, "_draining", True)
    problem(service.ask("GET", "/readyz", token=""), 503, "draining")
    assert service.ask("GET", "/livez", token="").status_code == 200
    found = service.ask("POST", "/v1/plans:solve", json={"n": 4321})
    problem(found, 503, "draining")
    assert "retry-after" in found.headers


def test_metrics_tell_requests_answers_and_refusals(service):
    service.ask("POST", "/v1/plans:solve", json={"n": 61})
    service.ask("POST", "/v1/plans:solve", json={"refuse": "no"})
    text = service.ask("GET", "/metrics").text
    for line in (
        'planner_requests_total{operation="solve",status="200",transport="rest"}',
        'planner_requests_total{operation="solve",status="422",transport="rest"}',
        'planner_call_seconds_count{call="solve",phase="work"}',
        'planner_refused_total{code="bad-option"}',
        "planner_queue_depth 0.0",
        "planner_cache_hits_total ",
    ):
        assert line in text, line


def test_sections_of_an_answer_are_read_without_the_rest():
    answer = {
        "counts": {"fit": 2},
        "text": '\n "counts": {"fit": 9}',
        "rejected": [{"code": "TP002", "n": 3}],
        "plans": [{"counts": 1}],
        "last": [1],
    }
    payload = (json.dumps(answer, indent=1) + "\n").encode()
    assert section(payload, "counts") == {"fit": 2}
    assert section(payload, "rejected") == [{"code": "TP002", "n": 3}]
    assert section(payload, "last") == [1]
    assert section(payload, "missing") is None


def test_logs_are_json_with_ids_and_without_secrets(service):
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    asked = service.ask("GET", "/v1/jobs/none/events?secret=1")
    service.ask("POST", "/v1/plans:solve", json={"n": 71, "secret": "body"})
    written = [line for line in stream.getvalue().splitlines() if '"httpx"' not in line]
    lines = [json.loads(line) for line in written]
    line = next(line for line in lines if line.get("request_id") == asked.headers["x-request-id"])
    assert (line["status"], line["caller"], line["job_id"]) == (404, "sue", "none")
    assert (line["address"], line["code"]) == ("10.0.0.7", "unknown-job")
    assert "secret" not in "".join(written)
    assert SUE not in "".join(written)


def test_the_document_is_served_as_it_is_committed(service):
    from tests.service.rest.test_openapi import FILE

    found = service.ask("GET", "/openapi.json", token="")
    assert found.text == FILE.read_text()


def test_a_configured_tracer_gets_a_span_for_every_request(service):
    from opentelemetry.trace import NoOpTracerProvider, TracerProvider

    from service.telemetry import tracing

    assert tracing.configured_tracer() is None
    seen: list[dict[str, Any]] = []

    class Span:
        def __init__(self, name: str) -> None:
            seen.append({"name": name})

        def __enter__(self) -> "Span":
            return self

        def __exit__(self, *error: Any) -> None: ...

        def set_attribute(self, name: str, value: Any) -> None:
            seen[-1][name] = value

    class Tracer:
        def start_as_current_span(self, name: str, **named: Any) -> Span:
            return Span(name)

    assert issubclass(NoOpTracerProvider, TracerProvider)
    app = Rest(service.engine, None, SETTINGS)
    app.tracer = Tracer()
    service.ask("GET", "/v1/version", app=app, headers={"x-request-id": "span-1"})
    assert seen == [
        {
            "name": "getVersion",
            "http.request.method": "GET",
            "http.response.status_code": 200,
            "planner.request_id": "span-1",
        }
    ]


def test_a_second_authorization_is_refused(service):
    two = [("authorization", f"Bearer {SUE}"), ("authorization", "Bearer x")]
    found = service.ask("GET", "/v1/version", token="", headers=two)
    problem(found, 400, "malformed")


def test_who_only_reads_submits_no_job(service):
    ann = TOKENS["ann", "read"]
    body = {"call": "rules", "request": {}}
    problem(service.ask("POST", "/v1/jobs", json=body, token=ann), 403, "not-allowed")
    assert service.ask("POST", "/v1/jobs", json=body).status_code == 202


def test_what_a_path_of_two_kinds_allows(service):
    cancel, job = "/v1/jobs/abc:cancel", "/v1/jobs/abc"
    for method, path, allowed in (("OPTIONS", cancel, "POST"), ("GET", cancel, "POST")):
        found = service.ask(method, path)
        problem(found, 405, "wrong-method")
        assert found.headers["allow"] == allowed
    assert service.ask("OPTIONS", job).headers["allow"] == "GET"


def test_a_store_that_is_away_makes_the_service_unready_within_a_second(service, monkeypatch):
    endpoint_ready_s = 1.1  # an answer of /readyz holds for one second
    went_on = threading.Event()
    time.sleep(endpoint_ready_s)
    monkeypatch.setattr(service.engine._store, "check_writable", lambda: went_on.wait(20.0))
    begun_s = time.monotonic()
    found = service.ask("GET", "/readyz", token="")
    waited_s = time.monotonic() - begun_s
    problem(found, 503, "store-unavailable")
    assert waited_s < 1.0
    went_on.set()
    monkeypatch.undo()
    time.sleep(endpoint_ready_s)
    assert service.ask("GET", "/readyz", token="").status_code == 200


def test_a_removed_token_ends_its_streams(tmp_path):
    async def removed() -> list[str]:
        async with inline_engine(tmp_path) as engine:
            both = read_tokens(f"sue solve {SUE}\ntom solve {TOKENS['tom', 'solve']}", "tokens")
            auth = Auth(both)
            caller = await auth.identified(f"Bearer {SUE}")
            engine._job_pool.held.clear()
            job = await engine.submit("solve", {"n": 5}, caller)
            seen = []
            try:
                async for event in engine.watch(job.job_id, caller):
                    seen.append(str(event.data.get("state")))
                    auth.replace(both[1:])
            except Refusal as refusal:
                seen.append(refusal.code)
            engine._job_pool.held.set()
            return seen

    assert asyncio.run(removed())[-1] == "unauthenticated"


def test_a_scale_is_waited_for_where_the_caller_says_how_long(service):
    def ask(prefer: str | None) -> httpx.Response:
        headers = {} if prefer is None else {"prefer": prefer}
        return service.ask("POST", "/v1/plans:scale", json={"n": 23}, headers=headers)

    service.engine._job_pool.held.clear()
    late = ask("wait=0.05")
    assert (late.status_code, late.headers["preference-applied"]) == (202, "wait")
    assert late.headers["location"].endswith(late.json()["job_id"])
    service.engine._job_pool.held.set()
    first = ask("wait=20")
    assert (first.status_code, first.json()["square"]) == (200, 529)
    assert first.headers["preference-applied"] == "wait"
    n_jobs = service.engine.snapshot().counts["jobs_accepted"]
    again = ask("wait=1")
    assert (again.status_code, again.content) == (200, first.content)
    assert again.headers["etag"] == first.headers["etag"]
    assert again.headers["cache-status"] == "planner; hit"
    assert service.engine.snapshot().counts["jobs_accepted"] == n_jobs  # from memory
    assert ask(None).status_code == 202  # who does not wait gets what it always got
    assert ask("wait=2, respond-async").status_code == 202


def test_who_cannot_wait_any_more_is_told_the_job(service, monkeypatch):
    from service.access.admission import overloaded

    async def refused(*given: Any) -> Any:
        raise overloaded("too many streams", 1.0)
        yield

    monkeypatch.setattr(service.engine, "watch", refused)
    service.engine._job_pool.held.clear()
    headers = {"prefer": "wait=5"}
    found = service.ask("POST", "/v1/plans:scale", json={"n": 29}, headers=headers)
    service.engine._job_pool.held.set()
    assert (found.status_code, found.json()["call"]) == (202, "scale")
