"""Answers compressed for who takes it: gzip, made beside the event loop where it takes long."""

import asyncio
import gzip

LEAST_BYTES = 1_000
"""Answers below fit one packet as they are."""
LARGE_BYTES = 50_000
"""Answers from here on are compressed in a thread: a megabyte takes tens of milliseconds."""
LEVEL = 6


def accepts_gzip(accept_encoding: str) -> bool:
    """Tell whether a header Accept-Encoding takes gzip (RFC 9110, 12.5.3).

    >>> accepts_gzip("gzip, br;q=0.5"), accepts_gzip("br, gzip;q=0"), accepts_gzip("")
    (True, False, False)
    """
    for part in accept_encoding.lower().split(","):
        coding, _, weight = part.partition(";")
        if coding.strip() in ("gzip", "x-gzip"):
            return weight.replace(" ", "").rstrip("0.") not in ("q=", "q")
    return False


def gzipped(content: bytes) -> bytes:
    """Return content compressed: the same bytes for the same content."""
    return gzip.compress(content, LEVEL, mtime=0)


async def compressed(content: bytes, accept_encoding: str) -> tuple[bytes, dict[str, str]]:
    """Return an answer as it is sent, with the headers that say so.

    Small answers, and those of callers that do not take gzip, stay as they are.
    """
    if len(content) < LEAST_BYTES:
        return content, {}
    vary = {"vary": "accept-encoding"}
    if not accepts_gzip(accept_encoding):
        return content, vary
    is_large = len(content) >= LARGE_BYTES
    small = await asyncio.to_thread(gzipped, content) if is_large else gzipped(content)
    return small, {**vary, "content-encoding": "gzip"}
