"""The methods of planner.v1.Planner over the engine.

    request bytes -> memory: answered unparsed -> message -> JSON -> engine
                  -> JSON -> message -> bytes, kept for the next request of the same bytes

Methods take and return bytes, so that a repeated question costs a hash.
"""

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

import planner
from service.access.admission import Cache
from service.access.auth import Auth
from service.access.caller import Caller
from service.engine import CallAnswer, CallTerms, Engine
from service.feeds.jobs import FeedEvent, JobFeed, moment_of, watch_terms
from service.handlers.calls import CALLS
from service.handlers.limits import RequestLimits
from service.handlers.problems import Refusal, malformed
from service.http.exchange import wait_s
from service.jobs.changes import JobFilter
from service.jobs.labels import header_tags, read_selector
from service.jobs.records import Event, JobView, State
from service.proto.planner.v1 import planner_pb2 as pb
from service.rpc.convert import body_of, fill, message_of
from service.rpc.gate import CALL_OF, NAME, SERVICE, Gate, GrpcExchange, Streamed, Unary, knows
from service.rpc.messages import empty_response, message_bytes, page_limit, read_message
from service.rpc.webhooks import WebhookMethods
from service.telemetry.metrics import Metrics

Found = TypeVar("Found")

LARGE_BYTES = 100_000
"""Messages from this size on are read and written off the event loop."""


@dataclass(frozen=True, slots=True)
class _Written:
    """An answer to the bytes of a request: what is sent, and what is to who has it already."""

    answer: CallAnswer
    """Without its payload."""
    message: bytes
    unchanged: bytes


