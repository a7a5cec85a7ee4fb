"""The store of a server that is spoken to over HTTP: what `kueue.Kueue` needs of it."""

import http.client
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode, urlsplit

from service.kueue.connection import Connection
from tools.kubernetes_api.schemas import Kind
from tools.kubernetes_api.store import Data, Refused

LOOK_S = 0.2
_MERGE = "application/merge-patch+json"
_JSON = "application/json"


class HttpStore:
    """Objects of an API server, read and written as clients of Kubernetes do."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, kind: Kind, namespace: str, name: str) -> Data:
        """Return an object."""
        return self.ask("GET", _path(kind, namespace, name))

    def create(self, kind: Kind, body: Data, manager: str = "test") -> Data:
        """Create an object."""
        path = _path(kind, body["metadata"].get("namespace", ""))
        return self.ask("POST", _as(path, manager), _whole(kind, body))

    def update(self, kind: Kind, body: Data, subresource: str = "", manager: str = "test") -> Data:
        """Put an object in the place of the one that is there."""
        meta = body["metadata"]
        path = _path(kind, meta.get("namespace", ""), meta["name"], subresource)
        return self.ask("PUT", _as(path, manager), _whole(kind, body))

    def merge(
        self,
        kind: Kind,
        place: tuple[str, str],
        patch: Data,
        subresource: str = "",
        manager: str = "test",
    ) -> Data:
        """Apply a JSON merge patch."""
        path = _as(_path(kind, *place, subresource), manager)
        return self.ask("PATCH", path, patch, _MERGE)

    def delete(self, kind: Kind, namespace: str, name: str) -> None:
        """Delete an object."""
        self.ask("DELETE", _path(kind, namespace, name))

    def wait(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        """Ask until something is so; tell whether it is."""
        end_s = time.monotonic() + timeout_s
        while not is_so():
            if time.monotonic() > end_s:
                return False
            time.sleep(LOOK_S)
        return True

    def ask(self, method: str, path: str, body: Data | None = None, kind: str = _JSON) -> Data:
        """Return the answer to any request; `Refused` for a status from 400 on."""
        parts = urlsplit(self._connection.url)
        if self._connection.tls is None:
            link = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
        else:
            link = http.client.HTTPSConnection(
                parts.hostname or "", parts.port, timeout=30, context=self._connection.tls
            )
        headers = {"Content-Type": kind, "Accept": _JSON}
        if bearer := self._connection.bearer:
            headers["Authorization"] = f"Bearer {bearer}"
        content = None if body is None else json.dumps(body)
        try:
            link.request(method, parts.path + path, content, headers)
            reply = link.getresponse()
            data: Any = json.loads(reply.read() or "{}")
        finally:
            link.close()
        if reply.status >= 400:
            reason, message = str(data.get("reason")), str(data.get("message"))
            raise Refused(reply.status, reason, message)
        return dict(data)


def _path(kind: Kind, namespace: str, name: str = "", subresource: str = "") -> str:
    root = f"/apis/{kind.group}" if kind.group else "/api"
    parts = [root, kind.versions[0], *(["namespaces", namespace] if namespace else [])]
    return "/".join(
        [*parts, kind.plural, *([name] if name else []), *([subresource] if subresource else [])]
    )


def _as(path: str, manager: str) -> str:
    return f"{path}?{urlencode({'fieldManager': manager})}"


def _whole(kind: Kind, body: Data) -> Data:
    return {"apiVersion": kind.api_version, "kind": kind.kind, **body}
