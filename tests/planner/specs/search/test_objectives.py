"""Objectives, numbers of devices, deadlines, fronts and the `search:` section of `solve`."""

import csv
import io
import itertools
import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner.analyze.explain import explain
from planner.errors import SpecError, UsageError
from planner.render.answers import plan_table as tables
from planner.render.document import text_of
from planner.solver.answer.result import Plan, Result
from planner.solver.answer.result_store import open_plan
from planner.solver.options import SolveOptions
from planner.solver.scenarios import undominated_below_s
from planner.specs.identity import content_id
from planner.specs.loader import cluster_from_dict, model_from_dict
from searches.pricing.fronts import dominated
from tests.repeats import examples
from tests.searches.instances import one_in

MODEL: dict[str, Any] = {
    "model": {
        "name": "small",
        "layers": 6,
        "hidden": 1024,
        "heads": 16,
        "kv_heads": 4,
        "ffn": 4096,
        "gated": True,
        "vocab": 32000,
        "tied": False,
    },
    "training": {"seq_len": 1024, "global_batch": 12, "tokens": 1e11},
}
LIMITS = {"vpp": 1, "mbs": 2, "recompute_layers": 1}


def cluster(nodes: int = 5, **pool: Any) -> dict[str, Any]:
    """Nodes of two H100 with a price; 5 x 2 devices are a number that few layouts fill."""
    entry = {
        "accelerator": "h100-sxm-80gb",
        "nodes": nodes,
        "accelerators_per_node": 2,
        "nic": "ib-hdr-200",
        "price_per_hour": 3.0,
        "memory_margin": "50 GiB",
    }
    return {"name": "five", "pools": [{**entry, **pool}]}


def solve(clusters: dict[str, Any] | None = None, **options: Any) -> Result:
    return planner.solve(MODEL, clusters or cluster(), at_most=LIMITS, **options)


def on(n: int, **options: Any) -> Result:
    """The answer on exactly n devices."""
    return solve(pins={"devices": n}, **{"top": 64, **options})


COUNTS = (1, 2, 4, 6, 8, 10)


@pytest.fixture(scope="module")
def by_count() -> dict[int, list[Plan]]:
    """Every finalist on every number of devices, the oracle of all objectives."""
    return {n: list(on(n).plans) for n in COUNTS}


NAMED: dict[str, Any] = {"only": {"split": ["even", "ends"]}}
"""Fronts over numbers of devices hold no plans whose layers are split unevenly."""


@pytest.fixture(scope="module")
def named_by_count() -> dict[int, list[Plan]]:
    return {n: list(on(n, **NAMED).plans) for n in COUNTS}


def fastest(plans: list[Plan]) -> float:
    return min((p.step_time_s for p in plans), default=float("inf"))


def value(goal: str, plan: Plan) -> float:
    assert plan.run is not None
    g = plan.run.goodput.goodput_frac
    wall_s = plan.step_time_s / g
    n = plan.layout.n_devices
    return {
        "step_time": plan.step_time_s,
        "tokens_per_s": -plan.tokens_per_s,
        "cost": 3.0 * n * wall_s / 3600,
        "energy": 700 * 1.3 * 1.2 * n * wall_s,
        "devices": n,
        "memory": plan.breakdown.peak_bytes,
        "goodput": wall_s,
    }[goal]


@pytest.mark.slow
@pytest.mark.parametrize(
    "goal", one_in(5, ["cost", "tokens_per_s", "energy", "goodput", "step_time"])
)
def test_the_best_is_that_of_all_numbers_of_devices(goal: str, by_count: Any) -> None:
    best = min(value(goal, p) for plans in by_count.values() for p in plans)
    found = solve(objective=goal, top=64)
    assert min(value(goal, p) for p in found.plans) == pytest.approx(best, rel=1e-12)
    limit = best + abs(best) * 0.0101
    assert value(goal, found.plans[0]) <= limit


def test_numbers_of_devices_are_all_accounted_for() -> None:
    (counts,) = solve().devices
    assert counts.n_given == 10
    assert counts.searched[0] == 10
    known = len(counts.searched) + counts.n_excluded + counts.n_without_layout + counts.n_left
    assert known == len(COUNTS)


