"""Tokens of a Kubernetes cluster: its API server says whose they are (TokenReview)."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from service.access.auth import unauthenticated
from service.handlers.problems import Refusal
from service.identity.fetching import FetchFailed, JsonRequest, provider_away
from service.identity.key_sets import FetchSoon
from service.identity.remembered import Confirmed, Remembered, digest_of
from service.tenants.groups import Identity
from service.tenants.providers import KubernetesProvider

log = logging.getLogger("planner.service")

PATH = "/apis/authentication.k8s.io/v1/tokenreviews"
UNKNOWN_S = 10.0
"""How long it holds that a token is not known."""
AWAY_FACTOR = 5.0
"""Times `cache_s` that a review holds while the API server does not answer."""
MOST_AT_ONCE, MOST_WAITING = 8, 64
"""Reviews that are asked for at the same time, and those that wait for it."""
MOST_NAME_CHARS = 180
MOST_GROUPS = 1_000


class TokenReviewer:
    """Tells who has a token of a cluster."""

    def __init__(
        self,
        provider: KubernetesProvider,
        fetch: FetchSoon,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.provider = provider
        self._fetch, self._monotonic, self._wall = fetch, monotonic, wall
        self._remembered = Remembered()
        self._asking: dict[bytes, asyncio.Task[Identity | None]] = {}
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)

    def known(self, token: bytes) -> Identity | None:
        """Return who has a token that was reviewed of late; None where it has to be reviewed."""
        found = self._remembered.get(digest_of(token))
        if found is None or not self._holds(found, self.provider.cache_s):
            return None
        return found.identity

    def _holds(self, found: Confirmed, for_s: float) -> bool:
        identity = found.identity
        if identity is not None and (identity.expires_at or float("inf")) <= self._wall():
            return False
        return self._monotonic() - found.at_s < for_s

    async def identify(self, token: bytes, expires_at: float | None = None) -> Identity:
        """Return who has a token; `Refusal` 401, 503 where the API server does not answer.

        `expires_at` is what the token says of itself.
        """
        digest = digest_of(token)
        found = self._remembered.get(digest)
        if found is not None:
            for_s = UNKNOWN_S if found.identity is None else self.provider.cache_s
            if self._holds(found, for_s):
                return self._known(found.identity)
        asking = self._asking.get(digest)
        if asking is None:
            if len(self._asking) >= MOST_WAITING:
                raise provider_away(self.provider.name)
            asking = asyncio.get_running_loop().create_task(self._reviewed(token, expires_at))
            self._asking[digest] = asking
            asking.add_done_callback(lambda _: self._asking.pop(digest, None))
        try:
            identity = await asyncio.shield(asking)
        except Refusal:
            away_s = AWAY_FACTOR * self.provider.cache_s
            if found is not None and found.identity is not None and self._holds(found, away_s):
                return found.identity
            raise
        return self._known(identity)

    def _known(self, identity: Identity | None) -> Identity:
        if identity is None:
            raise unauthenticated("the token is not known, here or to the cluster")
        return identity

    async def _reviewed(self, token: bytes, expires_at: float | None) -> Identity | None:
        provider = self.provider
        spec = {"token": token.decode("ascii"), "audiences": [provider.audience]}
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": spec,
        }
        url = provider.api_server.rstrip("/") + PATH
        async with self._slots:
            try:
                data = await self._fetch(JsonRequest(url, provider.ca, body, provider.token_file))
            except FetchFailed as error:
                log.error("no review of a token: %s", error)
                raise provider_away(provider.name) from None
        identity = self._identity(data.get("status"), expires_at)
        self._remembered.put(digest_of(token), Confirmed(identity, self._monotonic()))
        return identity

    def _identity(self, status: Any, expires_at: float | None) -> Identity | None:
        """Return who a review says that it is; None where it says that it knows nobody."""
        if not isinstance(status, Mapping) or status.get("authenticated") is not True:
            return None
        audiences = status.get("audiences")
        if not isinstance(audiences, list) or self.provider.audience not in audiences:
            return None  # an API server that knows no audiences would take any token
        user = status.get("user")
        name = user.get("username") if isinstance(user, Mapping) else None
        if not isinstance(name, str) or not name.isprintable() or not name.strip():
            return None
        if len(name) > MOST_NAME_CHARS:
            return None
        groups = user.get("groups") if isinstance(user, Mapping) else None
        rows = groups[:MOST_GROUPS] if isinstance(groups, list) else []
        texts = frozenset(each for each in rows if isinstance(each, str))
        full = f"{self.provider.name}:{name}"
        return Identity(full, "kubernetes", groups=texts, expires_at=expires_at)
