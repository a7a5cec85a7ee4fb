"""Which hardware does a job, and the largest rank of adapters, against searches one by one."""

import pytest

import planner
from planner.analyze.recommend.hardware import HardwareLimits, cluster_groups, clusters_of_part
from planner.errors import SpecError, UsageError
from planner.render.document import text_of
from planner.solver.request import SolveRequest
from tests.planner.command import run_here

JOB = {
    "training.task": "qlora",
    "training.seq_len": 2048,
    "training.global_batch": 8,
    "training.tokens": 20_000_000,
}
REQUEST = SolveRequest.of(overrides=tuple(JOB.items()))


def test_sizes_of_a_part_are_tried_upwards():
    assert clusters_of_part("4090") == tuple(f"{n}xrtx-4090-24gb" for n in (1, 2, 4, 8, 16))
    assert cluster_groups("2x4090, h100")[0] == ("2x4090",)
    assert cluster_groups("any")[0][0].startswith("1x")


def test_the_cheapest_of_a_list_comes_first():
    """Each row is what `solve` says of that cluster; the cost is its own with that price."""
    prices = {"4090": 0.4, "5090": 0.7}
    found = planner.recommend(
        "hardware", "llama3-8b", "4090,5090", REQUEST, usd_per_device_hour=prices
    )
    assert found.answer is not None
    rows = found.answer["clusters"]
    assert [row["cost_usd"] for row in rows] == sorted(row["cost_usd"] for row in rows)
    for row in rows:
        price = prices[row["cluster"].split("-")[1]]
        plan = planner.solve(
            "llama3-8b",
            row["cluster"],
            SolveRequest.of(overrides=(*JOB.items(), ("pools.0.price_per_hour", price))),
        ).best
        assert row["step_time_s"] == plan.step_time_s
        assert row["cost_usd"] == pytest.approx(plan.run.cost_usd)
        assert row["usd_per_device_hour"] == price
        hours = row["expected_s"] / 3600 * row["n_devices"]
        assert row["cost_usd"] == pytest.approx(hours * price)
    assert rows[0]["cluster"] in text_of(found)


def test_a_limit_of_days_takes_more_devices():
    slow = planner.recommend("hardware", "llama3-8b", "4090", REQUEST)
    hours = slow.answer["clusters"][0]["expected_s"] / 3600
    fast = planner.recommend("hardware", "llama3-8b", "4090", REQUEST, days=0.6 * hours / 24)
    assert slow.answer["clusters"][0]["n_devices"] == 1
    assert fast.answer["clusters"][0]["n_devices"] == 2
    none = planner.recommend("hardware", "llama3-8b", "4090", REQUEST, days=1e-6)
    assert none.answer is None
    assert none.exit_code == 3


def test_parts_that_cannot_be_searched_say_why():
    found = planner.recommend("hardware", "llama3-8b", "4090,t4", REQUEST)
    assert list(found.answer["refused"]) == ["1xt4-16gb"]


@pytest.mark.parametrize(
    ("cluster", "limits", "said"),
    [
        ("4090", {"days": -1.0}, "--days"),
        ("4090", {"usd_per_device_hour": {"4090": 0.0}}, "--price 4090"),
        ("4090", {"usd_per_device_hour": {"40900": 1.0}}, "no accelerator"),
        (",", {}, "0 clusters"),
    ],
)
def test_bad_limits_are_named(cluster, limits, said):
    with pytest.raises(UsageError, match=said):
        planner.recommend("hardware", "llama3-8b", cluster, REQUEST, **limits)


def test_a_name_that_is_no_hardware_is_no_candidate():
    with pytest.raises(SpecError, match="nope"):
        planner.recommend("hardware", "llama3-8b", "4090,nope", REQUEST)
    with pytest.raises(UsageError, match="list of names"):
        planner.recommend("hardware", "llama3-8b", {"pools": []}, REQUEST)
    assert HardwareLimits(2.0, {"4090": 1.0}).prices() == {"rtx-4090-24gb": 1.0}


def test_the_largest_rank_fits_and_its_double_does_not():
    found = planner.recommend("rank", "llama3-8b", "1x5090", REQUEST)
    rank = found.answer["rank"]
    for value, fits in ((rank, True), (2 * rank, False)):
        overrides = (*JOB.items(), ("training.lora.rank", value))
        result = planner.solve("llama3-8b", "1x5090", SolveRequest.of(overrides=overrides))
        assert bool(result.plans) is fits
    with pytest.raises(UsageError, match="trains no adapters"):
        planner.recommend("rank", "llama3-8b", "1x5090")


def test_a_command_line_answers_in_one_line():
    job = ("--task", "qlora", "--seq", "2048", "--batch", "8", "--tokens", "20M")
    words = ("recommend", "hardware", "llama3-8b", "4090,5090", *job)
    status = run_here(*words, "--price", "4090=0.4", "--price", "5090=0.7")
    assert status.returncode == 0
    assert status.stdout.startswith("Best of 2 that do the job:")
    wrong = run_here("recommend", "hardware", "llama3-8b", "4090", "--price", "4090")
    assert wrong.returncode == 2
    assert "is no part and its price" in wrong.stderr
