"""The fit: it finds the values behind runs that the model itself made up, and knows its limits."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner.errors import UsageError
from planner.measure.calibrate import fit as fitting
from planner.measure.calibrate.cross_validation import (
    HeldOut,
    after_references,
    leave_one_model_out,
    leave_one_source_out,
)
from planner.measure.calibrate.fit import Free, Pull, fit, free_values, robust_cost, solve_linear
from planner.measure.calibrate.report import fit_report_text, report_of
from planner.measure.calibrate.runs import Run, Runs, fit_runs_of
from planner.measure.validate.points import read_measured_points
from planner.measure.validate.prediction import case_of, price
from planner.measure.validate.report import DATA, read_entries
from planner.measure.validate.rows import measured_layouts, price_points, use
from planner.solver.calibration.file import Calibration, load_calibration
from planner.solver.calibration.parameters import known_parameters

PRIORS = Calibration("priors")
MODELS, HARDWARE = (read_entries(DATA / name) for name in ("models.yaml", "hardware.yaml"))
ALL = read_measured_points(DATA / "points.csv")


def some(n: int, *sources: str, test: Callable[[Run], bool] = lambda run: True) -> Runs:
    """Return about `n` layouts of some families, evenly chosen."""
    points = [p for p in ALL if p.source in sources]
    runs = fit_runs_of(points[:: max(1, len(points) // n)], MODELS, HARDWARE, thinned={})
    assert all(test(run) for run in runs.runs)
    return runs


def made_up(runs: Runs, truth: Mapping[str, float], noise: float = 0.0) -> Runs:
    """Return the runs with the step times that the model has under other values."""
    errors = runs.all_log_errors(Calibration("truth", truth))
    wobble = noise * np.sin(17.0 * np.arange(len(errors)))
    steps = np.exp(errors + runs.log_measured + wobble)
    found = tuple(replace(r, step_s=float(s)) for r, s in zip(runs.runs, steps, strict=True))
    return replace(runs, runs=found)


@pytest.fixture(scope="module")
def ie() -> Runs:
    return some(12, "ie")


@pytest.mark.slow
def test_batches_price_what_validate_prices() -> None:
    """Every tenth run of every family, together and one by one."""
    points = ALL[::40]
    runs = fit_runs_of(points, MODELS, HARDWARE, thinned={})
    assert len(runs.sources) > 8
    used = use(price_points(points, MODELS, HARDWARE))
    # A run without micro-batch is a range and no single layout: the fit leaves it out.
    rows = {u.point.id: u for u in used if u.step_s and u.point.mbs}
    assert {run.point.id for run in runs.runs} == set(rows)
    errors = runs.all_log_errors(load_calibration())
    for run, error in zip(runs.runs, errors, strict=True):
        used = rows[run.point.id]
        assert run.step_s == used.step_s
        assert np.exp(error) * run.step_s == pytest.approx(used.prediction.step_s, rel=1e-12)


def test_a_group_can_be_priced_alone(ie: Runs) -> None:
    whole = ie.all_log_errors(PRIORS)
    at, found = ie.log_errors(PRIORS, [0])
    assert 0 < len(at) < len(whole)
    assert found.tolist() == whole[at].tolist()
    run = ie.runs[at[0]]
    step_s = price(run.case)[0].step_s
    assert np.exp(ie.all_log_errors(load_calibration())[at[0]]) * run.step_s == pytest.approx(
        step_s, rel=1e-12
    )


@pytest.mark.slow
def test_families_weigh_the_same_and_thinning_keeps_whole_sweeps() -> None:
    points = [p for p in ALL if p.source in ("ie", "aa", "vts")]
    runs = fit_runs_of(points, MODELS, HARDWARE)
    total = {s: runs.weight[runs.where(lambda r, s=s: r.source == s)].sum() for s in runs.sources}
    assert total["ie"] == pytest.approx(total["aa"])
    assert total["vts"] == pytest.approx(total["aa"] / 2)

    def job(p):  # type: ignore[no-untyped-def]
        return (p.model, p.hardware, p.n_gpus, p.seq_len, p.gbs)

    kept = [run.point for run in runs.runs if run.source == "vts"]
    everything = [p for p, _, _ in measured_layouts(points, MODELS, HARDWARE) if p.source == "vts"]
    sizes = {j: sum(job(p) == j for p in everything) for j in map(job, kept)}
    assert sum(sizes.values()) == len(kept)
    assert len(everything) / 12 < len(kept) < len(everything) / 3


TRUTH = {
    "generation.ampere.gemm_frac": 0.74,
    "stack.internevo.elementwise_factor": 3.1,
    "stack.internevo.fixed_step_s": 0.03,
}


@pytest.mark.slow
def test_it_finds_the_values_behind_made_up_runs(
    ie: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With next to no pull the values come back; with the pull they move towards their priors."""
    runs = made_up(ie, TRUTH)
    pulled = fit(runs, TRUTH, PRIORS).calibration
    for name in fitting.KNOWN:
        monkeypatch.setitem(fitting.KNOWN, name, 50.0)
    free = fit(runs, TRUTH, PRIORS)
    for name, value in TRUTH.items():
        assert free.calibration.values[name] == pytest.approx(value, rel=0.05), name
        prior = known_parameters()[name].prior
        assert min(value, prior) * 0.999 <= pulled.values[name] <= max(value, prior) * 1.001, name
        assert abs(pulled.values[name] - prior) < abs(value - prior) * 1.001
    assert np.abs(free.log_errors).max() < 2e-3
    assert free.calibration.provenance == dict.fromkeys(TRUTH, "fitted")


