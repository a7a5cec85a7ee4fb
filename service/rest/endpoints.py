"""The operations of the REST transport: each takes a routed request and returns its answer."""

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

import planner
from service.access.caller import Caller, CallerLeft
from service.engine import CallAnswer, CallTerms, Engine
from service.feeds.jobs import JobFeed, job_filter, watch_terms
from service.handlers.calls import CALLS
from service.handlers.problems import Refusal, refused
from service.http.events import watch_job, watch_jobs
from service.http.exchange import HttpExchange, Operation, wait_s, wants_job
from service.jobs.labels import header_tags
from service.jobs.records import JobView
from service.rest.openapi import openapi_text
from service.rest.operations import FACTS
from service.rest.responses import (
    NO_STORE,
    answer_response,
    exchange_of,
    job_of,
    job_response,
    json_response,
    query_flag,
    query_limit,
    request_query,
    while_connected,
)
from service.rest.webhooks import WebhookEndpoints
from service.telemetry.metrics import CONTENT_TYPE, Metrics

log = logging.getLogger("planner.service")

READY_S = 1.0
"""How long an answer of /readyz holds: anybody may ask."""
CLIENT_LEFT = 499
"""Status in logs and metrics of a request whose caller left before there was an answer."""
Endpoint = Callable[[Request], Awaitable[Response]]


