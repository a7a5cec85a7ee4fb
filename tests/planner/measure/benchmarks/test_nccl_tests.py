"""Logs of nccl-tests: what was timed where, and what a damaged log gets."""

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import SpecError
from planner.measure.benchmarks.nccl_tests import (
    bus_bandwidth_factor,
    parse_nccl_tests,
    read_nccl_tests,
)
from tests.planner.measure.benchmarks.logs import COLUMNS, H100, header, log, row

DATA = Path(__file__).parent / "data"


def one(text: str, file: str = "made.log"):
    (table,) = parse_nccl_tests(text, file)
    return table


def whole(collective: str = "all-reduce", n_ranks: int = 8, n_nodes: int = 1) -> str:
    return log(collective, n_ranks, n_nodes, [2**20, 2**24, 2**28], [50e-6, 100e-6, 1e-3])


def refused(text: str, file: str = "made.log") -> str:
    with pytest.raises(SpecError) as caught:
        parse_nccl_tests(text, file)
    return str(caught.value)


def test_two_nodes_under_mpirun():
    (table,) = read_nccl_tests([str(DATA / "all_reduce_two_nodes_mpirun.log")])
    assert (table.collective, table.n_ranks, table.n_nodes) == ("all-reduce", 16, 2)
    assert (table.busy_per_node, table.device, table.notes) == (8, H100, ())
    sweep = table.sweep()
    assert sweep.sizes_bytes == (2**20, 2**23, 2**26, 2**29)
    # The mean of 92.1 and 91.4 us, out of and in place.
    assert sweep.times_s[0] == pytest.approx(91.75e-6)
    assert sweep.times_s[-1] == pytest.approx(2510.7e-6)
    assert sweep.ranks_per_node == 8
    assert sweep.place_words == "16 ranks on 2 nodes"


def test_an_old_release_with_neither_operation_nor_root_nor_program():
    (table,) = read_nccl_tests([str(DATA / "old_all_gather.log")])
    # The file's name says all-gather, as the rates do: busbw is 3/4 of algbw on four ranks.
    assert (table.collective, table.n_ranks, table.n_nodes) == ("all-gather", 4, 1)
    assert table.device == "Tesla V100-SXM2-32GB"
    assert [t.out_of_place_s for t in table.timings] == pytest.approx([40.2e-6, 180.7e-6, 2190e-6])


def test_two_programs_in_one_log_under_srun():
    exchange, message = read_nccl_tests([str(DATA / "alltoall_then_sendrecv_srun.log")])
    assert (exchange.collective, message.collective) == ("all-to-all", "send-receive")
    assert exchange.n_ranks == message.n_ranks == 8
    # #wrong is N/A in place: nothing was checked, the time counts all the same.
    assert exchange.timings[0].in_place_s == pytest.approx(47.6e-6, rel=0.01)
    assert len(exchange.timings) == len(message.timings) == 3


