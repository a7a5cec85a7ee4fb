"""What the endpoints answer with, and what they read of a request."""

import asyncio
import json
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import Response

from service.access.caller import Caller, CallerLeft
from service.engine import CallAnswer
from service.handlers.problems import malformed, refused
from service.http.exchange import JSON, HttpExchange, Operation, etag_matches, wait_s
from service.jobs.records import JobView
from service.rest.operations import KEY

Done = TypeVar("Done")

NO_STORE = {"cache-control": "no-store"}


def exchange_of(request: Request) -> tuple[HttpExchange, Caller]:
    """Return the exchange that a routed request is, and who asks."""
    exchange: HttpExchange = request.scope["planner"]
    assert exchange.caller is not None
    return exchange, exchange.caller


def job_of(request: Request) -> tuple[str, Caller]:
    """Return the job that the path names, and who asks."""
    exchange, caller = exchange_of(request)
    exchange.fields["job_id"] = request.path_params["job_id"][:64]
    return request.path_params["job_id"], caller


def webhook_of(request: Request) -> tuple[str, Caller]:
    """Return the webhook that the path names, and who asks."""
    _, caller = exchange_of(request)
    return request.path_params["webhook_id"], caller


def request_query(request: Request) -> dict[str, str]:
    """Return the parameters of a query, each once and of the operation; `Refusal` 400."""
    raw: bytes = request.scope.get("query_string", b"")
    try:
        result = parse_qs(
            raw.decode("ascii"), keep_blank_values=True, max_num_fields=20, errors="strict"
        )
    except ValueError:
        raise refused("malformed", "the query of the address cannot be read", 400) from None
    for name, values in result.items():
        if len(values) > 1:
            raise refused("malformed", f"the parameter {name[:40]!r} stands twice", 400)
    operation = exchange_of(request)[0].operation
    parameters = operation.parameters if operation else ()
    known = {p.name: p.schema for p in parameters if p.where == "query"}
    for name, (value,) in result.items():
        most = known.get(name, {}).get("maxLength")
        if most is not None and len(value) > most:
            raise malformed(name, f"{name}: {len(value)} characters; give at most {most}")
        if name not in known:
            choices = f"it is none of {', '.join(known)}" if known else "there are none here"
            raise malformed(name[:40], f"the parameter {name[:40]!r}: {choices}")
    return {name: values[0] for name, values in result.items()}


def check_headers(operation: Operation, headers: Mapping[bytes, bytes]) -> None:
    """Raise `Refusal` 400 for a header that is longer than the operation says.

    All but `Idempotency-Key`, which is refused with a code of its own where it is read.
    """
    for parameter in operation.parameters:
        most = parameter.schema.get("maxLength") if parameter.where == "header" else None
        if most is not None and parameter is not KEY:
            n_chars = len(headers.get(parameter.name.lower().encode(), b""))
            if n_chars > most:
                detail = f"{parameter.name}: {n_chars} characters; give at most {most}"
                raise malformed(parameter.name, detail)


def query_flag(query: Mapping[str, str], name: str) -> bool:
    """Return a parameter that is true or false."""
    value = query.get(name, "false")
    if value not in ("true", "false"):
        raise malformed(name, f"{name}: {value[:40]!r} is neither true nor false")
    return value == "true"


def query_limit(query: Mapping[str, str], default: int) -> int:
    """Return the most items of a page."""
    value = query.get("limit", str(default))
    if not (value.isascii() and value.isdigit() and 1 <= len(value) <= 4) or not (
        1 <= int(value) <= 1_000
    ):
        raise malformed("limit", f"limit: {value[:40]!r} is no number from 1 to 1000")
    return int(value)


def json_response(
    content: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return plain data as JSON."""
    return Response(json.dumps(content).encode(), status, dict(headers or {}), JSON)


def job_response(job: JobView) -> Response:
    """Return a job; one that goes on says when to ask again."""
    headers = {"cache-control": "no-store"}
    if not job.is_final:
        headers["retry-after"] = "1"
    return json_response(job.to_json(), 200, headers)


def answer_response(exchange: HttpExchange, answer: CallAnswer) -> Response:
    """Return an answer of a call; 304 where the caller has it."""
    headers = {"cache-control": "private, no-cache"}
    if answer.etag:
        headers["etag"] = f'"{answer.etag}"'
    headers["cache-status"] = "planner; hit" if answer.cached else "planner; fwd=miss"
    if wait_s(exchange.header(b"prefer")) is not None:
        headers["preference-applied"] = "wait"
    if etag_matches(exchange.header(b"if-none-match"), answer.etag):
        return Response(None, 304, headers)
    return Response(answer.payload, answer.status, headers, JSON)


async def while_connected(request: Request, work: Awaitable[Done]) -> Done:
    """Return what some work returns; it is cancelled when the caller leaves."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.receive())
    try:
        while not task.done():
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done() and not task.done():
                if gone.result()["type"] == "http.disconnect":
                    raise CallerLeft
                gone = asyncio.ensure_future(request.receive())  # the empty body of a GET
        return task.result()
    finally:
        for each in (task, gone):
            if not each.done():
                each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)
