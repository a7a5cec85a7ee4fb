"""Rows of a sweep that is not finished: as the store keeps them, as its next attempt takes them.

An answer is the same, byte for byte, whichever of its rows were kept: they are kept as the text
that a search gives, under the id of the sweep. That is the content of inputs, calibration,
catalogue and version, so that rows of another release never come into an answer.
"""

import json
import zlib
from collections.abc import Iterable, Sequence

Rows = Sequence[tuple[int, str]]
"""Index of the point and its row as JSON (`planner.sweeping.storage.row_text`)."""


def packed(sweep_id: str, rows: Rows) -> bytes:
    """Return rows of a sweep as the store keeps them, compressed."""
    return zlib.compress(json.dumps([sweep_id, rows], separators=(",", ":")).encode(), 6)


def _opened(payload: bytes) -> tuple[str, list[tuple[int, str]]]:
    sweep_id, rows = json.loads(zlib.decompress(payload))
    return sweep_id, [(index, text) for index, text in rows]


def rows_of(payloads: Iterable[bytes], sweep_id: str) -> dict[int, str]:
    """Return the rows of a sweep by the index of their points, in the order in which they came."""
    found: dict[int, str] = {}
    for payload in payloads:
        of, rows = _opened(payload)
        if of == sweep_id:
            found.update(rows)
    return found


def rows_page(
    rows: Iterable[bytes], first: int, n_items: int, total: int, next_cursor: str
) -> bytes:
    """Return a page of rows, of an answer that is not there (`service.workers.cut_page`).

    It has `n_items` of those in `rows`, from number `first` on; `total` there are in all.
    """
    texts = [text for payload in rows for _, text in _opened(payload)[1]]
    page = {
        "list": "rows",
        "total": total,
        "items": [json.loads(text) for text in texts[first : first + n_items]],
        "next_cursor": next_cursor,
    }
    return (json.dumps(page, indent=1, allow_nan=False) + "\n").encode()
