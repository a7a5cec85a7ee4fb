"""One job over several pools through the calls of the service, and through gRPC's messages."""

import json

import pytest
from google.protobuf import struct_pb2

import planner
from service.agents.tools import call_tool
from service.handlers.calls import CALLS, call
from service.handlers.problems import Refusal
from service.handlers.running_call import RunningCall
from service.proto.planner.v1 import planner_pb2 as pb
from service.rpc.convert import message_of, to_dict
from tests.planner.solver.together.tiny import MODEL, NEW, OLD, PINS, cluster
from tests.service.agents.desk import new_desk

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


def test_sharded_replicas_pass_through_the_calls():
    pools = cluster({**NEW, "nodes": 2}, {**OLD, "nodes": 2})
    body = {**BODY, "cluster": pools, "framework": "fsdp2", "pins": {"tp": 1, "cp": 1}, "top": 1}
    found = call("solve", body)
    plan = found["together"]["plans"][0]
    assert (plan["zero"], plan["runs_on"]) == (3, ["fsdp2"])
    assert to_dict(message_of(found, pb.SolveAnswer)) == found
    files = call("emit", {"result": found, "plan": "t1", "for": ["fsdp2"]})["files"]
    assert {"accelerate.sh", "nodes.txt", "old/accelerate.yaml", "new/accelerate.yaml"} <= set(
        files
    )
    placed = call("place", {"result": found, "plan": "t1"})
    assert placed["groups"]["zero"]["n_members"] == plan["shard"]
    assert placed["groups"]["zero"]["tier"] != "between pools"
    _check_sharded_calls(found)


def _check_sharded_calls(found):
    """Check the calls about one plan of sharded replicas."""
    asked = {"result": found, "plan": "t1"}
    step_s = found["together"]["plans"][0]["step_time_s"]
    explained = call("explain", asked)
    CALLS["explain"].answer.model_validate(explained)
    assert explained["together"]["step_time_s"] == pytest.approx(step_s, rel=1e-12)
    assert "sum of gradients over the replicas:" in explained["text"]
    drawn = json.loads(call("trace", asked)["trace"])["otherData"]
    assert drawn["trace_end_s"] == pytest.approx(step_s, rel=1e-9)
    other = {"result": found, "plan": found["plans"][0]["plan_id"]}
    compared = call("diff", {"a": asked, "b": other, "with_text": True})
    CALLS["diff"].answer.model_validate(compared)
    assert compared["a"]["step_time_s"] == pytest.approx(step_s, rel=1e-12)
    moved = call("replan", {**asked, "lost": "old=1"})
    CALLS["replan"].answer.model_validate(moved)
    assert moved["nodes"]["pools"]["old"] == {"before": 2, "after": 1}
    for body in (explained, compared, moved):
        assert to_dict(message_of(body, struct_pb2.Struct)) == json.loads(json.dumps(body))


def test_tools_take_sharded_replicas():
    desk = new_desk()
    pools = cluster({**NEW, "nodes": 2}, {**OLD, "nodes": 2})
    asked = {"framework": "fsdp2", "pins": {"tp": 1, "cp": 1}, "top": 1, "pools": "together"}
    files = {"model": json.dumps(MODEL), "cluster": json.dumps(pools)}
    _, solved = call_tool("solve", {**asked, **files}, desk)
    ref = solved["together"]["plans"][0]["ref"]
    text, found = call_tool("explain", {"plan": ref}, desk)
    assert found["binds"] == "compute"
    assert "step time" not in text
    assert sum(x["share"] for x in found["parts"]) == pytest.approx(1.0)
    text, _ = call_tool("explain", {"plan": ref, "term": "exchange"}, desk)
    assert text.startswith("exchange (time)")
    _, compared = call_tool("compare", {"a": ref, "b": solved["plans"][0]["ref"]}, desk)
    assert compared["winner"] == "a"
    _, moved = call_tool("replan", {"plan": ref, "lost": "old=1"}, desk)
    assert moved["verdict"] in ("move", "carry on")
    _, drawn = call_tool("trace", {"plan": ref}, desk)
    assert drawn["plan_id"] == found["plan_id"]
    _, written = call_tool("emit", {"plan": ref, "for": ["fsdp2"]}, desk)
    texts = written["files"]
    beside = {name: x for name, x in texts.items() if name != "accelerate.sh"}
    run = {"run": texts["accelerate.sh"], "name": "accelerate.sh", "files": beside, **files}
    _, judged = call_tool("check", run, desk)
    assert judged["accepted"]
    assert judged["fits"]
    assert judged["times_best"] == pytest.approx(1.0, rel=1e-6)


def test_a_plan_over_several_pools_is_explained(answer):
    found = call("explain", {"result": answer, "plan": "t1"})
    CALLS["explain"].answer.model_validate(found)
    assert found["plan_id"] == answer["together"]["plans"][0]["plan_id"]
    assert found["together"]["worth"] == answer["together"]["worth"]
    assert "slowest stage:" in found["text"]
    term = call("explain", {"result": answer, "plan": "t1", "term": "exchange"})
    assert [x["kind"] for x in term["together"]["values"]] == [1]
    with pytest.raises(Refusal) as caught:
        call("explain", {"result": answer, "plan": "t1", "term": "tp"}, RunningCall())
    assert "has no term 'tp'" in caught.value.detail


