"""`planner validate` on the shipped runs: what is reached, guarded from both sides."""

import contextlib
import io
import json

import pytest

from planner.cli.commands.validate import run_validate

STEP_TIME = {
    # Median error of the step time by source, %: what is reached. Eleven make the headline.
    "aa": 3.2,
    "us": 4.6,
    "lf": 2.8,
    "ie": 2.8,
    "tt": 3.3,
    "dlp": 3.8,
    "bs3": 4.3,
    "bsg": 12.1,
    "dgxc": 3.5,
    "nemo": 3.6,
    "mbridge": 5.5,
    "korthikanti22": 3.3,
    "sc21": 4.9,
    "smx": 3.4,
    "vts": 5.3,
}
HEADLINE_PERCENT = 4.5
MEMORY = {"bs3": 4.6, "smx": 0.7, "us": 4.9, "dlp": 9.7}
NOISE_PERCENT = 0.4
"""A change below this is within what repeats of one run differ by."""


@pytest.fixture(scope="module")
def found():
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        assert run_validate(form="json") == 0
    return json.loads(text.getvalue())


def _reached(name, percent, bound):
    assert percent < bound + NOISE_PERCENT, f"{name} became worse: {percent:.1f} %"
    assert percent > bound - 3 * NOISE_PERCENT, f"{name} became better: lower its bound"


@pytest.mark.slow
def test_step_times_stay_as_close_as_they_are(found):
    for source in found["sources"]:
        if source["step_time"]["n"]:
            name = source["source"]
            _reached(name, 100 * source["step_time"]["median_ape"], STEP_TIME[name])
    headline = found["totals"]["headline"]["step_time"]
    assert headline["n_families"] == 11
    _reached("headline", 100 * headline["median_ape"], HEADLINE_PERCENT)


@pytest.mark.slow
def test_memory_stays_as_close_as_it_is(found):
    medians = {s["source"]: s["memory"]["median_ape"] for s in found["sources"]}
    for name, bound in MEMORY.items():
        _reached(name, 100 * medians[name], bound)
    oom = {s["source"]: s["oom"] for s in found["sources"]}
    assert oom["aa"]["balanced_accuracy"] > 0.97
    assert oom["lf"]["recall_fit"] == 1.0


@pytest.mark.slow
def test_rankings_stay_as_right_as_they_are(found):
    ranking = found["totals"]["ranking"]["layout-only"]
    assert ranking["aa"]["n_sweeps"] == 15
    assert 0.71 < ranking["aa"]["tau"] < 0.90  # above, the suspicion is overfitting
    assert ranking["aa"]["regret_1"]["mean"] < 0.027
    assert ranking["aa"]["regret_3"]["mean"] < 0.006
    assert ranking["us"]["tau"] > 0.89
    assert ranking["us"]["regret_1"]["median"] < 0.002
    # 0.938 before MaxText and Paxml were fitted with recomputation: one pair of 80 changed places,
    # two plans of 256 devices that are predicted 0.1 to 0.2 % apart (measured: 14 %).
    assert ranking["ie"]["tau"] > 0.90


@pytest.mark.slow
def test_dense_families_beat_the_baselines(found):
    # Where one constant beats us the page of accuracy says so: few layouts of one tuned stack.
    behind = {"mbridge", "sc21", "smx"}
    for source in found["sources"]:
        name, error = source["source"], source["step_time"]["median_ape"]
        if source["step_time"]["n"] and name not in behind:
            for base in ("b0", "b1"):
                assert error < found["baselines"][base]["step_time"][name]["median_ape"], name