@pytest.mark.parametrize(
    "collective",
    ["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "send-receive"],
)
def test_every_program_reads_back(collective):
    table = one(whole(collective, 16, 2))
    assert table.collective == collective
    assert table.sweep().times_s == pytest.approx((50e-6, 100e-6, 1e-3), rel=1e-3)


def test_bus_factors_by_hand():
    assert bus_bandwidth_factor("all-reduce", 8) == 1.75
    assert bus_bandwidth_factor("all-gather", 8) == bus_bandwidth_factor("all-to-all", 8) == 0.875
    assert bus_bandwidth_factor("broadcast", 8) == bus_bandwidth_factor("send-receive", 8) == 1.0


def test_without_a_program_the_rates_and_labels_tell():
    bare = re.sub(r"# (nccl-tests|Collective).*\n", "", whole("all-reduce", 8))
    assert one(bare).collective == "all-reduce"
    scatter = re.sub(r"# (nccl-tests|Collective).*\n", "", whole("reduce-scatter", 8))
    assert one(scatter).collective == "reduce-scatter"
    # 7/8 without an operation may be two things.
    gather = re.sub(r"# (nccl-tests|Collective).*\n", "", whole("all-gather", 8))
    message = refused(gather)
    assert "all-gather or all-to-all" in message
    assert "made.log:16" in message  # the first row
    assert one(gather, "my-alltoall-8.log").collective == "all-to-all"


def test_rates_that_contradict_the_program():
    wrong = whole("all-gather", 8).replace("all_gather_perf", "all_reduce_perf")
    message = refused(wrong)
    assert "busbw is 0.875 of algbw, which is not all-reduce on 8 ranks (1.750)" in message
    # The list of ranks is cut: all-reduce over 8 has 1.75, over 2 it would be 1.
    cut = re.sub(r"#  Rank  [2-7] .*\n", "", whole())
    assert "on 2 ranks" in refused(cut)


def test_groups_at_once_are_told_from_the_rank_lines():
    # NCCL_TESTS_SPLIT_MASK=0x7: eight groups of one rank a node.
    text = whole("all-gather", 16, 2)
    lines = [
        re.sub(r"Group  0", f"Group  {int(m[1]) % 8}", line)
        if (m := re.match(r"#  Rank +(\d+)", line))
        else line
        for line in text.splitlines()
    ]
    # Groups of two: busbw is half of algbw.
    rows = [row("all-gather", 2, 2**20, 50e-6), row("all-gather", 2, 2**28, 9e-3)]
    head = [line for line in lines if not re.match(r"^ +\d", line)]
    table = one("\n".join(head[: len(head) - 3] + rows + head[len(head) - 3 :]))
    assert (table.n_ranks, table.n_nodes, table.busy_per_node) == (2, 2, 8)
    assert table.sweep().place_words == "2 ranks on 2 nodes, 8 groups at once"


def test_wrong_results_leave_the_row_out_and_are_said():
    text = whole().replace("      0 ", "     12 ", 1)
    table = one(text)
    assert len(table.timings) == 2
    assert "made.log:18: 12 wrong results" in table.notes[0]


def test_a_log_that_ends_early():
    text = whole()
    cut = text[: text.index("# Out of bounds")]
    table = one(cut)
    assert len(table.timings) == 3
    assert "ends before the program did" in table.notes[-1]
    # In the middle of a row.
    table = one(cut[:-60])
    assert len(table.timings) == 2
    assert any("made.log:20: the last row is cut off" in note for note in table.notes)


def test_a_run_that_failed():
    failure = "worker-0: Test NCCL failure common.cu:1005 'unhandled system error'\n"
    text = whole()
    table = one(text[: text.index("# Out of bounds")] + failure)
    assert "unhandled system error" in table.notes[-1]
    head = text[: text.index("     1048576")]
    message = refused(head + failure)
    assert "made.log:18" in message
    assert "the run failed" in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no table"),
        ("hello\nworld\n", "holds no table"),
        ('{"results": []}', "is JSON"),
        (re.sub(r"#  Rank.*\n", "", whole()), "no `# Rank ...` lines before the table"),
        (whole().replace("50.00", "5O.00"), "'5O.00' is no number"),
        (whole().replace("sum      -1 ", "sum      -1 7 8 ", 1), "a row of 15 fields"),
        (whole().replace("all_reduce_perf", "hypercube_perf"), "hypercube_perf times nothing"),
        (whole(n_ranks=8).replace("Rank  7 Group  0", "Rank  7 Group  1"), "groups of 1 and of 7"),
        (
            whole("all-reduce", 16, 2).replace(
                "on   worker-1 device  7", "on   worker-0 device  8"
            ),
            "nodes of 7 and of 9 ranks",
        ),
        (
            whole().replace(
                "device  7 [0x0f] NVIDIA H100 80GB HBM3", "device  7 [0x0f] NVIDIA L40S"
            ),
            "different accelerators",
        ),
        ("\n".join([*header(1, 1), *COLUMNS, row("all-reduce", 1, 2**20, 1e-5)]), "one rank"),
    ],
)
def test_bad_logs_say_what_is_wrong(text, words):
    assert words in refused(text)


def test_colours_windows_lines_and_bytes(tmp_path):
    text = "\x1b[32m" + whole().replace("\n", "\r\n")
    assert len(one(text).timings) == 3
    utf16 = tmp_path / "x.log"
    utf16.write_bytes(whole().encode("utf-16"))
    assert len(read_nccl_tests([str(utf16)])[0].timings) == 3
    utf16.write_bytes(b"\xff\x00\x01\x02")
    with pytest.raises(SpecError, match=r"not text|binary"):
        read_nccl_tests([str(utf16)])
    with pytest.raises(SpecError, match="no such file"):
        read_nccl_tests([str(tmp_path / "none.log")])


@given(
    at=st.integers(0, 10_000),
    n_gone=st.integers(0, 2_000),
    inserted=st.text("0123456789.eNA/#[]: -xyz\n", max_size=20),
)
def test_no_damage_ends_in_a_traceback(at, n_gone, inserted):
    text = (DATA / "alltoall_then_sendrecv_srun.log").read_text()
    at %= len(text)
    with suppress(SpecError):
        for table in parse_nccl_tests(text[:at] + inserted + text[at + n_gone :], "damaged.log"):
            sweep = table.sweep()
            assert len(sweep.sizes_bytes) == len(sweep.times_s) > 0
            assert min(sweep.times_s) > 0
            assert sweep.n_ranks % sweep.n_nodes == 0


@pytest.mark.parametrize(
    "before",
    [
        "[rank0]: ",
        "[default0]:",
        "0: ",
        "worker-1: ",
        "2026-01-02T03:04:05.678901234Z ",
        "2026-01-02 03:04:05 worker-1: ",
    ],
)
def test_what_launchers_put_before_a_line(before):
    text = "\n".join(before + line for line in whole().splitlines())
    assert one(text).timings == one(whole()).timings
