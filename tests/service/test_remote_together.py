"""`planner --server` on plans over several pools: the same output as here."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.solver.answer.result_store import joined_plan_of
from tests.planner.command import run_here
from tests.planner.solver.together.tiny import MODEL, NEW, OLD, PINS, cluster
from tests.service.live import live_service

pytestmark = pytest.mark.service
CLUSTER = cluster({**NEW, "hosts": "n1"}, {**OLD, "hosts": "o1"})


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with live_service(tmp_path_factory.mktemp("live")) as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with both files, an answer and the files of its plans."""
    folder = tmp_path_factory.mktemp("saved")
    (folder / "model.yaml").write_text(json.dumps(MODEL))
    (folder / "cluster.yaml").write_text(json.dumps(CLUSTER))
    words = ["solve", str(folder / "model.yaml"), str(folder / "cluster.yaml")]
    words += ["--pools", "together", "--framework", "megatron", "--top", "3", "--no-cache"]
    words += ["--pin", ",".join(f"{axis}={value}" for axis, value in PINS.items())]
    words += ["--emit", "megatron", "--out", str(folder / "run"), "--format", "json"]
    solved = run_here(*words)
    assert solved.returncode == 0, solved.stderr
    (folder / "r.json").write_text(solved.stdout)
    assert joined_plan_of(json.loads(solved.stdout), "t1")
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "{}/r.json#t1"),
        ("explain", "{}/r.json#t1", "--term", "sync"),
        ("explain", "{}/r.json#t1", "--term", "tp"),
        ("diff", "{0}/r.json#t1", "{0}/r.json#1"),
        ("diff", "{0}/r.json#t1", "{0}/r.json#t2", "--format", "json"),
        ("replan", "{}/r.json#t1", "--lost", "old=1"),
        ("replan", "{}/r.json#t1", "--lost", "o1", "--format", "json"),
        ("replan", "{}/r.json#t1", "--lost", "1"),
        ("replan", "{}/r.json#t1", "--gained", "1"),
        ("replan", "{}/r.json#t1", "--gained", "new=1"),
        ("replan", "{}/r.json#1", "--gained", "cold=1"),
        ("place", "{}/r.json#t1"),
        ("place", "{}/r.json#t1", "--format", "json"),
        ("place", "{}/r.json#t1", "--hosts", "n1"),
        ("trace", "{}/r.json#t1", "-o", "-"),
        ("trace", "{}/r.json#1", "-o", "-", "--micro-batches", "1"),
    ],
)
def test_a_plan_over_several_pools_is_sent(
    url: str,
    folder: Path,
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _same(url, *(word.format(folder) for word in words))


def test_a_run_is_sent_with_its_list_of_nodes(url: str, folder: Path) -> None:
    scripts = sorted((folder / "run").glob("t*/megatron.sh"))
    assert scripts
    for form in ("table", "json"):
        _same(url, "check", str(scripts[0]), str(folder / "cluster.yaml"), "--format", form)


def _same(url: str, *words: str) -> None:
    here, there = run_here(*words), run_here("--server", url, *words)
    assert there.stderr == here.stderr
    assert (there.returncode, there.stdout) == (here.returncode, here.stdout)
    assert here.stdout or here.stderr
