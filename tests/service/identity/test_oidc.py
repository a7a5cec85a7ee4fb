"""Tokens of OIDC issuers: what opens, what does not, keys that are rotated and issuers away."""

import asyncio
import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization

from service.handlers.problems import Refusal
from service.identity import key_sets
from service.identity.key_sets import FRESH_S, LEAST_S, STALE_S, keys_of
from service.identity.oidc import OidcVerifier
from service.tenants.groups import Identity
from service.tenants.providers import OidcProvider
from tests.service.clocks import Clocks
from tests.service.identity.providers import ISSUER, Issuer

PROVIDER = OidcProvider("corp", ISSUER, "planner")


class Verifying:
    """A verifier of one issuer, with clocks that a test moves."""

    def __init__(self, provider: OidcProvider = PROVIDER) -> None:
        self.issuer, self.clocks = Issuer(), Clocks()
        self.clocks.wall_s = time.time()  # pyjwt looks at the clock of the machine
        self.verifier = OidcVerifier(
            provider, ["groups"], self._fetch, self.clocks.monotonic, self.clocks.wall
        )

    async def _fetch(self, request: Any) -> Any:
        await asyncio.sleep(0)
        return self.issuer.fetch(request)

    async def identify(self, token: bytes) -> Identity:
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            header = {}
        return await self.verifier.identify(token, header)


def run(work: Callable[[Verifying], Any], provider: OidcProvider = PROVIDER) -> Any:
    async def running() -> Any:
        return await work(Verifying(provider))

    return asyncio.run(running())


async def refused(work: Any) -> tuple[int, str]:
    with pytest.raises(Refusal) as caught:
        await work
    return caught.value.status, caught.value.detail


def test_a_token_says_who_and_which_groups():
    async def work(on: Verifying) -> None:
        token = on.issuer.token(groups=["capacity", 7, "x"], secret="s" * 100)
        found = await on.identify(token)
        assert (found.name, found.how) == ("corp:ann", "oidc")
        assert found.claims == {"groups": ("capacity", "x")}  # what groups are told by, no more
        assert await on.identify(token) == found
        assert on.verifier.known(token) == found
        assert on.issuer.n_fetched == 1

    run(work)


def forged(issuer: Issuer, **changes: Any) -> bytes:
    """Return a token whose header says something else than how it was signed."""
    head, body, signature = issuer.token().split(b".")
    header = json.loads(_opened(head)) | changes
    return b".".join((_closed(json.dumps(header).encode()), body, signature))


def _opened(part: bytes) -> bytes:
    from base64 import urlsafe_b64decode

    return urlsafe_b64decode(part + b"=" * (-len(part) % 4))


def _closed(part: bytes) -> bytes:
    return urlsafe_b64encode(part).rstrip(b"=")


def by_secret(issuer: Issuer) -> bytes:
    """Return a token signed with the public key as if it were a secret."""
    import hashlib
    import hmac

    public = issuer.keys[issuer.kid].public_key()
    pem = public.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    claims = {"iss": ISSUER, "aud": "planner", "sub": "eve", "exp": int(time.time() + 600)}
    head = _closed(json.dumps({"alg": "HS256", "typ": "JWT", "kid": issuer.kid}).encode())
    signed = head + b"." + _closed(json.dumps(claims).encode())
    return signed + b"." + _closed(hmac.new(pem, signed, hashlib.sha256).digest())


BAD = {
    "expired": lambda issuer: issuer.token(exp=int(time.time() - 60)),
    "without an end": lambda issuer: issuer.token(exp=None),
    "not yet": lambda issuer: issuer.token(nbf=int(time.time() + 300)),
    "for another service": lambda issuer: issuer.token(aud="grafana"),
    "for nobody": lambda issuer: issuer.token(aud=None),
    "of another issuer": lambda issuer: issuer.token(iss="https://idp.example.evil"),
    "without a name": lambda issuer: issuer.token(sub=None),
    "with a name of many lines": lambda issuer: issuer.token(sub="ann\nadmin"),
    "with a long name": lambda issuer: issuer.token(sub="a" * 500),
    "unsigned": lambda issuer: forged(issuer, alg="none"),
    "signed with the public key": by_secret,
    "of another algorithm": lambda issuer: forged(issuer, alg="ES512"),
    "of an unknown key": lambda issuer: forged(issuer, kid="k99"),
    "with extensions": lambda issuer: issuer.token(header={"crit": ["x"], "x": 1}),
    "changed": lambda issuer: issuer.token()[:-8] + b"AAAAAAAA",
}


