"""The store over HTTP, as Kubernetes serves it: paths, lists in pages, watches, patches, roles."""

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tools.kubernetes_api.schemas import Kind, kinds
from tools.kubernetes_api.store import Data, Refused, Store

_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>v[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>status))?"
)
WATCH_STEP_S = 0.2


@dataclass(slots=True)
class Access:
    """Who may do what: rules of a ClusterRole for the one token there is."""

    token: str = ""
    rules: Sequence[Mapping[str, Any]] | None = None
    """None: everything."""

    def check(self, header: str, kind: Kind, verb: str, subresource: str) -> None:
        """Raise `Refused` for a caller without the token, or what its role does not have."""
        if self.token and header != f"Bearer {self.token}":
            raise Refused(401, "Unauthorized", "Unauthorized")
        if self.rules is None:
            return
        wanted = f"{kind.plural}/{subresource}" if subresource else kind.plural
        for rule in self.rules:
            if (
                kind.group in rule["apiGroups"]
                and wanted in rule["resources"]
                and verb in rule["verbs"]
            ):
                return
        message = f'{wanted} is forbidden: cannot {verb} in API group "{kind.group}"'
        raise Refused(403, "Forbidden", message)


@dataclass(slots=True)
class ApiServer:
    """A server at an address of this machine."""

    url: str
    store: Store
    access: Access
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Methods and paths, in the order in which they came."""
    before: list[Callable[[str, str], None]] = field(default_factory=list)
    """Called before a request is worked on, with its method and path; may raise `Refused`."""


@contextmanager
def api_server(access: Access | None = None) -> Iterator[ApiServer]:
    """Serve an empty store until the end of the block."""
    stopping = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    host, port = server.server_address[:2]
    served = ApiServer(f"http://{host!s}:{port}", Store(), access or Access())
    server.served, server.stopping = served, stopping  # type: ignore[attr-defined]
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
    )
    thread.start()
    try:
        yield served
    finally:
        stopping.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def _served(self) -> ApiServer:
        found: ApiServer = self.server.served  # type: ignore[attr-defined]
        return found

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def do_PUT(self) -> None:
        self._answer(self._put)

    def do_PATCH(self) -> None:
        self._answer(self._patch)

    def do_DELETE(self) -> None:
        self._answer(self._delete)

    def _answer(self, work: Callable[["_Call"], Data | None]) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else b""
        parts = urlsplit(self.path)
        query = {k: v[0] for k, v in parse_qs(parts.query).items()}
        self._served.requests.append((self.command, self.path))
        try:
            for step in list(self._served.before):
                step(self.command, self.path)
            if parts.path.count("/") == 2 and parts.path.startswith("/apis/"):
                self._send(200, _group(parts.path.removeprefix("/apis/")))
                return
            answer = work(_call(parts.path, query, body))
        except Refused as refusal:
            self._send(refusal.code, _status(refusal))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        else:
            if answer is not None:
                self._send(201 if self.command == "POST" else 200, answer)

    def _check(self, call: "_Call", verb: str) -> None:
        header = self.headers.get("Authorization", "")
        self._served.access.check(header, call.kind, verb, call.subresource)

    def _get(self, call: "_Call") -> Data | None:
        if call.name:
            self._check(call, "get")
            return self._served.store.get(call.kind, call.namespace, call.name)
        if call.query.get("watch") in ("true", "1"):
            self._check(call, "watch")
            self._watch(call)
            return None
        self._check(call, "list")
        items, version = self._served.store.list_all(call.kind, call.namespace)
        start = int(call.query.get("continue", 0))
        limit = int(call.query.get("limit", 0)) or len(items)
        more = start + limit < len(items)
        meta = {"resourceVersion": str(version), "continue": str(start + limit) if more else ""}
        return {
            "apiVersion": call.kind.api_version,
            "kind": f"{call.kind.kind}List",
            "metadata": meta,
            "items": items[start : start + limit],
        }

    def _watch(self, call: "_Call") -> None:
        """Send events, each a chunk, and a bookmark at the end."""
        version = int(call.query.get("resourceVersion") or self._served.store.version)
        left_s = float(call.query.get("timeoutSeconds", 300))
        stopping: threading.Event = self.server.stopping  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            while left_s > 0 and not stopping.is_set():
                found = self._served.store.events_after(call.kind, version, WATCH_STEP_S)
                for name, value in found:
                    self._chunk({"type": name, "object": value})
                    version = int(value["metadata"]["resourceVersion"])
                left_s -= 0 if found else WATCH_STEP_S
            meta = {"resourceVersion": str(version)}
            mark = {"apiVersion": call.kind.api_version, "kind": call.kind.kind, "metadata": meta}
            self._chunk({"type": "BOOKMARK", "object": mark})
        except Refused as refusal:
            self._chunk({"type": "ERROR", "object": _status(refusal)})
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, event: Data) -> None:
        line = json.dumps(event).encode() + b"\n"
        self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        self.wfile.flush()

    def _post(self, call: "_Call") -> Data:
        self._check(call, "create")
        body = call.json()
        body.setdefault("metadata", {})
        if call.kind.namespaced:
            body["metadata"]["namespace"] = call.namespace
        return self._served.store.create(call.kind, body, call.manager)

    def _put(self, call: "_Call") -> Data:
        self._check(call, "update")
        return self._served.store.update(call.kind, call.json(), call.subresource, call.manager)

    def _patch(self, call: "_Call") -> Data:
        self._check(call, "patch")
        kind = self.headers.get("Content-Type", "")
        body, place = call.json(), (call.namespace, call.name)
        if kind == "application/merge-patch+json":
            return self._served.store.merge(call.kind, place, body, call.subresource, call.manager)
        if kind != "application/apply-patch+yaml":
            raise Refused(415, "UnsupportedMediaType", f"{kind} is not supported here")
        if not call.query.get("fieldManager"):
            raise Refused(422, "Invalid", "fieldManager: Required value for apply patch")
        meta = body.get("metadata") or {}
        if (meta.get("name"), meta.get("namespace", "")) != (call.name, call.namespace):
            raise Refused(400, "BadRequest", "name or namespace do not match those of the request")
        if "managedFields" in meta:
            raise Refused(400, "BadRequest", "metadata.managedFields must be nil")
        if body.get("apiVersion") != call.kind.api_version or body.get("kind") != call.kind.kind:
            raise Refused(400, "BadRequest", "apiVersion and kind must be those of the resource")
        if not call.subresource:
            try:
                self._served.store.get(call.kind, call.namespace, call.name)
            except Refused:  # an apply of what is not there creates it
                self._check(call, "create")
        force = call.query.get("force") == "true"
        return self._served.store.apply(call.kind, body, call.manager, call.subresource, force)

    def _delete(self, call: "_Call") -> Data:
        self._check(call, "delete")
        self._served.store.delete(call.kind, call.namespace, call.name)
        return {"apiVersion": "v1", "kind": "Status", "status": "Success"}

    def _send(self, code: int, data: Data) -> None:
        content = json.dumps(data).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@dataclass(frozen=True, slots=True)
class _Call:
    kind: Kind
    namespace: str
    name: str
    subresource: str
    query: Mapping[str, str]
    body: bytes

    @property
    def manager(self) -> str:
        return self.query.get("fieldManager", "unknown")

    def json(self) -> Data:
        try:
            data = json.loads(self.body)
        except ValueError as error:
            raise Refused(400, "BadRequest", f"the body is no JSON: {error}") from None
        if not isinstance(data, dict):
            raise Refused(400, "BadRequest", "the body is no object")
        return data


def _call(path: str, query: Mapping[str, str], body: bytes) -> _Call:
    match = _PATH.fullmatch(path)
    found = kinds().get((match["group"] or "", match["plural"])) if match else None
    if match is None or found is None or match["version"] not in found.versions:
        raise Refused(404, "NotFound", "the server could not find the requested resource")
    namespace = unquote(match["namespace"] or "")
    if match["name"] and bool(namespace) != found.namespaced:
        raise Refused(404, "NotFound", "the server could not find the requested resource")
    sub = match["sub"] or ""
    if sub and not found.has_status:
        raise Refused(404, "NotFound", "the server could not find the requested resource")
    return _Call(found, namespace, unquote(match["name"] or ""), sub, query, body)


def _group(name: str) -> Data:
    versions = {v for kind in kinds().values() if kind.group == name for v in kind.versions}
    if not versions:
        raise Refused(404, "NotFound", "the server could not find the requested resource")
    listed = [{"groupVersion": f"{name}/{v}", "version": v} for v in sorted(versions)]
    return {
        "apiVersion": "v1",
        "kind": "APIGroup",
        "name": name,
        "versions": listed,
        "preferredVersion": listed[-1],
    }


def _status(refusal: Refused) -> Data:
    return {
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "message": str(refusal),
        "reason": refusal.reason,
        "code": refusal.code,
    }
