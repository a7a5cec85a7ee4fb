"""The sweep over a step: exact parts, gaps, and whose gaps they are."""

from hypothesis import given
from hypothesis import strategies as st

from planner.analyze.kineto.intervals import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    Work,
    occupancy,
    waited_for_host,
)

SPANS = st.tuples(
    st.integers(-5, 40), st.integers(0, 15), st.integers(0, 2), st.sampled_from("abc")
)


def test_communication_counts_where_no_compute_runs():
    work = [
        Work(0, 10, COMPUTE, "gemm"),
        Work(5, 20, COMMUNICATION, "tp"),
        Work(12, 14, COMPUTE, "attention"),
    ]
    found = occupancy(work, 0, 25)
    assert found.parts_ns == {"gemm": 10.0, "attention": 2.0, "tp": 8.0}  # 10 to 12, 14 to 20
    assert found.gaps_ns == ((20, 25),)


def test_what_runs_at_the_same_time_shares_it():
    work = [
        Work(0, 10, COMMUNICATION, "tp"),
        Work(4, 12, COMMUNICATION, "dp"),
        Work(4, 6, COMMUNICATION, "dp"),
    ]
    assert occupancy(work, 0, 12).parts_ns == {"tp": 7.0, "dp": 5.0}


def test_copies_count_where_nothing_else_runs_and_windows_cut():
    work = [Work(-5, 3, COPY, "copies"), Work(2, 4, COMMUNICATION, "dp"), Work(8, 99, COPY, "x")]
    found = occupancy(work, 0, 10)
    assert found.parts_ns == {"copies": 2.0, "dp": 2.0, "x": 2.0}
    assert found.gaps_ns == ((4, 8),)


@given(st.lists(SPANS, max_size=12))
def test_as_counting_every_nanosecond(spans):
    start_ns, end_ns = 0, 30
    work = [Work(at, at + length, layer, label) for at, length, layer, label in spans]
    parts, idle = {}, 0
    for t in range(start_ns, end_ns):
        running = [w for w in work if w.start_ns <= t < w.end_ns]
        first = min((w.layer for w in running), default=None)
        labels = {w.label for w in running if w.layer == first}
        for label in labels:
            parts[label] = parts.get(label, 0.0) + 1 / len(labels)
        idle += not labels
    found = occupancy(work, start_ns, end_ns)
    assert found.parts_ns.keys() == parts.keys()
    assert all(abs(found.parts_ns[label] - parts[label]) < 1e-9 for label in parts)
    assert sum(b - a for a, b in found.gaps_ns) == idle
    assert all(one[1] < two[0] for one, two in zip(found.gaps_ns, found.gaps_ns[1:], strict=False))


def test_a_gap_is_the_hosts_until_the_launch_of_what_ends_it():
    gaps = [(100, 200), (300, 400), (500, 600), (700, 800), (900, 950)]
    launched = {200: 170, 400: 250, 600: 900, 950: 910}
    # 70 of the first; launched before the second; later than it could start; unknown; 10.
    assert waited_for_host(gaps, launched) == 70 + 0 + 100 + 0 + 10
    assert waited_for_host(gaps, launched, last_ns=800) == 70 + 0 + 100 + 100 + 10
