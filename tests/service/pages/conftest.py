"""Pages in a real browser: a service with workers, a proxy before it, and headless Chromium."""

import asyncio
import contextlib
import dataclasses
import os
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

READY = "html[data-ready]"
"""A page whose script has run."""
ANSWERED = f"{READY}:not(:has([data-events]))"
"""One that shows no progress of a job any more."""
AXE_SERIOUS = ("serious", "critical")
UNNAMED = """() => [...document.querySelectorAll("main table")].flatMap((table) => [
  ...(table.caption && table.caption.textContent.trim() ? [] : ["no caption: " + table.innerText]),
  ...[...table.querySelectorAll("th:not([scope])")].map((head) => "no scope: " + head.textContent),
]).concat([...document.querySelectorAll("main h1, main h2, main h3, main h4")]
  .filter((head, i, all) => i && head.tagName[1] > Number(all[i - 1].tagName[1]) + 1)
  .map((head) => "a level is left out: " + head.textContent))"""
SCREENS = os.environ.get("PLANNER_SCREENS", "")
"""Folder that screenshots of the tests go to, so that people can look; none without it."""


@dataclasses.dataclass
class Served:
    """A service that runs."""

    address: str
    """With its prefix: pages are at `address + "/ui"`."""
    token: str = ""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def service(folder: Path, *options: str, token: str = "", prefix: str = "") -> Iterator[Served]:
    """Run `planner serve` and wait until it answers."""
    port = free_port()
    words = [
        sys.executable,
        "-c",
        "from service.command import app; app()",
        "--port",
        str(port),
        "--grpc-port",
        "0",
        "--data",
        str(folder),
        "--workers",
        "1",
        "--job-workers",
        "1",
        "--log-level",
        "warning",
        *options,
    ]
    if token:
        (folder / "tokens").write_text(f"ann admin {token}\n")
        words += ["--token-file", str(folder / "tokens")]
    if prefix:
        words += ["--root-path", prefix]
    log = (folder / "log").open("w")
    process = subprocess.Popen(words, stderr=log, stdout=log)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/readyz"):
                break
            assert process.poll() is None, (folder / "log").read_text()
            threading.Event().wait(0.1)
        yield Served(address + prefix, token)
    finally:
        process.terminate()
        process.wait(30)
        log.close()


@contextlib.contextmanager
def proxy(target: str, prefix: str) -> Iterator[str]:
    """Run a reverse proxy that shows a service below a prefix and cuts the prefix off.

    It keeps the header Host, as the documentation asks. Nothing else is at its address.
    """
    host, port = target.removeprefix("http://").split(":")
    loop = asyncio.new_event_loop()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            line, _, rest = head.partition(b"\r\n")
            method, path, version = line.split(b" ")
            if not path.startswith(prefix.encode() + b"/"):
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                return writer.close()
            path = path[len(prefix) :]
            fields = [
                each
                for each in rest.split(b"\r\n")
                if each and not each.lower().startswith(b"connection:")
            ]
            there, back = await asyncio.open_connection(host, int(port))
            lines = [b" ".join((method, path, version)), *fields, b"Connection: close"]
            back.write(b"\r\n".join(lines) + b"\r\n\r\n")
            await asyncio.gather(pipe(reader, back), pipe(there, writer))

    started = threading.Event()
    found: list[int] = []

    def run() -> None:
        asyncio.set_event_loop(loop)

        async def start() -> asyncio.Server:
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            found.append(server.sockets[0].getsockname()[1])
            started.set()
            return server

        server = loop.run_until_complete(start())
        loop.run_forever()
        server.close()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(10)
    yield f"http://127.0.0.1:{found[0]}{prefix}"
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service without tokens."""
    with service(tmp_path_factory.mktemp("served")) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium; tests are skipped where there is none.

    It ends with its module: while it runs, the thread counts as one with a running event loop, and
    tests that bring their own loop (those of the service, on the same worker) could not start.
    """
    api = pytest.importorskip("playwright.sync_api")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium on the PATH")
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield found
        found.close()


