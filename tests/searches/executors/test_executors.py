"""The contract of an executor, kept by all of them; and who imports Ray and OR-tools."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import searches
from searches import search as search_module
from searches.executors import executor as executors_module
from searches.executors.executor import (
    NAMES,
    SHARDS_PER_TASK,
    TASKS_PER_WORKER,
    AutomaticExecutor,
    Executor,
    ExecutorError,
    ProcessExecutor,
    RayExecutor,
    SerialExecutor,
    in_tasks,
    make_executor,
)
from searches.executors.streaming import RayStream
from searches.search import search
from searches.space.shape_space import legal_shapes
from searches.space.shards import count_plans, make_shards
from tests.searches.instances import INSTANCES, one_in
from tests.searches.work import always_dies, dies_once, fails_at_three, process_id, square

ROOT = Path(searches.__file__).parents[1]


class ExecutorContract:
    """What every executor does; subclasses say which."""

    @pytest.fixture
    def executor(self) -> Iterator[Executor]:
        raise NotImplementedError

    def test_keeps_the_order_of_the_shards(self, executor):
        assert executor.map(square, list(range(12))) == [x * x for x in range(12)]

    def test_an_exception_of_a_shard_comes_through(self, executor):
        with pytest.raises(ValueError, match="shard 3 is broken"):
            executor.map(fails_at_three, list(range(5)))

    def test_no_shards_give_no_answers(self, executor):
        assert executor.map(square, []) == []

    def test_can_be_used_again(self, executor):
        assert executor.map(square, [1]) + executor.map(square, (2, 3)) == [1, 4, 9]

    @pytest.mark.parametrize("name", one_in(3, ["toy-24-one-tier", "toy-8-hopeless", "deepspeed"]))
    def test_a_search_gives_the_same_bytes_as_in_one_go(self, executor, name, monkeypatch):
        wanted = search(INSTANCES[name])
        monkeypatch.setattr(search_module, "SHARD_SHAPES", 4)
        outcome = search(INSTANCES[name], executor)
        assert outcome.finalists == wanted.finalists  # floats equal to the last bit
        assert outcome.closest == wanted.closest
        assert outcome.rejected_plans == wanted.rejected_plans
        assert (outcome.n_candidates, outcome.n_legal, outcome.n_fit) == (
            wanted.n_candidates,
            wanted.n_legal,
            wanted.n_fit,
        )
        assert outcome.complete
        assert outcome.shards[0] == outcome.shards[1]

    def test_a_search_that_raises_still_closes(self, executor, monkeypatch):
        closed = []
        monkeypatch.setattr(executor, "close", lambda: closed.append(1), raising=False)

        def stop() -> bool:
            raise RuntimeError("no clock")

        with pytest.raises(RuntimeError, match="no clock"):
            search(INSTANCES["toy-8"], executor, progress=lambda done, of: stop())
        assert closed == [1]

    def test_has_a_name_that_make_executor_knows(self, executor):
        assert type(make_executor(executor.name)) is type(executor)


class TestSerial(ExecutorContract):
    @pytest.fixture
    def executor(self) -> Iterator[Executor]:
        return SerialExecutor()


class TestAutomatic(ExecutorContract):
    @pytest.fixture
    def executor(self) -> Iterator[Executor]:
        return AutomaticExecutor()


class Survives:
    """What executors with workers do besides."""

    @pytest.mark.parametrize("how", ["exit", "kill"])
    def test_a_dead_worker_costs_a_retry_not_the_answer(self, executor, tmp_path, how):
        work = [(str(tmp_path), x, how if x in (3, 17) else "") for x in range(40)]
        assert executor.map(dies_once, work) == list(range(40))
        killed = {int((tmp_path / str(x)).read_text()) for x in (3, 17)}
        assert os.getpid() not in killed

    def test_work_that_always_kills_its_worker_is_an_error_that_says_so(self, executor):
        with pytest.raises(ExecutorError, match="died 4 times") as caught:
            executor.map(always_dies, list(range(4)))
        assert "--executor serial" in caught.value.fix
        assert executor.map(square, [2, 3]) == [4, 9]

    def test_shards_are_evaluated_elsewhere(self, executor):
        assert os.getpid() not in executor.map(process_id, [1, 2])


class TestProcesses(ExecutorContract, Survives):
    @pytest.fixture
    def executor(self) -> Iterator[Executor]:
        made = ProcessExecutor(2)
        yield made
        made.close()

    def test_both_workers_work(self, executor):
        assert len(set(executor.map(process_id, list(range(8))))) == 2

    def test_the_outcome_equals_the_serial_one(self, executor):
        c = INSTANCES["h100-24-megatron"]
        assert search(c, executor) == search(c, SerialExecutor())

    def test_no_worker_is_left_behind(self, executor):
        workers = set(executor.map(process_id, list(range(8))))
        executor.close()
        for worker in workers:
            with pytest.raises(ProcessLookupError):
                os.kill(worker, 0)

    @pytest.mark.slow
    def test_a_program_with_threads_starts_its_workers_afresh(self):
        code = """
import threading
from searches.executors.executor import ProcessExecutor, can_fork
from tests.searches.work import square
if __name__ == "__main__":
    done = threading.Event()
    threading.Thread(target=done.wait).start()
    assert not can_fork()
    executor = ProcessExecutor(2)
    print(*executor.map(square, [1, 2, 3]))
    executor.close()
    done.set()
