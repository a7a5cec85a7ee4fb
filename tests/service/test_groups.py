"""Groups of callers over both transports: usage, quotas, priorities, metrics, the audit log."""

import asyncio
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from service.access.caller import Caller
from service.engine import Engine
from service.handlers.problems import Refusal
from service.jobs.records import State
from service.proto.planner.v1 import planner_pb2 as pb
from service.rpc.convert import to_dict
from service.telemetry.audit import AuditLog
from service.tenants.groups import Group, Members, Priority, Quotas, Tenants
from tests.service.inline import inline_engine
from tests.service.transports import TOKENS, TRANSPORTS, OverRest, Refused, Service
from tests.service.waiting import PATIENCE_S

GROUPS = (
    Group(
        "schedulers",
        weight=4.0,
        priority=Priority.URGENT,
        highest_priority=Priority.URGENT,
        members=Members(frozenset({"tom", "eve"})),
        quotas=Quotas(cpu_s=1e6, window_s=3_600.0),
    ),
    Group(
        "capacity",
        priority=Priority.BACKGROUND,
        highest_priority=Priority.NORMAL,
        members=Members(frozenset({"sue"})),
        quotas=Quotas(queued_jobs=2, stored_results=50),
    ),
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    found = Service(tmp_path_factory.mktemp("groups"), tenants=Tenants(GROUPS))
    yield found
    found.close()


@pytest.fixture(params=TRANSPORTS)
def ask(request: pytest.FixtureRequest, service: Service) -> Any:
    return TRANSPORTS[request.param](service)


def usage(ask: Any, name: str, group: str = "") -> dict[str, Any]:
    async def asked() -> Any:
        who = ask.who(TOKENS[name][1])
        if isinstance(ask, OverRest):
            params = {"group": group} if group else {}
            return (await who._ask("GET", "/v1/usage", params=params)).json()
        return to_dict((await who.ask("GetUsage", pb.GetUsageRequest(group=group)))[0])

    return ask.service(asked())


def refused(work: Callable[[], Any]) -> Refused:
    with pytest.raises(Refused) as caught:
        work()
    return caught.value


def test_usage_says_what_ones_group_may_use_and_has_used(ask):
    found = usage(ask, "sue")
    assert (found["group"], found["weight"]) == ("capacity", 1.0)
    assert (found["priority"], found["highest_priority"]) == ("background", "normal")
    quotas = {each["quota"]: each for each in found["quotas"]}
    assert list(quotas) == [
        "running_jobs",
        "queued_jobs",
        "cpu_s",
        "stored_results",
        "stored_bytes",
    ]
    assert (quotas["queued_jobs"]["limit"], quotas["running_jobs"]["limit"]) == (2, None)
    assert quotas["queued_jobs"]["frees_in_s"] is None


def test_another_groups_usage_is_for_admins(ask):
    assert usage(ask, "eve", "capacity")["group"] == "capacity"
    assert usage(ask, "sue", "capacity")["group"] == "capacity"
    assert refused(lambda: usage(ask, "sue", "schedulers")).seen == (403, "not-allowed")
    assert refused(lambda: usage(ask, "sue", "none")).seen == (403, "not-allowed")
    assert refused(lambda: usage(ask, "eve", "none")).seen == (404, "unknown-group")


def test_who_is_in_no_group_is_told_so(ask):
    assert refused(lambda: usage(ask, "ann")).seen == (403, "no-group")


def test_a_quota_that_is_used_up_is_named_with_what_frees_it(ask):
    ask.service.engine._job_pool.held.clear()
    try:
        who = ask.who(TOKENS["sue"][1])
        offset = 100_000 if isinstance(ask, OverRest) else 200_000
        problem: Any = None
        for n in range(6):
            try:
                who.submit("solve", {"n": offset + n})
            except Refused as found:
                problem = found.problem
                break
        assert problem is not None
        assert (problem["status"], problem["code"]) == (429, "quota-exceeded")
        quota = problem["quota"]
        assert (quota["group"], quota["quota"], quota["limit"]) == ("capacity", "queued_jobs", 2)
        assert quota["used"] == 2
        assert quota["frees_in_s"] is None
        assert quota["window_s"] is None
        assert problem["retry_after_s"] > 0
        assert "cancel some" in problem["errors"][0]["fix"]
    finally:
        ask.service.engine._job_pool.held.set()
    ask.service(_until_idle(ask.service.engine))


async def _until_idle(engine: Engine) -> None:
    while any(await asyncio.to_thread(engine.jobs.open_jobs)):
        await asyncio.sleep(0.02)


def submitted(ask: Any, name: str, n: int, priority: str) -> Any:
    more = {"planner-priority": priority} if priority else {}

    async def asked() -> Any:
        who = ask.who(TOKENS[name][1])
        if isinstance(ask, OverRest):
            body = {"call": "solve", "request": {"n": n}}
            return (await who._ask("POST", "/v1/jobs", more, json=body)).json()
        message = pb.SubmitJobRequest(solve=pb.SolveRequest(json=json.dumps({"n": n})))
        return to_dict((await who.ask("SubmitJob", message, more=more))[0])

    return ask.service(asked())


@pytest.mark.parametrize(
    ("name", "priority", "expected"),
    [
        ("tom", "", "urgent"),
        ("tom", "background", "background"),
        ("sue", "", "background"),
        ("sue", "Normal", (400, "bad-priority")),
        ("sue", "normal", "normal"),
        ("sue", "urgent", (403, "priority-too-high")),
        ("sue", "now", (400, "bad-priority")),
    ],
)
def test_a_priority_may_be_asked_for_up_to_that_of_ones_group(ask, name, priority, expected):
    n = 300_000 + zlib.crc32(f"{ask.name} {name} {priority}".encode()) % 100_000
    if isinstance(expected, tuple):
        assert refused(lambda: submitted(ask, name, n, priority)).seen == expected
        return
    job = submitted(ask, name, n, priority)
    group = "schedulers" if name == "tom" else "capacity"
    assert (job["group"], job["priority"]) == (group, expected)


def test_calls_are_charged_to_their_group_and_metrics_show_it(service):
    rest = TRANSPORTS["rest"](service)
    rest.who(TOKENS["tom"][1]).call("solve", {"n": 77})
    text = service.metrics.text().decode()
    assert 'planner_group_cpu_seconds_total{group="schedulers"}' in text
    assert 'planner_group_jobs{group="capacity",state="PENDING"}' in text
    labels = {
        line.split('"')[1]
        for line in text.splitlines()
        if "planner_group_cpu" in line and "{" in line
    }
    assert labels == {"schedulers", "capacity"}


def test_the_audit_log_names_who_asked_for_what_over_both_transports(ask, tmp_path):
    file = tmp_path / "audit"
    ask.service.auth.audit = AuditLog(str(file))
    try:
        job = submitted(ask, "tom", 400_000 + len(ask.name), "")
        refused(lambda: ask.who("x" * 20).version())
        ask.who(TOKENS["sue"][1]).call("solve", {"n": 5})
        refused(lambda: ask.who(TOKENS["ann"][1]).version())
    finally:
        ask.service.auth.audit.close()
        ask.service.auth.audit = AuditLog()
    text = file.read_text()
    assert not any(token in text for _, token in TOKENS.values())
    every = [json.loads(line) for line in text.splitlines()]
    assert [x["caller"] for x in every if x["event"] == "no-group"] == ["ann"]
    found = [x for x in every if x["event"] == "request"]
    seen = [(x.get("caller"), x.get("group"), x["operation"], x["outcome"]) for x in found]
    assert seen == [
        ("tom", "schedulers", "submitJob", "done"),
        (None, None, "getVersion", "refused"),
        ("sue", "capacity", "solve", "done"),
        (None, None, "getVersion", "refused"),
    ]
    assert found[0]["job_id"] == job["job_id"]
    assert [x.get("code") for x in found[1::2]] == ["unauthenticated", "no-group"]
    assert all(x["request_id"] and x["transport"] == ask.name for x in found)


# One engine


def alone(tmp_path: Path, work: Callable[[Engine], Any], *groups: Group) -> Any:
    async def running() -> Any:
        tenants = Tenants(groups, groups[0].name)
        async with inline_engine(tmp_path, tenants=tenants) as engine:
            return await asyncio.wait_for(work(engine), PATIENCE_S)

    return asyncio.run(running())


def test_calls_stop_where_the_cpu_seconds_of_their_group_are_used_up(tmp_path):
    group, other = Group("a", quotas=Quotas(cpu_s=50.0, window_s=600.0)), Group("b")
    ann, bob = Caller("ann", "solve", group=group), Caller("bob", "solve", group=other)

    async def work(engine: Engine) -> None:
        await engine.call("solve", {"n": 1}, ann)
        engine._job_work.spending.add("a", 60.0)
        with pytest.raises(Refusal) as caught:
            await engine.call("solve", {"n": 2}, ann)
        assert caught.value.code == "quota-exceeded"
        assert caught.value.more is not None
        assert caught.value.more["quota"]["quota"] == "cpu_s"
        await engine.call("solve", {"n": 1}, ann)  # from memory: it costs nothing
        await engine.call("solve", {"n": 2}, bob)
        await engine._job_work.spending.store(engine._in_store)
        with pytest.raises(Refusal) as caught:
            await engine.submit("solve", {"n": 3}, ann)
        assert caught.value.more is not None
        assert 0 < caught.value.more["quota"]["frees_in_s"] <= 900.0
        used = {x["quota"]: x["used"] for x in (await engine.usage(ann))["quotas"]}
        assert used["cpu_s"] >= 60.0

    alone(tmp_path, work, group, other)


class Sweeping:
    """A pool whose sweeps bring a row at once and then wait until they are told to go on."""

    n_alive, n_deaths = 1, 0

    def __init__(self, inner: Any) -> None:
        self._inner, self.go_on = inner, asyncio.Event()
        self.order: list[str] = []

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def run(self, task: Any, hard_s: float, progress: Any = None, kept: Any = None) -> Any:
        from service.handlers.partial_results import KeptRow

        self.order.append(task.name)
        if task.name == "sweep" and not self.go_on.is_set():
            kept("r" * 64, [KeptRow(len(self.order), json.dumps({"index": len(self.order)}))])
            await self.go_on.wait()
        return await self._inner.run(task, hard_s, progress, kept)


def test_a_sweep_makes_room_for_an_urgent_job_and_keeps_its_rows(tmp_path):
    group = Group("a", highest_priority=Priority.URGENT)
    ann = Caller("ann", "solve", group=group, priority=Priority.BACKGROUND)
    tom = Caller("tom", "solve", group=group, priority=Priority.URGENT)

    async def work(engine: Engine) -> None:
        pool = Sweeping(engine._job_pool)
        for loop in engine._job_work._working:
            loop.cancel()
        engine._job_work._working = [
            asyncio.create_task(engine._job_work._work_on_jobs(pool, ()))  # type: ignore[arg-type]
        ]
        sweep = await engine.submit("sweep", {"points": 2}, ann)
        while not engine._job_work.running:
            await asyncio.sleep(0.01)
        urgent = await engine.submit("solve", {"n": 9}, tom)
        async for _ in engine.watch(urgent.job_id, tom):
            pass
        assert (await engine.get_job(urgent.job_id, tom)).state is State.SUCCEEDED
        waiting = await engine.get_job(sweep.job_id, ann)
        assert waiting.state in (State.PENDING, State.RUNNING)
        page = json.loads((await engine.result_page(sweep.job_id, ann, so_far=True)).payload)
        assert page["total"] >= 1
        assert engine._job_work.counted["jobs_yielded"] == 1
        assert waiting.attempts <= 1
        pool.go_on.set()
        async for _ in engine.watch(sweep.job_id, ann):
            pass
        assert (await engine.get_job(sweep.job_id, ann)).state is State.SUCCEEDED
        assert pool.order == ["sweep", "solve", "sweep"]

    alone(tmp_path, work, group)


def test_equal_work_makes_no_room(tmp_path):
    group = Group("a")
    ann = Caller("ann", "solve", group=group, priority=Priority.BACKGROUND)

    async def work(engine: Engine) -> None:
        engine._job_pool.held.clear()
        first = await engine.submit("solve", {"n": 1}, ann)
        while not engine._job_work.running:
            await asyncio.sleep(0.01)
        assert engine._job_work._least_urgent() is None  # it has kept no row
        second = await engine.submit("solve", {"n": 2}, ann)
        assert await asyncio.to_thread(engine.jobs.most_urgent) == Priority.BACKGROUND
        engine._job_pool.held.set()
        for job in (first, second):
            async for _ in engine.watch(job.job_id, ann):
                pass
        assert engine._job_work.counted["jobs_yielded"] == 0

    alone(tmp_path, work, group)
