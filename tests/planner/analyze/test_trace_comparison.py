"""A measured step beside its plan: sums by hand, round trips without difference, what is said."""

import json
from pathlib import Path

import pytest

from costmodels.breakdown import break_down
from costmodels.problem import Problem
from planner.analyze.trace.chrome_trace import trace_json
from planner.analyze.trace.comparison import (
    COMPUTE_ROWS,
    TraceComparison,
    compare_traces,
    head_sizes,
    predicted_rows,
)
from planner.analyze.trace.findings import findings, suggestion
from planner.errors import UsageError
from planner.render.document import answer_document, markdown, text_of
from planner.solver.answer.result import Plan
from planner.solver.answer.result_store import open_plan
from tests.costmodels.timelines import CASES, case
from tests.planner.analyze.kineto.writing import (
    ADAM,
    FLASH,
    GATHER,
    GEMM,
    LOSS,
    REDUCE,
    SCATTER,
    SEND,
    SILU,
    TraceWriter,
)
from tests.planner.analyze.test_trace import as_plan
from tests.planner.command import run_here
from tests.searches.instances import one_in

TP, DP, PP = (
    "TENSOR_MODEL_PARALLEL_GROUP",
    "DATA_PARALLEL_GROUP_WITH_CP",
    "PIPELINE_MODEL_PARALLEL_GROUP",
)
OPENED: dict[tuple[str, ...], tuple[Problem, Plan]] = {}


def opened(folder: Path, model: str, cluster: str, *words: str) -> tuple[Problem, Plan]:
    """A plan as the command reads it, priced once for all tests."""
    key = (model, cluster, *words)
    if key not in OPENED:
        done = run_here("evaluate", model, cluster, *words, "--format", "json", "--no-cache")
        saved = folder / "plan.json"
        saved.write_text(done.stdout)
        OPENED[key] = open_plan(f"{saved}#1")[2:]
    return OPENED[key]


@pytest.fixture
def small(tmp_path) -> tuple[Problem, Plan]:
    """Plan of tp 2, dp 4 on one node."""
    return opened(tmp_path, "llama3-8b", "h100-x8", "--pin", "tp=2,pp=1,zero=1")


def one_step(out: TraceWriter, number: int, at: float) -> None:
    """A step of 1,000 us whose parts are in `HAND_US`."""
    out.kernel(GEMM, at, 100.0)
    out.kernel(FLASH, at + 100, 60.0)
    out.kernel(SILU, at + 150, 50.0, stream=9)  # 10 beside attention
    out.nccl(
        GATHER,
        at + 190,
        70.0,
        collective="_allgather_base",
        nelems=(1000, 2000),
        size=2,
        desc=TP,
        stream=20,
    )  # 10 behind silu, 20 beside dp
    out.nccl(
        SCATTER,
        at + 240,
        60.0,
        collective="_reduce_scatter_base",
        nelems=(8000, 2000),
        size=4,
        desc=DP,
        dtype="Float",
        stream=24,
    )  # 20 beside tp, 20 alone, 20 behind the next product
    out.kernel(GEMM, at + 280, 120.0)
    out.kernel(ADAM, at + 500, 100.0, launched=at + 470)  # of the gap of 100, 70 are the host's
    out.kernel(
        "Memcpy HtoD (Pinned -> Device)", at + 590, 60.0, stream=13, cat="gpu_memcpy"
    )  # 10 behind Adam
    out.kernel("my_company_kernel<int>", at + 700, 20.0, launched=at + 640)  # gap of 50, queued
    out.step(number, at, 1000.0)


HAND_US = {
    "gemm+head": 220,
    "attention": 55,
    "elementwise": 45,
    "optimizer": 100,
    "tp": 50,
    "dp": 30,
    "copies": 50,
    "unknown": 20,
    "host": 345,
    "idle": 85,
}
"""Means of two steps. The gap behind the last kernel ends the first one when a kernel starts that
was launched 10 us before, the last one when the host is done: 270 and 280 are the host's."""


def hand_made(rank: int | None = 0) -> TraceWriter:
    out = TraceWriter(rank=rank)
    out.kernel(GEMM, 1000.0, 4000.0)
    out.step(3, 1000.0, 4000.0)  # the first is left out
    one_step(out, 4, 5000.0)
    one_step(out, 5, 6000.0)
    return out


