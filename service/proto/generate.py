"""The stubs of planner.proto as scripts/proto writes them, and what would break who uses them.

The description of the interface (`descriptor.json`, the FileDescriptorProto as JSON) stands beside
the stubs: every change of the interface is a line in it, and it is what changes are held against.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "planner" / "v1"
ROOT = Path(__file__).parent
SOURCE = "planner/v1/planner.proto"
BASELINE = "descriptor.json"
Data = dict[str, Any]


def generated() -> dict[str, str]:
    """Return the text of every file that is made of planner.proto, by name, with the dev tools."""
    from google.protobuf import descriptor_pb2, json_format
    from grpc_tools import _proto as well_known

    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        described = out / "described"
        # A process of its own: the compiler does not bear with a gRPC server in the same one.
        subprocess.run(
            [
                sys.executable,
                "-m",
                "grpc_tools.protoc",
                f"-I{ROOT}",
                f"-I{Path(well_known.__path__[0])}",
                f"--python_out={out}",
                f"--pyi_out={out}",
                f"--grpc_python_out={out}",
                f"--descriptor_set_out={described}",
                SOURCE,
            ],
            check=True,
        )
        made = {path.name: path.read_text() for path in (out / "planner/v1").iterdir()}
        files = descriptor_pb2.FileDescriptorSet.FromString(described.read_bytes())
    # The package planner is another one in this project: import the stub by its place in it.
    for each in made:
        made[each] = re.sub(
            r"^from planner\.v1 import",
            "from service.proto.planner.v1 import",
            made[each],
            flags=re.MULTILINE,
        )
    data = json_format.MessageToDict(files.file[0])
    made[BASELINE] = json.dumps(data, indent=1) + "\n"
    return made


def proto_breaking_changes(old: Data, new: Data) -> list[str]:
    """Return what a program that was built with `old` would stumble over in `new`.

    Gone or changed: packages, services, methods and their messages, messages, fields by number
    with their names, types, cardinality and presence, oneofs, values of enumerations. Numbers and
    names that were reserved must stay so.
    """
    if old.get("package") != new.get("package"):
        return [f"the package is called {new.get('package')}"]
    return [*_services(old, new), *_messages(old, new, ""), *_enums(old, new, "")]


def _by_name(data: Mapping[str, Any], key: str) -> dict[str, Data]:
    return {each["name"]: each for each in data.get(key, ())}


def _services(old: Data, new: Data) -> Iterator[str]:
    services = _by_name(new, "service")
    for name, service in _by_name(old, "service").items():
        if name not in services:
            yield f"the service {name} is gone"
            continue
        methods = _by_name(services[name], "method")
        for method, was in _by_name(service, "method").items():
            now = methods.get(method)
            if now is None:
                yield f"{name}.{method} is gone"
                continue
            for key, what in (
                ("inputType", "takes"),
                ("outputType", "returns"),
                ("clientStreaming", "reads a stream:"),
                ("serverStreaming", "is a stream:"),
            ):
                if was.get(key) != now.get(key):
                    yield f"{name}.{method} {what} {now.get(key, False)}"


def _messages(old: Data, new: Data, inside: str, key: str = "messageType") -> Iterator[str]:
    messages = _by_name(new, key)
    for name, was in _by_name(old, key).items():
        where, now = inside + name, messages.get(name)
        if now is None:
            yield f"the message {where} is gone"
            continue
        yield from _fields(was, now, where)
        yield from _messages(was, now, f"{where}.", "nestedType")
        yield from _enums(was, now, f"{where}.")


def _oneof(message: Data, field: Data) -> str:
    """Return the oneof that a field is of; empty for that which only says that it is optional."""
    if "oneofIndex" not in field or field.get("proto3Optional"):
        return ""
    return str(message["oneofDecl"][field["oneofIndex"]]["name"])


def _fields(was: Data, now: Data, where: str) -> Iterator[str]:
    fields = {field["number"]: field for field in now.get("field", ())}
    for field in was.get("field", ()):
        name, number = field["name"], field["number"]
        other = fields.get(number)
        if other is None:
            yield f"{where}.{name} = {number} is gone"
            continue
        if other["name"] != name:
            yield f"{where}.{name} = {number} is called {other['name']}"
            continue
        for key, what in (
            ("type", "is"),
            ("typeName", "is"),
            ("label", "is"),
            ("jsonName", "is in JSON"),
            ("proto3Optional", "is optional:"),
        ):
            if field.get(key) != other.get(key):
                yield f"{where}.{name} {what} {other.get(key, False)}"
        if _oneof(was, field) != _oneof(now, other):
            yield f"{where}.{name} is of the oneof {_oneof(now, other) or 'none'}"
    # A field that takes a number that was reserved is read as the old one by who has it.
    for span in was.get("reservedRange", ()):
        for number in range(span["start"], min(span["end"], span["start"] + 1_000)):
            if number in fields:
                yield f"{where}: the number {number} was reserved, and is {fields[number]['name']}"
    used = {field["name"] for field in now.get("field", ())}
    for name in sorted(used & set(was.get("reservedName", ()))):
        yield f"{where}: the name {name} was reserved"


def _enums(old: Data, new: Data, inside: str) -> Iterator[str]:
    enums = _by_name(new, "enumType")
    for name, was in _by_name(old, "enumType").items():
        where, now = inside + name, enums.get(name)
        if now is None:
            yield f"the enumeration {where} is gone"
            continue
        values = {value["name"]: value.get("number", 0) for value in now["value"]}
        for value in was["value"]:
            number = value.get("number", 0)
            if values.get(value["name"]) != number:
                yield f"{where}.{value['name']} = {number} is gone"
