"""Precision left open: recipes searched as variants of one problem and ranked in one list."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import planner
from costmodels.precision import PRECISIONS
from planner.analyze.comparison import compare
from planner.analyze.neighborhood import single_changes
from planner.analyze.recommend.questions import recommend
from planner.errors import SearchError, SpecError, UsageError
from planner.render.answers.plan_table import plans_csv
from planner.render.document import text_of
from planner.solver import scenarios as variants
from planner.solver.answer.result import Result
from planner.solver.answer.result_store import open_plan
from planner.solver.options import SolveOptions, list_codes
from planner.solver.problem import make_problem
from planner.solver.recipes import asked_recipes, with_numerics
from planner.specs.loader import cluster_from_dict, model_from_dict
from planner.specs.search.axis_values import layout_to_json
from searches.pricing.outcome import Outcome
from searches.rules import Context
from searches.search import search
from tests.planner.command import run_here
from tests.searches import oracle

OPEN = ["bf16", "fp8-delayed", "fp8-tensorwise"]


def model(precision: Any = "bf16", **search: Any) -> dict[str, Any]:
    """A small dense model in some recipes."""
    return {
        "model": {
            "name": "small",
            "layers": 4,
            "hidden": 2048,
            "heads": 16,
            "kv_heads": 4,
            "ffn": 8192,
            "gated": True,
            "vocab": 32000,
            "tied": False,
        },
        "training": {"seq_len": 4096, "global_batch": 8, "precision": precision},
    } | ({"search": search} if search else {})


def cluster(accelerator: str = "h100-sxm-80gb", **pool: Any) -> dict[str, Any]:
    entry = {
        "accelerator": accelerator,
        "nodes": 1,
        "accelerators_per_node": 4,
        "nic": "ib-hdr-200",
        "memory_margin": "50 GiB",
    }
    return {"name": "one", "pools": [{**entry, **pool}]}


LIMITS = {"vpp": 1, "mbs": 2, "recompute_layers": 1}
FOUR: dict[str, Any] = {"pins": {"devices": 4}, "at_most": LIMITS}


def solve(given: dict[str, Any], **options: Any) -> Result:
    every = {"memory_margin": 0.0, "all_variants": True}
    return planner.solve(given, cluster(), **{**FOUR, **every, **options})


@pytest.fixture(scope="module")
def apart() -> dict[str, Result]:
    """Every recipe searched by itself."""
    return {name: solve(model(name), top=64) for name in OPEN}


@pytest.fixture(scope="module")
def together() -> Result:
    return solve(model(OPEN), top=64)


@pytest.mark.slow
def test_an_open_search_holds_the_plans_of_the_separate_ones(
    apart: dict[str, Result], together: Result
) -> None:
    best = min((one.best for one in apart.values()), key=lambda plan: plan.step_time_s)
    assert together.certificate is not None
    assert together.certificate.fastest_s == min(
        one.certificate.fastest_s for one in apart.values() if one.certificate
    )
    assert together.best.step_time_s <= best.step_time_s * 1.01
    singles = {p.plan_id: (p.precision, p.step_time_s) for x in apart.values() for p in x.plans}
    assert len(together.plans) == 64
    for plan in together.plans:
        assert singles[plan.plan_id] == (plan.precision, plan.step_time_s)
    steps = [plan.step_time_s for plan in together.plans if not plan.tie]
    assert steps == sorted(steps)


@pytest.mark.slow
def test_counts_and_certificate_add_up(apart: dict[str, Result], together: Result) -> None:
    for name in ("candidate_shapes", "shapes", "space", "pruned", "fit", "priced", "excluded"):
        parts = [getattr(one.counts, name) for one in apart.values()]
        assert getattr(together.counts, name) == sum(parts)
    proofs = [one.certificate for one in apart.values() if one.certificate]
    assert together.certificate is not None
    assert together.certificate.proven
    assert together.certificate.simulated == sum(proof.simulated for proof in proofs)
    bounds = [proof.bound_s for proof in proofs if proof.bound_s is not None]
    assert together.certificate.bound_s == min(bounds, default=None)
    rejected = {(r.code, r.of): r.n for r in together.rejected}
    for code, of in rejected:
        parts = [r.n for x in apart.values() for r in x.rejected if (r.code, r.of) == (code, of)]
        assert rejected[code, of] == sum(parts)
    assert [(d.pool, d.precision) for d in together.devices] == [
        ("h100-sxm-80gb", x) for x in OPEN
    ]


def test_nested_loops_over_every_recipe_find_the_same(together: Result) -> None:
    options = SolveOptions(pins={"devices": 4}, at_most=LIMITS)
    read, space, fit, fastest = cluster_from_dict(cluster()), 0, 0, []
    for name in OPEN:
        problem = make_problem(model_from_dict(model(name)), read, options)
        found = oracle.solve(problem, options.search_options(), 4)
        space, fit = space + len(found.legal), fit + len(found.fitting)
        near = [x for x in found.fitting if x.closed_form_s < 1.2 * found.fitting[0].closed_form_s]
        fastest.append(min(oracle.exact_step_s(problem, plan.layout) for plan in near[:24]))
    assert together.certificate is not None
    assert together.counts.space == space
    assert together.counts.fit + together.counts.excluded >= fit >= together.counts.fit
    # Splits that nested loops do not try may only be faster.
    assert together.certificate.fastest_s <= min(fastest) * (1 + 1e-9)


@pytest.mark.slow
def test_every_way_of_leaving_it_open_gives_the_same_answer() -> None:
    even = {"split": ["even"]}
    first, *others = (
        solve(model(OPEN), top=64, only=even),
        solve(model(OPEN[::-1]), top=64, only=even),
        solve(model(), top=64, only={"precision": OPEN, **even}),
        solve(model(only={"precision": OPEN, **even}), top=64),
    )
    assert {plan.precision for plan in first.plans} == set(OPEN)
    for other in others:
        assert other.dumps() == first.dumps()


def test_the_command_line_wins_over_the_file() -> None:
    result = solve(
        model(OPEN, only={"precision": ["fp16"]}),
        pins={"devices": 4, "precision": "fp8-delayed"},
        top=3,
    )
    assert {plan.precision for plan in result.plans} == {"fp8-delayed"}


def test_a_recipe_without_peak_is_left_out_with_its_reason() -> None:
    result = planner.solve(model(["bf16", "fp8-delayed"]), cluster("a100-sxm-80gb"), **FOUR)
    assert {plan.precision for plan in result.plans} == {"bf16"}
    [note] = [note for note in result.notes if "left out" in note]
    assert note.startswith("pool a100-sxm-80gb in fp8-delayed is left out")
    assert "no fp8 matrix units" in note
    assert "fp8-delayed" in text_of(result)


def test_it_is_an_error_only_where_none_remains() -> None:
    with pytest.raises(SearchError, match=r"no fp8 matrix units.*'fp8-delayed'"):
        planner.solve(model(["fp8-delayed", "fp32"]), cluster("a100-sxm-80gb"), **FOUR)


def test_blocks_of_32_need_their_hardware() -> None:
    with pytest.raises(SearchError, match="scale per 32 elements"):
        solve(model("fp8-mxfp8"))
    b200 = planner.solve(model("fp8-mxfp8"), cluster("b200-sxm-180gb"), **FOUR)
    assert b200.best.precision == "fp8-mxfp8"


def test_framework_rules_judge_every_recipe() -> None:
    result = solve(model(["bf16", "fp8-delayed"]), framework="deepspeed")
    assert {plan.precision for plan in result.plans} == {"bf16"}
    assert any("fp8-delayed has no plan: FRM001" in note for note in result.notes)
    delayed = solve(model(["fp8-delayed", "fp8-tensorwise"]), framework="megatron", top=64)
    # Delayed scaling cannot recompute layer norms and experts' activations.
    modules = {p.precision: set() for p in delayed.plans}
    for plan in delayed.plans:
        modules[plan.precision] |= set(plan.layout.recompute_modules)
    assert "layernorm" not in modules["fp8-delayed"]


def test_fewest_devices_over_recipes() -> None:
    slow = planner.solve(model(), cluster(nodes=2), at_most=LIMITS, objective="devices")
    limit = slow.best.step_time_s * 0.9
    open_ = planner.solve(
        model(["bf16", "fp8-delayed"]),
        cluster(nodes=2),
        at_most=LIMITS,
        objective="devices",
        step_limit_s=limit,
    )
    alone = planner.solve(
        model("fp8-delayed"),
        cluster(nodes=2),
        at_most=LIMITS,
        objective="devices",
        step_limit_s=limit,
    )
    assert open_.best.layout.n_devices <= alone.best.layout.n_devices
    assert open_.best.step_time_s <= limit


@pytest.fixture
def saved(together: Result, tmp_path: Path) -> str:
    file = tmp_path / "open.json"
    file.write_text(together.dumps())
    return str(file)


def test_saved_plans_open_in_their_recipe(together: Result, saved: str) -> None:
    for name in OPEN:
        plan = next(plan for plan in together.plans if plan.precision == name)
        opened, _, problem, again = open_plan(f"{saved}#{plan.plan_id}")
        assert problem.job.precision == name == opened.job.precision == again.precision
        assert (again.plan_id, again.step_time_s) == (plan.plan_id, plan.step_time_s)
        assert opened.precisions == tuple(OPEN)
        shown = run_here("show", f"{saved}#{plan.plan_id}").stdout
        assert f"precision {name}" in shown
        files = run_here("emit", f"{saved}#{plan.plan_id}", "--for", "megatron").stdout
        assert ("--fp8-recipe" in files) == name.startswith("fp8")
        assert f"--fp8-recipe {name.removeprefix('fp8-')}" in files or name == "bf16"


def test_an_emitted_plan_is_read_back_to_its_id(
    together: Result, saved: str, tmp_path: Path
) -> None:
    plan = next(plan for plan in together.plans if plan.precision == "fp8-tensorwise")
    script = tmp_path / "run.sh"
    script.write_text(run_here("emit", f"{saved}#{plan.plan_id}", "--for", "megatron").stdout)
    (tmp_path / "model.yaml").write_text(json.dumps(model(OPEN)))
    (tmp_path / "cluster.yaml").write_text(json.dumps(cluster()))
    run = run_here(
        "check",
        str(script),
        str(tmp_path / "cluster.yaml"),
        "--model",
        str(tmp_path / "model.yaml"),
        "--format",
        "json",
    )
    assert json.loads(run.stdout)["plan"]["plan_id"] == plan.plan_id, run.stdout + run.stderr


@pytest.mark.slow
def test_emitted_by_solve_in_their_recipes(tmp_path: Path) -> None:
    for name, data in (("m.yaml", model(["bf16", "fp8-delayed"])), ("c.yaml", cluster())):
        (tmp_path / name).write_text(json.dumps(data))
    run = run_here(
        "solve",
        str(tmp_path / "m.yaml"),
        str(tmp_path / "c.yaml"),
        "--max",
        "vpp=1,mbs=2",
        "--top",
        "40",
        "--emit",
        "megatron",
        "--out",
        str(tmp_path / "out"),
        "--format",
        "json",
    )
    plans = json.loads(run.stdout)["plans"]
    assert {plan["precision"] for plan in plans} == {"bf16", "fp8-delayed"}
    for plan in plans:
        folder = tmp_path / "out" / f"{plan['rank']}-{plan['plan_id']}"
        text = "".join(file.read_text() for file in folder.iterdir())
        assert ("--fp8-recipe delayed" in text) == (plan["precision"] == "fp8-delayed")


def test_neighbours_name_the_other_recipes(together: Result, saved: str) -> None:
    plan = together.best
    given, _, problem, _ = open_plan(f"{saved}#{plan.plan_id}")
    found = {
        change.new: change.near
        for change in single_changes(problem, plan.layout, "megatron", given.precisions)
        if change.axis == "precision"
    }
    assert set(found) == set(OPEN) - {plan.precision}
    for name, near in found.items():
        assert near is not None
        other = next(
            (p for p in together.plans if (p.precision, p.layout) == (name, plan.layout)), None
        )
        if other:
            assert near.step_s == pytest.approx(other.step_time_s, rel=1e-9)
            assert near.peak_bytes == pytest.approx(other.breakdown.peak_bytes, rel=1e-9)
    assert "precision" in run_here("neighbours", f"{saved}#1").stdout


def test_two_recipes_of_one_job_are_compared_as_plans(together: Result, saved: str) -> None:
    fast = together.best
    slow = next(plan for plan in together.plans if plan.precision == "bf16")
    found = compare(open_plan(f"{saved}#{slow.plan_id}"), open_plan(f"{saved}#{fast.plan_id}"))
    assert not found.inputs
    assert found.winner == "B"
    assert ("precision", "bf16", fast.precision) in [row[:3] for row in found.layout]
    assert found.turns


def test_the_table_names_the_recipes(together: Result) -> None:
    text = text_of(together)
    assert "bf16 or fp8-delayed or fp8-tensorwise" in text.replace("\n ", "")
    assert "recipe" in text
    assert max(map(len, text.splitlines())) <= 100
    assert "at best the other recipes take" in text.replace("\n ", "")
    rows = plans_csv(together).splitlines()
    assert rows[0].split(",")[3] == "precision"
    assert {row.split(",")[3] for row in rows[1:]} == {p.precision for p in together.plans}


def test_a_plan_without_choice_says_its_recipe_and_keeps_its_id(apart: dict[str, Result]) -> None:
    plan = apart["bf16"].best
    assert plan.to_json()["precision"] == "bf16"
    assert "precision" not in layout_to_json(plan.layout)


@pytest.mark.slow
def test_what_would_help_keeps_to_one_recipe() -> None:
    small = cluster(memory_margin="79 GiB")
    pins = {"devices": 4, "tp": 4, "mbs": 1, "recompute": "none"}
    result = planner.solve(model(["bf16", "fp8-delayed"]), small, pins=pins)
    assert not result.plans
    assert result.relaxations
    for change in result.relaxations:
        assert "--pin precision=" in change.command
        assert "--only precision" not in change.command
        assert "training.precision" not in change.command


@pytest.mark.parametrize(
    ("run", "error", "said"),
    [
        (lambda: solve(model(["bf16", "bf16"])), SpecError, "repeats a recipe"),
        (lambda: solve(model([])), SpecError, "is empty"),
        (lambda: solve(model(["bf16", "fp9"])), SpecError, "unknown value 'fp9'"),
        (lambda: solve(model(), only={"precision": "fp9"}), UsageError, "cannot be 'fp9'"),
        (lambda: solve(model(), at_most={"precision": 1}), UsageError, "has no order"),
        (lambda: solve(model(max={"precision": 2})), SpecError, "precision"),
        (
            lambda: solve(model(), pins={"precision": "bf16"}, only={"precision": "fp16"}),
            UsageError,
            "contradict",
        ),
        (
            lambda: planner.evaluate(model(OPEN), cluster(), pins={"tp": 2}),
            UsageError,
            "left open",
        ),
    ],
)
def test_faults_are_named(run: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        run()


def test_one_layout_is_priced_in_the_recipe_that_is_named() -> None:
    pins = {"tp": 2, "precision": "fp8-delayed"}
    named = planner.evaluate(model(OPEN), cluster(), pins=pins).best
    alone = planner.evaluate(model("fp8-delayed"), cluster(), pins={"tp": 2}).best
    assert (named.plan_id, named.step_time_s) == (alone.plan_id, alone.step_time_s)


def test_recipes_are_asked_for_in_one_order() -> None:
    given = model_from_dict(model(OPEN[::-1]))
    assert given.precisions == tuple(OPEN)
    assert asked_recipes(given, SolveOptions()) == tuple(OPEN)
    listed = SolveOptions(only=list_codes({"precision": ["fp16", "bf16"]}))
    assert asked_recipes(given, listed) == ("bf16", "fp16")
    assert tuple(sorted(PRECISIONS, key=PRECISIONS.index)) == PRECISIONS
    other = with_numerics(given, {"precision": "fp16"})
    assert other.document["training"]["precision"] == other.job.precision == "fp16"
    assert given.document["training"]["precision"] == "bf16"


def test_a_recommendation_is_for_one_recipe() -> None:
    with pytest.raises(UsageError, match="answered for one recipe"):
        recommend("micro-batch", model(OPEN), cluster(), at_most={"vpp": 1})
    pins = {"precision": "fp8-delayed", "tp": 4}
    named = recommend("micro-batch", model(OPEN), cluster(), pins=pins)
    alone = recommend("micro-batch", model("fp8-delayed"), cluster(), pins={"tp": 4})
    assert named.answer == alone.answer
    assert named.plan is not None
    assert named.plan.precision == "fp8-delayed"


def test_an_interrupted_search_goes_on_to_no_other_recipe(monkeypatch: Any) -> None:
    asked: list[str] = []

    def interrupted(context: Context, *rest: Any) -> Outcome:
        asked.append(context.problem.job.precision)
        return replace(search(context, *rest), stopped="interrupted")

    monkeypatch.setattr(variants, "search", interrupted)
    result = solve(model(OPEN), top=3)
    assert asked == ["bf16"]
    assert result.exit_code == 130
    assert {plan.precision for plan in result.plans} == {"bf16"}
