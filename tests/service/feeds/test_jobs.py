"""Jobs are listed by what they are and watched from there on, the same over both transports."""

import asyncio
import contextlib
import math
import zlib
from typing import Any

import pytest

from service.access.caller import Caller
from service.feeds.jobs import FeedEvent, JobFeed, WatchTerms, job_filter, moment_of, watch_terms
from service.handlers.problems import Refusal
from service.jobs.records import State
from tests.service.transports import TOKENS, Refused
from tests.service.waiting import until


@pytest.fixture
def n(request: pytest.FixtureRequest) -> int:
    """Return a number that no other test asks for: nothing is in memory."""
    return zlib.crc32(request.node.name.encode()) % 1_000_000 + 1_000


@pytest.fixture
def team(n: int) -> str:
    """Return a label that no other test gives."""
    return f"t{n}"


def refused(ask: Any, operation: str, *given: Any, **named: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        getattr(ask, operation)(*given, **named)
    return caught.value


def ended(ask: Any, n: int, **tags: Any) -> dict[str, Any]:
    """Submit a job and return it when it has ended."""
    job = ask.submit("solve", {"n": n}, **tags)
    ask.watch(job["job_id"])
    return ask.get(job["job_id"])


def ids(page: dict[str, Any]) -> list[str]:
    return [job["job_id"] for job in page["jobs"]]


# Lists


def test_jobs_are_listed_by_their_labels(ask, n, team):
    a = ended(ask, n, labels={"team": team, "example.com/stage": "a"})
    b = ended(ask, n + 1, labels={"team": team, "example.com/stage": "b"})
    c = ended(ask, n + 2, labels={"team": team})
    assert a["labels"] == {"example.com/stage": "a", "team": team}
    for selector, wanted in (
        (f"team={team}", [c, b, a]),
        (f"team=={team},example.com/stage=b", [b]),
        (f"team={team},example.com/stage!=b", [c, a]),
        (f"team in (x, {team}),example.com/stage in (a,b)", [b, a]),
        (f"team={team},example.com/stage notin (a)", [c, b]),
        (f"team={team},example.com/stage", [b, a]),
        (f"team={team}, !example.com/stage", [c]),
        ("team=nobody", []),
    ):
        assert ids(ask.list(labels=selector)) == [each["job_id"] for each in wanted], selector


@pytest.mark.parametrize("call", ["nope", "x" * 41, "Solve", "page-solve"])
def test_what_is_the_name_of_no_call_is_refused_with_those_that_are(ask, call):
    for operation in ("list", "watch_jobs"):
        found = refused(ask, operation, call=call)
        assert found.seen == (400, "malformed")
        assert found.problem["errors"][0]["field"] == "call"
        assert all(name in found.problem["detail"] for name in ask.service.engine.call_names)


def test_a_query_with_an_empty_call_or_state_is_refused():
    for read in (job_filter, lambda query: watch_terms(query, "")):
        for name in ("call", "state"):
            with pytest.raises(Refusal) as found:
                read({name: ""})
            assert (found.value.status, found.value.errors[0].field) == (400, name)


def test_a_job_is_told_with_the_version_that_a_watch_goes_on_from(ask, n, team):
    """Also the job of a call, and one that was cancelled."""
    ask.service.engine._job_pool.held.clear()
    try:
        job = ask.submit("solve", {"n": n}, labels={"team": team})
        assert job["resource_version"] == ask.get(job["job_id"])["resource_version"] > 0
        start = job["resource_version"]
        cancelled = ask.cancel(job["job_id"])
    finally:
        ask.service.engine._job_pool.held.set()
    assert cancelled["resource_version"] > start
    events = ask.watch_jobs(resource_version=start, labels=f"team={team}", timeout_s=0)
    assert [x["job"]["state"] for x in events if x["job"]][-1] == "CANCELLED"
    assert cancelled["resource_version"] in [x["resource_version"] for x in events]


def test_jobs_are_listed_by_call_time_and_page(ask, n, team):
    made = [ended(ask, n + i, labels={"team": team}) for i in range(3)]
    labels = f"team={team}"
    assert ids(ask.list(labels=labels, call="solve")) == [x["job_id"] for x in made[::-1]]
    assert ids(ask.list(labels=labels, call="sweep")) == []
    assert ids(ask.list(labels=labels, created_after=made[0]["created_at"] + 1e5)) == []
    before = ask.list(labels=labels, created_before=made[2]["created_at"])
    assert ids(before) == [x["job_id"] for x in made[1::-1]]
    first = ask.list(labels=labels, limit=2)
    second = ask.list(labels=labels, limit=2, cursor=first["next_cursor"])
    assert ids(first) + ids(second) == [x["job_id"] for x in made[::-1]]
    assert second["next_cursor"] == ""
    assert first["resource_version"] >= made[2]["resource_version"]


@pytest.mark.parametrize(
    "labels",
    [
        {"a b": "c"},
        {"a": "x" * 64},
        {"a": "-"},
        {"/a": "b"},
        {"A.example/a": "b"},
        {f"l{i}": "" for i in range(33)},
    ],
)
def test_labels_that_are_none_are_refused_by_name(ask, n, labels):
    found = refused(ask, "submit", "solve", {"n": n}, labels=labels)
    assert found.seen == (422, "malformed")
    assert found.problem["errors"][0]["field"].startswith("labels")


def test_the_job_of_a_call_has_the_labels_of_its_header(ask, n, team):
    asked = ask.call("solve", {"n": n}, job=True, labels=f"team={team}, example.com/stage=a")
    large = ask.call("scale", {"n": n + 1}, labels=f"team={team},x=")
    assert asked.job["labels"] == {"example.com/stage": "a", "team": team}
    assert large.job["labels"] == {"team": team, "x": ""}
    jobs = [large.job["job_id"], asked.job["job_id"]]
    assert ids(ask.list(labels=f"team={team}")) == jobs
    for labels, seen in (
        ("team", (400, "malformed")),
        ("a=b,a=c", (400, "malformed")),
        ("a b=c", (422, "malformed")),
    ):
        found = refused(ask, "call", "scale", {"n": n + 2}, labels=labels)
        assert found.seen == seen
        assert found.problem["errors"][0]["field"].startswith("Planner-Labels")


def test_a_selector_that_is_none_is_refused(ask):
    for operation in ("list", "watch_jobs"):
        found = refused(ask, operation, labels="team in (a")
        assert found.seen == (400, "malformed")
        assert found.problem["errors"][0]["field"] == "labels"


def test_the_same_key_with_other_labels_is_another_request(ask, n):
    key = f"labels-{ask.name}-{n}"
    first = ask.submit("solve", {"n": n}, key=key, labels={"a": "b"})
    assert ask.submit("solve", {"n": n}, key=key, labels={"a": "b"})["job_id"] == first["job_id"]
    found = refused(ask, "submit", "solve", {"n": n}, key=key, labels={"a": "c"})
    assert found.seen == (422, "key-reused")


# Watches


def test_who_lists_and_watches_from_there_misses_nothing(ask, n, team):
    before = ended(ask, n, labels={"team": team})
    listed = ask.list(labels=f"team={team}")
    assert ids(listed) == [before["job_id"]]
    job = ended(ask, n + 1, labels={"team": team})
    events = ask.watch_jobs(
        resource_version=listed["resource_version"], labels=f"team={team}", timeout_s=0
    )
    changes = [each for each in events if each["type"] != "BOOKMARK"]
    assert [(x["type"], x["job"]["job_id"], x["job"]["state"]) for x in changes] == [
        ("ADDED", job["job_id"], "PENDING"),
        ("MODIFIED", job["job_id"], "RUNNING"),
        ("MODIFIED", job["job_id"], "SUCCEEDED"),
    ]
    versions = [each["resource_version"] for each in events]
    assert versions == sorted(versions)
    assert changes[-1]["job"] == ask.get(job["job_id"])
    assert changes[-1]["resource_version"] == changes[-1]["job"]["resource_version"]
    rest = ask.watch_jobs(
        resource_version=changes[0]["resource_version"], labels=f"team={team}", timeout_s=0
    )
    assert [x["job"] for x in rest if x["job"]] == [x["job"] for x in changes[1:]]


def test_a_watch_from_now_on_begins_with_a_bookmark(ask, n):
    ended(ask, n)
    (event,) = ask.watch_jobs(timeout_s=0)
    assert (event["type"], event["job"]) == ("BOOKMARK", None)
    assert event["resource_version"] == ask.list(limit=1)["resource_version"]


def test_a_version_of_another_store_is_told_to_list_again(ask):
    newest = ask.list(limit=1)["resource_version"]
    for version in (1, newest + 1_000_000):
        found = refused(ask, "watch_jobs", resource_version=version, timeout_s=0)
        assert found.seen == (410, "history-trimmed")
        assert "list the jobs again" in found.problem["detail"]


def test_only_ones_own_jobs_are_watched(ask, n):
    start = ask.list(limit=1)["resource_version"]
    tom = ask.who(TOKENS["tom"][1])
    his, mine = ended(tom, n), ended(ask, n + 1)

    def seen(who: Any) -> set[str]:
        events = who.watch_jobs(resource_version=start, timeout_s=0)
        return {x["job"]["job_id"] for x in events if x["job"]} & {his["job_id"], mine["job_id"]}

    assert seen(ask) == {mine["job_id"]}
    assert seen(tom) == {his["job_id"]}
    assert seen(ask.who(TOKENS["eve"][1])) == {his["job_id"], mine["job_id"]}


def test_a_watch_of_one_call_is_told_of_no_other(ask, n):
    start = ask.list(limit=1)["resource_version"]
    ended(ask, n)
    assert [x["type"] for x in ask.watch_jobs(resource_version=start, call="sweep", timeout_s=0)]
    events = ask.watch_jobs(resource_version=start, call="sweep", timeout_s=0)
    assert {x["type"] for x in events} == {"BOOKMARK"}
    events = ask.watch_jobs(resource_version=start, call="solve", timeout_s=0)
    assert {x["type"] for x in events if x["job"]} == {"ADDED", "MODIFIED"}


def test_a_watch_of_one_state_is_told_of_changes_into_it(ask, n):
    start = ask.list(limit=1)["resource_version"]
    job = ended(ask, n)
    for state in ("PENDING", "RUNNING", "SUCCEEDED", "FAILED"):
        events = ask.watch_jobs(resource_version=start, state=state, timeout_s=0)
        own = [x for x in events if x["job"] and x["job"]["job_id"] == job["job_id"]]
        assert [x["job"]["state"] for x in own] == [state] * (state != "FAILED")
        assert not own or own[-1]["type"] == ("ADDED" if state == "PENDING" else "MODIFIED")


def test_changes_come_to_a_watcher_that_waits(service, n):
    """A watcher of the same process hears at once; the stream is one for several jobs."""
    caller = Caller("sue", "solve")

    async def watched() -> list[FeedEvent]:
        feed, found = JobFeed(service.engine), []
        events = feed.watch(caller, WatchTerms(call="solve"))
        async with contextlib.aclosing(events):  # type: ignore[type-var]  # a generator
            assert (await anext(events)).kind == "BOOKMARK"
            for i in range(2):
                await service.engine.submit("solve", {"n": n + i}, caller)
            while len([e for e in found if e.job and e.job["state"] == "SUCCEEDED"]) < 2:
                found.append(await anext(events))
        return found

    found = [each for each in service(watched()) if each.job]
    assert len(found) == 6
    assert service.engine._n_watchers.total() == 0


def test_a_watcher_that_is_refused_or_leaves_takes_no_place(service):
    async def crowd() -> list[str]:
        caller, told = Caller("sue", "solve"), []
        feeds = [JobFeed(service.engine).watch(caller, WatchTerms()) for _ in range(4)]
        for each in feeds:
            await anext(each)
        with pytest.raises(Refusal) as caught:
            await anext(JobFeed(service.engine).watch(caller, WatchTerms()))
        told.append(caught.value.code)
        for each in feeds:
            await each.aclose()
        with pytest.raises(Refusal) as caught:
            await anext(JobFeed(service.engine).watch(caller, WatchTerms(1)))
        return [*told, caught.value.code]

    assert service(crowd()) == ["overloaded", "history-trimmed"]
    assert service.engine._n_watchers.total() == 0


def test_a_bookmark_comes_where_nothing_changes_for_a_while(service, monkeypatch):
    monkeypatch.setattr("service.feeds.jobs.BOOKMARK_S", 0.05)

    async def watched() -> list[str]:
        events = JobFeed(service.engine).watch(Caller("nobody", "read"), WatchTerms())
        async with contextlib.aclosing(events):  # type: ignore[type-var]  # a generator
            return [(await anext(events)).kind for _ in range(3)]

    assert service(watched()) == ["BOOKMARK"] * 3


def test_a_watch_ends_when_its_time_is_over_and_says_how_far_it_has_come(service):
    async def watched() -> list[str]:
        terms = WatchTerms(timeout_s=0.1)
        return [e.kind async for e in JobFeed(service.engine).watch(Caller("x", "read"), terms)]

    assert set(service(watched())) == {"BOOKMARK"}


def test_what_comes_back_as_browsers_do_goes_on_after_the_last_event(service, n):
    from tests.service.transports import OverRest

    ask = OverRest(service)
    start = ask.list(limit=1)["resource_version"]
    job = ended(ask, n)
    events = ask.watch_jobs(resource_version=start, timeout_s=0)
    own = [x for x in events if x["job"] and x["job"]["job_id"] == job["job_id"]]

    async def again() -> list[tuple[int, dict[str, Any]]]:
        headers = {"last-event-id": str(own[-2]["resource_version"])}
        params = {"resource_version": start, "timeout_s": 0}
        return await ask._events("/v1/jobs:watch", headers, params=params)

    found = service(again())
    assert found[0] == (own[-1]["resource_version"], own[-1])


def test_a_service_that_stops_says_so_to_its_watchers(tmp_path):
    from tests.service.inline import inline_engine

    async def stopped() -> str:
        async with inline_engine(tmp_path) as engine:
            events = JobFeed(engine).watch(Caller("x", "read"), WatchTerms())
            await anext(events)
            waiting = asyncio.ensure_future(anext(events))
            engine._draining = True
            await until(waiting.done)
            error = waiting.exception()
            engine._draining = False
            return error.code if isinstance(error, Refusal) else repr(error)

    assert asyncio.run(stopped()) == "draining"


# What is read


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", None),
        ("1764374400", 1764374400.0),
        ("2025-11-29T00:00:00Z", 1764374400.0),
        ("2025-11-29T01:00:00+01:00", 1764374400.0),
    ],
)
def test_times_of_day_are_read(text, seconds):
    assert moment_of(text, "created_after") == seconds


