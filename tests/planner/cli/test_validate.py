"""`planner validate` on the shipped runs: what is reached, guarded from both sides."""

import contextlib
import io
import json

import pytest

from planner.cli.commands.validate import run_validate
from planner.measure.validate import report
from planner.solver.calibration.file import load_calibration

STEP_TIME = {
    # Median error of the step time by source, %: what is reached.
    "aa": 3.1,
    "automodel": 24.3,
    "bs11": 6.1,
    "bs3": 7.9,
    "bsg": 12.1,
    "dgxc": 4.2,
    "dlp": 3.9,
    "fms": 8.9,
    "hfam": 41.9,
    "ie": 2.8,
    "korthikanti22": 3.3,
    "lf": 2.7,
    "mbcard": 9.4,
    "mbridge": 6.4,
    "mlperf": 7.4,
    "mlpoem": 6.3,
    "mlpamd": 4.4,
    "torchtune": 12.5,
    "mtnlg": 13.2,
    "nemo": 4.1,
    "nemo25": 4.9,
    "primusmoe": 6.2,
    "sc21": 8.7,
    "smx": 3.5,
    "torchao": 13.2,
    "tt": 3.2,
    "us": 4.6,
    "vtm": 7.5,
    "vts": 6.1,
}
ERAS = {"2019-24": 5.5, "2025-26": 6.5, "experts": 6.9, "fp8": 5.6, "amd": 10.5}
ERAS |= {"adapters": 7.9, "packed": 7.8}
"""Median error by era and by what runs have, %: means over families, or over rows."""
MEMORY = {"bs11": 4.4, "bs3": 5.2, "mbcard": 1.0, "smx": 0.7, "tt": 3.5, "us": 4.9, "dlp": 9.7}
NOISE_PERCENT = 0.4
"""A change below this is within what repeats of one run differ by."""


@pytest.fixture(scope="module")
def found(shipped_rows):
    """The command's answer on rows that are priced already, as it would price them itself."""

    def priced(points, models, hardware, calibration, progress=None):
        assert [row.point for row in shipped_rows] == list(points)
        assert calibration == load_calibration()
        return shipped_rows

    text = io.StringIO()
    with contextlib.redirect_stdout(text), pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "price_points", priced)
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
    eras = {one["key"]: one for one in found["eras"]}
    assert [len(eras[key]["families"]) for key in ("2019-24", "2025-26")] == [13, 11]
    assert set(eras) == set(ERAS)
    for key, bound in ERAS.items():
        _reached(key, 100 * eras[key]["median_ape"], bound)


@pytest.mark.slow
def test_rows_used_and_intervals_hold_what_they_promise(found):
    totals, everywhere, *regimes = found["totals"], *found["intervals"]
    assert totals["n_used"] / totals["n_eligible"] > 0.955
    assert 0.74 <= everywhere["inside"] <= 0.86
    assert all(one["inside"] >= 0.71 for one in regimes if one["n"] >= 30)


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
    # 30B on 256 devices came in with six sweeps in which pipelines are ranked the wrong way round:
    # 0.74 and 2.7 % before them.
    assert ranking["aa"]["n_sweeps"] == 21
    assert 0.68 < ranking["aa"]["tau"] < 0.90  # above, the suspicion is overfitting
    assert ranking["aa"]["regret_1"]["mean"] < 0.051
    assert ranking["aa"]["regret_3"]["mean"] < 0.0065
    assert ranking["us"]["tau"] > 0.89
    assert ranking["us"]["regret_1"]["median"] < 0.002
    # 0.938 before MaxText and Paxml were fitted with recomputation: one pair of 80 changed places,
    # two plans of 256 devices that are predicted 0.1 to 0.2 % apart (measured: 14 %).
    assert ranking["ie"]["tau"] > 0.90


@pytest.mark.slow
def test_dense_families_beat_the_baselines(found):
    # Where one constant beats us the page of accuracy says so: few layouts of one tuned stack.
    behind = {"bs11", "fms", "mlpamd", "mtnlg", "nemo25", "torchao", "torchtune", "vtm"}
    for source in found["sources"]:
        name, error = source["source"], source["step_time"]["median_ape"]
        if source["step_time"]["n"] and name not in behind:
            for base in ("b0", "b1"):
                assert error < found["baselines"][base]["step_time"][name]["median_ape"], name
