"""planner.proto: its stubs are current, it breaks nobody, and it says what the schemas say."""

import copy
import json
from typing import Any, get_args

import pytest
from google.protobuf import descriptor_pb2, json_format
from pydantic import BaseModel

from costmodels.axes import AXES
from service.handlers import answers, schemas
from service.handlers.calls import CALLS
from service.proto.generate import BASELINE, FOLDER, generated, proto_breaking_changes
from service.proto.planner.v1 import planner_pb2 as pb
from service.rest.operations import OPERATIONS as HTTP_OPERATIONS
from service.rpc.gate import CALL_OF, OPERATIONS, SERVICE


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    return json.loads((FOLDER / BASELINE).read_text())


@pytest.fixture(scope="module")
def current() -> dict[str, str]:
    return generated()


def test_the_committed_files_are_those_of_the_proto_file(current):
    for name, text in current.items():
        assert (FOLDER / name).read_text() == text, f"{name}: scripts/proto writes it"
    assert len(current) == 4


def test_the_proto_file_does_not_break_who_uses_the_committed_interface(committed, current):
    assert proto_breaking_changes(committed, json.loads(current[BASELINE])) == []


def test_the_stub_in_use_is_the_committed_interface(committed):
    mine = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(mine)
    assert json_format.MessageToDict(mine) == without_json_names(committed)  # a stub has none


def without_json_names(data: Any) -> Any:
    if isinstance(data, list):
        return [without_json_names(each) for each in data]
    if not isinstance(data, dict):
        return data
    return {key: without_json_names(value) for key, value in data.items() if key != "jsonName"}


# What breaks callers


def place_of(document: Any, path: tuple[Any, ...]) -> Any:
    """Return what a path leads to: keys, and names of the items of lists."""
    for step in path:
        if isinstance(document, list):
            document = next(each for each in document if each["name"] == step)
        else:
            document = document[step]
    return document


def changed(document: dict[str, Any], path: tuple[Any, ...], **values: Any) -> dict[str, Any]:
    """Return a document with other values at a place; None takes the place out of its list."""
    out = copy.deepcopy(document)
    if not values:
        place_of(out, path[:-1]).remove(place_of(out, path))
        return out
    place = place_of(out, path)
    for key, value in values.items():
        if value is None:
            del place[key]
        else:
            place[key] = value
    return out


SOLVE = ("service", "Planner", "method", "Solve")
REQUEST = ("messageType", "SolveRequest")
TOP = (*REQUEST, "field", "top")
STATE = ("messageType", "Job", "enumType", "State")


@pytest.mark.parametrize(
    ("path", "values", "said"),
    [
        ((), {"package": "planner.v2"}, "the package is called planner.v2"),
        (("service", "Planner"), {}, "the service Planner is gone"),
        (SOLVE, {}, "Planner.Solve is gone"),
        (SOLVE, {"name": "Ask"}, "Planner.Solve is gone"),
        (SOLVE, {"inputType": ".planner.v1.PlanOf"}, "Solve takes .planner.v1.PlanOf"),
        (SOLVE, {"outputType": ".planner.v1.Job"}, "Solve returns .planner.v1.Job"),
        (SOLVE, {"serverStreaming": True}, "Solve is a stream: True"),
        (REQUEST, {}, "the message SolveRequest is gone"),
        (TOP, {}, "SolveRequest.top = 11 is gone"),
        (TOP, {"number": 99}, "SolveRequest.top = 11 is gone"),
        (TOP, {"name": "most"}, "top = 11 is called most"),
        (TOP, {"type": "TYPE_INT32"}, "top is TYPE_INT32"),
        (TOP, {"label": "LABEL_REPEATED"}, "top is LABEL_REPEATED"),
        (TOP, {"proto3Optional": None}, "top is optional: False"),
        (TOP, {"jsonName": "most"}, "top is in JSON most"),
        ((*REQUEST, "field", "model"), {"typeName": ".planner.v1.Text"}, "is .planner.v1.Text"),
        (("messageType", "SolveResponse", "field", "job"), {"oneofIndex": None}, "oneof none"),
        ((*STATE, "value", "FAILED"), {}, "Job.State.FAILED = 4 is gone"),
        ((*STATE, "value", "FAILED"), {"number": 9}, "Job.State.FAILED = 4 is gone"),
        (STATE, {}, "the enumeration Job.State is gone"),
        ((*REQUEST, "nestedType", "PinsEntry"), {}, "SolveRequest.PinsEntry is gone"),
    ],
)
def test_changes_that_break_callers_are_found(committed, path, values, said):
    faults = proto_breaking_changes(committed, changed(committed, path, **values))
    assert any(said in fault for fault in faults), faults


def test_numbers_and_names_that_were_reserved_stay_so(committed):
    old = changed(
        committed,
        REQUEST,
        reservedRange=[{"start": 50, "end": 52}],
        reservedName=["layers"],
    )
    assert proto_breaking_changes(committed, old) == []
    new = changed(old, TOP, name="top")
    place_of(new, (*REQUEST, "field")).append(
        {"name": "layers", "number": 51, "label": "LABEL_OPTIONAL", "type": "TYPE_INT64"}
    )
    faults = proto_breaking_changes(old, new)
    assert len(faults) == 2
    assert "51 was reserved" in faults[0]
    assert "layers was reserved" in faults[1]


