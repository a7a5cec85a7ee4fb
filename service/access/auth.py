"""Who calls: bearer tokens from a file, their roles, and who may start a service without any.

    # name  role   token, or sha256: and the hash of the token in hex; until when, in UTC
    slurm   solve  4c1f0b62a7d0e1f3c8a95b7d2e6f4a90  until=2027-06-30
    grafana read   sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08

The name owns the jobs; one name may have several tokens, which is how a token is replaced. Roles:
`read` (facts, and one's own jobs), `solve` (questions and jobs too), `admin` (the jobs of all).
"""

import hashlib
import hmac
import ipaddress
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Protocol

from planner.errors import UsageError
from service.access.admission import Rates
from service.access.caller import ROLES, Caller, Role
from service.handlers.problems import Refusal
from service.telemetry.audit import AuditLog
from service.tenants.groups import Identity, Tenants

log = logging.getLogger("planner.service")

LEAST_CHARS, LEAST_DIFFERENT = 16, 6
"""Of a token, and of the different ones among them: others can be guessed."""
MOST_TOKENS = 1_000
"""Every request is compared with all of them."""
MOST_FILE_BYTES = 1_000_000
LINE = "NAME ROLE TOKEN [until=DAY] on every line"
WARN_S = 7 * 86_400.0
"""Time before its end from which a token is named in the log."""
LOCAL = "local"
"""Name of all callers of a service without tokens."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")
_HASH = re.compile(r"sha256:([0-9a-f]{64})")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")  # RFC 6750


@dataclass(frozen=True, slots=True)
class Token:
    """One token: whose it is, and its hash."""

    name: str
    role: str
    sha256: bytes
    hashed: bool = False
    """Whether the file holds the hash alone, which opens nothing to who reads it."""
    expires_at: float | None = None
    """Time of day, seconds since 1970, from which it opens nothing; None for never."""


def read_tokens(text: str, source: str) -> tuple[Token, ...]:
    """Return the tokens of a file; `UsageError` with the line of what is wrong.

    No message holds a token.
    """
    results: list[Token] = []
    for n, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        where = f"{source}:{n}"
        if len(fields) not in (3, 4):
            raise UsageError(f"{where}: {len(fields)} fields", LINE)
        name, role, token = fields[:3]
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{where}: the name cannot be one", "up to 100 of A-Z a-z 0-9 . _ @ -"
            )
        if role not in ROLES:
            raise UsageError(f"{where}: unknown role {role[:20]!r}", f"one of {', '.join(ROLES)}")
        hashed = _HASH.fullmatch(token)
        if token.startswith("sha256:") and not hashed:
            raise UsageError(f"{where}: not the hash of a token", "sha256: and 64 hex digits")
        if not hashed and (
            len(token) < LEAST_CHARS
            or len(set(token)) < LEAST_DIFFERENT
            or not _TOKEN.fullmatch(token)
        ):
            raise UsageError(
                f"{where}: a token has at least {LEAST_CHARS} of A-Z a-z 0-9 . _ ~ + / = -, of"
                f" them {LEAST_DIFFERENT} different ones",
                "make one with: openssl rand -hex 24",
            )
        digest = bytes.fromhex(hashed[1]) if hashed else hashlib.sha256(token.encode()).digest()
        if any(digest == other.sha256 for other in results):
            raise UsageError(f"{where}: the token stands in the file already", "a new token")
        expires_at = _until(fields[3], where) if len(fields) == 4 else None
        results.append(Token(name, role, digest, hashed is not None, expires_at))
    if not results:
        raise UsageError(f"{source} holds no token", LINE)
    if len(results) > MOST_TOKENS:
        raise UsageError(f"{source}: {len(results)} tokens", f"at most {MOST_TOKENS}")
    return tuple(results)


def _until(text: str, where: str) -> float:
    """Return the time of day at which a token expires; that of a day is its end, in UTC."""
    option, _, value = text.partition("=")
    fix = "until=2027-06-30, or until=2027-06-30T12:00:00Z"
    if option != "until":
        raise UsageError(f"{where}: a fourth field that does not begin with until=", fix)
    try:
        if len(value) == 10:
            day = date.fromisoformat(value) + timedelta(days=1)
            moment = datetime(day.year, day.month, day.day, tzinfo=UTC)
        else:
            moment = datetime.fromisoformat(value)
    except (ValueError, OverflowError):
        raise UsageError(f"{where}: {value[:40]!r} is no day and no time", fix) from None
    if moment.tzinfo is None:
        raise UsageError(f"{where}: {value[:40]!r} says no time zone", fix)
    return moment.timestamp()


def warn_of_expiry(tokens: Sequence[Token], now_s: float) -> None:
    """Log the names of tokens that have expired, or will within a week."""
    for name in sorted({each.name for each in tokens}):
        ends = [each.expires_at for each in tokens if each.name == name]
        last = max((end for end in ends if end is not None), default=None)
        if last is None or None in ends or last - now_s > WARN_S:
            continue
        when = datetime.fromtimestamp(last, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        log.warning("the last token of %s %s at %s", name, _ends(last, now_s), when)


def _ends(last: float, now_s: float) -> str:
    return "has expired" if last <= now_s else "expires"


def tokens_of(path: Path) -> tuple[Token, ...]:
    """Return the tokens of a file on disk; `UsageError` where it cannot be read."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(MOST_FILE_BYTES + 1)
        if stat.S_ISREG(mode) and mode & 0o002:
            raise UsageError(f"{path} can be written by every user of this machine", "chmod 600")
        if len(content) > MOST_FILE_BYTES:
            raise UsageError(f"{path} is larger than a token file", "name another file")
        tokens = read_tokens(content.decode(), str(path))
        if stat.S_ISREG(mode) and mode & 0o004 and not all(token.hashed for token in tokens):
            log.warning(
                "%s holds tokens, not their hashes, and can be read by every user of this machine:"
                " chmod 600",
                path,
            )
        return tokens
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UsageError(f"{path} cannot be read: {reason}", "name a readable file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no UTF-8 text", "name a text file") from None


def is_loopback(host: str) -> bool:
    """Tell whether an address is reached from this machine alone."""
    if host.lower() in ("localhost", "localhost."):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, has_tokens: bool, insecure: bool) -> None:
    """Raise `UsageError` for a service that everybody in the network could use."""
    if has_tokens or insecure or is_loopback(host):
        return
    raise UsageError(
        f"{host} is reached from other machines, and no tokens are asked for",
        "--token-file FILE; or --insecure where all who reach it may use it as they like",
    )


def unauthenticated(detail: str) -> Refusal:
    """Return the problem of a caller who is not known."""
    return Refusal(401, "unauthenticated", "a token is needed", detail)


class TokenVerifier(Protocol):
    """Who else vouches for callers: see `service.identity.verifiers`."""

    def known(self, token: bytes) -> Identity | None:
        """Return who has a token that was checked of late, without asking anybody."""

    async def identify(self, token: bytes) -> Identity | None:
        """Return who has a token; None where it is for no provider. `Refusal` 401, 503."""


class Auth:
    """Turns what a caller sent into a `Caller`; without tokens everybody is admin."""

    def __init__(
        self,
        tokens: Sequence[Token] = (),
        failed_logins: int = 100,
        tenants: Tenants | None = None,
        verifier: TokenVerifier | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Know some tokens; an address may fail `failed_logins` times at once, then once a second.

        What follows is refused as 429. Callers with a known token are never refused for those at
        the same address without one. Other tokens are shown to `verifier`.
        """
        self._tokens = tuple(tokens)
        self._failures = Rates(1.0, failed_logins)
        self.tenants = tenants or Tenants()
        self._verifier = verifier
        self._wall = wall
        self.audit = AuditLog()
        """Told by the transports who asked for what."""

    @property
    def asks(self) -> bool:
        """Whether a token is asked for."""
        return bool(self._tokens) or self._verifier is not None

    def replace(self, tokens: Sequence[Token]) -> None:
        """Use other tokens from now on; never none where there were some."""
        if tokens:
            self._tokens = tuple(tokens)

    def use_verifier(self, verifier: TokenVerifier) -> None:
        """Ask others about tokens from now on."""
        self._verifier = verifier

    async def identified(
        self, authorization: bytes | str | None, address: str = "", priority: str | None = None
    ) -> Caller:
        """Return who sent a header `Authorization`; `Refusal` 401 where nobody known did.

        `priority` is the name of the one that the request asks for; None for that of the group.
        The time that a token of the file takes does not depend on which was sent or how much of
        one is right: hashes are compared, in constant time, and with all tokens. Raises `Refusal`
        also for callers of no group (403), a priority that is none (400) or too high (403),
        addresses that fail too often (429), and where a provider does not answer (503).
        """
        if not self.asks:
            return self._local(address, priority)
        if not authorization:
            self._failed(address)
            raise unauthenticated("no token came: send the header Authorization: Bearer TOKEN")
        bearer = _bearer(authorization)
        try:
            identity, role = await self._identity(bearer, address)
        except Refusal as problem:
            if problem.status == 401:
                self._failed(address)
            raise
        try:
            group = self.tenants.group_of(identity)
        except Refusal as problem:
            fields = {"caller": identity.name, "how": identity.how, "address": address}
            self.audit.note("no-group", **fields, code=problem.code, outcome="refused")
            raise
        effective = role or group.role
        known = partial(self._still, bearer, identity, effective)
        return Caller(
            identity.name,
            effective,
            address,
            known,
            group,
            group.priority_of(priority),
            identity.how,
        )

    def _local(self, address: str, priority: str | None) -> Caller:
        """Return the caller where no token is asked for."""
        group = self.tenants.group_of(Identity(LOCAL, "none"))
        return Caller(LOCAL, "admin", address, group=group, priority=group.priority_of(priority))

    def known(self, authorization: bytes | str | None, address: str = "") -> Caller | None:
        """Return who sent a header `Authorization`, by the token file alone; None for all others.

        As `identified`, but nobody is asked, and nothing is counted, refused or written down.
        """
        try:
            if not self.asks:
                return self._local(address, None)
            token = self._token(_bearer(authorization)) if authorization else None
            if token is None or self._has_expired(token):
                return None
            identity = Identity(token.name, "token", expires_at=token.expires_at)
            group = self.tenants.group_of(identity)
            priority = group.priority_of(None)
        except Refusal:
            return None
        role: Role = token.role or group.role  # type: ignore[assignment]  # one of ROLES
        return Caller(token.name, role, address, group=group, priority=priority, how="token")

    async def _identity(self, bearer: bytes, address: str = "") -> tuple[Identity, Role | None]:
        """Return who has a token, and its role where the token has one; `Refusal` 401, 429, 503.

        Only the first for a network that has failed too often: it must not keep providers busy.
        """
        token = self._token(bearer)
        if token is not None:
            if self._has_expired(token):
                raise unauthenticated("the token has expired")
            identity = Identity(token.name, "token", expires_at=token.expires_at)
            return identity, token.role  # type: ignore[return-value]  # one of ROLES
        verifier = self._verifier
        if verifier is not None and bearer:
            known = verifier.known(bearer)
            if known is not None:
                return known, None
            if address and not self._failures.has(address_network(address)):
                self._failed(address)
            found = await verifier.identify(bearer)
            if found is not None:
                return found, None
        raise unauthenticated("the token is not known")

    def _token(self, bearer: bytes) -> Token | None:
        digest = hashlib.sha256(bearer).digest()
        found: Token | None = None
        for candidate in self._tokens:
            if hmac.compare_digest(digest, candidate.sha256):
                found = candidate
        return found

    def _has_expired(self, token: Token) -> bool:
        return token.expires_at is not None and token.expires_at <= self._wall()

    async def _still(self, bearer: bytes, identity: Identity, role: Role) -> bool:
        """Tell whether a token still opens what it did: the same name, and role, of a group."""
        try:
            now, role_now = await self._identity(bearer)
            group = self.tenants.group_of(now)
        except Refusal:
            return False
        own = (now.name, now.how, role_now or group.role)
        return own == (identity.name, identity.how, role)

    def _failed(self, address: str) -> None:
        """Raise `Refusal` 429 for an address that fails too often."""
        try:
            self._failures.take(address_network(address))
        except Refusal as problem:
            raise Refusal(
                429,
                "too-many-failures",
                "too many requests without a known token",
                "the token is not known, and neither were many before",
                problem.retry_after_s,
            ) from None


def _bearer(authorization: bytes | str) -> bytes:
    """Return the token of a header `Authorization`; empty for another scheme."""
    sent = authorization.encode() if isinstance(authorization, str) else authorization
    scheme, _, rest = sent.partition(b" ")
    return rest.strip() if scheme.lower() == b"bearer" else b""


def address_network(address: str) -> str:
    """Return what one caller has as its own: an IPv4 address, or 64 bits of an IPv6 one."""
    try:
        result = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if result.version == 4:
        return address
    return str(ipaddress.ip_network((result, 64), strict=False))
