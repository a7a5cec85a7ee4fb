"""Costs of pipeline ranks by the layers that they hold, beside the model's own figures."""

import random
from dataclasses import replace

import numpy as np
import pytest

from costmodels.breakdown import break_down, pipeline_run
from costmodels.plans import Layout
from costmodels.schedule.rank_costs import rank_costs
from costmodels.schedule.stages import spelled
from planner.solver.problem import make_problem
from planner.solver.request import SolveRequest
from planner.solver.sources import read_inputs


def problem_of(model: str, cluster: str, **fields):
    overrides = tuple((name.replace("__", "."), value) for name, value in fields.items())
    options = SolveRequest.of(top=1, framework="any").options()
    return make_problem(*read_inputs(model, cluster, overrides), options)


def layout_of(problem, tp, pp, vpp, schedule, **changes) -> Layout:
    n = problem.pool.n_devices
    dp = n // (tp * pp * changes.get("cp", 1))
    base = Layout(
        n_devices=n,
        tp=tp,
        pp=pp,
        dp=dp,
        vpp=vpp,
        split="",
        mbs=1,
        gbs=problem.job.global_batch,
        zero=1,
        sp=True,
        schedule=schedule,
        recompute="none",
        recompute_layers=0,
        stage_layers=(),
    )
    return replace(base, **changes)


def random_split(chance: random.Random, layers: int, stages: int) -> tuple[int, ...]:
    cuts = sorted(chance.sample(range(1, layers), stages - 1))
    return tuple(b - a for a, b in zip([0, *cuts], [*cuts, layers], strict=True))


CASES = {
    "dense": ("llama3-70b", "h100-x512", 4, 8, 1, "1f1b", {}),
    "interleaved": ("llama3-70b", "h100-x512", 4, 4, 3, "interleaved", {"mbs": 2}),
    "moe": ("qwen3-235b-a22b", "h100-x512", 2, 8, 2, "interleaved", {"ep": 8}),
    "dense prefix, mtp": ("deepseek-v3", "h800-x2048", 2, 16, 1, "1f1b", {"ep": 16}),
    "gpipe, zero 3": ("llama3-8b", "h100-x512", 2, 4, 1, "gpipe", {"zero": 3}),
    "context": ("llama3-70b", "h100-x512", 4, 8, 1, "1f1b", {"cp": 2, "cp_comm": "p2p"}),
}


@pytest.mark.parametrize("case", CASES)
def test_costs_are_those_of_the_layout_with_the_split_spelled_out(case):
    model, cluster, tp, pp, vpp, schedule, changes = CASES[case]
    problem = problem_of(model, cluster)
    base = layout_of(problem, tp, pp, vpp, schedule, **changes)
    chance = random.Random(case)
    first = random_split(chance, problem.shape.layers, pp * vpp)
    (costs,) = rank_costs(problem, [replace(base, split=spelled(first), stage_layers=first)])
    for k in (0, 1, 3):
        counts = random_split(chance, problem.shape.layers, pp * vpp)
        kind = {"recompute": "full" if k else "none", "recompute_layers": k}
        layout = replace(base, split=spelled(counts), stage_layers=counts, **kind)
        found = break_down(problem, layout)
        by_stage = [sum(terms.values()) for terms in found.stages]
        assert costs.rank_bytes(counts, k) == pytest.approx(by_stage, rel=1e-12)
        assert costs.rank_bytes(counts, k).max() == pytest.approx(found.peak_bytes, rel=1e-12)
        run = pipeline_run(found.rows, layout)
        times = np.add(run.forward_s, run.backward_s)
        assert costs.stage_s(counts, k) == pytest.approx(times, rel=1e-12)
        ranks = [sum(times[j] for j in layout.stages_of(r)) for r in range(pp)]
        assert costs.rank_s(counts, k) == pytest.approx(ranks, rel=1e-12)


def test_selective_recomputation_is_part_of_every_layer():
    problem = problem_of("gpt3-175b", "a100-x1024", model__flash_attention=False)
    counts = (13, 12, 12, 12, 12, 12, 12, 11)
    split = {"split": spelled(counts), "stage_layers": counts, "recompute": "selective"}
    layout = layout_of(problem, 8, 8, 1, "1f1b", **split)
    (costs,) = rank_costs(problem, [layout])
    found = break_down(problem, layout)
    by_stage = [sum(terms.values()) for terms in found.stages]
    assert costs.rank_bytes(counts, 0) == pytest.approx(by_stage, rel=1e-12)
    run = pipeline_run(found.rows, layout)
    times = np.add(run.forward_s, run.backward_s)
    assert costs.stage_s(counts, 0) == pytest.approx(times, rel=1e-12)


def test_several_shapes_at_a_time_cost_what_they_do_alone():
    problem = problem_of("qwen3-235b-a22b", "h100-x512")
    layouts = [
        layout_of(problem, 2, 8, 2, "interleaved", ep=8, split="ends", stage_layers=()),
        layout_of(problem, 4, 2, 1, "1f1b", ep=4, split="even", stage_layers=(47, 47)),
    ]
    together = rank_costs(problem, layouts)
    for layout, costs in zip(layouts, together, strict=True):
        (alone,) = rank_costs(problem, [layout])
        counts = (94 - 2 * (layout.pp * layout.vpp - 1), *(2,) * (layout.pp * layout.vpp - 1))
        assert costs.rank_s(counts, 1) == pytest.approx(alone.rank_s(counts, 1), rel=1e-12)
        held = alone.rank_bytes(counts, 1)
        assert costs.rank_bytes(counts, 1) == pytest.approx(held, rel=1e-12)


def test_schedules_that_split_the_backward_are_refused():
    problem = problem_of("llama3-70b", "h100-x512")
    layout = layout_of(problem, 4, 8, 1, "zb-h1", split="even", stage_layers=(10,) * 8)
    with pytest.raises(ValueError, match="schedule zb-h1: its ranks have no linear costs"):
        rank_costs(problem, [layout])