def test_additions_break_nobody(committed):
    new = copy.deepcopy(committed)
    place_of(new, (*REQUEST, "field")).append(
        {"name": "more", "number": 60, "label": "LABEL_OPTIONAL", "type": "TYPE_STRING"}
    )
    place_of(new, ("service", "Planner", "method")).append(
        {"name": "More", "inputType": ".planner.v1.Text", "outputType": ".planner.v1.Text"}
    )
    place_of(new, (*STATE, "value")).append({"name": "LOST", "number": 7})
    new["messageType"].append({"name": "Added"})
    assert proto_breaking_changes(committed, new) == []


# One set of schemas

DELIVERED = {"json", "delivery"}


def names(model: type[BaseModel]) -> set[str]:
    return {each.alias or name for name, each in model.model_fields.items()}


def request_messages() -> list[tuple[type[BaseModel], Any]]:
    found = [
        (CALLS[CALL_OF[method.name]].request, method.input_type)
        for method in SERVICE.methods
        if method.name in CALL_OF
    ]
    return [*found, (schemas.PlanOf, pb.PlanOf.DESCRIPTOR)]


@pytest.mark.parametrize(
    ("model", "message"), request_messages(), ids=lambda each: getattr(each, "name", "")
)
def test_requests_have_the_fields_of_the_schemas(model, message):
    assert set(message.fields_by_name) - DELIVERED == names(model)
    for name, each in model.model_fields.items():
        field = message.fields_by_name[each.alias or name]
        if field.message_type is None and not field.is_repeated and not field.has_presence:
            # Not to send it is to send its zero: that must mean the same to the schema.
            assert each.default == field.default_value, field.full_name


@pytest.mark.parametrize(
    ("model", "message"),
    [(schemas.WebhookBody, pb.CreateWebhookRequest), (schemas.JobWebhook, pb.JobWebhook)],
    ids=lambda each: each.__name__,
)
def test_webhooks_are_asked_for_with_the_fields_of_the_schemas(model, message):
    assert set(message.DESCRIPTOR.fields_by_name) == names(model)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (answers.SolveAnswer, pb.SolveAnswer),
        (answers.PlanBody, pb.Plan),
        (answers.LayoutBody, pb.Layout),
        (answers.Memory, pb.Memory),
        (answers.TransferBody, pb.Transfer),
        (answers.Warned, pb.Warned),
        (answers.Rejected, pb.Rejected),
        (answers.Closest, pb.Closest),
        (answers.Relaxed, pb.Relaxed),
        (answers.JobAnswer, pb.Job),
        (answers.JobsAnswer, pb.ListJobsResponse),
        (answers.NewWebhookAnswer, pb.Webhook),
        (answers.WebhooksAnswer, pb.ListWebhooksResponse),
        (answers.DeliveryAnswer, pb.WebhookDelivery),
        (answers.DeliveriesAnswer, pb.ListDeliveriesResponse),
        (answers.PageAnswer, pb.Page),
        (answers.VersionAnswer, pb.GetVersionResponse),
        (answers.UsageAnswer, pb.Usage),
        (answers.QuotaAnswer, pb.Quota),
        (answers.QuotaExceededAnswer, pb.QuotaExceeded),
        (answers.ProblemAnswer, pb.Problem),
    ],
    ids=lambda each: each.__name__,
)
def test_answers_have_the_fields_of_the_schemas(model, message):
    own = names(model)
    if model is answers.LayoutBody:  # axes that are off in most layouts are in `more`
        own -= {axis.name for axis in AXES.values() if not axis.is_always_written}
    if model is answers.JobAnswer:  # over HTTP a body is either a job or an answer
        own |= {"result"}
    assert set(message.DESCRIPTOR.fields_by_name) - {"more"} == own


def test_states_are_those_of_the_schema():
    states = set(pb.Job.State.keys()) - {"STATE_UNSPECIFIED"}
    assert states == set(get_args(answers.JobState))


def test_every_operation_over_http_has_a_method_of_its_name_and_the_other_way_round():
    over_http = {each.id for each in HTTP_OPERATIONS if each.role} - {"getMetrics"}
    assert set(OPERATIONS.values()) - {"solveStream"} == over_http
    assert {call for name, call in CALL_OF.items() if name in OPERATIONS} == CALLS.keys()


def test_the_jobs_of_all_calls_can_be_submitted():
    of = pb.SubmitJobRequest.DESCRIPTOR.oneofs_by_name["request"]
    assert {field.name.replace("_", "-") for field in of.fields} == CALLS.keys()
    for field in of.fields:
        method = next(n for n, call in CALL_OF.items() if call == field.name.replace("_", "-"))
        assert field.message_type is SERVICE.methods_by_name[method].input_type
