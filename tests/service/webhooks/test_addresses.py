"""Where webhooks may lead: nowhere but to the hosts and networks that were named."""

import ipaddress
import socket
from typing import Any

import pytest

from planner.errors import UsageError
from service.handlers.problems import Refusal
from service.webhooks.addresses import AddressRefused, Destinations, destinations_of

HOOKS = destinations_of(["hooks.example.com", "*.corp.example", "[::1]"[1:-1]], [])
PRIVATE = destinations_of(["*"], ["10.1.0.0/16", "fd00::/8"])


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example.com/x?y=z",
        "https://HOOKS.example.com:8443",
        "https://a.corp.example/",
        "https://a.b.corp.example./",
    ],
)
def test_a_host_that_was_named_may_be_led_to(url):
    HOOKS.check(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/",
        "https://corp.example/",
        "https://evilcorp.example/",
        "https://hooks.example.com.evil.test/",
        "https://evil.test/hooks.example.com",
        "https://hooks.example.com@evil.test/",
        "https://evil.test\\@hooks.example.com/",
        "https://hooks.example.com\\.evil.test/",
        "https://hooks.example.com/#x",
        "https://127.0.0.1/",
        "https://[::ffff:127.0.0.1]/",
        "http://hooks.example.com/",
        "ftp://hooks.example.com/",
        "file:///etc/passwd",
        "https:///x",
        "https://hooks.example.com:0/",
        "https://hooks.example.com:99999/",
        "https://hooks.example.com/a b",
        "https://hooks.example.com/\r\nx: y",
        "https://hooks.exämple.com/",
        "https://[hooks.example.com/",
        "https://hooks.example.com/" + "x" * 2_000,
        "hooks.example.com",
        "",
    ],
)
def test_no_other_url_is_taken(url):
    with pytest.raises(Refusal) as caught:
        HOOKS.check(url)
    assert (caught.value.status, caught.value.errors[0].field) == (422, "url")


def test_without_a_list_there_are_no_webhooks():
    with pytest.raises(Refusal, match="--webhook-host") as caught:
        Destinations().check("https://hooks.example.com/")
    assert (caught.value.status, caught.value.code) == (403, "no-webhooks")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fc00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
        "2002:a9fe:a9fe::1",
        "64:ff9b:1::1",
        "fec0::1",
        "::7f00:1",
        "::ffff:0:7f00:1",
        "5f00::1",
        "192.88.99.1",
    ],
)
def test_addresses_that_are_not_public_are_refused(address):
    assert not HOOKS.allows_address(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "::ffff:8.8.8.8"])
def test_public_addresses_are_led_to_with_tls_alone(address):
    assert HOOKS.allows_address(ipaddress.ip_address(address))
    assert not HOOKS.allows_address(ipaddress.ip_address(address), encrypted=False)


def test_a_network_that_was_named_is_led_to_and_no_other():
    for text, allowed in (("10.1.2.3", True), ("10.2.0.1", False), ("fd12::1", True)):
        assert PRIVATE.allows_address(ipaddress.ip_address(text), encrypted=False) is allowed
    assert PRIVATE.allows_address(ipaddress.ip_address("::ffff:10.1.0.1"))
    PRIVATE.check("http://anything.test/")


def resolving(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    def found(host: str, port: int, **given: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (x, port)) for x in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", found)


def test_the_address_that_is_connected_to_is_the_one_that_was_looked_at(monkeypatch):
    resolving(monkeypatch, "93.184.216.34")
    assert HOOKS.resolve("hooks.example.com", 443, encrypted=True) == ["93.184.216.34"]


@pytest.mark.parametrize(
    "addresses",
    [("127.0.0.1",), ("93.184.216.34", "10.0.0.1"), ("fe80::1%eth0",), ()],
)
def test_a_name_that_leads_inside_is_refused(monkeypatch, addresses):
    resolving(monkeypatch, *addresses)
    with pytest.raises(AddressRefused, match=r"hooks\.example\.com"):
        HOOKS.resolve("hooks.example.com", 443, encrypted=True)


def test_a_host_that_is_on_the_list_no_more_is_refused(monkeypatch):
    resolving(monkeypatch, "93.184.216.34")
    with pytest.raises(AddressRefused, match=r"old\.example\.com"):
        HOOKS.resolve("old.example.com", 443, encrypted=True)


@pytest.mark.parametrize(
    ("hosts", "networks", "said"),
    [
        (["a b"], [], "--webhook-host a b"),
        (["https://x.test"], [], "--webhook-host"),
        (["*x.test"], [], "--webhook-host"),
        (["x.test"], ["10.0.0.1/8"], "--webhook-network"),
        (["x.test"], ["x"], "--webhook-network"),
        ([], ["10.0.0.0/8"], "no host is allowed"),
    ],
)
def test_options_that_name_nothing_are_refused(hosts, networks, said):
    with pytest.raises(UsageError, match=said):
        destinations_of(hosts, networks)
