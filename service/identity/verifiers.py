"""All providers of identities of a service: which of them a token is for, and what it says."""

import asyncio
import base64
import json
import re
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from planner.errors import UsageError
from service.identity.fetching import Fetch, JsonRequest, fetch_json
from service.identity.token_review import TokenReviewer
from service.tenants.groups import Identity
from service.tenants.providers import Providers

if TYPE_CHECKING:
    from service.identity.oidc import OidcVerifier

MOST_TOKEN_BYTES = 8_192
LAST_TIME = 10**12
"""Seconds since 1970 that no token outlives."""
FETCH_THREADS = 12
"""Requests to providers at the same time; a provider that is slow must not hold other threads."""
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/=-]+")  # RFC 6750
_JWT = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")


class Verifiers:
    """The providers of a service."""

    def __init__(
        self, providers: Providers, claims: Collection[str] = (), fetch: Fetch = fetch_json
    ) -> None:
        """Know some providers; of OIDC tokens the `claims` named are kept.

        Raises `UsageError` where a package is missing.
        """
        self.providers = providers
        self._fetch = fetch
        self._threads = ThreadPoolExecutor(FETCH_THREADS, thread_name_prefix="identity")
        self._oidc: dict[str, OidcVerifier] = {}
        if providers.oidc:
            kind = _oidc_verifier()
            for each in providers.oidc:
                self._oidc[each.issuer] = kind(each, claims, self._soon)
        cluster = providers.kubernetes
        self._cluster = TokenReviewer(cluster, self._soon) if cluster else None

    async def _soon(self, request: JsonRequest) -> Mapping[str, Any]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._fetch, request)

    def close(self) -> None:
        """Wait for no request any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def known(self, token: bytes) -> Identity | None:
        """Return who has a token that was checked of late, without asking anybody."""
        found = (each.known(token) for each in (*self._oidc.values(), self._cluster) if each)
        return next((identity for identity in found if identity is not None), None)

    async def identify(self, token: bytes) -> Identity | None:
        """Return who has a token; None where it is for none of the providers.

        Raises `Refusal`: 401 where its provider says so, 503 where that does not answer. A token
        of a known issuer goes to nobody else, one that cannot be a token to nobody.
        """
        if len(token) > MOST_TOKEN_BYTES or not _TOKEN.fullmatch(token):
            return None
        header, claims = _unverified(token)
        issuer = claims.get("iss")
        verifier = self._oidc.get(issuer) if isinstance(issuer, str) else None
        if verifier is not None:
            return await verifier.identify(token, header)
        if self._cluster is None:
            return None
        ends = claims.get("exp")
        if not isinstance(ends, int | float) or not 0 < ends < LAST_TIME:
            ends = None
        return await self._cluster.identify(token, ends)


def _oidc_verifier() -> "type[OidcVerifier]":
    try:
        from service.identity.oidc import OidcVerifier
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "service":
            raise
        raise UsageError(
            f"OIDC needs the package {error.name}", "pip install 'parallelism-planner[service]'"
        ) from None
    return OidcVerifier


def _unverified(token: bytes) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return header and claims of a JWT as they stand, to be believed by nobody; else empty."""
    if not _JWT.fullmatch(token):
        return {}, {}
    parts: list[Mapping[str, Any]] = []
    for part in token.split(b".")[:2]:
        try:
            data = json.loads(base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)))
        except (ValueError, RecursionError):
            return {}, {}
        if not isinstance(data, dict):
            return {}, {}
        parts.append(data)
    return parts[0], parts[1]