@pytest.mark.slow
def test_fewer_devices_win_where_no_good_layout_fills_all() -> None:
    # 12 sequences and 6 layers over 22 devices: 11 divides neither the batch nor the heads, and
    # leaves more stages empty than there are layers for. At 4,096 tokens the products of a layer
    # take longer than its launches.
    longer: dict[str, Any] = {"overrides": (("training.seq_len", 4096),)}
    assert not on_eleven_nodes(pins={"devices": 22}, **longer).plans
    found = on_eleven_nodes(all_variants=True, **longer)
    plan = found.plans[0]
    assert plan.layout.n_devices == 12
    assert plan.n_idle == 22 - plan.layout.n_devices

    def fastest_on(n: int, **options: Any) -> float:
        found = on_eleven_nodes(pins={"devices": n}, **longer, **options)
        return fastest(list(found.plans))

    assert fastest(list(found.plans)) == fastest_on(12)
    # The best of 8 devices has an uneven split; with named ones alone 10 devices are faster.
    assert fastest_on(8) < fastest_on(10) < fastest_on(8, **NAMED)


def on_eleven_nodes(**options: Any) -> Result:
    return solve(cluster(nodes=11), top=64, **options)


@pytest.mark.slow
def test_more_devices_never_make_the_best_step_longer() -> None:
    best = [fastest(list(solve(cluster(nodes), top=64).plans)) for nodes in (1, 2, 3, 4, 5, 7)]
    assert all(more <= less * (1 + 1e-12) for less, more in itertools.pairwise(best))


@cache
def least_of_all(goal: str) -> float:
    return min(value(goal, p) for p in solve(objective=goal, top=64).plans)


@pytest.mark.slow
@pytest.mark.parametrize("goal", ["step_time", "cost", "energy", "goodput", "devices"])
@pytest.mark.parametrize("pins", [{"tp": 2}, {"devices": 6}, {"pp": 2, "zero": 1}])
def test_a_pin_never_improves_the_objective(goal: str, pins: dict[str, int]) -> None:
    bound = solve(objective=goal, top=64, pins=pins).plans
    assert least_of_all(goal) <= min(value(goal, p) for p in bound) * (1 + 1e-12)


@pytest.mark.slow
def test_fewest_devices_with_and_without_limits(by_count: Any) -> None:
    least = min(n for n, plans in by_count.items() if plans)
    found = solve(objective="devices", top=3)
    assert {p.layout.n_devices for p in found.plans} == {least}
    assert found.plans[0].step_time_s == pytest.approx(fastest(by_count[least]), rel=0.0101)
    limit = fastest(by_count[6]) * 1.0001
    needed = min(n for n, plans in by_count.items() if fastest(plans) <= limit)
    quick = solve(objective="devices", step_limit_s=limit, top=64)
    assert {p.layout.n_devices for p in quick.plans} == {needed}
    assert all(p.step_time_s <= limit for p in quick.plans)


