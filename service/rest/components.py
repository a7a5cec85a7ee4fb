"""Parts of the OpenAPI document that operations share: problems, headers, links."""

from collections.abc import Iterable, Mapping
from typing import Any

from service.http.exchange import Operation
from service.rest.deprecation import DEPRECATED

Data = dict[str, Any]

PROBLEMS: Mapping[int, tuple[str, str]] = {
    400: ("Malformed", "The body, a header or the query cannot be read."),
    401: ("Unauthenticated", "A token is needed, or the one that came is not known."),
    403: ("NotAllowed", "The role of the caller does not reach, or a page of another site asks."),
    404: ("Unknown", "There is no such job or call, or it is not one's own."),
    408: ("SlowBody", "The body did not arrive in time."),
    409: ("Conflict", "The job has no answer yet, or the idempotency key is in use."),
    410: ("Expired", "It is not kept any more: submit the request, or list the jobs, again."),
    413: ("TooLarge", "The body, or a document in it, is larger than the limits allow."),
    415: ("WrongMediaType", "The body is not application/json, or is compressed."),
    421: ("WrongHost", "The service is not called by this name."),
    422: ("Refused", "The request cannot be answered: `errors` name field, line and what to do."),
    429: ("Busy", "Too much at once: come back after `Retry-After` seconds."),
    500: ("Defect", "A defect of the service: please report it with the id of the request."),
    503: ("NotReady", "The service starts or stops, or has too many connections."),
    504: ("OutOfTime", "Nothing was found before the time of the call was over."),
    507: ("StoreFull", "The store has no space for more jobs."),
}
"""Name and description of the refusals by status."""
_OF_PROBLEMS: Mapping[int, tuple[str, ...]] = {
    401: ("WWW-Authenticate",),
    409: ("Retry-After",),
    413: ("Connection",),
    415: ("Connection",),
    429: ("Retry-After",),
    503: ("Retry-After",),
    507: ("Retry-After",),
}
"""Headers of the refusals by status, beside those of all answers."""

_HEADERS: Mapping[str, tuple[str, Data]] = {
    "X-Request-Id": (
        "Id of the request, as in logs and in `instance` of problems: the one that was sent, where"
        " it has up to 64 letters, digits and `._-`.",
        {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}$"},
    ),
    "Allow": ("Methods that the path answers.", {"type": "string"}),
    "Cache-Control": (
        "`no-store`, or `private, no-cache`: kept, and asked for with its ETag.",
        {"type": "string"},
    ),
    "Cache-Status": (
        "`planner; hit`: from memory; `planner; fwd=miss`: computed (RFC 9211).",
        {"type": "string"},
    ),
    "Connection": ("`close`: the rest of the body is not read.", {"type": "string"}),
    "Deprecation": (
        "`@` and the second since 1970 from when a part of the answer is deprecated (RFC 9745);"
        " the schema of the answer marks it.",
        {"type": "string", "pattern": "^@[0-9]+$"},
    ),
    "ETag": ("Content hash of the request: send it as If-None-Match.", {"type": "string"}),
    "Link": ('With `rel="deprecation"`: where the deprecation is described.', {"type": "string"}),
    "Location": ("Address of what was made: of the job, of the webhook.", {"type": "string"}),
    "Preference-Applied": ("What of `Prefer` was followed (RFC 7240).", {"type": "string"}),
    "Retry-After": ("Seconds until it is worth asking again.", {"type": "integer", "minimum": 0}),
    "Sunset": (
        "Until when the deprecated part is there at least (RFC 8594), as a date of HTTP.",
        {"type": "string"},
    ),
    "WWW-Authenticate": ('`Bearer realm="planner"`: send a token.', {"type": "string"}),
}
_ALWAYS = ("Location", "WWW-Authenticate", "Deprecation", "Sunset", "Link")
"""Headers that are there wherever they are described."""

_OF_JOB = {"job_id": "$response.body#/job_id"}
_LINKS: Mapping[str, tuple[str, Data, str]] = {
    "Job": ("getJob", _OF_JOB, "The job: its state."),
    "Events": ("watchJob", _OF_JOB, "What happens to the job, as it happens."),
    "Result": ("getResult", _OF_JOB, "The answer of the job, when it has succeeded."),
    "Cancel": ("cancelJob", _OF_JOB, "The end of the job, before its time."),
    "NextJobs": (
        "listJobs",
        {"cursor": "$response.body#/next_cursor"},
        "The next page, unless `next_cursor` is empty.",
    ),
    "NextItems": (
        "getResult",
        {"job_id": "$request.path.job_id", "cursor": "$response.body#/next_cursor"},
        "The next page of a result that is read in pages, unless `next_cursor` is empty.",
    ),
}
"""Operation, parameters and meaning by name."""
_JOB_LINKS = ("Job", "Events", "Result", "Cancel")
_LINKS_OF = {
    ("getJob", 200): _JOB_LINKS[1:],
    ("cancelJob", 200): _JOB_LINKS[:2],
    ("listJobs", 200): ("NextJobs",),
    ("getResult", 200): ("NextItems",),
}
"""Names of links by operation and status; every 202 has those of its job."""


def header_components() -> Data:
    """Return the headers by name."""
    return {
        name: {
            "description": meaning,
            **({"required": True} if name in _ALWAYS else {}),
            "schema": schema,
        }
        for name, (meaning, schema) in _HEADERS.items()
    }


def link_components() -> Data:
    """Return the links by name."""
    return {
        name: {"operationId": operation, "parameters": parameters, "description": meaning}
        for name, (operation, parameters, meaning) in _LINKS.items()
    }


def _references(kind: str, names: Iterable[str]) -> Data:
    return {name: {"$ref": f"#/components/{kind}/{name}"} for name in names}


def problem_headers(status: int) -> Data:
    """Return the headers of a refusal."""
    names = ("X-Request-Id", "Cache-Control", *_OF_PROBLEMS.get(status, ()))
    return _references("headers", names)


def unlisted_headers() -> Data:
    """Return the headers of refusals that an operation does not list."""
    return _references("headers", ("X-Request-Id", "Allow"))


def answer_headers(each: Operation, status: int) -> Data:
    """Return the headers of an answer."""
    names = ["X-Request-Id", "Cache-Control"]
    has_etag = 304 in each.answers and status in (200, 304)
    if status == 201:
        names.append("Location")
    if status == 202:
        names += ["Location", "Retry-After"]
    if has_etag:
        names += ["ETag", "Cache-Status"]
    if (each.id, status) == ("getJob", 200):
        names.append("Retry-After")
    if each.call and 202 in each.answers:
        names.append("Preference-Applied")
    if (each.id, status) in DEPRECATED:
        names += ["Deprecation", "Sunset", "Link"]
    return _references("headers", names)


def answer_links(each: Operation, status: int) -> Data:
    """Return the links of an answer; empty without any."""
    names = _JOB_LINKS if status == 202 else _LINKS_OF.get((each.id, status), ())
    return _references("links", names)
