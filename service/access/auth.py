"""Who calls: bearer tokens from a file, their roles, and who may start a service without any.

    # name  role   token, or sha256: and the hash of the token in hex
    slurm   solve  4c1f0b62a7d0e1f3c8a95b7d2e6f4a90
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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from planner.errors import UsageError
from service.access.admission import Rates
from service.access.caller import ROLES, Caller
from service.handlers.problems import Refusal

log = logging.getLogger("planner.service")

LEAST_CHARS, LEAST_DIFFERENT = 16, 6
"""Of a token, and of the different ones among them: others can be guessed."""
MOST_TOKENS = 1_000
"""Every request is compared with all of them."""
MOST_FILE_BYTES = 1_000_000
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
        if len(fields) != 3:
            raise UsageError(f"{where}: {len(fields)} fields", "NAME ROLE TOKEN on every line")
        name, role, token = fields
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
        results.append(Token(name, role, digest, hashed is not None))
    if not results:
        raise UsageError(f"{source} holds no token", "NAME ROLE TOKEN on every line")
    if len(results) > MOST_TOKENS:
        raise UsageError(f"{source}: {len(results)} tokens", f"at most {MOST_TOKENS}")
    return tuple(results)


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


class Auth:
    """Turns what a caller sent into a `Caller`; without tokens everybody is admin."""

    def __init__(self, tokens: Sequence[Token] = (), failed_logins: int = 100) -> None:
        """Know some tokens; an address may fail `failed_logins` times at once, then once a second.

        What follows is refused as 429. Callers with a known token are never refused for those at
        the same address without one.
        """
        self._tokens = tuple(tokens)
        self._failures = Rates(1.0, failed_logins)

    @property
    def asks(self) -> bool:
        """Whether a token is asked for."""
        return bool(self._tokens)

    def replace(self, tokens: Sequence[Token]) -> None:
        """Use other tokens from now on; never none where there were some."""
        if tokens:
            self._tokens = tuple(tokens)

    def caller(self, authorization: bytes | str | None, address: str = "") -> Caller:
        """Return who sent a header `Authorization`; `Refusal` 401 where nobody known did.

        The time that it takes does not depend on which token was sent or how much of one is right:
        hashes are compared, in constant time, and with all tokens.
        """
        result = self.known(authorization, address)
        if result is not None:
            return result
        self._failed(address)
        if not authorization:
            raise unauthenticated("no token came: send the header Authorization: Bearer TOKEN")
        raise unauthenticated("the token is not known")

    def known(self, authorization: bytes | str | None, address: str = "") -> Caller | None:
        """Return who sent a header `Authorization`, None where nobody known did.

        As `caller`, but nothing is counted.
        """
        if not self._tokens:
            return Caller(LOCAL, "admin", address)
        if not authorization:
            return None
        sent = authorization.encode() if isinstance(authorization, str) else authorization
        scheme, _, token = sent.partition(b" ")
        digest = hashlib.sha256(token.strip()).digest()
        token_of_caller: Token | None = None
        for candidate in self._tokens:
            if hmac.compare_digest(digest, candidate.sha256):
                token_of_caller = candidate
        if token_of_caller is None or scheme.lower() != b"bearer":
            return None
        known = partial(self._knows, token_of_caller)
        return Caller(token_of_caller.name, token_of_caller.role, address, known)  # type: ignore[arg-type]  # one of ROLES

    def _knows(self, token: Token) -> bool:
        """Tell whether a token still opens what it did: the same name, role and hash."""
        wanted = (token.name, token.role, token.sha256)
        return any((each.name, each.role, each.sha256) == wanted for each in self._tokens)

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


def address_network(address: str) -> str:
    """Return what one caller has as its own: an IPv4 address, or 64 bits of an IPv6 one."""
    try:
        result = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if result.version == 4:
        return address
    return str(ipaddress.ip_network((result, 64), strict=False))
