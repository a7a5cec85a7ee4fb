"""Webhooks over both transports, with a receiver: from the change of a job to what arrives."""

import asyncio
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from planner.client.webhooks import verified
from service.access.caller import Caller
from tests.service.inline import inline_engine
from tests.service.transports import TOKENS, Refused
from tests.service.waiting import until
from tests.service.webhooks.receiving import Receiver, receiver

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SUE = Caller("sue", "solve")


@pytest.fixture
def there() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


@pytest.fixture
def n(request: pytest.FixtureRequest) -> int:
    """Return a number that no other test asks for: nothing is in memory."""
    return zlib.crc32(request.node.name.encode()) % 1_000_000 + 1_000


def refused(ask: Any, operation: str, *given: Any, **named: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        getattr(ask, operation)(*given, **named)
    return caught.value


def arrived(ask: Any, there: Receiver, number: int) -> list[dict[str, Any]]:
    """Return what has come when there are so many, each verified."""
    ask.service(until(lambda: len(there.came) >= number))
    return [verified(SECRET, headers, body) for headers, body in there.came]


def settled(ask: Any, webhook_id: str) -> list[dict[str, Any]]:
    """Return the deliveries of a webhook when none waits any more."""

    async def all_settled() -> list[dict[str, Any]]:
        while True:
            found = (await ask.a_deliveries(webhook_id))["deliveries"]
            if found and all(each["state"] != "WAITING" for each in found):
                return found
            await asyncio.sleep(0.02)

    return ask.service(all_settled())


def test_a_webhook_is_registered_tried_told_and_deleted(ask, there, n):
    made = ask.create_webhook(url=there.url, secret=SECRET, labels=f"team=t{n}")
    assert made.pop("secret") == SECRET
    webhook_id = made["webhook_id"]
    assert made == ask.webhook(webhook_id)
    assert made["states"] == ["SUCCEEDED", "FAILED", "CANCELLED"]
    assert ask.test_webhook(webhook_id)["state"] == "WAITING"
    assert arrived(ask, there, 1)[0]["type"] == "webhook.test"

    job = ask.submit("solve", {"n": n}, labels={"team": f"t{n}"})
    ask.submit("solve", {"n": n + 1}, labels={"team": "other"})
    event = arrived(ask, there, 2)[1]
    assert event["type"] == "job.succeeded"
    assert event["data"] == ask.get(job["job_id"])

    found = settled(ask, webhook_id)
    assert [x["type"] for x in found] == ["job.succeeded", "webhook.test"]
    assert [(x["state"], x["status"], x["attempts"]) for x in found] == [("DELIVERED", 204, 1)] * 2
    assert [x["delivery_id"] for x in found] == there.ids[::-1]
    first = ask.deliveries(webhook_id, limit=1)
    second = ask.deliveries(webhook_id, limit=1, cursor=first["next_cursor"])
    assert [*first["deliveries"], *second["deliveries"]] == found

    ask.delete_webhook(webhook_id)
    for operation in ("webhook", "delete_webhook", "test_webhook", "deliveries"):
        assert refused(ask, operation, webhook_id).seen == (404, "unknown-webhook")


def test_a_job_comes_with_a_webhook_of_its_own(ask, there, n):
    states = ["PENDING", "SUCCEEDED"]
    tags = {"webhook": {"url": there.url, "secret": SECRET, "states": states}}
    job = ask.submit("solve", {"n": n}, **tags)
    events = arrived(ask, there, 2)
    assert {x["type"] for x in events} == {"job.pending", "job.succeeded"}
    assert {x["data"]["job_id"] for x in events} == {job["job_id"]}
    listed = ask.webhooks()["webhooks"]
    (own,) = [each for each in listed if each["job_id"] == job["job_id"]]
    assert "secret" not in own or not own["secret"]


@pytest.mark.parametrize(
    ("webhook", "field"),
    [
        ({"url": "https://hooks.invalid/"}, "webhook.secret"),
        ({"url": "https://elsewhere.test/", "secret": SECRET}, "webhook.url"),
        ({"url": "https://hooks.invalid/", "secret": "x"}, "webhook.secret"),
        (
            {"url": "https://hooks.invalid/", "secret": SECRET, "states": ["DONE"]},
            "webhook.states",
        ),
    ],
)
def test_a_webhook_of_a_job_that_may_not_be_is_refused_with_the_job(ask, n, webhook, field):
    found = refused(ask, "submit", "solve", {"n": n}, webhook=webhook)
    assert found.seen == (422, "malformed")
    assert found.problem["errors"][0]["field"].startswith(field)


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"url": ""}, "url"),
        ({"url": "https://elsewhere.test/"}, "url"),
        ({"url": "https://hooks.invalid/", "secret": "x"}, "secret"),
        ({"url": "https://hooks.invalid/", "labels": "a in ("}, "labels"),
        ({"url": "https://hooks.invalid/", "states": ["x"]}, "states"),
    ],
)
def test_a_webhook_that_may_not_be_is_refused(ask, wanted, field):
    found = refused(ask, "create_webhook", **wanted)
    assert found.seen == (422, "malformed")
    assert found.problem["errors"][0]["field"].startswith(field)


