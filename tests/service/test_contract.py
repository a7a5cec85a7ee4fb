"""What the service promises: the same over both stores and both transports."""

import asyncio
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from grpc import StatusCode

from planner.specs.examples import example_content
from service.access.caller import ROLES
from service.engine import Engine
from service.handlers import calls
from service.handlers.calls import CALLS, dumps
from service.handlers.limits import RequestLimits
from service.proto.planner.v1 import planner_pb2 as pb
from service.rest.operations import FACTS
from tests.planner.command import run_here
from tests.service.conftest import STORES
from tests.service.handlers.test_calls import JOB, SCRIPT
from tests.service.inline import SETTINGS
from tests.service.transports import (
    ALL_CALLS,
    TOKENS,
    TRANSPORTS,
    Asker,
    OverGrpc,
    OverRest,
    Refused,
    Service,
)


@pytest.fixture(scope="module", params=STORES)
def database(request: pytest.FixtureRequest) -> str:
    """Return the address of an empty database; empty for a file of SQLite."""
    if request.param == "postgresql":
        return request.getfixturevalue("postgresql").new_database()
    return ""


@pytest.fixture(scope="module")
def service(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    found = Service(tmp_path_factory.mktemp("contract"), database)
    yield found
    found.close()


@pytest.fixture(params=TRANSPORTS)
def ask(request: pytest.FixtureRequest, service: Service) -> Any:
    return TRANSPORTS[request.param](service)


@pytest.fixture
def n(request: pytest.FixtureRequest) -> int:
    """Return a number that no other test asks for: nothing is in memory."""
    return zlib.crc32(request.node.name.encode()) % 1_000_000 + 1_000


def refused(ask: Any, operation: str, *given: Any, **named: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        getattr(ask, operation)(*given, **named)
    assert caught.value.problem["detail"]
    assert "Traceback" not in str(caught.value.problem)
    return caught.value


# Questions


def test_an_answer_has_its_identity_and_comes_from_memory_the_next_time(ask, n):
    fresh = ask.call("solve", {"n": n})
    assert fresh.data == {"n": n, "square": n * n, "list": []}
    assert not fresh.cached
    again = ask.call("solve", {"n": n})
    assert (again.data, again.etag, again.cached) == (fresh.data, fresh.etag, True)
    assert ask.call("solve", {"n": n + 1}).etag != fresh.etag


def test_transports_share_memory_and_identity(service, n):
    rest, grpc = OverRest(service), OverGrpc(service)
    first = rest.call("solve", {"n": n})
    second = grpc.call("solve", {"n": n}, form="JSON")
    assert (second.text, second.etag, second.cached) == (first.text, first.etag, True)
    assert grpc.call("solve", {"n": n}).data == first.data


@pytest.mark.parametrize("repeated", [False, True])
def test_who_has_the_answer_gets_none(ask, n, repeated):
    etag = ask.call("solve", {"n": n, "x": repeated}).etag
    for known in (etag, "*"):
        found = ask.call("solve", {"n": n, "x": repeated}, known=known)
        assert (found.data, found.etag) == (None, etag)
    assert ask.call("solve", {"n": n, "x": repeated}, known="other").data is not None


def test_a_deadline_is_answered_with_the_best_so_far(ask):
    slow = {"n": 1, "steps": 2_000, "step_s": 0.05}
    for deadline_s in (0.6, 3.0, 12.0):  # over gRPC a busy machine may miss a short one
        try:
            found = ask.call("solve", slow, deadline_s=deadline_s)
            break
        except Refused as late:
            if late.status is not StatusCode.DEADLINE_EXCEEDED or deadline_s > 10.0:
                raise
    assert found.data["complete"] is False
    assert found.etag.startswith("partial-")


def test_a_key_gives_the_first_answer_and_refuses_another_body(ask, n):
    key = f"key-{n}"
    first = ask.call("solve", {"n": n}, key=key)
    assert ask.call("solve", {"n": n}, key=key).data == first.data
    assert refused(ask, "call", "solve", {"n": n + 1}, key=key).seen == (422, "key-reused")
    assert refused(ask, "call", "solve", {"n": n}, key="k" * 201).seen == (400, "bad-key")


def test_what_a_call_refuses_says_why(ask):
    found = refused(ask, "call", "solve", {"refuse": "why not"})
    assert found.seen == (422, "bad-option")
    assert found.problem["detail"] == "why not"
    assert found.problem["type"].endswith(":bad-option")


def test_a_full_service_says_when_to_come_back(ask, n):
    async def crowd() -> list[Any]:
        pool: Any = ask.service.engine._pool
        pool.held.clear()
        asked = [
            asyncio.ensure_future(ask.a_call("solve", {"n": n + i}))
            for i in range(SETTINGS.per_caller + 2)
        ]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        pool.held.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    answers = ask.service(crowd())
    late = [each for each in answers if isinstance(each, Exception)]
    assert 0 < len(late) < len(answers)
    for each in late:
        assert isinstance(each, Refused)
        assert each.seen == (429, "overloaded")
        assert each.problem["retry_after_s"] > 0


def test_a_service_that_stops_answers_what_it_remembers_and_nothing_new(ask, n, monkeypatch):
    known = ask.call("solve", {"n": n})
    stops: Any = SimpleNamespace(_draining=True)  # the engine's own jobs go on, for other tests
    monkeypatch.setattr(ask.service.engine, "_check_open", lambda: Engine._check_open(stops))
    assert ask.call("solve", {"n": n}).data == known.data
    for operation, given in (("call", ("solve", {"n": n + 1})), ("submit", ("solve", {"n": n}))):
        found = refused(ask, operation, *given)
        assert found.seen == (503, "draining")
        assert found.problem["retry_after_s"] > 0


def test_a_defect_is_no_trace(ask, monkeypatch):
    async def broken(*args: Any, **named: Any) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(ask.service.engine, "from_store", broken)
    found = refused(ask, "list")
    assert found.seen == (500, "defect")
    assert "secret" not in str(found.problem)


# Jobs


def ended(ask: Any, job: dict[str, Any]) -> dict[str, Any]:
    ask.watch(job["job_id"])
    return ask.get(job["job_id"])


def test_a_job_is_accepted_watched_and_its_answer_fetched(ask, n):
    job = ask.submit("sweep", {"n": n, "items": 5})
    assert (job["owner"], job["call"], job["problem"]) == ("sue", "sweep", None)
    events = ask.watch(job["job_id"])
    assert [number for number, _ in events] == list(range(1, len(events) + 1))
    states = [data["state"] for _, data in events if "state" in data]
    assert states == ["PENDING", "RUNNING", "SUCCEEDED"]
    job = ask.get(job["job_id"])
    assert (job["state"], job["complete"], job["n_events"]) == ("SUCCEEDED", True, len(events))
    assert job["created_at"] <= job["started_at"] <= job["finished_at"]
    found = ask.result(job["job_id"])
    assert found.data == {"n": n, "square": n * n, "list": [0, 1, 2, 3, 4]}
    assert found.etag == job["etag"]
    assert ask.result(job["job_id"], known=found.etag).data is None
    assert ask.watch(job["job_id"], after=2) == events[2:]
    assert ask.watch(job["job_id"], after=len(events)) == []


def test_a_job_tells_its_progress(ask, n):
    job = ask.submit("sweep", {"n": n, "steps": 3, "step_s": 0.03})
    events = ask.watch(job["job_id"])
    told = [data for _, data in events if "phase" in data]
    assert all(each["total"] == 3 for each in told)


def test_an_answer_comes_in_pages(ask, n):
    job = ended(ask, ask.submit("sweep", {"n": n, "items": 5}))
    items: list[Any] = []
    cursor, pages = "", 0
    while pages < 9:
        page = ask.result(job["job_id"], limit=2, cursor=cursor).data
        assert ("answer" in page) == (not cursor)
        assert (page["list"], page["total"]) == ("list", 5)
        items, cursor, pages = items + page["items"], page["next_cursor"], pages + 1
        if not cursor:
            break
    assert (items, pages) == ([0, 1, 2, 3, 4], 3)
    assert refused(ask, "result", job["job_id"], limit=1001).seen == (400, "malformed")
    assert refused(ask, "result", job["job_id"], cursor="!").problem["status"] == 400


@pytest.mark.parametrize("call", ["sweep", "scale"])
def test_a_job_that_failed_leaves_the_rows_that_it_has_by_pages(ask, n, call):
    job = ended(ask, ask.submit(call, {"points": 9, "refuse_at": 5, "n": n}))
    assert job["state"] == "FAILED"
    items: list[Any] = []
    cursor, totals = "", []
    while True:
        page = ask.result(job["job_id"], limit=2, cursor=cursor, so_far=True).data
        items, cursor, totals = (
            items + page["items"],
            page["next_cursor"],
            [*totals, page["total"]],
        )
        assert (page["list"], "answer" in page) == ("rows", False)
        if not cursor:
            break
    assert [each["square"] for each in items] == [0, 1, 4, 9, 16]
    assert totals == [5, 5, 5]
    beyond = ask.result(job["job_id"], cursor="99", so_far=True).data
    assert (beyond["items"], beyond["next_cursor"]) == ([], "")
    assert refused(ask, "result", job["job_id"]).seen == (422, "bad-option")


def test_rows_so_far_are_those_of_a_job_without_its_answer(ask, n):
    done = ended(ask, ask.submit("sweep", {"points": 2, "n": n}))
    assert refused(ask, "result", done["job_id"], so_far=True).seen == (409, "has-result")
    solve = ended(ask, ask.submit("solve", {"refuse": f"no {n}"}))
    assert refused(ask, "result", solve["job_id"], so_far=True).seen == (409, "no-rows")
    assert refused(ask, "result", "none", so_far=True).seen == (404, "unknown-job")


def test_any_question_becomes_a_job_on_request_and_a_large_one_by_itself(ask, n):
    asked = ask.call("solve", {"n": n}, job=True)
    large = ask.call("scale", {"n": n})
    sweep = ask.call("sweep", {"n": n})
    for found, call in ((asked, "solve"), (large, "scale"), (sweep, "sweep")):
        assert found.job["call"] == call
        assert ended(ask, found.job)["state"] == "SUCCEEDED"
        assert ask.result(found.job["job_id"]).data["square"] == n * n


def test_a_repeated_submission_with_a_key_is_one_job(ask, n):
    first = ask.submit("sweep", {"n": n}, key=f"job-{n}")
    assert ask.submit("sweep", {"n": n}, key=f"job-{n}")["job_id"] == first["job_id"]
    seen = refused(ask, "submit", "sweep", {"n": n + 1}, key=f"job-{n}").seen
    assert seen == (422, "key-reused")


def test_a_job_that_fails_says_why(ask, n):
    job = ended(ask, ask.submit("sweep", {"refuse": f"not {n}"}))
    assert (job["state"], job["problem"]["code"]) == ("FAILED", "bad-option")
    found = refused(ask, "result", job["job_id"])
    assert found.seen == (422, "bad-option")
    assert found.problem["detail"] == f"not {n}"


def test_a_time_limit_of_a_job_gives_the_best_so_far(ask, n):
    slow = {"n": n, "steps": 500, "step_s": 0.01}
    job = ended(ask, ask.submit("sweep", slow, time_limit_s=0.1))
    assert (job["state"], job["complete"]) == ("SUCCEEDED", False)
    assert ask.result(job["job_id"]).data["complete"] is False
    most = SETTINGS.job_s + 1
    assert refused(ask, "submit", "sweep", slow, time_limit_s=most).seen == (422, "malformed")


def test_a_job_is_cancelled_and_one_that_has_ended_stays_as_it_is(ask, n):
    async def cancelled() -> Any:
        pool: Any = ask.service.engine._pool
        pool.held.clear()
        try:
            job = await ask.a_submit("sweep", {"n": n})
            with pytest.raises(Refused) as early:
                await ask.a_result(job["job_id"])
            assert early.value.problem["status"] == 409
            return await ask.a_cancel(job["job_id"])
        finally:
            pool.held.set()

    job = ask.service(cancelled())
    assert job["state"] == "CANCELLED"
    assert ask.watch(job["job_id"])[-1][1]["state"] == "CANCELLED"
    done = ended(ask, ask.submit("sweep", {"n": n + 1}))
    assert ask.cancel(done["job_id"]) == done


def test_jobs_are_listed_by_pages_and_state(ask, n):
    mine = {ended(ask, ask.submit("sweep", {"n": n + i}))["job_id"] for i in range(3)}
    seen: list[str] = []
    cursor = ""
    for _ in range(100):
        page = ask.list(state="SUCCEEDED", limit=2, cursor=cursor)
        assert len(page["jobs"]) <= 2
        assert {job["state"] for job in page["jobs"]} == {"SUCCEEDED"}
        seen += [job["job_id"] for job in page["jobs"]]
        cursor = page["next_cursor"]
        if not cursor or mine <= set(seen):
            break
    assert set(seen[:3]) == mine
    assert len(seen) == len(set(seen))
    assert refused(ask, "list", limit=1001).seen == (400, "malformed")


def test_both_transports_show_the_same_job(service, n):
    rest, grpc = OverRest(service), OverGrpc(service)
    job = ended(rest, rest.submit("sweep", {"n": n, "steps": 2, "step_s": 0.03}))
    assert grpc.get(job["job_id"]) == job
    assert grpc.watch(job["job_id"]) == rest.watch(job["job_id"])
    assert grpc.list(limit=5) == rest.list(limit=5)
    assert grpc.result(job["job_id"]).data == rest.result(job["job_id"]).data
    whole = grpc.result(job["job_id"], form="JSON")
    assert whole.text == rest.result(job["job_id"]).text
    failed = ended(grpc, grpc.submit("sweep", {"refuse": str(n)}))
    assert rest.get(failed["job_id"]) == failed
    assert rest.version() == grpc.version()


# Who may do what

CALLERS = [(role, token) for role, token in TOKENS.values()]
CALLERS += [("none", ""), ("unknown", "x" * 20)]
JOB_OPERATIONS = {
    "get": "read",
    "list": "read",
    "watch": "read",
    "result": "read",
    "cancel": "solve",
    "version": "read",
}


def outcome(ask: Asker, operation: str, *given: Any) -> tuple[int, str]:
    """Return status and code of a refusal; 200 of an answer."""
    try:
        getattr(ask, operation)(*given)
    except Refused as found:
        return found.seen
    return 200, ""


@pytest.mark.parametrize(("role", "token"), CALLERS, ids=lambda each: each[:4])
def test_every_operation_lets_in_its_roles_and_nobody_else(ask, role, token):
    operations: list[tuple[str, str, tuple[Any, ...]]] = []
    for name in ALL_CALLS:
        operations.append((CALLS[name].role, "call", (name, {FACTS.get(name, "name"): "n"})))
        operations.append(("solve", "submit", (name, {"n": 2})))
    for operation, needed in JOB_OPERATIONS.items():
        given = () if operation in ("list", "version") else ("0" * 32,)
        operations.append((needed, operation, given))
    caller = ask.who(token)
    for needed, operation, given in operations:
        seen = outcome(caller, operation, *given)
        if role not in ROLES:
            assert seen == (401, "unauthenticated"), (operation, given)
        elif ROLES.index(role) < ROLES.index(needed):
            assert seen == (403, "not-allowed"), (operation, given)
        else:
            unknown = given == ("0" * 32,)
            assert seen == ((404, "unknown-job") if unknown else (200, "")), (operation, given)


@pytest.mark.parametrize("scheme", ["Basic {}", "{}", "Bearer {}x", "Bearer", "Bearer sha256:{}"])
def test_a_token_is_sent_as_a_bearer(ask, scheme):
    header = scheme.format(TOKENS["sue"][1])

    async def asked() -> Any:
        if isinstance(ask, OverRest):
            return await ask.who("")._ask("GET", "/v1/version", {"authorization": header})
        more = {"authorization": header}
        return await ask.who("").ask("GetVersion", pb.GetVersionRequest(), more=more)

    with pytest.raises(Refused) as caught:
        ask.service(asked())
    assert caught.value.seen == (401, "unauthenticated")


def test_what_is_remembered_is_not_told_to_who_may_not_ask(ask, n):
    ask.call("solve", {"n": n})
    reader = ask.who(TOKENS["ann"][1])
    assert refused(reader, "call", "solve", {"n": n}).seen == (403, "not-allowed")


def test_jobs_are_their_owners_and_of_admins(ask, n):
    job_id = ended(ask, ask.submit("sweep", {"n": n}))["job_id"]
    tom, eve = ask.who(TOKENS["tom"][1]), ask.who(TOKENS["eve"][1])
    for operation in ("get", "watch", "result", "cancel"):
        assert refused(tom, operation, job_id).seen == (404, "unknown-job")
        getattr(eve, operation)(job_id)
    assert {job["owner"] for job in tom.list()["jobs"]} <= {"tom"}
    assert "sue" in {job["owner"] for job in eve.list()["jobs"]}


# Answers: those of the command line

RUN = {"text": SCRIPT, "name": "run.sh"}
PINS = {"recompute": "none", "sp": True, "tp": 2}  # in the order of the names, as in messages
ASKED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "solve": (
        {
            **JOB,
            "only": {"tp": [2, 4]},
            "max": {"pp": 2},
            "pins": {"zero": 1},
            "top": 2,
            "set": {"training.global_batch": 64},
            "framework": "megatron",
        },
        (
            "solve",
            *JOB.values(),
            "--only",
            "tp=2,4",
            "--max",
            "pp=2",
            "--pin",
            "zero=1",
            "--top",
            "2",
            "--set",
            "training.global_batch=64",
            "--framework",
            "megatron",
        ),
    ),
    "evaluate": (
        {**JOB, "pins": PINS},
        ("evaluate", *JOB.values(), "--pin", "recompute=none,sp=true,tp=2"),
    ),
    "place": (
        {"evaluate": {**JOB, "pins": PINS}, "hosts": "n7"},
        ("place", "result.json#1", "--hosts", "n7"),
    ),
    "trace": ({"evaluate": {**JOB, "pins": PINS}, "micro_batches": 2}, ()),
    "diff": (
        {"a": {"evaluate": {**JOB, "pins": PINS}}, "b": {"evaluate": {**JOB, "pins": {"tp": 4}}}},
        ("diff", "result.json#1", "other.json#1"),
    ),
    "check": ({"run": RUN, "cluster": "h100-x8"}, ("check", "run.sh", "h100-x8")),
    "scale": (
        {**JOB, "to": 16, "points": 2},
        ("scale", *JOB.values(), "--to", "16", "--points", "2"),
    ),
    # Text, or files: tests/service/handlers/test_calls.py.
    "explain": ({"evaluate": {**JOB, "pins": PINS}, "plan": 1, "term": "bubble"}, ()),
    "emit": (
        {
            "evaluate": {**JOB, "pins": PINS},
            "for": ["megatron"],
            "launcher": ["slurm"],
            "hosts": "n1",
        },
        (),
    ),
    "replan": (
        {
            "evaluate": {
                **JOB,
                "cluster": {"text": "pools: [{accelerator: h100, nodes: 2}]"},
                "pins": {"recompute": "full", "tp": 2},
            },
            "lost": 1,
        },
        (),
    ),
    "sweep": (
        {
            "spec": {
                "cluster": "h100-x8",
                "model": "llama3-8b",
                "search": {"max": {"cp": 1, "pp": 1}, "pin": {"tp": 2}},
                "vary": {"training.global_batch": [64, 128]},
            }
        },
        (),
    ),
    "catalogue": ({"name": "h100"}, ()),
    "rules": ({"code": "tp002"}, ()),
    "check-spec": ({"document": "h100-x8"}, ()),
}
MINE = str(example_content("model", "llama3-8b").content)
MEASURED = "{model: mine.yaml, cluster: h100-x8, layout: {tp: 2}, step_time_s: 40.5}\n"
REFERENCE = {"reference": {"text": MEASURED, "name": "run.yaml"}, "files": {"mine.yaml": MINE}}
WORDS = ("--reference", "run.yaml")
ASKED |= {
    "solve, measured": (
        {**JOB, "top": 1, "max": {"pp": 1}, **REFERENCE},
        ("solve", *JOB.values(), "--top", "1", "--max", "pp=1", *WORDS),
    ),
    "evaluate, set": (
        {**JOB, "pins": PINS, "set": {"pools.0.accelerator.memory": "96GiB"}},
        (*ASKED["evaluate"][1], "--set", "pools.0.accelerator.memory=96GiB"),
    ),
    "evaluate, measured": ({**JOB, "pins": PINS, **REFERENCE}, (*ASKED["evaluate"][1], *WORDS)),
    "scale, measured": (
        {**JOB, "to": 8, "points": 2, "pins": {"tp": 2}, **REFERENCE},
        ("scale", *JOB.values(), "--to", "8", "--points", "2", "--pin", "tp=2", *WORDS),
    ),
    "sweep, measured": ({**ASKED["sweep"][0], **REFERENCE}, ()),
}
"""Further questions, by the call and what is asked beside it."""
LARGE = ("scale", "sweep")
ANSWERED = [
    pytest.param(
        name,
        marks=[pytest.mark.service] * name.startswith((*LARGE, "replan", "solve,"))
        + [pytest.mark.slow] * (name in ("diff", "check")),
    )
    for name in ASKED
]


@pytest.fixture(scope="module")
def real(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    found = Service(tmp_path_factory.mktemp("real"), database, calls, RequestLimits())
    yield found
    found.close()


@pytest.fixture(params=TRANSPORTS)
def ask_real(request: pytest.FixtureRequest, real: Service) -> Any:
    return TRANSPORTS[request.param](real)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return what tells the JSON of a call: the command line's where it prints any."""
    folder = tmp_path_factory.mktemp("command")
    known: dict[str, str] = {}

    def printed(*words: str) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
            return run_here(*words, "--format", "json").stdout

    def told(name: str) -> str:
        request, words = ASKED[name]
        if name not in known:
            if name in ("place", "diff"):
                write(folder / "result.json", ASKED["evaluate"][0])
                write(folder / "other.json", {**JOB, "pins": {"tp": 4}})
            for file, text in (("run.sh", SCRIPT), ("run.yaml", MEASURED), ("mine.yaml", MINE)):
                (folder / file).write_text(text)
            call = call_of(name)
            known[name] = printed(*words) if words else dumps(calls.call(call, request), call)
        return known[name]

    return told


def call_of(asked: str) -> str:
    return asked.partition(",")[0]


def write(path: Path, request: dict[str, Any]) -> None:
    if not path.exists():
        path.write_text(dumps(calls.call("evaluate", request)))


@pytest.mark.parametrize("name", ANSWERED)
def test_every_answer_is_that_of_the_command_line(real, expected, name):
    request, text = ASKED[name][0], expected(name)
    name, data = call_of(name), json.loads(text)
    rest, grpc = OverRest(real), OverGrpc(real)
    if name in LARGE:
        job = rest.call(name, request).job
        assert ended(rest, job)["state"] == "SUCCEEDED"
        again = grpc.call(name, request, fields=True).job
        assert again["request_id"] == job["request_id"]
        assert rest.result(job["job_id"]).text == text
        assert grpc.result(again["job_id"], form="JSON").text == text
        assert grpc.result(again["job_id"]).data == data
        return
    first = rest.call(name, request)
    assert first.text == text
    for fields in (False, True):
        exact = grpc.call(name, request, form="JSON", fields=fields)
        assert (exact.text, exact.etag) == (text, first.etag)
        assert grpc.call(name, request, fields=fields).data == data


def test_measured_runs_are_part_of_the_identity_and_set_the_scale(expected):
    plain, measured = (json.loads(expected(name)) for name in ("evaluate", "evaluate, measured"))
    assert measured["result_id"] != plain["result_id"]
    assert measured["plans"][0]["plan_id"] == plain["plans"][0]["plan_id"]
    assert measured["plans"][0]["step_time_s"] < 0.9 * plain["plans"][0]["step_time_s"]
    request = ASKED["evaluate, measured"][0]
    ids = {
        calls.read_request("evaluate", each).request_id
        for each in (
            {**JOB, "pins": PINS},
            request,
            {**request, "reference": MEASURED.replace("40.5", "41.5")},
            {**request, "files": {"mine.yaml": MINE + "\n"}},
        )
    }
    assert len(ids) == 4


@pytest.mark.parametrize(
    ("more", "seen", "said"),
    [
        ({"reference": MEASURED}, (422, "bad-specification"), "'mine.yaml' is no example"),
        ({"reference": "../run.yaml"}, (422, "path-or-url"), "none is ever opened"),
        ({"reference": "http://x/y"}, (422, "path-or-url"), "none is ever opened"),
        ({"files": {"mine.yaml": MINE}}, (422, "malformed"), "there is no reference"),
        ({**REFERENCE, "reference": "[]"}, (422, "bad-specification"), "holds 0 runs"),
        ({**REFERENCE, "reference": MEASURED * 2}, (422, "bad-specification"), "reference:2"),
        (
            {**REFERENCE, "reference": f"[{MEASURED.strip()}]" + " " * 200_000},
            (413, "too-large"),
            "bytes of the reference",
        ),
        (
            {**REFERENCE, "files": {"mine.yaml": MINE + "#" * 200_000}},
            (413, "too-large"),
            "bytes of the files.mine.yaml",
        ),
        (
            {
                **REFERENCE,
                "reference": MEASURED.replace("layout", "set: {pools.0.nodes: 100000}, layout"),
            },
            (422, "too-much-work"),
            "devices of pool",
        ),
    ],
)
def test_measured_runs_that_are_none_are_refused(ask_real, more, seen, said):
    found = refused(ask_real, "call", "evaluate", {**JOB, "pins": PINS, **more})
    assert found.seen == seen
    assert said in found.problem["detail"]


@pytest.mark.parametrize("name", ["mine.yaml", "llama3-mine", "./mine.yaml", "../mine.yaml"])
def test_a_file_that_lies_where_the_service_runs_is_not_opened_for_a_run(
    ask_real, name, tmp_path, monkeypatch
):
    (tmp_path / "in").mkdir()
    for path in (tmp_path / "mine.yaml", tmp_path / "in/mine.yaml", tmp_path / "in/llama3-mine"):
        path.write_text(MINE)
    monkeypatch.chdir(tmp_path / "in")
    measured = MEASURED.replace("mine.yaml", name)
    found = refused(ask_real, "call", "evaluate", {**JOB, "pins": PINS, "reference": measured})
    assert found.seen == (422, "bad-specification")
    assert f"{name!r} is no example, and no file is opened" in found.problem["detail"]