class Endpoints:
    """The operations, over an engine; `root` is the prefix of addresses in answers."""

    def __init__(self, engine: Engine, metrics: Metrics, root: str) -> None:
        self._engine, self._metrics, self._root = engine, metrics, root
        self._feed = JobFeed(engine)
        webhooks = WebhookEndpoints(engine, root)
        self._ready: tuple[float, Refusal | None] = (-math.inf, None)
        self._readiness: asyncio.Task[None] | None = None
        self._functions: Mapping[str, Endpoint] = {
            "submitJob": self._submit_job,
            "listJobs": self._list_jobs,
            "getJob": self._get_job,
            "cancelJob": self._cancel_job,
            "watchJob": self._watch,
            "watchJobs": self._watch_jobs,
            "getResult": self._result,
            "getUsage": self._usage,
            **webhooks.functions,
            "getVersion": self._version,
            "getMetrics": self._metrics_text,
            "isAlive": self._livez,
            "isReady": self._readyz,
            "getOpenapi": self._openapi,
        }

    def of(self, operation: Operation) -> Endpoint:
        """Return the function of an operation; no defect of it reaches the framework."""
        return _guarded(self._call if operation.call else self._functions[operation.id])

    async def _call(self, request: Request) -> Response:
        """Answer a call, or accept it as a job where it is large or is to be one."""
        exchange, caller = exchange_of(request)
        assert exchange.operation is not None
        name = exchange.operation.call
        body: bytes | dict[str, str] = exchange.body
        if name in FACTS:
            value = request_query(request).get(FACTS[name], "")
            body = {FACTS[name]: value} if value else {}
        key = exchange.header(b"idempotency-key")
        prefer = exchange.header(b"prefer")
        may_be_job = 202 in exchange.operation.answers
        tags = header_tags(exchange.header(b"planner-labels")) if may_be_job else {}
        longest_s = wait_s(prefer)
        is_waited = longest_s is not None and 200 in exchange.operation.answers
        if may_be_job and CALLS[name].size == "large" and is_waited and not wants_job(prefer):
            return await self._waited(exchange, name, caller, longest_s or 0.0, tags)
        if may_be_job and (CALLS[name].size == "large" or wants_job(prefer)):
            job = await self._engine.submit(name, body, caller, key, tags=tags)
            return self._accepted(exchange, job)
        work = self._engine.call(name, body, caller, CallTerms(wait_s(prefer), key))
        try:
            answer = await while_connected(request, work)
        except Refusal as problem:
            if problem.code != "needs-job" or not may_be_job:
                raise
            job = await self._engine.submit(name, body, caller, key, tags=tags)
            return self._accepted(exchange, job)
        self._metrics.answered(name, answer, time.monotonic() - exchange.begun_s)
        return answer_response(exchange, answer)

    async def _waited(
        self,
        exchange: HttpExchange,
        name: str,
        caller: Caller,
        longest_s: float,
        tags: Mapping[str, Any],
    ) -> Response:
        """Answer a call that is a job, where it ends in time; else with the job."""
        key = exchange.header(b"idempotency-key")
        found = await self._engine.waited(name, exchange.body, caller, longest_s, key, tags)
        if isinstance(found, JobView):
            response = self._accepted(exchange, found)
            response.headers["preference-applied"] = "wait"
            return response
        self._metrics.answered(name, found, time.monotonic() - exchange.begun_s)
        return answer_response(exchange, found)

    def _accepted(self, exchange: HttpExchange, job: JobView) -> Response:
        exchange.fields["job_id"] = job.job_id
        location = f"{self._root}/v1/jobs/{job.job_id}"
        headers = {"location": location, "cache-control": "no-store"}
        if not job.is_final:
            headers["retry-after"] = "1"
        if wants_job(exchange.header(b"prefer")):
            headers["preference-applied"] = "respond-async"
        return json_response(job.to_json(), 202, headers)

    async def _submit_job(self, request: Request) -> Response:
        exchange, caller = exchange_of(request)
        key = exchange.header(b"idempotency-key")
        tags = header_tags(exchange.header(b"planner-labels"))
        job = await self._engine.submit_body(exchange.body, caller, key, tags)
        return self._accepted(exchange, job)

    async def _list_jobs(self, request: Request) -> Response:
        """Return a page of the caller's jobs."""
        _, caller = exchange_of(request)
        query = request_query(request)
        page = await self._feed.page(
            caller, job_filter(query), query.get("cursor", ""), query_limit(query, 50)
        )
        content = {
            "jobs": [job.to_json() for job in page.jobs],
            "next_cursor": page.next_cursor,
            "resource_version": page.version,
        }
        return json_response(content, 200, NO_STORE)

    async def _watch_jobs(self, request: Request) -> Response:
        exchange, caller = exchange_of(request)
        terms = watch_terms(request_query(request), exchange.header(b"last-event-id"))
        return await watch_jobs(self._feed, exchange, caller, terms)

    async def _get_job(self, request: Request) -> Response:
        return job_response(await self._engine.get_job(*job_of(request)))

    async def _cancel_job(self, request: Request) -> Response:
        return job_response(await self._engine.cancel(*job_of(request)))

    async def _result(self, request: Request) -> Response:
        """Return the answer of a job, or a page of it."""
        exchange, _ = exchange_of(request)
        job_id, caller = job_of(request)
        query = request_query(request)
        so_far = query_flag(query, "so_far")
        if so_far or "limit" in query or "cursor" in query:
            answer = await self._engine.result_page(
                job_id, caller, query.get("cursor", ""), query_limit(query, 100), so_far
            )
        else:
            answer = await self._engine.result(job_id, caller)
        return answer_response(exchange, answer)

    async def _watch(self, request: Request) -> Response:
        exchange, _ = exchange_of(request)
        job_id, caller = job_of(request)
        return await watch_job(self._engine, exchange, caller, job_id)

    async def _usage(self, request: Request) -> Response:
        _, caller = exchange_of(request)
        name = request_query(request).get("group", "")
        found = await self._engine.usage(caller, name)
        return json_response(found, 200, {"cache-control": "no-store"})

    async def _version(self, request: Request) -> Response:
        return json_response({"version": planner.__version__, "api": "v1", "calls": list(CALLS)})

    async def _metrics_text(self, request: Request) -> Response:
        return Response(self._metrics.text(), 200, {"cache-control": "no-store"}, CONTENT_TYPE)

    async def _livez(self, request: Request) -> Response:
        return Response(b"ok\n", 200, {"cache-control": "no-store"}, "text/plain")

    async def _readyz(self, request: Request) -> Response:
        """Say whether questions would be answered."""
        if self._engine.is_draining:
            await self._engine.ready()
        if time.monotonic() - self._ready[0] > READY_S:
            if self._readiness is None:  # one question to the store, however many ask
                self._readiness = asyncio.create_task(self._check_ready())
            await asyncio.shield(self._readiness)
        if self._ready[1] is not None:
            raise self._ready[1]
        return Response(b"ready\n", 200, {"cache-control": "no-store"}, "text/plain")

    async def _check_ready(self) -> None:
        problem = None
        try:
            await self._engine.ready()
        except Refusal as refusal:
            problem = refusal
        finally:
            self._readiness = None
        self._ready = (time.monotonic(), problem)

    @cached_property
    def _document(self) -> CallAnswer:
        payload = openapi_text(self._root).encode()
        return CallAnswer(200, payload, hashlib.sha256(payload).hexdigest(), True, True)

    async def _openapi(self, request: Request) -> Response:
        return answer_response(request.scope["planner"], self._document)


def defect(error: Exception) -> Refusal:
    """Return the problem that a defect is, without its trace."""
    detail = f"{type(error).__name__}: please report it with the request id"
    return refused("defect", detail, 500)


def _guarded(function: Endpoint) -> Endpoint:
    """Return an endpoint whose defects do not reach the framework."""

    async def endpoint(request: Request) -> Response:
        try:
            return await function(request)
        except Refusal:
            raise
        except CallerLeft:
            return Response(None, CLIENT_LEFT)
        except Exception as error:
            log.exception("a defect while answering")
            raise defect(error) from None

    return endpoint
