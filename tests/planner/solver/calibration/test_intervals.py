"""Intervals: regimes from the plan alone, quantiles that hold what they promise."""

import hashlib
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hardware.nouns import GPU
from planner.measure.calibrate.cross_validation import HeldOut
from planner.measure.calibrate.residuals import (
    anchored_residuals,
    known_residuals,
    left_out_residuals,
    resolution_from,
)
from planner.measure.calibrate.runs import fit_runs_of
from planner.measure.validate.eras import is_tuned
from planner.measure.validate.points import read_measured_points
from planner.measure.validate.report import DATA, coverage_of, read_entries
from planner.measure.validate.rows import Used, price_points, use
from planner.solver.calibration.anchors import believed
from planner.solver.calibration.file import Calibration, load_calibration
from planner.solver.calibration.intervals import (
    BY_UNKNOWNS,
    EVIDENCE,
    INSIDE,
    KINDS,
    LESS_KNOWN,
    MANY_ROWS,
    WIDER_WITH_ADAPTERS,
    Residuals,
    coverage,
    evidence_for,
    interval_of,
    intervals_by_evidence,
    learnt_intervals,
    left_out_coverage,
    regime_kind_of,
    regime_words,
    widening,
)


def problem(
    experts: int = 0,
    domain: int = 8,
    stack: str = "nanotron",
    generation: str = "hopper",
    quantized: str = "",
    vendor: str = "NVIDIA",
) -> Any:
    """Return what a regime looks at."""
    return SimpleNamespace(
        job=SimpleNamespace(recipe=SimpleNamespace(linear_precision=quantized)),
        shape=SimpleNamespace(n_experts=experts),
        stack=SimpleNamespace(name=stack, kind="eager"),
        pool=SimpleNamespace(
            scale_up_domain=domain,
            accelerator=SimpleNamespace(generation=generation, vendor=vendor),
        ),
    )


def layout(tp: int = 1) -> Any:
    """Return what a regime looks at."""
    return SimpleNamespace(tp=tp)


@pytest.mark.parametrize(
    ("time_s", "kind"),
    [
        ({"linear": 6.0, "attention": 1.0, "tp": 2.0, "host": 0.5}, "compute"),
        ({"linear": 6.0, "tp": 1.5, "dp": 1.0}, "network"),
        ({"linear": 8.0, "host": 1.0}, "host"),
        ({"linear": 4.0, "bubble": 3.0, "elementwise": 3.0}, "mixed"),
    ],
)
def test_the_kind_is_what_the_step_consists_of(time_s: dict[str, float], kind: str) -> None:
    assert regime_kind_of(problem(), layout(), time_s, 10.0) == kind
    assert regime_kind_of(problem(), layout(16), time_s, 10.0) == "tp-across-domains"
    assert regime_kind_of(problem(domain=16), layout(16), time_s, 10.0) == kind
    assert regime_kind_of(problem(experts=8), layout(16), time_s, 10.0) == "experts"


def test_evidence_needs_stack_and_devices_in_the_calibration() -> None:
    values = {
        "stack.nanotron.tp_hop_s": 1e-5,
        "stack.eager.tp_hop_s": 1e-5,
        "generation.hopper.gemm_frac": 0.7,
    }
    found = Calibration("one", values)
    assert evidence_for(problem(), found) == "fitted"
    assert evidence_for(problem(stack="torchtitan"), found) == "new"
    assert evidence_for(problem(stack="eager"), found) == "new"  # the class of an unseen stack
    assert evidence_for(problem(generation="blackwell"), found) == "new"
    # Neither: it resembles nothing that was measured.
    assert evidence_for(problem(stack="torchtitan", generation="blackwell"), found) == "unlike"
    assert evidence_for(problem(stack="eager", generation="blackwell"), found) == "unlike"
    # A stack on devices of another kind than those it was fitted on is another program.
    assert evidence_for(problem(generation="tpu", vendor="Google"), found) == "unlike"
    for runs, evidence in ((1, "anchored-1"), (2, "anchored-1"), (3, "anchored-3")):
        by = tuple("abc"[:runs])
        assert evidence_for(problem(), found.with_anchors(1.1, 1.1, 1.1, by)) == evidence


def test_fp8_needs_runs_in_fp8_on_the_same_devices() -> None:
    values = {"stack.nanotron.tp_hop_s": 1e-5, "generation.hopper.gemm_frac": 0.7}
    without = Calibration("one", values)
    having = Calibration("two", {**values, "generation.hopper.fp8_gain": 1.0})
    assert evidence_for(problem(quantized="fp8"), without) == "new"
    assert evidence_for(problem(quantized="fp4", stack="torchtitan"), without) == "unlike"
    assert evidence_for(problem(quantized="fp8"), having) == "fitted"
    assert evidence_for(problem(), without) == "fitted"


