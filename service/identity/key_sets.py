"""The keys of an OIDC issuer: fetched, kept for a while, fetched again when they were rotated."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jwt

from service.handlers.problems import Refusal
from service.identity.fetching import FetchFailed, JsonRequest, provider_away
from service.tenants.providers import OidcProvider

log = logging.getLogger("planner.service")

FRESH_S = 300.0
"""Age from which keys are fetched again, while those that are there go on."""
STALE_S = 3_600.0
"""Age from which keys that cannot be fetched again open nothing any more."""
LEAST_S = 10.0
"""Least time between two fetches: anybody may send a token that names an unknown key."""
MOST_KEYS = 100
DISCOVERY = "/.well-known/openid-configuration"
ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
"""By kind of key; none whose key is a secret that both sides have, and not `none`."""

FetchSoon = Callable[[JsonRequest], Awaitable[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """A public key, and the algorithms that it may be used with."""

    kid: str
    key: Any
    algorithms: tuple[str, ...]


def keys_of(data: Mapping[str, Any]) -> dict[str, VerificationKey]:
    """Return the keys of a JSON Web Key Set that signatures may be of; others are left out."""
    found: dict[str, VerificationKey] = {}
    rows = data.get("keys")
    for row in rows[:MOST_KEYS] if isinstance(rows, list) else ():
        if not isinstance(row, dict) or row.get("use", "sig") != "sig":
            continue
        algorithms = ALGORITHMS.get(str(row.get("kty")), ())
        if "alg" in row:
            algorithms = tuple(each for each in algorithms if each == row["alg"])
        kid = row.get("kid", "")
        if not algorithms or not isinstance(kid, str):
            continue
        try:
            key = jwt.PyJWK(row, algorithms[0]).key
        except (jwt.PyJWTError, ValueError, TypeError, KeyError):
            continue
        found[kid] = VerificationKey(kid, key, algorithms)
    return found


class KeySet:
    """The keys of one issuer as they were when they were last fetched."""

    def __init__(
        self,
        provider: OidcProvider,
        fetch: FetchSoon,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._provider, self._fetch, self._monotonic = provider, fetch, monotonic
        self._keys: dict[str, VerificationKey] = {}
        self._rows: Any = None
        self._fetched_s = -STALE_S
        self._tried_s = -LEAST_S - STALE_S
        self._fetching: asyncio.Task[None] | None = None
        self.version = 0
        """How often other keys came: what the old ones confirmed is to be confirmed again."""

    @property
    def is_fresh(self) -> bool:
        """Whether the keys need not be fetched again for now."""
        return self._monotonic() - self._fetched_s < FRESH_S

    async def key(self, kid: str) -> VerificationKey | None:
        """Return a key by name; empty for the only one. `Refusal` 503 where there are none yet."""
        await self.refresh()
        found = self._named(kid)
        if found is None and self._may_fetch():  # rotated since then
            await self._fetched()
            found = self._named(kid)
        return found

    async def refresh(self) -> None:
        """Fetch keys that have grown old; `Refusal` 503 where they are too old to be used."""
        age_s = self._monotonic() - self._fetched_s
        if age_s >= STALE_S:
            if self._may_fetch() or self._fetching is not None:
                await self._fetched()
            if self._monotonic() - self._fetched_s >= STALE_S:
                raise provider_away(self._provider.name)
        elif age_s >= FRESH_S and self._may_fetch():
            self._begin()

    def _named(self, kid: str) -> VerificationKey | None:
        if not kid and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    def _may_fetch(self) -> bool:
        return self._fetching is None and self._monotonic() - self._tried_s >= LEAST_S

    def _begin(self) -> "asyncio.Task[None]":
        if self._fetching is None:
            self._fetching = asyncio.get_running_loop().create_task(self._renew())
        return self._fetching

    async def _fetched(self) -> None:
        await asyncio.shield(self._begin())

    async def _renew(self) -> None:
        self._tried_s = self._monotonic()
        provider = self._provider
        try:
            url = provider.jwks_url or await self._discovered()
            data = await self._fetch(JsonRequest(url, provider.ca))
            keys = keys_of(data)
            if not keys:
                raise FetchFailed(f"{url}: no key that signatures can be of")
        except (FetchFailed, Refusal) as error:
            log.error("the keys of %s stay as they were: %s", provider.name, error)
            return
        finally:
            self._fetching = None
        rows = data.get("keys")
        if rows != self._rows:
            self.version += 1
            log.info("%s has %d keys", provider.name, len(keys))
        self._keys, self._rows = keys, rows
        self._fetched_s = self._monotonic()

    async def _discovered(self) -> str:
        issuer = self._provider.issuer
        url = issuer.rstrip("/") + DISCOVERY
        data = await self._fetch(JsonRequest(url, self._provider.ca))
        found = data.get("jwks_uri")
        if data.get("issuer") != issuer or not isinstance(found, str):
            raise FetchFailed(f"{url}: of another issuer, or without jwks_uri")
        if found.partition("://")[0] != issuer.partition("://")[0]:
            raise FetchFailed(f"{url}: jwks_uri is not over {issuer.partition('://')[0]}")
        return found
