"""The gRPC transport: what it has besides the contract, and how messages hold plain data."""

import asyncio
import io
import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import struct_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import UsageError
from service.access.auth import Auth
from service.handlers.calls import call
from service.handlers.limits import RequestLimits
from service.handlers.problems import Fault, Refusal
from service.process.serve import check_setup
from service.proto.planner.v1 import planner_pb2 as pb
from service.proto.planner.v1 import planner_pb2_grpc
from service.rpc import gate as grpc_gate
from service.rpc import methods as grpc_methods
from service.rpc import server as grpc_server
from service.rpc.convert import body_of, message_of, to_dict
from service.rpc.gate import address_of, authorization_of, time_left
from service.rpc.server import GrpcEndpoint, bound, credentials_of, start_server
from service.rpc.status import MOST_BYTES, status_details, status_of
from service.settings.certificates import Certificates
from service.settings.serving import Serving
from service.telemetry import logs
from service.telemetry.metrics import Metrics
from tests.repeats import examples
from tests.service.handlers.test_calls import JOB
from tests.service.inline import SETTINGS
from tests.service.process.test_serve import ask as ask_http
from tests.service.process.test_serve import started
from tests.service.transports import SUE, TOKENS, OverGrpc, Refused, Service, typed
from tests.service.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    found = Service(tmp_path_factory.mktemp("grpc"))
    yield found
    found.close()


@pytest.fixture
def ask(service: Service) -> OverGrpc:
    return OverGrpc(service)


def refused(ask: OverGrpc, method: str, message: Any, **named: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        ask.service(ask.ask(method, message, **named))
    return caught.value


# Messages hold the JSON without loss


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("solve", {**JOB, "pins": {"tp": 2, "zero": 1, "pp": 1, "cp": 1}, "top": 2}),
        (
            "evaluate",
            {
                "model": "llama3-8b",
                "cluster": "h100-x512",
                "pins": {"tp": 2, "cp": 2, "pp": 4, "vpp": 2},
            },
        ),
        ("evaluate", {**JOB, "pins": {"tp": 1, "recompute": "full"}}),
        ("solve", {**JOB, "pins": {"tp": 3}}),
    ],
    ids=["ranked", "priced", "on one device each", "nothing fits"],
)
def test_typed_answers_give_back_the_json_with_its_numbers(name, request_):
    answer = call(name, request_)
    message = message_of(answer, pb.SolveAnswer)
    assert not message.HasField("more"), "a field of the answer is missing in planner.proto"
    again = pb.SolveAnswer.FromString(message.SerializeToString())
    assert to_dict(again) == answer
    # Every number is the same to the last bit; whole ones of Struct fields are integers again.
    assert json.loads(json.dumps(to_dict(again))) == json.loads(json.dumps(answer))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(max_size=8)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
NESTED = ("layout", "memory", "comm", "warnings")
"""Parts whose own fields are always there."""
FIELDS = [each.name for each in pb.Plan.DESCRIPTOR.fields if each.name not in (*NESTED, "more")]


@given(st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), JSON, max_size=6))
@settings(max_examples=examples(25), deadline=None)
def test_whatever_an_answer_holds_comes_back(answer):
    """Also fields of other types than the message has, and those that it does not have."""
    whole = to_dict(message_of({}, pb.Plan)) | answer
    found = to_dict(pb.Plan.FromString(message_of(whole, pb.Plan).SerializeToString()))
    assert found == whole


def test_problems_leave_out_what_is_not_known():
    problem = Refusal(422, "bad-option", "no", "why", errors=[Fault("m", field="tp", line=3)])
    for each in (problem, Refusal(429, "overloaded", "busy", "x", retry_after_s=0.5)):
        assert to_dict(message_of(each.to_json("id"), pb.Problem)) == each.to_json("id")


# Requests become the JSON that the schemas read


