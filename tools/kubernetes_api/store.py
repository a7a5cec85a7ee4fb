"""The objects of the server: versions, generations, managed fields, and the events of watches."""

import copy
import re
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from tools.kubernetes_api.ownership import ConflictError, Owners
from tools.kubernetes_api.rules import broken_rules
from tools.kubernetes_api.schemas import Kind, faults, with_defaults

Data = dict[str, Any]
Key = tuple[str, str, str]
"""Plural, namespace and name of an object."""
MOST_EVENTS = 10_000
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class Refused(Exception):
    """A request that is refused, with the status and the reason of its `Status`."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


class Store:
    """All objects, for several threads."""

    def __init__(self) -> None:
        self._objects: dict[Key, Data] = {}
        self._owners: dict[Key, Owners] = {}
        self._events: deque[tuple[int, str, str, Data]] = deque(maxlen=MOST_EVENTS)
        self._version = 100
        self._oldest = 0
        self.changed = threading.Condition(threading.RLock())

    @property
    def version(self) -> int:
        """The resource version of the newest change."""
        with self.changed:
            return self._version

    def get(self, kind: Kind, namespace: str, name: str) -> Data:
        """Return a copy of an object; `Refused` with 404 where there is none."""
        with self.changed:
            found = self._objects.get((kind.plural, namespace, name))
            if found is None:
                raise Refused(404, "NotFound", f'{kind.plural} "{name}" not found')
            return copy.deepcopy(found)

    def list_all(self, kind: Kind, namespace: str = "") -> tuple[list[Data], int]:
        """Return copies of all objects of a kind by name, and the version they are of."""
        with self.changed:
            found = [
                copy.deepcopy(value)
                for (plural, place, _), value in sorted(self._objects.items())
                if plural == kind.plural and namespace in ("", place)
            ]
            return found, self._version

    def create(self, kind: Kind, body: Data, manager: str = "test") -> Data:
        """Store a new object; status is dropped where it is a subresource."""
        meta = body.get("metadata") or {}
        key = (kind.plural, meta.get("namespace", ""), meta.get("name", ""))
        with self.changed:
            if key in self._objects:
                raise Refused(409, "AlreadyExists", f'{kind.plural} "{key[2]}" already exists')
            new = copy.deepcopy(body)
            if kind.has_status:
                new.pop("status", None)
            owners = self._owners[key] = Owners()
            stored = self._checked(kind, new, None)
            owners.update({}, stored, kind.schema, (manager, ""))
            return self._put(kind, key, stored, None)

    def update(self, kind: Kind, body: Data, subresource: str = "", manager: str = "test") -> Data:
        """Put an object in the place of the one that is there, or its status alone."""
        meta = body["metadata"]
        key = (kind.plural, meta.get("namespace", ""), meta["name"])
        with self.changed:
            old = self.get(kind, *key[1:])
            self._check_version(kind, meta, old)
            new = self._side(kind, copy.deepcopy(body), old, subresource)
            stored = self._checked(kind, new, old)
            self._owners[key].update(old, stored, kind.schema, (manager, subresource))
            return self._put(kind, key, stored, old)

    def merge(
        self,
        kind: Kind,
        place: tuple[str, str],
        patch: Data,
        subresource: str = "",
        manager: str = "test",
    ) -> Data:
        """Apply a JSON merge patch (RFC 7386); lists are one value."""
        with self.changed:
            old = self.get(kind, *place)
            new = _merge_patched(old, patch)
            if "resourceVersion" not in (patch.get("metadata") or {}):
                new["metadata"].pop("resourceVersion", None)
            return self.update(kind, new, subresource, manager)

    def apply(
        self, kind: Kind, body: Data, manager: str, subresource: str = "", force: bool = False
    ) -> Data:
        """Apply fields (KEP-555); an object that is not there is created, its status is not."""
        meta = body["metadata"]
        key = (kind.plural, meta.get("namespace", ""), meta["name"])
        with self.changed:
            old = self._objects.get(key)
            if old is None and (subresource or "uid" in meta):
                raise Refused(404, "NotFound", f'{kind.plural} "{meta["name"]}" not found')
            if old is not None:
                old = copy.deepcopy(old)
                self._check_version(kind, meta, old)
            sides = {"status"} if subresource else {*body} - {"status"}
            if not kind.has_status:
                sides = {*body}
            part = {k: v for k, v in body.items() if k in sides | {"apiVersion", "kind"}}
            if subresource:
                part["metadata"] = {}
            live = old if old is not None else {"metadata": {}}
            owners = copy.deepcopy(self._owners.get(key) or Owners())
            try:
                new = owners.apply(live, part, kind.schema, (manager, subresource), force)
            except ConflictError as error:
                raise Refused(409, "Conflict", str(error)) from None
            named = {k: meta[k] for k in ("name", "namespace") if k in meta}
            new["metadata"] = {**(new.get("metadata") or {}), **named}
            if old is not None:
                new["metadata"] = _server_meta(old) | new["metadata"]
                new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
            stored = self._checked(kind, new, old)
            self._owners[key] = owners
            return self._put(kind, key, stored, old)

    def delete(self, kind: Kind, namespace: str, name: str) -> None:
        """Remove an object, and those that it owns."""
        with self.changed:
            key = (kind.plural, namespace, name)
            old = self.get(kind, namespace, name)
            del self._objects[key], self._owners[key]
            self._version += 1
            old["metadata"]["resourceVersion"] = str(self._version)
            self._events.append((self._version, "DELETED", kind.plural, old))
            uid = old["metadata"]["uid"]
            for plural, place, other in list(self._objects):
                owners = self._objects[plural, place, other]["metadata"].get("ownerReferences")
                if any(x["uid"] == uid for x in owners or ()):
                    del self._objects[plural, place, other], self._owners[plural, place, other]
            self.changed.notify_all()

    def forget_events(self) -> None:
        """Compact: watches from before now get 410."""
        with self.changed:
            self._oldest = self._version
            self._events.clear()

    def events_after(self, kind: Kind, version: int, timeout_s: float) -> list[tuple[str, Data]]:
        """Return events of a kind after a version, once there are some or the time is over."""
        end_s = time.monotonic() + timeout_s
        with self.changed:
            while True:
                if version < self._oldest:
                    raise Refused(410, "Expired", f"too old resource version: {version}")
                found = [
                    (name, copy.deepcopy(value))
                    for at, name, plural, value in self._events
                    if at > version and plural == kind.plural
                ]
                left_s = end_s - time.monotonic()
                if found or left_s <= 0:
                    return found
                self.changed.wait(left_s)

    def wait(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something is so after a change; tell whether it is."""
        with self.changed:
            return self.changed.wait_for(is_so, timeout_s)

    def fields_of(self, kind: Kind, namespace: str, name: str, manager: str) -> set[str]:
        """Return the fields of an object that a manager owns."""
        with self.changed:
            return self._owners[kind.plural, namespace, name].fields_of(manager)

    def _check_version(self, kind: Kind, meta: Mapping[str, Any], old: Data) -> None:
        version = meta.get("resourceVersion")
        if version and version != old["metadata"]["resourceVersion"]:
            message = (
                f'Operation cannot be fulfilled on {kind.plural} "{meta["name"]}": the object has'
                " been modified; please apply your changes to the latest version and try again"
            )
            raise Refused(409, "Conflict", message)
        if meta.get("uid") and meta["uid"] != old["metadata"]["uid"]:
            raise Refused(409, "Conflict", f"Precondition failed: UID {meta['uid']}")

    def _side(self, kind: Kind, new: Data, old: Data, subresource: str) -> Data:
        """Return an update with what it may not write as it was: status, or all but status."""
        new["metadata"] = {**(new.get("metadata") or {}), **_server_meta(old)}
        if not kind.has_status:
            return new
        if not subresource:
            return {**{k: v for k, v in new.items() if k != "status"}, **_status_of(old)}
        return {**{k: v for k, v in old.items() if k != "status"}, **_status_of(new)}

    def _checked(self, kind: Kind, new: Data, old: Data | None) -> Data:
        if new.get("kind", kind.kind) != kind.kind or new.get("apiVersion") not in (
            None,
            kind.api_version,
        ):
            raise Refused(400, "BadRequest", f"the object is no {kind.kind} ({kind.api_version})")
        if not new["metadata"].get("name"):
            raise Refused(422, "Invalid", f"{kind.kind} is invalid: metadata.name: Required value")
        if not SUBDOMAIN.fullmatch(new["metadata"]["name"]):
            raise Refused(422, "Invalid", f"{kind.kind} is invalid: metadata.name: no subdomain")
        whole = {"apiVersion": kind.api_version, "kind": kind.kind, **new}
        whole = with_defaults(whole, kind.schema)
        wrong = [*faults(whole, kind.schema)] or [*broken_rules(kind, whole, old)]
        if wrong:
            strict = any(x.startswith("strict decoding") for x in wrong)
            name = whole["metadata"]["name"]
            message = f'{kind.kind} "{name}" is invalid: {"; ".join(wrong)}'
            raise Refused(*((400, "BadRequest") if strict else (422, "Invalid")), message)
        return whole

    def _put(self, kind: Kind, key: Key, new: Data, old: Data | None) -> Data:
        """Store a checked object and tell watches; what changes nothing makes no version."""
        meta = new["metadata"]
        managed = self._owners[key].to_json(kind.api_version, "2026-01-01T00:00:00Z")
        if old is not None and {**new, "metadata": {**meta, "managedFields": managed}} == old:
            return copy.deepcopy(old)
        self._version += 1
        if old is None:
            meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": "2026-01-01T00:00:00Z"}
            meta |= {"generation": 1} if kind.has_generation else {}
        elif kind.has_generation and new.get("spec") != old.get("spec"):
            meta["generation"] = old["metadata"]["generation"] + 1
        meta["resourceVersion"] = str(self._version)
        meta["managedFields"] = managed
        self._objects[key] = new
        name = "ADDED" if old is None else "MODIFIED"
        self._events.append((self._version, name, kind.plural, copy.deepcopy(new)))
        self.changed.notify_all()
        return copy.deepcopy(new)


def _status_of(value: Data) -> Data:
    return {"status": value["status"]} if "status" in value else {}


def _server_meta(old: Data) -> Data:
    """Return what the server alone writes of metadata."""
    names = ("uid", "creationTimestamp", "generation", "resourceVersion", "managedFields")
    return {k: old["metadata"][k] for k in names if k in old["metadata"]}


def _merge_patched(value: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(value) if isinstance(value, dict) else {}
    for name, inner in patch.items():
        if inner is None:
            result.pop(name, None)
        else:
            result[name] = _merge_patched(result.get(name), inner)
    return result
