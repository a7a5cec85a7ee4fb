"""Providers of identities in this process: an issuer with keys of its own, a cluster's API."""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from service.identity.fetching import FetchFailed, JsonRequest

ISSUER = "https://idp.example"


class Issuer:
    """An OIDC issuer whose keys can be rotated, and that can be away."""

    def __init__(self, issuer: str = ISSUER) -> None:
        self.issuer = issuer
        self.keys: dict[str, Any] = {}
        self.is_away = False
        self.n_fetched = 0
        self.rotate("k1")

    def rotate(self, kid: str, keep: bool = False) -> None:
        """Sign with a new key from now on."""
        self.kid = kid
        old = self.keys if keep else {}
        self.keys = {**old, kid: ec.generate_private_key(ec.SECP256R1())}

    def jwks(self) -> dict[str, Any]:
        algorithm = jwt.algorithms.ECAlgorithm
        rows = []
        for kid, key in self.keys.items():
            row = algorithm.to_jwk(key.public_key(), as_dict=True)
            rows.append({**row, "kid": kid, "use": "sig"})
        return {"keys": rows}

    def fetch(self, request: JsonRequest) -> Mapping[str, Any]:
        if self.is_away:
            raise FetchFailed("away")
        if request.url.endswith("/.well-known/openid-configuration"):
            return {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys"}
        assert request.url == f"{self.issuer}/keys"
        self.n_fetched += 1
        return self.jwks()

    def token(self, wall_s: float | None = None, header: Any = None, **claims: Any) -> bytes:
        """Return a token; claims that are None are left out."""
        now_s = time.time() if wall_s is None else wall_s
        every = {"iss": self.issuer, "aud": "planner", "sub": "ann", "exp": int(now_s + 600)}
        every |= claims
        content = {name: value for name, value in every.items() if value is not None}
        headers = {"kid": self.kid, **(header or {})}
        return jwt.encode(content, self.keys[self.kid], "ES256", headers=headers).encode()


class Cluster:
    """The API server of a cluster: reviews of tokens."""

    def __init__(self) -> None:
        self.users: dict[str, dict[str, Any]] = {}
        self.audiences = ["planner"]
        self.is_away = False
        self.asked: list[JsonRequest] = []

    def fetch(self, request: JsonRequest) -> Mapping[str, Any]:
        self.asked.append(request)
        if self.is_away:
            raise FetchFailed("away")
        assert request.url.endswith("/apis/authentication.k8s.io/v1/tokenreviews")
        assert request.body is not None
        user = self.users.get(request.body["spec"]["token"])
        if user is None:
            return {"status": {"authenticated": False, "error": "no"}}
        status = {"authenticated": True, "user": user, "audiences": self.audiences}
        return {"kind": "TokenReview", "status": status}


@contextmanager
def http_provider(answers: Mapping[str, Any]) -> Iterator[str]:
    """Serve answers by path: (status, headers, bytes) or an object; yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            found = answers.get(self.path, (404, {}, b""))
            if callable(found):
                length = int(self.headers.get("content-length") or 0)
                headers = {name.lower(): value for name, value in self.headers.items()}
                found = found(headers, self.rfile.read(length))
            if isinstance(found, dict):
                found = 200, {"content-type": "application/json"}, json.dumps(found).encode()
            status, headers, content = found
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = _answer

        def log_message(self, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
