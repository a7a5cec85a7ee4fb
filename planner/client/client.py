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

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from planner.client.errors import ServiceError, problem_error
from planner.client.feeds import JobFeeds, job_tags
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
from planner.client.transport import (
    LOST,
    RETRIES,
    HttpReply,
    PathLike,
    Transport,
    json_bytes,
    pause,
    reply_object,
)
from planner.errors import UsageError

Progress = Callable[[Mapping[str, Any]], None]
"""Told the events of a job, as they come."""

URL, TOKEN, AUTHORITY = "PLANNER_SERVER", "PLANNER_TOKEN", "PLANNER_SERVER_CA"
"""Variables of the environment: address of a service, token for it, authority of its certificate.
"""
PRIORITY = "PLANNER_PRIORITY"
"""Variable of the environment: how urgent requests are."""
PATHS = {
    "allocate": "/v1/allocations:solve",
    "batch-solve": "/v1/plans:batchSolve",
    "sweep": "/v1/sweeps",
    "check-spec": "/v1/specs:check",
}
"""Paths of the calls that are not /v1/plans:NAME."""
FACTS = {"catalogue": "name", "rules": "code"}
"""Calls that are read with GET, and their parameter."""
ALWAYS_JOBS = ("batch-solve", "scale", "sweep")
MOST_ITEMS = 1_000
"""Most items of a page, as the service has it unless told otherwise."""
TAKES_TIME_LIMIT = ("batch-solve", "scale", "sweep", "replan")
"""Calls whose time is bounded by a field of the request; `Prefer: wait` bounds the others."""
FINAL = ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED")


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


