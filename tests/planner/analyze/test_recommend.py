"""The inverse questions, each against a scan that does not use the argument of its search."""

import json
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import planner
from costmodels.breakdown import break_down
from costmodels.layers.layer_terms import layer_table
from costmodels.parameters import total_params
from costmodels.shape_terms import shape_terms
from costmodels.step import join, peak_bytes
from planner.analyze.recommend.answer import Recommendation
from planner.analyze.recommend.questions import (
    BANDWIDTH_STEP,
    BANDWIDTH_STEPS,
    FAMILIES,
    QUESTIONS,
    family_parts,
    least_bandwidth_ratio,
    member,
    node_counts,
    waited_compute_s,
    with_bandwidth,
)
from planner.errors import SearchError, SpecError, UsageError
from planner.render.document import text_of
from planner.solver.options import SolveOptions
from planner.solver.problem import make_problem
from planner.solver.request import SolveRequest
from planner.solver.sources import read_inputs
from planner.specs.loader import load_model
from searches.feasibility import any_fits, states_can_fit
from searches.rules import Context
from searches.search import search
from searches.space.free_axes import free_axes
from searches.space.plan_space import legal_masks
from searches.space.shape_space import legal_degrees, legal_shapes
from tests.planner.command import run_here
from tests.searches.instances import INSTANCES, of_which, one_in, with_options
from tests.searches.tables import plan_tables

OF_PRETRAINING = tuple(name for name in QUESTIONS if name != "rank")
"""Without the question about adapters: test_recommend_hardware.py has it."""
H100 = "h100-x512"
SMALL = {
    "model": {
        "name": "small",
        "layers": 8,
        "hidden": 2048,
        "heads": 16,
        "kv_heads": 4,
        "ffn": 8192,
        "gated": True,
        "vocab": 32000,
        "tied": True,
    },
    "training": {"seq_len": 4096, "global_batch": 48},
}


def problem_of(model: Any, cluster: Any, *overrides: tuple[str, object]) -> Any:
    return make_problem(*read_inputs(model, cluster, overrides), SolveOptions())


def plans(model: Any, cluster: Any, *overrides: tuple[str, object], **options: Any) -> bool:
    """Tell whether the search prices a plan that fits: not through `any_fits`."""
    asked = SolveRequest.of(
        top=1,
        pins=options.pop("pins", None),
        only=options.pop("only", None),
        framework=options.pop("framework", "default"),
    ).options()
    assert not options
    problem = make_problem(*read_inputs(model, cluster, overrides), asked)
    wanted = replace(asked.search_options(), n_finalists=1)
    return search(Context(problem, wanted, problem.pool.n_devices)).n_fit > 0


