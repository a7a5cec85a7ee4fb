"""Ask a service with the Python client, and through gRPC with nothing but its reflection.

    python ask.py http://127.0.0.1:8642 127.0.0.1:8643 '{"model": "llama3-70b", ...}'

The second way needs no file of this repository: the server says which services it has and what
their messages are.
"""

import json
import os
import sys
from typing import Any

TOKEN = os.environ.get("PLANNER_TOKEN", "")


def show(plan: dict[str, Any]) -> None:
    """Print one plan."""
    layout = " ".join(f"{axis}{plan['layout'][axis]}" for axis in ("tp", "pp", "dp", "cp"))
    print(f"  plan {plan['plan_id']}: {layout}, {plan['step_time_s']:.3f} s a step")


def by_client(url: str, question: dict[str, Any]) -> dict[str, Any]:
    """Return the first plan, asked for with the client."""
    from planner.client import Client

    with Client(url, token=TOKEN) as service:
        answer: dict[str, Any] = service.solve(**question)
        return answer["plans"][0]


def by_reflection(target: str, question: dict[str, Any]) -> dict[str, Any]:
    """Return the first plan, asked for through gRPC in messages that the server describes."""
    import grpc
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.json_format import MessageToDict, ParseDict
    from google.protobuf.message_factory import GetMessageClass
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
        ProtoReflectionDescriptorDatabase,
    )

    class WithToken(grpc.UnaryUnaryClientInterceptor, grpc.StreamStreamClientInterceptor):  # type: ignore[misc]  # grpc has no types
        def intercept(self, go: Any, details: Any, request: Any) -> Any:
            if TOKEN:
                token = ("authorization", f"Bearer {TOKEN}")
                details = details._replace(metadata=[*(details.metadata or ()), token])
            return go(details, request)

        intercept_unary_unary = intercept_stream_stream = intercept

    with grpc.insecure_channel(target) as plain:
        channel = grpc.intercept_channel(plain, WithToken())
        described = ProtoReflectionDescriptorDatabase(channel)
        print(f"  services: {', '.join(described.get_services())}")
        planner = DescriptorPool(described).FindServiceByName("planner.v1.Planner")
        solve = planner.FindMethodByName("Solve")
        given = {**question, **{x: {"name": question[x]} for x in ("model", "cluster")}}
        request = ParseDict(given, GetMessageClass(solve.input_type)())
        ask = channel.unary_unary(
            "/planner.v1.Planner/Solve",
            request_serializer=type(request).SerializeToString,
            response_deserializer=GetMessageClass(solve.output_type).FromString,
        )
        answer = ask(request, timeout=60.0)
        found = MessageToDict(answer, preserving_proto_field_name=True)
        plan: dict[str, Any] = found["answer"]["plans"][0]
        return plan


if __name__ == "__main__":
    if sys.argv[1:] == ["--show"]:
        show(json.load(sys.stdin)["plans"][0])
    else:
        url, target, text = sys.argv[1:]
        print("Python client:")
        show(by_client(url, json.loads(text)))
        print("gRPC reflection:")
        show(by_reflection(target, json.loads(text)))
