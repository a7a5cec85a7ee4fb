"""Everything that the REST transport answers: one `Operation` for one method of one path.

The routes and the OpenAPI document are made of this table.
"""

import re
from collections.abc import Iterator, Mapping
from typing import get_args

from service.handlers import answers, schemas
from service.handlers.calls import CALLS, ServiceCall
from service.handlers.problems import Refusal
from service.http.exchange import JSON, SSE, TEXT, Operation, OperationParameter
from service.tenants.groups import PRIORITIES

PATHS = {
    "allocate": "/v1/allocations:solve",
    "batch-solve": "/v1/plans:batchSolve",
    "sweep": "/v1/sweeps",
    "check-spec": "/v1/specs:check",
}
"""Paths of the calls that are not /v1/plans:NAME."""
FACTS = {"catalogue": "name", "rules": "code"}
"""Calls that are read with GET, and their parameter."""
TAGS = {
    "plans": "Questions about plans: answered at once, or as a job where they are large.",
    "facts": "What the planner knows: accelerators and links, rules, what a file describes.",
    "jobs": "Work that takes longer: submitted, watched, read when it has ended.",
    "webhooks": "Addresses that are told of jobs, in signed requests.",
    "service": "The service itself: health, version, metrics, this document.",
}

_STRING = {"type": "string"}
KEY = OperationParameter(
    "Idempotency-Key",
    "header",
    {"type": "string", "maxLength": 200},
    "A repeated request with the same key and body gets the first answer or job.",
)
PREFER = OperationParameter(
    "Prefer",
    "header",
    _STRING,
    "`wait=SECONDS`: the best so far when they are over; `respond-async`: a job (RFC 7240).",
)
IF_NONE_MATCH = OperationParameter(
    "If-None-Match", "header", _STRING, "ETags of answers that the caller has: 304 for those."
)
JOB_ID = OperationParameter(
    "job_id", "path", {**_STRING, "pattern": "^[A-Za-z0-9]{1,64}$"}, "A job."
)
CURSOR = OperationParameter(
    "cursor", "query", {"type": "string", "maxLength": 100}, "`next_cursor` of the page before."
)
LIMIT = OperationParameter(
    "limit", "query", {"type": "integer", "minimum": 1, "maximum": 1000}, "Most items of the page."
)
SO_FAR = OperationParameter(
    "so_far",
    "query",
    {"type": "boolean"},
    "A page of the rows that a sweep or scale has before its answer, in the order they came.",
)
STATE = OperationParameter(
    "state",
    "query",
    {"type": "string", "enum": list(get_args(answers.JobState))},
    "Only jobs in this state.",
)
GROUP = OperationParameter(
    "group", "query", {"type": "string", "maxLength": 63}, "A group; one's own without it."
)
PRIORITY = OperationParameter(
    "Planner-Priority",
    "header",
    {"type": "string", "enum": list(PRIORITIES)},
    "How urgent it is; that of the caller's group without it, 403 above the group's highest.",
)
LABELS = OperationParameter(
    "Planner-Labels",
    "header",
    {"type": "string", "maxLength": 8000},
    "Labels of the job, where the call becomes one: `team=vision,stage=old`.",
)
INTO_STATE = OperationParameter(
    "state", "query", STATE.schema, "Only changes after which a job is in this state."
)
SELECTOR = OperationParameter(
    "labels",
    "query",
    {"type": "string", "maxLength": 2000},
    "Only jobs with such labels, as Kubernetes selects: `team=vision,stage!=old`, `a in (b,c)`.",
)
CALL = OperationParameter(
    "call", "query", {"type": "string", "enum": sorted(CALLS)}, "Only jobs of this call."
)
AFTER, BEFORE = (
    OperationParameter(
        f"created_{when}",
        "query",
        {"type": "string", "maxLength": 40},
        f"Only jobs that came {when} it: 2025-11-29T08:00:00Z, or seconds since 1970.",
    )
    for when in ("after", "before")
)
VERSION = OperationParameter(
    "resource_version",
    "query",
    {"type": "integer", "minimum": 0, "maximum": 2**53},
    "Changes after it: of a list of jobs, or of the last event. Without it those from now on.",
)
TIMEOUT = OperationParameter(
    "timeout_s",
    "query",
    {"type": "number", "minimum": 0, "maximum": 86400},
    "The stream ends after so many seconds; with 0 after what there is.",
)
LAST_CHANGE = OperationParameter(
    "Last-Event-ID",
    "header",
    {"type": "integer", "minimum": 0, "maximum": 2**53},
    "In place of `resource_version`, as browsers send it when they come back.",
)
WEBHOOK_ID = OperationParameter(
    "webhook_id", "path", {**_STRING, "pattern": "^[A-Za-z0-9]{1,32}$"}, "A webhook."
)
LAST_EVENT = OperationParameter(
    "Last-Event-ID", "header", {"type": "integer", "minimum": 0}, "Events up to it are left out."
)