def test_fields_of_a_request_are_those_of_its_json():
    request = {
        "model": "llama3-8b",
        "cluster": {"pools": [{"nodes": 2, "share": 0.5, "x": None}]},
        "set": {"training.global_batch": 64, "on": True},
        "allow": ["TP002"],
        "calibration": {"text": "a: 1", "name": "c.yaml"},
        "pins": {"tp": 8},
        "only": {"pp": [1, 2], "schedule": ["1f1b"]},
        "max": {"pp": 4},
        "top": 0,
        "within": 1.5,
        "deadline": "30d",
    }
    assert json.loads(body_of(typed("solve", request))) == request
    emit = {"evaluate": {**JOB, "pins": {"tp": 2}}, "plan": 1, "for": ["megatron"], "hosts": ""}
    assert json.loads(body_of(typed("emit", emit))) == emit
    scale = {**JOB, "from": 8, "to": 16, "points": 2}
    assert json.loads(body_of(typed("scale", scale))) == scale
    diff = {"a": {"solve": JOB}, "b": {"result": {"plans": []}, "plan": "ab"}}
    assert json.loads(body_of(typed("diff", diff))) == diff


def test_json_stands_for_the_whole_request():
    text = '{"spec":{"vary":{"b":1,"a":2}}}'
    assert body_of(pb.SweepRequest(json=text)) == text.encode()
    inner = pb.ExplainRequest(solve=pb.SolveRequest(json='{"model": "x"}'), term="tp")
    assert json.loads(body_of(inner)) == {"solve": {"model": "x"}, "term": "tp"}


def number(value: float) -> struct_pb2.Value:
    return struct_pb2.Value(number_value=value)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (pb.SolveRequest(json="{}", pool="p"), "pool stand beside it"),
        (pb.ExplainRequest(solve=pb.SolveRequest(json="{}", pool="p")), "pool stand beside it"),
        (pb.ExplainRequest(solve=pb.SolveRequest(delivery=pb.Delivery(job=True))), "outermost"),
        (pb.ExplainRequest(solve=pb.SolveRequest(json="{")), "no JSON"),
        (pb.SolveRequest(model=pb.Document()), "without content"),
        (pb.SolveRequest(deadline=struct_pb2.Value()), "holds no value"),
        (pb.SolveRequest(deadline=number(float("nan"))), "no number"),
        (pb.SolveRequest(set={"x": number(float("inf"))}), "no number"),
        (pb.SolveRequest(allow=["x"] * 30), "values in the request"),
        (pb.SolveRequest(only={"tp": struct_pb2.ListValue(values=[number(1)] * 30)}), "values in"),
    ],
)
def test_what_is_no_request_is_refused(message, said):
    with pytest.raises(Refusal, match=said):
        body_of(message, RequestLimits(nodes=20))


def test_large_numbers_stay_what_they_are():
    huge = pb.SolveRequest(set={"a": number(1e300), "b": number(2.0**53)})
    assert body_of(huge) == b'{"set":{"a":1e+300,"b":9007199254740992}}'


# Refusals


def test_details_fit_into_the_metadata_that_clients_take():
    faults = [Fault("wrong " * 50, "change it " * 50, f"field{i}") for i in range(20)]
    problem = Refusal(422, "malformed", "t" * 5_000, "d" * 50_000, 1.0, faults)
    assert len(status_details(problem, "id")) <= MOST_BYTES
    few = Refusal(422, "malformed", "t", "d", 1.0, faults[:3])
    assert status_details(few, "id").count(b"change it") >= 3 * 50


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (400, "malformed", "INVALID_ARGUMENT"),
        (401, "x", "UNAUTHENTICATED"),
        (403, "x", "PERMISSION_DENIED"),
        (404, "x", "NOT_FOUND"),
        (409, "key-in-use", "ABORTED"),
        (409, "not-ended", "FAILED_PRECONDITION"),
        (410, "expired", "NOT_FOUND"),
        (422, "key-reused", "INVALID_ARGUMENT"),
        (429, "overloaded", "RESOURCE_EXHAUSTED"),
        (500, "defect", "INTERNAL"),
        (503, "draining", "UNAVAILABLE"),
        (504, "out-of-time", "DEADLINE_EXCEEDED"),
        (507, "store-full", "RESOURCE_EXHAUSTED"),
        (418, "x", "UNKNOWN"),
    ],
)
def test_every_refusal_has_its_status(status, code, expected):
    assert status_of(Refusal(status, code, "", "")).name == expected


