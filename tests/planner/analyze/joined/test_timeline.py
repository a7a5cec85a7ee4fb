"""Traces of plans over several pools."""

import json
from dataclasses import replace

import pytest

from planner.analyze.joined.timeline import CLOSED_FORM, WAIT, joined_trace_json, step_of
from planner.analyze.trace.chrome_trace import MAX_BLOCKS
from planner.cli.commands.inspection import run_trace
from planner.errors import UsageError
from tests.planner.analyze.joined.conftest import opened_plans


@pytest.fixture(scope="module")
def drawn(wider):
    """Plans of three pools, and what their traces hold."""
    return [(x, json.loads(joined_trace_json(x))) for x in opened_plans(wider)]


def _of_kind(opened, index):
    first = sum(len(kind.stages) for kind in opened.plan.kinds[:index])
    return range(first, first + len(opened.plan.kinds[index].stages))


def test_a_trace_ends_with_the_step_that_was_priced(drawn):
    for opened, trace in drawn:
        about = trace["otherData"]
        assert about["trace_end_s"] == pytest.approx(opened.plan.step_time_s, rel=1e-9)
        timed = [e for e in trace["traceEvents"] if e["ph"] == "X"]
        ends_us = {}
        for event in timed:
            end = event["ts"] + event["dur"]
            ends_us[event["pid"]] = max(ends_us.get(event["pid"], 0.0), end)
        # All stages of all kinds end together: the others wait for the slowest kind.
        for end_us in ends_us.values():
            assert end_us == pytest.approx(opened.plan.step_time_s * 1e6, rel=1e-6)


def test_each_stage_is_a_process_with_the_times_of_its_pool(drawn):
    for opened, trace in drawn:
        names = {
            e["pid"]: e["args"]["name"]
            for e in trace["traceEvents"]
            if e["name"] == "process_name"
        }
        for i, kind in enumerate(opened.plan.kinds):
            for rank, pid in enumerate(_of_kind(opened, i)):
                stage = kind.stages[rank]
                assert f"stage {rank + 1}: {stage.pool}, {opened.part(stage.pool)}" in names[pid]
                blocks = [
                    e
                    for e in trace["traceEvents"]
                    if e["ph"] == "X" and e["pid"] == pid and e["cat"] in ("forward", "backward")
                ]
                assert len(blocks) == 2 * kind.n_micro
                for event in blocks:
                    took_s = stage.forward_s if event["cat"] == "forward" else stage.backward_s
                    assert event["dur"] == pytest.approx(took_s * 1e6, abs=0.01)


def test_messages_lead_to_stages_of_their_own_pipeline(drawn):
    for opened, trace in drawn:
        for i, kind in enumerate(opened.plan.kinds):
            ranks = _of_kind(opened, i)
            sent = [
                e
                for e in trace["traceEvents"]
                if e["ph"] == "X" and e["cat"] == "pp" and e["pid"] in ranks
            ]
            assert len(sent) == 2 * kind.n_micro * (len(kind.stages) - 1)
            assert all(e["args"]["to"] in ranks for e in sent)
        flows = [e for e in trace["traceEvents"] if e["ph"] in "sf"]
        starts = sorted(e["id"] for e in flows if e["ph"] == "s")
        assert starts == sorted(set(starts))
        assert starts == sorted(e["id"] for e in flows if e["ph"] == "f")


def test_memory_peaks_where_the_plan_says(drawn):
    for opened, trace in drawn:
        for i, kind in enumerate(opened.plan.kinds):
            for stage, pid in zip(kind.stages, _of_kind(opened, i), strict=True):
                levels = [
                    e["args"]["bytes"]
                    for e in trace["traceEvents"]
                    if e["ph"] == "C" and e["pid"] == pid
                ]
                assert max(levels) == pytest.approx(stage.peak_bytes, rel=1e-9)


def test_the_price_is_at_least_the_pipeline_that_is_drawn(drawn):
    closed = 0
    for opened, _ in drawn:
        for i, kind in enumerate(opened.priced.kinds):
            priced_s = kind.compute_s + kind.bubble_s + kind.messages_s
            step = step_of(opened, i)
            assert step.pipeline.end_s <= priced_s * (1.0 + 1e-12)
            after = {name: seconds for name, _, seconds in step.after}
            rest = after.get(CLOSED_FORM, 0.0)
            assert step.pipeline.end_s + rest == pytest.approx(priced_s, rel=1e-9)
            closed += rest > 0.0
            slower = opened.plan.step_time_s - opened.plan.kinds[i].step_time_s
            assert after.get(WAIT, 0.0) == pytest.approx(slower, abs=1e-12)
    assert closed


def test_a_pipeline_longer_than_its_price_is_said(data):
    opened = opened_plans(data)[0]
    kind = opened.priced.kinds[0]
    less = replace(kind, messages_s=0.0, bubble_s=0.0, compute_s=0.5 * kind.compute_s)
    short = replace(opened, priced=replace(opened.priced, kinds=(less,)))
    about = json.loads(joined_trace_json(short))["otherData"]
    assert any("longer than its price" in note for note in about["notes"])


def test_a_cut_trace_keeps_first_and_last_micro_batches(data):
    opened = opened_plans(data)[0]
    n = opened.plan.kinds[0].n_micro
    cut = json.loads(joined_trace_json(opened, 3))
    kept = {
        e["args"]["micro_batch"]
        for e in cut["traceEvents"]
        if e["ph"] == "X" and e["cat"] == "forward"
    }
    assert kept == {0, 1, n - 1}
    assert any(note.startswith("kind 1: cut:") for note in cut["otherData"]["notes"])
    kind = replace(opened.mixed.kinds[0], n_micro=MAX_BLOCKS)
    many = replace(opened, mixed=replace(opened.mixed, kinds=(kind,)))
    with pytest.raises(UsageError, match="more than the"):
        joined_trace_json(many)


def test_the_command_writes_the_same_bytes(data, tmp_path, capsys):
    path = tmp_path / "answer.json"
    path.write_text(json.dumps(data))
    run_trace(f"{path}#t1", "-", 0)
    text = capsys.readouterr().out
    assert text == joined_trace_json(opened_plans(data)[0])
    run_trace(f"{path}#t1", str(tmp_path / "step.json"), 0)
    assert (tmp_path / "step.json").read_text() == text
    assert "ui.perfetto.dev" in capsys.readouterr().err