def test_an_interval_of_the_calibration_goes_before_the_one_that_ships() -> None:
    mine = Calibration("mine", intervals={"fitted.host": (0.5, 2.0)})
    assert interval_of("fitted.host", mine) == (0.5, 2.0)
    assert interval_of("new.host", mine) == load_calibration().intervals["new.host"]


def test_the_shipped_file_has_every_regime_and_a_resolution() -> None:
    shipped = load_calibration()
    regimes = {f"{evidence}.{kind}" for evidence in EVIDENCE for kind in KINDS}
    assert set(shipped.intervals) == regimes
    for low, high in shipped.intervals.values():
        # Unlike networks left out of the fit are predicted up to five times too slow.
        assert 0.2 < low < 1.0 < high < 4.0
    for kind in KINDS:  # what is known less is never told to be surer
        known, new, unlike = (shipped.intervals[f"{evidence}.{kind}"] for evidence in BY_UNKNOWNS)
        assert unlike[0] <= new[0] <= known[0] < known[1] <= new[1] <= unlike[1]
        # In ln at least sqrt 2 as wide, but for the three digits of the file.
        assert np.log(unlike[1]) >= 2**0.5 * np.log(new[1]) - 5e-3
        assert np.log(unlike[0]) <= 2**0.5 * np.log(new[0]) + 5e-3
    assert all(regime_words(regime, GPU) for regime in regimes)
    assert 0.0 < shipped.resolution["same-tp-pp"] < shipped.resolution["other-tp-pp"] < 0.3


def sample(
    n: int, spread: float, family: str, kind: str, middle: float = 0.0, evidence: str = "fitted"
) -> Residuals:
    """Return residuals spread evenly over `middle` ± `spread`."""
    values = middle + spread * np.linspace(-1.0, 1.0, n)
    return Residuals.of([family] * n, [kind] * n, [evidence] * n, values)


