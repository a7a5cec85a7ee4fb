"""A client of the Kubernetes API: read, watch and server-side apply, with the standard library.

An error of the server is an `ApiError` with its status and the message of its `Status` object;
a server that does not answer is one with status 0.
"""

import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from service.kueue.connection import Connection

Data = dict[str, Any]
GROUP = "kueue.x-k8s.io"
VERSIONS = ("v1beta2", "v1beta1")
"""Versions of Kueue's API that the controller speaks, the newest first."""
TIMEOUT_S = 30.0
WATCH_S = 240
"""How long a watch is asked for; the server ends it, and it is taken up where it ended."""
MOST_PAGE = 500
"""Objects of a page of a list."""


class ApiError(Exception):
    """A request that the API server refused, or that did not reach it (status 0)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    @property
    def is_passing(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.status in (0, 408, 409, 429) or self.status >= 500


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object, and where it stands in the API."""

    group: str
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        """As `apiVersion` of an object says it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of all objects, of those of a namespace, or of one."""
        root = f"/apis/{self.group}" if self.group else "/api"
        parts = [root, self.version]
        parts += ["namespaces", quote(namespace, safe="")] if namespace else []
        parts += [self.plural, *([quote(name, safe="")] if name else [])]
        return "/".join([*parts, *([subresource] if subresource else [])])


CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")


@dataclass(frozen=True, slots=True)
class KueueResources:
    """Kueue's kinds of objects in one version of its API."""

    workloads: Resource
    checks: Resource
    flavors: Resource

    @classmethod
    def of(cls, version: str) -> "KueueResources":
        """Return the kinds in a version."""
        kinds = (
            ("workloads", "Workload"),
            ("admissionchecks", "AdmissionCheck"),
            ("resourceflavors", "ResourceFlavor"),
        )
        return cls(*(Resource(GROUP, version, plural, kind) for plural, kind in kinds))


class ApiClient:
    """Speaks to one API server; a connection a request, so that threads may share it."""

    def __init__(self, connection: Connection, manager: str) -> None:
        """Prepare a client; `manager` owns the fields that it applies."""
        self._connection = connection
        self._manager = manager

    def kueue(self) -> KueueResources:
        """Return Kueue's kinds in the newest version that the server has and we speak."""
        group = self._json("GET", f"/apis/{GROUP}")
        served = {x["version"] for x in group.get("versions", ())}
        for version in VERSIONS:
            if version in served:
                return KueueResources.of(version)
        raise ApiError(404, f"{GROUP} has {', '.join(sorted(served))}, not {VERSIONS[0]}")

    def get(self, resource: Resource, name: str, namespace: str = "") -> Data | None:
        """Return an object; None where there is none."""
        try:
            return self._json("GET", resource.path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list_all(self, resource: Resource) -> tuple[list[Data], str]:
        """Return all objects, and the resource version from which a watch goes on."""
        items: list[Data] = []
        token = ""
        while True:
            query = {"limit": MOST_PAGE, **({"continue": token} if token else {})}
            page = self._json("GET", f"{resource.path()}?{urlencode(query)}")
            items += page.get("items") or ()
            meta = page.get("metadata") or {}
            token = meta.get("continue") or ""
            if not token:
                return items, str(meta.get("resourceVersion", ""))

    def watch(self, resource: Resource, version: str, stream: "Stream") -> Iterator[Data]:
        """Yield the events after a resource version until the server ends the watch.

        `stream` can end it from another thread. Raises `ApiError`, 410 where the version is too
        old: then the objects are to be listed anew.
        """
        query = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": WATCH_S,
        }
        path = f"{resource.path()}?{urlencode(query)}"
        link, reply = self._sent("GET", path, None, "", WATCH_S + TIMEOUT_S)
        stream.open(link)
        try:
            while line := _line(reply):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise ApiError(int(status.get("code", 500)), str(status.get("message", "")))
                yield event
        except ValueError as error:
            raise ApiError(0, f"the API server sent no event: {error}") from None
        finally:
            link.close()

    def apply(
        self, resource: Resource, body: Data, *, subresource: str = "", force: bool = False
    ) -> Data:
        """Apply fields of an object as their manager; what it owned and leaves out is removed.

        With `metadata.resourceVersion` it is refused (409) where the object has changed; `force`
        takes fields that other managers own.
        """
        meta = body["metadata"]
        whole = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        query = urlencode(
            {
                "fieldManager": self._manager,
                "fieldValidation": "Strict",  # a field that the server does not know is refused
                "force": str(force).lower(),
            }
        )
        path = resource.path(meta.get("namespace", ""), meta["name"], subresource)
        return self._json("PATCH", f"{path}?{query}", whole, "application/apply-patch+yaml")

    def _json(self, method: str, path: str, body: Data | None = None, kind: str = "") -> Data:
        link, reply = self._sent(method, path, body, kind, TIMEOUT_S)
        try:
            data = json.loads(reply.read())
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise ApiError(0, f"{method} {path}: {error}") from None
        finally:
            link.close()
        if not isinstance(data, dict):
            raise ApiError(0, f"{method} {path}: the answer is no object")
        return data

    def _sent(
        self, method: str, path: str, body: Data | None, kind: str, timeout_s: float
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Send a request; return its connection and its reply, which is not yet read."""
        parts = urlsplit(self._connection.url)
        host = parts.hostname or ""
        link: http.client.HTTPConnection
        if self._connection.tls is None:
            link = http.client.HTTPConnection(host, parts.port, timeout=timeout_s)
        else:
            link = http.client.HTTPSConnection(
                host, parts.port, timeout=timeout_s, context=self._connection.tls
            )
        headers = {"Accept": "application/json", "User-Agent": "planner-kueue"}
        if kind:
            headers["Content-Type"] = kind
        content = None if body is None else json.dumps(body).encode()
        try:
            if bearer := self._connection.bearer:
                headers["Authorization"] = f"Bearer {bearer}"
            link.request(method, parts.path + path, content, headers)
            reply = link.getresponse()
            if reply.status < 300:
                return link, reply
            text = reply.read()
        except (OSError, http.client.HTTPException) as error:
            link.close()
            raise ApiError(0, f"{self._connection.url}: {error or type(error).__name__}") from None
        link.close()
        raise ApiError(reply.status, _message(text) or reply.reason)


class Stream:
    """The connection of a watch, which another thread may end."""

    def __init__(self) -> None:
        self._link: http.client.HTTPConnection | None = None
        self._ended = False

    def open(self, link: http.client.HTTPConnection) -> None:
        """Take the connection of the watch that begins."""
        self._link = link
        if self._ended:
            self.end()

    def end(self) -> None:
        """End the watch; one that begins later ends at once."""
        self._ended = True
        found = self._link.sock if self._link is not None else None
        if found is not None:
            with suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)


def _line(reply: http.client.HTTPResponse) -> bytes:
    """Return the next line of a watch; empty at its end."""
    try:
        line = reply.readline()
    except (OSError, AttributeError, http.client.HTTPException):
        return b""  # taken up again where it ended; AttributeError: closed by another thread
    return line if line.endswith(b"\n") else b""


def _message(text: bytes) -> str:
    """Return what a `Status` object says; the text itself where it is none."""
    try:
        status: Any = json.loads(text)
    except ValueError:
        return text[:500].decode("utf-8", "replace").strip()
    return str(status.get("message", "")) if isinstance(status, Mapping) else ""