_OPEN = (400, 421, 500, 503)
"""What everybody may be refused with."""
_READ = (*_OPEN, 401, 429)
_POST = (*_READ, 403, 408, 413, 415)
_SUBMIT = (*_POST, 409, 422, 507)
_JOB = (*_READ, 404)

_ANSWERED_AT_ONCE = (
    "Answered at once, from memory where the same was asked before. A large question becomes a"
    " job: 202, with its address in `Location`. That nothing fits is an answer with reasons, not"
    " an error."
)
_ALWAYS_A_JOB = (
    "A job: 202, with its address in `Location`. Its rows can be read early. With `Prefer: wait=N`"
    " the answer, 200, where it is known or there within N seconds."
)
_SWEEPS = "Always a job: 202, with its address in `Location`. Its rows can be read early."


def _of_call(name: str, call: ServiceCall) -> Operation:
    first, *more = name.split("-")
    id = first + "".join(word.title() for word in more)
    about = (call.request.__doc__ or "").partition("\n\n")[0].strip()
    tag = "facts" if name in FACTS or name == "check-spec" else "plans"
    answer = {200: (JSON, call.answer)}
    job = {202: (JSON, answers.JobAnswer)}
    if name in FACTS:
        parameter = OperationParameter(FACTS[name], "query", _STRING, "One of them.")
        return Operation(
            id,
            "GET",
            f"/v1/{name}",
            call.title,
            tag,
            about,
            {**answer, 304: ("", None)},
            (*_READ, 403, 422, 504),
            call=name,
            role=call.role,
            parameters=(parameter, IF_NONE_MATCH),
        )
    is_sweep = name == "sweep"
    how = _SWEEPS if is_sweep else _ALWAYS_A_JOB if call.size == "large" else _ANSWERED_AT_ONCE
    return Operation(
        id,
        "POST",
        PATHS.get(name, f"/v1/plans:{name}"),
        call.title,
        tag,
        f"{about} {how}",
        job if is_sweep else {**answer, **job, 304: ("", None)},
        _SUBMIT if is_sweep else (*_SUBMIT, 504),
        call.request,
        name,
        call.role,
        (KEY, PRIORITY, LABELS) if is_sweep else (KEY, PREFER, PRIORITY, LABELS, IF_NONE_MATCH),
    )