def test_bytes_that_are_no_message_are_refused(ask):
    async def raw(method: str, data: bytes) -> Any:
        sent = ask.service.channel.unary_unary(f"/planner.v1.Planner/{method}")
        return await sent(data, metadata=(("authorization", f"Bearer {SUE}"),), timeout=PATIENCE_S)

    for method in ("Solve", "SubmitJob", "GetJob"):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            ask.service(raw(method, b"\xff\xff\xff"))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        ask.service(raw("Dance", b""))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    value = struct_pb2.ListValue()
    for _ in range(150):
        outer = struct_pb2.ListValue()
        outer.values.add().list_value.CopyFrom(value)
        value = outer
    nested = pb.SolveRequest(only={"tp": value}).SerializeToString()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        ask.service(raw("Solve", nested))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_messages_beyond_the_limit_and_compressed_ones_are_refused(ask):
    long = pb.SolveRequest(json=" " * (SETTINGS.body_bytes + 1))
    assert refused(ask, "Solve", long).status is grpc.StatusCode.RESOURCE_EXHAUSTED

    async def compressed() -> Any:
        stub = planner_pb2_grpc.PlannerStub(ask.service.channel)
        await stub.Solve(pb.SolveRequest(json="{}"), compression=grpc.Compression.Gzip)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        ask.service(compressed())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("method", "message", "said"),
    [
        ("SubmitJob", pb.SubmitJobRequest(), "without a request"),
        ("SubmitJob", pb.SubmitJobRequest(solve=pb.SolveRequest(), time_limit_s=-1), "seconds"),
        (
            "SubmitJob",
            pb.SubmitJobRequest(solve=pb.SolveRequest(), time_limit_s=float("nan")),
            "seconds",
        ),
        (
            "SubmitJob",
            pb.SubmitJobRequest(rules=pb.RulesRequest(delivery=pb.Delivery(job=True))),
            "GetResult",
        ),
        ("ListJobs", pb.ListJobsRequest(state=99), "Job.State"),  # type: ignore[arg-type]
        ("ListJobs", pb.ListJobsRequest(limit=-1), "1 to 1000"),
        ("WatchJob", pb.WatchJobRequest(job_id="x", after=-1), "no event"),
    ],
)
def test_what_makes_no_sense_is_refused(ask, method, message, said):
    found = refused(ask, method, message)
    assert found.status is grpc.StatusCode.INVALID_ARGUMENT
    assert said in found.problem["detail"]


# Calls


def test_a_repeated_question_is_answered_unread(ask, monkeypatch):
    first = ask.call("solve", {"n": 4001})
    monkeypatch.setattr(grpc_methods, "read_message", None)
    again = ask.call("solve", {"n": 4001})
    assert (again.data, again.cached) == (first.data, True)
    assert ask.call("solve", {"n": 4001}, known=first.etag).data is None


@pytest.mark.parametrize(
    ("given_s", "left_s"), [(None, None), (3600.0, None), (10.0, 9.51), (1.0, 0.84), (0.0, 0.001)]
)
def test_the_deadline_of_a_call_leaves_time_for_the_way_back(given_s, left_s):
    found = time_left(given_s, RequestLimits())
    assert found == (left_s if left_s is None else pytest.approx(left_s, rel=0.01))
    if given_s and found:
        assert time_left(given_s * 0.999, RequestLimits()) == found, "asked at once, computed once"


