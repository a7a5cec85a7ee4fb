"""Trace files: what is read from true rows, and the errors of files that are none."""

import gzip
import json
from pathlib import Path

import pytest

from planner.analyze.kineto.measurement import chosen_windows, parse_steps
from planner.analyze.kineto.reader import (
    CollectiveCall,
    ProfiledStep,
    events_of,
    header_of,
    ranks_of_job,
    read_kineto,
)
from planner.errors import UsageError
from tests.planner.analyze.kineto.writing import GATHER, GEMM, TraceWriter

WRITTEN = Path(__file__).parents[2] / "data" / "kineto-torch-2.13-cpu.json"


def small() -> TraceWriter:
    out = TraceWriter(rank=3, world=8)
    out.group("2", "TENSOR_MODEL_PARALLEL_GROUP", [2, 3])
    out.kernel(GEMM, 4462136704088.863, 12.345, launched=4462136704080.0)
    out.nccl(
        GATHER,
        4462136704110.0,
        5.5,
        collective="_allgather_base",
        nelems=(1024, 2048),
        size=2,
        group="2",
    )
    out.step(4, 4462136704088.863, 40.0)
    return out


def test_rows_steps_groups_and_times_to_the_nanosecond(tmp_path):
    path = small().write(tmp_path / "t.json")
    header = header_of(path)
    trace = read_kineto(path, header)
    assert (trace.rank, ranks_of_job(header)) == (3, 8)
    gemm, gather = trace.rows
    assert gemm.end_ns - gemm.start_ns == 12_345
    assert gather.start_ns - gemm.start_ns == 21_137
    assert gather.call == CollectiveCall(
        "_allgather_base", 4096, 2, "2", "TENSOR_MODEL_PARALLEL_GROUP", (2, 3)
    )
    assert gemm.call is None
    assert trace.launched_ns[gemm.correlation] == gemm.start_ns - 8_863
    (step,) = trace.steps
    assert (step.number, step.start_ns, step.end_ns) == (4, gemm.start_ns, gemm.start_ns + 40_000)


def test_a_file_that_torch_wrote(tmp_path):
    """Cut down from a run of torch 2.13 on a CPU with gloo: true rows, none of a device."""
    header = header_of(str(WRITTEN))
    assert ranks_of_job(header) == 1
    with pytest.raises(UsageError, match=r"holds no kernels: none of its \d+ rows"):
        read_kineto(str(WRITTEN), header)
    data = json.loads(WRITTEN.read_text())
    steps = [e for e in data["traceEvents"] if e["name"].startswith("ProfilerStep")]
    data["traceEvents"].append(
        {
            "ph": "X",
            "cat": "kernel",
            "name": GEMM,
            "pid": 0,
            "tid": 7,
            "ts": steps[0]["ts"],
            "dur": 1.0,
            "args": {"External id": 5, "device": 0, "stream": 7, "correlation": 5},
        }
    )
    path = tmp_path / "t.json"
    path.write_text(json.dumps(data))
    trace = read_kineto(str(path), header_of(str(path)), frozenset({64}))
    assert trace.rank == 0
    assert [step.number for step in trace.steps] == [2, 3, 4]
    assert [s.end_ns - s.start_ns for s in trace.steps] == [round(e["dur"] * 1e3) for e in steps]
    assert set(trace.hints.values()) == {"head"}  # addmm and linear with an extent of 64


def test_packed_and_bare_files_hold_the_same(tmp_path):
    written = small()
    plain = written.write(tmp_path / "t.json")
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(written.text().encode()))
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(written.events))
    rows = read_kineto(plain, header_of(plain)).rows
    assert read_kineto(str(packed), header_of(str(packed))).rows == rows
    assert header_of(str(bare)) == {}
    assert [r.name for r in read_kineto(str(bare), {}).rows] == [r.name for r in rows]


def test_a_step_has_a_row_for_each_stream_of_the_device(tmp_path):
    out = TraceWriter()
    out.kernel(GEMM, 100.0, 10.0)
    out.row("user_annotation", "ProfilerStep#7", 40.0, 100.0, tid=1)
    out.row("gpu_user_annotation", "ProfilerStep#7", 100.0, 10.0, tid=7)
    out.row("gpu_user_annotation", "ProfilerStep#7", 90.0, 65.0, tid=20)
    path = out.write(tmp_path / "t.json")
    assert read_kineto(path, header_of(path)).steps == (ProfiledStep(7, 90_000, 155_000),)


