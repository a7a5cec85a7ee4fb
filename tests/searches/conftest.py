"""What several tests of searches use."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import searches

ROOT = Path(searches.__file__).parents[1]


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """Keep one Ray cluster for all tests: a start takes seconds."""
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )
    yield
    ray.shutdown()
