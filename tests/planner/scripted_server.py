"""A server that answers as a test scripts it, and keeps what it was asked."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, dict[str, str], bytes | str | dict[str, Any]]
"""Status, headers and body; status 0 closes the connection without an answer."""


@dataclass
class Asked:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    connection: int
    """Port of the caller: the same for requests over one connection."""


@dataclass
class Scripted:
    """What the server answers, in order; the last one again and again."""

    replies: list[Reply | Callable[[Asked], Reply]]
    asked: list[Asked] = field(default_factory=list)
    url: str = ""


@contextmanager
def scripted(*replies: Reply | Callable[[Asked], Reply]) -> Iterator[Scripted]:
    script = Scripted(list(replies))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *of: Any) -> None: ...

        def do_GET(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = json.loads(raw) if raw else None
            port = self.client_address[1]
            asked = Asked(self.command, self.path, headers, body, port)
            script.asked.append(asked)
            reply = script.replies.pop(0) if len(script.replies) > 1 else script.replies[0]
            status, sent, content = reply(asked) if callable(reply) else reply
            if status == 0:
                self.close_connection = True
                return
            data = (
                content
                if isinstance(content, bytes)
                else content.encode()
                if isinstance(content, str)
                else json.dumps(content).encode()
            )
            self.send_response(status)
            for name, value in sent.items():
                self.send_header(name, value)
            if "text/event-stream" in sent.values():
                self.close_connection = True
            else:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_DELETE = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    script.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield script
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