@pytest.mark.slow
def test_runs_far_off_hardly_count(ie: Runs) -> None:
    truth = {"generation.ampere.gemm_frac": 0.74}
    runs = made_up(ie, truth)
    plain = fit(runs, truth, PRIORS).calibration.values
    broken = replace(runs.runs[0], step_s=30.0 * runs.runs[0].step_s)
    spoiled = fit(replace(runs, runs=(broken, *runs.runs[1:])), truth, PRIORS).calibration.values
    name = "generation.ampere.gemm_frac"
    assert spoiled[name] == pytest.approx(plain[name], rel=0.01)


@pytest.mark.slow
def test_a_value_at_a_bound_is_refused(ie: Runs) -> None:
    runs = ie
    slow = tuple(replace(run, step_s=5.0 * run.step_s) for run in runs.runs)
    name = "shared.node_spread"
    found = fit(replace(runs, runs=slow), [name, "generation.ampere.gemm_frac"], PRIORS)
    assert found.refused
    for refused, value in found.refused.items():
        parameter = known_parameters()[refused]
        near = min(abs(value - parameter.low), abs(value - parameter.high))
        assert near < 0.1 * (parameter.high - parameter.low)
        assert refused not in found.calibration.values
    assert "ended at a bound" in fit_report_text(report_of(runs, found, found.log_errors, {}, {}))


@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes_with_any_number_of_processes(ie: Runs) -> None:
    names = ["generation.ampere", "stack.internevo"]
    one, two = (fit(ie, names, processes=n) for n in (1, 2))
    assert one.calibration.to_text() == two.calibration.to_text()
    assert one.log_errors.tolist() == two.log_errors.tolist()


def test_what_is_fitted_is_what_the_runs_see(ie: Runs) -> None:
    names = {one.name for one in free_values(ie)}
    assert {"generation.ampere.gemm_frac", "stack.internevo.tp_hop_s"} <= names
    assert {"stack.eager.tp_hop_s", "shared.node_spread"} <= names
    assert not any("hopper" in name or "nanotron" in name or "fused" in name for name in names)
    assert not any(n.startswith("anchor") or n.endswith("logit_bytes") for n in names)
    assert {one.name for one in free_values(ie, ["generation"])} == {
        n for n in names if n.startswith("generation.")
    }


def test_a_number_of_a_stack_is_pulled_to_its_class(ie: Runs) -> None:
    free = {one.name: one for one in free_values(ie)}
    own = free["stack.internevo.elementwise_factor"]
    assert own.toward == "stack.eager.elementwise_factor"
    assert own.sigma == pytest.approx(fitting.KNOWN["elementwise_factor"] / np.sqrt(2))
    assert free["stack.eager.elementwise_factor"].toward == ""
    assert not free_values(ie, ["stack.internevo"])[0].toward  # the class is not fitted beside it


