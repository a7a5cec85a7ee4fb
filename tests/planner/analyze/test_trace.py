"""The trace file: its format, its end and its peak, and what is cut out of a long step."""

import itertools
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import planner
from costmodels.axes import RANK_ORDERS
from costmodels.breakdown import break_down
from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.schedule.stages import spelled
from hardware.parts import Host, Link
from planner.analyze.trace.chrome_trace import DP, HIDDEN, MAX_BLOCKS, trace_events, trace_json
from planner.errors import UsageError
from planner.solver.answer.result import Plan
from tests.costmodels.timelines import CASES, SCHEDULES, case
from tests.planner.command import run_here
from tests.repeats import halved
from tests.searches.instances import one_in

PLAN = planner.evaluate("llama3-8b", "h100-x8", pins={"tp": 2, "pp": 2, "zero": 1}).plans[0]
"""Any plan: the trace takes the layout, its id and nothing else from it."""


def of_case(name: str) -> tuple[Problem, Plan]:
    problem, layout = case(name)
    return problem, as_plan(layout)


def as_plan(layout: Layout) -> Plan:
    return replace(PLAN, layout=layout)


def by_thread(events: list[dict]) -> dict[tuple[int, int], list[dict]]:
    """The slices of each thread as they stand in the file."""
    out: dict[tuple[int, int], list[dict]] = {}
    for event in events:
        if event["ph"] == "X":
            out.setdefault((event["pid"], event["tid"]), []).append(event)
    return out


def check_format(events: list[dict]) -> None:
    """Assert what the Trace Event Format and its viewers ask."""
    json.dumps(events, allow_nan=False)
    assert {e["ph"] for e in events} <= {"M", "X", "C", "s", "f"}
    timed = [e for e in events if e["ph"] != "M"]
    assert events[: len(events) - len(timed)] == [e for e in events if e["ph"] == "M"]
    assert [e["ts"] for e in timed] == sorted(e["ts"] for e in timed)
    assert all(isinstance(e["ts"], float) and e["ts"] >= 0.0 for e in timed)
    threads = by_thread(events)
    for slices in threads.values():
        assert all(e["dur"] > 0.0 and e["name"] and e["cat"] for e in slices)
        for one, following in pairwise(slices):
            assert one["ts"] + one["dur"] <= following["ts"]  # exact: times lie on a binary grid
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert named == set(threads)
    assert {pid for pid, _ in named} == {e["pid"] for e in events if e["name"] == "process_name"}
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys()
    n_flows = sum(e["ph"] in "sf" for e in events)
    assert n_flows == 2 * len(starts)
    firsts = {(*key, e["ts"]) for key, slices in threads.items() for e in slices}
    for number, start in starts.items():
        end = ends[number]
        assert start["ts"] <= end["ts"]
        assert start["pid"] != end["pid"]
        # Each end binds to a slice that begins there: a message, and the block that needs it.
        assert (start["pid"], start["tid"], start["ts"]) in firsts
        assert (end["pid"], end["tid"], end["ts"]) in firsts
    for pid in {pid for pid, _ in threads}:
        levels = [e for e in events if e["ph"] == "C" and e["pid"] == pid]
        assert len({e["ts"] for e in levels}) == len(levels)
        assert levels[0]["ts"] == 0.0
        assert {e["name"] for e in levels} == {"memory"}


def end_us(events: list[dict]) -> float:
    return max(e["ts"] + e["dur"] for e in events if e["ph"] == "X")


def peaks(events: list[dict]) -> dict[int, float]:
    """The highest level of each process."""
    out: dict[int, float] = {}
    for e in events:
        if e["ph"] == "C":
            out[e["pid"]] = max(out.get(e["pid"], 0.0), e["args"]["bytes"])
    return out


@pytest.mark.parametrize("drawn", one_in(2, [0, 3]))
@pytest.mark.parametrize("name", halved(one_in(3, CASES)))
def test_every_plan_has_a_valid_trace_that_ends_with_its_step(name: str, drawn: int) -> None:
    problem, plan = of_case(name)
    events = trace_events(problem, plan, drawn)
    check_format(events)
    found = break_down(problem, plan.layout)
    assert end_us(events) == pytest.approx(found.step_s * 1e6, rel=1e-9)
    expected = {rank: sum(stage.values()) for rank, stage in enumerate(found.stages)}
    assert peaks(events) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", one_in(3, CASES))
