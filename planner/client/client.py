"""A client of the planning service over HTTP, with the standard library alone.

    from planner.client import Client

    with Client("http://127.0.0.1:8642") as service:
        answer = service.solve("llama3-70b", "h100-x512", top=3)
        files = service.emit(answer, 1, frameworks=["megatron"])["files"]

A model, a cluster or a run is the name of a packaged example, a mapping, a text, or a path: what
lies at a path is read here and sent as text, since the service opens nothing. Answers are the
plain data of `planner ... --format json`; `planner.solver.answer.result.Result.from_json` makes
the library's object of one. A client may be used by several threads; connections are kept open, as
many as were in use at the same time. Proxies of the environment are not used, redirects are not
followed.
"""

import hashlib
import http.client
import json
import os
import random
import ssl
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, urlencode, urlsplit

from planner.client.errors import ServiceError, problem_error
from planner.client.requests import (
    Data,
    Result,
    Source,
    calibration_text,
    document,
    hosts_of,
    inputs_of,
    paths_sent,
    plan_of,
    reference_of,
    run_of,
)
from planner.errors import UsageError

Progress = Callable[[Mapping[str, Any]], None]
"""Told the events of a job, as they come."""

URL, TOKEN, AUTHORITY = "PLANNER_SERVER", "PLANNER_TOKEN", "PLANNER_SERVER_CA"
"""Variables of the environment: address of a service, token for it, authority of its certificate.
"""
RETRIES = 6
"""Times that a request is sent again after a refusal that passes, or a lost connection."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
_PLAIN = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
"""What OpenSSL calls an answer that is not TLS, in releases before and since 3.2."""
KEPT_ANSWERS = 64
"""Answers that are kept to be asked for by their ETag."""
KEPT_BYTES = 32_000_000
PATHS = {"sweep": "/v1/sweeps", "check-spec": "/v1/specs:check"}
"""Paths of the calls that are not /v1/plans:NAME."""
FACTS = {"catalogue": "name", "rules": "code"}
"""Calls that are read with GET, and their parameter."""
ALWAYS_JOBS = ("scale", "sweep")
MOST_ITEMS = 1_000
"""Most items of a page, as the service has it unless told otherwise."""
TAKES_TIME_LIMIT = ("scale", "sweep", "replan")
"""Calls whose time is bounded by a field of the request; `Prefer: wait` bounds the others."""
FINAL = ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED")
_PASSES = (429, 502, 503)
"""Statuses of refusals that pass; 502 is a proxy's whose service starts."""


@dataclass(frozen=True, slots=True)
class ServiceAnswer:
    """What a call answered."""

    payload: bytes
    """The JSON text: the bytes of `planner ... --format json`."""
    etag: str
    """Content hash of the request; empty where there is none."""
    job_id: str = ""
    """The job that computed it, where it was one."""

    def json(self) -> Any:
        """Return the data."""
        return json.loads(self.payload)


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    headers: http.client.HTTPMessage
    payload: bytes


