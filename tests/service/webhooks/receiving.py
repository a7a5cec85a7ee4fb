"""A receiver of webhooks for tests: a small server that keeps what comes and answers as told."""

import contextlib
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Receiver:
    """What has come, and what is answered."""

    url: str = ""
    came: list[tuple[Mapping[str, str], bytes]] = field(default_factory=list)
    """Headers in small letters, and bodies."""
    paths: list[str] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    """Answers, the next one first; 204 when there are none."""
    headers: dict[str, str] = field(default_factory=dict)
    held: threading.Event = field(default_factory=threading.Event)
    """Answers wait for it."""
    drips: bool = False
    """The answer comes so slowly that it never ends."""

    @property
    def ids(self) -> list[str]:
        """Ids of what has come."""
        return [headers["webhook-id"] for headers, _ in self.came]


@contextlib.contextmanager
def receiver(context: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Serve at a free port of this machine."""
    state = Receiver()
    state.held.set()
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            n = int(self.headers["content-length"])
            body = self.rfile.read(n)
            state.paths.append(self.path)
            state.came.append(({k.lower(): v for k, v in self.headers.items()}, body))
            state.held.wait(60.0)
            if state.drips:
                with contextlib.suppress(OSError):
                    self.wfile.write(b"HTTP/1.1 200 OK\r\n")
                    while not ended.wait(0.02):
                        self.wfile.write(b"x: y\r\n")
                return
            self.send_response(state.statuses.pop(0) if state.statuses else 204)
            for name, value in state.headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *given: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        def handle_error(self, *given: Any) -> None: ...  # what does not speak TLS

    server = Server(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    scheme = "https" if context else "http"
    state.url = f"{scheme}://127.0.0.1:{server.server_address[1]}/hook?x=1"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        ended.set()
        state.held.set()
        server.shutdown()
        server.server_close()
        thread.join()
