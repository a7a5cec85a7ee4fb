"""Both transports over one engine, asked in the same words: what a contract is tested with."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc
import httpx
from google.protobuf import json_format
from google.rpc import status_pb2

from service.access.auth import Auth, read_tokens
from service.engine import Engine
from service.handlers.calls import CALLS
from service.handlers.limits import RequestLimits
from service.proto.planner.v1 import planner_pb2 as pb
from service.proto.planner.v1 import planner_pb2_grpc
from service.rest.application import Rest
from service.rest.operations import FACTS, OPERATIONS
from service.rpc.convert import to_dict
from service.rpc.gate import CALL_OF
from service.rpc.server import GrpcEndpoint, GrpcServer, bound
from service.rpc.status import DETAILS
from service.telemetry.metrics import Metrics
from service.tenants.groups import Tenants
from tests.service import fake_calls
from tests.service.inline import SETTINGS, inline_engine
from tests.service.waiting import PATIENCE_S

Found = TypeVar("Found")

TOKENS = {
    "ann": ("read", "ann-reads-0123456789"),
    "sue": ("solve", "sue-solves-0123456789"),
    "tom": ("solve", "tom-solves-0123456789"),
    "eve": ("admin", "eve-rules-0123456789"),
}
SUE = TOKENS["sue"][1]
PATHS = {each.call: each.path for each in OPERATIONS if each.call}
METHODS = {call: method for method, call in CALL_OF.items() if method != "SolveStream"}
MOST_S = PATIENCE_S


@dataclass(frozen=True)
class Reply:
    """An answer, or the job that it comes with."""

    data: Any = None
    """None where the caller has it already."""
    etag: str = ""
    cached: bool = False
    job: dict[str, Any] | None = None
    text: str = ""
    """The JSON as it was sent."""


class Refused(Exception):
    """A refusal: its problem document, and the status of the transport."""

    def __init__(self, problem: Mapping[str, Any], status: Any) -> None:
        super().__init__(f"{status}: {problem.get('code')}: {problem.get('detail')}")
        self.problem = problem
        self.status = status

    @property
    def seen(self) -> tuple[int, str]:
        """Status over HTTP, and code."""
        return self.problem["status"], self.problem["code"]


class Service:
    """One engine with both transports, which ask for tokens."""

    def __init__(
        self,
        folder: Path,
        database: str = "",
        calls: Any = fake_calls,
        settings: RequestLimits = SETTINGS,
        tenants: Tenants | None = None,
    ) -> None:
        self.runner = asyncio.Runner()
        self._context = inline_engine(folder, database, calls, settings, tenants)
        self.engine: Engine = self.runner.run(self._context.__aenter__())
        text = "\n".join(f"{name} {role} {token}" for name, (role, token) in TOKENS.items())
        self.auth = Auth(read_tokens(text, "tokens"), 100_000, self.engine.tenants)
        self.metrics = Metrics(self.engine)
        self.app = Rest(self.engine, self.auth, settings, metrics=self.metrics)
        self.server: GrpcServer = self.runner.run(self._listen(settings))
        self.channel: Any = self.runner.run(self._connect())

    async def _listen(self, settings: RequestLimits) -> GrpcServer:
        server = bound(self.engine, self.auth, settings, self.metrics, GrpcEndpoint("127.0.0.1:0"))
        await server.start()
        return server

    async def _connect(self) -> Any:
        return grpc.aio.insecure_channel(self.server.address)

    def __call__(self, work: Awaitable[Found]) -> Found:
        """Return what some work returns, on the engine's loop and within bounds of time."""

        async def limited() -> Found:
            return await asyncio.wait_for(work, MOST_S)

        return self.runner.run(limited())

    def close(self) -> None:
        self.runner.run(self.channel.close())
        self.runner.run(self.server.stop(0.5))
        self.runner.run(self._context.__aexit__(None, None, None))
        self.runner.close()


@dataclass(frozen=True)
class Asker:
    """A caller with a token; its methods are the operations of the service."""

    service: Service
    token: str = SUE

    def who(self, token: str) -> "Asker":
        """Return the same with another token."""
        return type(self)(self.service, token)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return an operation that is awaited on the engine's loop."""
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *given, **named: self.service(getattr(self, f"a_{name}")(*given, **named))