class Grpc(Gate):
    """The methods of planner.v1.Planner."""

    def __init__(
        self,
        engine: Engine,
        auth: Auth,
        settings: RequestLimits,
        metrics: Metrics,
        tracer: Any = None,
    ) -> None:
        super().__init__(engine, auth, settings, metrics, tracer)
        self._feed = JobFeed(engine)
        self._webhooks = WebhookMethods(engine)
        self._written: Cache[_Written] = Cache(engine.options.cache_bytes)

    def handler(self) -> Any:
        """Return what gRPC routes the calls of the service to."""
        own: dict[str, Unary] = {
            "SubmitJob": self._submit_job,
            "GetJob": self._get_job,
            "ListJobs": self._list_jobs,
            "CancelJob": self._cancel_job,
            "GetResult": self._result,
            "GetUsage": self._usage,
            **self._webhooks.methods,
            "GetVersion": self._version,
        }
        streams: dict[str, Streamed] = {
            "WatchJob": self._watch,
            "WatchJobs": self._watch_jobs,
            "SolveStream": self._solve_stream,
        }
        handlers = {}
        for method in SERVICE.methods:  # what callers see is one message, see `receiving`
            name = method.name
            if method.server_streaming:
                work = self.streamed(name, streams[name])
                handlers[name] = grpc.stream_stream_rpc_method_handler(work)
            else:
                handlers[name] = grpc.stream_unary_rpc_method_handler(
                    self.unary(name, own.get(name) or self._call)
                )
        return grpc.method_handlers_generic_handler(NAME, handlers)

    # Calls

    async def _call(self, request: bytes, exchange: GrpcExchange) -> bytes:
        """Answer a call, or accept it as a job where it is large or is to be one."""
        assert exchange.caller is not None
        name = CALL_OF[exchange.method]
        key = exchange.header("idempotency-key")
        request_key = hashlib.sha256(exchange.method.encode() + b"\0" + request).digest()
        if not key:
            written = self._written.get(request_key)
            if written is not None:
                self.engine.repeated(name, exchange.caller)
                exchange.fast = True
                return self._sent(name, written, exchange)
        message = read_message(exchange.method, request)
        body = await _soon(len(request), body_of, message, self.settings)
        if CALLS[name].size == "large":
            return await self._large(name, body, exchange, key)
        response = empty_response(exchange.method)
        if message.delivery.job:
            return _job_response(response, await self._submit(name, body, exchange, key))
        try:
            terms = CallTerms(exchange.deadline_s(self.settings), key)
            answer = await self.engine.call(name, body, exchange.caller, terms)
        except Refusal as problem:
            if problem.code != "needs-job":
                raise
            return _job_response(response, await self._submit(name, body, exchange, key))
        written = await _soon(len(answer.payload), _write, response, answer, message.delivery.form)
        if answer.complete and not key:
            repeated = _Written(_cached(answer), written.message, written.unchanged)
            self._written.put(request_key, repeated, len(written.message))
        return self._sent(name, written, exchange)

    async def _large(self, name: str, body: bytes, exchange: GrpcExchange, key: str) -> bytes:
        """Accept a call as a job; with `prefer: wait=N` it comes with its answer where it can."""
        longest_s = wait_s(exchange.header("prefer"))
        if longest_s is None or name == "sweep":
            return message_bytes(_job(await self._submit(name, body, exchange, key)))
        assert exchange.caller is not None
        exchange.trailers = [("preference-applied", "wait")]
        longest_s = min(longest_s, exchange.deadline_s(self.settings) or longest_s)
        tags = header_tags(exchange.header("planner-labels"))
        found = await self.engine.waited(name, body, exchange.caller, longest_s, key, tags)
        if isinstance(found, JobView):
            exchange.fields["job_id"] = found.job_id
            return message_bytes(_job(found))
        self.metrics.answered(name, found, time.monotonic() - exchange.begun_s)
        exchange.trailers += _told(found)
        etags = exchange.header("if-none-match")
        return await _soon(
            len(found.payload), _ended, name, found, bool(etags) and knows(etags, found.etag)
        )

    def _sent(self, name: str, written: _Written, exchange: GrpcExchange) -> bytes:
        answer = written.answer
        exchange.trailers = _told(answer)
        self.metrics.answered(name, answer, time.monotonic() - exchange.begun_s)
        etags = exchange.metadata.get("if-none-match")
        is_current = etags and knows(str(etags), answer.etag)
        return written.unchanged if is_current else written.message

    async def _solve_stream(self, request: bytes, exchange: GrpcExchange) -> AsyncIterator[bytes]:
        """Tell progress, then the answer; a large question goes on as a job."""
        assert exchange.caller is not None
        name, caller = "solve", exchange.caller
        key = exchange.header("idempotency-key")
        message = read_message(exchange.method, request)
        body = await _soon(len(request), body_of, message, self.settings)
        deadline_s = exchange.deadline_s(self.settings)
        if not message.delivery.job:
            news: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue()
            terms = CallTerms(deadline_s, key, news.put_nowait)
            work = asyncio.ensure_future(self.engine.call(name, body, caller, terms))
            work.add_done_callback(lambda _: news.put_nowait(None))
            try:
                while (data := await news.get()) is not None:
                    yield message_bytes(
                        pb.SolveStreamResponse(progress=message_of(data, pb.Progress))
                    )
                answer = work.result()
            except Refusal as problem:
                if problem.code != "needs-job":
                    raise
            else:
                yield await _last(answer, message.delivery.form)
                self.metrics.answered(name, answer, time.monotonic() - exchange.begun_s)
                return
            finally:
                work.cancel()
                # Also where it is done: a caller who left just then does not ask how it ended.
                await asyncio.gather(work, return_exceptions=True)
        job = await self._submit(name, body, exchange, key)
        yield message_bytes(pb.SolveStreamResponse(job=_job(job)))
        async with contextlib.aclosing(self.engine.watch(job.job_id, caller)) as events:  # type: ignore[type-var]  # a generator
            async for event in events:
                if "phase" in event.data:
                    progress = message_of(event.data, pb.Progress)
                    yield message_bytes(pb.SolveStreamResponse(progress=progress))
        answer = await self.engine.result(job.job_id, caller)
        yield await _last(answer, message.delivery.form)

    # Jobs

    async def _submit(
        self,
        name: str,
        body: bytes,
        exchange: GrpcExchange,
        key: str,
        time_limit_s: float = 0.0,
        tags: Mapping[str, Any] = {},
    ) -> JobView:
        assert exchange.caller is not None
        tags = {**header_tags(exchange.header("planner-labels")), **tags}
        job = await self.engine.submit(name, body, exchange.caller, key, time_limit_s, tags)
        exchange.fields["job_id"] = job.job_id
        return job

    async def _submit_job(self, request: bytes, exchange: GrpcExchange) -> bytes:
        message = read_message(exchange.method, request)
        which = message.WhichOneof("request")
        if which is None:
            raise malformed("request", "a job without a request: set one of them", 422)
        value, limit_s = getattr(message, which), message.time_limit_s
        if not 0.0 <= limit_s <= self.settings.job_s:
            maximum = self.settings.job_s
            raise malformed(
                "time_limit_s", f"time_limit_s: a number of seconds up to {maximum:g}", 422
            )
        if "delivery" in value.DESCRIPTOR.fields_by_name and value.HasField("delivery"):
            raise malformed("delivery", "delivery: a job's answer comes with GetResult", 422)
        body = await _soon(len(request), body_of, value, self.settings)
        key, name = exchange.header("idempotency-key"), which.replace("_", "-")
        return message_bytes(
            _job(await self._submit(name, body, exchange, key, limit_s, _tags(message)))
        )

    async def _get_job(self, request: bytes, exchange: GrpcExchange) -> bytes:
        job_id, caller = _job_of(read_message(exchange.method, request), exchange)
        return message_bytes(_job(await self.engine.get_job(job_id, caller)))

    async def _cancel_job(self, request: bytes, exchange: GrpcExchange) -> bytes:
        job_id, caller = _job_of(read_message(exchange.method, request), exchange)
        return message_bytes(_job(await self.engine.cancel(job_id, caller)))

    async def _list_jobs(self, request: bytes, exchange: GrpcExchange) -> bytes:
        assert exchange.caller is not None
        message = read_message(exchange.method, request)
        wanted = JobFilter(
            _state(message),
            message.call,
            read_selector(message.labels),
            _moment(message, "created_after"),
            _moment(message, "created_before"),
        )
        page = await self._feed.page(
            exchange.caller, wanted, message.cursor, page_limit(message.limit, 50)
        )
        return message_bytes(
            pb.ListJobsResponse(
                jobs=map(_job, page.jobs),
                next_cursor=page.next_cursor,
                resource_version=page.version,
            )
        )

    async def _watch_jobs(self, request: bytes, exchange: GrpcExchange) -> AsyncIterator[bytes]:
        assert exchange.caller is not None
        message = read_message(exchange.method, request)
        asked = {"resource_version": str(message.resource_version or "")}
        asked |= {"labels": message.labels}
        asked |= {"call": message.call} if message.call else {}
        state = _state(message)
        asked |= {"state": state.value} if state else {}
        if message.HasField("timeout_s"):
            asked["timeout_s"] = repr(message.timeout_s)
        watching = self._feed.watch(exchange.caller, watch_terms(asked))
        async with contextlib.aclosing(watching) as events:  # type: ignore[type-var]  # a generator
            async for event in events:
                yield message_bytes(_change(event))

    async def _watch(self, request: bytes, exchange: GrpcExchange) -> AsyncIterator[bytes]:
        message = read_message(exchange.method, request)
        job_id, caller = _job_of(message, exchange)
        if message.after < 0:
            raise malformed("after", f"after: {message.after} is the number of no event")
        watching = self.engine.watch(job_id, caller, message.after)
        async with contextlib.aclosing(watching) as events:  # type: ignore[type-var]  # a generator
            async for event in events:
                yield message_bytes(_event(event))

    async def _result(self, request: bytes, exchange: GrpcExchange) -> bytes:
        message = read_message(exchange.method, request)
        job_id, caller = _job_of(message, exchange)
        by_page = bool(message.limit or message.cursor or message.so_far)
        if by_page:
            limit = page_limit(message.limit, 100)
            answer = await self.engine.result_page(
                job_id, caller, message.cursor, limit, message.so_far
            )
            kind = "page"
        else:
            answer = await self.engine.result(job_id, caller)
            job = await self.engine.get_job(job_id, caller)
            kind = "solve" if job.call in ("solve", "evaluate") else "answer"
        exchange.trailers = [("etag", f'"{answer.etag}"')] if answer.etag else []
        etags = exchange.header("if-none-match")
        response = pb.GetResultResponse(etag=answer.etag, complete=answer.complete)
        if etags and knows(etags, answer.etag):
            return message_bytes(response)
        return await _soon(len(answer.payload), _filled, response, kind, answer, message.form)

    async def _usage(self, request: bytes, exchange: GrpcExchange) -> bytes:
        assert exchange.caller is not None
        message = read_message(exchange.method, request)
        found = await self.engine.usage(exchange.caller, message.group)
        return message_bytes(message_of(found, pb.Usage))

    async def _version(self, request: bytes, exchange: GrpcExchange) -> bytes:
        read_message(exchange.method, request)
        return message_bytes(
            pb.GetVersionResponse(version=planner.__version__, api="v1", calls=list(CALLS))
        )


