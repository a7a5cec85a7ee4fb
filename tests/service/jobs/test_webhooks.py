"""Webhooks in the store: what is to be sent is kept with the change, and sent until it arrives."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from sqlalchemy import select

from service.handlers.problems import Refusal
from service.jobs.feed_tables import deliveries
from service.jobs.queue import Jobs
from service.jobs.records import Bounds, JobTags, NewJob, NewWebhook
from service.jobs.store import Clock, Store
from service.jobs.webhooks import CLAIM_S, PER_OWNER, RETRIES_S, Delivery, Webhooks
from tests.service.clocks import Clocks
from tests.service.conftest import STORES

pytestmark = pytest.mark.parametrize("database", STORES, indirect=True)

BOUNDS = Bounds(retention_s=3_600.0, memory_s=7_200.0, webhooks_per_owner=3)
ENDS = ("SUCCEEDED", "FAILED", "CANCELLED")


@dataclass
class Service:
    """Processes of a service that share a database, and their clocks."""

    open_store: Callable[..., Store]
    clocks: Clocks = field(default_factory=Clocks)

    def process(self, bounds: Bounds = BOUNDS) -> Jobs:
        clock = Clock(self.clocks.monotonic, self.clocks.wall)
        return Jobs(self.open_store(clock=clock), bounds)

    def pass_(self, process: Jobs, seconds: float) -> None:
        """Let time go by, also by the store's clock."""
        self.clocks.pass_(seconds)
        process.store.tick()


@pytest.fixture
def service(open_store: Callable[..., Store]) -> Service:
    return Service(open_store)


def hook(owner: str = "ann", **given: Any) -> NewWebhook:
    return NewWebhook(
        owner, "https://x.test/", "whsec_c2VjcmV0", given.pop("states", ENDS), **given
    )


def submit(process: Jobs, n: int, owner: str = "ann", **tags: Any) -> str:
    job = NewJob(owner, "solve", f"{n:064d}", b"{}", tags=JobTags(**tags))
    return process.submit(job).job_id


def body(delivery: Delivery) -> dict[str, Any]:
    return json.loads(delivery.body)


def n_waiting(process: Jobs) -> int:
    rows = process.store.read(lambda c: c.execute(select(deliveries.c.state)).scalars().all())
    return list(rows).count("WAITING")


def test_the_end_of_a_job_is_sent_once_to_every_webhook_that_asks_for_it(service):
    process = service.process()
    hooks = process.webhooks
    plain, labelled = hooks.register(hook()), hooks.register(hook(selector="team=a"))
    hooks.register(hook(states=("FAILED",)))
    hooks.register(hook("bob"))
    job_id = submit(process, 1, labels={"team": "a"})
    process.cancel(job_id, "ann")
    process.cancel(job_id, "ann")
    found = hooks.claim(10)
    assert {x.webhook_id for x in found} == {plain.webhook_id, labelled.webhook_id}
    assert len({x.delivery_id for x in found}) == 2
    for each in found:
        sent = body(each)
        assert sent["type"] == "job.cancelled"
        assert sent["timestamp"].endswith("Z")
        assert sent["data"] == process.get(job_id, "ann").to_json()
        assert (each.url, each.secret, each.attempt) == ("https://x.test/", "whsec_c2VjcmV0", 1)
    submit(process, 2, labels={"team": "b"})
    assert hooks.claim(10) == []


def test_the_webhook_of_one_job_is_told_of_it_alone_and_goes_with_it(service):
    process = service.process()
    states = ("PENDING", "RUNNING", "CANCELLED")
    mine = submit(process, 1, webhook=hook(states=states))
    submit(process, 2)
    process.lease()
    process.cancel(mine, "ann")
    kinds = []
    while found := process.webhooks.claim(10):
        (delivery,) = found
        kinds.append(body(delivery)["type"])
        assert body(delivery)["data"]["job_id"] == mine
        process.webhooks.settle(delivery, 204, "")
    assert kinds == ["job.pending", "job.running", "job.cancelled"]
    ((view,), _) = process.webhooks.page("ann")
    assert view.job_id == mine
    for _ in range(2):
        service.clocks.pass_(8_000.0)
        process.clean_up()
    assert process.webhooks.page("ann") == ([], "")
    assert process.store.read(lambda c: c.execute(select(deliveries)).all()) == []


def test_a_change_that_is_undone_sends_nothing(service):
    process = service.process()
    process.webhooks.register(hook(states=("PENDING",)))

    def fails(*given: Any) -> None:
        raise ZeroDivisionError

    process._tell = fails  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        submit(process, 1)
    assert process.webhooks.claim(10) == []


def test_what_failed_is_tried_again_later_and_not_for_ever(service):
    process = service.process()
    process.webhooks.register(hook())
    process.cancel(submit(process, 1), "ann")
    waited, ids = [], set()
    for pause_s in (*RETRIES_S, None):
        (delivery,) = process.webhooks.claim(10)
        ids.add((delivery.delivery_id, delivery.body))
        state = process.webhooks.settle(delivery, 500, "the receiver has answered 500")
        assert process.webhooks.claim(10) == []
        if pause_s is None:
            assert state == "FAILED"
            break
        assert state == "WAITING"
        service.pass_(process, pause_s - 1.0)
        assert process.webhooks.claim(10) == []
        assert not process.webhooks.is_due(process.store.reckoned_s())
        service.pass_(process, 1.5)
        assert process.webhooks.is_due(process.store.reckoned_s())
        waited.append(pause_s)
    assert len(ids) == 1
    assert 3 * 86_400.0 < sum(waited) < 5 * 86_400.0
    service.pass_(process, 1e6)
    assert process.webhooks.claim(10) == []


def test_a_receiver_that_wants_no_more_is_not_asked_again(service):
    process = service.process()
    made = process.webhooks.register(hook())
    process.cancel(submit(process, 1), "ann")
    (delivery,) = process.webhooks.claim(10)
    assert process.webhooks.settle(delivery, 410, "gone", may_retry=False) == "FAILED"
    ((view,), _) = process.webhooks.log(made.webhook_id, "ann")
    assert (view.state, view.status, view.error, view.attempts) == ("FAILED", 410, "gone", 1)
    assert view.finished_at is not None


def test_what_a_process_that_died_was_sending_another_sends(service):
    first, second = service.process(), service.process()
    first.webhooks.register(hook())
    first.cancel(submit(first, 1), "ann")
    (lost,) = first.webhooks.claim(10)
    assert second.webhooks.claim(10) == []
    service.pass_(second, CLAIM_S + 1.0)
    (delivery,) = second.webhooks.claim(10)
    assert (delivery.delivery_id, delivery.body) == (lost.delivery_id, lost.body)
    assert delivery.attempt == 2
    first.webhooks.settle(lost, None, "late")  # it was not dead: what it says is too late
    second.webhooks.settle(delivery, 200, "")
    ((view,), _) = second.webhooks.log(delivery.webhook_id, None)
    assert (view.state, view.attempts, view.error) == ("DELIVERED", 2, "")


def test_no_delivery_is_claimed_by_two(service):
    processes = [service.process() for _ in range(4)]
    for i in range(3):
        processes[0].webhooks.register(hook(f"o{i}"))
    for n in range(12):
        owner = f"o{n % 3}"
        processes[0].cancel(submit(processes[0], n, owner), owner)

    def drain(process: Jobs) -> list[str]:
        found = []
        while n_waiting(process):
            for each in process.webhooks.claim(2):
                found.append(each.delivery_id)
                process.webhooks.settle(each, 200, "")
        return found

    with ThreadPoolExecutor(4) as threads:
        sent = [x for found in threads.map(drain, processes) for x in found]
    assert len(sent) == len(set(sent)) == 12


def test_an_owner_whose_receivers_are_slow_holds_up_nobody_else(service):
    process = service.process(replace(BOUNDS, webhooks_per_owner=20))
    for _ in range(10):
        process.webhooks.register(hook("ann"))
    process.webhooks.register(hook("bob"))
    process.cancel(submit(process, 1, "ann"), "ann")
    process.cancel(submit(process, 2, "bob"), "bob")
    found = process.webhooks.claim(16)
    assert sorted(x.owner for x in found) == ["ann"] * PER_OWNER + ["bob"]
    busy = {x.webhook_id for x in found}
    assert process.webhooks.claim(16, busy, {"ann": 0}) == []
    more = process.webhooks.claim(16, busy, {"ann": 1})
    assert [x.owner for x in more] == ["ann"]
    assert not busy & {x.webhook_id for x in more}


def test_more_deliveries_than_may_wait_are_dropped_and_counted(service):
    process = service.process(replace(BOUNDS, deliveries_per_owner=2))
    made = process.webhooks.register(hook())
    for n in range(4):
        process.cancel(submit(process, n), "ann")
    assert n_waiting(process) == 2
    assert process.webhooks.get(made.webhook_id, "ann").n_dropped == 2
    with pytest.raises(Refusal, match="deliveries of yours wait"):
        process.webhooks.ping(made.webhook_id, "ann")


def test_webhooks_are_their_owners_and_bounded(service):
    hooks: Webhooks = service.process().webhooks
    made = [hooks.register(hook()) for _ in range(3)]
    with pytest.raises(Refusal) as caught:
        hooks.register(hook())
    assert (caught.value.status, caught.value.code) == (429, "too-many-webhooks")
    first, cursor = hooks.page("ann", limit=2)
    rest, end = hooks.page("ann", after=int(cursor), limit=2)
    assert ([*first, *rest], end) == (made, "")
    assert hooks.page("bob") == ([], "")
    assert len(hooks.page(None)[0]) == 3
    for work in (hooks.get, hooks.remove, hooks.ping, hooks.log):
        for webhook_id in (made[0].webhook_id, "0" * 32, "\0", "x" * 99):
            with pytest.raises(Refusal) as caught:
                work(webhook_id, "bob")
            assert caught.value.code == "unknown-webhook"
    hooks.ping(made[0].webhook_id, "ann")
    assert hooks.remove(made[0].webhook_id, "ann") == made[0]
    assert hooks.claim(10) == []
    assert hooks.register(hook()).owner == "ann"


def test_a_test_is_sent_as_any_other(service):
    hooks: Webhooks = service.process().webhooks
    made = hooks.register(hook())
    view = hooks.ping(made.webhook_id, "ann")
    (delivery,) = hooks.claim(10)
    assert delivery.delivery_id == view.delivery_id
    assert body(delivery)["type"] == "webhook.test"
    assert body(delivery)["data"] == {"webhook_id": made.webhook_id}


def test_what_was_sent_is_listed_for_a_while(service):
    process = service.process()
    made = process.webhooks.register(hook())
    for n in range(3):
        process.cancel(submit(process, n), "ann")
    newest, cursor = process.webhooks.log(made.webhook_id, "ann", limit=2)
    oldest, end = process.webhooks.log(made.webhook_id, "ann", before=int(cursor), limit=2)
    assert (len(newest), len(oldest), end) == (2, 1, "")
    (delivery,) = process.webhooks.claim(1)
    process.webhooks.settle(delivery, 200, "")
    service.clocks.pass_(4_000.0)
    process.clean_up()
    left, _ = process.webhooks.log(made.webhook_id, "ann")
    assert len(left) == 2
    assert delivery.delivery_id not in {x.delivery_id for x in left}