# Devices -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "cluster", "options"),
    [
        pytest.param("llama3-70b", H100, {}, marks=pytest.mark.slow),
        pytest.param("llama3-405b", "h100-x8", {}, marks=pytest.mark.slow),
        ("llama3-8b", "h100-x8", {"pins": {"tp": 4}}),
        pytest.param("llama3-70b", "h100-x8", {"framework": "deepspeed"}, marks=pytest.mark.slow),
        pytest.param(
            "gpt3-175b",
            "a100-x1024",
            {"overrides": (("training.global_batch", 10),)},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_fewest_devices_against_every_smaller_count(
    model: str, cluster: str, options: dict[str, Any]
) -> None:
    found = planner.recommend("devices", model, cluster, **options)
    assert found.answer is not None
    nodes = found.answer["nodes"]
    given = dict(options)
    overrides = given.pop("overrides", ())
    for n in range(1, nodes):
        assert not plans(model, cluster, *overrides, ("pools.0.nodes", n), **given)
    assert plans(model, cluster, *overrides, ("pools.0.nodes", nodes), **given)
    assert found.plan is not None
    assert found.plan.layout.n_devices == found.answer["n_devices"]


def test_parts_of_a_node_are_tried_first() -> None:
    found = planner.recommend("devices", "llama3-8b", "h100-x8")
    assert found.answer == {"nodes": 1, "n_devices": 2}
    on_host = {"optimizer_offload": ("off", "on")}
    away = planner.recommend("devices", "llama3-8b", "h100-x8", only=on_host)
    assert away.answer == {"nodes": 1, "n_devices": 1}
    pool = problem_of("llama3-8b", "h100-x8").pool
    assert list(node_counts(pool, 2)) == [(1, 1), (1, 2), (1, 4), (1, 8), (2, 8)]
    assert list(node_counts(replace(pool, scale_up_domain=16), 2)) == [(1, 8), (2, 8)]
    one = planner.recommend("devices", SMALL, "h100-x8", at_most={"mbs": 1})
    assert one.answer == {"nodes": 1, "n_devices": 1}


def test_fitting_is_not_monotone_in_the_devices() -> None:
    # Why the search is no bisection: 11 divides neither 48 sequences nor 8 layers.
    fits = [plans(SMALL, "h100-x8", ("pools.0.nodes", n)) for n in (10, 11, 12)]
    assert fits == [True, False, True]


def test_no_number_of_devices_is_an_answer() -> None:
    pins = {"tp": 1, "pp": 1, "zero": 0}
    found = planner.recommend("devices", "llama3-70b", H100, pins=pins, most=12)
    assert found.answer is None
    assert found.exit_code == 3
    assert "to 12 node(s)" in found.scope
    assert found.plan is None


# Size --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("by", FAMILIES)
def test_largest_model_against_every_larger_member(by: str) -> None:
    found = planner.recommend("size", "llama3-8b", "h100-x8", by=by)
    assert found.answer is not None
    problem = problem_of("llama3-8b", "h100-x8")
    parts = family_parts(problem)
    assert parts == 8
    k = round(found.answer["scale"] * parts)
    # 14 bytes a parameter, less than bf16 weights, fp32 gradients and Adam take, end the scan.
    limit = next(
        n
        for n in range(k, 1000)
        if 14 * total_params(replace(problem.shape, **member(problem, by, n, parts)), 1) > 8 * 8e10
    )
    assert limit > k
    for larger in range(k, limit + 1):
        sizes = member(problem, by, larger, parts)
        overrides = [(f"model.{name}", value) for name, value in sizes.items()]
        fits = plans("llama3-8b", "h100-x8", *overrides)
        assert fits == (larger == k), larger


def test_members_of_a_family_by_hand() -> None:
    problem = problem_of("llama3-70b", H100)  # 80 layers, 64 heads over 8, 8192, 28672
    assert member(problem, "both", 4, 8) == {
        "layers": 40,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 4,
        "head_dim": 128,
        "ffn": 14336,
    }
    assert member(problem, "depth", 12, 8)["layers"] == 120
    assert member(problem, "depth", 12, 8)["hidden"] == 8192
    assert member(problem, "width", 12, 8)["heads"] == 96
    assert member(problem, "width", 12, 8)["layers"] == 80
    assert member(problem, "both", 8, 8) == {
        name: getattr(problem.shape, name)
        for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn")
    }
    one_kv = replace(problem, shape=replace(problem.shape, kv_heads=1))
    assert family_parts(one_kv) == 8
    assert member(one_kv, "width", 12, 8)["kv_heads"] == 1
    odd = replace(problem, shape=replace(problem.shape, ffn=28673))
    assert family_parts(odd) == 1


@pytest.mark.parametrize("by", FAMILIES)
def test_the_bound_on_the_size_is_monotone(by: str) -> None:
    problem = problem_of(SMALL, "h100-x8")
    parts = family_parts(problem)
    sizes = [replace(problem.shape, **member(problem, by, k, parts)) for k in range(1, 200)]
    counts = [total_params(shape, 4096) for shape in sizes]
    assert counts == sorted(counts)
    held = [states_can_fit(replace(problem, shape=shape), 8) for shape in sizes]
    assert held == sorted(held, reverse=True)


# Sequence ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("llama3-8b", {}),
        ("llama3-8b", {"pins": {"tp": 1}}),
        (SMALL, {"pins": {"zero": 1}}),
    ],
)
def test_longest_sequence_against_a_scan(model: Any, options: dict[str, Any]) -> None:
    step = 65_536
    found = planner.recommend("sequence", model, "h100-x8", step=step, **options)
    longest = 0 if found.answer is None else found.answer["seq_len"]
    for k in range(1, longest // step + 6):
        fits = plans(model, "h100-x8", ("training.seq_len", k * step), **options)
        assert fits == (k * step <= longest), k
    assert found.n_tried <= 12  # one for each cp, then log2(10 million / 65,536)


@pytest.mark.parametrize("name", one_in(6, sorted(INSTANCES)[::4]))
def test_the_memory_of_every_layout_grows_with_the_sequence(name: str) -> None:
    limits = {**INSTANCES[name].options.at_most, "cp": 2, "mbs": 4}
    c = with_options(INSTANCES[name], at_most=limits)
    grid = 4 * int(np.lcm.reduce(legal_degrees(c, "tp")))
    before = None
    for k in (1, 2, 3, 5, 64, 65):
        job = replace(c.problem.job, seq_len=k * grid * 16)
        # Whether overlap is in doubt depends on the sequence; memory does not depend on overlap.
        options = replace(c.options, only={**c.options.only, "dp_overlap": frozenset((1,))})
        longer = replace(
            c,
            options=options,
            problem=replace(
                c.problem, job=job, pool=replace(c.problem.pool, memory_margin_bytes=-1e15)
            ),
        )
        shapes = legal_shapes(longer).shapes
        axes = free_axes(longer, shapes)
        masks, _, _ = legal_masks(longer, shapes, axes)
        tables = list(plan_tables(longer, shapes, axes, masks, 10**9))
        terms = shape_terms(longer.problem, shapes, axes.shardings)
        layers = layer_table(longer.problem, shapes, axes.mbs, axes.recompute_modules)
        peaks = np.concatenate(
            [peak_bytes(join(longer.problem, terms, table, layers)) for table in tables]
        )
        n_layers = c.problem.shape.layers
        layouts = [x.layout(i, n_layers) for x in tables for i in range(0, len(x), 17)]
        if before is not None:
            assert layouts == before[0]  # the same layouts in the same order
            assert np.all(peaks >= before[1])
        before = layouts, peaks


def test_a_learned_position_table_bounds_the_sequence() -> None:
    model = {**SMALL, "model": {**SMALL["model"], "positions": "learned", "max_positions": 10000}}
    found = planner.recommend("sequence", model, "h100-x8")
    assert found.answer == {"seq_len": 9 * 1024}


@pytest.mark.slow
def test_a_short_run_does_not_bound_the_sequence() -> None:
    model = {**SMALL, "training": {**SMALL["training"], "tokens": "1M"}}
    few = {"cp": 1, "recompute": "none"}
    found = planner.recommend("sequence", model, "h100-x8", pins=few)
    assert found.answer == planner.recommend("sequence", SMALL, "h100-x8", pins=few).answer
    assert "training.tokens=null" in found.command


# Micro-batch -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", one_in(3, [{}, {"pins": {"tp": 1}}, {"only": {"recompute": "none"}}])
)
@pytest.mark.slow
def test_largest_micro_batch_against_all_divisors(options: dict[str, Any]) -> None:
    found = planner.recommend("micro-batch", "llama3-8b", "h100-x8", **options)
    assert found.answer is not None
    pins = options.get("pins", {})
    rest = {k: v for k, v in options.items() if k != "pins"}
    sizes = [d for d in range(1, 513) if 512 % d == 0]
    fits = [d for d in sizes if plans("llama3-8b", "h100-x8", pins={**pins, "mbs": d}, **rest)]
    assert found.answer["mbs"] == max(fits)
    assert found.plan is not None
    assert found.plan.layout.mbs == max(fits)


