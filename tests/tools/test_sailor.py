"""The comparison with Sailor: our plans come again from kept profiles, and its formulas hold."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.repeats import slow
from tools.sailor.checkout import CannotRun, Checkout
from tools.sailor.compare import formula_error, kept, kept_data, long, ours, short
from tools.sailor.page import page
from tools.sailor.problem import Asked, pools_of
from tools.sailor.profiles import Data, Links, Parts, Profile
from tools.sailor.scenarios import SCENARIOS
from tools.sailor.search import search
from tools.sailor.step import Plan, Replica, Stage, micro_batches, plan_from_sailor, score

ROWS = {x["scenario"]: x for x in kept()["rows"]}
FAST = ("OPT-350/homogeneous-32", "GPT-Neo-2.7/homogeneous-32")


@pytest.fixture(scope="module")
def data() -> Data:
    return kept_data()


def _scenario(key: str):
    return next(x for x in SCENARIOS if x.key == key)


@pytest.mark.parametrize("key", sorted(ROWS))
def test_simulator_and_formulas_agree_on_our_plans(key: str, data: Data) -> None:
    assert formula_error(ROWS[key], _scenario(key), data) < 1e-9


@pytest.mark.parametrize("key", sorted(ROWS))
def test_plans_fit_and_keep_to_devices(key: str, data: Data) -> None:
    scenario, own = _scenario(key), ROWS[key]["planners"]["ours"]
    plan = long(own["plan"])
    assert own["fits"]
    assert all(n <= scenario.devices[where] for where, n in plan.devices().items())
    found = score(plan, data.profiles[scenario.model], data)
    assert found.step_s <= scenario.asked.most_s
    assert found.cost <= scenario.asked.most_cost


@pytest.mark.parametrize("key", sorted(ROWS))
def test_no_planner_of_the_table_is_better(key: str) -> None:
    figure = "step_s" if ROWS[key]["objective"] == "time" else "cost"
    planners = ROWS[key]["planners"]
    others = [x[figure] for name, x in planners.items() if name != "ours" and figure in x]
    assert all(planners["ours"][figure] <= x * (1 + 1e-9) for x in others)


@pytest.mark.parametrize(
    "key", [x if x in FAST else pytest.param(x, marks=pytest.mark.slow) for x in sorted(ROWS)]
)
def test_plans_of_the_table_are_found_again(key: str, data: Data) -> None:
    own, scenario = ROWS[key]["planners"]["ours"], _scenario(key)
    found = ours(scenario, data, own["width"])
    if not own["gap_frac"]:
        assert found["formula_s"] == pytest.approx(own["formula_s"], rel=1e-9)
    profile = data.profiles[scenario.model]
    now, then = (score(long(x["plan"]), profile, data) for x in (found, own))
    figure = "step_s" if scenario.asked.objective == "time" else "cost"
    assert getattr(now, figure) <= getattr(then, figure) * (1 + 1e-9)


def test_page_is_that_of_the_table() -> None:
    root = Path(__file__).resolve().parents[2]
    assert (root / "docs" / "sailor.md").read_text() == page(kept())


def test_plans_survive_both_forms() -> None:
    plan = long(ROWS["OPT-350/homogeneous-32"]["planners"]["ours"]["plan"])
    assert long(short(plan)) == plan
    assert plan_from_sailor(json.loads(json.dumps(plan.to_sailor()))) == plan


def test_without_a_checkout_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SAILOR_SRC", raising=False)
    with pytest.raises(CannotRun, match="SAILOR_SRC"):
        Checkout.from_environment()


def _small(seed: int) -> tuple[Data, Profile, dict[tuple[str, str], int]]:
    """Return a small random problem: two parts, four layers, tensor parallelism 1 and 2."""
    rng = np.random.default_rng(seed)
    n, parts, ways, updates = 4, ("a", "b"), {}, {}
    for part in parts:
        base = rng.uniform(0.01, 0.05, n)
        for tp in (1, 2):
            for mbs in (1, 2):
                ways[part, tp, mbs] = base * mbs**0.9 / tp ** rng.uniform(0.4, 1.0)
                updates[part, tp, mbs] = np.full(n, 0.001 * rng.uniform(1, 2) / tp)
    params = rng.uniform(1e7, 5e7, n)
    kept_values = rng.uniform(1e7, 9e7, n)
    profile = Profile(
        model="small",
        global_batch=int(rng.choice([8, 12, 16])),
        layer_s=ways,
        update_s=updates,
        params={t: params / t for t in (1, 2)},
        kept={t: kept_values / t for t in (1, 2)},
        outputs=np.array([2e6] * (n - 1) + [9e6]),
    )
    fits = {
        (("z", p, c), ("z", q, d)): (float(0.1 * rng.uniform()), 0.5 * min(c, d) + 0.5)
        for p in parts
        for q in parts
        for c in (1, 2)
        for d in (1, 2)
    }
    memory = {p: float(rng.uniform(4e9, 12e9)) for p in parts}
    both = Data({}, Links(fits, {("z", "z"): 0.0}), Parts(memory, {"a": 2.0, "b": 1.0}))
    return (
        both,
        profile,
        {("a", "z"): int(rng.integers(2, 5)), ("b", "z"): int(rng.integers(1, 5))},
    )


def _every_plan(profile: Profile, devices: dict[tuple[str, str], int]):
    """Yield every plan of the family, of any number of stages over both parts."""
    n = profile.n_layers
    counts = {part: k for (part, _), k in devices.items()}

    def stages(start: int, left: dict[str, int], d: int):
        if start == n:
            yield ()
            return
        for end in range(start + 1, n + 1):
            for first in range(d + 1):
                for s in (1, 2) if first else (0,):
                    for r in (1, 2) if d - first else (0,):
                        use = {"a": first * s, "b": (d - first) * r}
                        if any(use[p] > left[p] for p in use):
                            continue
                        own = (Replica("a", "z", s),) * first + (Replica("b", "z", r),) * (
                            d - first
                        )
                        rest = {p: left[p] - use[p] for p in left}
                        for more in stages(end, rest, d):
                            yield (Stage(start, end, own), *more)

    for mbs in (1, 2):
        known = set()
        for d in range(1, sum(counts.values()) + 1):
            m = micro_batches(profile.global_batch, mbs, d)
            if m not in known:
                known.add(m)
                for found in stages(0, counts, d):
                    yield Plan(mbs, found)


@pytest.mark.parametrize("seed", [1, 3, 4, *(slow(x) for x in range(40) if x not in (1, 3, 4))])
def test_search_is_as_good_as_every_plan(seed: int) -> None:
    data, profile, devices = _small(seed)
    best = min(
        (
            found.step_s
            for plan in _every_plan(profile, devices)
            if (found := score(plan, profile, data)).fits
        ),
        default=float("inf"),
    )
    answer = search(data, profile, pools_of(devices), Asked(), width=100_000)
    if answer.score is None:
        assert best == float("inf")
        return
    assert answer.score.step_s == pytest.approx(best, rel=1e-9)
    assert answer.bound <= best * (1 + 1e-9)