def test_parts_of_a_step_by_hand(small, tmp_path):
    found = compare_traces([hand_made().write(tmp_path / "t.json")], *small)
    measured = {row.name: row.measured_s * 1e6 for row in found.rows if row.measured_s}
    assert measured == pytest.approx(HAND_US)
    assert sum(HAND_US.values()) == 1000
    assert found.measured_step_s == pytest.approx(1e-3)
    assert found.measured[0].steps == (4, 5)
    assert found.predicted_step_s == pytest.approx(small[1].step_time_s)
    assert found.unmatched_frac == pytest.approx(0.02)
    assert found.unknown_s == {"my_company_kernel<int>": pytest.approx(20e-6)}


def test_traffic_by_hand(small, tmp_path):
    found = compare_traces([hand_made().write(tmp_path / "t.json")], *small)
    by_key = {(row.axis, row.collective): row for row in found.traffic}
    gather, scatter = by_key["tp", "all-gather"], by_key["dp", "reduce-scatter"]
    assert gather.measured == (1.0, 4000.0, pytest.approx(70e-6))  # 2,000 elements of bf16
    assert gather.measured_bytes_per_s == pytest.approx(4000 * 1 / 2 / 70e-6)
    assert scatter.measured == (1.0, 32000.0, pytest.approx(60e-6))
    assert scatter.measured_bytes_per_s == pytest.approx(32000 * 3 / 4 / 60e-6)
    planned = {(t.axis, t.collective): t for t in small[1].breakdown.transfers}
    assert gather.predicted[0] == planned["tp", "all-gather"].n_calls


def test_chosen_steps(small, tmp_path):
    path = hand_made().write(tmp_path / "t.json")
    found = compare_traces([path], *small, steps="3-4")
    assert found.measured[0].step_times_s == (pytest.approx(4e-3), pytest.approx(1e-3))


@pytest.mark.parametrize("name", one_in(3, CASES))
def test_a_drawn_step_comes_back_without_difference(name, tmp_path):
    problem, layout = case(name)
    plan = as_plan(layout)
    path = tmp_path / "own.json"
    path.write_text(trace_json(problem, plan))
    found = compare_traces([str(path)], problem, plan)
    predicted = break_down(problem, layout)
    # Steps that never become periodic are extrapolated when they are priced.
    drawn = json.loads(path.read_text())["otherData"]["trace_end_s"]
    slack = abs(drawn - predicted.step_s) + 1e-6
    assert found.predicted_step_s == pytest.approx(predicted.step_s, rel=1e-12)
    for row in found.rows:
        assert abs(row.difference_s) <= slack, row
    if slack < 2e-6:
        assert findings(found) == ["every term is as predicted, to a microsecond"]


def test_every_rank_of_a_drawn_step_comes_back(tmp_path):
    problem, plan = opened(tmp_path, "llama3-8b", "h100-x8", "--pin", "tp=2,pp=2,zero=1")
    path = tmp_path / "own.json"
    path.write_text(trace_json(problem, plan))
    for rank in range(8):
        found = compare_traces([str(path)], problem, plan, rank=rank)
        assert found.breakdowns[0].critical_stage == rank // 4
        assert all(abs(row.difference_s) < 1e-6 for row in found.rows)