# Messages


async def _soon(n_bytes: int, work: Callable[..., Found], *given: Any) -> Found:
    """Return what some work returns: in a thread where there is much of it."""
    if n_bytes < LARGE_BYTES:
        return work(*given)
    return await asyncio.to_thread(work, *given)


def _filled(response: Any, kind: str, answer: CallAnswer, form: int) -> bytes:
    """Return a response with an answer in one of its fields, or as JSON."""
    if form == pb.Delivery.FORM_JSON:
        response.json = answer.payload.decode()
    else:
        place = getattr(response, kind)
        place.SetInParent()
        fill(place, json.loads(answer.payload))
    return message_bytes(response)


def _write(response: Any, answer: CallAnswer, form: int) -> _Written:
    response.etag = answer.etag
    unchanged = message_bytes(response)
    return _Written(answer, _filled(response, "answer", answer, form), unchanged)


def _told(answer: CallAnswer) -> list[tuple[str, str]]:
    """Return the metadata that goes with an answer."""
    return [
        ("etag", f'"{answer.etag}"'),
        ("cache-status", "planner; hit" if answer.cached else "planner; fwd=miss"),
    ]


def _ended(name: str, answer: CallAnswer, is_current: bool) -> bytes:
    """Return a job that was waited for, with its answer but where the caller has it."""
    job = pb.Job(call=name, state=pb.Job.SUCCEEDED, complete=answer.complete, etag=answer.etag)
    job.result.etag, job.result.complete = answer.etag, answer.complete
    if not is_current:
        job.result.json = answer.payload.decode()
    return message_bytes(job)