def joined(*parts: Residuals) -> Residuals:
    names = ("families", "kinds", "evidence", "log_ratio", "weight")
    return Residuals(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def test_the_bounds_are_the_percentiles_of_evenly_spread_residuals() -> None:
    learnt = learnt_intervals(sample(201, 0.2, "a", "host"))
    for low, high in learnt.values():  # kinds without a row have those of all
        assert np.log([low, high]) == pytest.approx([-0.16, 0.16], abs=3e-3)


def test_a_large_family_does_not_decide_alone_but_rows_stay_inside() -> None:
    """300 rows around 0, 30 around 0.5: alike at first, then moved to hold 77 to 86 %."""
    found = joined(sample(300, 0.1, "a", "host"), sample(30, 0.1, "b", "host", 0.5))
    low, high = np.log(learnt_intervals(found)["host"])
    inside = float(np.mean((found.log_ratio >= low) & (found.log_ratio <= high)))
    assert INSIDE[0] - 0.01 <= inside <= INSIDE[1] + 0.01
    of_rows = np.quantile(found.log_ratio, 0.9)
    few = learnt_intervals(found.where(np.arange(330) % 12 == 0))["host"]
    assert len(found.log_ratio[::12]) < MANY_ROWS  # too few to be moved: 25 and 3 rows
    assert np.log(few[1]) > of_rows - 0.05


@pytest.mark.parametrize("seed", range(5))
def test_kinds_with_many_rows_hold_their_share(seed: int) -> None:
    draw = np.random.default_rng(seed)
    parts = [
        Residuals.of(
            [f"f{i}"] * n, [kind] * n, ["new"] * n, draw.normal(draw.normal(0, 0.03), 0.1, n)
        )
        for i, kind in enumerate(["host", "network", "host", "mixed", "mixed"])
        for n in [int(draw.integers(60, 400))]
    ]
    found = joined(*parts)
    learnt = learnt_intervals(found)
    for kind in ("host", "network", "mixed"):
        mine, (low, high) = np.exp(found.log_ratio[found.kinds == kind]), learnt[kind]
        assert INSIDE[0] - 0.02 <= np.mean((mine >= low) & (mine <= high)) <= INSIDE[1] + 0.02
        assert low < 1.0 < high


def test_an_interval_encloses_its_prediction() -> None:
    low, high = learnt_intervals(sample(100, 0.01, "a", "host", 0.5))["host"]
    assert low == 0.99
    assert high == pytest.approx(np.exp(0.508), abs=2e-2)


def test_coverage_by_hand() -> None:
    regimes = ["new.host", "fitted.host", "new.host", "new.host"]
    bounds = np.array([[0.9, 1.1]] * 4)
    everywhere, fitted, new = coverage(regimes, np.log([0.8, 1.0, 1.0, 1.2]), bounds)
    assert (everywhere.regime, everywhere.n, everywhere.inside) == ("all", 4, 0.5)
    assert (everywhere.below, everywhere.above) == (0.25, 0.25)
    assert (fitted.regime, fitted.inside) == ("fitted.host", 1.0)
    assert (new.regime, new.n, new.below) == ("new.host", 3, pytest.approx(1 / 3))
    assert coverage([], np.array([]), np.empty((0, 2))) == ()


def test_runs_left_out_have_half_of_the_weight() -> None:
    """20 rows around 0 and 20 left out around 1: the bounds are near the far ends of both."""
    known, away = sample(20, 0.1, "a", "host"), sample(20, 0.1, "b", "host", 1.0)
    low, high = np.log(learnt_intervals(known, away)["host"])
    # 10 % of all is 20 % of either: 0.6 of its half spread from its middle
    assert [low, high] == pytest.approx([-0.06, 1.06], abs=0.02)
    # where the runs that are known are many, most of them stay inside, and not much more
    many = sample(300, 0.1, "a", "host")
    low, high = np.log(learnt_intervals(many, away)["host"])
    inside = np.mean((many.log_ratio >= low) & (many.log_ratio <= high))
    assert INSIDE[0] <= inside <= INSIDE[1]


def test_less_evidence_is_never_surer() -> None:
    """`new` residuals are narrower than `fitted` ones by chance: their interval is not."""
    known = joined(sample(50, 0.2, "a", "host"), sample(50, 0.02, "b", "host", evidence="new"))
    learnt = intervals_by_evidence(known, known.where(np.zeros(100, dtype=bool)))
    fitted, new, unlike = (learnt[f"{evidence}.host"] for evidence in BY_UNKNOWNS)
    assert new == fitted
    assert np.log(unlike) == pytest.approx(np.log(new) * LESS_KNOWN, abs=5e-3)


def test_a_family_is_held_by_the_others() -> None:
    alike = joined(*(sample(101, 0.1, name, "host") for name in "abc"))
    everywhere, by_regime = left_out_coverage(alike, alike)
    assert (by_regime.regime, by_regime.n) == ("fitted.host", 303)
    assert everywhere.inside == by_regime.inside == pytest.approx(0.8, abs=0.06)
    strange = sample(50, 0.1, "d", "mixed", 1.0)
    found = {
        x.regime: x for x in left_out_coverage(joined(alike, strange), joined(alike, strange))
    }
    assert found["fitted.mixed"].above == 1.0
    assert left_out_coverage(alike, alike.where(np.zeros(303, dtype=bool))) == ()


@pytest.fixture(scope="module")
def entries() -> tuple[Any, Any]:
    return read_entries(DATA / "models.yaml"), read_entries(DATA / "hardware.yaml")


def test_widening_by_hand() -> None:
    # Bounds of ±ln 2: residuals of 1, 2 and 3 times that, twice below. Of five rows that weigh
    # alike the 80th percentile lies half-way between the middles of the fourth and the fifth.
    log_ratio = np.log(2.0) * np.array([1.0, -1.0, 2.0, -2.0, 3.0])
    bounds = np.tile(np.log([0.5, 2.0]), (5, 1))
    assert widening(list("aabbc"), log_ratio, bounds) == pytest.approx(2.5)


def test_adapters_widen_what_no_anchor_narrows() -> None:
    shipped = load_calibration()
    low, high = shipped.intervals["fitted.compute"]
    wide_low, wide_high = interval_of("fitted.compute.adapters", shipped)
    assert wide_low == pytest.approx(low**WIDER_WITH_ADAPTERS, rel=5e-3)
    assert wide_high == pytest.approx(high**WIDER_WITH_ADAPTERS, rel=5e-3)
    # Squares of logarithms add up: what adapters add beside what a new part leaves open.
    new_low, new_high = interval_of("new.compute.adapters", shipped)
    plain_low, plain_high = shipped.intervals["new.compute"]
    more = WIDER_WITH_ADAPTERS**2 - 1.0
    for found, plain, known in ((new_low, plain_low, low), (new_high, plain_high, high)):
        squares = math.log(plain) ** 2 + more * math.log(known) ** 2
        assert abs(math.log(found)) == pytest.approx(math.sqrt(squares), rel=0.02)
    anchored = shipped.intervals["anchored-3.compute"]
    assert interval_of("anchored-3.compute.adapters", shipped) == anchored
    assert "adapters" in regime_words("new.network.adapters", GPU)
    assert "adapters" not in regime_words("anchored-1.network.adapters", GPU)


@pytest.mark.slow
def test_the_widening_is_that_of_the_shipped_runs_with_adapters(entries: tuple[Any, Any]) -> None:
    models, hardware = entries
    every = read_measured_points(DATA / "points.csv")
    points = [p for p in every if p.lora or models.get(p.model, {}).get("lora")]
    timed = [x for x in use(price_points(points, models, hardware)) if x.step_s]
    timed = [x for x in timed if x.case.problem.job.tuning is not None]
    known = known_residuals(timed, load_calibration())
    names = [f"{e}.{k}" for e, k in zip(known.evidence, known.kinds, strict=True)]
    bounds = np.log([load_calibration().intervals[name] for name in names])
    families = known.families.tolist()
    found = widening(families, known.log_ratio, bounds)
    assert found == pytest.approx(WIDER_WITH_ADAPTERS, rel=0.05)
    is_inside = np.zeros(len(families), bool)
    for family in sorted(set(families)):
        own = known.families == family
        others = [name for name in families if name != family]
        width = widening(others, known.log_ratio[~own], bounds[~own])
        low, high = (width * bounds[own]).T
        is_inside[own] = (known.log_ratio[own] >= low) & (known.log_ratio[own] <= high)
    assert 0.75 <= is_inside.mean() <= 0.85
    assert coverage_of(timed, load_calibration())[0].inside == pytest.approx(0.8, abs=0.03)


@pytest.mark.slow
def test_references_take_out_what_a_family_shares(entries: tuple[Any, Any]) -> None:
    points = [p for p in read_measured_points(DATA / "points.csv") if p.source == "ie"]
    runs, used = fit_runs_of(points, *entries), use(price_points(points, *entries))
    n = len(runs.runs)
    held = {"ie": HeldOut(np.arange(n), np.full(n, 0.3))}
    assert left_out_residuals(runs, used, held).log_ratio == pytest.approx(np.full(n, -0.3))
    for references in (1, 3):
        found = anchored_residuals(runs, used, held, references)
        left = 0.3 - believed(0.3, references)
        assert 0.0 < left < 0.05
        assert found.log_ratio == pytest.approx(np.full(len(found.log_ratio), -left))
        assert n - 4 * references <= found.weight.sum() <= n
    mine = known_residuals(used, load_calibration())
    assert len(mine.log_ratio) == n
    slower = [replace(plan, step_s=2.0 * (plan.step_s or 0.0)) for plan in used if plan.step_s]
    found = known_residuals(slower, load_calibration())
    assert found.log_ratio == pytest.approx(mine.log_ratio + np.log(2.0))
    # A common factor moves no order.
    assert resolution_from(slower) == resolution_from(used)


@pytest.mark.slow
def test_the_shipped_intervals_hold_80_percent_of_the_runs(shipped_runs: tuple[Used, ...]) -> None:
    found = coverage_of(shipped_runs, load_calibration())
    assert found[0].n > 2500
    assert sum(one.n >= 50 for one in found[1:]) >= 5
    for one in found:
        if one.n >= 50:
            assert 0.72 <= one.inside <= 0.88, one


@pytest.mark.slow
@pytest.mark.parametrize("salt", ["a", "b"])
def test_half_of_the_runs_hold_the_other_half(shipped_runs: tuple[Used, ...], salt: str) -> None:
    """Overall within 80 ± 8 %; kinds within ± 12 %, as layouts of one sweep err together.

    Small ones within 2.5 standard errors of a share of 80 %. Runs with adapters are in no fit.
    """
    shipped_runs = tuple(plan for plan in shipped_runs if not is_tuned(plan))
    found = known_residuals(shipped_runs, load_calibration())
    ids = [salt + plan.point.id for plan in shipped_runs if plan.step_s is not None]
    first = np.array([hashlib.sha256(text.encode()).digest()[0] % 2 == 0 for text in ids])
    for learns, holds in ((first, ~first), (~first, first)):
        learnt, held = learnt_intervals(found.where(learns)), found.where(holds)
        low, high = np.array([learnt[kind] for kind in held.kinds.tolist()]).T
        ratio = np.exp(held.log_ratio)
        inside = (ratio >= low) & (ratio <= high)
        assert 0.72 <= inside.mean() <= 0.88
        for kind in KINDS:
            mine = held.kinds == kind
            if mine.sum() >= 50:
                off = max(0.12, 2.5 * (0.8 * 0.2 / mine.sum()) ** 0.5)
                assert abs(inside[mine].mean() - 0.8) <= off, kind
