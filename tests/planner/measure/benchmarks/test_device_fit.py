"""Rates of a generation from products, memory passes and attention cores, and their file."""

import copy
import json
import math

import pytest

from planner.errors import SpecError
from planner.measure.benchmarks.device_fit import fit_device
from planner.measure.benchmarks.pulled_fit import UNSEEN, carried_value
from planner.measure.benchmarks.results import read_measured
from planner.solver.calibration.apply import calibrated_pool
from planner.solver.calibration.file import Calibration
from planner.specs.loader import load_cluster
from tests.planner.measure.benchmarks.measured_file import measured_file

PRIORS = Calibration("priors")
TRUTH = {
    "generation.hopper.gemm_frac": 0.66,
    "generation.hopper.gemm_k_half": 220.0,
    "generation.hopper.hbm_frac": 0.86,
    "generation.hopper.kernel_latency_s": 6e-6,
    "generation.hopper.fp8_gain": 0.9,
    "generation.hopper.flash2_forward": 0.42,
    "generation.hopper.flash2_backward": 0.30,
    "generation.hopper.attention_seq_half": 800.0,
}


@pytest.fixture(scope="module")
def pool():
    return load_cluster("h100-x512").cluster.pools[0]


@pytest.fixture(scope="module")
def data(pool):
    return measured_file(calibrated_pool(pool, Calibration("truth", TRUTH)).accelerator)


@pytest.fixture
def read(tmp_path):
    def of(data):
        file = tmp_path / "measured.json"
        file.write_text(json.dumps(data))
        return read_measured(str(file))

    return of


def test_known_rates_are_found_again(pool, data, read):
    fit = fit_device(read(data), pool, PRIORS)
    found = carried_value(fit.estimates)
    for name, truth in TRUTH.items():
        assert found[name] == pytest.approx(truth, rel=0.04), name
    for item in fit.items:
        assert item.after_s == pytest.approx(item.measured_s, rel=0.03)
    # 32 MiB fit a cache: neither the latency nor the memory.
    assert [i.label for i in fit.items if i.kind == "memory"] == [
        "0.03125 MiB read and written",
        "2048 MiB read and written",
    ]
    assert "not timed, so as before: attention cudnn, flash1, flash3" in fit.notes


def test_what_was_not_timed_is_not_moved(pool, data, read):
    only = {**data, "memory": [], "attention": [], "collectives": []}
    only["gemm"] = [row for row in data["gemm"] if row["inner"] == 8192]
    fit = fit_device(read(only), pool, PRIORS)
    status = {e.quantity.name.rpartition(".")[2]: e.status for e in fit.estimates}
    assert status["kernel_latency_s"] == status["hbm_frac"] == UNSEEN
    assert not any("flash2" in name for name in status)


def test_kernels_and_precisions_that_the_part_does_not_have(data, read):
    a100 = load_cluster("a100-x1024").cluster.pools[0]
    strange = copy.deepcopy(data)
    strange["attention"] = [{**row, "kernel": "flash3"} for row in data["attention"]]
    fit = fit_device(read(strange), a100, PRIORS)
    assert not any(item.kind.startswith("attention") for item in fit.items)
    assert any("has no fp8 rate" in note for note in fit.notes)
    assert any("lists no attention flash3" in note for note in fit.notes)


@pytest.mark.slow
def test_cudnn_is_the_best_kernel_where_no_other_stands_for_it(data, read):
    b200 = load_cluster("b200-x256").cluster.pools[0]
    assert "cudnn" not in b200.accelerator.efficiency.attention_frac
    named = copy.deepcopy(data)
    named["attention"] = [{**row, "kernel": "cudnn"} for row in data["attention"]]
    fit = fit_device(read(named), b200, PRIORS)
    assert "generation.blackwell.flash3_forward" in {e.quantity.name for e in fit.estimates}


def test_collectives_become_sweeps(data, read):
    (sweep,) = read(data).sweeps
    assert (sweep.collective, sweep.n_ranks, sweep.busy_per_node) == ("all-gather", 8, 8)
    assert sweep.sizes_bytes[0] == 4096
    assert len(sweep.times_s) == 10


def test_a_run_that_ended_early_is_used_and_said(data, read):
    some = {**data, "complete": False, "left_out": [{"what": "fp8 gemm", "why": "no such type"}]}
    notes = read(some).notes
    assert "ended before it was done" in notes[0]
    assert "1 items could not be run, such as fp8 gemm (no such type)" in notes[1]


def at(data, path, value):
    """The data with one value replaced."""
    found = copy.deepcopy(data)
    *way, last = path
    target = found
    for key in way:
        target = target[key]
    target[last] = value
    return found


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("format",), "other", "is not a file of measure.py"),
        (("version",), 2, "version 2, and this release reads 1"),
        (("provenance",), None, "provenance: is missing"),
        (("provenance", "device"), "", "provenance.device"),
        (("gemm", 3, "time_s"), 0, "gemm.3.time_s: 0 is no time in seconds"),
        (("gemm", 3, "time_s"), math.nan, "gemm.3.time_s"),
        (("gemm", 3, "rows"), 2.5, "gemm.3.rows: 2.5 is no whole number from 1 to 1e+15"),
        (("gemm", 3, "precision"), None, "gemm.3.precision"),
        (("attention",), {"a": 1}, "attention: is no list of entries"),
        (("attention", 0, "backward_s"), -1e-3, "attention.0.backward_s"),
        (("memory", 0), 3, "memory: is no list of entries"),
        (("collectives", 2, "collective"), "gossip", "collectives.2: no collective"),
        (("collectives", 2, "n_nodes"), 3, "collectives.2: 8 ranks on 3 nodes of 8"),
        (("collectives", 2, "busy_per_node"), 12, "8 ranks on 1 nodes of 12 are no equal groups"),
        (("collectives", 2, "n_ranks"), True, "collectives.2.n_ranks: true"),
        (("collectives", 2, "size_bytes"), 10**400, "collectives.2.size_bytes: 1000"),
    ],
)
def test_a_file_that_is_wrong_says_where(data, read, path, value, words):
    with pytest.raises(SpecError) as caught:
        read(at(data, path, value))
    assert words in str(caught.value)


def test_a_file_that_is_no_json(tmp_path):
    file = tmp_path / "m.json"
    file.write_text('{"format": "planner-measured",\n "gemm": [')
    with pytest.raises(SpecError, match=r"m.json:2: is no JSON"):
        read_measured(str(file))
    file.write_text("[" * 100_000)
    with pytest.raises(SpecError, match=r"JSON|nested"):
        read_measured(str(file))


@pytest.mark.slow
def test_times_beyond_the_peak_are_left_out(pool, data, read):
    fast = copy.deepcopy(data)
    fast["gemm"].append({**fast["gemm"][0], "time_s": 1e-9})
    fast["memory"].append({"kind": "copy", "bytes": 2**31, "time_s": 1e-6})
    fit = fit_device(read(fast), pool, PRIORS)
    assert carried_value(fit.estimates) == carried_value(
        fit_device(read(data), pool, PRIORS).estimates
    )
    assert sum("beyond the peak of h100-sxm-80gb" in note for note in fit.notes) == 2