def test_a_deadline_leaves_out_what_takes_longer(by_count: Any) -> None:
    plans = [p for x in by_count.values() for p in x]
    days = sorted(p.run.expected_s / 86400 for p in plans if p.run and p.run.expected_s)
    # Between two plans: one that takes the limit itself is a matter of the last digit.
    limit = sum(days[len(days) // 2 :][:2]) / 2
    cheap = min(value("cost", p) for p in plans if p.run.expected_s <= limit * 86400)
    found = solve(objective="cost", deadline=f"{limit!r}d", top=64)
    assert min(value("cost", p) for p in found.plans) == pytest.approx(cheap, rel=1e-9)
    assert all(p.run and p.run.expected_s <= limit * 86400 * (1 + 1e-9) for p in found.plans)
    late = solve(deadline=f"{days[0] / 2}d")
    assert (late.exit_code, late.plans) == (3, ())
    assert any("times too slow" in note for note in late.notes if note.startswith("limit: "))
    assert "No plan keeps the limits" in text_of(late)


@pytest.mark.slow
def test_memory_is_least_within_a_factor_of_the_fastest() -> None:
    found = solve(objective="memory", within=1.5, top=64)
    peaks = [p.breakdown.peak_bytes for p in found.plans]
    assert peaks == sorted(peaks)
    best = fastest(list(solve(top=64).plans))
    assert all(p.step_time_s <= best * 1.5 for p in found.plans)
    assert solve(objective="memory", top=1).plans[0].breakdown.peak_bytes >= peaks[0]
    others = [p for n in (10, found.plans[0].layout.n_devices) for p in on(n).plans]
    near = [p.breakdown.peak_bytes for p in others if p.step_time_s <= best * 1.5]
    assert peaks[0] <= min(near)


@pytest.mark.slow
@pytest.mark.parametrize(
    "goals",
    [
        ("cost", "step_time"),
        ("step_time", "devices"),
        ("tokens_per_s", "energy"),
        ("goodput", "devices", "cost"),
    ],
)
def test_fronts_over_numbers_of_devices_are_those_of_brute_force(
    goals: Any, named_by_count: Any
) -> None:
    plans = [p for some in named_by_count.values() for p in some]
    every = {tuple(value(g, p) for g in goals) for p in plans}
    expected = sorted(p for p in every if not dominated(p, every - {p}))
    found = [tuple(value(g, p) for g in goals) for p in solve(pareto=goals, **NAMED).plans]
    assert len(found) == len(expected)
    for ours, theirs in zip(sorted(found), expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize(
    "goals",
    ["step_time,memory", pytest.param("memory,devices,step_time", marks=pytest.mark.slow)],
)
def test_no_plan_of_a_front_with_memory_beats_another(goals: str) -> None:
    found = solve(pareto=goals)
    points = [tuple(value(g, p) for g in goals.split(",")) for p in found.plans]
    assert len(points) > 3
    assert points == sorted(points)
    assert not [p for p in points if dominated(p, set(points) - {p})]
    every = [value("memory", p) for p in on(10 if goals[0] == "m" else 8).plans]
    assert min(p[goals.split(",").index("memory")] for p in points) <= min(every, default=1e99)


def test_the_front_is_in_every_form() -> None:
    found = solve(pareto="step_time,devices")
    table = text_of(found)
    assert "the front of step_time, devices" in table
    assert all(p.plan_id in table for p in found.plans)
    assert [p["plan_id"] for p in json.loads(found.dumps())["plans"]] == [
        p.plan_id for p in found.plans
    ]
    assert len(list(csv.DictReader(io.StringIO(tables.plans_csv(found))))) == len(found.plans)
    assert len(tables.plans_markdown(found).splitlines()) == len(found.plans) + 2


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=6), st.integers(1, 9))
def test_steps_below_the_limit_are_undominated(points: Any, n: int) -> None:
    class One:
        n_devices = n
        problem: Any = None

    One.problem = type("P", (), {"job": type("J", (), {"tokens_per_step": 1.0})})
    limit = undominated_below_s(("step_time", "devices"), One(), (1.0, float(n)), points)  # type: ignore[arg-type]
    for step in range(1, 11):
        assert dominated((step, n), points) == (step >= limit)


# ---- figures of a run


def test_figures_of_a_run_by_hand() -> None:
    plan = on(4, top=1).plans[0]
    run = plan.run
    assert run is not None
    n_steps = 1e11 / (1024 * 12)
    wall_s = plan.step_time_s / run.goodput.goodput_frac * n_steps
    assert run.expected_s == pytest.approx(wall_s)
    assert run.cost_usd == pytest.approx(3.0 * 4 * wall_s / 3600)
    assert run.usd_per_million_tokens == pytest.approx(run.cost_usd / 1e11 * 1e6)
    assert run.energy_j == pytest.approx(4 * 1092.0 * wall_s)
    assert run.goodput.mtbf_s == pytest.approx(50677 * 3600 / 4)
    assert set(plan.to_json()["run"]) >= {"goodput_frac", "cost_usd", "energy_j", "expected_s"}


def test_operations_of_the_cluster_file_replace_the_defaults() -> None:
    text = {
        **cluster(),
        "operations": {
            "pue": 1.0,
            "power_overhead": 1.0,
            "device_mtbf": "100 d",
            "checkpoint_time": "5 s",
            "restart": "0 s",
        },
    }
    run = on(4, clusters=text, top=1).plans[0].run
    assert run is not None
    assert (run.power_w, run.goodput.checkpoint_s) == (2800.0, 5.0)
    assert run.goodput.mtbf_s == 25 * 86400
    given = cluster_from_dict(text, [("operations.checkpoint_bandwidth", "2 TB/s")])
    assert given.operations[0].checkpoint_bytes_per_s == 2e12
    assert cluster_from_dict(given.document).operations == given.operations


def test_prices_and_failures_change_no_plan_id() -> None:
    free = cluster(price_per_hour=9.0) | {"operations": {"pue": 1.5}}
    ours, theirs = on(4, top=1), on(4, clusters=free, top=1)
    assert ours.plans[0].plan_id == theirs.plans[0].plan_id
    assert ours.result_id != theirs.result_id


@pytest.mark.parametrize(
    ("term", "part"),
    [
        ("goodput", "Daly 2006"),
        ("cost", "US dollars"),
        ("energy", "PUE"),
    ],
)
def test_figures_open_to_formula_and_source(term: str, part: str, tmp_path: Any) -> None:
    path = tmp_path / "result.json"
    path.write_text(on(4, top=1).dumps(), encoding="utf-8")
    _, _, problem, plan = open_plan(f"{path}#1")
    text = text_of(explain(problem, plan, SolveOptions(), term))
    assert part in text
    assert "with this plan's numbers:" in text


def test_a_plan_on_fewer_devices_reopens_as_it_was(tmp_path: Any) -> None:
    path = tmp_path / "result.json"
    result = solve(top=3)
    path.write_text(result.dumps(), encoding="utf-8")
    for plan in result.plans:
        _, _, problem, again = open_plan(f"{path}#{plan.rank}")
        assert again.to_json() == plan.to_json()
        assert problem.pool.n_devices == plan.layout.n_devices


# ---- mistakes


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"objective": "speed"}, "unknown 'speed'"),
        ({"pareto": "step_time"}, "not two or three"),
        ({"pareto": "step_time,tokens_per_s"}, "one axis"),
        ({"pareto": "step_time,cost", "objective": "cost"}, "two answers"),
        ({"deadline": "soon"}, "'soon' is not a time"),
        ({"within": 1.2}, "belongs to --objective memory"),
        ({"step_limit_s": -1.0}, "above 0 s"),
        ({"pins": {"devices": 7}}, "leaves no number of devices"),
        ({"pins": {"devices": 7}, "clusters": cluster(nodes=64)}, "multiples of 2 up to 128"),
    ],
)
def test_bad_options_say_what_to_change(options: dict[str, Any], part: str) -> None:
    with pytest.raises(UsageError, match=part) as caught:
        solve(**options)
    assert caught.value.hint