def _job_operations() -> Iterator[Operation]:
    job_answer = (JSON, answers.JobAnswer)
    yield Operation(
        "submitJob",
        "POST",
        "/v1/jobs",
        "Submit a job",
        "jobs",
        "Accept any call as a job, whatever its size. The role `read` submits none.",
        {202: job_answer},
        (*_SUBMIT, 404),
        schemas.JobBody,
        role="solve",
        parameters=(KEY, PRIORITY, LABELS),
    )
    yield Operation(
        "listJobs",
        "GET",
        "/v1/jobs",
        "One's own jobs, the newest first",
        "jobs",
        "A page of the caller's jobs; of all jobs for the role admin.",
        {200: (JSON, answers.JobsAnswer)},
        _READ,
        parameters=(STATE, SELECTOR, CALL, AFTER, BEFORE, LIMIT, CURSOR),
    )
    yield Operation(
        "watchJobs",
        "GET",
        "/v1/jobs:watch",
        "What changes in one's own jobs, as server-sent events",
        "jobs",
        "Every change of the state of a job, in order, each with its `resource_version`; a"
        " bookmark where nothing has changed for a while. Who comes back with the last version"
        " misses nothing; 410 where that is too old: list the jobs again.",
        {200: (SSE, None)},
        (*_READ, 410),
        parameters=(VERSION, SELECTOR, CALL, INTO_STATE, TIMEOUT, LAST_CHANGE),
    )
    yield Operation(
        "getJob",
        "GET",
        "/v1/jobs/{job_id}",
        "A job",
        "jobs",
        "Its state, its times, the problem where it failed. `Retry-After` says when to ask again.",
        {200: job_answer},
        _JOB,
        parameters=(JOB_ID,),
    )
    yield Operation(
        "cancelJob",
        "POST",
        "/v1/jobs/{job_id}:cancel",
        "Cancel a job; one that has ended stays as it is",
        "jobs",
        "Stop the work as soon as possible. Without a body.",
        {200: job_answer},
        (*_POST, 404),
        role="solve",
        parameters=(JOB_ID,),
    )
    yield Operation(
        "watchJob",
        "GET",
        "/v1/jobs/{job_id}/events",
        "What happens to a job, as server-sent events `state` and `progress`",
        "jobs",
        "The stream ends with the job. A watcher that comes back sends `Last-Event-ID`, as"
        " browsers do; 204 tells it that nothing more will happen.",
        {200: (SSE, None), 204: ("", None)},
        _JOB,
        parameters=(JOB_ID, LAST_EVENT),
    )
    yield Operation(
        "getResult",
        "GET",
        "/v1/jobs/{job_id}/result",
        "The answer of a job; with `limit` or `cursor` a page of its longest list",
        "jobs",
        "The answer of the call, as the call itself gives it; pages have `items`, `total` and"
        " `next_cursor`.",
        {200: (JSON, None), 304: ("", None)},
        (*_JOB, 409, 410, 413, 422, 504),  # the last three: why the job failed
        parameters=(JOB_ID, LIMIT, CURSOR, SO_FAR, IF_NONE_MATCH),
    )


def _webhook_operations() -> Iterator[Operation]:
    one = (JSON, answers.WebhookAnswer)
    yield Operation(
        "createWebhook",
        "POST",
        "/v1/webhooks",
        "Register an address that is told of one's jobs",
        "webhooks",
        "Its host must be one that webhooks of this service may lead to. The answer has the secret"
        " that its requests are signed with, which is not shown again.",
        {201: (JSON, answers.NewWebhookAnswer)},
        (*_POST, 422, 507),
        schemas.WebhookBody,
        role="solve",
    )
    yield Operation(
        "listWebhooks",
        "GET",
        "/v1/webhooks",
        "One's own webhooks, the oldest first",
        "webhooks",
        "A page of the caller's webhooks, those of single jobs too; of all for the role admin.",
        {200: (JSON, answers.WebhooksAnswer)},
        _READ,
        parameters=(LIMIT, CURSOR),
    )
    yield Operation(
        "getWebhook",
        "GET",
        "/v1/webhooks/{webhook_id}",
        "A webhook",
        "webhooks",
        "Where it leads and what it is told of; without its secret.",
        {200: one},
        _JOB,
        parameters=(WEBHOOK_ID,),
    )
    yield Operation(
        "deleteWebhook",
        "DELETE",
        "/v1/webhooks/{webhook_id}",
        "Delete a webhook",
        "webhooks",
        "What was still to be sent is not sent.",
        {204: ("", None)},
        (*_JOB, 403),
        role="solve",
        parameters=(WEBHOOK_ID,),
    )
    yield Operation(
        "testWebhook",
        "POST",
        "/v1/webhooks/{webhook_id}:test",
        "Send a webhook a test",
        "webhooks",
        "The delivery is on its way; the list of deliveries says how it went. Without a body.",
        {200: (JSON, answers.DeliveryAnswer)},
        (*_POST, 404, 507),
        role="solve",
        parameters=(WEBHOOK_ID,),
    )
    yield Operation(
        "listDeliveries",
        "GET",
        "/v1/webhooks/{webhook_id}/deliveries",
        "What was sent to a webhook and what waits, the newest first",
        "webhooks",
        "A page of its deliveries, with the last answer of the receiver.",
        {200: (JSON, answers.DeliveriesAnswer)},
        _JOB,
        parameters=(WEBHOOK_ID, LIMIT, CURSOR),
    )


