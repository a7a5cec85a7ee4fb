"""The server as clients meet it: in this process, over stdio, and over HTTP with tokens."""

import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
import uvicorn
from mcp import Client, StdioServerParameters

from planner import __version__
from service.access.auth import Auth, read_tokens
from service.agents import server as server_module
from service.agents.server import make_server, tool_list
from service.agents.tools import TOOLS, call_tool
from service.agents.transports import http_app
from service.settings.serving import Serving
from tests.planner.command import run_here
from tests.service.agents.desk import SMALL, new_desk, with_cache

TOKENS = "ann solve ann-0123456789abcdef\nbob read bob-0123456789abcdef\n"


def asked(server: Any, ask: Callable[[Client], Awaitable[Any]], mode: str = "auto") -> Any:
    """Return what a function makes of a client of a server."""

    async def run() -> Any:
        async with Client(server, mode=mode) as client:
            return await ask(client)

    return anyio.run(run)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_tools_answer_through_the_protocol_as_they_do_here(mode: str) -> None:
    desk = new_desk()

    async def ask(client: Client) -> Any:
        return await client.call_tool("evaluate", {**SMALL, "pins": {"tp": 8}})

    result = asked(make_server(desk), ask, mode)
    text, data = call_tool("evaluate", {**SMALL, "pins": {"tp": 8}}, new_desk())
    assert (result.content[0].text, result.structured_content) == (text, data)
    assert not result.is_error


def test_tools_are_listed_in_order_and_marked_as_harmless() -> None:
    async def ask(client: Client) -> Any:
        return (await client.list_tools()).tools

    tools = asked(make_server(new_desk()), ask)
    assert [tool.name for tool in tools] == list(TOOLS)
    assert all(tool.annotations.read_only_hint for tool in tools)
    assert tools[0].input_schema["required"] == ["model", "cluster"]


def test_the_list_of_tools_stays_within_what_a_conversation_has_room_for() -> None:
    text = json.dumps([tool.model_dump(by_alias=True, exclude_none=True) for tool in tool_list()])
    assert len(text) < 58_500


def test_a_refusal_is_an_answer_with_a_mark() -> None:
    async def ask(client: Client) -> Any:
        return await client.call_tool("solve", {**SMALL, "pins": {"tpp": 8}})

    result = asked(make_server(new_desk()), ask)
    assert result.is_error
    assert result.structured_content["refused"] == "bad-option"
    assert result.content[0].text.startswith("Refused (bad-option): solve\n")


