"""`planner ui`: which service it opens, and what it says."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.errors import UsageError
from service.process import ui as browsing
from service.settings.serving import Serving


@pytest.fixture
def address() -> Iterator[str]:
    """A server that says it is planner below /p, and is something else beside it."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            title = "planner" if self.path == "/p/openapi.json" else "other"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"info": {"title": title}}).encode())

        def log_message(self, *given: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("ending", ["", "/", "/ui"])
def test_the_page_of_a_service_that_runs(address, ending, capsys):
    browsing.ui_main(f"{address}/p{ending}", Serving(), browser=False)
    assert capsys.readouterr().out == f"{address}/p/ui\n"


def test_what_is_no_service_is_said_with_what_to_do(address):
    for given in (address, "http://127.0.0.1:9", "planner.example", "file:///etc/passwd"):
        with pytest.raises(UsageError, match=r"no planner answers|is no address"):
            browsing.page_address(given)


def test_a_browser_that_cannot_be_opened_is_said(capsys):
    seen: list[str] = []
    browsing.show_ui("http://x/ui", True, lambda page: bool(seen.append(page)))
    said = capsys.readouterr()
    assert (seen, said.out) == (["http://x/ui"], "http://x/ui\n")
    assert "open the address yourself" in said.err
    browsing.show_ui("http://x/ui", False, lambda page: bool(seen.append(page)))
    assert len(seen) == 1


def test_one_is_started_where_none_runs_and_on_another_port_where_that_is_taken(
    address, monkeypatch, tmp_path: Path
):
    started: list[int] = []

    async def start(serving: Serving, browser: bool) -> None:
        started.append(serving.port)
        if serving.port:
            raise UsageError(f"{serving.host} port {serving.port}: in use", "another --port")

    monkeypatch.setattr(browsing, "start_service", start)
    port = int(address.rpartition(":")[2])
    browsing.ui_main("", Serving(port=port, data=tmp_path), browser=False)
    assert started == [port, 0]
