"""Rows of a job that has no answer yet: as the store keeps them, as its next attempt takes them.

Points of a sweep, sizes of a curve. An answer is the same, byte for byte, whichever of its rows
were kept: they are kept as the text that a search gives, under the content hash of the request.
That is of inputs, calibration, catalogue and version, so that rows of another release never come
into an answer.
"""

import json
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class KeptRow(NamedTuple):
    """One row of an answer, and what else is needed of it."""

    place: int
    """Of its point or size, among all of the request."""
    text: str
    """The row as JSON (`planner.sweeps.storage.row_text`)."""
    notes: tuple[str, ...] = ()
    """What the answer says of it beside its rows."""


Rows = Sequence[KeptRow]


def packed_rows(request_id: str, rows: Rows) -> bytes:
    """Return rows of a request as the store keeps them, compressed."""
    short = [row if row.notes else row[:2] for row in rows]
    return zlib.compress(json.dumps([request_id, short], separators=(",", ":")).encode(), 6)


def _opened(payload: bytes) -> tuple[str, list[KeptRow]]:
    request_id, rows = json.loads(zlib.decompress(payload))
    return request_id, [KeptRow(place, text, tuple(*notes)) for place, text, *notes in rows]


def rows_of(payloads: Iterable[bytes], request_id: str) -> dict[int, KeptRow]:
    """Return the rows of a request by their place, in the order in which they came."""
    entries: dict[int, KeptRow] = {}
    for payload in payloads:
        computed_for, rows = _opened(payload)
        if computed_for == request_id:
            entries.update((row.place, row) for row in rows)
    return entries


def rows_page(
    rows: Iterable[bytes], first: int, n_items: int, total: int, next_cursor: str
) -> bytes:
    """Return a page of rows, of an answer that is not there (`service.worker_pool.pool.cut_page`).

    It has `n_items` of those in `rows`, from number `first` on; `total` there are in all.
    """
    texts = [row.text for payload in rows for row in _opened(payload)[1]]
    page = {
        "list": "rows",
        "total": total,
        "items": [json.loads(text) for text in texts[first : first + n_items]],
        "next_cursor": next_cursor,
    }
    return (json.dumps(page, indent=1, allow_nan=False) + "\n").encode()
