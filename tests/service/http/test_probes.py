"""The listener of probes: answered while that of questions is full."""

import asyncio
import urllib.error
import urllib.request
from dataclasses import replace

import pytest

from service.http.bound_socket import listening
from service.process.http_server import http_server, probe_server
from service.rest.application import Rest
from service.settings.certificates import Certificates
from service.settings.serving import Serving
from tests.service.serving import SETTINGS, calls_engine
from tests.service.waiting import PATIENCE_S


def status_of(address: str) -> int:
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_probes_have_connections_of_their_own(tmp_path):
    serving = Serving(port=0, limits=replace(SETTINGS, connections=2), root_path="/planner")
    certificates = Certificates(serving)

    async def asked() -> dict[str, int]:
        async with calls_engine(tmp_path, pytest.fail) as engine:
            rest = Rest(engine, None, SETTINGS)
            servers = [
                http_server(rest, serving, certificates),
                probe_server(rest, serving, certificates),
            ]
            at = [listening(serving) for _ in servers]
            ports = [each.getsockname()[1] for each in at]
            running = [
                asyncio.create_task(server.serve([each]))
                for server, each in zip(servers, at, strict=True)
            ]
            while not all(server.started for server in servers):
                await asyncio.sleep(0.01)
            held = [await asyncio.open_connection("127.0.0.1", ports[0]) for _ in range(2)]
            for _, writer in held:
                writer.write(
                    b"POST /v1/specs:check HTTP/1.1\r\nHost: localhost\r\n"
                    b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
                )
                await writer.drain()
            await asyncio.sleep(0.2)
            found = {
                f"{name} {path}": await asyncio.to_thread(
                    status_of, f"http://127.0.0.1:{port}{path}"
                )
                for name, port in zip(("all", "probes"), ports, strict=True)
                for path in ("/livez", "/readyz", "/v1/version")
            }
            for _, writer in held:
                writer.close()
            for server in servers:
                server.should_exit = True
            await asyncio.gather(*running)
            return found

    found = asyncio.run(asked())
    assert {name: found[name] for name in found if name.startswith("probes")} == {
        "probes /livez": 200,
        "probes /readyz": 200,
        "probes /v1/version": 404,
    }
    assert found["all /livez"] == 503
