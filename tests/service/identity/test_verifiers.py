"""Which provider a token is shown to; reviews by a cluster; what is fetched over HTTP."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from service.access.auth import Auth, read_tokens
from service.handlers.problems import Refusal
from service.identity.fetching import FetchFailed, JsonRequest, fetch_json
from service.identity.token_review import AWAY_FACTOR, UNKNOWN_S, TokenReviewer
from service.identity.verifiers import Verifiers
from service.tenants.groups import Group, Members, Tenants
from service.tenants.providers import KubernetesProvider, OidcProvider, Providers
from tests.service.clocks import Clocks
from tests.service.identity.providers import ISSUER, Cluster, Issuer, http_provider

CLUSTER = KubernetesProvider("https://10.0.0.1:6443", "planner", cache_s=60.0)
POD = "system:serviceaccount:kueue-system:kueue"
USER = {
    "username": POD,
    "groups": ["system:serviceaccounts", "system:serviceaccounts:kueue-system"],
}


class Reviewing:
    """A reviewer of one cluster, with clocks that a test moves."""

    def __init__(self) -> None:
        self.cluster, self.clocks = Cluster(), Clocks()
        self.cluster.users["pod-token"] = USER
        self.reviewer = TokenReviewer(
            CLUSTER, self._fetch, self.clocks.monotonic, self.clocks.wall
        )

    async def _fetch(self, request: JsonRequest) -> Any:
        await asyncio.sleep(0)
        return self.cluster.fetch(request)

    async def name(self, token: bytes = b"pod-token", expires_at: float | None = None) -> str:
        try:
            return (await self.reviewer.identify(token, expires_at)).name
        except Refusal as refusal:
            return f"{refusal.status}"


def run(work: Callable[[Reviewing], Any]) -> Any:
    async def running() -> Any:
        return await work(Reviewing())

    return asyncio.run(running())


def test_a_review_says_who_and_holds_for_a_while():
    async def work(on: Reviewing) -> None:
        found = await on.reviewer.identify(b"pod-token")
        assert (found.name, found.how) == (f"kubernetes:{POD}", "kubernetes")
        assert "system:serviceaccounts:kueue-system" in found.groups
        names = await asyncio.gather(*(on.name() for _ in range(9)))
        assert set(names) == {f"kubernetes:{POD}"}
        assert len(on.cluster.asked) == 1
        sent = on.cluster.asked[0].body
        assert sent is not None
        assert sent["spec"]["audiences"] == ["planner"]
        on.clocks.pass_(CLUSTER.cache_s + 1.0)
        del on.cluster.users["pod-token"]
        assert await on.name() == "401"

    run(work)


def test_many_who_come_at_once_are_one_review():
    async def work(on: Reviewing) -> None:
        assert len(set(await asyncio.gather(*(on.name() for _ in range(30))))) == 1
        assert len(on.cluster.asked) == 1

    run(work)


def test_unknown_tokens_are_remembered_too_for_a_shorter_while():
    async def work(on: Reviewing) -> None:
        assert [await on.name(b"eve") for _ in range(3)] == ["401"] * 3
        assert len(on.cluster.asked) == 1
        on.clocks.pass_(UNKNOWN_S + 1.0)
        on.cluster.users["eve"] = {"username": "eve"}
        assert await on.name(b"eve") == "kubernetes:eve"

    run(work)


@pytest.mark.parametrize(
    "change",
    [
        lambda cluster: cluster.audiences.clear(),
        lambda cluster: setattr(cluster, "audiences", ["https://kubernetes.default.svc"]),
        lambda cluster: cluster.users.update({"pod-token": {"groups": ["x"]}}),
        lambda cluster: cluster.users.update({"pod-token": {"username": "a\nb"}}),
        lambda cluster: cluster.users.update({"pod-token": {"username": 7}}),
    ],
)
def test_tokens_for_others_and_reviews_without_a_name_open_nothing(change):
    async def work(on: Reviewing) -> None:
        change(on.cluster)
        assert await on.name() == "401"

    run(work)


def test_where_the_cluster_is_away_reviews_hold_longer_and_not_for_ever():
    async def work(on: Reviewing) -> None:
        assert (await on.name()).startswith("kubernetes:")
        on.cluster.is_away = True
        assert await on.name(b"new-token") == "503"
        on.clocks.pass_(CLUSTER.cache_s + 1.0)
        assert (await on.name()).startswith("kubernetes:")
        on.clocks.pass_(AWAY_FACTOR * CLUSTER.cache_s)
        assert await on.name() == "503"

    run(work)


def test_a_token_that_says_when_it_ends_is_not_known_after_that():
    async def work(on: Reviewing) -> None:
        assert (await on.name(expires_at=on.clocks.wall_s + 5.0)).startswith("kubernetes:")
        assert on.reviewer.known(b"pod-token") is not None
        on.clocks.pass_(6.0)
        assert on.reviewer.known(b"pod-token") is None

    run(work)


# All of them


class Everybody:
    """Static tokens, an issuer and a cluster behind one `Auth`."""

    def __init__(self) -> None:
        self.issuer, self.cluster = Issuer(), Cluster()
        self.cluster.users["pod-token"] = USER
        providers = Providers((OidcProvider("corp", ISSUER, "planner"),), CLUSTER)
        self.verifiers = Verifiers(providers, ["groups"], self._fetch)
        groups = [
            Group("a", members=Members(frozenset({"ann", "corp:ann"}))),
            Group("b", role="read", members=Members(kubernetes=frozenset(USER["groups"]))),
        ]
        tokens = read_tokens(
            "ann solve ann-0123456789abcdef until=2001-01-01\nann admin ann-rules-0123456789",
            "tokens",
        )
        self.auth = Auth(tokens, 3, Tenants(groups), self.verifiers)

    def _fetch(self, request: JsonRequest) -> Any:
        return (self.issuer if ISSUER in request.url else self.cluster).fetch(request)

    async def who(self, token: bytes, address: str = "10.0.0.1") -> tuple[str, str, str]:
        caller = await self.auth.identified(b"Bearer " + token, address)
        return caller.name, caller.role, caller.group.name

    async def refusal(self, token: bytes, address: str = "10.0.0.1") -> tuple[int, str]:
        with pytest.raises(Refusal) as caught:
            await self.auth.identified(b"Bearer " + token, address)
        return caught.value.status, caught.value.code


@pytest.fixture
def everybody():
    found = Everybody()
    yield found
    found.verifiers.close()


def test_each_token_goes_to_its_own_provider_alone(everybody):
    async def work() -> None:
        assert await everybody.who(b"ann-rules-0123456789") == ("ann", "admin", "a")
        assert await everybody.who(everybody.issuer.token()) == ("corp:ann", "solve", "a")
        assert not everybody.cluster.asked
        assert await everybody.who(b"pod-token") == (f"kubernetes:{POD}", "read", "b")
        n = len(everybody.cluster.asked)
        assert await everybody.refusal(everybody.issuer.token(aud="x")) == (401, "unauthenticated")
        assert await everybody.refusal(everybody.issuer.token(sub="bob")) == (403, "no-group")
        for odd in (b"\xff\x00", b"a b", b"x" * 9_000):
            assert await everybody.refusal(odd, "10.0.0.2") == (401, "unauthenticated")
        assert len(everybody.cluster.asked) == n

    asyncio.run(work())


def test_an_expired_token_of_the_file_opens_nothing_and_is_shown_to_nobody(everybody):
    async def work() -> None:
        assert await everybody.refusal(b"ann-0123456789abcdef") == (401, "unauthenticated")
        assert not everybody.cluster.asked

    asyncio.run(work())


def test_a_network_that_fails_too_often_does_not_keep_providers_busy(everybody):
    async def work() -> None:
        seen = [await everybody.refusal(f"guess-{n}".encode()) for n in range(6)]
        assert seen == [(401, "unauthenticated")] * 3 + [(429, "too-many-failures")] * 3
        assert len(everybody.cluster.asked) == 3
        assert (await everybody.who(b"ann-rules-0123456789"))[0] == "ann"
        assert (await everybody.who(b"pod-token", "10.0.0.9"))[2] == "b"
        assert (await everybody.who(b"pod-token"))[2] == "b"  # known by now

    asyncio.run(work())


def test_a_stream_ends_with_what_its_token_opened(everybody):
    async def work() -> None:
        caller = await everybody.auth.identified(b"Bearer pod-token")
        assert await caller.is_known()
        other = Verifiers(Providers(kubernetes=CLUSTER), (), everybody._fetch)
        everybody.auth.use_verifier(other)
        assert await caller.is_known()
        del everybody.cluster.users["pod-token"]
        third = Verifiers(Providers(kubernetes=CLUSTER), (), everybody._fetch)
        everybody.auth.use_verifier(third)
        assert not await caller.is_known()
        other.close()
        third.close()

    asyncio.run(work())


def test_a_stream_ends_with_the_role_that_its_group_gave(everybody):
    async def work() -> None:
        caller = await everybody.auth.identified(b"Bearer pod-token")
        groups = everybody.auth.tenants.groups
        assert await caller.is_known()
        other = "read" if caller.role != "read" else "solve"
        changed = {name: replace(group, role=other) for name, group in groups.items()}
        everybody.auth.tenants.replace(tuple(changed.values()), "")
        assert not await caller.is_known()

    asyncio.run(work())


# Over HTTP


def test_json_is_posted_with_the_token_of_the_moment(tmp_path):
    token = tmp_path / "token"
    seen = []

    def review(headers: Any, body: bytes) -> dict[str, Any]:
        seen.append((headers.get("authorization"), json.loads(body)))
        return {"status": {}}

    with http_provider({"/r": review}) as url:
        for text in ("first\n", "second"):
            token.write_text(text)
            asked = JsonRequest(f"{url}/r", body={"a": 1}, token_file=token)
            assert fetch_json(asked) == {"status": {}}
    assert seen == [("Bearer first", {"a": 1}), ("Bearer second", {"a": 1})]


@pytest.mark.parametrize(
    "answer",
    [
        (404, {}, b"{}"),
        (302, {"location": "/ok"}, b""),
        (200, {}, b"no json"),
        (200, {}, b"[1]"),
        (200, {}, b'"' + b"x" * 1_000_001 + b'"'),
        (200, {}, b"[" * 100_000),
    ],
)
def test_nothing_else_is_taken_for_an_answer(answer):
    with http_provider({"/": answer, "/ok": {"keys": []}}) as url, pytest.raises(FetchFailed):
        fetch_json(JsonRequest(f"{url}/"))


def test_nobody_there_and_files_that_are_missing_are_told(tmp_path):
    for request in (
        JsonRequest("http://127.0.0.1:9/"),
        JsonRequest("http://127.0.0.1:9/", token_file=tmp_path / "none"),
        JsonRequest("https://127.0.0.1:9/", ca=tmp_path / "none"),
    ):
        with pytest.raises(FetchFailed):
            fetch_json(request)
