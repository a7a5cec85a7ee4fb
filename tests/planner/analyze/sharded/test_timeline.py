"""Traces of plans of sharded replicas."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from planner.analyze.several_pools import trace_several_json
from planner.analyze.sharded.timeline import WAIT
from planner.analyze.trace.chrome_trace import MAX_BLOCKS
from planner.cli.commands.inspection import run_trace
from planner.errors import UsageError


@pytest.fixture(scope="module")
def drawn(plans):
    """Plans, and what their traces hold."""
    return [(x, json.loads(trace_several_json(x))) for x in plans]


def blocks(trace, pid):
    return [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == pid]


def test_every_kind_ends_with_the_step_that_was_priced(drawn):
    for opened, trace in drawn:
        assert trace["otherData"]["trace_end_s"] == pytest.approx(
            opened.plan.step_time_s, rel=1e-9
        )
        for pid in range(len(opened.plan.kinds)):
            end_us = max(e["ts"] + e["dur"] for e in blocks(trace, pid))
            assert end_us == pytest.approx(opened.plan.step_time_s * 1e6, rel=1e-9)


def test_blocks_take_what_the_price_says(drawn):
    for opened, trace in drawn:
        for pid, kind in enumerate(opened.plan.kinds):
            own = blocks(trace, pid)
            for category, seconds in (
                ("forward", kind.stages[0].forward_s),
                ("backward", kind.stages[0].backward_s),
            ):
                of_it = [e for e in own if e["cat"] == category]
                assert len(of_it) == kind.n_micro
                assert sum(e["dur"] for e in of_it) == pytest.approx(
                    kind.n_micro * seconds * 1e6, abs=0.01 * kind.n_micro
                )
            seen = sum(e["dur"] for e in own if "hidden" not in e["cat"])
            assert seen == pytest.approx(opened.plan.step_time_s * 1e6, rel=1e-6)


def test_blocks_that_count_follow_one_another(drawn):
    for opened, trace in drawn:
        for pid in range(len(opened.plan.kinds)):
            own = sorted(
                (e for e in blocks(trace, pid) if "hidden" not in e["cat"]),
                key=lambda e: e["ts"],
            )
            for first, second in pairwise(own):
                assert first["ts"] + first["dur"] <= second["ts"] + 1e-3
            named = {e["name"] for e in own}
            waits = opened.plan.step_time_s - opened.plan.kinds[pid].step_time_s
            assert (WAIT in named) == (waits > 0.0)


def test_hidden_traffic_lies_beside_the_block_that_hides_it(drawn):
    hidden = 0
    for opened, trace in drawn:
        for pid in range(len(opened.plan.kinds)):
            own = blocks(trace, pid)
            compute = [e for e in own if e["cat"] in ("forward", "backward")]
            for event in (e for e in own if "hidden" in e["cat"]):
                hidden += 1
                assert any(
                    block["ts"] <= event["ts"]
                    and event["ts"] + event["dur"] <= block["ts"] + block["dur"] + 1e-3
                    for block in compute
                )
    assert hidden


def test_memory_peaks_where_the_plan_says(drawn):
    for opened, trace in drawn:
        for pid, kind in enumerate(opened.plan.kinds):
            levels = [
                e["args"]["bytes"]
                for e in trace["traceEvents"]
                if e["ph"] == "C" and e["pid"] == pid
            ]
            assert max(levels) == pytest.approx(kind.stages[0].peak_bytes, rel=1e-9)


def test_a_cut_trace_keeps_first_and_last_micro_batches(plans):
    opened = plans[0]
    sharded = replace(opened.sharded, n_micro=8)
    many = replace(opened, sharded=sharded)
    kept = {
        e["args"]["micro_batch"]
        for e in json.loads(trace_several_json(many, 3))["traceEvents"]
        if e["ph"] == "X" and e["cat"] == "forward"
    }
    assert kept == {0, 1, 7}
    too_many = replace(opened, sharded=replace(sharded, n_micro=MAX_BLOCKS))
    with pytest.raises(UsageError, match="more than the"):
        trace_several_json(too_many)


def test_the_command_writes_the_same_bytes(data, plans, tmp_path, capsys):
    path = tmp_path / "answer.json"
    path.write_text(json.dumps(data))
    run_trace(f"{path}#t1", "-", 0)
    assert capsys.readouterr().out == trace_several_json(plans[0])