def _cached(answer: CallAnswer) -> CallAnswer:
    """Return an answer as it is when it comes from memory; the message holds its payload."""
    return CallAnswer(answer.status, b"", answer.etag, True, True)


async def _last(answer: CallAnswer, form: int) -> bytes:
    response = pb.SolveStreamResponse()
    response.response.etag = answer.etag
    inner = await _soon(len(answer.payload), _filled, response.response, "answer", answer, form)
    return message_bytes(pb.SolveStreamResponse(response=pb.SolveResponse.FromString(inner)))


def _job(job: JobView) -> pb.Job:
    return message_of(job.to_json(), pb.Job)


def _job_response(response: Any, job: JobView) -> bytes:
    response.job.CopyFrom(_job(job))
    return message_bytes(response)


def _event(event: Event) -> pb.JobEvent:
    message = pb.JobEvent(n=event.n)
    if "state" in event.data:
        fill(message, event.data)
    else:
        fill(message.progress, event.data)
    return message


def _change(event: FeedEvent) -> pb.JobChange:
    kind = pb.JobChange.Type.Value(event.kind)
    message = pb.JobChange(type=kind, resource_version=event.version)
    if event.job is not None:
        message.job.CopyFrom(message_of(event.job, pb.Job))
    return message


def _state(message: Any) -> State | None:
    """Return the state that a message names, if any."""
    if message.state not in pb.Job.State.values():
        raise malformed("state", f"state: {message.state} is none of Job.State")
    return State(pb.Job.State.Name(message.state)) if message.state else None


def _moment(message: Any, field: str) -> float | None:
    """Return a time of day that a message may name."""
    return moment_of(repr(getattr(message, field)), field) if message.HasField(field) else None


def _tags(message: Any) -> dict[str, Any]:
    """Return labels and webhook of a submission, as `schemas.JobBody` has them."""
    tags: dict[str, Any] = {}
    if message.labels:
        tags["labels"] = dict(message.labels)
    if message.HasField("webhook"):
        asked = message.webhook
        tags["webhook"] = {"url": asked.url, "secret": asked.secret, "states": list(asked.states)}
    return tags


def _job_of(message: Any, exchange: GrpcExchange) -> tuple[str, Caller]:
    assert exchange.caller is not None
    exchange.fields["job_id"] = message.job_id[:64]
    return message.job_id, exchange.caller