# Bandwidth ---------------------------------------------------------------------------------------

LAYOUTS = [
    ("llama3-70b", {"tp": 8, "pp": 1, "zero": 3, "recompute": "full"}),
    ("llama3-8b", {"tp": 2, "pp": 4, "vpp": 2}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "pins"), LAYOUTS)
def test_bisection_of_the_bandwidth_against_a_scan(model: str, pins: dict[str, Any]) -> None:
    plan = planner.evaluate(model, H100, pins=pins).best
    problem = problem_of(model, H100)
    for axis, link in (("tp", "scale-up"), ("pp", "scale-out"), ("tp", "scale-out")):
        waits = [
            break_down(with_bandwidth(problem, link, BANDWIDTH_STEP**k), plan.layout).time_s[axis]
            for k in range(-BANDWIDTH_STEPS, BANDWIDTH_STEPS + 1, 8)
        ]
        assert all(b <= a * (1 + 1e-12) for a, b in pairwise(waits))
        allowed = 0.02 * waited_compute_s(plan.breakdown)
        args = (problem, plan.layout, axis, link, allowed)
        assert least_bandwidth_ratio(*args, True) == least_bandwidth_ratio(*args, False)


@pytest.fixture(scope="module")
def of_70b() -> Recommendation:
    return planner.recommend("bandwidth", "llama3-70b", H100, pins={"tp": 4, "pp": 8})