def test_webhooks_are_their_owners(ask):
    made = ask.create_webhook(url="https://hooks.invalid/", states=["EXPIRED"])
    assert made["secret"].startswith("whsec_")
    webhook_id, tom, eve = made["webhook_id"], *(ask.who(TOKENS[x][1]) for x in ("tom", "eve"))
    assert refused(tom, "webhook", webhook_id).seen == (404, "unknown-webhook")
    assert refused(tom, "delete_webhook", webhook_id).seen == (404, "unknown-webhook")
    assert webhook_id not in str(tom.webhooks())
    assert eve.webhook(webhook_id)["owner"] == "sue"
    ann = ask.who(TOKENS["ann"][1])
    assert refused(ann, "create_webhook", url="https://hooks.invalid/").seen == (
        403,
        "not-allowed",
    )
    ask.delete_webhook(webhook_id)


def test_what_fails_is_repeated_under_the_same_id_until_it_arrives(ask, there, monkeypatch):
    monkeypatch.setattr("service.jobs.webhooks.RETRIES_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr("service.webhooks.delivery.LOOK_S", 0.02)
    there.statuses = [500, 302]
    made = ask.create_webhook(url=there.url, secret=SECRET)
    ask.test_webhook(made["webhook_id"])
    (delivery,) = settled(ask, made["webhook_id"])
    assert (delivery["state"], delivery["attempts"], delivery["status"]) == ("DELIVERED", 3, 204)
    assert there.ids == [delivery["delivery_id"]] * 3
    assert len({body for _, body in there.came}) == 1
    ask.delete_webhook(made["webhook_id"])


def test_what_never_arrives_is_given_up(ask, there, monkeypatch):
    monkeypatch.setattr("service.jobs.webhooks.RETRIES_S", (0.0,))
    there.statuses = [500, 500, 500]
    made = ask.create_webhook(url=there.url, secret=SECRET)
    ask.test_webhook(made["webhook_id"])
    (delivery,) = settled(ask, made["webhook_id"])
    assert (delivery["state"], delivery["attempts"], delivery["status"]) == ("FAILED", 2, 500)
    assert "answered 500" in delivery["error"]
    ask.delete_webhook(made["webhook_id"])


def test_what_was_not_sent_when_a_service_stopped_the_next_one_sends(tmp_path, there):
    async def stopped_before_it_was_sent() -> str:
        async with inline_engine(tmp_path) as engine:
            assert engine._deliveries._loop is not None
            engine._deliveries._loop.cancel()  # as if it had been killed just then
            tags = {"webhook": {"url": there.url, "secret": SECRET}}
            job = await engine.submit("solve", {"n": 1}, SUE, tags=tags)
            async for _ in engine.watch(job.job_id, SUE):
                pass
            return job.job_id

    async def started_again() -> None:
        async with inline_engine(tmp_path):
            await until(lambda: there.came)

    job_id = asyncio.run(stopped_before_it_was_sent())
    assert there.came == []
    asyncio.run(started_again())
    ((headers, body),) = there.came
    assert verified(SECRET, headers, body)["data"]["job_id"] == job_id


def test_a_receiver_that_does_not_answer_holds_up_no_other(tmp_path, there):
    async def both() -> None:
        async with inline_engine(tmp_path) as engine:
            with receiver() as slow:
                slow.held.clear()
                for owner, url in (("ann", slow.url), ("bob", there.url)):
                    caller = Caller(owner, "solve")
                    tags = {"webhook": {"url": url, "secret": SECRET}}
                    await engine.submit("solve", {"n": 2}, caller, tags=tags)
                    await until(lambda url=url: (slow if url == slow.url else there).came)
                slow.held.set()

    asyncio.run(both())


def test_a_service_without_hosts_sends_none_and_says_so(tmp_path, monkeypatch):
    from dataclasses import replace

    from service.feeds.webhooks import WebhookDesk
    from service.handlers.problems import Refusal
    from tests.service import inline

    monkeypatch.setattr(
        inline, "OPTIONS", replace(inline.OPTIONS, webhook_hosts=(), webhook_networks=())
    )

    async def asked() -> tuple[int, str]:
        async with inline_engine(tmp_path) as engine:
            with pytest.raises(Refusal) as caught:
                await WebhookDesk(engine).register({"url": "https://hooks.invalid/"}, SUE)
            assert engine._deliveries._loop is None
            return caught.value.status, caught.value.code

    assert asyncio.run(asked()) == (403, "no-webhooks")