def test_tools_explain_it():
    desk = new_desk()
    asked = {name: BODY[name] for name in ("pins", "top", "pools")}
    files = {name: json.dumps(BODY[name]) for name in ("model", "cluster")}
    said, solved = call_tool("solve", {**asked, **files}, desk)
    ref = solved["together"]["plans"][0]["ref"]
    assert ref == f"{solved['result_id']}#t1"
    assert solved["together"]["sentence"] in said
    text, found = call_tool("explain", {"plan": ref}, desk)
    assert found["binds"] == "compute"
    assert text.startswith("Plan t1")
    assert "step time" not in text
    assert sum(x["share"] for x in found["parts"]) == pytest.approx(1.0)
    text, found = call_tool("explain", {"plan": ref, "term": "sync"}, desk)
    assert text.startswith("sync (time)")
    assert found["parts"] == []
    _, compared = call_tool("compare", {"a": ref, "b": solved["plans"][0]["ref"]}, desk)
    assert compared["winner"] == "a"
    text, moved = call_tool("replan", {"plan": ref, "lost": "old=1"}, desk)
    assert moved["verdict"] == "move"
    assert "what changes" in text
    text, moved = call_tool("emit", {"plan": ref, "for": ["megatron"]}, desk)
    assert moved["files"] or moved["refused"]


def test_nodes_join_a_pool(answer):
    asked = {"result": answer, "plan": "t1"}
    found = call("replan", {**asked, "gained_by_pool": {"new": 1}})
    assert found["nodes"]["pools"]["new"]["after"] == 2
    for fields, message in (
        ({"gained": 1, "gained_by_pool": {"new": 1}}, "two forms of one number"),
        ({"gained_by_pool": {"new": 10**6}}, "devices"),
        ({"gained": 1}, "one of them grew"),
    ):
        with pytest.raises(Refusal) as caught:
            call("replan", {**asked, **fields}, RunningCall())
        assert message in caught.value.detail


def test_ranks_are_placed_by_pool(answer):
    able = next(x for x in answer["together"]["plans"] if x["runs_on"])
    asked = {"result": answer, "plan": f"t{able['rank']}", "with_text": True}
    found = call("place", asked)
    CALLS["place"].answer.model_validate(found)
    assert found["plan_id"] == able["plan_id"]
    assert len(found["ranks"]) == found["n_ranks"] == sum(able["devices"].values())
    held = {x["pool"]: x["ranks"][1] - x["ranks"][0] + 1 for x in found["pools"]}
    assert held == able["devices"]
    assert "between pools" in {group["tier"] for group in found["groups"].values()}
    assert "node ranks" in found["text"]
    with pytest.raises(Refusal) as caught:
        call("place", {**asked, "hosts": "n1"}, RunningCall())
    assert "the plan uses several pools" in caught.value.detail


def test_a_plan_that_no_framework_lays_out_has_no_ranks(answer):
    first, *others = answer["together"]["plans"]
    strange = {**first, "runs_on": [], "missing": ["unequal shares"]}
    changed = {**answer, "together": {**answer["together"], "plans": [strange, *others]}}
    with pytest.raises(Refusal) as caught:
        call("place", {"result": changed, "plan": "t1"}, RunningCall())
    assert "has no ranks: no framework has unequal shares" in caught.value.detail


def test_a_step_is_drawn_in_time(answer):
    for which, plan in (("t1", answer["together"]["plans"][0]), ("1", answer["plans"][0])):
        found = call("trace", {"result": answer, "plan": which, "micro_batches": 2})
        CALLS["trace"].answer.model_validate(found)
        about = json.loads(found["trace"])["otherData"]
        assert about["plan"] == found["plan_id"] == plan["plan_id"]
        assert about["predicted_step_s"] == pytest.approx(plan["step_time_s"])


def test_other_calls_say_that_the_plan_uses_several_pools(answer):
    desk = new_desk()
    ref = f"{desk.results.keep(answer)}#t1"
    with pytest.raises(Refusal) as caught:
        call_tool("neighbours", {"plan": ref}, desk)
    assert "uses several pools" in caught.value.detail


def test_tools_place_and_draw_it(answer):
    desk = new_desk()
    able = next(x for x in answer["together"]["plans"] if x["runs_on"])
    ref = f"{desk.results.keep(answer)}#t{able['rank']}"
    text, placed = call_tool("place", {"plan": ref}, desk)
    assert {x["pool"] for x in placed["pools"]} == set(able["devices"])
    assert "process groups" in text.lower() or "group" in text
    _, drawn = call_tool("trace", {"plan": ref, "details": "full"}, desk)
    assert drawn["predicted_step_s"] == pytest.approx(able["step_time_s"])
    assert len(json.loads(drawn["full"]["trace"])["traceEvents"]) == drawn["n_events"]


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
