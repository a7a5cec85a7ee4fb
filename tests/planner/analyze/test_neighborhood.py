"""Neighbours against their meaning: one axis, the same job, legal, priced as `break_down` does."""

from dataclasses import replace

import pytest

from costmodels.breakdown import break_down
from costmodels.examples import GPT3_175B, LLAMA3_8B, LLAMA3_70B, MIXTRAL_8X7B
from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.schedule.stages import stage_layers
from costmodels.shapes import ModelShape, TrainingJob
from costmodels.stacks import STACKS
from planner.analyze.neighborhood import AXES, derived, layout_value, neighbours
from planner.specs.loader import cluster_from_dict
from searches.frameworks.table import refusals
from searches.options import SearchOptions
from searches.rules import Context, first_broken_rule
from tests.searches.instances import one_row_in


def problem(shape: ModelShape, gbs: int, nodes: int = 8) -> Problem:
    cluster = cluster_from_dict(
        {"pools": [{"accelerator": "h100-sxm-80gb", "nodes": nodes}], "fabric": {}}
    ).cluster
    job = TrainingJob(4096, gbs)
    return Problem(shape, job, cluster.pools[0], cluster.fabric, STACKS["megatron-core"])


def layout(shape: ModelShape, gbs: int = 256, **changes: object) -> Layout:
    base: dict[str, object] = {
        "n_devices": 64,
        "tp": 2,
        "pp": 4,
        "dp": 8,
        "vpp": 1,
        "split": "even",
        "mbs": 1,
        "gbs": gbs,
        "zero": 1,
        "sp": True,
        "schedule": "1f1b",
        "recompute": "none",
        "recompute_layers": 0,
    } | changes
    counts = stage_layers(
        shape.layers, int(str(base["pp"])), int(str(base["vpp"])), str(base["split"])
    )
    return Layout(**(base | {"stage_layers": counts}))  # type: ignore[arg-type]


STARTS = [
    (LLAMA3_8B, layout(LLAMA3_8B)),
    (
        LLAMA3_8B,
        layout(LLAMA3_8B, pp=1, dp=32, schedule="none", recompute="full", recompute_layers=32),
    ),
    (LLAMA3_70B, layout(LLAMA3_70B, tp=8, dp=2, vpp=5, schedule="interleaved", zero=0)),
    (MIXTRAL_8X7B, layout(MIXTRAL_8X7B, ep=8, etp=1)),
    (LLAMA3_8B, layout(LLAMA3_8B, cp=2, dp=4, cp_comm="p2p", shard=4)),
]


@pytest.mark.parametrize(
    ("shape", "start"), one_row_in(3, STARTS), ids=lambda x: getattr(x, "name", "plan")
)
def test_neighbours_keep_the_job_and_the_rules(shape: ModelShape, start: Layout) -> None:
    given = problem(shape, start.gbs)
    context = Context(given, SearchOptions(framework="any"), 64)
    found = neighbours(given, start, "megatron")
    assert len(found) > 10
    present = set(refusals("megatron", start, shape, given.job))
    for near in found:
        x = near.layout
        assert (x.n_devices, x.gbs, x.tp * x.pp * x.cp * x.dp) == (64, start.gbs, 64)
        assert sum(x.stage_layers) == shape.layers
        assert first_broken_rule(context, x) == ""
        assert len(set(refusals("megatron", x, shape, given.job)) - present) == 0
        changed = [axis for axis, _, _ in near.changes]
        assert 1 <= len(changed) <= 2
        assert all(old != new or len(changed) == 2 for _, old, new in near.changes)
        for axis, old, new in near.changes:
            assert (layout_value(start, axis), layout_value(x, axis)) == (old, new)
    assert len({near.layout for near in found}) == len(found)
    assert [near.step_s for near in found] == sorted(near.step_s for near in found)