def test_every_block_is_drawn_once(name: str) -> None:
    problem, plan = of_case(name)
    layout = plan.layout
    drawn: dict[str, list[tuple]] = {}
    for event in trace_events(problem, plan):
        if event["ph"] == "X" and event["tid"] == 0 and event["cat"] != "after the pipeline":
            parts = [event["args"]]
            if "+" in event["cat"]:
                parts = [event["args"]["forward"], event["args"]["backward"]]
            for kind, args in zip(event["cat"].split("+"), parts, strict=True):
                first, last = args["layers"]
                assert last - first + 1 == layout.stage_layers[args["stage"]]
                assert first == sum(layout.stage_layers[: args["stage"]])
                assert args["stage"] in layout.stages_of(event["pid"])
                key = (event["pid"], args["stage"], args["micro_batch"])
                drawn.setdefault(kind, []).append(key)
    blocks = {
        (rank, stage, micro)
        for rank in range(layout.pp)
        for stage in layout.stages_of(rank)
        for micro in range(layout.n_passes)
    }
    backwards = drawn.get("backward", []) + drawn.get("input gradient", [])
    assert sorted(drawn["forward"]) == sorted(blocks) == sorted(backwards)
    assert sorted(drawn.get("input gradient", [])) == sorted(drawn.get("weight gradient", []))


def test_memory_rises_with_forwards_and_falls_with_backwards() -> None:
    problem, plan = of_case("gpipe")
    found = break_down(problem, plan.layout)
    levels = [
        e["args"]["bytes"] for e in trace_events(problem, plan) if e["ph"] == "C" and e["pid"] == 3
    ]
    n = plan.layout.n_micro
    fill = levels[:n]
    assert fill == sorted(fill)
    stage = found.stages[3]
    kept = (stage["activations"] + stage["fragmentation"]) / n
    assert levels[0] == pytest.approx(stage["states"] + stage["overhead"] + 0 * kept)
    assert fill[-1] - fill[-2] == pytest.approx(kept, rel=1e-6)
    assert levels[-1] == pytest.approx(stage["states"] + stage["overhead"])


@pytest.mark.parametrize("name", ["zero 3", "interleaved", "zb-h1"])
def test_hidden_and_exposed_data_parallel_traffic_is_all_of_it(name: str) -> None:
    problem, plan = of_case(name)
    wires = sum(x.time_s for x in break_down(problem, plan.layout).transfers if x.axis == "dp")
    events = [e for e in trace_events(problem, plan) if e["ph"] == "X" and e["tid"] == DP]
    sums: dict[int, float] = {}
    for event in events:
        sums[event["pid"]] = sums.get(event["pid"], 0.0) + event["dur"]
    hidden = [e for e in events if e["cat"] == HIDDEN]
    assert all(e["args"]["waits_ms"] == 0.0 and "(hidden)" in e["name"] for e in hidden)
    assert len(hidden) < len(events)
    assert any(total == pytest.approx(wires * 1e6, rel=1e-6) for total in sums.values())
    notes = json.loads(trace_json(problem, plan))["otherData"]["notes"]
    assert any("the model knows how much, not when" in note for note in notes)
    # Of a step that is cut, what moves once stays, and what moves beside blocks goes with them.
    few = [e for e in trace_events(problem, plan, 2) if e["ph"] == "X" and e["cat"] == HIDDEN]
    assert (len(few) < len(hidden)) == (name == "zero 3")


def test_messages_longer_than_blocks_overlap_on_further_threads() -> None:
    problem, plan = of_case("1f1b")
    nic: Link = problem.pool.nic
    slow = replace(nic, bytes_per_s=nic.bytes_per_s / 500)
    problem = replace(problem, pool=replace(problem.pool, nic=slow))
    events = trace_events(problem, plan)
    check_format(events)
    assert any(
        e["ph"] == "M" and e["name"] == "thread_name" and e["args"]["name"] == "pp 2"
        for e in events
    )


def test_a_cut_says_so_and_keeps_the_ends() -> None:
    problem, plan = of_case("many micro-batches")
    whole, cut = json.loads(trace_json(problem, plan)), json.loads(trace_json(problem, plan, 5))
    assert not any(note.startswith("cut") for note in whole["otherData"]["notes"])
    (note,) = [note for note in cut["otherData"]["notes"] if note.startswith("cut")]
    assert note == "cut: micro-batches 3 to 87 of 90 are not drawn; all were simulated"
    seen = {
        e["args"]["micro_batch"]
        for e in cut["traceEvents"]
        if e["ph"] == "X" and e["cat"] in ("forward", "backward")
    }
    assert seen == {0, 1, 2, 88, 89}
    kept = {json.dumps(e) for e in whole["traceEvents"] if e["ph"] == "X" and e["tid"] == 0}
    assert {json.dumps(e) for e in cut["traceEvents"] if e["ph"] == "X" and e["tid"] == 0} <= kept


