"""Identities that were confirmed of late, by the hash of their token: bounded, and for a while."""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

from service.tenants.groups import Identity

MOST = 4_000
"""Tokens that are remembered."""


def digest_of(token: bytes) -> bytes:
    """Return the hash under which a token is remembered: the token itself is not."""
    return hashlib.sha256(token).digest()


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What a provider said of a token."""

    identity: Identity | None
    """None for a token that it does not know."""
    at_s: float
    """When, by the monotonic clock."""


class Remembered:
    """The tokens used last."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._entries: OrderedDict[bytes, Confirmed] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, digest: bytes) -> Confirmed | None:
        """Return what was said of a token."""
        found = self._entries.get(digest)
        if found is not None:
            self._entries.move_to_end(digest)
        return found

    def put(self, digest: bytes, confirmed: Confirmed) -> None:
        """Keep what was said, and drop what was not asked for longest."""
        self._entries[digest] = confirmed
        self._entries.move_to_end(digest)
        while len(self._entries) > self._most:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        """Forget all of them."""
        self._entries.clear()
