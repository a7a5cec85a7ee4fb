"""The server as clients meet it: in this process, over stdio, and over HTTP with tokens."""

import asyncio
import contextlib
import json
import socket
import ssl
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
import uvicorn
from mcp import Client, StdioServerParameters

from planner import __version__
from service.access.admission import Rates
from service.access.auth import Auth, read_tokens
from service.agents import server as server_module
from service.agents import transports
from service.agents.server import make_server, tool_list
from service.agents.tools import TOOLS, call_tool
from service.agents.transports import TokenGate, http_app, serve_http_forever
from service.handlers.limits import RequestLimits
from service.settings.serving import Serving
from tests.planner.command import run_here
from tests.service.agents.desk import SMALL, new_desk, with_cache
from tests.service.process.test_serve_hardened import certificate
from tests.service.waiting import wait_until

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
    assert len(text) < 61_500


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


class Served:
    """`planner mcp` over HTTP in a thread, as its options have it."""

    def __init__(self, serving: Serving) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self.address = ""
        self._thread = threading.Thread(target=self._run, args=(serving,), daemon=True)
        self._thread.start()
        wait_until(lambda: bool(self.address))

    def _run(self, serving: Serving) -> None:
        async def run() -> None:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            with contextlib.suppress(asyncio.CancelledError):
                await serve_http_forever(serving, 60.0, self._ready)

        asyncio.run(run())

    def _ready(self, address: str) -> None:
        self.address = address

    def close(self) -> None:
        assert self._loop is not None
        assert self._task is not None
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(20.0)


ASKED = {"Accept": "application/json, text/event-stream"}


def test_it_serves_tls_with_bounds_and_reads_its_files_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.settings.callers.Callers.keep_fresh.__defaults__", (0.02,))
    cert, key = certificate(tmp_path)
    tokens, audit = tmp_path / "tokens", tmp_path / "audit"
    tokens.write_text(TOKENS)
    limits = replace(RequestLimits(), connections_per_address=2)
    serving = Serving(
        port=0, token_file=tokens, tls_cert=cert, tls_key=key, audit_log=str(audit), limits=limits
    )
    served = Served(serving)
    trusted = ssl.create_default_context(cafile=str(cert))

    def status(token: str) -> int:
        headers = {**ASKED, "Authorization": f"Bearer {token}"}
        return httpx.post(served.address, json={}, headers=headers, verify=trusted).status_code

    try:
        assert served.address.startswith("https://")
        assert status("ann-0123456789abcdef") not in (401, 403)
        assert status("eve-0123456789abcdef") == 401
        tokens.write_text("eve solve eve-0123456789abcdef\n")
        wait_until(lambda: status("ann-0123456789abcdef") == 401)
        assert status("eve-0123456789abcdef") not in (401, 403)
        port = int(served.address.split(":")[2].partition("/")[0])
        with contextlib.ExitStack() as open_:
            first, *others = [
                open_.enter_context(
                    trusted.wrap_socket(
                        socket.create_connection(("127.0.0.1", port), 20.0),
                        server_hostname="127.0.0.1",
                    )
                )
                for _ in range(3)
            ]
            first.settimeout(20.0)
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                assert first.recv(1) == b""  # the oldest idle one ended for the third
            assert len(others) == 2
    finally:
        served.close()
    found = [json.loads(line) for line in audit.read_text().splitlines()]
    events = [line["event"] for line in found]
    assert (events[0], events[-1]) == ("started", "stopped")
    assert "callers-read" in events
    asked_by = [(x.get("caller"), x["outcome"]) for x in found if x["event"] == "request"]
    assert asked_by[:2] == [("ann", asked_by[0][1]), (None, "refused")]
    assert all(x["transport"] == "mcp" for x in found if x["event"] == "request")
    assert "0123456789abcdef" not in audit.read_text()


def test_a_stream_ends_with_the_token_that_opened_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "KNOWN_S", 0.01)
    ended = []

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        try:
            await asyncio.sleep(3_600.0)
        finally:
            ended.append(scope["path"])

    async def work() -> None:
        auth = Auth(read_tokens(TOKENS, "tokens"))
        gate = TokenGate(endless, auth, Rates(100.0, 100))
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/mcp",
            "client": ("10.0.0.1", 1),
            "headers": [(b"authorization", b"Bearer ann-0123456789abcdef")],
        }
        streaming = asyncio.create_task(gate(scope, lambda: None, lambda message: None))
        await asyncio.sleep(0.05)
        assert not streaming.done()
        auth.replace(read_tokens("eve solve eve-0123456789abcdef", "tokens"))
        await asyncio.wait_for(streaming, 20.0)

    asyncio.run(work())
    assert ended == ["/mcp"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--transport", "tcp"), "stdio or http"),
        (("--tls-cert", "cert.pem"), "--transport http"),
        (("--transport", "http", "--tls-cert", "cert.pem"), "--tls-key"),
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