@pytest.mark.parametrize("shares_cache", [True, False], ids=["stdio", "http"])
def test_resources_are_pages_examples_and_results(
    shares_cache: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_cache(monkeypatch, tmp_path)
    desk = new_desk(shares_cache=shares_cache)

    async def ask(client: Client) -> Any:
        solved = (await client.call_tool("solve", {**SMALL, "top": 1})).structured_content
        listed = [str(x.uri) for x in (await client.list_resources()).resources]
        address = f"planner://results/{solved['result_id']}"
        assert (address in listed) == shares_cache  # callers over HTTP are strangers
        texts = {
            uri: (await client.read_resource(uri)).contents[0].text
            for uri in (address, "planner://docs/SKILL", "planner://examples/models/llama3-8b")
        }
        templates = (await client.list_resource_templates()).resource_templates
        return listed, [*texts.values()], templates

    listed, (result, skill, example), templates = asked(make_server(desk), ask)
    assert json.loads(result)["plans"][0]["rank"] == 1
    assert skill.startswith("---\nname: planner\n")
    assert "seq_len: 8192" in example
    assert len(listed) > 40
    assert len(templates) == 4


@pytest.mark.parametrize(
    "address",
    [
        "planner://docs/../README",
        "planner://docs/threat_model",
        "planner://results/../../etc/passwd",
        "planner://examples/models/../clusters/h100-x8",
        "file:///etc/passwd",
    ],
)
def test_no_other_file_is_a_resource(address: str) -> None:
    async def ask(client: Client) -> Any:
        with pytest.raises(Exception, match="no re"):
            await client.read_resource(address)
        return True

    assert asked(make_server(new_desk()), ask)


def test_who_asks_for_progress_is_told() -> None:
    told: list[tuple[float, float]] = []

    async def tell(done: float, total: float | None, message: str | None) -> None:
        told.append((done, total or 0.0))

    async def ask(client: Client) -> Any:
        question = {"model": "llama3-8b", "cluster": "h100-x512", "top": 1}
        return await client.call_tool("solve", question, progress_callback=tell)

    assert not asked(make_server(new_desk()), ask).is_error
    assert told
    assert told[-1][0] == told[-1][1]


def test_a_caller_that_goes_away_ends_its_search(monkeypatch: pytest.MonkeyPatch) -> None:
    stops: list[Callable[[], bool]] = []

    def waiting(name: str, arguments: Any, desk: Any) -> Any:
        stops.append(desk.running.stop)
        end = time.monotonic() + 10.0
        while not desk.running.stop() and time.monotonic() < end:
            time.sleep(0.01)
        return "", {}

    monkeypatch.setattr(server_module, "call_tool", waiting)

    async def ask(client: Client) -> Any:
        with anyio.move_on_after(0.3):
            await client.call_tool("solve", SMALL)
        with anyio.fail_after(5.0):
            while not stops[0]():
                await anyio.sleep(0.01)
        return True

    assert asked(make_server(new_desk()), ask)


def test_a_client_starts_it_over_stdio(tmp_path: Path) -> None:
    planner = str(Path(sys.executable).with_name("planner"))
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    server = StdioServerParameters(command=planner, args=["mcp"], env=environment)

    async def ask(client: Client) -> Any:
        rule = await client.call_tool("rule", {"code": "TP002"})
        spec = await client.call_tool("check_spec", {"document": str(tmp_path / "none.yaml")})
        return client.server_info, rule.content[0].text, spec

    info, rule, spec = asked(server, ask)
    assert (info.name, info.version) == ("planner", __version__)
    assert rule == run_here("rule", "TP002").stdout
    assert spec.is_error
    assert "no such file" in str(spec.structured_content).lower()


@contextmanager
def listening(tokens: str = "") -> Iterator[str]:
    """Serve over HTTP at a free port; yield its address."""
    auth = Auth(read_tokens(tokens, "tokens") if tokens else ())
    app = http_app(auth, Serving(), 60.0)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    end = time.monotonic() + 20.0
    while not server.started and time.monotonic() < end:
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}/mcp"
    server.should_exit = True
    thread.join(20.0)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_it_answers_over_http_and_opens_no_file(mode: str) -> None:
    async def ask(client: Client) -> Any:
        rule = await client.call_tool("rule", {"code": "TP002"})
        file = await client.call_tool("check_spec", {"document": __file__})
        return rule.content[0].text, file.structured_content["refused"]

    with listening() as address:
        rule, refusal = asked(address, ask, mode)
    assert rule == run_here("rule", "TP002").stdout
    assert refusal == "path-or-url"


def test_pages_of_other_origins_and_names_do_not_reach_it() -> None:
    with listening() as address:
        foreign = [{"Host": "evil.example"}, {"Origin": "https://evil.example"}]
        answers = [httpx.post(address, json={}, headers=each) for each in foreign]
    assert [answer.status_code for answer in answers] == [421, 403]


def test_tokens_are_asked_for_and_a_role_that_reads_prices_nothing() -> None:
    sent = {"": 401, "Bearer nobody-0123456789": 401, "Bearer bob-0123456789abcdef": 403}
    with listening(TOKENS) as address:
        answers = {
            token: httpx.post(address, json={}, headers={"Authorization": token} if token else {})
            for token in sent
        }
        known = httpx.post(
            address, json={}, headers={"Authorization": "Bearer ann-0123456789abcdef"}
        )
    assert {token: answer.status_code for token, answer in answers.items()} == sent
    assert answers[""].headers["WWW-Authenticate"] == "Bearer"
    assert known.status_code not in (401, 403)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--transport", "tcp"), "stdio or http"),
        (("--time-limit", "0"), "above 0"),
        (("--insecure",), "--transport http"),
        (("--transport", "http", "--host", "0.0.0.0"), "--token-file"),
    ],
)
def test_senseless_options_are_refused(words: tuple[str, ...], said: str) -> None:
    refused = run_here("mcp", *words)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert said in " ".join(refused.stderr.split())


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.stdio", None)
    monkeypatch.delitem(sys.modules, "service.agents.transports", raising=False)
    refused = run_here("mcp")
    assert refused.returncode == 2
    assert "parallelism-planner[mcp]" in refused.stderr


def test_the_package_of_the_protocol_is_loaded_by_its_command_alone() -> None:
    import subprocess

    code = "import service.agents.tools, planner.cli.app, sys; sys.exit('mcp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
