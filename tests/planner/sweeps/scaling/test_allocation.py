"""`planner.allocate`: what it reads, refuses and answers."""

import json

import pytest

import planner
from planner.errors import UsageError
from planner.render.document import text_of

JOBS = [
    {"name": "a", "curve": [{"pool": "h100", "nodes": 4, "tokens_per_s": 900.0}]},
    {
        "name": "b",
        "weight": 2,
        "tokens": 1e6,
        "deadline_s": 3600,
        "curve": [
            {"pool": "h100", "nodes": 2, "tokens_per_s": 500},
            {"pool": "a100", "nodes": 1, "tokens_per_s": 250},
        ],
    },
]


def test_the_answer_by_hand():
    answer = planner.allocate(JOBS, {"h100": 4, "a100": 1})
    data = answer.to_json()
    # 900 + 2 x 250 = 1400, and 2 x 500 = 1000 alone on the nodes of h100.
    assert data["value"] == pytest.approx(1400.0)
    assert data["used"] == {"h100": 4, "a100": 1}
    assert [(job["pool"], job["nodes"]) for job in data["jobs"]] == [("h100", 4), ("a100", 1)]
    late = data["jobs"][1]
    assert (late["remaining_s"], late["is_in_time"], late["speed_frac"]) == (4000.0, False, 0.5)
    assert (data["is_proven"], data["gap_frac"], answer.exit_code) == (True, 0.0, 0)
    assert json.loads(answer.dumps()) == data
    in_time = planner.allocate(JOBS, {"h100": 4, "a100": 1}, "deadline").to_json()
    assert [job["nodes"] for job in in_time["jobs"]] == [0, 2]
    assert in_time["jobs"][1]["is_in_time"] is True


def test_its_text_is_a_row_for_every_job():
    text = text_of(planner.allocate(JOBS, {"h100": 4, "a100": 1}))
    assert text.startswith("Allocation\n")
    assert all(f"\n{job['name']} " in text for job in JOBS)


def test_where_nothing_is_free_all_wait():
    answer = planner.allocate(JOBS, {"h100": 0, "a100": 0})
    assert answer.exit_code == 3
    assert answer.used() == {"h100": 0, "a100": 0}


def changed(i: int, **more: object) -> list[dict[str, object]]:
    return [{**job, **more} if n == i else job for n, job in enumerate(JOBS)]


@pytest.mark.parametrize(
    ("jobs", "free", "objective", "said"),
    [
        (JOBS, {"h100": 4, "a100": 1}, "beauty", "'beauty'"),
        (JOBS, {"h100": -1, "a100": 1}, "fairness", "free.h100"),
        (JOBS, {"h100": 4}, "fairness", "jobs.1.curve.1.pool"),
        (changed(0, name="b"), {"h100": 4, "a100": 1}, "fairness", "'b' stands twice"),
        (changed(0, weight=0), {"h100": 4, "a100": 1}, "fairness", "jobs.0.weight"),
        (changed(0, wait=0), {"h100": 4, "a100": 1}, "fairness", "unknown field 'wait'"),
        (changed(1, tokens=0), {"h100": 4, "a100": 1}, "fairness", "jobs.1.tokens"),
        (
            changed(0, curve=[{"pool": ["h100"], "nodes": 1, "tokens_per_s": 1.0}]),
            {"h100": 4, "a100": 1},
            "fairness",
            "jobs.0.curve.0.pool",
        ),
        (
            changed(0, curve=[{"pool": "h100", "nodes": 1, "tokens_per_s": 1e-310}]),
            {"h100": 4, "a100": 1},
            "fairness",
            "jobs.0.curve.0.tokens_per_s",
        ),
        (changed(0, name="a\x1b[31m"), {"h100": 4, "a100": 1}, "fairness", "jobs.0.name"),
        (changed(0, curve="x"), {"h100": 4, "a100": 1}, "fairness", "jobs.0.curve"),
        (JOBS[:1], {"h100": 4}, "deadline", "no job has a deadline"),
        (
            changed(0, curve=[*JOBS[0]["curve"], *JOBS[0]["curve"]]),
            {"h100": 4, "a100": 1},
            "fairness",
            "jobs.0.curve",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(jobs, free, objective, said):
    with pytest.raises(UsageError) as found:
        planner.allocate(jobs, free, objective)
    assert said in f"{found.value.message} {found.value.hint}"
