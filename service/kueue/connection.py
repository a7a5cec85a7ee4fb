"""Where the API server of a cluster is, and how one speaks to it: kubeconfig, pod or address."""

import base64
import binascii
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from planner.errors import UsageError

IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds the token of its service account and the authority of the API server."""


@dataclass(frozen=True, slots=True)
class Connection:
    """An API server and the credentials for it."""

    url: str
    token: str = ""
    token_file: Path | None = None
    """Read at every request: the kubelet renews the tokens of pods."""
    tls: ssl.SSLContext | None = None
    """None over plain HTTP."""

    @property
    def bearer(self) -> str:
        """The token to send; empty for none."""
        if self.token_file is not None:
            return self.token_file.read_text().strip()
        return self.token


def find_connection(server: str = "", kubeconfig: str = "", context: str = "") -> Connection:
    """Return the connection that is named, else that of the pod, else of ~/.kube/config.

    `server` is an address without credentials, such as that of `kubectl proxy`. Raises
    `UsageError` where there is none, or where a kubeconfig has what is not supported.
    """
    if server:
        parts = urlsplit(server)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--api-server {server} is no address", "http://127.0.0.1:8001")
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        return Connection(server.rstrip("/"), tls=tls)
    named = kubeconfig or os.environ.get("KUBECONFIG", "")
    if not named and (IN_POD / "token").exists():
        return _of_pod()
    path = Path(named) if named else Path.home() / ".kube" / "config"
    if not path.exists():
        raise UsageError(
            f"no cluster is named: {path} is not there",
            "--kubeconfig FILE, KUBECONFIG, or --api-server URL of kubectl proxy",
        )
    return read_kubeconfig(path, context)


def _of_pod() -> Connection:
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{x}", "") for x in ("HOST", "PORT"))
    if not host or not port:
        raise UsageError(
            f"{IN_POD} is there, and KUBERNETES_SERVICE_HOST is not", "--kubeconfig FILE"
        )
    shown = f"[{host}]" if ":" in host else host
    tls = ssl.create_default_context(cafile=str(IN_POD / "ca.crt"))
    return Connection(f"https://{shown}:{port}", token_file=IN_POD / "token", tls=tls)


def read_kubeconfig(path: Path, context: str = "") -> Connection:
    """Return the connection of a context of a kubeconfig, the current one where none is named."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"{path} cannot be read: {error}", "--kubeconfig FILE") from None
    if not isinstance(document, Mapping):
        raise UsageError(f"{path} is no kubeconfig", "--kubeconfig FILE")
    name = context or str(document.get("current-context") or "")
    chosen = _entry(document, "contexts", "context", name, path)
    cluster = _entry(document, "clusters", "cluster", str(chosen.get("cluster")), path)
    user = _entry(document, "users", "user", str(chosen.get("user")), path)
    url = str(cluster.get("server") or "").rstrip("/")
    if urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(f"{path}: the server {url!r} is no address", "https://HOST:6443")
    for unknown in ("exec", "auth-provider", "username"):
        if unknown in user:
            raise UsageError(
                f"{path}: users.{unknown} is not supported",
                "kubectl proxy, and --api-server http://127.0.0.1:8001",
            )
    file = user.get("tokenFile")
    return Connection(
        url,
        token=str(user.get("token") or ""),
        token_file=path.parent / str(file) if file else None,
        tls=_tls(cluster, user, path) if url.startswith("https") else None,
    )


def _entry(
    document: Mapping[str, Any], section: str, kind: str, name: str, path: Path
) -> Mapping[str, Any]:
    for entry in document.get(section) or ():
        if isinstance(entry, Mapping) and entry.get("name") == name:
            found = entry.get(kind)
            return found if isinstance(found, Mapping) else {}
    raise UsageError(f"{path}: no {name!r} in {section}", "--context NAME, or another file")


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any], path: Path) -> ssl.SSLContext:
    try:
        authority = _text(cluster, "certificate-authority", path)
        tls = ssl.create_default_context(cadata=authority or None)
        if cluster.get("insecure-skip-tls-verify"):
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        certificate, key = (_text(user, f"client-{x}", path) for x in ("certificate", "key"))
        if certificate and key:
            _load_pair(tls, certificate, key)
    except (OSError, ValueError) as error:  # ssl.SSLError and binascii.Error are these
        raise UsageError(f"{path}: no certificate: {error}", "another kubeconfig") from None
    return tls


def _text(section: Mapping[str, Any], name: str, path: Path) -> str:
    """Return a certificate or key, which stands in the file or in one beside it."""
    if data := section.get(f"{name}-data"):
        try:
            return base64.b64decode(str(data), validate=True).decode("ascii")
        except (binascii.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{name}-data: {error}") from None
    return (path.parent / str(section[name])).read_text() if section.get(name) else ""


def _load_pair(tls: ssl.SSLContext, certificate: str, key: str) -> None:
    """Load a certificate and its key, which OpenSSL reads from files alone."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        names = []
        for name, text in (("crt", certificate), ("key", key)):
            file = Path(folder) / name
            file.touch(mode=0o600)
            file.write_text(text)
            names.append(str(file))
        tls.load_cert_chain(*names)
