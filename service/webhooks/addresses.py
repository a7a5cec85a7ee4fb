"""Where webhooks may lead: to hosts that whoever runs the service has named, and nowhere else.

A URL comes from a caller, and the service opens it: without bounds it would reach what only the
service can reach. So a host must be on a list, which is empty unless told; and the address that it
stands for is looked at when the connection is made, and the connection made to that very address:
a name may stand for another one a moment later. Private addresses are refused unless their network
is named too.
"""

import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from planner.errors import UsageError
from service.handlers.problems import Refusal, malformed, refused, with_fix

MOST_URL = 2_000
ANY_HOST = "*"
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_HOST = re.compile(
    r"(\*\.)?([a-z0-9_]([-a-z0-9_]*[a-z0-9_])?)(\.[a-z0-9_]([-a-z0-9_]*[a-z0-9_])?)*"
)
_URL = re.compile(r"[!-~]+")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_UNICAST = ipaddress.ip_network("2000::/3")
"""What IANA gives out of IPv6: all else is special, whatever `is_global` says of it."""
_RELAYS = ipaddress.ip_network("192.88.99.0/24")
"""Of 6to4 (RFC 7526), which leads to wherever the nearest relay is."""


class AddressRefused(OSError):
    """A host stands for no address that a webhook may lead to."""


@dataclass(frozen=True, slots=True)
class Destinations:
    """Where webhooks may lead."""

    hosts: tuple[str, ...] = ()
    """Names; `*.example.com` for all below one, `*` for any. Empty: there are no webhooks."""
    networks: tuple[Network, ...] = ()
    """Networks of addresses that are not public, and still allowed."""

    def check(self, url: str, field: str = "url") -> None:
        """Raise `Refusal` for a URL that no webhook may have: 422, or 403 where there are none."""
        if not self.hosts:
            raise Refusal(
                403,
                "no-webhooks",
                "this service sends no webhooks",
                "whoever runs it names the hosts that they may lead to: planner serve"
                " --webhook-host HOST",
            )
        parts = _parts(url, field)
        if parts.scheme == "http" and not self.networks:
            detail = f"{field}: plain http leads to private networks alone, and none is allowed"
            raise malformed(field, f"{detail}: https://...", 422)
        host = _plain(parts.hostname or "")
        if not self.allows_host(host):
            detail = f"{field}: webhooks of this service may not lead to the host {host[:100]!r}"
            raise with_fix(
                refused("malformed", detail),
                "take a host that it knows, or ask whoever runs it to allow this one: planner"
                " serve --webhook-host HOST",
                field,
            )

    def allows_host(self, host: str) -> bool:
        """Tell whether a host is on the list."""
        host = _plain(host)
        return any(
            each in (ANY_HOST, host) or (each.startswith("*.") and host.endswith(each[1:]))
            for each in self.hosts
        )

    def allows_address(self, address: Address, encrypted: bool = True) -> bool:
        """Tell whether a connection may be made to an address."""
        plain = _inner(address)
        if any(plain in each for each in self.networks if each.version == plain.version):
            return True
        if plain not in _UNICAST if plain.version == 6 else plain in _RELAYS:
            return False
        return encrypted and plain.is_global and not plain.is_multicast

    def resolve(self, host: str, port: int, encrypted: bool) -> list[str]:
        """Return the addresses of a host to connect to; `AddressRefused` where there is none.

        Every address of it must be allowed: who answers with some that are not is not trusted.
        """
        if not self.allows_host(host):  # the list may have become shorter since
            raise AddressRefused(f"webhooks may not lead to {host}")
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
        for each in addresses:
            if not self.allows_address(ipaddress.ip_address(each.partition("%")[0]), encrypted):
                raise AddressRefused(f"{host} stands for an address that is not allowed")
        if not addresses:
            raise AddressRefused(f"{host} stands for no address")
        return addresses


def _inner(address: Address) -> Address:
    """Return the address of IPv4 that one of IPv6 leads to, where it does."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _plain(host: str) -> str:
    return host.lower().rstrip(".")


def _parts(url: str, field: str) -> SplitResult:
    if len(url) > MOST_URL or _URL.fullmatch(url) is None:
        detail = f"{field}: a URL of {MOST_URL} printable ASCII characters at most"
        raise malformed(field, detail, 422)
    try:
        parts = urlsplit(url)
        valid = parts.port != 0
    except ValueError:
        valid = False
    else:
        valid = valid and parts.scheme in ("https", "http") and bool(parts.hostname)
        valid = valid and "@" not in parts.netloc and not parts.fragment and "\\" not in url
    if not valid:
        detail = f"{field}: {url[:100]!r} is no URL such as https://hooks.example.com/planner"
        raise malformed(field, f"{detail}, without user or fragment", 422)
    return parts


def destinations_of(hosts: Sequence[str], networks: Sequence[str]) -> Destinations:
    """Return what options name; `UsageError` for what is no host or network."""
    names = []
    for host in hosts:
        name = _plain(host)
        if name != ANY_HOST and not _is_address(name) and _HOST.fullmatch(name) is None:
            raise UsageError(
                f"--webhook-host {host} is no host", "hooks.example.com, *.example.com or *"
            )
        names.append(name)
    found: list[Network] = []
    for text in networks:
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError:
            raise UsageError(
                f"--webhook-network {text} is no network", "such as 10.1.0.0/16 or fd00::/8"
            ) from None
    if found and not names:
        raise UsageError(
            "--webhook-network allows addresses, and no host is allowed",
            "--webhook-host HOST beside it",
        )
    return Destinations(tuple(names), tuple(found))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