@pytest.mark.parametrize("what", BAD)
def test_no_other_token_opens_anything(what):
    async def work(on: Verifying) -> None:
        token = BAD[what](on.issuer)
        status, detail = await refused(on.identify(token))
        assert status == 401
        assert token.decode() not in detail
        assert on.verifier.known(token) is None

    run(work)


def test_the_name_may_be_another_claim():
    async def work(on: Verifying) -> None:
        found = await on.identify(on.issuer.token(email="ann@corp.example"))
        assert found.name == "corp:ann@corp.example"

    run(work, OidcProvider("corp", ISSUER, "planner", name_claim="email"))


def test_rotated_keys_are_fetched_when_a_token_names_them_and_not_more_often():
    async def work(on: Verifying) -> None:
        old = on.issuer.token()
        await on.identify(old)
        on.issuer.rotate("k2")
        new = on.issuer.token()
        assert (await refused(on.identify(new)))[0] == 401  # fetched a moment ago
        on.clocks.pass_(LEAST_S + 1.0)
        assert (await on.identify(new)).name == "corp:ann"
        assert on.issuer.n_fetched == 2
        assert (await refused(on.identify(old)))[0] == 401  # its key is gone
        for n in range(20):
            await refused(on.identify(forged(on.issuer, kid=f"x{n}")))
        assert on.issuer.n_fetched == 2

    run(work)


def test_a_key_that_was_withdrawn_opens_nothing_though_its_token_was_known():
    async def work(on: Verifying) -> None:
        token = on.issuer.token()
        await on.identify(token)
        on.issuer.rotate("k2")
        on.clocks.pass_(FRESH_S + 1.0)
        assert on.verifier.known(token) is None  # not without a look at the keys
        assert (await on.identify(token)).name == "corp:ann"  # which are fetched beside it
        while on.issuer.n_fetched < 2:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (await refused(on.identify(token)))[0] == 401

    run(work)


def test_keys_hold_for_a_while_where_the_issuer_is_away_and_then_nobody_is_known():
    async def work(on: Verifying) -> None:
        token = on.issuer.token(exp=int(time.time() + 10 * STALE_S))
        await on.identify(token)
        on.issuer.is_away = True
        on.clocks.pass_(FRESH_S + 1.0)
        assert (await on.identify(token)).name == "corp:ann"
        on.clocks.pass_(STALE_S)
        assert (await refused(on.identify(token)))[0] == 503
        on.issuer.is_away = False
        on.clocks.pass_(LEAST_S + 1.0)
        assert (await on.identify(token)).name == "corp:ann"

    run(work)


def test_an_issuer_that_is_away_from_the_start_is_told_as_such():
    async def work(on: Verifying) -> None:
        on.issuer.is_away = True
        found = await asyncio.gather(
            *(refused(on.identify(on.issuer.token(sub=f"s{n}"))) for n in range(5))
        )
        assert {status for status, _ in found} == {503}

    run(work)


@pytest.mark.parametrize(
    "document",
    [
        {"issuer": "https://idp.example.evil", "jwks_uri": f"{ISSUER}/keys"},
        {"issuer": ISSUER},
        {"issuer": ISSUER, "jwks_uri": "http://idp.example/keys"},
        {"issuer": ISSUER, "jwks_uri": "file:///etc/passwd"},
    ],
)
def test_a_discovery_document_of_somebody_else_is_not_followed(document):
    async def work(on: Verifying) -> None:
        fetched = []

        async def fetch(request: Any) -> Any:
            fetched.append(request.url)
            return document

        keys = key_sets.KeySet(PROVIDER, fetch, on.clocks.monotonic)
        assert (await refused(keys.key("k1")))[0] == 503
        assert fetched == [f"{ISSUER}/.well-known/openid-configuration"]

    run(work)


def test_only_public_keys_for_signatures_are_taken():
    rows = Issuer().jwks()["keys"]
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "s"}
    sealed = {**rows[0], "kid": "e", "use": "enc"}
    odd = [{"kty": "EC"}, "x", {**rows[0], "crv": "no", "kid": "c"}, {**rows[0], "alg": "HS256"}]
    found = keys_of({"keys": [secret, sealed, *odd, *rows]})
    assert list(found) == ["k1"]
    assert "HS256" not in found["k1"].algorithms
    assert keys_of({"keys": "x"}) == keys_of({}) == {}


def test_tokens_that_are_remembered_are_bounded():
    from service.identity.remembered import Confirmed, Remembered

    found = Remembered(most=3)
    for n in range(10):
        found.put(bytes([n]), Confirmed(None, 0.0))
    assert len(found) == 3
    assert found.get(bytes([9])) is not None
