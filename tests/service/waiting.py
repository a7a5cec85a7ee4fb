"""Waiting for what must come, however slow the machine is."""

import asyncio
import time
from collections.abc import Callable

PATIENCE_S = 120.0
"""How long a test waits for what a quiet machine does in a second: only a hang takes longer."""
LOOK_S = 0.01


async def until(condition: Callable[[], object]) -> None:
    """Return when a condition holds; the test fails where it never does."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "what was waited for has not come"
        await asyncio.sleep(LOOK_S)


def wait_until(condition: Callable[[], object]) -> None:
    """Do the same without an event loop."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "what was waited for has not come"
        time.sleep(LOOK_S)
