"""The fit finds known latencies and bandwidths again, and says what the data do not show."""

from dataclasses import replace

import numpy as np
import pytest

from hardware.parts import Fabric
from planner.measure.benchmarks.link_fit import fit_links
from planner.measure.benchmarks.pulled_fit import (
    FITTED,
    UNSEEN,
    Quantity,
    carried_value,
    pulled_fit,
)
from planner.measure.benchmarks.sweep import SizeSweep, predicted_s
from planner.solver.calibration.apply import calibrated_pool
from planner.solver.calibration.file import Calibration
from planner.specs.loader import cluster_from_dict, load_cluster
from tests.planner.measure.benchmarks.logs import model_times, sweep_of

FLAT, PRIORS = Fabric(), Calibration("priors")
INSIDE = [
    ("all-gather", 2, 1),
    ("all-gather", 8, 1),
    ("reduce-scatter", 4, 1),
    ("all-reduce", 4, 1),
    ("all-reduce", 8, 1),
]
ACROSS = [
    ("all-gather", 16, 2),
    ("all-reduce", 16, 2),
    ("all-gather", 64, 8),
    ("all-reduce", 64, 8),
]
NEAR = {
    "link.nvlink4.efficiency": 0.70,
    "link.nvlink4.base_scale": 1.8,
    "link.nvlink4.hop_scale": 1.4,
    "link.nvlink4.in_switch_scale": 1.1,
    "link.nvlink4.library_latency_scale": 1.3,
}
FAR = {"link.ib-ndr-400.efficiency": 0.85, "link.ib-ndr-400.hop_scale": 2.0}


@pytest.fixture(scope="module")
def pool():
    return load_cluster("h100-x512").cluster.pools[0]


def timed(cases, pool, truth, noise):
    there = calibrated_pool(pool, Calibration("truth", truth))
    sweeps = [sweep_of(*case) for case in cases]
    return [replace(s, times_s=tuple(model_times(s, there, noise))) for s in sweeps]


def values_of(fit):
    return {e.quantity.name: e.value for e in fit.estimates}


def test_known_latencies_and_bandwidths_are_found_again_under_noise(pool):
    sweeps = timed(INSIDE + ACROSS, pool, {**NEAR, **FAR}, 0.03)
    fit = fit_links(sweeps, pool, FLAT, PRIORS)
    found = values_of(fit)
    for name, truth in {**NEAR, **FAR}.items():
        wide = 0.15 if name.endswith(("hop_scale", "latency_scale")) else 0.06
        assert found[name] == pytest.approx(truth, rel=wide), name
    # What was not changed is not moved far, and the times follow.
    assert found["link.nvlink4.simple_scale"] == pytest.approx(1.0, abs=0.12)
    for one in fit.sweeps:
        assert one.median_error(one.after_s) < 0.04 < one.median_error(one.before_s)
    intervals = {e.quantity.name: (e.low, e.high) for e in fit.estimates}
    inside = [low <= truth <= high for n, truth in NEAR.items() for low, high in [intervals[n]]]
    assert sum(inside) >= 4


def test_without_noise_and_change_nothing_moves(pool):
    fit = fit_links(timed(INSIDE, pool, {}, 0.0), pool, FLAT, PRIORS)
    for e in fit.estimates:
        assert e.value == pytest.approx(e.quantity.prior, rel=1e-6)


def test_what_the_data_do_not_show_keeps_the_values_of_before(pool):
    # Large messages only: no latency, and a part of the latencies is never in any message.
    sizes = [2.0**30, 2.0**32]
    sweep = sweep_of("all-gather", 8, sizes=sizes)
    there = calibrated_pool(pool, Calibration("truth", {"link.nvlink4.efficiency": 0.6}))
    sweep = replace(sweep, times_s=tuple(predicted_s(sweep, there, FLAT)))
    base = Calibration("base", {"link.nvlink4.hop_scale": 1.7})
    fit = fit_links([sweep], pool, FLAT, base)
    status = {e.quantity.name.rpartition(".")[2]: e.status for e in fit.estimates}
    assert status.pop("efficiency") == FITTED
    assert set(status.values()) == {UNSEEN}
    found = values_of(fit)
    assert found["link.nvlink4.efficiency"] == pytest.approx(0.6, rel=0.03)
    assert found["link.nvlink4.hop_scale"] == 1.7
    assert set(carried_value(fit.estimates)) == {"link.nvlink4.efficiency"}


def test_nodes_fit_the_network_and_leave_the_scale_up_link(pool):
    fit = fit_links(timed(ACROSS, pool, FAR, 0.0), pool, FLAT, PRIORS)
    assert {e.quantity.name.split(".")[1] for e in fit.estimates} == {"ib-ndr-400"}
    assert values_of(fit)["link.ib-ndr-400.hop_scale"] == pytest.approx(2.0, rel=0.05)
    assert fit.notes == (
        "no times inside a node: nvlink4 stays, and what it limits is not fitted",
    )


def test_a_few_wild_times_do_not_spoil_the_fit(pool):
    sweeps = timed(INSIDE, pool, NEAR, 0.0)
    slow = tuple(t * (8.0 if i == 5 else 1.0) for i, t in enumerate(sweeps[1].times_s))
    sweeps[1] = replace(sweeps[1], times_s=slow)
    found = values_of(fit_links(sweeps, pool, FLAT, PRIORS))
    assert found["link.nvlink4.efficiency"] == pytest.approx(0.70, rel=0.05)
    assert found["link.nvlink4.base_scale"] == pytest.approx(1.8, rel=0.1)


