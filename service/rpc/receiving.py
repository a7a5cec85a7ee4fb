"""The messages that begin calls: taken once it is known who calls, and within bounds of time.

gRPC would take the message of a call before any of this service's code is asked: megabytes, from
anybody, for as long as one likes. Handlers here are those of streams, which ask for it themselves.
"""

import asyncio
from collections import Counter
from typing import Any

import grpc

from service.access.admission import overloaded
from service.handlers.limits import RequestLimits
from service.handlers.problems import Refusal, refused

MESSAGE_S = 30.0
"""How long a message may take to arrive."""
SOON_S = 1.0
"""After which it is one of the large or slow ones, of which a caller may send some at a time."""


class Receiver:
    """Takes the messages of calls."""

    def __init__(self, settings: RequestLimits) -> None:
        self._most = settings.per_caller
        self._slow: Counter[str] = Counter()

    async def message(self, context: Any, caller: str) -> bytes:
        """Return the only message of a call; `Refusal` 400 without one, 408 late, 429 too many."""
        is_slow = False

        def note() -> None:
            nonlocal is_slow
            if self._slow[caller] < self._most:
                is_slow = True
                self._slow[caller] += 1
                limit.reschedule(begun_s + MESSAGE_S)
            else:
                limit.reschedule(0.0)

        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        timer = loop.call_at(begun_s + min(SOON_S, MESSAGE_S), note)
        try:
            async with asyncio.timeout(None) as limit:
                result = await context.read()
        except TimeoutError:
            raise self._late(is_slow) from None
        finally:
            timer.cancel()
            if is_slow:
                self._slow[caller] -= 1
                if not self._slow[caller]:
                    del self._slow[caller]
        if result is grpc.aio.EOF:
            raise refused("malformed", "the call came without its message", 400)
        data: bytes = result
        return data

    def _late(self, was_slow: bool) -> Refusal:
        if was_slow:
            detail = f"it was not complete after {MESSAGE_S:g} s"
            return Refusal(408, "slow-body", "the message did not arrive", detail)
        return overloaded(f"{self._most} messages of yours are on their way, large or slow", 1.0)
