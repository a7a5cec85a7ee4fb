"""Settings of all tests.

`pytest --hypothesis-profile=thorough` draws ten times as many examples for every property,
`pytest --renew` writes the texts that tests keep in files anew (`tests.snapshots`).
"""

import logging
import os
import signal
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings

from tests.snapshots import RENEW, check_snapshot

# Python keeps Ctrl-C ignored where whoever started it ignores it: nohup, a job in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every run and machine, and no time limit on busy ones.
settings.register_profile(
    "steady", derandomize=True, deadline=None, database=None, max_examples=40
)
settings.register_profile("thorough", settings.get_profile("steady"), max_examples=400)
settings.load_profile("steady")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--renew", action="store_true", help="write snapshots and goldens anew")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--renew"):
        os.environ[RENEW] = "1"


@pytest.fixture
def snapshot(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Return what compares a text with the file of this test, in `snapshots/` beside it."""
    path = request.path
    folder = path.parent / "snapshots" / path.stem.removeprefix("test_")
    file = folder / f"{request.node.name.removeprefix('test_')}.txt"
    return lambda text: check_snapshot(file, text)


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """Undo what a test, or a command that it runs in this process, makes of the logging.

    A handler that stays would write to the standard error that pytest has captured and closed.
    """
    loggers = [logging.getLogger(name) for name in (None, "uvicorn", "grpc._cython.cygrpc")]
    before = [(each.handlers[:], each.filters[:], each.level) for each in loggers]
    yield
    for each, (handlers, filters, level) in zip(loggers, before, strict=True):
        each.handlers[:], each.filters[:] = handlers, filters
        each.setLevel(level)
