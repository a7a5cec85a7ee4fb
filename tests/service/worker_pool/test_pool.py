"""Pages of answers, and jobs on Ray."""

import asyncio
import json
import threading

import pytest

from service.access.caller import Caller
from service.engine import Engine
from service.handlers.calls import answer, dumps, read_request
from service.handlers.limits import RequestLimits
from service.handlers.running_call import RunningCall
from service.jobs.store import Store
from service.settings.options import Options
from service.worker_pool.pool import Lagging, Task, WorkerDied, WorkerPool, WorkOutcome, cut_page
from tests.service.waiting import PATIENCE_S

SOLVE = {"model": "llama3-8b", "cluster": "h100-x8"}
SWEEP = {
    "spec": {
        "model": "llama3-8b",
        "cluster": "h100-x8",
        "vary": {"training.global_batch": [64, 128], "pools.0.nodes": [1, 2]},
    }
}


def test_a_page_is_a_part_of_the_list_and_the_first_holds_the_rest():
    whole = {"plans": [{"rank": n} for n in range(5)], "rejected": list(range(9)), "n": 3}
    payload = json.dumps(whole).encode()
    first = json.loads(cut_page(payload, 0, 2))
    assert first["answer"] == {"rejected": whole["rejected"], "n": 3}
    assert (first["list"], first["total"], first["next_cursor"]) == ("plans", 5, "2")
    last = json.loads(cut_page(payload, 4, 2))
    assert last == {"list": "plans", "total": 5, "items": [{"rank": 4}], "next_cursor": ""}
    assert json.loads(cut_page(payload, 7, 2))["items"] == []


def test_an_answer_without_a_list_is_one_page():
    page = json.loads(cut_page(b'{"text": "x"}', 0, 10))
    assert page == {
        "list": "",
        "total": 0,
        "items": [],
        "next_cursor": "",
        "answer": {"text": "x"},
    }


def test_the_longest_list_is_the_one_where_no_name_is_known():
    assert json.loads(cut_page(b'{"a": [1], "b": [1, 2]}', 0, 1))["list"] == "b"


@pytest.mark.parametrize("problem", [WorkerDied("gone"), Lagging(2.0)])
def test_problems_of_workers_come_through_from_other_processes(problem):
    import pickle

    assert pickle.loads(pickle.dumps(problem)).to_json() == problem.to_json()


def test_what_orders_the_rows_of_an_answer_is_part_of_its_identity():
    vary = SWEEP["spec"]["vary"]
    turned = {"spec": {**SWEEP["spec"], "vary": dict(reversed(vary.items()))}}
    first, second = read_request("sweep", SWEEP), read_request("sweep", turned)
    assert first.request_id != second.request_id


@pytest.mark.ray
@pytest.mark.parametrize(
    ("name", "request_"),
    [("solve", {"model": "llama3-8b", "cluster": "h100-x8"}), ("sweep", SWEEP)],
)
def test_on_ray_the_bytes_are_the_same(name, request_):
    asked = read_request(name, request_)
    told: list[int] = []
    on_ray = RunningCall(executor="ray", progress=lambda data: told.append(data["done"]))
    assert dumps(answer(asked, on_ray), name) == dumps(answer(asked, RunningCall()), name)
    assert told


@pytest.mark.ray
def test_a_service_runs_its_jobs_on_ray_when_told_to(tmp_path):
    async def run() -> bytes:
        store = Store(f"sqlite:///{tmp_path}/service.sqlite")
        options = Options(workers=1, job_workers=1, executor="ray", drain_s=1.0)
        engine, caller = Engine(store, RequestLimits(), options), Caller("ann")
        await engine.start()
        try:
            job = await engine.submit("sweep", SWEEP, caller)
            async for _ in engine.watch(job.job_id, caller):
                pass
            return (await engine.result(job.job_id, caller)).payload
        finally:
            await engine.close()

    wanted = dumps(answer(read_request("sweep", SWEEP), RunningCall()), "sweep")
    assert asyncio.run(asyncio.wait_for(run(), 2 * PATIENCE_S)).decode() == wanted


def test_a_worker_takes_no_task_before_the_last_has_left_it_however_often_that_was_cancelled():
    class Deaf:
        """A worker that ends when it is killed, and only some time after that."""

        is_spent = False

        def __init__(self) -> None:
            self.killed, self.over = threading.Event(), threading.Event()
            self.n_inside = 0

        def run(self, *given: object) -> WorkOutcome:
            self.n_inside += 1
            self.killed.wait(PATIENCE_S)
            self.over.wait(PATIENCE_S)
            self.n_inside -= 1
            return WorkOutcome("", False, b"", True, 0.0)

        def has_ended(self) -> bool:
            return False

        def stop(self) -> None: ...

        def kill(self) -> None:
            self.killed.set()

    async def run() -> None:
        pool, worker = WorkerPool(1), Deaf()
        pool._idle.put_nowait(worker)  # type: ignore[arg-type]  # stands for one
        task = asyncio.ensure_future(pool.run(Task("read", "x", b""), 5.0))
        while not worker.n_inside:
            await asyncio.sleep(0.001)
        for _ in range(3):  # by its owner, by a lease that was lost, by a service that stops
            task.cancel()
            await asyncio.sleep(0.001)
        assert worker.killed.is_set()
        assert pool._idle.empty()
        worker.over.set()
        assert await pool._idle.get() is worker
        assert not worker.n_inside
        with pytest.raises(asyncio.CancelledError):
            await task
        pool._threads.shutdown()

    asyncio.run(run())