def _service_operations() -> Iterator[Operation]:
    yield Operation(
        "getUsage",
        "GET",
        "/v1/usage",
        "What one's group may use, and has used",
        "service",
        "Quotas of the caller's group: jobs, CPU seconds, results. Of another group for the role"
        " admin.",
        {200: (JSON, answers.UsageAnswer)},
        (*_READ, 403, 404),
        parameters=(GROUP,),
    )
    yield Operation(
        "getVersion",
        "GET",
        "/v1/version",
        "What answers",
        "service",
        "Version of the service and of the interface, and the names of its calls.",
        {200: (JSON, answers.VersionAnswer)},
        _READ,
    )
    yield Operation(
        "getMetrics",
        "GET",
        "/metrics",
        "Metrics for Prometheus",
        "service",
        "Counters and gauges of this process.",
        {200: (TEXT, None)},
        _READ,
    )
    yield Operation(
        "isAlive",
        "GET",
        "/livez",
        "Whether the process answers",
        "service",
        "For liveness probes: no token, no look at store or workers.",
        {200: (TEXT, None)},
        _OPEN,
        role="",
    )
    yield Operation(
        "isReady",
        "GET",
        "/readyz",
        "Whether questions would be answered",
        "service",
        "For readiness probes: 503 while the service starts or stops, or its store is away.",
        {200: (TEXT, None)},
        _OPEN,
        role="",
    )
    yield Operation(
        "getOpenapi",
        "GET",
        "/openapi.json",
        "This document",
        "service",
        "The interface, in OpenAPI 3.1.",
        {200: (JSON, None), 304: ("", None)},
        _OPEN,
        role="",
        parameters=(IF_NONE_MATCH,),
    )


OPERATIONS = (
    *(_of_call(name, call) for name, call in CALLS.items()),
    *_job_operations(),
    *_webhook_operations(),
    *_service_operations(),
)
"""Everything that the REST transport answers."""

CALL_OF_PATH: Mapping[str, str] = {
    each.path: each.call for each in OPERATIONS if each.call and each.method == "POST"
}
_PATTERNS = tuple(
    (re.compile(re.sub(r"\\\{[a-z_]+\\\}", "[^/:]+", re.escape(each.path))), each)
    for each in OPERATIONS
)
_FIXED: Mapping[tuple[str, str], Operation] = {
    (each.method, each.path): each for each in OPERATIONS if "{" not in each.path
}


def operation_of(method: str, path: str) -> Operation | None:
    """Return the operation that a request is for."""
    fixed = _FIXED.get((method, path))
    if fixed is not None:
        return fixed
    return next(
        (each for pattern, each in _PATTERNS if each.method == method and pattern.fullmatch(path)),
        None,
    )


def is_operation_path(path: str) -> bool:
    """Tell whether an operation stands at a path without parameters."""
    return any(each.path == path for each in OPERATIONS)


def allowed_methods(path: str) -> list[str]:
    """Return the methods that a path answers."""
    return sorted({each.method for pattern, each in _PATTERNS if pattern.fullmatch(path)})


def no_such_path(method: str, path: str) -> Refusal:
    """Return the problem of a request for nothing that is here: 404, or 405 for its method."""
    methods = allowed_methods(path)
    if methods:
        detail = f"{method[:20]} is not for {path[:80]}: {', '.join(methods)}"
        return Refusal(405, "wrong-method", "the method is not for this path", detail)
    detail = f"nothing is at {path[:80]}; /openapi.json lists what there is"
    return Refusal(404, "unknown-path", "there is no such path", detail)
