"""Tokens, groups and providers that change while the service runs."""

import asyncio
import logging
import os
from pathlib import Path

import pytest

from planner.errors import SpecError, UsageError
from service.access.auth import read_tokens, warn_of_expiry
from service.handlers.problems import Refusal
from service.settings.callers import Callers
from service.settings.serving import Serving
from tests.service.identified import identified

ANN, BOB = "ann-0123456789abcdef", "bob-0123456789abcdef"
GROUPS = "groups:\n  a: {{members: {{names: [{}]}}}}\n"
OIDC = """\
identity:
  oidc: [{name: corp, issuer: "https://idp.example", audience: planner}]
"""


def changed(file: Path, text: str) -> None:
    """Write a file so that its stamp is another one, however coarse the clock of the disk."""
    before = file.stat().st_mtime_ns
    file.write_text(text)
    os.utime(file, ns=(before + 10**9, before + 10**9))


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    tokens, tenants = tmp_path / "tokens", tmp_path / "tenants.yaml"
    tokens.write_text(f"ann solve {ANN}\n")
    tokens.chmod(0o600)
    tenants.write_text(GROUPS.format("ann"))
    return tokens, tenants


@pytest.fixture
def callers(files):
    told: list[str] = []
    found = Callers(Serving(token_file=files[0], tenants=files[1]), told.append)
    found.told = told
    yield found
    found.close()


def look(callers: Callers) -> None:
    asyncio.run(callers.look())


def code(callers: Callers, token: str) -> str:
    with pytest.raises(Refusal) as caught:
        identified(callers.auth, f"Bearer {token}")
    return caught.value.code


def test_files_that_change_are_read_again_without_a_restart(callers, files):
    assert identified(callers.auth, f"Bearer {ANN}").group.name == "a"
    look(callers)
    assert callers.told == []
    changed(files[0], f"bob admin {BOB}\n")
    look(callers)
    assert code(callers, ANN) == "unauthenticated"
    assert code(callers, BOB) == "no-group"
    changed(files[1], GROUPS.format("bob"))
    look(callers)
    assert identified(callers.auth, f"Bearer {BOB}").group.name == "a"
    assert callers.told == ["callers-read"] * 2


def test_a_file_that_was_replaced_by_a_link_to_another_is_read_again(tmp_path):
    """As Kubernetes replaces the files of a Secret."""
    for n, (name, token) in enumerate((("ann", ANN), ("bob", BOB))):
        (tmp_path / f"{n}").mkdir()
        (tmp_path / f"{n}" / "tokens").write_text(f"{name} solve {token}\n")
    link = tmp_path / "now"
    link.symlink_to(tmp_path / "0")
    callers = Callers(Serving(token_file=link / "tokens"))
    assert identified(callers.auth, f"Bearer {ANN}").name == "ann"
    other = tmp_path / "next"
    other.symlink_to(tmp_path / "1")
    other.replace(link)
    look(callers)
    assert identified(callers.auth, f"Bearer {BOB}").name == "bob"


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("text", ["", "groups: {a: {wieght: 1}}\n", "x" * 2_000_000])
def test_files_that_are_wrong_change_nothing(callers, files, which, text, caplog):
    changed(files[which], text)
    with caplog.at_level(logging.ERROR, logger="planner.service"):
        look(callers)
        callers.read_again()
    assert "stay as they were" in caplog.text
    assert ANN not in caplog.text
    assert identified(callers.auth, f"Bearer {ANN}").group.name == "a"
    assert callers.told == ["callers-unreadable"] * 2
    files[which].unlink()
    look(callers)
    assert identified(callers.auth, f"Bearer {ANN}").group.name == "a"


def test_looks_come_by_themselves(callers, files):
    async def running() -> None:
        looking = asyncio.create_task(callers.keep_fresh(0.01))
        changed(files[0], f"bob admin {BOB}\n")
        async with asyncio.timeout(20.0):
            while not callers.told:
                await asyncio.sleep(0.01)
        looking.cancel()

    asyncio.run(running())
    assert callers.told == ["callers-read"]


def test_providers_that_go_leave_no_door_open(tmp_path):
    file = tmp_path / "tenants.yaml"
    file.write_text(GROUPS.format("ann") + OIDC)
    callers = Callers(Serving(host="0.0.0.0", tenants=file))
    assert callers.auth.asks
    changed(file, GROUPS.format("local"))
    look(callers)
    assert callers.auth.asks
    assert code(callers, ANN) == "unauthenticated"
    callers.close()


def test_a_start_needs_files_that_are_right(tmp_path, files):
    with pytest.raises(UsageError, match="no tokens"):
        Callers(Serving(host="0.0.0.0", tenants=files[1]))
    files[1].write_text("groups: []\n")
    with pytest.raises(SpecError):
        Callers(Serving(tenants=files[1]))


# Tokens that end


@pytest.mark.parametrize(
    ("until", "at_s"),
    [
        ("until=1970-01-01", 86_400.0),
        ("until=1970-01-01T00:01:00Z", 60.0),
        ("until=1970-01-01T01:00:00+01:00", 0.0),
    ],
)
def test_a_token_may_say_until_when(until, at_s):
    assert read_tokens(f"ann solve {ANN} {until}", "t")[0].expires_at == at_s


@pytest.mark.parametrize(
    ("until", "said"),
    [
        ("2027-01-01", "until="),
        ("until=soon", "no day"),
        ("until=2027-13-01", "no day"),
        ("until=2027-01-01T00:00:00", "time zone"),
        ("until=9999-12-31", "no day"),
    ],
)
def test_what_is_no_day_is_said_with_its_line(until, said):
    with pytest.raises(UsageError) as caught:
        read_tokens(f"# x\nann solve {ANN} {until}", "t")
    assert caught.value.message.startswith("t:2: ")
    assert said in str(caught.value)
    assert ANN not in str(caught.value)


def test_names_whose_last_token_ends_soon_are_logged(caplog):
    text = (
        f"ann solve {ANN} until=2030-01-01\nbob solve {BOB} until=2030-01-01\nbob solve {BOB}2\n"
    )
    tokens = read_tokens(text, "t")
    end_s = tokens[0].expires_at
    assert end_s is not None
    with caplog.at_level(logging.WARNING, logger="planner.service"):
        warn_of_expiry(tokens, end_s - 30 * 86_400.0)
        assert not caplog.records
        warn_of_expiry(tokens, end_s - 86_400.0)
        warn_of_expiry(tokens, end_s + 1.0)
    said = [record.getMessage() for record in caplog.records]
    assert [text.split(" at ")[0] for text in said] == [
        "the last token of ann expires",
        "the last token of ann has expired",
    ]