def test_more_calls_than_are_served_are_told_to_come_back(ask, monkeypatch):
    monkeypatch.setattr(grpc_gate, "MOST_CALLS", 0)
    found = refused(ask, "GetVersion", pb.GetVersionRequest())
    assert found.seen == (429, "overloaded")
    assert found.status is grpc.StatusCode.RESOURCE_EXHAUSTED
    monkeypatch.undo()
    assert ask.version()["api"] == "v1"


def test_a_stream_tells_progress_and_then_the_answer(ask):
    asked = pb.SolveRequest(json='{"n": 4002, "steps": 3}')
    events, _ = ask.service(ask.ask("SolveStream", asked))
    assert [each.progress.done for each in events[:-1]] == [1, 2, 3]
    assert to_dict(events[-1].response.answer)["square"] == 4002**2
    assert events[-1].response.etag == ask.call("solve", {"n": 4002, "steps": 3}).etag
    again, _ = ask.service(ask.ask("SolveStream", asked))
    assert [each.WhichOneof("event") for each in again] == ["response"]


def test_a_stream_follows_the_job_of_a_large_question(ask):
    asked = pb.SolveRequest(json='{"n": 4003, "steps": 2}', delivery=pb.Delivery(job=True))
    asked.delivery.form = pb.Delivery.FORM_JSON
    events, _ = ask.service(ask.ask("SolveStream", asked))
    assert events[0].job.call == "solve"
    assert json.loads(events[-1].response.json)["square"] == 4003**2
    failing = pb.SolveRequest(json='{"refuse": "not so"}', delivery=pb.Delivery(job=True))
    assert refused(ask, "SolveStream", failing).seen == (422, "bad-option")
    assert refused(ask, "SolveStream", pb.SolveRequest(json='{"refuse": "no"}')).seen == (
        422,
        "bad-option",
    )


@pytest.mark.parametrize("method", ["Solve", "SolveStream"])
def test_work_ends_when_its_caller_leaves(ask, method):
    async def leave() -> int:
        engine = ask.service.engine
        pool: Any = engine._pool
        pool.held.clear()
        stub = planner_pb2_grpc.PlannerStub(ask.service.channel)
        sent = getattr(stub, method)(
            pb.SolveRequest(json=json.dumps({"n": 4004, "m": method})),
            metadata=(("authorization", f"Bearer {SUE}"),),
        )
        waiting = asyncio.ensure_future(sent.read() if method == "SolveStream" else _await(sent))
        while not engine._flights:
            await asyncio.sleep(0.001)
        sent.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await until(lambda: not (engine._flights or engine._turns.n_held))
        pool.held.set()
        return len(engine._flights) + engine._turns.n_held

    assert ask.service(leave()) == 0


async def _await(sent: Any) -> Any:
    return await sent


def test_a_watcher_that_leaves_is_forgotten(ask):
    async def leave() -> int:
        engine = ask.service.engine
        pool: Any = engine._pool
        pool.held.clear()
        job = await ask.a_submit("sweep", {"n": 4005})
        stub = planner_pb2_grpc.PlannerStub(ask.service.channel)
        sent = stub.WatchJob(
            pb.WatchJobRequest(job_id=job["job_id"]),
            metadata=(("authorization", f"Bearer {SUE}"),),
        )
        assert (await sent.read()).state == pb.Job.PENDING
        assert engine._n_watchers.total() == 1
        sent.cancel()
        await until(lambda: not engine._n_watchers.total())
        pool.held.set()
        return engine._n_watchers.total()

    assert ask.service(leave()) == 0


# Operations