@pytest.mark.slow
def test_the_bandwidth_named_is_enough_and_one_step_less_is_not(of_70b: Recommendation) -> None:
    found = of_70b
    assert found.answer is not None
    assert found.plan is not None
    problem = problem_of("llama3-70b", H100)
    assert {(r["axis"], r["link"]) for r in found.answer["axes"]} == {
        ("tp", "scale-up"),
        ("pp", "scale-out"),
        ("dp", "scale-out"),
    }
    for row in found.answer["axes"]:
        assert row["allowed_s"] == pytest.approx(0.02 * found.answer["compute_s"])
        ratio = row["least_bytes_per_s"] / row["bytes_per_s"]
        for factor, enough in ((1.0, True), (1 / BANDWIDTH_STEP, False)):
            changed = with_bandwidth(problem, row["link"], ratio * factor)
            wait_s = break_down(changed, found.plan.layout).time_s[row["axis"]]
            assert (wait_s <= row["allowed_s"]) == enough
        assert row["floor_s"] <= row["wait_s"]


@pytest.mark.slow
def test_the_port_speed_named_can_be_set(of_70b: Recommendation) -> None:
    found = of_70b
    assert found.answer is not None
    row = next(r for r in found.answer["axes"] if r["axis"] == "pp")
    speed = f"{row['least_bytes_per_s']} B/s"
    x = found.plan.layout if found.plan else None
    assert x is not None
    pins = {
        "tp": x.tp,
        "pp": x.pp,
        "vpp": x.vpp,
        "zero": x.zero,
        "split": x.split,
        "mbs": x.mbs,
        "cp": x.cp,
        "cp_comm": x.cp_comm or "none",
        "rank_order": x.rank_order,
    }
    again = planner.evaluate(
        "llama3-70b", H100, pins=pins, overrides=(("pools.0.nic_speed", speed),)
    )
    assert again.best.breakdown.time_s["pp"] <= row["allowed_s"] * (1 + 1e-9)


@pytest.mark.slow
def test_latency_is_not_hidden_by_bandwidth() -> None:
    found = planner.recommend("bandwidth", "llama3-70b", H100, tolerance_frac=0.0005)
    assert found.answer is not None
    row = next(r for r in found.answer["axes"] if r["axis"] == "tp")
    assert row["least_bytes_per_s"] is None
    assert row["floor_s"] > row["allowed_s"]
    assert "no bandwidth hides it" in text_of(found)


def test_a_plan_on_one_device_sends_nothing() -> None:
    cluster = {"pools": [{"accelerator": "h100", "nodes": 1, "accelerators_per_node": 1}]}
    found = planner.recommend("bandwidth", SMALL, cluster)
    assert found.answer is not None
    assert found.answer["axes"] == []
    assert "sends nothing" in text_of(found)


# All of them -------------------------------------------------------------------------------------


@cache
def answer(question: str) -> Recommendation:
    return planner.recommend(question, "llama3-8b", "h100-x8")


def test_what_a_search_section_says_holds_unless_the_request_says_otherwise() -> None:
    section = {"framework": "fsdp2", "pin": {"zero": 3}, "top": 5}
    model = {**SMALL, "search": section}
    told = planner.recommend("micro-batch", SMALL, "h100-x8", framework="fsdp2", pins={"zero": 3})
    found = planner.recommend("micro-batch", model, "h100-x8")
    assert found.answer == told.answer
    assert found.plan is not None
    assert told.plan is not None
    assert found.plan.plan_id == told.plan.plan_id
    other = planner.recommend("micro-batch", model, "h100-x8", framework="megatron")
    assert "--framework fsdp2" in found.command
    assert "--framework megatron" in other.command


@pytest.mark.slow
@pytest.mark.parametrize("question", OF_PRETRAINING)
def test_the_answer_holds_its_plan_and_its_command(question: str) -> None:
    asked = answer(question)
    assert asked.plan is not None
    assert asked.plan.headroom_frac >= 0
    assert asked.command.startswith("planner solve llama3-8b h100-x8")
    words = asked.command.split()[4:]
    overrides = [
        tuple(v.split("=")) for o, v in zip(words[::2], words[1::2], strict=True) if o == "--set"
    ]
    pins = dict(v.split("=") for o, v in zip(words[::2], words[1::2], strict=True) if o == "--pin")
    again = planner.solve("llama3-8b", "h100-x8", overrides=tuple(overrides), pins=pins)
    assert again.best.plan_id == asked.plan.plan_id


@pytest.mark.parametrize("question", of_which(("devices",), OF_PRETRAINING))
def test_same_question_same_bytes(question: str) -> None:
    asked = answer(question)
    again = planner.recommend(asked.question, "llama3-8b", "h100-x8")
    assert again.dumps() == asked.dumps()
    data = json.loads(asked.dumps())
    assert data["question"] == asked.question
    assert len(data["result_id"]) == 12


