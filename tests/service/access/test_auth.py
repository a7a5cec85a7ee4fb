"""The token file, and who may start a service without one."""

import hashlib

import pytest

from planner.errors import UsageError
from service.access.auth import Auth, check_exposure, read_tokens, tokens_of
from service.handlers.problems import Refusal
from tests.service.identified import identified

TOKEN = "0123456789abcdef"
HASHED = hashlib.sha256(b"another-long-token").hexdigest()
FILE = f"# who\n\nann solve {TOKEN}\n  bob  admin   sha256:{HASHED}\n"


def test_a_token_names_its_caller_and_the_file_may_hold_hashes():
    auth = Auth(read_tokens(FILE, "tokens"))
    ann = identified(auth, f"Bearer {TOKEN}", "10.0.0.1")
    assert (ann.name, ann.role, ann.address) == ("ann", "solve", "10.0.0.1")
    bob = identified(auth, b"bearer another-long-token")
    assert (bob.name, bob.role) == ("bob", "admin")


@pytest.mark.parametrize(
    "sent",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        TOKEN,
        f"Bearer {HASHED}",
        f"Bearer sha256:{HASHED}",
        b"Bearer \xff\x00",
    ],
)
def test_nothing_else_is_let_in(sent):
    with pytest.raises(Refusal) as caught:
        identified(Auth(read_tokens(FILE, "tokens")), sent)
    assert caught.value.status == 401
    assert TOKEN not in caught.value.detail


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("ann solve", 1, "2 fields"),
        (f"# x\nann root {TOKEN}", 2, "unknown role 'root'"),
        ("ann solve short", 1, "at least 16"),
        (f"a/b solve {TOKEN}", 1, "the name"),
        ("ann solve sha256:12", 1, "not the hash"),
        (f"ann read {TOKEN}\nbob read {TOKEN}", 2, "already"),
    ],
)
def test_what_is_wrong_in_the_file_is_said_with_its_line_and_without_the_token(text, line, said):
    with pytest.raises(UsageError) as caught:
        read_tokens(text, "tokens")
    assert caught.value.message.startswith(f"tokens:{line}: ")
    assert said in caught.value.message
    assert TOKEN not in str(caught.value)


def test_a_file_without_tokens_lets_nobody_in_by_mistake(tmp_path):
    empty = tmp_path / "tokens"
    empty.write_text("# none\n")
    with pytest.raises(UsageError, match="holds no token"):
        tokens_of(empty)
    with pytest.raises(UsageError, match="cannot be read"):
        tokens_of(tmp_path / "missing")


def test_other_tokens_take_over_but_never_none():
    auth = Auth(read_tokens(FILE, "tokens"))
    auth.replace(())
    with pytest.raises(Refusal):
        identified(auth, None)
    auth.replace(read_tokens("eve read eve-knows-no-limits", "tokens"))
    assert identified(auth, "Bearer eve-knows-no-limits").name == "eve"
    with pytest.raises(Refusal):
        identified(auth, f"Bearer {TOKEN}")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "planner.example.org", "[::]"])
def test_what_others_reach_is_not_started_without_tokens(host):
    with pytest.raises(UsageError, match="no tokens"):
        check_exposure(host, has_tokens=False, insecure=False)
    check_exposure(host, has_tokens=True, insecure=False)
    check_exposure(host, has_tokens=False, insecure=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_loopback_needs_none(host):
    check_exposure(host, has_tokens=False, insecure=False)
