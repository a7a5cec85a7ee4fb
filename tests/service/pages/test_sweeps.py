"""Sweeps: their points are shown as they come, and what there is where one ends without answer."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import pytest

from service.access.caller import Caller
from service.engine import Engine
from service.handlers.calls import call
from service.handlers.limits import DEFAULTS
from service.handlers.partial_results import KeptRow
from service.handlers.problems import Refusal
from service.handlers.running_call import RunningCall
from service.jobs.records import JobView, State
from service.pages import calls
from service.pages.routes import find
from service.pages.views.sweeps import SweepTextBody, _check
from service.pages.visit import Page, Visit
from tests.repeats import slow
from tests.service.inline import inline_engine
from tests.service.pages.inline import text
from tests.service.waiting import PATIENCE_S

SPEC = {
    "name": "grid",
    "model": "llama3-8b",
    "cluster": "h100-x8",
    "vary": {"pools.0.nodes": [1, 2], "training.global_batch": [64, 128]},
    "search": {"pin": {"tp": 1, "mbs": 1, "pp": 1}},
}
ANN = Caller("ann", "solve")


@cache
def swept() -> dict[str, Any]:
    found: dict[str, Any] = call("sweep", {"spec": SPEC})
    return found


class Slow:
    """The work of one sweep, of which rows come when the test says so."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._pool: Any = engine._job_pool
        self._run = self._pool.run
        engine._calls = calls.CALLS
        self._pool.run = self.run
        self.ends = asyncio.Event()
        self.kept: Any = None

    async def run(self, task: Any, hard_s: float, progress: Any = None, kept: Any = None) -> Any:
        if (task.what, task.name) != ("answer", "sweep"):
            return await self._run(task, hard_s, progress, kept)
        self.kept = kept
        await self.ends.wait()
        raise Refusal(500, "broken", "it broke", "on purpose")

    def come(self, *numbers: int) -> None:
        rows = [swept()["rows"][n] for n in numbers]
        self.kept("of-this-request", [KeptRow(r["index"], json.dumps(r)) for r in rows])

    async def page(self, path: str, method: str = "GET", **form: str) -> Page:
        fields = {name: (value,) for name, value in form.items()}
        visit = Visit(self.engine, DEFAULTS, ANN, "", path, {}, form=fields)
        found = find(method, path)
        assert found is not None
        route, visit.parts = found
        answer = await route.function(visit)
        return answer if isinstance(answer, Page) else Page(answer)

    async def until(self, path: str, words: str) -> str:
        async with asyncio.timeout(PATIENCE_S):
            while words not in (shown := text(await self.page(path))):
                await asyncio.sleep(0.02)
        return shown


@asynccontextmanager
async def slow_sweep(folder: Any, noted: bool = True) -> AsyncIterator[tuple[Slow, JobView]]:
    async with inline_engine(folder, calls=calls, settings=DEFAULTS) as engine:
        slow = Slow(engine)
        if noted:
            posted = await slow.page(
                "/ui/sweeps", "POST", sweep_source="text", sweep_text=json.dumps(SPEC), do="run"
            )
            job_id = posted.headers["location"].rpartition("/")[2]
        else:
            job_id = (await engine.submit("sweep", {"spec": SPEC}, ANN)).job_id
        async with asyncio.timeout(PATIENCE_S):
            while slow.kept is None:
                await asyncio.sleep(0.01)
        yield slow, await engine.get_job(job_id, ANN)


@pytest.mark.parametrize("noted", [slow(True), False])
def test_points_are_shown_as_they_come_and_stay_after_a_cancellation(tmp_path, noted):
    async def watched() -> None:
        async with slow_sweep(tmp_path, noted) as (slow, job):
            path = f"/ui/sweeps/{job.job_id}"
            first = text(await slow.page(path))
            assert "No point is finished yet" in first
            assert 'data-rows-so-far="0"' in first
            with pytest.raises(Refusal, match="no point of sweep"):
                await slow.page(f"{path}/csv")
            slow.come(2)
            shown = await slow.until(path, "1 point so far")
            assert 'data-follows="so-far"' in shown
            assert "Fastest is" in shown
            slow.come(0, 1)
            shown = await slow.until(path, "3 points so far")
            # Varied axes are named, and drawn as in the report of the whole sweep.
            assert "Varied: nodes (2 values, 1 to 2); global batch (2 values" in shown
            assert 'id="axes"' in shown
            csv = await slow.page(f"{path}/csv")
            assert "points-so-far.csv" in csv.headers["content-disposition"]
            rows = [line.partition(",")[0] for line in text(csv).splitlines()]
            assert rows == ["index", "0", "1", "2"]
            gone = await slow.page(f"/ui/jobs/{job.job_id}/cancel", "POST", stay="1")
            assert gone.headers["location"] == path
            shown = text(await slow.page(path))
            assert "The sweep was cancelled: 3 points had been searched before." in shown
            assert "data-events" not in shown
            assert 'id="axes"' in shown
            listed = await slow.page(f"/ui/jobs/{job.job_id}/cancel", "POST")
            assert listed.headers["location"] == "/ui/jobs"

    asyncio.run(watched())


def test_a_sweep_that_fails_shows_why_and_what_there_is(tmp_path):
    async def watched() -> None:
        async with slow_sweep(tmp_path) as (slow, job):
            path = f"/ui/sweeps/{job.job_id}"
            slow.come(0)
            await slow.until(path, "1 point so far")
            slow.ends.set()
            shown = await slow.until(path, "The sweep has failed: it broke.")
            assert "Before, 1 point had been searched." in shown
            assert "Fastest is" in shown

    asyncio.run(watched())


@pytest.mark.slow
def test_a_sweep_that_ends_while_its_points_are_read_is_shown_whole(tmp_path, monkeypatch):
    async def watched() -> None:
        async with inline_engine(tmp_path, calls=calls, settings=DEFAULTS) as engine:
            slow = Slow(engine)
            slow._pool.run = slow._run  # it is worked on
            job = await engine.submit("sweep", {"spec": SPEC}, ANN)
            async with asyncio.timeout(60.0):
                while (await engine.get_job(job.job_id, ANN)).state is not State.SUCCEEDED:
                    await asyncio.sleep(0.02)
            asked = []
            known = engine.get_job

            async def late(job_id: str, caller: Caller) -> Any:
                asked.append(job_id)
                return job if len(asked) == 1 else await known(job_id, caller)

            monkeypatch.setattr(engine, "get_job", late)
            shown = text(await slow.page(f"/ui/sweeps/{job.job_id}"))
            assert "so-far" not in shown
            assert shown.count("Fastest is") == 1
            assert len(asked) == 2

    asyncio.run(watched())


def test_what_a_sweep_varies_is_noted_unless_it_is_long(monkeypatch):
    request = SweepTextBody.model_validate({"document": {"text": json.dumps(SPEC)}})
    header = _check(request, RunningCall())["header"]
    assert [axis["path"] for axis in header["axes"]] == list(SPEC["vary"])
    assert not {"model", "cluster"} & set(header)
    monkeypatch.setattr("service.pages.views.sweeps.MOST_NOTED_CHARS", 10)
    assert _check(request, RunningCall())["header"] == {}
