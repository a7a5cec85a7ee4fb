"""Bodies of requests, read within their limits of size and time."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from service.access.admission import overloaded
from service.access.caller import CallerLeft
from service.handlers.limits import RequestLimits
from service.handlers.problems import Refusal, refused
from service.http.exchange import JSON, HttpExchange, Receive

BODY_S = 30.0
"""How long a body may take to arrive."""
DRAINED_BYTES, DRAINED_S = 64_000_000, 10.0
"""Of a body that was refused: what is taken and dropped, so that its caller reads the answer."""
LARGE_BODY = 65_536
"""Bytes from which a body that arrives is large: a caller may send some of those at a time."""


async def drain(receive: Receive) -> None:
    """Take what comes of a body that was refused, within bounds, and drop it.

    A connection that ends while its caller sends is reset, and takes the answer with it.
    """
    n_bytes = 0
    with suppress(TimeoutError, CallerLeft):
        async with asyncio.timeout(DRAINED_S):
            while n_bytes < DRAINED_BYTES:
                part, is_last = await _next_part(receive)
                n_bytes += len(part)
                if is_last:
                    return


class BodyReader:
    """Reads bodies; of one caller only some large ones at a time."""

    def __init__(self, settings: RequestLimits) -> None:
        self._settings = settings
        self._n_large: Counter[str] = Counter()
        """Large bodies that arrive, by caller."""

    async def read(
        self, exchange: HttpExchange, receive: Receive, limit_bytes: int | None = None
    ) -> bytes:
        """Return the body, of `limit_bytes` where less than usual.

        `Refusal` 413, 415, 408 or 429 for one that cannot be taken.
        """
        operation = exchange.operation
        exchange.cut = True
        is_json = operation is not None and operation.request is not None
        media = exchange.header(b"content-type").partition(";")[0].strip().lower()
        if media and media != JSON and is_json:
            raise _no_json(f"Content-Type: {media[:60]!r} is not {JSON}")
        coding = exchange.header(b"content-encoding").lower()
        if coding not in ("", "identity"):
            detail = f"Content-Encoding: {coding[:60]!r}; send it as it is"
            raise Refusal(415, "wrong-media-type", "the body is compressed", detail)
        maximum = min(limit_bytes or self._settings.body_bytes, self._settings.body_bytes)
        length = exchange.header(b"content-length")
        if length.isdigit() and int(length) > maximum:
            raise _too_large(f"{int(length):,} is more than {maximum:,}")
        try:
            async with asyncio.timeout(BODY_S):
                body = await self._received(exchange, receive, maximum)
        except TimeoutError:
            detail = f"it was not complete after {BODY_S:g} s"
            raise Refusal(408, "slow-body", "the body did not arrive", detail) from None
        exchange.cut = False
        if body and is_json and not media:
            raise _no_json(f"send the header Content-Type: {JSON}")
        return body

    async def _received(self, exchange: HttpExchange, receive: Receive, maximum: int) -> bytes:
        part, is_last = await _next_part(receive)
        if is_last and len(part) <= min(LARGE_BODY, maximum):
            return part  # nearly all bodies: no slot, no joining
        caller = exchange.caller.name if exchange.caller else exchange.address
        parts, n_bytes = [part], len(part)
        with ExitStack() as slot:
            has_slot = False
            while True:
                if n_bytes > maximum:
                    raise _too_large(f"more than {maximum:,}")
                if n_bytes > LARGE_BODY and not has_slot:
                    slot.enter_context(self._large(caller))
                    has_slot = True
                if is_last:
                    return b"".join(parts)
                part, is_last = await _next_part(receive)
                parts.append(part)
                n_bytes += len(part)

    @contextmanager
    def _large(self, caller: str) -> Iterator[None]:
        """Count one more large body: what one caller sends at once must not fill the memory."""
        maximum = self._settings.per_caller
        if self._n_large[caller] >= maximum:
            raise overloaded(f"{maximum} large bodies of yours are on their way", 1.0)
        self._n_large[caller] += 1
        try:
            yield
        finally:
            self._n_large[caller] -= 1
            if not self._n_large[caller]:
                del self._n_large[caller]


async def _next_part(receive: Receive) -> tuple[bytes, bool]:
    """Return the next part of a body, and whether it is the last."""
    message = await receive()
    if message["type"] != "http.request":
        raise CallerLeft
    return message.get("body", b""), not message.get("more_body")


def _no_json(detail: str) -> Refusal:
    return Refusal(415, "wrong-media-type", "the body is not JSON", detail)


def _too_large(detail: str) -> Refusal:
    return refused("too-large", f"bytes of the body: {detail}", 413)
