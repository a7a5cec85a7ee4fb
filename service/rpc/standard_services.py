"""Services of gRPC that its Python packages have in an older form: reflection v1, Health/List.

The messages of grpc.reflection.v1 are those of v1alpha under another name, byte for byte
(grpc/reflection/v1/reflection.proto of github.com/grpc/grpc-proto). `List` of grpc.health.v1 came
with its release of 2025: it returns the status of every name (grpc/health/v1/health.proto).
"""

from collections.abc import Callable, Iterable
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

ALPHA, V1 = "grpc.reflection.v1alpha", "grpc.reflection.v1"
REFLECTION = f"{V1}.ServerReflection"


def _renamed() -> descriptor_pb2.FileDescriptorProto:
    """Return the description of reflection v1."""
    file = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    file.name, file.package = "grpc/reflection/v1/reflection.proto", V1
    for message in file.message_type:
        for field in (each for each in message.field if each.type_name):
            field.type_name = field.type_name.replace(f".{ALPHA}.", f".{V1}.")
    for service in file.service:
        for method in service.method:
            method.input_type = method.input_type.replace(f".{ALPHA}.", f".{V1}.")
            method.output_type = method.output_type.replace(f".{ALPHA}.", f".{V1}.")
    return file


def _statuses() -> Any:
    """Return the class of `HealthListResponse`: a map from names to statuses."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="planner/health_list.proto",
        package="planner.health",
        syntax="proto3",
        dependency=[health_pb2.DESCRIPTOR.name],
    )
    message = file.message_type.add(name="HealthListResponse")
    message.field.add(
        name="statuses",
        number=1,
        label=kinds.LABEL_REPEATED,
        type=kinds.TYPE_MESSAGE,
        type_name=".planner.health.HealthListResponse.StatusesEntry",
    )
    entry = message.nested_type.add(name="StatusesEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=kinds.LABEL_OPTIONAL, type=kinds.TYPE_STRING)
    entry.field.add(
        name="value",
        number=2,
        label=kinds.LABEL_OPTIONAL,
        type=kinds.TYPE_MESSAGE,
        type_name=".grpc.health.v1.HealthCheckResponse",
    )
    pool = descriptor_pool.Default()
    pool.Add(file)
    found = pool.FindMessageTypeByName("planner.health.HealthListResponse")
    return message_factory.GetMessageClass(found)


descriptor_pool.Default().Add(_renamed())
HealthListResponse: Any = _statuses()


def reflection_v1(names: Iterable[str]) -> Any:
    """Return the handler of reflection v1, which tells of services by these names."""
    servicer = reflection.aio.ReflectionServicer(names)
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(REFLECTION, {"ServerReflectionInfo": method})


def health_list(statuses: Callable[[], dict[str, Any]]) -> Any:
    """Return the handler of `List`; `statuses` gives the status of every name."""

    async def every(request: Any, context: Any) -> Any:
        response = HealthListResponse()
        for name, status in statuses().items():
            response.statuses[name].status = status
        return response

    method = grpc.unary_unary_rpc_method_handler(
        every,
        health_pb2.HealthCheckRequest.FromString,  # its own is empty, and so it reads
        lambda response: response.SerializeToString(),
    )
    return grpc.method_handlers_generic_handler(health.SERVICE_NAME, {"List": method})
