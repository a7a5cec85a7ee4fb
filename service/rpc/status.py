"""What a refusal is over gRPC: a status with google.rpc.Status details.

The details are the problem as planner.v1.Problem, and what standard clients look for: ErrorInfo
(the code as its reason), RetryInfo where one may come back, BadRequest where fields are wrong.
"""

from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from service.handlers.problems import Fault, Refusal
from service.rpc.convert import problem_message

DETAILS = "grpc-status-details-bin"
"""Name of the metadata that holds the details."""
DOMAIN = "planner.v1"
MOST_BYTES = 4_000
"""Of the details: clients take 8 kB of metadata, and they grow by a third on the way."""
MOST_CHARS = 1_000
"""Of the text of a status, which is metadata too."""
_C = grpc.StatusCode
_STATUS = {
    400: _C.INVALID_ARGUMENT,
    401: _C.UNAUTHENTICATED,
    403: _C.PERMISSION_DENIED,
    404: _C.NOT_FOUND,
    408: _C.DEADLINE_EXCEEDED,
    409: _C.FAILED_PRECONDITION,
    410: _C.NOT_FOUND,
    413: _C.INVALID_ARGUMENT,
    422: _C.INVALID_ARGUMENT,
    429: _C.RESOURCE_EXHAUSTED,
    500: _C.INTERNAL,
    503: _C.UNAVAILABLE,
    504: _C.DEADLINE_EXCEEDED,
    507: _C.RESOURCE_EXHAUSTED,
}
"""By the status that a problem has over HTTP."""
_BY_CODE = {
    "key-in-use": _C.ABORTED,
    "key-reused": _C.INVALID_ARGUMENT,
    "history-trimmed": _C.OUT_OF_RANGE,
}
"""Where the code of a problem tells more: ABORTED asks to try the same again."""


def status_of(problem: Refusal) -> grpc.StatusCode:
    """Return the status of a problem."""
    return _BY_CODE.get(problem.code) or _STATUS.get(problem.status, _C.UNKNOWN)


def status_details(problem: Refusal, request_id: str) -> bytes:
    """Return the google.rpc.Status of a problem, at most `MOST_BYTES` long."""
    faults = list(problem.errors)
    while True:
        packed = _packed(problem, faults, request_id)
        if len(packed) <= MOST_BYTES:
            return packed
        if not faults:
            return _packed(_shortened(problem), [], request_id)
        faults.pop()


def _shortened(problem: Refusal) -> Refusal:
    return Refusal(
        problem.status,
        problem.code,
        problem.title[:200],
        problem.detail[:200],
        problem.retry_after_s,
    )


def _packed(problem: Refusal, faults: list[Fault], request_id: str) -> bytes:
    bounded = Refusal(
        problem.status,
        problem.code,
        problem.title,
        problem.detail[:MOST_CHARS],
        problem.retry_after_s,
        faults,
        problem.more,
    )
    info = error_details_pb2.ErrorInfo(
        reason=problem.code.upper().replace("-", "_"),
        domain=DOMAIN,
        metadata={"code": problem.code, "http_status": str(problem.status)},
    )
    details: list[Any] = [problem_message(bounded, request_id), info]
    if problem.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(int(problem.retry_after_s * 1e9))
        details.append(retry)
    if faults:
        wrong = error_details_pb2.BadRequest()
        for fault in faults:
            wrong.field_violations.add(field=fault.field, description=fault.message)
        details.append(wrong)
    status = status_pb2.Status(
        code=status_of(problem).value[0], message=problem.detail[:MOST_CHARS]
    )
    for each in details:
        packed = any_pb2.Any()
        packed.Pack(each)
        status.details.append(packed)
    return bytes(status.SerializeToString())
