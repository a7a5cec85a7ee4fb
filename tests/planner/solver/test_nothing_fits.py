"""When nothing fits: conflicts in words, and changes that really give a plan."""

import functools
import re
import shlex
from dataclasses import replace
from typing import Any

import pytest

import planner
from costmodels.parameters import total_params
from costmodels.shapes import ModelShape
from planner.errors import PlannerError
from planner.render.document import text_of
from planner.solver.infeasible.conflicts import _TEXTS, condition_text
from planner.solver.infeasible.relaxations import KINDS
from searches.conflicts import Condition
from searches.options import SearchOptions
from searches.rules import RULES
from tests.searches.instances import DENSE, GB, GQA, context, one_in, toy_pool
from tests.searches.test_rules import keeps

H100 = "h100-x512"
HOPELESS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "too few devices": ("llama3-70b", "h100-x8", {}),
    "far too few devices": ("llama3-405b", "h100-x8", {}),
    "no divisor": ("llama3-70b", H100, {"pins": {"tp": 8, "pp": 3, "devices": 512}}),
    "two conflicts": ("llama3-70b", H100, {"pins": {"tp": 128, "pp": 3}}),
    "three pins": ("llama3-70b", H100, {"pins": {"tp": 1, "pp": 1, "zero": 0}}),
    "large micro-batch": (
        "llama3-8b",
        "h100-x8",
        {"pins": {"tp": 1, "mbs": 16}, "only": {"split": ["even", "ends"]}},
    ),
    "too little recompute": (
        "llama3-70b",
        H100,
        {"pins": {"tp": 8, "pp": 1, "cp": 1, "mbs": 4, "recompute": "none"}},
    ),
    "shallow recompute": (
        "llama3-70b",
        H100,
        {
            "pins": {
                "tp": 4,
                "pp": 4,
                "cp": 1,
                "vpp": 1,
                "zero": 1,
                "mbs": 2,
                "recompute_layers": 2,
            }
        },
    ),
    "odd batch": (
        "llama3-70b",
        H100,
        {
            "overrides": (("training.global_batch", 7),),
            "at_most": {"cp": 1, "tp": 8, "pp": 32},  # 64 stages of 8 ranks would fill them
            "pins": {"devices": 512},
        },
    ),
    "odd micro-batch": ("llama3-8b", "h100-x8", {"pins": {"mbs": 3}}),
    "long sequences": ("llama3-8b", "h100-x8", {"overrides": (("training.seq_len", 1048576),)}),
    "wide margin": ("llama3-70b", H100, {"overrides": (("pools.0.memory_margin", "78 GiB"),)}),
    "unfused attention": (
        "llama3-8b",
        "h100-x8",
        {
            "pins": {"tp": 1, "recompute": "none"},
            "overrides": (
                ("model.flash_attention", False),
                ("training.seq_len", 16384),
            ),
        },
    ),
    "framework": ("llama3-70b", H100, {"pins": {"tp": 8, "pp": 8}, "framework": "deepspeed"}),
    "limits on free axes": (
        "llama3-70b",
        H100,
        {"at_most": {"zero": 0, "recompute_layers": 0, "mbs": 1, "sp": 0, "tp": 2, "pp": 2}},
    ),
    "lists and limits": (
        "llama3-70b",
        H100,
        {"only": {"tp": [1, 2]}, "at_most": {"pp": 2}, "pins": {"zero": 1}},
    ),
}


@functools.cache
def answer(name: str) -> planner.Result:
    model, cluster, options = HOPELESS[name]
    return planner.solve(model, cluster, **options)