def test_the_file_is_the_same_every_time_and_names_its_plan() -> None:
    problem, plan = of_case("zb-v")
    text = trace_json(problem, plan)
    assert text == trace_json(problem, plan)
    data = json.loads(text)
    assert set(data) == {"displayTimeUnit", "otherData", "traceEvents"}
    about = data["otherData"]
    assert about["plan"] == plan.plan_id
    assert about["trace_end_s"] == pytest.approx(about["predicted_step_s"], rel=1e-9)
    assert data["traceEvents"] == json.loads(json.dumps(trace_events(problem, plan)))


def test_a_pipeline_that_never_becomes_periodic_is_traced_whole() -> None:
    """The prediction extrapolates: the file says by how much the recurrence differs."""
    problem, layout = case("many micro-batches")
    n = 400
    odd = replace(layout, stage_layers=(7, 8, 9, 8), split="7-8-9-8", gbs=n * layout.dp)
    problem = replace(problem, job=replace(problem.job, global_batch=odd.gbs))
    plan = as_plan(odd)
    about = json.loads(trace_json(problem, plan, 8))["otherData"]
    differs = abs(about["trace_end_s"] / about["predicted_step_s"] - 1.0)
    assert any("does not become periodic" in x for x in about["notes"]) == (differs > 1e-9)
    assert differs < 1e-3


def test_too_long_a_step_asks_for_a_cut() -> None:
    problem, layout = case("many micro-batches")
    gbs = layout.dp * 20_000
    problem = replace(problem, job=replace(problem.job, global_batch=gbs))
    plan = as_plan(replace(layout, gbs=gbs))
    with pytest.raises(UsageError, match=f"160,000 blocks, more than the {MAX_BLOCKS:,}") as info:
        trace_events(problem, plan)
    assert "--micro-batches 32" in info.value.hint
    with pytest.raises(UsageError, match="must not be negative"):
        trace_events(problem, plan, -1)


def test_the_command_writes_a_file_or_prints_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    solved = run_here("evaluate", "llama3-8b", "h100-x8", "--pin", "pp=2,tp=2", "--format", "json")
    step_s = json.loads(solved.stdout)["plans"][0]["step_time_s"]
    written = run_here("trace", "last#1", "-o", "step.json")
    assert written.returncode == 0
    assert "ui.perfetto.dev" in written.stderr
    text = (tmp_path / "step.json").read_text(encoding="utf-8")
    assert run_here("trace", "last#1", "-o", "-").stdout == text
    events = json.loads(text)["traceEvents"]
    check_format(events)
    assert end_us(events) == pytest.approx(step_s * 1e6, rel=1e-9)
    nowhere = run_here("trace", "last#1", "-o", "no/such/folder.json")
    assert nowhere.returncode == 1
    assert "cannot write" in nowhere.stderr


@pytest.mark.parametrize("first", one_in(5, range(5)))
@pytest.mark.parametrize("name", one_in(3, SCHEDULES))
def test_every_schedule_ends_with_its_step_under_every_other_axis(name: str, first: int) -> None:
    """Optimizer on the host, pipelines inside, uneven stages, recomputed modules and layers."""
    problem, plain = case(name)
    host = Host(20e9, 2e12, 300e9)
    problem = replace(problem, pool=replace(problem.pool, host=host))
    held = (plain.stage_layers[0] - 1, plain.stage_layers[1] + 1, *plain.stage_layers[2:])
    uneven = {"stage_layers": held, "split": spelled(held)}
    again = (
        {"recompute": "none"},
        {"recompute": "selective", "recompute_modules": ("mlp",)},
        {"recompute": "full", "recompute_layers": 2},
    )
    every = itertools.product((False, True), RANK_ORDERS, ({}, uneven), again)
    # In steps of five, which divides none of their numbers: each value of each axis comes up.
    for away, order, split, what in [*every][first::5]:
        layout = replace(plain, optimizer_offload=away, rank_order=order, **split, **what)
        found = break_down(problem, layout)
        events = trace_events(problem, as_plan(layout))
        check_format(events)
        assert end_us(events) == pytest.approx(found.step_s * 1e6, rel=1e-9), layout
        expected = {rank: sum(stage.values()) for rank, stage in enumerate(found.stages)}
        assert peaks(events) == pytest.approx(expected, rel=1e-9), layout
        assert max(expected.values()) == pytest.approx(found.peak_bytes, rel=1e-12)
        titles = {e["name"] for e in events if e.get("cat") == "after the pipeline"}
        assert ("offload" in titles) == away