def test_a_request_id_comes_back_and_stands_in_the_logs(ask):
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    _, told = ask.service(
        ask.ask(
            "Solve",
            pb.SolveRequest(json='{"n": 4006, "s": "secret"}'),
            more={"x-request-id": "mine-1"},
        )
    )
    refused(ask, "GetJob", pb.GetJobRequest(job_id="none"), more={"x-request-id": "a b"})
    # A line is written once the refusal is on its way, which may be there before it.
    ask.service(until(lambda: stream.getvalue().count("planner.access") >= 2))
    assert told["x-request-id"] == "mine-1"
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    lines = [line for line in lines if line["logger"] == "planner.access"]
    first, second = lines
    assert (first["request_id"], first["operation"], first["status"]) == ("mine-1", "solve", "OK")
    assert (first["caller"], first["address"]) == ("sue", "127.0.0.1")
    assert second["request_id"] != "a b"
    assert (second["status"], second["code"]) == ("NOT_FOUND", "unknown-job")
    assert second["job_id"] == "none"
    assert "secret" not in stream.getvalue()
    assert SUE not in stream.getvalue()


def test_metrics_tell_calls_by_transport(ask):
    ask.call("solve", {"n": 4007})
    refused(ask, "GetJob", pb.GetJobRequest(job_id="none"))
    lines = (
        'planner_requests_total{operation="solve",status="OK",transport="grpc"}',
        'planner_requests_total{operation="getJob",status="NOT_FOUND",transport="grpc"}',
    )

    def are_told() -> bool:  # counted once the answer is on its way
        text = ask.service.metrics.text().decode()
        return all(line in text for line in lines)

    ask.service(until(are_told))


def test_a_configured_tracer_gets_a_span_for_every_call(ask, monkeypatch):
    seen: dict[str, Any] = {}

    class Span:
        def __enter__(self) -> "Span":
            return self

        def __exit__(self, *error: Any) -> None: ...

        def set_attribute(self, name: str, value: Any) -> None:
            seen[name] = value

    class Tracer:
        def start_as_current_span(self, name: str, **named: Any) -> Span:
            seen["name"] = name
            return Span()

    monkeypatch.setattr(grpc_server, "configured_tracer", Tracer)
    engine = ask.service.engine

    async def asked() -> None:
        server = bound(engine, Auth(), SETTINGS, Metrics(engine), GrpcEndpoint("127.0.0.1:0"))
        await server.start()
        async with grpc.aio.insecure_channel(server.address) as channel:
            await planner_pb2_grpc.PlannerStub(channel).GetVersion(pb.GetVersionRequest())
        await server.stop(0.5)

    ask.service(asked())
    assert (seen["name"], seen["rpc.method"]) == ("getVersion", "GetVersion")
    assert seen["rpc.grpc.status_code"] == 0