"""
        assert run(code).split() == ["1", "4", "9"]


def test_tasks_hold_every_shard_once_in_order():
    for n in range(0, 300, 7):
        for workers in (1, 2, 5, 16):
            tasks = in_tasks(range(n), workers)
            assert [x for task in tasks for x in task] == list(range(n))
            assert max(map(len, tasks), default=0) <= SHARDS_PER_TASK
            if n <= workers * TASKS_PER_WORKER * SHARDS_PER_TASK:  # one group of a search
                assert len(tasks) <= workers * TASKS_PER_WORKER


def test_automatic_goes_by_the_size_of_the_work(monkeypatch):
    monkeypatch.setattr(executors_module, "n_cpus", lambda: 4)
    monkeypatch.setattr(executors_module, "can_fork", lambda: True)
    small = executors_module.PLANS_FOR_PROCESSES - 1
    large = executors_module.PLANS_FOR_RAY
    alone, cluster = AutomaticExecutor(), AutomaticExecutor("head:6379")
    assert [type(alone.choose(n)) for n in (0, small, small + 1, large)] == [
        SerialExecutor,
        SerialExecutor,
        ProcessExecutor,
        ProcessExecutor,
    ]
    assert [type(cluster.choose(n)) for n in (small, small + 1, large)] == [
        SerialExecutor,
        ProcessExecutor,
        RayExecutor,
    ]
    monkeypatch.setattr(executors_module, "can_fork", lambda: False)
    assert type(alone.choose(large)) is SerialExecutor
    monkeypatch.setattr(executors_module, "can_fork", lambda: True)
    monkeypatch.setattr(executors_module, "n_cpus", lambda: 1)
    assert type(alone.choose(large)) is SerialExecutor


def test_automatic_takes_processes_in_a_search_that_is_large_enough(monkeypatch):
    c = INSTANCES["toy-24-one-tier"]
    wanted = search(c)
    monkeypatch.setattr(executors_module, "PLANS_FOR_PROCESSES", 1)
    monkeypatch.setattr(executors_module, "n_cpus", lambda: 2)
    monkeypatch.setattr(executors_module, "can_fork", lambda: True)
    chosen = []
    choose = AutomaticExecutor.choose
    monkeypatch.setattr(
        AutomaticExecutor,
        "choose",
        lambda self, n: chosen.append((n, choose(self, n))) or chosen[-1][1],
    )
    assert search(c, AutomaticExecutor()) == wanted
    ((left, made),) = chosen
    assert 0 < left <= wanted.n_legal
    assert type(made) is ProcessExecutor


@pytest.mark.parametrize("name", ["toy-24-tight", "deepspeed", "pins", "limits"])
def test_plans_are_counted_before_they_are_priced(name):
    c = INSTANCES[name]
    shards = make_shards(c, legal_shapes(c).shapes)
    assert sum(count_plans(shard) for shard in shards) == search(c).n_legal


@pytest.mark.ray
@pytest.mark.filterwarnings("default")  # Ray's own: unclosed files and sockets at shutdown
@pytest.mark.usefixtures("local_ray")
class TestRay(ExecutorContract, Survives):
    @pytest.fixture
    def executor(self) -> Iterator[Executor]:
        return RayExecutor()

    def test_the_outcome_equals_the_serial_one(self, executor):
        c = INSTANCES["h100-24-megatron"]
        assert search(c, executor) == search(c, SerialExecutor())


@pytest.mark.ray
@pytest.mark.filterwarnings("default")
def test_ray_is_started_and_stopped_by_the_executor_itself():
    code = """
import ray
from searches.executors.executor import RayExecutor
from searches.search import search
from tests.searches.instances import INSTANCES
c = INSTANCES["toy-8"]
assert search(c, RayExecutor(n_cpus=2)) == search(c)
assert not ray.is_initialized()
"""
    run(code)


def test_an_unknown_executor_is_refused():
    with pytest.raises(ValueError, match=r"unknown executor 'dask': .*processes or ray"):
        make_executor("dask")
    with pytest.raises(ValueError, match="does not go with"):
        make_executor("processes", "head:6379")
    assert {make_executor(name).name for name in NAMES} == set(NAMES)


@pytest.mark.ray
@pytest.mark.filterwarnings("default")
def test_a_cluster_that_does_not_answer_is_named():
    code = """
from searches.executors.executor import ExecutorError, RayExecutor
try:
    RayExecutor("127.0.0.1:1").map(abs, [1])
except ExecutorError as error:
    print(error, "|", error.fix)
"""
    assert "127.0.0.1:1" in run(code)


@pytest.mark.parametrize(
    "start",
    [
        lambda: RayExecutor().prepare(lambda enough: 0),
        lambda: RayExecutor().group_size,
        lambda: RayExecutor("head:6379").map(abs, [1]),
        lambda: next(RayStream().answers(lambda: abs, [[1]])),
    ],
)
def test_a_missing_ray_is_told_with_its_extra(monkeypatch, start):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ExecutorError, match="needs the package ray") as caught:
        start()
    assert "parallelism-planner[ray]" in caught.value.fix


def run(code: str) -> str:
    """Return what a fresh interpreter prints."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


HEAVY = "print(*sorted({m.split('.')[0] for m in sys.modules} & {'ortools', 'ray', 'pandas'}))"


def test_importing_the_search_loads_neither_solver_nor_ray():
    assert run(f"import sys, searches.search, searches.executors.executor; {HEAVY}").split() == []