def test_what_an_objective_lacks_is_named() -> None:
    unpriced = cluster()
    del unpriced["pools"][0]["price_per_hour"]
    with pytest.raises(UsageError, match="cost needs a price") as caught:
        solve(unpriced, objective="cost")
    assert "pools.0.price_per_hour" in caught.value.hint
    job = {**MODEL, "training": {"seq_len": 1024, "global_batch": 12}}
    with pytest.raises(UsageError, match="needs the tokens"):
        planner.solve(job, cluster(), deadline="3d")


# ---- the section of the model file


def with_search(**search: Any) -> dict[str, Any]:
    return {**MODEL, "search": search}


def test_the_section_is_the_options() -> None:
    section = with_search(
        pin={"tp": 2, "devices": 8},
        only={"zero": [0, 1], "recompute": "none"},
        max=LIMITS,
        objective="cost",
        deadline="3000d",
        top=3,
    )
    told = planner.solve(
        MODEL,
        cluster(),
        pins={"tp": 2, "devices": 8},
        at_most=LIMITS,
        objective="cost",
        only={"zero": [0, 1], "recompute": "none"},
        deadline="3000d",
        top=3,
    )
    assert planner.solve(section, cluster()).dumps() == told.dumps()
    assert model_from_dict(section).document == model_from_dict(MODEL).document


