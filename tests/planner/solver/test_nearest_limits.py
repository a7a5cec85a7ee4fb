"""A deadline or step limit that no plan keeps: the answer names the nearest that one does."""

import re
from typing import Any

import pytest

import planner
from planner.render.document import text_of
from planner.specs.search.objectives import parse_duration, shown_duration

MODEL: dict[str, Any] = {
    "model": {
        "name": "small",
        "layers": 8,
        "hidden": 1024,
        "heads": 8,
        "ffn": 4096,
        "gated": False,
        "vocab": 32000,
        "tied": False,
    },
    "training": {"seq_len": 1024, "global_batch": 64, "precision": "bf16", "tokens": "1T"},
}


def cluster(**operations: str) -> dict[str, Any]:
    pool = {
        "name": "small",
        "nodes": 1,
        "accelerators_per_node": 4,
        "accelerator": "h100-sxm-80gb",
    }
    return {"pools": [pool], **({"operations": operations} if operations else {})}


def named(option: str, **limits: Any) -> str:
    """Return the value that the answer names for an option."""
    found = planner.solve(MODEL, cluster(), **limits)
    assert not found.plans
    assert found.exit_code == 3
    text = " ".join(text_of(found).split())
    assert "No plan keeps the limits." in text
    shown = re.search(rf"{option} (\S+) \(on 4 devices of small\)", text)
    assert shown, text
    return shown.group(1)


def test_the_nearest_deadline_can_be_kept_and_no_shorter_one_can() -> None:
    text = named("--deadline", deadline="1h")
    seconds = parse_duration(text, "--deadline")
    first = planner.solve(MODEL, cluster(), deadline=text).best
    assert first.run.expected_s <= seconds
    shorter = shown_duration(seconds - 0.2 * 86400)
    assert not planner.solve(MODEL, cluster(), deadline=shorter).plans
    # Fewer devices take longer still.
    for n in (1, 2):
        plans = planner.solve(MODEL, cluster(), pins={"devices": n}).plans
        assert min(plan.run.expected_s for plan in plans) > seconds


def test_the_shortest_step_can_be_kept() -> None:
    text = named("--step-limit", step_limit_s=0.001)
    assert planner.solve(MODEL, cluster(), step_limit_s=float(text)).plans
    assert not planner.solve(MODEL, cluster(), step_limit_s=float(text) - 0.002).plans


def test_of_two_limits_the_one_that_cannot_be_kept_is_named() -> None:
    step_s = planner.solve(MODEL, cluster(), top=1).best.step_time_s
    assert named("--deadline", deadline="1h", step_limit_s=2 * step_s).endswith("d")
    found = planner.solve(MODEL, cluster(), deadline="1h", step_limit_s=step_s / 2)
    text = " ".join(text_of(found).split())
    assert "the shortest step that can be kept: --step-limit" in text
    assert "no deadline can be kept within this step limit" in text


def test_where_no_run_ends_no_deadline_is_named() -> None:
    # A checkpoint takes an hour, and a device fails every minute.
    given = cluster(device_mtbf="1 min", checkpoint_time="1 h")
    found = planner.solve(MODEL, given, deadline="1000d")
    assert not found.plans
    text = " ".join(text_of(found).split())
    assert "no deadline can be kept: the devices fail sooner than a checkpoint is written" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (86400.0 * 2, "2d"),
        (86400.0 * 2.01, "2.1d"),
        (86400.0, "24h"),
        (1.0, "1s"),
        (601, "10.1min"),
    ],
)
def test_durations_are_rounded_up_and_read_back(seconds: float, text: str) -> None:
    assert shown_duration(seconds) == text
    assert parse_duration(text, "--deadline") >= seconds