class Client(JobFeeds):
    """Asks one service. Every method raises `ServiceError` where it is refused or not reached."""

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        ca: PathLike = "",
        cert: tuple[PathLike, PathLike] | None = None,
        timeout_s: float = 120.0,
        retries: int = RETRIES,
        priority: str = "",
    ) -> None:
        """Prepare a client; nothing is sent yet.

        `ca` is the file of the authority that the service's certificate is of, `cert` the files of
        one's own certificate and key. `timeout_s` bounds the silence of a connection. `priority`
        is `urgent`, `normal` or `background`, as far as one's group may ask for it.
        """
        self._transport = Transport(url, token, (ca, cert), timeout_s, retries, priority)
        self.url = self._transport.url

    @classmethod
    def from_environment(cls, **options: Any) -> "Client":
        """Return a client of the service that `PLANNER_SERVER` names, with `PLANNER_TOKEN`.

        `PLANNER_PRIORITY` says how urgent its requests are.
        """
        url = os.environ.get(URL, "")
        if not url:
            raise UsageError(f"{URL} names no service", f"{URL}=http://127.0.0.1:8642")
        ca = os.environ.get(AUTHORITY, "")
        known = {"token": os.environ.get(TOKEN, "").strip(), "ca": ca}
        return cls(url, **{**known, "priority": os.environ.get(PRIORITY, ""), **options})

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *of: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections that nobody uses now; a later call opens new ones."""
        self._transport.close()

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

    def trace(
        self, result: Result, plan: int | str = 1, *, micro_batches: int = 0, **more: Any
    ) -> Data:
        """Draw one step of a plan in time: the text of a trace file, for ui.perfetto.dev."""
        arguments = {**plan_of(result, plan), "micro_batches": micro_batches}
        return self._asked("trace", arguments, more)

    def replan(
        self,
        result: Result,
        plan: int | str = 1,
        *,
        lost: int | Sequence[str] = 0,
        gained: int | Mapping[str, int] = 0,
        **more: Any,
    ) -> Data:
        """Say what to do with a running plan after nodes were lost or gained."""
        gone = lost if isinstance(lost, int) else [lost] if isinstance(lost, str) else list(lost)
        counts = (
            {"gained": gained} if isinstance(gained, int) else {"gained_by_pool": dict(gained)}
        )
        arguments = {**plan_of(result, plan), "lost": gone, **counts}
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

    def batch_solve(
        self,
        jobs: Mapping[str, Source],
        clusters: Mapping[str, Source],
        counts: Sequence[int],
        **more: Any,
    ) -> Data:
        """Solve jobs on kinds of devices at numbers of them, both by name: a row each."""
        request = {
            "jobs": {name: document(each, "model") for name, each in jobs.items()},
            "clusters": {name: document(each, "cluster") for name, each in clusters.items()},
            "counts": list(counts),
        }
        return self._asked("batch-solve", request, more)

    def allocate(
        self,
        jobs: Sequence[Mapping[str, Any]],
        free: Mapping[str, int],
        objective: str = "throughput",
    ) -> Data:
        """Share the free nodes of pools among jobs, each with its curve."""
        request = {"jobs": [dict(job) for job in jobs], "free": dict(free)}
        return self._asked("allocate", {**request, "objective": objective}, {})

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

    def usage(self, group: str = "") -> Data:
        """Return the quotas of one's group and what of them is used; of another for an admin."""
        path = "/v1/usage" + (f"?group={quote(group)}" if group else "")
        return reply_object(self._transport.send("GET", path).payload)

    def version(self) -> Data:
        """Return the version of the service and its calls."""
        return reply_object(self._transport.send("GET", "/v1/version").payload)

    def is_ready(self) -> bool:
        """Tell whether the service would answer a question now."""
        try:
            return self._transport.send_once("GET", "/readyz").status == 200
        except LOST:
            return False

    def _asked(self, call: str, request: Data, more: Data) -> Data:
        # What belongs to the asking is no field of a request.
        wait_s, progress = more.pop("wait_s", None), more.pop("progress", None)
        if more.get("calibration") is not None:
            more["calibration"] = calibration_text(more["calibration"])
        if more.get("reference") is not None:
            more |= reference_of(more["reference"], more.get("files"))
        answer = self.ask(call, {**request, **more}, wait_s=wait_s, progress=progress)
        return reply_object(answer.payload)

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
            path = f"/v1/{call}" + (f"?{query}" if query else "")
            reply = self._transport.send("GET", path, cached=True)
            return ServiceAnswer(reply.payload, reply.etag)
        headers: dict[str, str] = {}
        if wait_s is not None:
            if not wait_s > 0.0:
                raise UsageError(f"wait_s must be above 0, not {wait_s}", "wait_s=2.5")
            headers["Prefer"] = f"wait={wait_s:.3f}"
            if call in TAKES_TIME_LIMIT:
                limit_s = request.get("time_limit_s") or wait_s
                request["time_limit_s"] = min(limit_s, wait_s)
        reply = self._posted(call, request, headers)
        if reply.status != 202:
            return ServiceAnswer(reply.payload, reply.etag)
        job_id = str(reply_object(reply.payload)["job_id"])
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

    def _posted(self, call: str, request: Data, headers: dict[str, str]) -> HttpReply:
        """Return the reply to a question: its answer, or the job that it became."""
        always = call in ALWAYS_JOBS
        key = {"Idempotency-Key": str(uuid.uuid4())} if always else {}
        path = PATHS.get(call, f"/v1/plans:{quote(call)}")
        return self._transport.send(
            "POST", path, json_bytes(request), headers | key, cached=not always
        )

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
        job_id = str(reply_object(self._posted(call, request, {}).payload)["job_id"])
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
        labels: Mapping[str, str] = {},
        webhook: Mapping[str, Any] | None = None,
    ) -> Data:
        """Submit a call as a job and return the job.

        `labels` are names and values by which jobs are selected. `webhook` is an address that is
        told when the job has ended: `{"url", "secret", "states"?}`.

        The same `idempotency_key` with the same request gives the first job; one is made where
        none is given, so that a repetition after a lost connection makes no second job.
        """
        arguments: Data = {"call": call, "request": dict(request), **job_tags(labels, webhook)}
        if time_limit_s:
            arguments["time_limit_s"] = time_limit_s
        key = idempotency_key or str(uuid.uuid4())
        if not key.isascii() or not key.isprintable():
            raise UsageError(f"idempotency_key {key!r} is not plain ASCII", "leave it out")
        headers = {"Idempotency-Key": key}
        return reply_object(
            self._transport.send("POST", "/v1/jobs", json_bytes(arguments), headers).payload
        )

    def job(self, job_id: str) -> Data:
        """Return a job."""
        return reply_object(self._transport.send("GET", _job_path(job_id)).payload)

    def cancel(self, job_id: str) -> Data:
        """Cancel a job and return it; one that has ended stays as it is."""
        return reply_object(self._transport.send("POST", f"{_job_path(job_id)}:cancel").payload)

    def watch(self, job_id: str, after: int = 0) -> Iterator[Data]:
        """Yield the events of a job until it has ended: each with its number `n`.

        `{"n", "state"}` or `{"n", "phase", "done", "total", "best_step_time_s"}`; those up to
        `after` are left out. A lost connection is taken up where it was.
        """
        tried = 0
        while True:
            try:
                for event in self._transport.events(f"{_job_path(job_id)}/events", after):
                    after, tried = event["n"], 0
                    yield event
                    if event.get("state") in FINAL:
                        return
                if self.job(job_id)["state"] in FINAL:
                    return
                raise ConnectionError("the events ended before the job")
            except LOST as error:
                tried += 1
                if tried > self._transport.retries:
                    raise self._transport.unreachable(error) from None
                pause(tried)

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
        reply = self._transport.send("GET", f"{_job_path(job_id)}/result")
        return ServiceAnswer(reply.payload, reply.etag, job_id)

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
            path, query = f"{_job_path(job_id)}/result", urlencode({"limit": limit, **more})
            page = reply_object(self._transport.send("GET", f"{path}?{query}").payload)
            yield page
            cursor = page["next_cursor"]
            if not cursor or (so_far and len(page["items"]) < limit):
                return


def _job_path(job_id: str) -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}"