@pytest.mark.slow
def test_a_link_far_below_its_range_is_not_carried(pool):
    # A hundredth of the bandwidth is a wrong network (sockets), no calibration of this one.
    sweeps = [
        replace(s, times_s=tuple(100 * t for t in s.times_s)) for s in timed(ACROSS, pool, {}, 0.0)
    ]
    fit = fit_links(sweeps, pool, FLAT, PRIORS)
    status = {e.quantity.name.rpartition(".")[2]: e.status for e in fit.estimates}
    assert status["efficiency"] == "at its bound"
    assert "link.ib-ndr-400.efficiency" not in carried_value(fit.estimates)
    assert any("stays" in note for note in fit.notes)


def test_the_same_input_gives_the_same_fit(pool):
    sweeps = timed(INSIDE[:2], pool, NEAR, 0.05)
    assert fit_links(sweeps, pool, FLAT, PRIORS) == fit_links(sweeps, pool, FLAT, PRIORS)


# Published nccl-tests results: tables and sources in tests/costmodels/comm/test_collectives.py.
MIB = 2.0**20
B200_SIZES = [MIB / 4, 2 * MIB, 8 * MIB, 32 * MIB, 128 * MIB, 512 * MIB]
B200 = {
    ("all-reduce", 8): [28, 32, 72, 168, 398, 1335],
    ("all-reduce", 4): [17, 26, 85, 123, 342, 1271],
    ("all-gather", 8): [19, 24, 44, 114, 207, 761],
    ("reduce-scatter", 8): [18, 21, 44, 107, 208, 766],
}
BUS_SIZES = [x * MIB for x in (16, 64, 256, 512, 1024, 4096, 16384)]
H100_BUS_GB_PER_S = {
    4: [126, 230, 314, 338, 351, 366, 379],
    16: [72, 176, 297, 330, 350, 371, 380],
    64: [57, 150, 265, 308, 340, 359, 372],
    128: [48, 125, 255, 299, 332, 358, 372],
    1024: [33, 107, 217, 268, 307, 347, 367],
}


def nodes_of(accelerator, n_nodes):
    spec = {"name": "x", "pools": [{"accelerator": accelerator, "nodes": n_nodes}]}
    return cluster_from_dict(spec).cluster.pools[0]


def relative_errors(sweep, pool):
    model = np.array(predicted_s(sweep, pool, FLAT))
    return np.abs(model / np.array(sweep.times_s) - 1)


@pytest.mark.slow
def test_published_b200_tables_each_predicted_from_the_others():
    pool = nodes_of("b200-sxm-180gb", 1)
    sweeps = [
        SizeSweep("b200", name, n, 1, 8, tuple(B200_SIZES), tuple(us * 1e-6 for us in times))
        for (name, n), times in B200.items()
    ]
    before = np.concatenate([relative_errors(s, pool) for s in sweeps])
    after = []
    for i, held_out in enumerate(sweeps):
        fit = fit_links(sweeps[:i] + sweeps[i + 1 :], pool, FLAT, PRIORS)
        fitted = calibrated_pool(pool, Calibration("fit", carried_value(fit.estimates)))
        after.append(relative_errors(held_out, fitted))
    # Reached: 19 % in the median before, 8 % after.
    assert np.median(before) > 0.17
    assert np.median(np.concatenate(after)) < 0.10


def test_published_all_reduces_on_up_to_64_nodes_predict_128_and_1024():
    pool = nodes_of("h100-sxm-80gb", 1024)
    sweeps = {}
    for nodes, rates in H100_BUS_GB_PER_S.items():
        n = 8 * nodes
        times = [2 * (n - 1) / n * s / (r * 1e9) for s, r in zip(BUS_SIZES, rates, strict=True)]
        sweeps[nodes] = SizeSweep(
            "h100", "all-reduce", n, nodes, 8, tuple(BUS_SIZES), tuple(times)
        )
    fit = fit_links([sweeps[n] for n in (4, 16, 64)], pool, FLAT, PRIORS)
    fitted = calibrated_pool(pool, Calibration("fit", carried_value(fit.estimates)))
    # Reached: at worst 13 and 15 %, from 63 and 70 %.
    for nodes in (128, 1024):
        assert relative_errors(sweeps[nodes], pool).max() > 0.6
        assert relative_errors(sweeps[nodes], fitted).max() < 0.2


def test_a_parameter_at_a_kink_is_kept_where_the_cost_needs_it():
    # max(a, b) = 4 at a = b: with b alone at 4, a's slope is nothing there, but without it (a back
    # at 1) a second row that only a explains is lost.
    quantities = [Quantity(name, "", 1.0, 0.7, 0.1, 10.0) for name in ("a", "b")]

    def residuals(values):
        a, b = values.get("a", 1.0), values.get("b", 1.0)
        rows = [np.log(max(a, b) / 4), np.log(min(a, 3.9) / 4)]
        return np.array(rows) / 0.05

    found = {e.quantity.name: e for e in pulled_fit(quantities, residuals)}
    assert found["a"].status == FITTED
    assert found["a"].value == pytest.approx(4.0, rel=0.05)