@pytest.mark.parametrize("text", ["x", "2025-11-29T00:00:00", "nan", "inf", "2025"[:0] + " "])
def test_times_of_day_without_a_zone_are_refused(text):
    with pytest.raises(Refusal, match="created_after"):
        moment_of(text, "created_after")


@pytest.mark.parametrize(
    "query",
    [
        {"resource_version": "-1"},
        {"resource_version": "1.0"},
        {"resource_version": str(2**53 + 1)},
        {"resource_version": "٣"},
        {"timeout_s": "x"},
        {"timeout_s": "-1"},
        {"timeout_s": "nan"},
        {"timeout_s": "1e9"},
        {"labels": "("},
        {"state": "done"},
    ],
)
def test_what_makes_no_sense_of_a_watch_is_refused(query):
    with pytest.raises(Refusal) as caught:
        watch_terms(query)
    assert caught.value.errors[0].field in query


def test_a_version_that_is_none_is_refused_with_where_there_is_one():
    with pytest.raises(Refusal, match="'x' is the version of no list: pass the number"):
        watch_terms({"resource_version": "x"})


def test_terms_of_a_watch_are_read():
    assert watch_terms({}) == WatchTerms()
    query = {"resource_version": "7", "labels": "a=b", "call": "solve", "timeout_s": "2.5"}
    assert watch_terms(query) == WatchTerms(7, "a=b", "solve", 2.5)
    assert watch_terms(query, "9").after == 9
    assert watch_terms({"state": "FAILED"}).state is State.FAILED
    assert math.isfinite(WatchTerms().after)
