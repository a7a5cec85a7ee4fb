"""`planner --server URL jobs ...`: jobs of a service on the command line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.cli.commands.service import jobs as commands
from planner.client import Client, ServiceError
from tests.planner.command import run_here
from tests.service.live import live_service

PARAMS = {"labels": "", "call": "", "state": "", "until_ended": False, "form": "json"}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with live_service(tmp_path_factory.mktemp("live")) as found:
        yield found


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("PLANNER_TOKEN", "PLANNER_SERVER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def job(url: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return a job that has ended, with a label of this test."""
    with Client(url) as service:
        labels = {"test": request.node.name.partition("[")[0][:60]}
        made = service.submit("rules", {"code": "TP002"}, labels=labels)
        service.wait(made["job_id"])
        return service.job(made["job_id"])


def test_jobs_are_listed_and_shown(url: str, job: dict[str, Any]) -> None:
    selector = f"test={job['labels']['test']}"
    listed = run_here("--server", url, "jobs", "list", "--labels", selector, "--format", "json")
    assert json.loads(listed.stdout) == {"jobs": [job]}
    table = run_here("--server", url, "jobs", "list", "--labels", selector)
    (line,) = [x for x in table.stdout.splitlines() if job["job_id"] in x]
    assert line.split()[1:3] == ["SUCCEEDED", "rules"]
    none = run_here("--server", url, "jobs", "list", "--labels", selector, "--call", "sweep")
    assert job["job_id"] not in none.stdout
    shown = run_here("--server", url, "jobs", "show", job["job_id"], "--format", "json")
    assert json.loads(shown.stdout) == job
    assert job["job_id"] in run_here("--server", url, "jobs", "show", job["job_id"]).stdout


def test_a_job_that_has_ended_stays_as_it_is(url: str, job: dict[str, Any]) -> None:
    found = run_here("--server", url, "jobs", "cancel", job["job_id"], "--format", "json")
    assert (found.returncode, json.loads(found.stdout)) == (0, job)


@pytest.mark.parametrize("command", ["show", "cancel"])
def test_a_job_that_is_none_is_refused_with_how_to_list_those_there_are(
    url: str, command: str
) -> None:
    found = run_here("--server", url, "jobs", command, "nope")
    assert (found.returncode, found.stdout) == (1, "")
    assert "no job 'nope' of yours" in found.stderr
    assert "`planner jobs list` lists yours" in found.stderr


def test_an_unknown_call_or_state_is_refused_with_those_that_are(url: str) -> None:
    for words in (("list", "--call"), ("watch", "--call"), ("list", "--state")):
        found = run_here("--server", url, "jobs", *words, "nope")
        assert (found.returncode, found.stdout) == (2, "")
        wanted = "batch-solve" if words[1] == "--call" else "SUCCEEDED"
        assert "'nope'" in found.stderr
        assert wanted in found.stderr
    found = run_here("--server", url, "jobs", "watch", "--state", "nope")
    assert (found.returncode, found.stdout) == (2, "")
    assert "--state nope" in found.stderr
    assert "SUCCEEDED" in found.stderr


def test_a_watch_until_all_have_ended_ends(url: str, job: dict[str, Any]) -> None:
    selector = f"test={job['labels']['test']}"
    words = ("jobs", "watch", "--labels", selector, "--until-ended")
    found = run_here("--server", url, *words)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_a_watch_tells_open_jobs_and_what_changes(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is submitted when the watch has begun; every change of it is a line."""
    with Client(url) as service, Client(url) as other:
        watch, made = service.watch_jobs, []

        def submitting(version: int, **wanted: str) -> Iterator[Any]:
            made.append(other.submit("rules", {"code": "TP001"}, labels={"watch": "me"}))
            yield from watch(version, **wanted)

        monkeypatch.setattr(service, "watch_jobs", submitting)
        changes = commands._changes(service, {"labels": "watch=me", "call": ""})
        told = []
        while not told or told[-1] != "SUCCEEDED":
            change = next(changes)
            told += [change["job"]["state"]] if change["job"] else []
        changes.close()  # type: ignore[attr-defined]  # a generator
    assert told == ["PENDING", "RUNNING", "SUCCEEDED"]
    with Client(url) as service:
        waiting = {**made[0], "state": "PENDING", "resource_version": 1}
        ended = {**waiting, "state": "FAILED", "resource_version": 2}
        monkeypatch.setattr(service, "list_jobs", lambda **wanted: ([waiting], 1))
        change = {"type": "MODIFIED", "resource_version": 2, "job": ended}
        monkeypatch.setattr(service, "watch_jobs", lambda version, **wanted: iter([change]))
        assert commands.watch_jobs(service, {**PARAMS, "until_ended": True}) == 3
        for state in ("FAILED", "SUCCEEDED"):
            params = {**PARAMS, "until_ended": True, "state": state}
            assert commands.watch_jobs(service, params) == 3
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(x["type"], x["job"]["state"]) for x in lines] == [
        ("ADDED", "PENDING"),
        ("MODIFIED", "FAILED"),
        ("MODIFIED", "FAILED"),  # of the watch of this state alone
    ]


def test_a_watch_lists_again_where_the_history_is_too_short(monkeypatch: Any) -> None:
    def of(state: str, version: int) -> dict[str, Any]:
        return {"job_id": "j", "state": state, "resource_version": version}

    lists = [([of("PENDING", 1)], 1), ([of("SUCCEEDED", 9)], 9)]

    class Service:
        def list_jobs(self, **wanted: str) -> Any:
            return lists.pop(0)

        def watch_jobs(self, version: int, **wanted: str) -> Iterator[Any]:
            if version == 9:
                return
            yield {"type": "MODIFIED", "resource_version": 2, "job": of("RUNNING", 2)}
            raise ServiceError("history-trimmed", "list the jobs again", status=410)

    changes = commands._changes(Service(), {})  # type: ignore[arg-type]  # as far as it is used
    found = [next(changes) for _ in range(5)]
    assert [x["job"]["state"] if x["job"] else "" for x in found] == [
        "PENDING",
        "",
        "RUNNING",
        "SUCCEEDED",
        "",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("list", "--labels", "a in ("), "follows a condition"),
        (("list", "--state", "DONE"), "no state of a job: one of"),
        (("list", "--created-after", "today"), "created_after"),
        (("list", "--format", "xml"), "--format"),
        (("show", "0" * 32), "no job"),
        (("cancel", "x y"), "no job"),
    ],
)
def test_what_makes_no_sense_is_refused(url: str, words: tuple[str, ...], said: str) -> None:
    found = run_here("--server", url, "jobs", *words)
    assert found.returncode in (1, 2)
    assert found.stderr.startswith("error: ")
    assert said in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("name", ["list", "watch", "show x", "cancel x"])
def test_without_a_service_the_commands_say_so(name: str) -> None:
    found = run_here("jobs", *name.split())
    assert found.returncode == 2
    assert "asks a service" in found.stderr
    assert "--server" in found.stderr