def test_operators_with_the_size_of_the_head_are_marked(tmp_path):
    out = TraceWriter()
    out.kernel(GEMM, 100.0, 10.0, **{"External id": 5})
    dims = {"Input Dims": [[8192, 4096], [4096, 128256], []]}
    out.row("cpu_op", "aten::mm", 50.0, 5.0, tid=1, **{"External id": 5}, **dims)
    out.row("cpu_op", "aten::add", 60.0, 5.0, tid=1, **{"External id": 6}, **dims)
    out.row("cpu_op", "_GroupedLinear", 70.0, 5.0, tid=1, **{"External id": 7})
    path = out.write(tmp_path / "t.json")
    hints = read_kineto(path, header_of(path), frozenset({128256})).hints
    assert hints == {5: "head", 7: "experts"}


@pytest.mark.parametrize(
    ("ranks", "read"), [("[0, 4, 8]", (0, 4, 8)), ("[0, 4, 8, ...]", ()), ("", ())]
)
def test_a_list_of_ranks_that_is_cut_short_is_none(tmp_path, ranks, read):
    out = TraceWriter()
    out.nccl(GATHER, 1.0, 1.0, collective="_allgather_base", nelems=(1, 1), size=64, ranks=ranks)
    path = out.write(tmp_path / "t.json")
    assert read_kineto(path, header_of(path)).rows[0].call.ranks == read


def test_of_several_devices_the_one_with_most_rows_is_read(tmp_path):
    out = small()
    out.kernel(GEMM, 4462136704200.0, 1.0)["args"]["device"] = 1
    path = out.write(tmp_path / "t.json")
    trace = read_kineto(path, header_of(path))
    assert len(trace.rows) == 2
    assert trace.other_devices == (1,)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "breaks off"),
        (b"no json at all", "is damaged, or no trace"),
        (b'{"schema_version": "1.0", "plans": []}', "no traceEvents"),
        (b"3", "no traceEvents"),
        (b'{"traceEvents": 5}', "holds no kernels"),
        (b'{"traceEvents": [7]}', "is 7, not an object"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1}]}', "no time"),
        (b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm"}]}', "holds no kern"),
        (b"\x1f\x8b\x08broken", "is damaged|breaks off"),
        (b"\xff\xfe\x00\x00", "is damaged, or no trace"),
    ],
)
def test_files_that_are_no_trace(tmp_path, content, says):
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=says):
        read_kineto(str(path), header_of(str(path)))


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_that_breaks_off(tmp_path, packed):
    text = small().text().encode()
    path = tmp_path / "t.json"
    path.write_bytes(gzip.compress(text)[:-60] if packed else text[: len(text) // 2])
    with pytest.raises(UsageError, match="breaks off"):
        read_kineto(str(path), header_of(str(path)))


def test_no_such_file_and_a_folder(tmp_path):
    with pytest.raises(UsageError, match="no trace file"):
        header_of(str(tmp_path / "none.json"))
    with pytest.raises(UsageError, match="cannot read"):
        list(events_of(str(tmp_path)))


STEPS = tuple(ProfiledStep(n, 1000 * n, 1000 * n + 900) for n in (3, 4, 5, 8))


def test_a_step_lasts_until_the_next_one_starts():
    found = chosen_windows("t", STEPS, None)
    assert [(s.number, s.end_ns - s.start_ns) for s in found] == [(4, 1000), (5, 900), (8, 900)]
    assert [s.number for s in chosen_windows("t", STEPS, (3, 4))] == [3, 4]
    assert [s.number for s in chosen_windows("t", STEPS[:1], None)] == [3]


def test_steps_that_are_not_there():
    with pytest.raises(UsageError, match=r"--steps 6-7 is not in t\n  fix: its steps are 3 to 8"):
        chosen_windows("t", STEPS, (6, 7))
    with pytest.raises(UsageError, match="marks no steps"):
        chosen_windows("t", (), None)


@pytest.mark.parametrize("text", ["a", "5-3", "1-2-3", "-1", "3-"])
def test_ranges_of_steps_that_are_none(text):
    with pytest.raises(UsageError, match="--steps"):
        parse_steps(text)


def test_ranges_of_steps():
    assert (parse_steps("3-5"), parse_steps("4"), parse_steps("")) == ((3, 5), (4, 4), None)