@dataclass(frozen=True)
class OverRest(Asker):
    """Asks over HTTP."""

    name: str = field(default="rest", init=False)

    async def _ask(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, **given: Any
    ) -> httpx.Response:
        transport = httpx.ASGITransport(app=self.service.app, client=("10.0.0.7", 1))
        sent = {"authorization": f"Bearer {self.token}"} if self.token else {}
        sent |= dict(headers or {})
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answer = await client.request(method, path, headers=sent, **given)
        if answer.status_code >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
            if answer.status_code == 429:
                assert int(answer.headers["retry-after"]) >= 1
            raise Refused(answer.json(), answer.status_code)
        return answer

    async def a_call(
        self,
        name: str,
        request: Mapping[str, Any],
        *,
        key: str = "",
        known: str = "",
        deadline_s: float = 0.0,
        job: bool = False,
        labels: str = "",
    ) -> Reply:
        headers = {"idempotency-key": key} if key else {}
        headers |= {"planner-labels": labels} if labels else {}
        if known:
            headers["if-none-match"] = known if known == "*" else f'"{known}"'
        if deadline_s or job:
            headers["prefer"] = "respond-async" if job else f"wait={deadline_s}"
        if name in FACTS:
            answer = await self._ask("GET", PATHS[name], headers, params=dict(request))
        else:
            headers["content-type"] = "application/json"
            answer = await self._ask(
                "POST", PATHS[name], headers, content=json.dumps(request).encode()
            )
        if answer.status_code == 202:
            return Reply(job=answer.json())
        return self._reply(answer)

    def _reply(self, answer: httpx.Response) -> Reply:
        etag = answer.headers.get("etag", "").strip('"')
        cached = answer.headers["cache-status"] == "planner; hit"
        if answer.status_code == 304:
            assert answer.content == b""
            return Reply(None, etag, cached)
        return Reply(answer.json(), etag, cached, text=answer.text)

    async def a_submit(
        self,
        name: str,
        request: Mapping[str, Any],
        *,
        key: str = "",
        time_limit_s: float = 0.0,
        **tags: Any,
    ) -> dict[str, Any]:
        body = {"call": name, "request": request, "time_limit_s": time_limit_s, **tags}
        headers = {"idempotency-key": key} if key else {}
        answer = await self._ask("POST", "/v1/jobs", headers, json=body)
        assert answer.status_code == 202
        return answer.json()

    async def a_get(self, job_id: str) -> dict[str, Any]:
        return (await self._ask("GET", f"/v1/jobs/{job_id}")).json()

    async def a_cancel(self, job_id: str) -> dict[str, Any]:
        return (await self._ask("POST", f"/v1/jobs/{job_id}:cancel")).json()

    async def a_list(self, **wanted: Any) -> dict[str, Any]:
        params = {name: value for name, value in wanted.items() if value}
        return (await self._ask("GET", "/v1/jobs", params=params)).json()

    async def a_watch_jobs(self, **wanted: Any) -> list[dict[str, Any]]:
        path = "/v1/jobs:watch"
        return [data for _, data in await self._events(path, {}, params=wanted)]

    async def a_create_webhook(self, **wanted: Any) -> dict[str, Any]:
        answer = await self._ask("POST", "/v1/webhooks", json=wanted)
        assert answer.status_code == 201
        made = answer.json()
        assert answer.headers["location"] == f"/v1/webhooks/{made['webhook_id']}"
        return made

    async def a_webhooks(self, **page: Any) -> dict[str, Any]:
        return (await self._ask("GET", "/v1/webhooks", params=page)).json()

    async def a_webhook(self, webhook_id: str) -> dict[str, Any]:
        return (await self._ask("GET", f"/v1/webhooks/{webhook_id}")).json()

    async def a_delete_webhook(self, webhook_id: str) -> None:
        answer = await self._ask("DELETE", f"/v1/webhooks/{webhook_id}")
        assert (answer.status_code, answer.content) == (204, b"")

    async def a_test_webhook(self, webhook_id: str) -> dict[str, Any]:
        return (await self._ask("POST", f"/v1/webhooks/{webhook_id}:test")).json()

    async def a_deliveries(self, webhook_id: str, **page: Any) -> dict[str, Any]:
        path = f"/v1/webhooks/{webhook_id}/deliveries"
        return (await self._ask("GET", path, params=page)).json()

    async def a_watch(self, job_id: str, after: int = 0) -> list[tuple[int, dict[str, Any]]]:
        headers = {"last-event-id": str(after)} if after else {}
        return await self._events(f"/v1/jobs/{job_id}/events", headers)

    async def _events(
        self, path: str, headers: Mapping[str, str], **given: Any
    ) -> list[tuple[int, dict[str, Any]]]:
        answer = await self._ask("GET", path, headers, **given)
        found = []
        for block in answer.text.strip().split("\n\n") if answer.text.strip() else ():
            fields = dict(line.split(": ", 1) for line in block.splitlines() if line[0] != ":")
            if fields["event"] == "problem":
                problem = json.loads(fields["data"])
                raise Refused(problem, problem["status"])
            found.append((int(fields["id"]), json.loads(fields["data"])))
        return found

    async def a_result(
        self,
        job_id: str,
        *,
        limit: int = 0,
        cursor: str = "",
        known: str = "",
        so_far: bool = False,
    ) -> Reply:
        given = {"limit": limit, "cursor": cursor, "so_far": "true" if so_far else ""}
        params = {k: v for k, v in given.items() if v}
        headers = {"if-none-match": f'"{known}"'} if known else {}
        path = f"/v1/jobs/{job_id}/result"
        return self._reply(await self._ask("GET", path, headers, params=params))

    async def a_version(self) -> dict[str, Any]:
        return (await self._ask("GET", "/v1/version")).json()