class Client:
    """Asks one service. Every method raises `ServiceError` where it is refused or not reached."""

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        ca: str | os.PathLike[str] = "",
        cert: tuple[str | os.PathLike[str], str | os.PathLike[str]] | None = None,
        timeout_s: float = 120.0,
        retries: int = RETRIES,
    ) -> None:
        """Prepare a client; nothing is sent yet.

        `ca` is the file of the authority that the service's certificate is of, `cert` the files of
        one's own certificate and key. `timeout_s` bounds the silence of a connection.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        tls = parts.scheme == "https"
        plain = parts.username is None and not parts.query and not parts.fragment
        if parts.scheme not in ("http", "https") or not host or not plain:
            raise UsageError(f"{url!r} is not the address of a service", "http://127.0.0.1:8642")
        if (ca or cert) and not tls:
            raise UsageError(f"certificates are for https, not for {url}", "https://HOST:PORT")
        if "\n" in token or "\r" in token or not token.isascii():
            raise UsageError("the token is not one line of ASCII", "check its file")
        self.url = url.rstrip("/")
        self._host, self._port, self._prefix = host, port, parts.path.rstrip("/")
        self._token = token
        self._timeout_s = timeout_s
        self._retries = retries
        self._tls = _tls(ca, cert) if tls else None
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._answers: OrderedDict[tuple[str, bytes], tuple[str, bytes]] = OrderedDict()
        self._kept_bytes = 0

    @classmethod
    def from_environment(cls, **options: Any) -> "Client":
        """Return a client of the service that `PLANNER_SERVER` names, with `PLANNER_TOKEN`."""
        url = os.environ.get(URL, "")
        if not url:
            raise UsageError(f"{URL} names no service", f"{URL}=http://127.0.0.1:8642")
        ca = os.environ.get(AUTHORITY, "")
        return cls(url, **{"token": os.environ.get(TOKEN, "").strip(), "ca": ca, **options})

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *of: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections that nobody uses now; a later call opens new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    # ---- calls

    def solve(self, model: Source, cluster: Source, **more: Any) -> Data:
        """Rank the layouts of a training job; `more` are fields of the request, as `ask` has it.

        Such as `pins={"tp": 8}`, `only`, `max`, `set`, `top`, `framework`, `objective`.
        """
        return self._asked("solve", {**inputs_of(model, cluster)}, more)

    def evaluate(
        self, model: Source, cluster: Source, pins: Mapping[str, Any], **more: Any
    ) -> Data:
        """Price one layout, whether or not it fits."""
        return self._asked("evaluate", {**inputs_of(model, cluster), "pins": dict(pins)}, more)

    def explain(self, result: Result, plan: int | str = 1, term: str = "", **more: Any) -> Data:
        """Explain a plan, by its rank or id, in words; or one term down to its formula."""
        return self._asked("explain", {**plan_of(result, plan), "term": term}, more)

    def emit(
        self,
        result: Result,
        plan: int | str = 1,
        *,
        frameworks: Sequence[str] = ("megatron",),
        launcher: Sequence[str] = ("torchrun",),
        hosts: str | os.PathLike[str] | None = None,
        **more: Any,
    ) -> Data:
        """Return the files that run a plan, text by name."""
        arguments = {**plan_of(result, plan), "for": list(frameworks), "launcher": list(launcher)}
        return self._asked("emit", {**arguments, **hosts_of(hosts)}, more)

    def place(
        self,
        result: Result,
        plan: int | str = 1,
        *,
        hosts: str | os.PathLike[str] | None = None,
        **more: Any,
    ) -> Data:
        """Map the ranks of a plan to hosts, `n[001-016]` or the lines of a file."""
        return self._asked("place", {**plan_of(result, plan), **hosts_of(hosts)}, more)

    def replan(
        self,
        result: Result,
        plan: int | str = 1,
        *,
        lost: int | Sequence[str] = 0,
        gained: int = 0,
        **more: Any,
    ) -> Data:
        """Say what to do with a running plan after nodes were lost or gained."""
        gone = lost if isinstance(lost, int) else [lost] if isinstance(lost, str) else list(lost)
        arguments = {**plan_of(result, plan), "lost": gone, "gained": gained}
        return self._asked("replan", arguments, more)

    def diff(self, a: tuple[Result, int | str], b: tuple[Result, int | str], **more: Any) -> Data:
        """Say term by term why one plan beats another; a plan is `(result, rank or id)`."""
        return self._asked("diff", {"a": plan_of(*a), "b": plan_of(*b)}, more)

    def check(
        self,
        run: Source,
        cluster: Source,
        *,
        model: Source | None = None,
        files: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Data:
        """Judge an existing run: a launch script or a configuration, of which `run` is the path.

        `files` are the texts of those that it names; without, such as lie beside it are sent too.
        """
        arguments: Data = {**run_of(run, files), "cluster": document(cluster, "cluster")}
        if model is not None:
            arguments["model"] = document(model, "model")
        return self._asked("check", arguments, more)

    def scale(self, model: Source, cluster: Source, **more: Any) -> Data:
        """Find the best plan at each number of devices; `from_` and `to` bound them."""
        if "from_" in more:
            more["from"] = more.pop("from_")
        return self._asked("scale", inputs_of(model, cluster), more)

    def sweep(self, spec: Mapping[str, Any], **more: Any) -> Data:
        """Search every point of a design: `spec` is what a sweep file holds."""
        return self._asked("sweep", {"spec": dict(spec)}, more)

    def check_spec(self, file: Source, **more: Any) -> Data:
        """Check a model or cluster file and say what it describes."""
        return self._asked("check-spec", {"document": document(file, "model")}, more)

    def catalogue(self, name: str = "") -> Data:
        """Return every accelerator, link and platform with sources, or one of them."""
        return self._asked("catalogue", {"name": name} if name else {}, {})

    def rules(self, code: str = "") -> Data:
        """Return every rule that rejects layouts or settings, or one of them."""
        return self._asked("rules", {"code": code} if code else {}, {})

    def version(self) -> Data:
        """Return the version of the service and its calls."""
        return _parsed(self._send("GET", "/v1/version").payload)

    def is_ready(self) -> bool:
        """Tell whether the service would answer a question now."""
        try:
            return self._once("GET", "/readyz", b"", {}).status == 200
        except (OSError, http.client.HTTPException):
            return False

    def _asked(self, call: str, request: Data, more: Data) -> Data:
        # What belongs to the asking is no field of a request.
        wait_s, progress = more.pop("wait_s", None), more.pop("progress", None)
        if more.get("calibration") is not None:
            more["calibration"] = calibration_text(more["calibration"])
        if more.get("reference") is not None:
            more |= reference_of(more["reference"], more.get("files"))
        answer = self.ask(call, {**request, **more}, wait_s=wait_s, progress=progress)
        return _parsed(answer.payload)

    def ask(
        self,
        call: str,
        request: Mapping[str, Any],
        *,
        wait_s: float | None = None,
        progress: Progress | None = None,
    ) -> ServiceAnswer:
        """Return the answer of any call to a request as the service reads it.

        With `wait_s` it is the best so far after so many seconds, and says so in `complete`. A
        question that the service makes a job of is waited for; `progress` is told its events.
        """
        try:
            return self._answer(call, dict(request), wait_s, progress)
        except ServiceError as error:
            error.name_files(paths_sent(request))
            raise

    def _answer(
        self, call: str, request: Data, wait_s: float | None, progress: Progress | None
    ) -> ServiceAnswer:
        if call in FACTS:
            query = urlencode(request)
            reply = self._send("GET", f"/v1/{call}" + (f"?{query}" if query else ""), kept=True)
            return ServiceAnswer(reply.payload, _etag(reply))
        headers: dict[str, str] = {}
        if wait_s is not None:
            if not wait_s > 0.0:
                raise UsageError(f"wait_s must be above 0, not {wait_s}", "wait_s=2.5")
            headers["Prefer"] = f"wait={wait_s:.3f}"
            if call in TAKES_TIME_LIMIT:
                given_s = request.get("time_limit_s") or wait_s
                request["time_limit_s"] = min(given_s, wait_s)
        reply = self._posted(call, request, headers)
        if reply.status != 202:
            return ServiceAnswer(reply.payload, _etag(reply))
        job_id = str(_parsed(reply.payload)["job_id"])
        if wait_s is not None and call not in TAKES_TIME_LIMIT:
            # A job of its own, which ends with the best so far in time.
            self.cancel(job_id)
            job_id = str(self.submit(call, request, time_limit_s=wait_s)["job_id"])
        try:
            return self.wait(job_id, progress)
        except KeyboardInterrupt:
            with suppress(ServiceError):
                self.cancel(job_id)  # nobody waits for it any more
            raise

    def _posted(self, call: str, request: Data, headers: dict[str, str]) -> _Reply:
        """Return the reply to a question: its answer, or the job that it became."""
        always = call in ALWAYS_JOBS
        key = {"Idempotency-Key": str(uuid.uuid4())} if always else {}
        path = PATHS.get(call, f"/v1/plans:{quote(call)}")
        return self._send("POST", path, _body(request), headers | key, kept=not always)

    # ---- jobs

    def rows(
        self, call: str, request: Mapping[str, Any], *, progress: Progress | None = None
    ) -> Iterator[Data]:
        """Yield the rows of a sweep or a scale as the service finds them, each once.

        They come in the order in which they are found; `index` is their place in the answer.
        `progress` is told the events of the job, which is cancelled where the caller takes no
        more rows. Raises `ServiceError` as `ask` does, after the rows that there are.
        """
        try:
            yield from self._rows(call, dict(request), progress)
        except ServiceError as error:
            error.name_files(paths_sent(request))
            raise

    def _rows(self, call: str, request: Data, progress: Progress | None) -> Iterator[Data]:
        job_id = str(_parsed(self._posted(call, request, {}).payload)["job_id"])
        seen: set[int] = set()

        def new(page: Data) -> Iterator[Data]:
            for row in page["items"]:
                if row["index"] not in seen:
                    seen.add(row["index"])
                    yield row

        cursor = ""
        try:
            for event in self.watch(job_id):
                if progress is not None:
                    progress(event)
                if event.get("done", 0) <= len(seen):
                    continue
                try:
                    for page in self.pages(job_id, MOST_ITEMS, so_far=True, cursor=cursor):
                        cursor = page["next_cursor"] or cursor
                        yield from new(page)
                except ServiceError as error:
                    if error.status != 409:  # it has ended meanwhile, with its answer
                        raise
            self._check_answered(job_id)
            for page in self.pages(job_id, MOST_ITEMS):
                yield from new(page)
                if len(seen) == page["total"]:
                    break
        except (KeyboardInterrupt, GeneratorExit):
            with suppress(ServiceError):
                self.cancel(job_id)  # nobody waits for it any more
            raise

    def submit(
        self,
        call: str,
        request: Mapping[str, Any],
        *,
        time_limit_s: float = 0.0,
        idempotency_key: str = "",
    ) -> Data:
        """Submit a call as a job and return the job.

        The same `idempotency_key` with the same request gives the first job; one is made where
        none is given, so that a repetition after a lost connection makes no second job.
        """
        arguments: Data = {"call": call, "request": dict(request)}
        if time_limit_s:
            arguments["time_limit_s"] = time_limit_s
        key = idempotency_key or str(uuid.uuid4())
        if not key.isascii() or not key.isprintable():
            raise UsageError(f"idempotency_key {key!r} is not plain ASCII", "leave it out")
        headers = {"Idempotency-Key": key}
        return _parsed(self._send("POST", "/v1/jobs", _body(arguments), headers).payload)

    def job(self, job_id: str) -> Data:
        """Return a job."""
        return _parsed(self._send("GET", _job_path(job_id)).payload)

    def jobs(self, state: str = "", *, page: int = 100) -> Iterator[Data]:
        """Yield one's own jobs, the newest first; all of them for an admin."""
        query: Data = {"limit": page, **({"state": state} if state else {})}
        cursor = ""
        while True:
            more = {"cursor": cursor} if cursor else {}
            parsed = _parsed(self._send("GET", f"/v1/jobs?{urlencode({**query, **more})}").payload)
            yield from parsed["jobs"]
            cursor = parsed["next_cursor"]
            if not cursor:
                return

    def cancel(self, job_id: str) -> Data:
        """Cancel a job and return it; one that has ended stays as it is."""
        return _parsed(self._send("POST", f"{_job_path(job_id)}:cancel").payload)

    def watch(self, job_id: str, after: int = 0) -> Iterator[Data]:
        """Yield the events of a job until it has ended: each with its number `n`.

        `{"n", "state"}` or `{"n", "phase", "done", "total", "best_step_time_s"}`; those up to
        `after` are left out. A lost connection is taken up where it was.
        """
        tried = 0
        while True:
            try:
                for event in self._events(job_id, after):
                    after, tried = event["n"], 0
                    yield event
                    if event.get("state") in FINAL:
                        return
                if self.job(job_id)["state"] in FINAL:
                    return
                raise ConnectionError("the events ended before the job")
            except (OSError, http.client.HTTPException) as error:
                tried += 1
                if tried > self._retries:
                    raise self._unreached(error) from None
                time.sleep(_pause_s(tried))

    def _events(self, job_id: str, after: int) -> Iterator[Data]:
        """Yield the events of one connection; `OSError` where it is lost."""
        connection = self._connection()
        try:
            arguments = {
                "Accept": "text/event-stream",
                **({"Last-Event-ID": str(after)} if after else {}),
            }
            connection.request(
                "GET",
                self._prefix + f"{_job_path(job_id)}/events",
                headers=self._headers(arguments),
            )
            with connection.getresponse() as response:
                if response.status == 204:
                    return
                if response.status != 200:
                    reply = _Reply(response.status, response.headers, response.read())
                    if reply.status in _PASSES:
                        raise ConnectionError(f"HTTP {reply.status}")
                    raise _refusal(reply)
                fields: dict[str, str] = {}
                for raw in response:
                    line = raw.decode("utf-8").rstrip("\r\n")
                    if not line:
                        if fields.get("event") == "problem":
                            raise _ended_with(_object(fields["data"]))
                        if "data" in fields:
                            yield {"n": int(fields.get("id", after)), **_object(fields["data"])}
                        fields = {}
                    elif not line.startswith(":"):
                        name, _, value = line.partition(":")
                        fields[name] = value.removeprefix(" ")
        finally:
            connection.close()

    def wait(self, job_id: str, progress: Progress | None = None) -> ServiceAnswer:
        """Return the answer of a job when it has ended; `ServiceError` where it has none."""
        for event in self.watch(job_id):
            if progress is not None:
                progress(event)
        self._check_answered(job_id)
        return self.result(job_id)

    def _check_answered(self, job_id: str) -> None:
        """Raise `ServiceError` where a job has ended without an answer."""
        outcome = self.job(job_id)
        if outcome["state"] == "SUCCEEDED":
            return
        if outcome.get("problem"):
            raise problem_error(outcome["problem"], int(outcome["problem"].get("status", 0)))
        code = f"job-{outcome['state'].lower()}"
        raise ServiceError(code, f"job {job_id} ended as {outcome['state']}, without an answer")

    def result(self, job_id: str) -> ServiceAnswer:
        """Return the whole answer of a job that has succeeded."""
        reply = self._send("GET", f"{_job_path(job_id)}/result")
        return ServiceAnswer(reply.payload, _etag(reply), job_id)

    def pages(
        self, job_id: str, limit: int = 100, *, so_far: bool = False, cursor: str = ""
    ) -> Iterator[Data]:
        """Yield the answer of a job by pages of its longest list: `items`, `total`, `list`.

        The other fields of the answer come with the first page, as `answer`. With `so_far` the
        rows of a sweep or a scale that runs, or ended without an answer, as they came;
        the `next_cursor` of the last page gets those that have come since.
        """
        while True:
            more = {"cursor": cursor} if cursor else {}
            more |= {"so_far": "true"} if so_far else {}
            query = urlencode({"limit": limit, **more})
            page = _parsed(self._send("GET", f"{_job_path(job_id)}/result?{query}").payload)
            yield page
            cursor = page["next_cursor"]
            if not cursor or (so_far and len(page["items"]) < limit):
                return

    # ---- transport

    def _send(
        self,
        method: Literal["GET", "POST"],
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        kept: bool = False,
    ) -> _Reply:
        """Return the reply to a request, sent again where that may help.

        Sending twice does no harm: questions only ask, and what makes jobs carries a key. With
        `kept` the answer is kept, and asked for by its ETag the next time.
        """
        value = dict(headers or {})
        key = (path, hashlib.sha256(body).digest())
        known = self._kept(key) if kept and "Prefer" not in value else None
        if known:
            value["If-None-Match"] = f'"{known[0]}"'
        for tried in range(1, self._retries + 2):
            try:
                reply = self._once(method, path, body, value)
            except (OSError, http.client.HTTPException) as error:
                # Who was silent for so long is busy: asking again would make it worse.
                final = isinstance(error, TimeoutError | ssl.SSLCertVerificationError)
                if final or tried > self._retries:
                    raise self._unreached(error) from None
                time.sleep(_pause_s(tried))
                continue
            if reply.status == 304 and known:
                return _Reply(200, reply.headers, known[1])
            if reply.status in (200, 202):
                if kept and reply.status == 200 and "Prefer" not in value:
                    self._keep(key, reply)
                return reply
            refusal = _refusal(reply)
            if reply.status not in _PASSES or tried > self._retries:
                raise refusal
            time.sleep(_pause_s(tried, refusal.retry_after_s))
        raise AssertionError("the last try returns or raises")

    def _once(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> _Reply:
        """Return the reply to a request, over a kept connection where there is one.

        One that the service has closed meanwhile is opened again.
        """
        given = self._headers(headers)
        if method == "POST":
            given["Content-Type"] = "application/json"
        with self._lock:
            kept = self._idle.pop() if self._idle else None
        if kept is not None:
            try:
                return self._over(kept, method, path, body, given)
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                pass
        return self._over(self._connection(), method, path, body, given)

    def _over(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes,
        headers: dict[str, str],
    ) -> _Reply:
        """Return the reply over a connection, which is kept for the next request."""
        keep = False
        try:
            connection.request(method, self._prefix + path, body or None, headers)
            response = connection.getresponse()
            reply = _Reply(response.status, response.headers, response.read())
            keep = not response.will_close
        finally:
            if keep:
                with self._lock:
                    self._idle.append(connection)
            else:
                connection.close()
        return reply

    def _headers(self, given: Mapping[str, str]) -> dict[str, str]:
        requested = {"Accept": "application/json", "User-Agent": "parallelism-planner", **given}
        return requested | ({"Authorization": f"Bearer {self._token}"} if self._token else {})

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=self._timeout_s, context=self._tls
        )

    def _unreached(self, error: Exception) -> ServiceError:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        fix = "is it running (planner serve), and is the address right?"
        if isinstance(error, http.client.BadStatusLine) and not isinstance(error, OSError):
            reason = "what came back is not HTTP"
            fix = (
                "name the port of HTTP (8642 unless told), not that of gRPC, and https where it is"
            )
        elif isinstance(error, ssl.SSLError) and error.reason in _PLAIN:
            fix = "the service may speak plain HTTP there: http:// in place of https://"
        elif isinstance(error, ssl.SSLError):
            fix = "name the authority of its certificate: ca=FILE, --server-ca FILE"
        return ServiceError("unreachable", f"{self.url} does not answer: {reason}", fix)

    def _kept(self, key: tuple[str, bytes]) -> tuple[str, bytes] | None:
        with self._lock:
            outcome = self._answers.get(key)
            if outcome:
                self._answers.move_to_end(key)
            return outcome

    def _keep(self, key: tuple[str, bytes], reply: _Reply) -> None:
        etag = _etag(reply)
        if not etag or len(reply.payload) > KEPT_BYTES // 4:
            return
        with self._lock:
            old = self._answers.pop(key, None)
            self._kept_bytes += len(reply.payload) - (len(old[1]) if old else 0)
            self._answers[key] = (etag, reply.payload)
            while len(self._answers) > KEPT_ANSWERS or self._kept_bytes > KEPT_BYTES:
                _, (_, payload) = self._answers.popitem(last=False)
                self._kept_bytes -= len(payload)


