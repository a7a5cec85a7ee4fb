"""Lists, watches and webhooks of the client, against a server that is scripted."""

import json
from typing import Any

import pytest

from planner.client import ServiceError
from planner.errors import UsageError
from tests.planner.client.test_client import job, pauses, problem, talking
from tests.planner.scripted_server import Asked, Reply

__all__ = ["pauses"]


def page(jobs: list[Any], cursor: str = "", version: int = 7) -> Reply:
    return 200, {}, {"jobs": jobs, "next_cursor": cursor, "resource_version": version}


def changes(*items: tuple[int, str]) -> Reply:
    text = ""
    for version, kind in items:
        data = {"type": kind, "resource_version": version, "job": job()}
        text += f"id: {version}\nevent: {kind.lower()}\ndata: {json.dumps(data)}\n\n"
    return 200, {"Content-Type": "text/event-stream"}, text


def paths(asked: list[Asked]) -> list[str]:
    return [each.path for each in asked]


def test_jobs_are_listed_by_what_they_are() -> None:
    with talking(page([job()], "3"), page([job()])) as (server, service):
        found = list(service.jobs("RUNNING", labels="team in (a,b)", created_after=5.0, page=1))
    assert len(found) == 2
    query = "limit=1&state=RUNNING&labels=team+in+%28a%2Cb%29&created_after=5.0"
    assert paths(server.asked) == [f"/v1/jobs?{query}", f"/v1/jobs?{query}&cursor=3"]


def test_a_list_to_watch_from_has_the_version_of_its_first_page() -> None:
    with talking(page([job()], "3", 7), page([job()], "", 9)) as (_, service):
        found, version = service.list_jobs(labels="a=b")
    assert (len(found), version) == (2, 7)


def test_a_watch_goes_on_after_the_last_change_that_it_has(pauses: list[float]) -> None:
    gone = problem(503, "draining")
    with talking(changes((8, "ADDED"), (9, "MODIFIED")), gone, changes((11, "DELETED"))) as (
        server,
        service,
    ):
        watching = service.watch_jobs(7, labels="a=b")
        found = [next(watching) for _ in range(3)]
    assert [(x["type"], x["resource_version"]) for x in found] == [
        ("ADDED", 8),
        ("MODIFIED", 9),
        ("DELETED", 11),
    ]
    assert "n" not in found[0]
    assert paths(server.asked) == ["/v1/jobs:watch?labels=a%3Db"] * 3
    assert [x.headers.get("last-event-id") for x in server.asked] == ["7", "9", "9"]
    assert len(pauses) == 2


def test_a_version_that_is_too_old_is_told_at_once(pauses: list[float]) -> None:
    with (
        talking(problem(410, "history-trimmed", "list the jobs again")) as (_, service),
        pytest.raises(ServiceError, match="list the jobs again") as caught,
    ):
        next(service.watch_jobs(1))
    assert (caught.value.status, caught.value.code) == (410, "history-trimmed")
    assert pauses == []


def test_a_submission_carries_labels_and_a_webhook() -> None:
    webhook = {"url": "https://x.test/", "secret": "whsec_x"}
    with talking((202, {}, job())) as (server, service):
        service.submit("solve", {}, labels={"team": "a"}, webhook=webhook)
    sent = server.asked[0].body
    assert (sent["labels"], sent["webhook"]) == ({"team": "a"}, webhook)


def test_webhooks_are_made_listed_tried_and_deleted() -> None:
    made = {"webhook_id": "w1", "secret": "whsec_x"}
    listed = {"webhooks": [made], "next_cursor": ""}
    sent = {"deliveries": [{"delivery_id": "m1"}], "next_cursor": ""}
    with talking(
        (201, {}, made),
        (200, {}, listed),
        (200, {}, made),
        (200, {}, {"delivery_id": "m1"}),
        (200, {}, sent),
        (204, {}, b""),
    ) as (server, service):
        assert service.create_webhook("https://x.test/", states=["FAILED"], labels="a") == made
        assert list(service.webhooks()) == [made]
        assert service.webhook("w1") == made
        assert service.test_webhook("w1") == {"delivery_id": "m1"}
        assert list(service.deliveries("w1")) == [{"delivery_id": "m1"}]
        service.delete_webhook("w1")
    assert [f"{x.method} {x.path}" for x in server.asked] == [
        "POST /v1/webhooks",
        "GET /v1/webhooks?limit=100",
        "GET /v1/webhooks/w1",
        "POST /v1/webhooks/w1:test",
        "GET /v1/webhooks/w1/deliveries?limit=100",
        "DELETE /v1/webhooks/w1",
    ]


def test_a_webhook_is_not_registered_twice(pauses: list[float]) -> None:
    with (
        talking(problem(503, "draining")) as (server, service),
        pytest.raises(ServiceError) as caught,
    ):
        service.create_webhook("https://x.test/")
    assert caught.value.status == 503
    assert len(server.asked) == 1
    assert pauses == []


def test_what_is_no_json_is_said() -> None:
    with talking() as (_, service), pytest.raises(UsageError, match="no JSON"):
        service.submit("solve", {"x": {1, 2}})
