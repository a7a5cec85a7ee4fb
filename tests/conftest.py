"""Settings of all tests.

Properties are tried on a few examples by default, on more together with the slow tests, and
`pytest --hypothesis-profile=thorough` draws ten times as many of those. `pytest --renew` writes
the texts that tests keep in files anew (`tests.snapshots`).
"""

import functools
import gc
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Generator, Iterator

import pytest
import typer.main
from hypothesis import HealthCheck, settings

from tests.snapshots import RENEW, check_snapshot

# Python keeps Ctrl-C ignored where whoever started it ignores it: nohup, a job in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Where Python is told to keep no bytecode, each process that a test starts would compile all of
# our modules anew, and each worker all of the tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Text has 100 columns and no colour whatever the window that the tests run in: xdist states it.
for variable in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
    os.environ.pop(variable, None)

# The same examples on every run and machine, and no time limit on busy ones. Hypothesis draws the
# constants of all modules that are imported: which are filtered out differs with the tests run.
settings.register_profile(
    "steady",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.filter_too_much],
)
settings.register_profile("quick", settings.get_profile("steady"), max_examples=10)
settings.register_profile("thorough", settings.get_profile("steady"), max_examples=400)
settings.load_profile("quick")

# Typer builds its tree of commands anew for every command line; it is the same each time.
typer.main.get_command = functools.cache(typer.main.get_command)


def with_slow_tests(config: pytest.Config) -> bool:
    """Return whether the expression after `-m` asks for the tests that are marked slow."""
    return bool(re.search(r"(?<!not )\bslow\b", config.option.markexpr))


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--renew"):
        os.environ[RENEW] = "1"
    if with_slow_tests(config) and not config.getoption("--hypothesis-profile"):
        settings.load_profile("steady")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the properties again, on more examples, with the slow tests."""
    if not with_slow_tests(config):
        return
    for item in items:
        elsewhere = {"ray", "fit", "service", "page"} & {mark.name for mark in item.iter_markers()}
        if getattr(getattr(item, "function", None), "is_hypothesis_test", False) and not elsewhere:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the collector of garbage the thousands of tests, which stay till the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--renew", action="store_true", help="write snapshots and goldens anew")


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