@pytest.mark.parametrize(
    ("name", "words"),
    [("generation.ampre", "did you mean"), ("speed", "no parameter is called")],
)
def test_names_that_are_none(ie: Runs, name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        free_values(ie, [name])


def test_names_that_no_run_sees(ie: Runs) -> None:
    with pytest.raises(UsageError, match="no run sees"):
        free_values(ie, ["generation.hopper"])


def values_of(*names: str) -> list[Free]:
    return [Free(known_parameters()[name], "", 0.1, (0,)) for name in names]


def test_the_linear_problem_by_hand() -> None:
    """One value, one run in its quadratic part: (e + x)^2 w / s^2 + (x / sigma)^2 is least."""
    (one,) = values_of("generation.ampere.gemm_frac")
    pull, u0 = Pull.of([one]), np.array([one.log(one.parameter.prior)])
    e, w, s, sigma = 1e-4, 2.0, fitting.SCALE, 0.1
    bounds = (u0 - 1.0, u0 + 1.0)
    found = solve_linear(np.ones((1, 1)), np.array([e]), np.array([w]), pull, u0, bounds)
    expected = -e * (w / s**2) / (w / s**2 + 1 / sigma**2)
    assert found[0] - u0[0] == pytest.approx(expected, rel=1e-3)


def test_parts_are_pulled_to_their_generation_where_several_have_runs() -> None:
    both = {one.name: one for one in free_values(some(9, "nemo25"))}
    prior = both["generation.blackwell.gemm_frac"]
    for part in ("b200-sxm-180gb", "gb200-186gb"):
        one = both[f"part.{part}.gemm_frac"]
        assert (one.toward, one.shift) == (prior.name, 0.0)
        assert one.sigma == fitting.SPREAD["gemm_frac"]
    assert "part.h100-sxm-80gb.gemm_frac" not in both  # the only part of Hopper there
    assert "part.b300-sxm-288gb.gemm_frac" not in both


def test_a_variant_is_pulled_to_what_its_generation_turned_out_to_be() -> None:
    runs = some(30, "mbridge")
    names = ["generation.blackwell", "generation.blackwell-ultra"]
    found = {one.name: one for one in free_values(runs, names)}
    one, base = (found[f"{name}.gemm_frac"] for name in reversed(names))
    assert one.toward == base.name
    assert one.shift == pytest.approx(np.log(one.parameter.prior / base.parameter.prior))
    pull, u = Pull.of([base, one]), np.log([0.6, 0.6 * one.parameter.prior / base.parameter.prior])
    assert pull.residuals(u)[1] == pytest.approx(0.0, abs=1e-12)


def test_the_spread_of_parts_by_hand() -> None:
    """Two parts at 0.1 and -0.05 of their generation, as sure as can be: they and s0."""
    names = ("generation.ampere", "part.a100-sxm-80gb", "part.a100-sxm-40gb")
    values = values_of(*(f"{name}.gemm_frac" for name in names))
    free = [values[0], *(replace(x, toward=values[0].name, sigma=0.08) for x in values[1:])]
    prior = values[0].log(values[0].parameter.prior)
    u, n = prior + np.array([0.0, 0.1, -0.05]), 3
    weight, errors = np.full(n, 1e6), np.zeros(n)
    found = fitting.estimated_spread(free, weight, np.eye(n), errors, u)
    expected = np.sqrt((2 * 0.08**2 + 0.1**2 + 0.05**2) / 4)
    assert found == {"gemm_frac": pytest.approx(expected, rel=1e-3)}
    assert fitting.estimated_spread(free[:1], weight, np.eye(n)[:, :1], errors, u[:1]) == {}


def test_a_recipe_and_a_part_change_the_rate_of_products() -> None:
    def linear_s(values: Mapping[str, float], **cells: str) -> float:
        point = replace(next(p for p in ALL if p.id == "nemo25-2507-gb200-llama3-70b-mx"), **cells)
        case = case_of(point, MODELS, HARDWARE, Calibration("x", values))
        return float(price(case)[0].time_s["linear"])

    plain = linear_s({})
    assert linear_s({"recipe.mxfp8.gain": 1.1}) < plain
    assert linear_s({"recipe.delayed.gain": 1.1}) == plain
    whole = {"generation.blackwell.gemm_frac": 0.6}
    assert linear_s({**whole, "part.gb200-186gb.gemm_frac": 0.7}) < linear_s(whole)
    assert linear_s({**whole, "part.b200-sxm-180gb.gemm_frac": 0.7}) == linear_s(whole)


def test_the_cost_by_hand() -> None:
    """Weight 3, an error of twice the scale: 3 * 2 (sqrt(5) - 1); a pull of 2 sigmas: 4."""
    cost = robust_cost(np.array([2 * fitting.SCALE]), np.array([3.0]), np.array([2.0]))
    assert cost == pytest.approx(6 * (np.sqrt(5.0) - 1.0) + 4.0)


@pytest.fixture(scope="module")
def two_families() -> Runs:
    return some(14, "ie", "korthikanti22", "lf")


@pytest.mark.slow
def test_a_family_left_out_gets_the_numbers_of_its_class(two_families: Runs) -> None:
    """The left-out errors are those of a calibration in which its stack is like its class."""
    runs = two_families
    found = fit(runs, ["stack", "generation.ampere.gemm_frac"], PRIORS)
    held = leave_one_source_out(runs, found)
    assert set(held) == {"ie", "korthikanti22", "lf"}
    for source, one in held.items():
        assert [runs.runs[i].source for i in one.rows] == [source] * len(one.rows)
        assert len(one.rows) == sum(run.source == source for run in runs.runs)
    inside = np.abs(found.log_errors[held["ie"].rows])
    assert np.median(np.abs(held["ie"].log_errors)) > np.median(inside)


@pytest.mark.slow
def test_left_out_runs_do_not_move_the_fit_that_judges_them(two_families: Runs) -> None:
    runs = two_families
    other = tuple(
        replace(run, step_s=1.5 * run.step_s) if run.source == "ie" else run for run in runs.runs
    )
    names = ["stack.internevo", "stack.eager", "generation.ampere.gemm_frac"]
    changed = replace(runs, runs=other)
    one = leave_one_source_out(runs, fit(runs, names, PRIORS))["ie"].log_errors
    two = leave_one_source_out(changed, fit(changed, names, PRIORS))["ie"].log_errors
    assert two + np.log(1.5) == pytest.approx(one, abs=0.02)


def test_models_are_left_out_one_by_one(two_families: Runs) -> None:
    runs = two_families
    found = leave_one_model_out(runs, fit(runs, ["generation.ampere.gemm_frac"], PRIORS))
    several = {
        source
        for source in runs.sources
        if len({run.point.model for run in runs.runs if run.source == source}) > 1
    }
    assert set(found) == several
    assert "lf" in several
    assert "ie" not in several  # one model
    assert sorted(found["lf"].rows) == [i for i, run in enumerate(runs.runs) if run.source == "lf"]


def test_one_reference_run_removes_a_common_factor(ie: Runs) -> None:
    n = len(ie.runs)
    alike = HeldOut(np.arange(n), np.full(n, 0.3))
    for references in (1, 3):
        judged, median, p90 = after_references(ie, alike, references)
        assert judged == n - references
        assert median == pytest.approx(0.0, abs=1e-12)
        assert p90 == pytest.approx(0.0, abs=1e-12)
    mixed = HeldOut(np.arange(n), 0.3 + 0.05 * np.sin(np.arange(n)))
    first = after_references(ie, mixed, 1)
    assert first == after_references(ie, mixed, 1)
    assert first[1] is not None
    assert 0.0 < first[1] < 0.1
    assert after_references(ie, alike, n) == (0, None, None)


@pytest.mark.slow
def test_the_report_holds_every_family_and_value(two_families: Runs) -> None:
    runs = two_families
    found = fit(runs, ["generation"], PRIORS, "mine")
    before = runs.all_log_errors(PRIORS)
    report = report_of(runs, found, before, leave_one_source_out(runs, found), {})
    data = report.to_json()
    assert {family["name"] for family in data["families"]} == {"ie", "korthikanti22", "lf"}
    assert data["calibration"]["name"] == "mine"
    assert {value["name"] for value in data["values"]} == {one.name for one in found.free}
    for family in data["families"]:
        assert family["left_out"]["n"] == family["after"]["n"] == family["before"]["n"]
    text = fit_report_text(report)
    assert "generation.hopper.gemm_frac" in text
    assert "mean over the headline families" in text


@pytest.mark.fit
def test_the_shipped_values_come_out_again(tmp_path: Path) -> None:
    """The fit to the shipped runs ends at the shipped values, to four digits."""
    from planner.cli.command_arguments import CalibrateArguments
    from planner.cli.commands.calibrate import run_calibrate

    out = tmp_path / "again.yaml"
    arguments = CalibrateArguments(
        start="priors", out=str(out), name="shipped", cross_validate=False
    )
    assert run_calibrate([], arguments) == 0
    again, shipped = load_calibration(out), load_calibration()
    assert again.values == shipped.values