def typed(name: str, request: Mapping[str, Any]) -> Any:
    """Return the message of a request with its fields, rather than its JSON."""
    message = getattr(pb, METHODS[name] + "Request")()
    return json_format.ParseDict(_with_documents(message.DESCRIPTOR, request), message)


def _with_documents(kind: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in data.items():
        inner = kind.fields_by_name[name].message_type
        if inner is None or inner.GetOptions().map_entry or value is None:
            out[name] = value
        elif inner.full_name == "planner.v1.Document":
            is_text = isinstance(value, Mapping) and value.keys() <= {"text", "name"}
            source = "name" if isinstance(value, str) else "text" if is_text else "content"
            out[name] = {source: value}
        elif inner.full_name.startswith("planner.v1."):
            out[name] = _with_documents(inner, value)
        else:
            out[name] = value
    return out


@dataclass(frozen=True)
class OverGrpc(Asker):
    """Asks over gRPC."""

    name: str = field(default="grpc", init=False)

    async def ask(
        self,
        method: str,
        message: Any,
        *,
        more: Mapping[str, str] | None = None,
        deadline_s: float = 0.0,
    ) -> tuple[Any, dict[str, Any]]:
        """Return the answer of a method and its metadata; a stream as a list."""
        metadata = {"authorization": f"Bearer {self.token}"} if self.token else {}
        metadata |= dict(more or {})
        stub = planner_pb2_grpc.PlannerStub(self.service.channel)
        call = getattr(stub, method)(
            message, metadata=tuple(metadata.items()), timeout=deadline_s or MOST_S
        )
        try:
            if method in ("WatchJob", "WatchJobs", "SolveStream"):
                found: Any = [each async for each in call]
            else:
                found = await call
        except grpc.aio.AioRpcError as error:
            raise refusal(error) from None
        return found, dict(await call.trailing_metadata())

    async def a_call(
        self,
        name: str,
        request: Mapping[str, Any],
        *,
        key: str = "",
        known: str = "",
        deadline_s: float = 0.0,
        job: bool = False,
        form: str = "MESSAGE",
        fields: bool = False,
        labels: str = "",
    ) -> Reply:
        more = {"idempotency-key": key} if key else {}
        more |= {"planner-labels": labels} if labels else {}
        if known:
            more["if-none-match"] = known
        kind = getattr(pb, METHODS[name] + "Request")
        message = typed(name, request) if fields else kind(json=json.dumps(request))
        if "delivery" in kind.DESCRIPTOR.fields_by_name:
            message.delivery.form = pb.Delivery.Form.Value(f"FORM_{form}")
            message.delivery.job = job
        found, told = await self.ask(METHODS[name], message, more=more, deadline_s=deadline_s)
        if isinstance(found, pb.Job):
            return Reply(job=to_dict(found))
        return self._reply(found, told)

    def _reply(self, found: Any, told: Mapping[str, Any]) -> Reply:
        which = found.WhichOneof("outcome")
        if which == "job":
            return Reply(job=to_dict(found.job))
        assert told.get("etag", "") == (f'"{found.etag}"' if found.etag else "")
        cached = told.get("cache-status") == "planner; hit"
        if which is None:
            return Reply(None, found.etag, cached)
        if which == "json":
            return Reply(json.loads(found.json), found.etag, cached, text=found.json)
        data = to_dict(getattr(found, which))
        if which in ("answer", "solve") and "square" in data:  # of the stand-in: no more than it
            data = {name: data[name] for name in ("n", "square", "list")}
        return Reply(data, found.etag, cached)

    async def a_submit(
        self,
        name: str,
        request: Mapping[str, Any],
        *,
        key: str = "",
        time_limit_s: float = 0.0,
        **tags: Any,
    ) -> dict[str, Any]:
        field = name.replace("-", "_")
        inner = getattr(pb, METHODS[name] + "Request")(json=json.dumps(request))
        message = pb.SubmitJobRequest(**{field: inner}, time_limit_s=time_limit_s, **tags)
        more = {"idempotency-key": key} if key else {}
        return to_dict((await self.ask("SubmitJob", message, more=more))[0])

    async def a_get(self, job_id: str) -> dict[str, Any]:
        return to_dict((await self.ask("GetJob", pb.GetJobRequest(job_id=job_id)))[0])

    async def a_cancel(self, job_id: str) -> dict[str, Any]:
        return to_dict((await self.ask("CancelJob", pb.CancelJobRequest(job_id=job_id)))[0])

    async def a_list(self, *, state: str = "", **wanted: Any) -> dict[str, Any]:
        asked = pb.ListJobsRequest(**wanted)
        if state:
            asked.state = pb.Job.State.Value(state)
        return to_dict((await self.ask("ListJobs", asked))[0])

    async def a_watch_jobs(self, **wanted: Any) -> list[dict[str, Any]]:
        found = (await self.ask("WatchJobs", pb.WatchJobsRequest(**wanted)))[0]
        return [to_dict(each) for each in found]

    async def a_create_webhook(self, **wanted: Any) -> dict[str, Any]:
        return to_dict((await self.ask("CreateWebhook", pb.CreateWebhookRequest(**wanted)))[0])

    async def a_webhooks(self, **page: Any) -> dict[str, Any]:
        return to_dict((await self.ask("ListWebhooks", pb.ListWebhooksRequest(**page)))[0])

    async def a_webhook(self, webhook_id: str) -> dict[str, Any]:
        asked = pb.GetWebhookRequest(webhook_id=webhook_id)
        found = to_dict((await self.ask("GetWebhook", asked))[0])
        assert found.pop("secret") == ""
        return found

    async def a_delete_webhook(self, webhook_id: str) -> None:
        await self.ask("DeleteWebhook", pb.DeleteWebhookRequest(webhook_id=webhook_id))

    async def a_test_webhook(self, webhook_id: str) -> dict[str, Any]:
        asked = pb.TestWebhookRequest(webhook_id=webhook_id)
        return to_dict((await self.ask("TestWebhook", asked))[0])

    async def a_deliveries(self, webhook_id: str, **page: Any) -> dict[str, Any]:
        asked = pb.ListDeliveriesRequest(webhook_id=webhook_id, **page)
        return to_dict((await self.ask("ListDeliveries", asked))[0])

    async def a_watch(self, job_id: str, after: int = 0) -> list[tuple[int, dict[str, Any]]]:
        asked = pb.WatchJobRequest(job_id=job_id, after=after)
        found = []
        for each in (await self.ask("WatchJob", asked))[0]:
            if each.HasField("progress"):
                found.append((each.n, to_dict(each.progress)))
                continue
            data: dict[str, Any] = {"state": pb.Job.State.Name(each.state)}
            if each.attempt:
                data["attempt"] = each.attempt
            found.append((each.n, data))
        return found

    async def a_result(
        self,
        job_id: str,
        *,
        limit: int = 0,
        cursor: str = "",
        known: str = "",
        form: str = "MESSAGE",
        so_far: bool = False,
    ) -> Reply:
        asked = pb.GetResultRequest(job_id=job_id, limit=limit, cursor=cursor, so_far=so_far)
        asked.form = pb.Delivery.Form.Value(f"FORM_{form}")
        more = {"if-none-match": known} if known else {}
        return self._reply(*await self.ask("GetResult", asked, more=more))

    async def a_version(self) -> dict[str, Any]:
        return to_dict((await self.ask("GetVersion", pb.GetVersionRequest()))[0])


def refusal(error: grpc.aio.AioRpcError) -> Refused:
    """Return the problem that a status holds."""
    told = dict(error.trailing_metadata() or ())
    if DETAILS not in told:
        return Refused({"code": "", "status": 0, "detail": error.details()}, error.code())
    status = status_pb2.Status.FromString(told[DETAILS])
    assert status.code == error.code().value[0]
    problem = pb.Problem()
    assert status.details[0].Unpack(problem)
    data = to_dict(problem)
    assert data["instance"] == told["x-request-id"]
    kinds = [each.TypeName() for each in status.details]
    assert "google.rpc.ErrorInfo" in kinds
    assert ("google.rpc.RetryInfo" in kinds) == ("retry_after_s" in data)
    assert ("google.rpc.BadRequest" in kinds) == ("errors" in data)
    return Refused(data, error.code())


TRANSPORTS: dict[str, type[Any]] = {"rest": OverRest, "grpc": OverGrpc}
ALL_CALLS = tuple(CALLS)