def test_prices_are_those_of_the_opened_plan() -> None:
    given = problem(LLAMA3_8B, 256)
    for near in neighbours(given, layout(LLAMA3_8B), "megatron")[::7]:
        found = break_down(given, near.layout)
        assert near.step_s == pytest.approx(found.step_s, rel=1e-9)
        assert near.peak_bytes == pytest.approx(found.peak_bytes, rel=1e-9)


def test_every_axis_that_can_change_does() -> None:
    given = problem(MIXTRAL_8X7B, 256)
    start = layout(
        MIXTRAL_8X7B,
        ep=8,
        etp=1,
        cp=2,
        dp=4,
        cp_comm="p2p",
        recompute="full",
        recompute_layers=8,
        zero=1,
        shard=4,
    )
    kept = replace(start, recompute="none", recompute_layers=0)  # what overlap and graphs need
    changed = {
        axis
        for plan in (start, kept)
        for near in neighbours(given, plan)
        for axis, _, _ in near.changes
    }
    assert changed == set(AXES) - {"hpz"}  # which no plan with experts over ep has


def test_a_second_copy_of_the_weights_comes_and_goes() -> None:
    given = problem(LLAMA3_8B, 256)
    plain = layout(LLAMA3_8B, tp=1, pp=1, dp=64, schedule="none", sp=False, zero=3)
    sizes = {x.layout.hpz for x in neighbours(given, plain) if x.changes[0][0] == "hpz"}
    assert sizes == {2, 4, 8, 16, 32}
    assert all(x.layout.hpz == 1 for x in neighbours(given, plain, "megatron"))
    copied = layout(LLAMA3_8B, tp=1, pp=1, dp=64, schedule="none", sp=False, zero=3, hpz=8)
    for change in ({"zero": 2}, {"tp": 2}, {"pp": 2}, {"dp_shard": 8}):
        near = derived(given, copied, change)
        assert near is not None
        assert near.hpz == 1
    kept = derived(given, copied, {"mbs": 2})
    assert kept is not None
    assert kept.hpz == 8


def test_pairs_only_where_one_alone_is_illegal() -> None:
    """Forty-eight sequences over 16 ranks are 3 each: not in micro-batches of 2."""
    given = problem(LLAMA3_8B, 48)
    start = layout(LLAMA3_8B, gbs=48, mbs=2)
    alone = neighbours(given, start, "megatron", pairs=False)
    assert not any(near.layout.dp == 16 for near in alone)
    both = {near.changes for near in neighbours(given, start, "megatron")}
    assert (("tp", 2, 1), ("mbs", 2, 1)) in both
    assert (("tp", 2, 1), ("mbs", 2, 3)) in both
    assert {near.changes for near in alone} <= both
    singles = {change for changes in both if len(changes) == 1 for change in changes}
    pairs = [changes for changes in both if len(changes) == 2]
    assert pairs
    assert not any(set(changes) <= singles for changes in pairs)


def test_what_follows_from_an_axis() -> None:
    given = problem(LLAMA3_8B, 256)
    start = layout(LLAMA3_8B, recompute="full", recompute_layers=8)
    flat = derived(given, start, {"pp": 1})
    assert flat is not None
    assert (flat.schedule, flat.dp, flat.stage_layers, flat.recompute_layers) == (
        "none",
        32,
        (32,),
        32,
    )
    alone = derived(given, start, {"tp": 1})
    assert alone is not None
    assert (alone.sp, alone.dp) == (False, 16)
    deeper = derived(given, start, {"vpp": 4})
    assert deeper is not None
    assert (deeper.schedule, deeper.stage_layers, deeper.recompute_layers) == (
        "interleaved",
        (2,) * 16,
        2,
    )
    assert derived(given, start, {"tp": 3}) is None
    assert derived(given, start, {"pp": 64}) is None


def test_a_layout_that_breaks_a_rule_of_the_framework_has_neighbours_that_do() -> None:
    given = problem(GPT3_175B, 256)
    start = layout(GPT3_175B, tp=8, dp=2, schedule="gpipe", rank_order="odd")
    assert refusals("megatron", start, GPT3_175B, given.job)
    assert neighbours(given, start, "megatron")