def _body(request: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(request, allow_nan=False, default=os.fspath).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the request is no JSON: {error}", "plain data only") from None


# ---- what is answered


def _etag(reply: _Reply) -> str:
    return (reply.headers.get("ETag") or "").removeprefix("W/").strip('"')


def _object(text: str | bytes) -> Data:
    result = json.loads(text)
    if not isinstance(result, dict):
        raise ValueError("no object")
    return result


def _parsed(payload: bytes) -> Data:
    try:
        return _object(payload)
    except ValueError:
        raise _no_service() from None


def _no_service(status: int = 0) -> ServiceError:
    message = f": HTTP {status}" if status else ""
    fix = "is this the address of planner serve, its HTTP port?"
    return ServiceError(
        "no-service", f"the answer is none of a service{message}", fix, status=status
    )


def _refusal(reply: _Reply) -> ServiceError:
    """Return the error that a reply is."""
    try:
        data = _object(reply.payload)
    except ValueError:
        data = {}
    result = problem_error(data, reply.status) if "code" in data else _no_service(reply.status)
    after = reply.headers.get("Retry-After", "")
    if result.retry_after_s is None and after.isdigit():
        result.retry_after_s = float(after)
    return result


def _ended_with(problem: Data) -> Exception:
    """Return the error of events that ended with a problem; one that passes is a lost connection.

    Such as that of a service that stops: another process has the job.
    """
    status = int(problem.get("status", 0))
    if status in _PASSES:
        return ConnectionError(f"HTTP {status}")
    return problem_error(problem, status)


def _job_path(job_id: str) -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}"


def _pause_s(tried: int, asked_s: float | None = None) -> float:
    """Return how long to wait before another try: what was asked for, else longer every time.

    Spread at random, so that those who were refused together do not come back together.
    """
    doubled = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (tried - 1))
    least = min(LONGEST_PAUSE_S, asked_s or 0.0)
    return (
        max(least, doubled) * random.uniform(1.0, 1.25)
        if asked_s
        else (doubled * random.uniform(0.5, 1.0))
    )


def _tls(
    ca: str | os.PathLike[str],
    cert: tuple[str | os.PathLike[str], str | os.PathLike[str]] | None,
) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=os.fspath(ca) if ca else None)
        if cert:
            context.load_cert_chain(*cert)
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        named = ", ".join(os.fspath(x) for x in (ca, *(cert or ())) if x)
        raise UsageError(f"{named}: {reason}", "PEM files") from None
    return context