def as_predicted(problem: Problem, plan: Plan, factors: dict[str, float]) -> TraceWriter:
    """A trace whose parts are those of the plan, some of them `factors` as long."""
    found = break_down(problem, plan.layout, 0)
    out = TraceWriter(rank=0, world=plan.layout.n_devices)
    kernels = {
        "gemm": GEMM,
        "attention": FLASH,
        "elementwise": SILU,
        "experts": "grouped_gemm_kernel",
        "head": GEMM,
        "optimizer": ADAM,
    }
    groups = {
        "tp": (TP, plan.layout.tp),
        "dp": (DP, plan.layout.dp),
        "ep": ("EXPERT_MODEL_PARALLEL_GROUP", plan.layout.ep),
        "pipeline": (PP, plan.layout.pp),
    }
    head = {"Input Dims": [[8192, 4096], [min(head_sizes(problem, plan)), 4096]]}
    out.row("cpu_op", "aten::mm", 0.0, 1.0, tid=1, **{"External id": 9}, **head)
    at = begin = 1000.0
    for row, seconds in predicted_rows(found).items():
        length = round(seconds * factors.get(row, 1.0) * 1e6, 3)
        if row == "host" or not length:
            continue
        if row in kernels:
            more = {"External id": 9} if row == "head" else {}
            out.kernel(kernels[row], at, length, **more)
        else:
            desc, size = groups[row]
            out.nccl(
                SEND if row == "pipeline" else REDUCE,
                at,
                length,
                size=size,
                desc=desc,
                collective="send" if row == "pipeline" else "allreduce",
                nelems=(1, 1),
            )
        at += length
    host = round(predicted_rows(found)["host"] * factors.get("host", 1.0) * 1e6, 3)
    out.kernel(LOSS, at + host, 0.0, launched=at + host)
    out.step(1, begin, at + host - begin)
    return out


PLANS = {
    "dense": ("llama3-8b", "h100-x8", "--pin", "tp=2,pp=1,zero=1"),
    "pipeline": ("llama3-8b", "h100-x8", "--pin", "tp=2,pp=2,zero=1"),
    "recompute": ("llama3-8b", "h100-x8", "--pin", "tp=2,pp=2,zero=1,recompute=full"),
    "experts": ("mixtral-8x7b", "h100-x512", "--pin", "devices=64,tp=2,pp=4,ep=8,zero=1"),
}


@pytest.mark.parametrize("name", PLANS)
def test_kernels_as_long_as_predicted_show_no_difference(name, tmp_path):
    problem, plan = opened(tmp_path, *PLANS[name])
    path = as_predicted(problem, plan, {}).write(tmp_path / "t.json")
    found = compare_traces([path], problem, plan)
    named = {"gemm", "attention", "elementwise", "optimizer", "tp"}
    named |= {"head"} if plan.layout.pp == 1 else {"pipeline"}  # the first stage has no head
    named |= {"experts", "ep"} if plan.layout.ep > 1 else set()
    assert {row.name for row in found.rows} >= named
    for row in found.rows:
        assert row.measured_s == pytest.approx(row.predicted_s, abs=1e-8), row.name
    assert found.measured_step_s == pytest.approx(plan.step_time_s, rel=1e-7)
    assert not found.warnings


@pytest.mark.parametrize("row", ["gemm", "attention", "elementwise", "tp", "pipeline", "host"])
def test_the_term_that_is_off_is_named(row, tmp_path):
    problem, plan = opened(tmp_path, *PLANS["pipeline"])
    length = predicted_rows(break_down(problem, plan.layout, 0))[row]
    factor = 1.0 + 0.2 * plan.step_time_s / length
    path = as_predicted(problem, plan, {row: factor}).write(tmp_path / "t.json")
    found = compare_traces([path], problem, plan)
    assert found.worst is not None
    assert found.worst.name == row
    assert found.worst.factor == pytest.approx(factor, rel=1e-6)
    assert found.worst.difference_s == pytest.approx(0.2 * plan.step_time_s, rel=1e-6)
    first, *rest = findings(found)
    assert first.startswith(f"most off: {row}, +")
    assert "; " in first
    assert not rest


def test_predicted_rows_are_the_step():
    for name in CASES:
        found = break_down(*case(name))
        rows = predicted_rows(found)
        assert sum(rows.values()) == pytest.approx(found.step_s, rel=1e-12)
        again = found.time_s["recompute"] + found.time_s["overlap"]
        terms = ("linear", "attention", "elementwise", "embedding", "experts", "head")
        first = sum(found.time_s[t] for t in terms)
        assert sum(rows[r] for r in COMPUTE_ROWS) == pytest.approx(first + again, rel=1e-12)


