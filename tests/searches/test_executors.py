"""The contract of an executor, kept by all of them; and who imports Ray and OR-tools."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import searches
from searches import search as search_module
from searches.executors import Executor, RayExecutor, SerialExecutor, make_executor
from searches.search import search
from tests.searches.instances import INSTANCES

ROOT = Path(searches.__file__).parents[1]


def make_functions() -> tuple[object, object]:
    """Return functions that pickle by value, so that workers need not import the tests."""

    def square(x: int) -> int:
        import time

        time.sleep(0.002 * (5 - x % 5))  # later shards finish first
        return x * x

    def fails_at_three(x: int) -> int:
        if x == 3:
            raise ValueError("shard 3 is broken")
        return x

    return square, fails_at_three


class ExecutorContract:
    """What every executor does; subclasses say which."""

    @pytest.fixture
    def executor(self) -> Iterator[Executor]:
        raise NotImplementedError

    def test_keeps_the_order_of_the_shards(self, executor):
        square, _ = make_functions()
        assert executor.map(square, list(range(12))) == [x * x for x in range(12)]

    def test_an_exception_of_a_shard_comes_through(self, executor):
        _, fails = make_functions()
        with pytest.raises(ValueError, match="shard 3 is broken"):
            executor.map(fails, list(range(5)))

    def test_no_shards_give_no_answers(self, executor):
        square, _ = make_functions()
        assert executor.map(square, []) == []

    def test_can_be_used_again(self, executor):
        square, _ = make_functions()
        assert executor.map(square, [1]) + executor.map(square, (2, 3)) == [1, 4, 9]

    @pytest.mark.parametrize("name", ["toy-24-one-tier", "toy-8-hopeless", "deepspeed"])
    def test_a_search_gives_the_same_bytes_as_in_one_go(self, executor, name, monkeypatch):
        wanted = search(INSTANCES[name])
        monkeypatch.setattr(search_module, "SHARD_SHAPES", 4)
        outcome = search(INSTANCES[name], executor)
        assert outcome.finalists == wanted.finalists  # floats equal to the last bit
        assert outcome.closest == wanted.closest
        assert outcome.rejected_plans == wanted.rejected_plans
        assert (outcome.n_candidates, outcome.n_legal, outcome.n_fit) == (
            wanted.n_candidates, wanted.n_legal, wanted.n_fit,
        )  # fmt: skip
        assert outcome.complete
        assert outcome.shards[0] == outcome.shards[1]

    def test_has_a_name_that_make_executor_knows(self, executor):
        assert type(make_executor(executor.name)) is type(executor)


class TestSerial(ExecutorContract):
    @pytest.fixture
    def executor(self) -> Iterator[Executor]:
        return SerialExecutor()


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """Keep one Ray cluster for all tests: a start takes seconds."""
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )  # fmt: skip
    yield
    ray.shutdown()


@pytest.mark.ray
@pytest.mark.filterwarnings("default")  # Ray's own: unclosed files and sockets at shutdown
@pytest.mark.usefixtures("local_ray")
class TestRay(ExecutorContract):
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
from searches.executors import RayExecutor
from searches.search import search
from tests.searches.instances import INSTANCES
c = INSTANCES["toy-8"]
assert search(c, RayExecutor(n_cpus=2)) == search(c)
assert not ray.is_initialized()
"""
    run(code)


def test_an_unknown_executor_is_refused():
    with pytest.raises(ValueError, match="unknown executor 'dask': serial or ray"):
        make_executor("dask")


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
    assert run(f"import sys, searches.search, searches.executors; {HEAVY}").split() == []


def test_a_serial_search_never_imports_ray():
    code = f"""
import sys
from searches.executors import SerialExecutor
from searches.search import search
from tests.searches.instances import INSTANCES
assert search(INSTANCES["toy-8"], SerialExecutor()).finalists
{HEAVY}
"""
    assert "ray" not in run(code).split()
