"""Tokens of OIDC issuers: signed JWTs, checked here with the keys of the issuer."""

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jwt

from service.access.auth import unauthenticated
from service.identity.key_sets import FetchSoon, KeySet
from service.identity.remembered import Confirmed, Remembered, digest_of
from service.tenants.groups import Identity
from service.tenants.providers import OidcProvider

LEEWAY_S = 30.0
"""How far clocks may be apart."""
LAST_TIME = 10**12
"""Seconds since 1970 that no token outlives."""
MOST_NAME_CHARS = 120
MOST_VALUES = 1_000
"""Values of one claim that are looked at."""


class OidcVerifier:
    """Tells who has a token of one issuer."""

    def __init__(
        self,
        provider: OidcProvider,
        claims: Collection[str],
        fetch: FetchSoon,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Know an issuer; of its tokens the `claims` named are kept, by which groups are told."""
        self.provider = provider
        self._claims = frozenset(claims)
        self._keys = KeySet(provider, fetch, monotonic)
        self._version = 0
        self._remembered = Remembered()
        self._monotonic, self._wall = monotonic, wall

    def known(self, token: bytes) -> Identity | None:
        """Return who has a token that was checked before; None where it has to be checked."""
        return self._before(token) if self._keys.is_fresh else None

    def _before(self, token: bytes) -> Identity | None:
        if self._version != self._keys.version:
            self._version = self._keys.version
            self._remembered.clear()
        found = self._remembered.get(digest_of(token))
        return self._valid(found.identity) if found else None

    def _valid(self, identity: Identity | None) -> Identity | None:
        if identity is None or (identity.expires_at or 0.0) + LEEWAY_S <= self._wall():
            return None
        return identity

    async def identify(self, token: bytes, header: Mapping[str, Any]) -> Identity:
        """Return who has a token, whose header was read; `Refusal` 401, 503."""
        await self._keys.refresh()
        identity = self._before(token)
        if identity is None:
            identity = await self._checked(token, header)
            self._remembered.put(digest_of(token), Confirmed(identity, self._monotonic()))
        return identity

    async def _checked(self, token: bytes, header: Mapping[str, Any]) -> Identity:
        name = self.provider.name
        if "crit" in header:
            raise unauthenticated(f"the token of {name} has extensions that nobody here knows")
        kid = header.get("kid", "")
        key = await self._keys.key(kid) if isinstance(kid, str) and len(kid) <= 500 else None
        if key is None:
            raise unauthenticated(f"the token is signed with no key that {name} has")
        try:
            claims = jwt.decode(
                token,
                key.key,
                algorithms=list(key.algorithms),
                audience=self.provider.audience,
                issuer=self.provider.issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.ExpiredSignatureError:
            raise unauthenticated("the token has expired") from None
        except jwt.InvalidAudienceError:
            audience = self.provider.audience
            raise unauthenticated(f"the token is not for the audience {audience}") from None
        except (jwt.PyJWTError, ValueError, TypeError):
            raise unauthenticated(f"the token of {name} is not valid") from None
        return self._identity(claims)

    def _identity(self, claims: Mapping[str, Any]) -> Identity:
        provider = self.provider
        subject = claims.get(provider.name_claim)
        if not isinstance(subject, str) or not subject.isprintable() or not subject.strip():
            raise unauthenticated(f"the token has no claim {provider.name_claim}")
        if len(subject) > MOST_NAME_CHARS:
            raise unauthenticated(f"the claim {provider.name_claim} is too long")
        kept = {name: _bounded(claims[name]) for name in self._claims if name in claims}
        full = f"{provider.name}:{subject}"
        expires_at = float(min(int(claims["exp"]), LAST_TIME))
        return Identity(full, "oidc", kept, expires_at=expires_at)


def _bounded(value: Any) -> Any:
    """Return a text or some texts of a claim; what is neither is in no group."""
    if isinstance(value, list):
        return tuple(each for each in value[:MOST_VALUES] if isinstance(each, str))
    return value if isinstance(value, str) else ""