def test_health_says_what_readyz_says_and_needs_no_token(ask, monkeypatch):
    async def status(name: str) -> int:
        stub = health_pb2_grpc.HealthStub(ask.service.channel)
        return (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status

    async def in_time(expected: int) -> None:
        while await status("planner.v1.Planner") != expected:
            await asyncio.sleep(0.02)

    serving = health_pb2.HealthCheckResponse
    assert ask.service(status("")) == serving.SERVING
    monkeypatch.setattr(grpc_server, "READY_S", 0.02)
    monkeypatch.setattr(ask.service.engine, "ready", _not_ready)
    ask.service(in_time(serving.NOT_SERVING))
    monkeypatch.undo()
    ask.service(in_time(serving.SERVING))


def test_streams_that_stay_open_ask_for_a_token(ask):
    async def statuses(token: str) -> list[str]:
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        stubs: Any = reflection_pb2_grpc.ServerReflectionStub(ask.service.channel)
        found = []
        for stream in (
            stubs.ServerReflectionInfo(iter([asked]), metadata=metadata, timeout=PATIENCE_S),
            health_pb2_grpc.HealthStub(ask.service.channel).Watch(
                health_pb2.HealthCheckRequest(), metadata=metadata, timeout=PATIENCE_S
            ),
        ):
            try:
                await stream.read()
                stream.cancel()
                found.append("OK")
            except grpc.aio.AioRpcError as error:
                found.append(error.code().name)
        return found

    assert ask.service(statuses(SUE)) == ["OK", "OK"]
    for token in ("", "x" * 20):
        assert ask.service(statuses(token)) == ["UNAUTHENTICATED"] * 2


async def _not_ready() -> None:
    raise Refusal(503, "draining", "", "")


def test_the_example_of_the_docs_solves_through_reflection(ask):
    text = (ROOT / "docs" / "service.md").read_text()
    block = re.search(r"^    import grpc\n(?:    .*\n|\n)+", text, re.MULTILINE)
    assert block is not None
    lines = [line[4:] for line in block[0].splitlines()]
    engine = ask.service.engine

    async def served() -> str:
        server = bound(engine, Auth(), SETTINGS, Metrics(engine), GrpcEndpoint("127.0.0.1:0"))
        await server.start()
        code = "\n".join(lines).replace("127.0.0.1:8643", server.address)
        code = code.replace("print(", "shown.append(").replace(".answer.plans[0].plan_id", "")
        shown: list[Any] = []
        # The calls here are stand-ins that read other fields.
        await asyncio.to_thread(exec, code + "\nchannel.close()", {"shown": shown})
        await server.stop(0.5)
        return str(shown[0])

    assert "square" in ask.service(served())


def test_reflection_is_there_in_both_versions(ask):
    from grpc_reflection.v1alpha import reflection_pb2

    asked = (
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(
            file_containing_symbol="grpc.reflection.v1.ServerReflection"
        ),
    )
    engine = ask.service.engine

    async def told(version: str) -> tuple[list[str], int]:
        server = bound(engine, Auth(), SETTINGS, Metrics(engine), GrpcEndpoint("127.0.0.1:0"))
        await server.start()
        async with grpc.aio.insecure_channel(server.address) as channel:
            method = channel.stream_stream(
                f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                reflection_pb2.ServerReflectionRequest.SerializeToString,
                reflection_pb2.ServerReflectionResponse.FromString,
            )
            names, file = [answer async for answer in method(iter(asked))]
        await server.stop(0.5)
        services = [each.name for each in names.list_services_response.service]
        return services, len(file.file_descriptor_response.file_descriptor_proto)

    old, new = ask.service(told("v1alpha")), ask.service(told("v1"))
    assert old == new
    assert set(old[0]) == {
        "planner.v1.Planner",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    assert new[1] == 1


def test_health_lists_every_name(ask):
    from grpc_health.v1 import health_pb2

    from service.rpc.standard_services import HealthListResponse

    engine = ask.service.engine

    async def listed() -> dict[str, int]:
        server = bound(engine, Auth(), SETTINGS, Metrics(engine), GrpcEndpoint("127.0.0.1:0"))
        await server.start()
        async with grpc.aio.insecure_channel(server.address) as channel:
            method = channel.unary_unary(
                "/grpc.health.v1.Health/List", None, HealthListResponse.FromString
            )
            answer = await method(b"")
        await server.stop(0.5)
        return {name: each.status for name, each in answer.statuses.items()}

    serving = health_pb2.HealthCheckResponse.SERVING
    assert ask.service(listed()) == {"": serving, "planner.v1.Planner": serving}


def test_a_second_authorization_in_the_metadata_is_refused():
    two = (("authorization", "Bearer a"), ("x", "y"), ("authorization", "Bearer b"))
    with pytest.raises(Refusal) as found:
        authorization_of(two)
    assert found.value.status == 400
    assert authorization_of(two[:2]) == "Bearer a"
    assert authorization_of(()) is None


# Starting


def test_a_port_in_use_is_said(service):
    async def again() -> None:
        with pytest.raises(UsageError, match="cannot listen"):
            bound(
                service.engine,
                Auth(),
                SETTINGS,
                service.metrics,
                GrpcEndpoint(service.server.address),
            )

    service(again())


def test_tls_asks_for_certificates_of_the_given_authority(service, tmp_path):
    def openssl(*args: str) -> None:
        subprocess.run(["openssl", *args], check=True, capture_output=True, cwd=tmp_path)

    openssl(
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-keyout",
        "key.pem",
        "-out",
        "cert.pem",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
    )
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    authority, secret = cert.read_bytes(), key.read_bytes()

    async def version(address: str, credentials: Any) -> str:
        async with grpc.aio.secure_channel(address, credentials) as channel:
            stub = planner_pb2_grpc.PlannerStub(channel)
            return str((await stub.GetVersion(pb.GetVersionRequest(), timeout=PATIENCE_S)).version)

    async def served() -> None:
        for client_ca in (None, cert):
            serving = Serving(tls_cert=cert, tls_key=key, tls_client_ca=client_ca)
            server = bound(
                service.engine,
                Auth(),
                SETTINGS,
                service.metrics,
                GrpcEndpoint("127.0.0.1:0", credentials_of(serving, Certificates(serving))),
            )
            await server.start()
            known = grpc.ssl_channel_credentials(authority, secret, authority)
            assert await version(server.address, known)
            unknown = version(server.address, grpc.ssl_channel_credentials(authority))
            if client_ca is None:
                assert await unknown
            else:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await unknown
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            await server.stop(0.5)

    service(served())
    assert credentials_of(Serving(), Certificates(Serving())) is None


def test_a_start_listens_where_it_is_told(service):
    async def started() -> None:
        for tries_left in reversed(range(9)):
            port = free_port()
            try:
                server = await start_server(
                    service.engine, Serving(grpc_port=port), Auth(), service.metrics
                )
                break
            except UsageError:  # another program was faster
                assert tries_left
        assert server.address == f"127.0.0.1:{port}"
        await server.stop(0.5)

    service(started())
    assert grpc_server.address_to_listen(Serving(host="::1")) == "[::1]:8643"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_check_finds_a_grpc_port_in_use(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        serving = Serving(port=free_port(), grpc_port=taken.getsockname()[1], data=tmp_path)
        said: list[str] = []
        with pytest.raises(UsageError, match="in use"):
            asyncio.run(check_setup(serving, said.append))
    assert said[-1].startswith("address: ")


def in_time(stub: Any, asked: Any) -> str:
    """Return the id of the best so far; a busy machine may miss a short deadline."""
    for deadline_s in (3.0, 10.0):
        try:
            return str(stub.Solve(asked, timeout=deadline_s).answer.result_id)
        except grpc.RpcError as late:
            if late.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
    return str(stub.Solve(asked, timeout=PATIENCE_S).answer.result_id)


@pytest.mark.service
def test_a_process_answers_over_both_transports_and_drains(tmp_path):
    port = free_port()
    process, address = started(tmp_path, "--grpc-port", str(port))
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub, health = (
                planner_pb2_grpc.PlannerStub(channel),
                health_pb2_grpc.HealthStub(channel),
            )
            question = {"model": "llama3-8b", "cluster": "h100-x8", "top": 1}
            over_http = ask_http(address, "/v1/plans:solve", question)[1]
            asked = typed("solve", question)
            assert to_dict(stub.Solve(asked, timeout=PATIENCE_S).answer) == over_http
            asked.delivery.form = pb.Delivery.FORM_JSON
            assert json.loads(stub.Solve(asked, timeout=PATIENCE_S).json) == over_http
            # A deadline that the whole search may miss: an answer comes in time all the same.
            large = typed("solve", {"model": "gpt3-175b", "cluster": "a100-x1024"})
            assert in_time(stub, large)
            told = [
                each.WhichOneof("event") for each in stub.SolveStream(large, timeout=PATIENCE_S)
            ]
            assert told[-1] == "response"
            job = stub.Scale(typed("scale", {**JOB, "points": 2}), timeout=PATIENCE_S)
            states = [each.state for each in stub.WatchJob(pb.WatchJobRequest(job_id=job.job_id))]
            assert states[-1] == pb.Job.SUCCEEDED
            result = stub.GetResult(pb.GetResultRequest(job_id=job.job_id), timeout=PATIENCE_S)
            assert to_dict(result.answer)["rows"]
            asked_health = health_pb2.HealthCheckRequest(service="planner.v1.Planner")
            assert health.Check(asked_health).status == health_pb2.HealthCheckResponse.SERVING
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        assert "Traceback" not in errors
        assert "Exception ignored" not in errors
        lines = [json.loads(line) for line in errors.splitlines()]
        assert lines[-1]["message"] == "stopped"
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.7:51234", "10.0.0.7"),
        ("ipv6:%5B::1%5D:51234", "::1"),
        ("ipv6:[fe80::2]:9", "fe80::2"),
        ("unix:/run/x", ""),
    ],
)
def test_the_address_of_a_peer_is_read(peer, address):
    assert address_of(peer) == address


# Waiting for a job

METHOD_CALLS = {"Scale": "scale", "BatchSolve": "batch-solve"}


@pytest.mark.parametrize("method", ["Scale", "BatchSolve"])
def test_a_job_is_waited_for_where_the_caller_says_how_long(service, ask, method):
    message = getattr(pb, f"{method}Request")(json=json.dumps({"n": 31}))

    def waited(**more: str) -> tuple[Any, dict[str, Any]]:
        return service(ask.ask(method, message, more=more))

    service.engine._job_pool.held.clear()
    late, told = waited(prefer="wait=0.05")
    assert (late.call, late.HasField("result")) == (METHOD_CALLS[method], False)
    assert late.job_id
    assert told["preference-applied"] == "wait"
    service.engine._job_pool.held.set()
    first, told = waited(prefer="wait=20")
    assert (first.state, first.complete, first.job_id) == (pb.Job.SUCCEEDED, True, "")
    assert json.loads(first.result.json)["square"] == 961
    assert told["etag"] == f'"{first.etag}"' == f'"{first.result.etag}"'
    n_jobs = service.engine.snapshot().counts["jobs_accepted"]
    again, told = waited(prefer="wait=1")
    assert again.result == first.result
    assert told["cache-status"] == "planner; hit"
    assert service.engine.snapshot().counts["jobs_accepted"] == n_jobs  # from memory
    known, _ = waited(prefer="wait=1", **{"if-none-match": first.etag})
    assert (known.etag, known.result.WhichOneof("outcome")) == (first.etag, None)
    plain, told = waited()  # who does not wait gets what it always got
    assert (bool(plain.job_id), plain.HasField("result")) == (True, False)
    assert "preference-applied" not in told


def test_an_answer_that_others_waited_for_is_not_for_every_role(service, ask):
    message = pb.ScaleRequest(json=json.dumps({"n": 37}))
    wait = {"prefer": "wait=20"}
    assert service(ask.ask("Scale", message, more=wait))[0].HasField("result")
    ann = OverGrpc(service, TOKENS["ann"][1])
    caught = refused(ann, "Scale", message, more=wait)
    assert caught.seen == (403, "not-allowed")


def test_a_wait_ends_with_the_deadline_of_the_call(service, ask):
    service.engine._job_pool.held.clear()
    message = pb.ScaleRequest(json=json.dumps({"n": 41}))
    try:
        job, _ = service(ask.ask("Scale", message, more={"prefer": "wait=600"}, deadline_s=3.0))
    finally:
        service.engine._job_pool.held.set()
    assert (bool(job.job_id), job.HasField("result")) == (True, False)


def test_a_sweep_is_not_waited_for(service, ask):
    message = pb.SweepRequest(json=json.dumps({"n": 43}))
    job, told = service(ask.ask("Sweep", message, more={"prefer": "wait=20"}))
    assert (bool(job.job_id), job.HasField("result")) == (True, False)
    assert "preference-applied" not in told