BY_DEFAULT = ("three pins",)
"""The others take a second or more each."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.slow] * (name not in BY_DEFAULT))
        for name in HOPELESS
    ],
)
def asked(request: pytest.FixtureRequest) -> tuple[str, planner.Result]:
    return request.param, answer(request.param)


def follow(command: str) -> planner.Result:
    """Run what a suggested command says, through the library."""
    words = shlex.split(command)
    assert words[:2] == ["planner", "solve"]
    pins: dict[str, object] = {}
    given: dict[str, Any] = {"overrides": (), "only": {}, "at_most": {}}
    for option, value in zip(words[4::2], words[5::2], strict=True):
        name, _, text = value.partition("=")
        if option == "--pin":
            pins[name] = text
        elif option == "--set":
            given["overrides"] += ((name, text),)
        elif option == "--only":
            given["only"][name] = text.split(",")
        elif option == "--max":
            given["at_most"][name] = int(text)
        else:
            given[option.removeprefix("--")] = value
    return planner.solve(words[2], words[3], pins=pins, **given)


@pytest.mark.parametrize("framework", ["default", "any"])
@pytest.mark.parametrize("shape", [DENSE, replace(GQA, n_experts=4, top_k=2, expert_ffn=1024)])
def test_memory_names_only_ways_that_these_devices_have(shape: ModelShape, framework: str) -> None:
    """Every way to keep MEM000 that is named does, and where none is, no layout keeps it."""
    told = set()
    for memory in (1.02, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0, 3.0, 6.0, 12.0):
        pool = toy_pool(8, memory=memory * GB)
        c = context(shape, pool, options=SearchOptions(framework=framework))
        found = condition_text(c, Condition("MEM000"))
        assert "inf" not in found
        split = [keeps("MEM000", c, (1, pp, 1, 8 // pp, 0)) for pp in (2, 4, 8)]
        needed = re.search(r"GiB: tp \* pp of (\d+) or more", found)
        if needed:
            assert split == [pp >= int(needed[1]) for pp in (2, 4, 8)], found
        elif not any(split):
            assert "there are 8 devices" in found or "shared out" in found or "ZeRO 3" in found
            told.add("none")
        if "ZeRO 3 and pp 1" in found:
            assert keeps("MEM000", c, (1, 1, 1, 8, 0))
            assert 18.0 * total_params(shape, 1024) / 8 <= pool.usable_bytes
        elif not needed and "there are 8 devices" in found:
            assert not keeps("MEM000", c, (1, 1, 1, 8, 0))
        told.add("split" if needed else "shared" if "shared out" in found else "")
    assert {"none", "shared"} <= told or {"none", "split"} <= told


@pytest.mark.parametrize(
    ("options", "batch", "words"),
    [
        ({"only": {"mbs": frozenset({3})}}, 24, "mbs 3: both answers"),
        ({"at_most": {"mbs": 1}}, 16, "mbs 1: both answers"),
        ({"only": {"dp": frozenset({8})}}, 8, "mbs 1: both answers"),
        ({"only": {"tp": frozenset({8})}}, 16, "fsdp2 can run it"),
        ({"only": {"mbs": frozenset({2})}, "framework": "megatron"}, 16, "has no loss"),
    ],
)
def test_frameworks_that_compare_answers_part_no_pair(
    options: dict[str, Any], batch: int, words: str
) -> None:
    chosen = SearchOptions(**{"framework": "fsdp2", **options})
    c = context(DENSE, toy_pool(8), options=chosen)
    job = replace(c.problem.job, task="dpo", has_reference=True, global_batch=batch)
    c = replace(c, problem=replace(c.problem, job=job))
    text = condition_text(c, Condition("FRM001"))
    assert words in text
    assert ("both answers" in text) is ("both answers" in words)


@pytest.mark.slow
def test_neither_infinite_degrees_nor_zero_3_that_does_not_fit_is_advised() -> None:
    [conflict] = answer("far too few devices").conflicts
    assert conflict.parts[0].text == (
        "weights and gradients fit into 75.6 GiB: that takes tp * pp of 30 or more, and there are "
        "8 devices; ZeRO 3 over all of them takes 850.5 GiB of each"
    )


@pytest.mark.slow
def test_relaxations_give_plans_as_they_stand(asked: tuple[str, planner.Result]) -> None:
    _, result = asked
    assert not result.plans
    assert result.relaxations
    for relaxation in result.relaxations[::3]:  # a search each
        again = follow(relaxation.command)
        assert again.plans, relaxation.command
        fastest = min(plan.step_time_s for plan in again.plans)
        assert relaxation.step_time_s == pytest.approx(fastest, rel=0.03)


def test_relaxations_are_ordered_by_how_little_they_change(
    asked: tuple[str, planner.Result],
) -> None:
    order = [(KINDS.index(r.kind), r.factor) for r in asked[1].relaxations]
    assert order == sorted(order)
    assert all(factor >= 1 for _, factor in order)
    changes = [r.change for r in asked[1].relaxations]
    assert len(set(changes)) == len(changes)


def test_the_conflict_is_named_with_the_numbers_of_the_job(
    asked: tuple[str, planner.Result],
) -> None:
    name, result = asked
    assert result.conflicts
    if result.counts.space:
        assert [c.parts[-1].code for c in result.conflicts] == ["MEM001"]
    text = text_of(result)
    for conflict in result.conflicts:
        for part in conflict.parts:
            assert part.code in RULES
            assert "{" not in part.text
            assert part.text.split()[0] in text
    said = " | ".join(part.text for c in result.conflicts for part in c.parts)
    wanted = {
        "no divisor": "pp is 3 (--pin, --only), which does not divide 512 devices",
        "two conflicts": "tp divides the 64 attention heads",
        "odd batch": "dp divides the global batch of 7 sequences",
        "framework": "deepspeed can run it",
        "lists and limits": "tp is 1 or 2",
    }
    assert wanted.get(name, "") in said
    assert all(len(line) <= 100 for line in text.splitlines() if "planner solve" not in line)


@pytest.mark.slow
def test_what_must_change_is_named_for_pins_that_memory_forbids() -> None:
    result = planner.solve("llama3-70b", H100, pins={"tp": 1, "pp": 1, "zero": 0})
    axes = {part.text.split()[0] for part in result.conflicts[0].parts if part.code == "PIN001"}
    assert axes == {"tp", "pp", "zero"}
    for axis in axes:
        pins = {a: v for a, v in {"tp": 1, "pp": 1, "zero": 0}.items() if a != axis}
        assert planner.solve("llama3-70b", H100, pins=pins).plans


EXPECTED = {
    "large micro-batch": "mbs 8 instead of 16",
    "too little recompute": "of every virtual stage instead of none",
    "shallow recompute": "of every virtual stage instead of 2",
    "odd micro-batch": "mbs 4 instead of 3",
    "odd batch": "a global batch of 8 sequences",
    "long sequences": "sequences of",
    "wide margin": "a memory margin of",
    "framework": "any framework",
    "too few devices": "3 nodes (24 devices)",
    "two conflicts": "leave tp and pp open",
}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        pytest.param(name, change, marks=[pytest.mark.slow] * (name not in BY_DEFAULT))
        for name, change in EXPECTED.items()
    ],
)
def test_the_change_that_one_expects_is_among_them(name: str, change: str) -> None:
    changes = [r.change for r in answer(name).relaxations]
    assert any(change in text for text in changes), changes


@pytest.mark.slow
def test_a_moved_value_is_the_nearest_that_fits() -> None:
    model, cluster, options = HOPELESS["shallow recompute"]
    result = answer("shallow recompute")
    moved = next(r for r in result.relaxations if r.kind == "value")
    layers = int(moved.change.split()[1])
    for fewer in range(2, layers):
        pins = {**options["pins"], "recompute_layers": fewer}
        assert not planner.solve(model, cluster, pins=pins).plans


@pytest.mark.slow
def test_more_nodes_are_the_fewest() -> None:
    nodes = int(answer("far too few devices").relaxations[-1].change.split()[0])
    for fewer in (2, nodes // 2, nodes - 1):
        assert not planner.solve(
            "llama3-405b", "h100-x8", overrides=(("pools.0.nodes", fewer),)
        ).plans


def test_every_rule_has_words() -> None:
    assert {*_TEXTS, "PIN001"} == set(RULES)


@pytest.mark.slow
def test_too_few_micro_batches_for_dualpipe_are_named() -> None:
    result = planner.solve(
        "llama3-8b",
        "h100-x8",
        pins={"schedule": "dualpipe"},
        framework="any",
        overrides=(("training.global_batch", 2),),
    )
    assert not result.plans
    assert any(part.code == "BAT003" for conflict in result.conflicts for part in conflict.parts)


@pytest.mark.slow
def test_conflicts_and_relaxations_are_in_the_json() -> None:
    data = planner.solve("llama3-70b", H100, pins={"tp": 128}).to_json()
    assert [[part["code"] for part in conflict] for conflict in data["conflicts"]] == [
        ["PIN001", "TP001"]
    ]
    assert {"change", "kind", "factor", "command", "layout", "step_time_s"} == set(
        data["relaxations"][0]
    )
    assert planner.solve("llama3-8b", "h100-x8").to_json()["conflicts"] == []


def test_contradicting_restrictions_stay_an_error() -> None:
    with pytest.raises(PlannerError, match="contradict"):
        planner.solve("llama3-70b", H100, pins={"tp": 4}, only={"tp": [2]})


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    one_in(
        3,
        [
            ({"dp": 8, "hpz": 3}, "HPZ003", "divide dp * cp"),
            ({"zero": 2, "hpz": 4}, "HPZ001", "zero 3 over all dp cp ranks"),
            ({"tp": 2, "hpz": 4}, "HPZ002", "tp, pp, ep and etp 1"),
        ],
    ),
)
def test_what_a_second_copy_of_the_weights_needs_is_named(
    case: tuple[dict[str, int], str, str],
) -> None:
    pins, code, words = case
    found = planner.solve("llama3-8b", "h100-x8", pins=pins)
    parts = [part for conflict in found.conflicts for part in conflict.parts]
    assert any(part.code == code and words in part.text for part in parts)