def test_the_command_line_wins_axis_by_axis() -> None:
    section = with_search(pin={"tp": 2}, max={**LIMITS, "pp": 1}, objective="cost", top=2)
    found = planner.solve(section, cluster(), only={"tp": [1, 4]}, pareto="step_time,devices")
    options = found.inputs["options"]
    assert options["pins"] == {}
    assert (options["only"], options["max"]["pp"]) == ({"tp": [1, 4]}, 1)
    assert options["pareto"] == ["step_time", "devices"]
    assert "objective" not in options


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("search:\n  pin: {tq: 8}\n", 2, "unknown axis 'tq'"),
        ("search:\n  max:\n    recompute: full\n", 3, "no order"),
        ("search:\n  objective: speed\n", 2, "unknown 'speed'"),
        ("search:\n  pareto: [cost]\n", 2, "not two or three"),
        ("search:\n  deadline: never\n", 2, "'never' is not a time"),
        ("search:\n  frame: megatron\n", 2, "did you mean `framework`"),
        ("search:\n  allow: [everything]\n", 2, "unknown 'everything'"),
    ],
)
def test_mistakes_in_the_section_have_a_line(
    text: str, line: int, part: str, tmp_path: Any
) -> None:
    import yaml

    path = tmp_path / "model.yaml"
    path.write_text(text + yaml.safe_dump(MODEL), encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        planner.solve(path, cluster())
    assert part in str(caught.value)
    assert f"model.yaml:{line}" in str(caught.value)


# ---- stopped


def test_a_stopped_search_states_its_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("searches.search.STOPPABLE_SHAPES", 4)
    whole = on(8)
    assert whole.gap is None
    best = fastest(list(whole.plans))
    gaps = []
    for n_looks in (1, 4):
        looks = iter(range(10**6))
        stopped = on(
            8, top=3, stop=lambda looks=looks, n=n_looks: next(looks) >= n, executor="serial"
        )
        if not stopped.stopped:
            continue
        assert stopped.exit_code in (3, 4)
        if stopped.plans:
            assert stopped.gap is not None
            found = fastest(list(stopped.plans[:1]))
            assert found / (1 + stopped.gap) <= best * (1 + 1e-9)
            assert json.loads(stopped.dumps())["gap"] == stopped.gap
            assert "from the best there is" in text_of(stopped)
            gaps.append(stopped.gap)
    assert gaps


def test_the_order_of_the_inputs_does_not_matter() -> None:
    backwards = json.loads(json.dumps(MODEL), object_pairs_hook=lambda x: dict(reversed(x)))
    ours = solve(objective="energy")
    theirs = planner.solve(
        backwards,
        dict(reversed(cluster().items())),
        objective="energy",
        at_most=dict(reversed(LIMITS.items())),
    )
    assert ours.result_id == theirs.result_id
    assert content_id(ours.to_json()) == content_id(theirs.to_json())


@pytest.mark.parametrize("options", [{"pareto": "step_time,devices"}, {"objective": "energy"}])
def test_an_interrupted_answer_holds_what_was_found(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from searches.device_counts import StepBounds

    whole, calls = StepBounds.promising, []

    def promising(self: StepBounds, *args: Any) -> Any:
        calls.append(args)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return whole(self, *args)

    monkeypatch.setattr(StepBounds, "promising", promising)
    found = solve(cluster(4), **options)
    assert (found.stopped, found.exit_code) == ("interrupted", 130)
    assert found.plans
    assert sum(d.n_left for d in found.devices) > 0


@pytest.mark.parametrize(
    ("model", "cluster", "pins"),
    [
        ("llama3-8b", "h100-x8", {"devices": 8}),
        pytest.param(
            "mixtral-8x7b", "h100-x512", {"devices": 512, "pp": 4}, marks=pytest.mark.slow
        ),
        pytest.param(
            "llama3-70b", "a100-x1024", {"devices": 1024, "tp": 8}, marks=pytest.mark.slow
        ),
    ],
)
@pytest.mark.parametrize("margin", one_in(2, [0.05, 0.0]))
def test_no_listed_plan_beats_a_plan_of_the_front(model, cluster, pins, margin):
    asked = {"pins": pins, "top": 300, "memory_margin": margin}
    listed = planner.solve(model, cluster, **asked)
    front = planner.solve(model, cluster, pareto="step_time,memory", **asked)
    for plan in listed.plans:
        time_s, peak = plan.step_time_s, plan.breakdown.peak_bytes
        for other in front.plans:
            slower, larger = other.step_time_s / time_s - 1, other.breakdown.peak_bytes / peak - 1
            beaten = slower >= -1e-12 and larger >= -1e-12 and max(slower, larger) > 1e-9
            assert not beaten, (plan.layout, other.layout)
    # Times are of one kind: the front begins with the plan that the certificate speaks of.
    assert listed.certificate is not None
    fastest_s = listed.certificate.fastest_s
    assert min(plan.step_time_s for plan in front.plans) == pytest.approx(fastest_s, rel=1e-12)