@pytest.mark.parametrize("question", of_which(("devices", "micro-batch"), OF_PRETRAINING))
def test_text_is_at_most_100_columns(question: str) -> None:
    lines = text_of(answer(question)).splitlines()
    assert all(len(line) <= 100 for line in lines if not line.startswith("next:"))
    assert not lines[0].startswith(" ")


@pytest.mark.parametrize(
    ("question", "options", "error", "part"),
    [
        ("speed", {}, UsageError, "one of devices, hardware"),
        ("devices", {"by": "width"}, UsageError, "--by belongs to the question size"),
        ("size", {"most": 4}, UsageError, "--most belongs"),
        ("size", {"by": "heads"}, UsageError, "one of both, width, depth"),
        ("sequence", {"step": -1}, UsageError, "--step must be"),
        ("sequence", {"step": 10**9}, UsageError, "--step must be"),
        ("devices", {"most": -3}, UsageError, "--most must be"),
        ("bandwidth", {"tolerance_frac": 2.0}, UsageError, "--tolerance must be"),
        ("bandwidth", {"tolerance_frac": float("nan")}, UsageError, "--tolerance must be"),
        ("micro-batch", {"pins": {"mbs": 2}}, UsageError, "drop mbs"),
        ("micro-batch", {"at_most": {"mbs": 2}}, UsageError, "drop mbs"),
        ("devices", {"pins": {"tpp": 2}}, UsageError, "unknown axis"),
        ("devices", {"overrides": (("pools.0.accelerator", "v100"),)}, SearchError, "bf16"),
        ("size", {"overrides": (("model.layerz", 3),)}, SpecError, "layerz"),
        pytest.param(
            "bandwidth",
            {"pins": {"tp": 1, "pp": 1, "zero": 0}},
            SearchError,
            "nothing fits",
            marks=pytest.mark.slow,
        ),
        ("size", {"framework": "jax"}, UsageError, "unknown framework"),
        ("devices", {"pins": {"schedule": "gpipe"}}, UsageError, "gpipe"),
    ],
)
def test_bad_questions_say_what_to_change(
    question: str, options: dict[str, Any], error: type[Exception], part: str
) -> None:
    with pytest.raises(error, match=part):
        planner.recommend(question, "llama3-8b", "h100-x8", **options)


def test_nothing_fits_is_an_answer_of_each_question() -> None:
    huge = (("training.seq_len", 10_000_000),)
    for question in ("devices", "micro-batch", "size"):
        options = {"most": 2} if question == "devices" else {}
        found = planner.recommend(question, "llama3-405b", "h100-x8", overrides=huge, **options)  # type: ignore[arg-type]
        assert found.answer is None
        assert found.exit_code == 3
        assert "No answer" in text_of(found)
    tight = (("pools.0.memory_margin", "79 GiB"),)
    assert planner.recommend("sequence", SMALL, "h100-x8", overrides=tight).answer is None


@pytest.mark.slow
def test_any_fits_agrees_with_solve_on_the_examples() -> None:
    for cluster in ("h100-x8", H100):
        for model in ("llama3-8b", "llama3-70b", "llama3-405b"):
            problem = problem_of(model, cluster)
            c = Context(problem, SolveOptions().search_options(), problem.pool.n_devices)
            assert any_fits(c) == plans(model, cluster)


def test_sizes_of_models_with_experts_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"model\.moe: the family"):
        planner.recommend("size", "mixtral-8x7b", "h100-x8")


def test_sizes_of_models_of_unlike_layers_are_refused_by_name() -> None:
    document = load_model("llama3-8b").document
    runs = [{"kind": "dense", "count": 30}, {"kind": "dense@wide", "count": 2}]
    model = {**document["model"], "layer_kinds": runs, "variants": {"wide": {"ffn": 28672}}}
    job = {key: value for key, value in document["training"].items() if value is not None}
    with pytest.raises(UsageError, match=r"model\.variants: the family"):
        planner.recommend("size", {"model": model, "training": job}, "h100-x8")


@pytest.mark.parametrize(("question", "option"), [("devices", "--most"), ("sequence", "--step")])
def test_a_size_of_zero_is_not_taken_for_the_default(question: str, option: str) -> None:
    done = run_here("recommend", question, "llama3-8b", "h100-x8", option, "0")
    assert done.returncode == 2
    assert f"{option} must be at least 1, not 0" in done.stderr
