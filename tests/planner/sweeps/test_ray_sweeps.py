"""Sweeps on a Ray cluster of two machines, played by this one: workers and machines die and join.

Machines are killed without a word while they search, and the file is that of an undisturbed run.
"""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.sweeps import run as running
from planner.sweeps.run import SweepExecution, SweepProgress, SweepRun
from planner.sweeps.spec.spec import sweep_from_dict
from tests.planner.sweeps.fakes import FakeSweep

ROOT = Path(planner.__file__).parents[1]
N = 48
FAST = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 3,
}
"""So that tests wait for seconds, not half a minute, until a machine is taken for dead."""

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("default"),  # Ray's own: unclosed files and sockets at shutdown
]


def run_sweep(sweep: FakeSweep, out: Path, **options: Any) -> SweepRun:
    return running.run_sweep(sweep, out, SweepExecution(**options))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head and one more machine, each with one processor."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", paths)
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": FAST})
    made.add_node(num_cpus=1)
    yield made
    made.shutdown()


@pytest.fixture
def wanted(tmp_path: Path) -> bytes:
    """The file of an undisturbed run in this process."""
    run_sweep(FakeSweep(N), tmp_path / "wanted.jsonl", executor="serial")
    return (tmp_path / "wanted.jsonl").read_bytes()


def when(moments: dict[int, Callable[[], Any]]) -> Callable[[SweepProgress], None]:
    """Return what does something as soon as so many rows are there, each thing once."""

    def progress(at: SweepProgress) -> None:
        for moment in [n for n in moments if n <= at.n_done]:
            moments.pop(moment)()

    return progress


def second(cluster: Any) -> Any:
    """Return the machine of the cluster that is not its head."""
    return next(iter(cluster.worker_nodes))


def test_workers_that_die_leave_no_trace(cluster: Any, wanted: bytes, tmp_path: Path) -> None:
    deeds = {90: "die once", 40: "die once", 4: "die once"}
    sweep = FakeSweep(N, deeds=deeds, folder=str(tmp_path), delay_s=0.05)
    run_sweep(sweep, tmp_path / "a.jsonl", executor="ray", ray_address=cluster.address)
    assert all((tmp_path / str(index)).exists() for index in deeds)
    assert (tmp_path / "a.jsonl").read_bytes() == wanted


def test_machines_that_die_leave_no_trace(cluster: Any, tmp_path: Path) -> None:
    """Three times one of the two is lost while it works, and another one joins.

    Points are slow until all three are lost: on a busy machine the next one takes long to join.
    """
    n_points, hurry = 40 * N, tmp_path / "hurry"
    run_sweep(FakeSweep(n_points), tmp_path / "wanted.jsonl", executor="serial")
    workers, killed = tmp_path / "workers", []
    workers.mkdir()

    def progress(at: SweepProgress) -> None:
        machine = second(cluster)
        at_work = {path.read_text() for path in workers.iterdir()}
        if len(killed) < 3 and machine.node_id in at_work:
            killed.append(at.n_done)
            cluster.remove_node(machine, allow_graceful=False)
            cluster.add_node(num_cpus=1)
        if len(killed) == 3:
            hurry.touch()

    run_sweep(
        FakeSweep(n_points, delay_s=0.2, hurry=str(hurry), workers=str(workers)),
        tmp_path / "a.jsonl",
        executor="ray",
        ray_address=cluster.address,
        progress=progress,
    )
    assert len(killed) == 3
    assert killed[-1] < n_points
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "wanted.jsonl").read_bytes()


def workers_of(machine: Any) -> list[int]:
    """Return the processes that search on a machine."""
    own = {x.process.pid for kind in machine.all_processes.values() for x in kind}
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            title = (path / "cmdline").read_bytes()
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent in own and title.startswith(b"ray::_RayWorker.answers"):
            found.append(int(path.name))
    return found


@pytest.mark.slow
def test_real_searches_survive_three_workers_and_three_machines(
    cluster: Any, tmp_path: Path
) -> None:
    sweep = sweep_from_dict(
        {
            "name": "cheap",
            "model": "llama3-8b",
            "cluster": "h100-x8",
            "vary": {"pools.0.accelerator.memory": "60 GiB .. 579 GiB + 1 GiB"},
            "search": {"pin": {"tp": 8, "pp": 1, "cp": 1, "mbs": 1, "recompute": "none"}},
        }
    )
    run_sweep(sweep, tmp_path / "wanted.parquet", executor="processes")
    killed = {"worker": 0, "machine": 0}

    def progress(at: SweepProgress) -> None:
        machine = second(cluster)
        at_work = workers_of(machine) if at.n_done % 5 == 0 else []
        if not at_work:
            return
        if killed["worker"] <= killed["machine"] and killed["worker"] < 3:
            killed["worker"] += 1
            os.kill(at_work[0], signal.SIGKILL)
        elif killed["machine"] < 3:
            killed["machine"] += 1
            cluster.remove_node(machine, allow_graceful=False)
            cluster.add_node(num_cpus=1)

    run = run_sweep(
        sweep,
        tmp_path / "a.parquet",
        executor="ray",
        ray_address=cluster.address,
        progress=progress,
    )
    assert killed == {"worker": 3, "machine": 3}
    assert run.statuses == {"ok": 520}
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "wanted.parquet").read_bytes()


def test_a_machine_that_joins_gets_work(cluster: Any, wanted: bytes, tmp_path: Path) -> None:
    cluster.remove_node(second(cluster), allow_graceful=False)
    workers = tmp_path / "workers"
    workers.mkdir()
    sweep = FakeSweep(N, delay_s=0.4, workers=str(workers))
    run_sweep(
        sweep,
        tmp_path / "a.jsonl",
        executor="ray",
        ray_address=cluster.address,
        progress=when({4: lambda: cluster.add_node(num_cpus=1)}),
    )
    assert (tmp_path / "a.jsonl").read_bytes() == wanted
    machines = {path.read_text() for path in workers.iterdir()}
    assert len(machines) == 2


def test_a_cluster_that_is_left_in_the_middle_is_gone_on_with_elsewhere(
    cluster: Any, wanted: bytes, tmp_path: Path
) -> None:
    def leave() -> None:
        raise KeyboardInterrupt

    out = tmp_path / "a.jsonl"
    sweep = FakeSweep(N, delay_s=0.05)
    first = run_sweep(
        sweep, out, executor="ray", ray_address=cluster.address, progress=when({10: leave})
    )
    assert first.interrupted
    assert first.n_done >= 10
    second_run = run_sweep(sweep, out, executor="processes")
    assert second_run.n_before == first.n_done
    assert out.read_bytes() == wanted
