"""One job over several pools through the calls of the service, and through gRPC's messages."""

import pytest

import planner
from service.handlers.calls import call
from service.handlers.problems import Refusal
from service.handlers.running_call import RunningCall
from service.proto.planner.v1 import planner_pb2 as pb
from service.rpc.convert import message_of, to_dict
from tests.planner.solver.together.tiny import MODEL, NEW, OLD, PINS, cluster

BODY = {
    "model": MODEL,
    "cluster": cluster(NEW, OLD),
    "pins": PINS,
    "top": 3,
    "pools": "together",
}


@pytest.fixture(scope="module")
def answer():
    return call("solve", BODY)


def test_the_answer_is_that_of_the_library(answer):
    result = planner.solve(MODEL, cluster(NEW, OLD), pins=PINS, top=3, pools="together")
    assert answer["together"] == result.to_json()["together"]
    assert answer["plans"] == result.to_json()["plans"]


def test_answers_pass_through_messages(answer):
    assert to_dict(message_of(answer, pb.SolveAnswer)) == answer
    apart = call("solve", {**BODY, "pools": "apart"})
    assert "together" not in apart
    assert to_dict(message_of(apart, pb.SolveAnswer)) == apart


def test_files_of_a_plan_over_several_pools(answer):
    able = next(x for x in answer["together"]["plans"] if x["runs_on"])
    body = {"result": answer, "plan": f"t{able['rank']}", "for": ["megatron", "deepspeed"]}
    files = call("emit", body)
    assert files["plan_id"] == able["plan_id"]
    assert {"megatron.sh", "nodes.txt"} <= set(files["files"])
    assert list(files["refused"]) == ["deepspeed"]


def test_other_calls_say_that_the_plan_uses_several_pools(answer):
    with pytest.raises(Refusal) as caught:
        call("explain", {"result": answer, "plan": "t1"}, RunningCall())
    assert "uses several pools" in caught.value.detail


def test_a_broken_answer_is_refused(answer):
    broken = {**answer, "together": {"plans": [{}]}}
    with pytest.raises(Refusal) as caught:
        call("emit", {"result": broken, "plan": "t1", "for": ["megatron"]}, RunningCall())
    assert caught.value.status == 422


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pools": "all"}, "unknown 'all'"),
        ({"pool": "new"}, '"pools": "together" and "pool": "new" contradict'),
        ({"pins": {"vpp": 2}}, "have no axis vpp"),
    ],
)
def test_bad_requests_name_their_fields(fields, message):
    with pytest.raises(Refusal) as caught:
        call("solve", {**BODY, **fields}, RunningCall())
    assert message in caught.value.detail
