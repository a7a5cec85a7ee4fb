"""A real API server for checks: etcd and kube-apiserver of a folder, as envtest starts them."""

import os
import secrets
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from service.kueue.connection import Connection
from tools.kubernetes_api.http_store import HttpStore
from tools.kubernetes_api.schemas import GROUP, kinds
from tools.kubernetes_api.store import Refused

ASSETS = "KUBEBUILDER_ASSETS"
START_S = 120.0
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class CannotStart(Exception):
    """A server that does not start, and what it said."""


@contextmanager
def started(assets: Path) -> Iterator[Connection]:
    """Run the two programs of a folder until the end of the block."""
    programs = [assets / "etcd", assets / "kube-apiserver"]
    for program in programs:
        if not os.access(program, os.X_OK):
            raise CannotStart(f"{program} is not there; {ASSETS} names a folder with both")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        token = secrets.token_hex(16)
        (folder / "tokens").write_text(f"{token},admin,1,system:masters\n")
        key = ["openssl", "genrsa", "-out", str(folder / "key"), "2048"]
        subprocess.run(key, check=True, capture_output=True)
        client, peer, secure = _free_ports(3)
        etcd = f"http://127.0.0.1:{client}"
        commands = [
            [
                str(programs[0]),
                f"--data-dir={folder / 'etcd'}",
                f"--listen-client-urls={etcd}",
                f"--advertise-client-urls={etcd}",
                f"--listen-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-cluster=default=http://127.0.0.1:{peer}",
            ],
            [
                str(programs[1]),
                f"--etcd-servers={etcd}",
                f"--cert-dir={folder / 'certificates'}",
                "--bind-address=127.0.0.1",
                f"--secure-port={secure}",
                f"--token-auth-file={folder / 'tokens'}",
                "--authorization-mode=RBAC",
                "--service-cluster-ip-range=10.0.0.0/24",
                "--disable-admission-plugins=ServiceAccount",
                "--service-account-issuer=https://127.0.0.1",
                f"--service-account-key-file={folder / 'key'}",
                f"--service-account-signing-key-file={folder / 'key'}",
            ],
        ]
        tls = ssl.create_default_context()
        # Its certificate is its own, made a moment ago; the address is of this machine.
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        running = [_run(command, folder) for command in commands]
        try:
            connection = Connection(f"https://127.0.0.1:{secure}", token, tls=tls)
            _wait(HttpStore(connection), running, folder)
            yield connection
        finally:
            for process in reversed(running):
                process.terminate()
            for process in running:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                process.kill()
                process.wait()


def _run(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / f"{Path(command[0]).name}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def _free_ports(n: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [int(each.getsockname()[1]) for each in held]
    for each in held:
        each.close()
    return ports


def _wait(store: HttpStore, running: list[subprocess.Popen[bytes]], folder: Path) -> None:
    end_s = time.monotonic() + START_S
    while True:
        try:
            store.ask("GET", "/api/v1/namespaces/default")
            return
        except (OSError, ValueError, Refused):
            ended = [x for x in running if x.poll() is not None]
            if ended or time.monotonic() > end_s:
                logs = "\n".join(
                    x.read_text(errors="replace")[-1500:] for x in folder.glob("*.log")
                )
                raise CannotStart(f"the API server did not start:\n{logs}") from None
            time.sleep(0.3)


def install(store: HttpStore, folder: Path | None) -> str:
    """Create Kueue's definitions: those of a folder, else ours; return which, in words."""
    documents = list(_of_folder(folder)) if folder else [_own(kind) for kind in _kueue_kinds()]
    for document in documents:
        with suppress(_Present):
            _create(store, document)
    paths = [f"/apis/{GROUP}/{kind.versions[0]}/{kind.plural}" for kind in _kueue_kinds()]

    def served() -> bool:
        try:
            return all(store.ask("GET", path) is not None for path in paths)
        except Refused:
            return False

    if not store.wait(served, START_S):
        raise CannotStart(f"the server has not {', '.join(paths)}")
    return f"Kueue's definitions of {folder}" if folder else "definitions of our own schemas"


class _Present(Exception):
    pass


def _create(store: HttpStore, document: Any) -> None:
    try:
        store.ask("POST", _CRDS, document)
    except Refused as refusal:
        if refusal.code != 409:
            raise
        raise _Present from None


def _kueue_kinds() -> list[Any]:
    return [kind for kind in kinds().values() if kind.group == GROUP]


def _of_folder(folder: Path) -> Iterator[Any]:
    for path in sorted(folder.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if document and document.get("kind") == "CustomResourceDefinition":
                document["spec"].pop("conversion", None)  # a webhook that does not run here
                yield document


def _own(kind: Any) -> dict[str, Any]:
    """Return a definition of a kind with our schema."""
    version = {
        "name": kind.versions[0],
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _plain(kind.schema)},
        **({"subresources": {"status": {}}} if kind.has_status else {}),
    }
    names = {"plural": kind.plural, "singular": kind.kind.lower(), "kind": kind.kind}
    # The protected group asks for the word of its owners; this server is gone in a minute.
    notes = {"api-approved.kubernetes.io": "unapproved, for a check on a server of its own"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}", "annotations": notes},
        "spec": {
            "group": GROUP,
            "names": {**names, "listKind": f"{kind.kind}List"},
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "versions": [version],
        },
    }


def _plain(schema: Any) -> Any:
    """Return a schema without what is ours alone."""
    if isinstance(schema, dict):
        return {key: _plain(value) for key, value in schema.items() if key != "x-rules"}
    return [_plain(x) for x in schema] if isinstance(schema, list) else schema