def test_slow_links_are_told_from_traffic_that_does_not_hide(small, tmp_path):
    problem, plan = small
    of = {(t.axis, t.collective): t for t in plan.breakdown.transfers}["tp", "all-gather"]
    out = TraceWriter()
    each, n = of.time_s / of.n_calls * 1e6, 40
    elements = int(of.message_bytes / 2)
    for i in range(n):
        out.nccl(
            GATHER,
            1000.0 + i * 4000.0,
            2.0 * each,
            collective="_allgather_base",
            size=2,
            desc=TP,
            nelems=(elements // 2, elements),
        )
    out.step(1, 1000.0, 4000.0 * n)
    found = compare_traces([out.write(tmp_path / "t.json")], problem, plan)
    (row,) = [x for x in found.traffic if (x.axis, x.collective) == ("tp", "all-gather")]
    assert row.measured_bytes_per_s == pytest.approx(row.predicted_bytes_per_s / 2, rel=1e-4)
    said = suggestion(found, next(r for r in found.rows if r.name == "tp"))
    assert "all-gathers of tp take 2.00x the prediction" in said
    assert "40 calls against" in said


def test_ranks_are_averaged_and_the_slowest_named(small, tmp_path):
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank, length in ((0, 100.0), (1, 300.0)):
        out = TraceWriter(rank=rank)
        out.kernel(GEMM, 1000.0, length)
        out.step(1, 1000.0, 400.0)
        out.write(folder / f"rank{rank}.json")
    found = compare_traces([str(folder)], *small)
    gemm = found.rows[0]
    assert (gemm.measured_s, gemm.slowest_s) == (pytest.approx(200e-6), pytest.approx(300e-6))
    assert found.slowest == 1
    assert "rank 1 computes longest" in text_of(found)


@pytest.mark.slow
def test_waiting_for_a_late_rank_is_told_from_slow_links(small, tmp_path):
    problem, plan = small
    of = {(t.axis, t.collective): t for t in plan.breakdown.transfers}["tp", "all-gather"]
    each, elements = of.time_s / of.n_calls * 1e6, int(of.message_bytes / 2)
    files = []
    for rank, factor in ((0, 5.0), (1, 1.0)):  # rank 1 comes last
        out = TraceWriter(rank=rank)
        for i in range(of.n_calls):
            out.nccl(
                GATHER,
                1000.0 + i * 9000.0,
                factor * each,
                collective="_allgather_base",
                size=2,
                desc=TP,
                nelems=(elements // 2, elements),
            )
        out.step(1, 1000.0, 9000.0 * of.n_calls)
        files.append(out.write(tmp_path / f"{rank}.json"))
    found = compare_traces(files, problem, plan)
    (row,) = [x for x in found.traffic if (x.axis, x.collective) == ("tp", "all-gather")]
    assert row.least_each_s * 1e6 == pytest.approx(each, abs=1e-3)
    said = suggestion(found, next(r for r in found.rows if r.name == "tp"))
    assert "all-gathers of tp take 3.00x the prediction" in said
    assert f"{each:,.0f} us on the rank that waits least" in said
    assert "nccl-tests" not in said


def test_the_stage_that_holds_up_a_pipeline_is_named(tmp_path):
    problem, plan = opened(tmp_path, *PLANS["pipeline"])
    first = as_predicted(problem, plan, {"pipeline": 3.0}).write(tmp_path / "first.json")
    late = TraceWriter(rank=4)
    found = break_down(problem, plan.layout, 1)
    length = 2e6 * sum(predicted_rows(found)[row] for row in (*COMPUTE_ROWS, "optimizer"))
    late.kernel(GEMM, 1000.0, length)
    late.step(1, 1000.0, length)
    both = compare_traces([first, late.write(tmp_path / "late.json")], problem, plan)
    predicted, measured = both.compute_s(both.slowest)
    assert measured == pytest.approx(2 * predicted)
    said = suggestion(both, next(row for row in both.rows if row.name == "pipeline"))
    assert f"late.json) takes {measured * 1e3:,.2f} ms against {predicted * 1e3:,.2f}" in said


def test_experts_and_head_are_joined_where_kernels_do_not_tell(tmp_path):
    problem, plan = opened(tmp_path, *PLANS["experts"])
    out = TraceWriter(rank=0, world=64)
    out.kernel(GEMM, 1000.0, 100.0)
    out.step(1, 1000.0, 400.0)
    found = compare_traces([out.write(tmp_path / "t.json")], problem, plan)
    assert found.rows[0].name == "gemm+experts"  # the first stage has no head
    rows = predicted_rows(break_down(problem, plan.layout, 0))
    assert found.rows[0].predicted_s == pytest.approx(rows["gemm"] + rows["experts"])
    assert any("grouped product" in note for note in found.notes)


def test_groups_of_other_sizes_show_another_layout(small, tmp_path):
    out = hand_made()
    out.nccl(GATHER, 5900.0, 1.0, collective="_allgather_base", nelems=(1, 8), size=8, desc=TP)
    found = compare_traces([out.write(tmp_path / "t.json")], *small)
    assert found.warnings == (
        f"another layout: tp has 8 ranks in the trace ({TP}), 2 in the plan",
    )


def test_calls_that_say_nothing_go_with_their_stream(small, tmp_path):
    out = hand_made()
    out.kernel(GATHER, 5900.0, 15.0, stream=24)  # coalesced, on the stream of dp
    found = compare_traces([out.write(tmp_path / "t.json")], *small)
    dp = next(row for row in found.rows if row.name == "dp")
    assert dp.measured_s * 1e6 == pytest.approx(HAND_US["dp"] + 15 / 2)
    assert "of stream 24, which names no group: dp (stream)" in text_of(found)


def test_calls_that_say_nothing_on_a_stream_of_their_own(tmp_path):
    problem, plan = opened(tmp_path, *PLANS["experts"])
    out = TraceWriter(rank=0, world=64)
    out.kernel(GEMM, 1000.0, 100.0)
    for at, stream in ((1100.0, 30), (1150.0, 31)):  # batched messages of stages, all-to-all
        more = {
            "Collective name": "all_to_allv",
            "Group size": 8,
            "Process Group Name": "9",
            "Process Group Description": "EXPERT_MODEL_PARALLEL_GROUP",
        }
        out.kernel(SEND, at, 50.0, stream=stream, **(more if stream == 31 else {}))
    out.step(1, 1000.0, 200.0)
    found = compare_traces([out.write(tmp_path / "t.json")], problem, plan)
    parts = {row.name: row.measured_s * 1e6 for row in found.rows}
    assert (parts["ep"], parts["pipeline"]) == (pytest.approx(50), pytest.approx(50))
    assert "of stream 30, which names no group: pp (elimination)" in text_of(found)


def test_an_ambiguous_group_is_said_to_be(small, tmp_path):
    problem, plan = opened(
        tmp_path, "llama3-8b", "h100-x512", "--pin", "devices=16,tp=4,pp=1,zero=1"
    )
    out = TraceWriter(rank=0, world=16)
    out.kernel(GEMM, 1000.0, 100.0)
    out.nccl(GATHER, 1100.0, 50.0, collective="_allgather_base", nelems=(10, 40), size=4)
    out.step(1, 1000.0, 200.0)
    found = compare_traces([out.write(tmp_path / "t.json")], problem, plan)
    assert next(r for r in found.rows if r.name == "ambiguous").measured_s == pytest.approx(50e-6)
    assert "ambiguous: group 1 of 4 ranks serve dp or tp" in text_of(found).replace("\n  ", " ")


def test_all_formats_hold_the_same(small, tmp_path):
    path = hand_made().write(tmp_path / "t.json")
    found = compare_traces([path], *small)
    data = json.loads(found.dumps())
    assert data["most_off"] == found.worst.name
    assert [row["name"] for row in data["terms"]] == [row.name for row in found.rows]
    assert sum(row["predicted_s"] for row in data["terms"]) == pytest.approx(
        data["predicted_step_s"]
    )
    text, shown = text_of(found), markdown(answer_document(found))
    for row in found.rows:
        assert f"\n{row.name} " in text
        assert f"\n| {row.name} |" in shown
    for line in data["findings"]:
        assert f"- {line}" in shown
    assert max(len(line) for line in text.splitlines()) <= 100
    assert TraceComparison.dumps(compare_traces([path], *small)) == found.dumps()


def test_the_rank_of_a_trace_that_does_not_say_it(tmp_path):
    problem, plan = opened(tmp_path, *PLANS["pipeline"])
    out = TraceWriter(rank=None)
    out.kernel(GEMM, 1000.0, 100.0)
    out.step(1, 1000.0, 200.0)
    path = out.write(tmp_path / "t.json")
    found = compare_traces([path], problem, plan, rank=5)
    assert (found.measured[0].rank, found.breakdowns[0].critical_stage) == (5, 1)
    assert any("--rank R" in text for text in compare_traces([path], problem, plan).warnings)
    with pytest.raises(UsageError, match="rank 8 is not one of the 8"):
        compare_traces([path], problem, plan, rank=8)


def refusals(tmp_path: Path) -> dict[str, tuple[list[str], dict[str, object], str]]:
    out = {}

    def add(name: str, written: TraceWriter, says: str, **options: object) -> None:
        out[name] = ([written.write(tmp_path / f"{name}.json")], options, says)

    add("world", TraceWriter(world=16), "a job of 16 ranks, plan .* of 8")
    empty = TraceWriter()
    empty.row("cpu_op", "aten::mm", 1.0, 1.0)
    add("cpu", empty, "holds no kernels")
    stepless = TraceWriter()
    stepless.kernel(GEMM, 1.0, 1.0)
    add("steps", stepless, "marks no steps")
    add("range", hand_made(), "--steps 9-9 is not in .*its steps are 3 to 5", steps="9")
    add("rank", hand_made(2), "is of rank 2", rank=1)
    twice, _, _ = out["range"]
    out["twice"] = (twice * 2, {}, "two traces are of rank 0")
    out["both"] = (twice * 2, {"rank": 0}, "--rank says the rank of one trace")
    other = hand_made(1)
    other.step(6, 7000.0, 100.0)
    out["different"] = ([*twice, other.write(tmp_path / "other.json")], {}, "different steps")
    (tmp_path / "empty").mkdir()
    out["folder"] = ([str(tmp_path / "empty")], {}, "holds no .json")
    return out


@pytest.mark.parametrize(
    "name",
    ["world", "cpu", "steps", "range", "rank", "twice", "both", "different", "folder"],
)
def test_what_cannot_be_compared(name, small, tmp_path):
    files, options, says = refusals(tmp_path)[name]
    with pytest.raises(UsageError, match=f"(?s){says}"):
        compare_traces(files, *small, **options)


def test_a_drawn_step_that_was_cut_or_is_of_another_plan(small, tmp_path):
    problem, plan = small
    path = tmp_path / "own.json"
    path.write_text(trace_json(problem, plan, 4))
    with pytest.raises(UsageError, match="leaves out part of the step"):
        compare_traces([str(path)], problem, plan)
    other = opened(tmp_path, "llama3-8b", "h100-x8", "--pin", "tp=4,pp=1,zero=1")
    path.write_text(trace_json(*other))
    found = compare_traces([str(path)], problem, plan)
    assert found.warnings == (f"the trace draws plan {other[1].plan_id}, not {plan.plan_id}",)
    for files, options in (([str(path)] * 2, {}), ([str(path)], {"steps": "1-2"})):
        with pytest.raises(UsageError):
            compare_traces(files, problem, plan, **options)


def test_a_drawn_step_that_was_edited(small, tmp_path):
    problem, plan = small
    data = json.loads(trace_json(problem, plan))
    del next(e for e in data["traceEvents"] if e["ph"] == "X")["tid"]
    path = tmp_path / "own.json"
    path.write_text(json.dumps(data))
    with pytest.raises(UsageError, match="no longer as planner trace wrote it"):
        compare_traces([str(path)], problem, plan)


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert (
        run_here("evaluate", "llama3-8b", "h100-x8", "--pin", "tp=2,pp=1,zero=1").returncode == 0
    )
    path = hand_made().write(tmp_path / "t.json")
    done = run_here("compare", path, "last#1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "most off: " in done.stdout
    data = json.loads(
        run_here("compare", path, "last#1", "--format", "json", "--steps", "4").stdout
    )
    assert data["traces"][0]["steps"] == [4]
    assert run_here("compare", path, "last#1", "--format", "md").stdout.startswith("**plan ")
    for words, code, says in (
        ((path,), 2, "needs a trace and a plan"),
        ((path, "last#1", "--format", "csv"), 2, "--format: unknown 'csv'"),
        ((str(tmp_path / "none.json"), "last#1"), 1, "no trace file"),
        (("last#1", path), 1, "is not a result of planner"),
    ):
        done = run_here("compare", *words)
        assert done.returncode == code
        assert says in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr
