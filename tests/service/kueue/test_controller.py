"""The controller's threads: what it watches, what it does when the server is not there."""

from collections.abc import Callable, Iterator

import pytest

from service.kueue.controller import Controller
from service.kueue.reconciler import Reconciler
from service.kueue.work_queue import WorkQueue
from tests.service.kueue.kueue_cluster import CHECK, NOTES, OURS, OncePlanner, template
from tests.service.waiting import PATIENCE_S, wait_until
from tools.kubernetes_api.kueue import CHECKS, Kueue
from tools.kubernetes_api.server import ApiServer
from tools.kubernetes_api.store import Refused


@pytest.fixture
def controller(reconciler: Reconciler) -> Iterator[Controller]:
    found = Controller(reconciler)
    found.start()
    try:
        yield found
    finally:
        found.stop()


def wait(kueue: Kueue, is_so: Callable[[], bool]) -> None:
    assert kueue.store.wait(is_so, PATIENCE_S)


def state(kueue: Kueue, name: str) -> str:
    return str(kueue.check(name, CHECK).get("state"))


def is_active(kueue: Kueue, check: str) -> bool:
    status = kueue.store.get(CHECKS, "", check).get("status") or {}
    return any(x["status"] == "True" for x in status.get("conditions") or ())


def test_workloads_from_before_and_after_its_start_are_decided(
    kueue: Kueue, reconciler: Reconciler
) -> None:
    for name in ("before", "after"):
        kueue.submit(name, template(NOTES), 2)
    kueue.reserve("before", OURS)
    controller = Controller(reconciler)
    controller.start()
    try:
        assert controller.wait_listed(PATIENCE_S)
        kueue.reserve("after", OURS)
        wait(kueue, lambda: is_active(kueue, CHECK))
        wait(kueue, lambda: [state(kueue, x) for x in ("before", "after")] == ["Ready"] * 2)
    finally:
        controller.stop()
    assert not is_active(kueue, "other")


def test_a_watch_that_is_too_old_is_begun_anew(
    kueue: Kueue, controller: Controller, served: ApiServer
) -> None:
    assert controller.wait_listed(PATIENCE_S)
    lists = [path for method, path in served.requests if "limit=" in path]
    with kueue.store.changed:  # the watch sees neither of the two
        kueue.submit("train", template(NOTES), 2)
        kueue.reserve("train", OURS)
        kueue.store.forget_events()
    wait(kueue, lambda: state(kueue, "train") == "Ready")
    again = [path for method, path in served.requests if "limit=" in path]
    assert len(again) > len(lists)


def test_a_server_that_fails_is_asked_again(
    kueue: Kueue, reconciler: Reconciler, served: ApiServer
) -> None:
    left = {"list": 2, "patch": 2}

    def fail(method: str, path: str) -> None:
        name = "patch" if method == "PATCH" else "list" if "limit=" in path else ""
        if left.get(name):
            left[name] -= 1
            raise Refused(503, "ServiceUnavailable", "the server is starting")

    served.before.append(fail)
    kueue.submit("train", template(NOTES), 2)
    kueue.reserve("train", OURS)
    controller = Controller(reconciler)
    controller.start()
    try:
        wait(kueue, lambda: state(kueue, "train") == "Ready")
    finally:
        controller.stop()
    assert left == {"list": 0, "patch": 0}


def test_a_check_that_comes_later_is_answered(kueue: Kueue, controller: Controller) -> None:
    from tools.kubernetes_api.kueue import Reservation

    kueue.submit("train", template(NOTES), 2)
    kueue.reserve("train", Reservation(["late"]))
    assert controller.wait_listed(PATIENCE_S)
    spec = {"controllerName": "planner/kueue"}
    kueue.store.create(CHECKS, {"metadata": {"name": "late"}, "spec": spec})
    wait(kueue, lambda: kueue.check("train", "late")["state"] == "Ready")


def test_two_controllers_decide_each_workload_once(
    kueue: Kueue, reconciler: Reconciler, served: ApiServer
) -> None:
    controllers = [Controller(reconciler), Controller(reconciler)]
    for each in controllers:
        each.start()
    try:
        for i in range(5):
            kueue.submit(f"job-{i}", template(NOTES), 2)
            kueue.reserve(f"job-{i}", OURS)
        wait(kueue, lambda: all(state(kueue, f"job-{i}") == "Ready" for i in range(5)))
        for i in range(5):
            assert kueue.advance(f"job-{i}") == "admitted"
    finally:
        for each in controllers:
            each.stop()


def test_a_defect_stops_no_worker(
    kueue: Kueue, controller: Controller, planner: OncePlanner, caplog: pytest.LogCaptureFixture
) -> None:
    planner.fault = ZeroDivisionError("a defect")
    kueue.submit("train", template(NOTES), 2)
    kueue.reserve("train", OURS)
    kueue.submit("quiet", template({}), 2)

    def is_logged() -> bool:
        return any("not decided" in record.message for record in caplog.records)

    wait_until(is_logged)
    kueue.reserve("quiet", OURS)
    wait(kueue, lambda: state(kueue, "quiet") == "Ready")
    assert state(kueue, "train") == "Pending"
    planner.fault = None
    wait(kueue, lambda: state(kueue, "train") == "Ready")


def test_it_stops_while_it_watches(controller: Controller) -> None:
    assert controller.wait_listed(PATIENCE_S)
    controller.stop()
    assert not any(thread.is_alive() for thread in controller._threads)


# The queue


def test_a_key_is_in_the_hands_of_one_worker_and_done_again_where_it_changed() -> None:
    queue = WorkQueue()
    a, b = ("n", "a"), ("n", "b")
    for key in (a, b, a):
        queue.add(key)
    assert queue.take() == a
    queue.add(a)
    assert queue.take() == b
    queue.done(b)
    queue.done(a)
    assert queue.take() == a
    queue.done(a)
    queue.end()
    assert queue.take() is None


def test_pauses_double_until_it_succeeds() -> None:
    queue = WorkQueue()
    key = ("n", "a")
    pauses = []
    for _ in range(4):
        queue.add(key)
        assert queue.take() == key
        pauses.append(queue.failed(key, 100.0, 350.0))
    assert pauses == [100.0, 200.0, 350.0, 350.0]
    queue.add(key)
    assert queue.take() == key
    queue.done(key)
    queue.add(key)
    queue.take()
    assert queue.failed(key, 100.0, 350.0) == 100.0


def test_a_key_for_later_comes_when_its_time_is() -> None:
    queue = WorkQueue()
    queue.add(("n", "later"), 0.05)
    queue.add(("n", "now"))
    assert queue.take() == ("n", "now")
    assert queue.take() == ("n", "later")