class Screen:
    """A browser's page, with what it complained of and whom it asked."""

    def __init__(self, page: Any, served: Served) -> None:
        self.page = page
        self.served = served
        self.complaints: list[str] = []
        """Errors and warnings of the console, exceptions, dialogs."""
        self.requests: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(f"exception: {error}"))
        page.on("dialog", self._dialog)
        page.on("request", lambda request: self.requests.append(request.url))

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def _dialog(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, path: str, wait: str = ANSWERED) -> Any:
        """Open a page, such as `/ui/plans?model=...`, and wait until its answer is there."""
        answer = self.page.goto(self.served.address + path)
        self.page.wait_for_selector(wait, state="attached", timeout=60_000)
        return answer

    def arrive(self) -> None:
        """Move the pointer: somebody is there, which figures wait for."""
        self.page.mouse.move(4, 4)

    def draw(self, within: str = "main") -> None:
        """Look at the first figure of a part of the page, which draws it, and wait for it."""
        self.page.locator(f"{within} details.fold").evaluate_all(
            "all => all.forEach((each) => { each.open = true; })"
        )
        self.page.locator(f"{within} .plot").first.scroll_into_view_if_needed()
        self.arrive()
        self.page.wait_for_selector(f"{within} .js-plotly-plot[data-drawn] .main-svg")

    def shot(self, name: str) -> None:
        """Keep a screenshot of the whole page where PLANNER_SCREENS names a folder."""
        if SCREENS:
            Path(SCREENS).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=f"{SCREENS}/{name}.png", full_page=True)

    def faults(self) -> list[str]:
        """Return the serious and critical violations that axe-core finds."""
        text = axe_script()
        self.page.evaluate(text)  # beside the page's policy: through the debugger
        found = self.page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{each['id']}: {each['nodes'][0]['html'][:200]} ({each['help']})"
            for each in found["violations"]
            if each["impact"] in AXE_SERIOUS
        ]

    def check(self) -> None:
        """Hold what every page holds: no complaint, no other origin, accessible, no overflow.

        Accessible is what axe-core asks for, and that every table has a caption, that every head
        of it says whether it is one of a row or of a column, and that no level of headings is
        left out.
        """
        origin = "/".join(self.served.address.split("/")[:3])
        strangers = [
            url for url in self.requests if not url.startswith((f"{origin}/", "data:", "blob:"))
        ]
        assert not strangers
        assert not self.complaints
        assert not self.faults()
        assert not self.page.evaluate(UNNAMED)
        wide = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, f"the page is {wide} px wider than its window"


def axe_script() -> str:
    """Return axe-core as a wheel ships it."""
    package = pytest.importorskip("axe_playwright_python")
    return (Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


PageAt = Callable[..., Screen]


@pytest.fixture
def page_at(browser: Any, request: pytest.FixtureRequest) -> Iterator[PageAt]:
    """Return what opens a page in a fresh context: `page_at("/ui/learn", dark=True, width=390)`.

    `on` is another service than the common one; `script=False` turns JavaScript off.
    """
    contexts = []

    def open_page(
        path: str,
        *,
        dark: bool = False,
        width: int = 1280,
        height: int = 900,
        on: Served | None = None,
        script: bool = True,
        wait: str | None = None,
        **more: Any,
    ) -> Screen:
        context = browser.new_context(
            color_scheme="dark" if dark else "light",
            viewport={"width": width, "height": height},
            java_script_enabled=script,
            **more,
        )
        contexts.append(context)
        context.set_default_timeout(60_000)
        target = on or request.getfixturevalue("served")
        screen = Screen(context.new_page(), target)
        screen.open(path, wait or (ANSWERED if script else "main:not(:has([data-events]))"))
        return screen

    yield open_page
    for context in contexts:
        context.close()
