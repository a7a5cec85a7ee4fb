"""The answers of `planner.solve` and `planner.evaluate` for the examples."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.errors import InfeasibleError, SearchError, SpecError, UsageError
from planner.render.document import text_of
from planner.solver.answer.result import SCHEMA_VERSION
from planner.solver.calibration.file import load_calibration
from planner.solver.keywords import SolveKeywords
from planner.specs.examples import example_names
from planner.specs.loader import load_cluster
from planner.specs.yaml.document import load_yaml
from tests.repeats import halved
from tests.searches.instances import one_in

H100 = "h100-x512"
EXAMPLES = Path(planner.__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def llama70() -> planner.Result:
    return planner.solve("llama3-70b", H100)


def test_public_surface() -> None:
    assert planner.__all__ == [
        "Plan",
        "Recommendation",
        "Report",
        "Result",
        "__version__",
        "allocate",
        "batch_solve",
        "check",
        "evaluate",
        "recommend",
        "report",
        "review",
        "scale",
        "solve",
        "sweep",
    ]
    assert all(getattr(planner, name) for name in planner.__all__)
    assert planner.Result.__name__ == "Result"
    with pytest.raises(AttributeError, match="no attribute"):
        planner.missing  # noqa: B018


# Sizes apart, the other examples are like these; DeepSeek's fit with expert parallelism only.
MODELS = ("gpt3-175b", "llama3-405b", "llama3-70b", "llama3-8b", "mixtral-8x7b")
WITH_EVERY_MODEL = ("a100-x1024", "h100-x16384", "h100-x512", "h100-x8")
QUICK = {
    ("llama3-70b", "gb200-nvl72-x576"),
    ("mixtral-8x7b", "h100-x512"),
    ("llama3-8b", "h100-x8"),
}
"""The others run as slow tests."""
PAIRS = [
    pytest.param(model, cluster, marks=[pytest.mark.slow] * ((model, cluster) not in QUICK))
    for cluster in example_names("cluster")
    for model in (MODELS if cluster in WITH_EVERY_MODEL else ["llama3-70b"])
]


@pytest.mark.parametrize(("model", "cluster"), halved(PAIRS))
def test_every_example_pair_gives_a_sensible_answer(model: str, cluster: str) -> None:
    result = planner.solve(model, cluster, top=10)
    given = load_cluster(cluster)
    pools = {pool.name: pool for pool in given.with_other_uses().cluster.pools}
    if not result.plans:
        assert cluster == "h100-x8"
        assert result.exit_code == 3
        assert result.relaxations
        return
    for plan in result.plans:
        x, b = plan.layout, plan.breakdown
        domain = pools[plan.pool].scale_up_domain
        assert 0 in (domain % x.tp, x.tp % domain)
        assert any(w.code == "COM102" for w in plan.warnings) == (x.tp > domain)
        assert x.n_devices + plan.n_idle == given.pool(plan.pool).n_given
        assert x.tp * x.pp * x.cp * x.dp == x.n_devices
        assert x.n_micro * x.mbs * x.dp == x.gbs
        assert b.peak_bytes <= plan.usable_bytes
        assert 0.02 < plan.mfu < 0.65
        assert plan.runs_on
        assert sum(b.time_s.values()) == pytest.approx(plan.step_time_s, rel=1e-12)
        assert min(b.time_s.values()) >= 0
        assert max(sum(stage.values()) for stage in b.stages) == b.peak_bytes
        assert plan.step_time_p10_s < plan.step_time_s < plan.step_time_p90_s


@pytest.mark.slow
def test_llama3_405b_comes_out_like_its_paper() -> None:
    # Llama 3 report, table 4: tp 8, pp 16, dp 128 on 16,384 H100, 400 TFLOP/s, 41 % MFU, without
    # recomputation. Megatron keeps whole gradients beside a pipeline, so ours recomputes; the
    # published MFU is met within a fifth. With cp 2, tp 16 over two nodes, or MLPs recomputed
    # instead of whole layers, the search finds plans that are faster yet.
    best = planner.solve(
        "llama3-405b",
        "h100-x16384",
        at_most={"cp": 1, "tp": 8},
        only={"recompute": ["none", "full"]},
    ).best
    assert (best.layout.tp, best.layout.pp, best.layout.dp) == (8, 16, 128)
    assert best.mfu == pytest.approx(0.41, rel=1 / 5)
    assert best.layout.stage_layers[0] < best.layout.stage_layers[1]


@pytest.mark.slow
def test_tensor_parallelism_leaves_the_node_where_it_pays() -> None:
    """16 sequences on 1,024 H100: dp 16 at most, so the rest is tp and a long pipeline."""
    few = (("pools.0.nodes", 128), ("training.global_batch", 16))
    wide = planner.solve("llama3-405b", "h100-x16384", overrides=few, top=1)
    inside = planner.solve("llama3-405b", "h100-x16384", overrides=few, at_most={"tp": 8}, top=1)
    assert wide.best.layout.tp > 8 >= inside.best.layout.tp
    assert wide.best.step_time_s < 0.7 * inside.best.step_time_s
    allowed = planner.solve(
        "llama3-405b", "h100-x16384", overrides=few, top=1, allow=("tp-across-domains",)
    )
    assert allowed.best.plan_id == wide.best.plan_id


def test_a_pinned_order_of_ranks_is_searched_and_priced() -> None:
    order = {"rank_order": "tp-cp-ep-pp-dp"}
    found = planner.solve("llama3-70b", H100, pins=order, top=3)
    assert {plan.layout.rank_order for plan in found.plans} == {order["rank_order"]}
    assert set(found.plans[0].runs_on) <= {"megatron", "bridge"}
    degrees = {"tp": 2, "pp": 4, "mbs": 1}
    inside, usual = (
        planner.evaluate("llama3-70b", H100, pins=degrees | x).best for x in (order, {})
    )
    assert inside.plan_id != usual.plan_id
    hops = [
        next(t for t in plan.breakdown.transfers if t.axis == "pp") for plan in (inside, usual)
    ]
    assert hops[0].tier == "scale-up"  # 2 x 4 ranks: a pipeline fills a node
    assert hops[1].tier != "scale-up"
    assert hops[0].time_s < hops[1].time_s
    text = text_of(inside)
    assert "placement: rank = tp + 2 pp + 8 dp (tp-cp-ep-pp-dp)" in text
    assert re.search(r"^  pp +4 +128 +2 +1 +scale-up$", text, re.MULTILINE)


def test_the_papers_own_layout_without_recompute_has_the_papers_mfu() -> None:
    result = planner.evaluate(
        "llama3-405b", "h100-x16384", pins={"tp": 8, "pp": 16, "vpp": 4, "recompute": "none"}
    )
    assert result.best.mfu == pytest.approx(0.41, rel=0.08)
    assert result.best.layout.stage_layers == (1, *[2] * 62, 1)


@pytest.mark.slow
def test_same_input_same_bytes(llama70: planner.Result) -> None:
    again = planner.solve("llama3-70b", H100)
    assert again.dumps() == llama70.dumps()


def test_ties_are_in_the_first_group_and_marks_say_so(llama70: planner.Result) -> None:
    assert llama70.plans[0].group == 1
    seen = 1
    for plan in llama70.plans:
        assert plan.group is not None
        assert plan.group == 1 or not plan.tie
        assert plan.group <= seen + 1  # the next group starts where none of those before holds
        seen = max(seen, plan.group)
    text = text_of(llama70)
    for plan in llama70.plans[1:]:
        mark = "=" if plan.tie else "~" if plan.group == 1 else " "
        row = next(x for x in text.splitlines() if x.endswith(plan.plan_id))
        assert row.startswith(f"{mark} {plan.rank} ")
    assert llama70.plans[0].interval_regime.startswith("fitted.")
    unseen = planner.evaluate("llama3-70b", H100, pins={"tp": 8, "pp": 8}, stack="fused").plans[0]
    assert unseen.interval_regime.startswith("new.")
    assert unseen.group is None
    low, high = load_calibration().intervals[unseen.interval_regime]
    assert unseen.step_time_p10_s == pytest.approx(low * unseen.step_time_s)
    assert unseen.step_time_p90_s == pytest.approx(high * unseen.step_time_s)


def test_json_has_the_contract_fields(llama70: planner.Result) -> None:
    data = json.loads(llama70.dumps())
    assert data["schema_version"] == SCHEMA_VERSION
    for name in ("result_id", "inputs", "calibration", "counts", "rejected", "relaxations"):
        assert name in data
    assert set(data["counts"]) >= {"space", "priced", "pruned", "fit"}
    plan = data["plans"][0]
    wanted = {
        "rank",
        "plan_id",
        "layout",
        "step_time_s",
        "step_time_p10_s",
        "step_time_p90_s",
        "tokens_per_s",
        "tokens_per_s_per_device",
        "mfu",
        "time",
        "memory",
        "comm",
        "warnings",
        "runs_on",
        "interval_regime",
        "tie",
        "group",
    }
    assert wanted <= set(plan)
    layout = {
        "tp",
        "pp",
        "dp",
        "cp",
        "ep",
        "etp",
        "vpp",
        "zero",
        "dp_shard",
        "mbs",
        "gbs",
        "n_micro",
        "schedule",
        "sp",
        "recompute",
        "recompute_modules",
        "recompute_layers",
        "stage_layers",
        "rank_order",
        "n_devices",
    }
    assert layout <= set(plan["layout"])
    comm = {"axis", "collective", "tier", "n_calls", "bytes", "time_s", "exposed_s", "dtype"}
    assert all(comm <= set(row) for row in plan["comm"])
    assert set(plan["memory"]) >= {"peak_bytes", "usable_bytes", "stages"}
    counts = data["counts"]
    assert counts["space"] == counts["pruned"] + counts["fit"] + counts["excluded"]
    certificate = data["certificate"]
    assert certificate["proven"]
    fastest_s = min(plan["step_time_s"] for plan in data["plans"])
    # Both are exact; the order of the same additions may differ in the last digit.
    assert fastest_s / 1.01 <= certificate["fastest_s"] <= fastest_s * (1 + 1e-12)
    assert certificate["bound_s"] > certificate["fastest_s"]
    assert len(plan["plan_id"]) == 12


def test_traffic_waits_add_up_to_the_time_terms(llama70: planner.Result) -> None:
    for plan in llama70.plans:
        waits = dict.fromkeys(("tp", "cp", "pp", "dp", "host"), 0.0)
        for row in plan.breakdown.transfers:
            waits[row.axis] += row.exposed_s
        assert waits["pp"] == pytest.approx(plan.breakdown.time_s["pp"], rel=1e-9)
        assert waits["cp"] == pytest.approx(plan.breakdown.time_s["cp"], rel=1e-9)
        assert waits["dp"] == pytest.approx(plan.breakdown.time_s["dp"], rel=1e-9)


def test_ties_come_first_and_only_they_break_the_order_of_time(llama70: planner.Result) -> None:
    ties = [plan for plan in llama70.plans if plan.tie]
    rest = [plan for plan in llama70.plans if not plan.tie]
    assert list(llama70.plans) == ties + rest
    assert [p.step_time_s for p in rest] == sorted(p.step_time_s for p in rest)
    fastest = min(plan.step_time_s for plan in llama70.plans)
    assert all(plan.step_time_s <= 1.01 * fastest for plan in ties)


def test_pins_lists_and_limits_restrict() -> None:
    result = planner.solve(
        "llama3-70b",
        H100,
        pins={"tp": 8, "sp": True},
        only={"mbs": [1, 2], "recompute": "none"},
        at_most={"pp": 4},
    )
    assert result.plans
    for plan in result.plans:
        assert plan.layout.tp == 8
        assert plan.layout.sp
        assert plan.layout.pp <= 4
        assert plan.layout.mbs in (1, 2)
        assert plan.layout.recompute == "none"


@pytest.mark.slow
def test_a_pin_never_improves_the_best(llama70: planner.Result) -> None:
    free = min(plan.step_time_s for plan in llama70.plans)
    for pins in ({"tp": 8}, {"pp": 2}, {"zero": 1}, {"vpp": 1}):
        pinned = planner.solve("llama3-70b", H100, pins=pins)
        assert min(plan.step_time_s for plan in pinned.plans) >= free


@pytest.mark.slow
def test_nothing_fits_is_an_answer() -> None:
    result = planner.solve("llama3-70b", "h100-x8")
    assert result.plans == ()
    assert result.closest is not None
    assert result.closest.peak_bytes > result.closest.usable_bytes
    codes = {rejection.code for rejection in result.rejected}
    assert {"MEM000", "MEM001"} <= codes
    with pytest.raises(InfeasibleError):
        _ = result.best


@pytest.mark.slow
def test_what_is_proposed_where_nothing_fits_makes_it_fit() -> None:
    result = planner.solve("llama3-70b", "h100-x8")
    change = result.relaxations[-1]
    assert "--set pools.0.nodes=" in change.command
    nodes = int(change.command.rpartition("=")[2])
    few, more = (
        planner.solve("llama3-70b", "h100-x8", overrides=(("pools.0.nodes", n),))
        for n in (nodes - 1, nodes)
    )
    assert more.plans
    assert not few.plans
    on_host = next(x for x in result.relaxations if x.change == "optimizer states on the host")
    assert on_host.command.endswith("--only optimizer_offload=off,on")
    with_host = planner.solve("llama3-70b", "h100-x8", only={"optimizer_offload": ("off", "on")})
    assert with_host.best.layout.optimizer_offload


@pytest.mark.slow
def test_a_pin_that_excludes_everything_is_the_first_relaxation() -> None:
    result = planner.solve("llama3-70b", H100, pins={"tp": 1, "pp": 1, "zero": 0})
    assert not result.plans
    assert result.relaxations[0].change.startswith("leave ")
    assert "--pin" in result.relaxations[0].command


def test_evaluate_prices_what_does_not_fit() -> None:
    result = planner.evaluate("llama3-70b", H100, pins={"tp": 1, "pp": 2})
    assert result.best.warnings[0].code == "MEM001"
    assert result.best.headroom_frac < 0


def test_evaluate_equals_the_plan_of_solve(llama70: planner.Result) -> None:
    x = llama70.best.layout
    pins = {
        "tp": x.tp,
        "pp": x.pp,
        "vpp": x.vpp,
        "mbs": x.mbs,
        "zero": x.zero,
        "sp": x.sp,
        "split": x.split,
        "recompute": x.recompute,
        "recompute_layers": x.recompute_layers,
        "cp": x.cp,
        "cp_comm": x.cp_comm or "none",
        "optimizer_offload": x.optimizer_offload,
    }
    again = planner.evaluate("llama3-70b", H100, pins=pins).best
    assert again.plan_id == llama70.best.plan_id
    assert again.step_time_s == llama70.best.step_time_s
    assert again.breakdown.stages == llama70.best.breakdown.stages


def test_dicts_give_the_same_answer_as_files(llama70: planner.Result) -> None:
    inputs = llama70.to_json()["inputs"]
    again = planner.solve(inputs["model"], inputs["cluster"])
    assert again.best.plan_id == llama70.best.plan_id
    assert again.result_id == llama70.result_id


@pytest.mark.parametrize(
    ("options", "error", "part"),
    [
        ({"top": 0}, UsageError, "--top"),
        ({"pins": {"tpp": 8}}, UsageError, "unknown axis 'tpp'"),
        ({"pins": {"optimizer": "muon"}}, UsageError, "training.optimizer=muon"),
        ({"pins": {"tp": "eight"}}, UsageError, "whole number"),
        ({"pins": {"recompute": "some"}}, UsageError, "one of none, selective, full"),
        ({"at_most": {"recompute": 1}}, UsageError, "no order"),
        ({"framework": "jax"}, UsageError, "one of default, megatron"),
        ({"stack": "jax"}, UsageError, "one of"),
        ({"allow": ("magic",)}, UsageError, "tp-across-domains"),
        ({"overrides": (("pools.0.nodez", 3),)}, SpecError, "nodez"),
        ({"overrides": (("training.precision", "fp64"),)}, SpecError, "precision"),
    ],
)
def test_bad_options_say_what_to_change(
    options: dict[str, Any], error: type[Exception], part: str
) -> None:
    with pytest.raises(error, match=part):
        planner.solve("llama3-8b", "h100-x8", **options)


def test_a_precision_that_the_accelerator_lacks() -> None:
    with pytest.raises(SearchError, match=r"no bf16 matrix units"):
        planner.solve("llama3-8b", "h100-x8", overrides=(("pools.0.accelerator", "v100"),))


@pytest.mark.parametrize(
    ("pins", "part"),
    [
        ({"tp": 3}, "not a multiple"),
        ({"tp": 128}, "TP001"),
        ({"pp": 128}, "PP001"),
        ({"tp": 8, "dp": 3}, "contradicts"),
        ({"tp": 8, "zero": 0, "dp_shard": 8}, "dp_shard 8 contradicts zero 0"),
        ({"tp": 8, "dp_shard": 3}, "cuts the 64 ranks of dp x cp"),
        ({"pp": 2, "zero": 3}, "ZER001"),
        ({"mbs": 7}, "BAT001"),
        ({"recompute": "selective"}, "REC001"),
        ({"schedule": "interleaved"}, "SCH001"),
        ({"schedule": "zb-v", "pp": 4, "vpp": 3}, "SCH001"),
        ({"schedule": "dualpipe", "tp": 4, "pp": 8, "mbs": 8}, "BAT003"),
    ],
)
def test_evaluate_names_the_rule_that_a_layout_breaks(pins: dict[str, object], part: str) -> None:
    with pytest.raises(SearchError, match=part):
        planner.evaluate("llama3-70b", H100, pins=pins)


def test_evaluate_prices_the_groups_that_are_asked_for() -> None:
    few, whole, plain = (
        planner.evaluate("llama3-70b", H100, pins={"tp": 8, "pp": 2} | more).best.layout
        for more in ({"dp_shard": 8}, {"dp_shard": 32}, {})
    )
    assert (few.shard, few.dp_shard) == (8, 8)
    assert whole == plain


def test_the_order_of_lists_pins_and_keys_changes_nothing() -> None:
    model, cluster = (
        load_yaml(EXAMPLES / path).data
        for path in ("models/llama3-8b.yaml", "clusters/h100-x8.yaml")
    )

    def backwards(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: backwards(value[key]) for key in reversed(value)}
        return value

    only = {"tp": [1, 2, 4], "mbs": [1, 2], "recompute": ["none", "full"], "zero": [0, 1, 3]}
    other = {axis: values[::-1] for axis, values in reversed(only.items())}
    ours = planner.solve(model, cluster, only=only, at_most={"pp": 4, "vpp": 2})
    theirs = planner.solve(
        backwards(model), backwards(cluster), only=other, at_most={"vpp": 2, "pp": 4}
    )
    assert ours.result_id == theirs.result_id
    assert [p.to_json() for p in ours.plans] == [p.to_json() for p in theirs.plans]


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-v"])
def test_evaluate_refuses_to_split_the_backward_of_experts(schedule: str) -> None:
    pins = {"tp": 2, "pp": 4, "schedule": schedule}
    with pytest.raises(SearchError, match="SCH002"):
        planner.evaluate("mixtral-8x7b", H100, pins=pins)


def test_evaluate_prices_experts_on_a_pipeline_from_both_ends() -> None:
    pins = {"tp": 2, "pp": 4, "schedule": "dualpipe"}
    found = planner.evaluate("mixtral-8x7b", H100, pins=pins)
    assert found.best.layout.schedule == "dualpipe"


RUN_SPLIT = {
    "zb-h1": (),
    "zb-v": ("torchtitan", "automodel"),
    "dualpipe": (),
    "dualpipe-v": ("torchtitan",),
}
"""The frameworks that run each schedule whose backward is split."""


@pytest.mark.parametrize("schedule", one_in(3, sorted(RUN_SPLIT)))
def test_schedules_that_split_the_backward_are_priced_and_searched_when_asked(
    schedule: str,
) -> None:
    pins = {"tp": 8, "pp": 4, "schedule": schedule, "recompute": "none"}
    evaluated = planner.evaluate("llama3-70b", H100, pins=pins).plans[0]
    assert evaluated.layout.schedule == schedule
    assert evaluated.runs_on == RUN_SPLIT[schedule]
    if RUN_SPLIT[schedule]:
        alone = planner.solve("llama3-70b", H100, pins=pins, framework="torchtitan", top=3)
        assert {plan.layout.schedule for plan in alone.plans} == {schedule}
        assert all(plan.runs_on == RUN_SPLIT[schedule] for plan in alone.plans)
    found = planner.solve("llama3-70b", H100, pins=pins, framework="any", top=3)
    assert {plan.layout.schedule for plan in found.plans} == {schedule}
    same = [p for p in found.plans if p.layout == evaluated.layout]
    assert not same or same[0].breakdown.step_s == evaluated.breakdown.step_s
    plain = planner.evaluate("llama3-70b", H100, pins={**pins, "schedule": "1f1b"}).plans[0]
    assert evaluated.breakdown.time_s["bubble"] < plain.breakdown.time_s["bubble"]


def test_the_time_limit_gives_the_best_so_far() -> None:
    result = planner.solve("llama3-70b", H100, stop=lambda: True)
    assert result.stopped == "time limit"
    assert not result.complete
    assert result.exit_code == 4
    assert result.plans


@pytest.mark.slow
def test_odd_device_counts_have_plans() -> None:
    for nodes in (3, 5, 6, 12, 125):
        batch = nodes * 8
        result = planner.solve(
            "llama3-8b",
            "h100-x8",
            overrides=(("pools.0.nodes", nodes), ("training.global_batch", batch)),
        )
        assert result.plans, nodes


def test_one_device_and_a_tied_model() -> None:
    model = {
        "model": {
            "layers": 12,
            "hidden": 768,
            "heads": 12,
            "ffn": 3072,
            "gated": False,
            "vocab": 50257,
            "tied": True,
        },
        "training": {"seq_len": 1024, "global_batch": 8},
    }
    cluster = {"pools": [{"accelerator": "h100", "nodes": 1, "accelerators_per_node": 1}]}
    best = planner.solve(model, cluster).best
    assert (best.layout.tp, best.layout.pp, best.layout.dp) == (1, 1, 1)


def test_no_plan_recomputes_more_for_nothing(llama70: planner.Result) -> None:
    for result in (llama70, planner.solve("llama3-8b", "h100-x8", top=30)):
        best: dict[tuple[object, ...], list[planner.Plan]] = {}
        for plan in sorted(result.plans, key=lambda p: p.step_time_s):
            x = plan.layout
            rivals = best.setdefault(
                (x.tp, x.pp, x.cp, x.cp_comm, x.vpp, x.split, x.mbs, x.zero, x.sp), []
            )
            assert all(
                plan.breakdown.peak_bytes < faster.breakdown.peak_bytes / 1.004
                for faster in rivals
            )
            rivals.append(plan)


TWO_POOLS = {
    "pools": [
        {"name": "old", "accelerator": "a100", "nodes": 8},
        {"name": "new", "accelerator": "h100", "nodes": 8},
    ]
}


def _one_pool(index: int) -> dict[str, Any]:
    return {"pools": [TWO_POOLS["pools"][index]]}


@pytest.mark.slow
def test_the_plans_of_two_pools_are_ranked_together() -> None:
    pins = {"recompute": "none", "tp": 2, "pp": 2, "split": "even"}
    every: SolveKeywords = {"top": 400, "pins": pins, "all_variants": True}
    both = planner.solve("llama3-8b", TWO_POOLS, **every)
    alone = [planner.solve("llama3-8b", _one_pool(i), **every) for i in (0, 1)]
    assert {p.plan_id for p in both.plans} == {p.plan_id for r in alone for p in r.plans}
    assert len(both.plans) == len(alone[0].plans) + len(alone[1].plans)
    assert both.best.pool == "new"
    assert both.best.plan_id == alone[1].best.plan_id
    untied = [p.step_time_s for p in both.plans if not p.tie]
    assert untied == sorted(untied)
    assert max(p.step_time_s for p in both.plans if p.tie) <= 1.01 * min(
        p.step_time_s for p in both.plans
    )
    assert both.counts.fit == alone[0].counts.fit + alone[1].counts.fit
    pools = "on pool new; at best the other pools take: old "
    assert any(line.startswith(pools) for line in both.why_first)


def test_a_plan_of_a_named_pool_is_the_plan_of_that_pool_alone() -> None:
    named = planner.solve("llama3-8b", TWO_POOLS, top=3, pool="old")
    alone = planner.solve("llama3-8b", _one_pool(0), top=3)
    assert [p.to_json() for p in named.plans] == [p.to_json() for p in alone.plans]
    one = planner.evaluate("llama3-8b", TWO_POOLS, pins={"tp": 2}, pool="new")
    assert one.best.pool == "new"
    assert one.best.layout.n_devices == 64


@pytest.mark.parametrize(
    ("pool", "part"), [("", "2 pools, and one layout"), ("nwe", "did you mean new")]
)
def test_evaluate_asks_for_the_pool(pool: str, part: str) -> None:
    with pytest.raises(UsageError) as caught:
        planner.evaluate("llama3-8b", TWO_POOLS, pins={"tp": 2}, pool=pool)
    assert part in str(caught.value)


def test_a_pool_that_is_not_modelled_is_left_out_and_named() -> None:
    pools = [*TWO_POOLS["pools"][:1], {"name": "chips", "accelerator": "trainium2", "nodes": 4}]
    result = planner.solve("llama3-8b", {"pools": pools}, top=2)
    assert {p.pool for p in result.plans} == {"old"}
    assert result.notes[0].startswith("pool chips is left out: trainium2-96gb: AWS parts")
    with pytest.raises(SearchError, match="AWS parts"):
        planner.solve("llama3-8b", {"pools": pools[1:]})


@pytest.mark.slow
def test_what_helps_when_no_pool_is_large_enough_names_the_pool_of_the_file() -> None:
    pools = [
        {"name": "old", "accelerator": "a100-40gb", "nodes": 1},
        {"name": "new", "accelerator": "h100", "nodes": 1},
    ]
    result = planner.solve("llama3-70b", {"pools": pools})
    assert not result.plans
    assert any("--set pools.1.nodes=" in change.command for change in result.relaxations)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pool", "parts"),
    [
        (
            {"accelerator": "h100", "nodes": 4, "free_nodes": 1},
            ["--set pools.0.nodes=", "--set pools.0.free_nodes="],
        ),
        ({"accelerator": "gb200", "nodes": 1}, ["--set pools.0.nodes="]),
        ({"accelerator": "h100", "nodes": 2, "free_devices": [8, 0]}, []),
    ],
)
def test_more_nodes_are_asked_for_in_the_words_of_the_file(
    pool: dict[str, Any], parts: list[str]
) -> None:
    result = planner.solve("llama3-70b", {"pools": [pool]})
    assert not result.plans
    more = [c for c in result.relaxations if ".nodes=" in c.command]
    assert bool(more) == bool(parts)
    for change in more:
        for part in parts:
            assert part in change.command
        words = shlex.split(change.command)
        sets = [w.partition("=")[::2] for w in words if w.startswith("pools.")]
        # The change names the fastest plan, whatever memory it leaves free.
        pools = {"pools": [pool]}
        again = planner.solve("llama3-70b", pools, overrides=tuple(sets), top=100, memory_margin=0)
        assert min(p.step_time_s for p in again.plans) <= change.step_time_s * (1 + 1e-9)


@pytest.mark.slow
def test_longer_lists_have_the_same_best() -> None:
    cluster = {"pools": [{"accelerator": "gb200", "nodes": 2}]}
    short, long = (planner.solve("llama3-70b", cluster, top=n) for n in (10, 100))
    assert short.best.plan_id == long.best.plan_id
    fastest = [min(r.plans, key=lambda p: p.step_time_s) for r in (short, long)]
    assert fastest[0].layout == fastest[1].layout
    assert short.certificate
    assert long.certificate
    assert short.certificate.fastest_s == long.certificate.fastest_s


@pytest.mark.slow
def test_a_plan_on_racks_uses_the_larger_domain_and_says_so() -> None:
    # With one copy of a token for each expert, and nothing to hide it, the domain bounds ep.
    asked: SolveKeywords = {
        "top": 1,
        "overrides": (("training.global_batch", 4096),),
        "pins": {"dispatcher": "alltoall", "ep_overlap": "off"},
    }
    rack = planner.solve("deepseek-v3", "gb300-nvl72-x512", **asked)
    node = planner.solve("deepseek-v3", "b200-x256", **asked)
    assert rack.best.layout.ep * rack.best.layout.etp > 8 >= node.best.layout.ep
    # One copy for each node or domain carries ep over nodes too.
    free = planner.solve("deepseek-v3", "b200-x256", top=1, overrides=asked["overrides"])
    assert free.best.layout.ep > 8
    assert ("dispatcher", "hybridep") in free.best.layout.switches
    assert free.best.step_time_s < node.best.step_time_s
    words = "ep 64 reaches over nodes of 4 and stays inside the scale-up domain of 64"
    assert any(words in line for line in rack.why_first)
    assert not any("scale-up domain" in line for line in node.why_first)


def test_waits_of_multi_token_prediction_stand_under_their_own_axis() -> None:
    plan = planner.evaluate(
        "deepseek-v3", "gb200-nvl72-x576", pins={"tp": 1, "pp": 9, "ep": 64}
    ).best
    terms, transfers = plan.breakdown.time_s, plan.breakdown.transfers
    assert terms["tp"] == 0.0
    waits = sum(x.exposed_s for x in transfers if x.axis == "ep")
    assert terms["ep"] == pytest.approx(waits)


@pytest.mark.slow
def test_a_recommended_plan_shows_the_axes_that_it_uses() -> None:
    found = planner.recommend("bandwidth", "mixtral-8x7b", "b200-x256")
    assert found.plan is not None
    assert found.plan.layout.ep > 1
    compute = sum(
        found.plan.breakdown.time_s[t]
        for t in (
            "linear",
            "attention",
            "elementwise",
            "experts",
            "head",
            "embedding",
            "recompute",
        )
    )
    assert found.answer is not None
    assert found.answer["compute_s"] == pytest.approx(compute)
    heading = next(x for x in text_of(found).splitlines() if " tp pp " in x)
    assert " ep " in heading


def test_an_impossible_imbalance_is_refused() -> None:
    # Two of eight experts a token: no expert can have more than four times the mean.
    with pytest.raises(SpecError, match="imbalance"):
        planner.solve("mixtral-8x7b", "b200-x256", overrides=(("model.moe.imbalance", 5),))
