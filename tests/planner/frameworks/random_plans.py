"""Random plans of random jobs that the rules of the space and of a framework allow."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from costmodels.axes import AXES, modules_of
from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.schedule.stages import SPLITS, spelled, stage_layers
from planner.solver.options import SolveOptions
from planner.solver.problem import make_problem
from planner.solver.sources import read_inputs
from planner.specs.inputs import ClusterInput, ModelInput
from searches.frameworks.registry import framework_rules
from searches.frameworks.table import refusals
from searches.mode_rules import AXES_OF_MODES
from searches.options import SearchOptions
from searches.rules import Context, first_broken_rule, modules_in, schedules_of

CLUSTERS = ("h100-x8", "h100-x512", "b200-x256", "gb300-nvl72-x512", "a100-x1024")
CLUSTERS_OF: Mapping[str, tuple[str, ...]] = {
    "AMD": ("mi300x-x64", "8xmi355x", "512xmi325x"),
    "Huawei": ("8xatlas-800t-a2", "32xatlas-900-a3-superpod"),
}
"""By vendor, of frameworks that run on its accelerators alone."""
BATCHES = (64, 192, 256, 1024)
DENSE: Mapping[str, tuple[tuple[str, object], ...]] = {
    "llama3-8b": (),
    "llama2-7b": (),
    "gpt3-175b": (),
    "llama3-70b": (),
}
EXPERTS: Mapping[str, tuple[tuple[str, object], ...]] = {
    "mixtral-8x7b": (),
    "mixtral-8x7b with a capacity": (("model.moe.capacity_factor", "1.25"),),
    "mixtral-8x7b forced to balance": (("model.moe.forced_balance", "true"),),
    "qwen3-235b-a22b": (),
    "deepseek-v2": (),
    "deepseek-v3": (),
}
OF_DENSE = ("cuda_graph", "offload_modules")
"""Modes that layers without experts have."""
DEGREES = (1, 1, 1, 2, 3, 4, 8, 16, 64)


@dataclass(frozen=True, slots=True)
class RandomPlan:
    """One plan, and what it is a plan for."""

    model: ModelInput
    cluster: ClusterInput
    problem: Problem
    layout: Layout

    @property
    def text(self) -> str:
        """The plan in a line, for a test that fails."""
        return f"{self.model.shape.name} on {self.cluster.cluster.name}: {self.layout}"


@cache
def job(
    model: str, cluster: str, batch: int, framework: str
) -> tuple[ModelInput, ClusterInput, Problem]:
    """Return a job and what its plans are priced against, as one framework runs it."""
    changes = (*{**DENSE, **EXPERTS}[model], ("training.global_batch", batch))
    inputs = read_inputs(model.split()[0], cluster, changes)
    return (*inputs, make_problem(*inputs, SolveOptions(framework=framework)))


def random_plans(framework: str, n: int, seed: int = 0) -> Iterator[RandomPlan]:
    """Yield random plans that a framework runs; as many of dense models as of others.

    Memory is not looked at. A framework that has no experts gets dense models alone.
    """
    rng, found, tries = Random(f"{framework} {seed}"), 0, 0
    clusters = CLUSTERS_OF.get(framework_rules(framework).vendors[0], CLUSTERS)
    while found < n:
        tries += 1
        assert tries < 3000 * n + 60_000, f"only {found} plans of {framework} in {tries} tries"
        models = DENSE if rng.random() < 0.4 else EXPERTS
        name = rng.choice(list(models))
        model, cluster, problem = job(name, rng.choice(clusters), rng.choice(BATCHES), framework)
        layout = _layout(rng, problem)
        if layout is None or refusals(framework, layout, problem.shape, problem.job):
            continue
        context = Context(problem, SearchOptions(framework=framework), layout.n_devices)
        if first_broken_rule(context, layout):
            continue
        found += 1
        yield RandomPlan(model, cluster, problem, layout)


def _layout(rng: Random, problem: Problem) -> Layout | None:
    """Return a layout with every axis drawn, None where the degrees do not multiply."""
    shape, n = problem.shape, problem.pool.n_devices
    tp, cp, pp = rng.choice((1, 1, 2, 4, 8)), rng.choice((1, 1, 1, 2, 4)), rng.choice(DEGREES)
    if rng.random() < 0.3:  # what the plainest frameworks have
        tp, pp = 1, 1
    if n % (tp * cp * pp):
        return None
    dp = n // (tp * cp * pp)
    ep = rng.choice((1, 2, 4, 8, 16, 32, 64)) if shape.n_experts else 1
    etp = rng.choice((1, 1, 1, tp)) if shape.n_experts else 1
    vpp = rng.choice((1, 1, 2, 3, 4)) if pp > 1 else 1
    mbs = rng.choice((1, 1, 2, 4))
    batch = problem.job.global_batch
    counts = _stages(rng, shape.layers, pp, vpp)
    if counts is None or batch % (mbs * dp):
        return None
    named = (x for x in SPLITS if stage_layers(shape.layers, pp, vpp, x) == counts)
    zero = rng.choice((0, 1, 1, 1, 2, 3)) if dp * cp > 1 else 0
    kind = rng.choice(("none", "none", "selective", "selective", "full"))
    modules = modules_of(modules_in(shape))
    values: dict[str, Any] = {
        "recompute": kind,
        "recompute_layers": _recomputed(rng, max(counts)) if kind == "full" else 0,
        "recompute_modules": tuple(rng.sample(modules, rng.randint(1, len(modules)))),
        "rank_order": rng.choice(AXES["rank_order"].choices)
        if rng.random() < 0.2
        else AXES["rank_order"].choices[0],
        "cp_comm": rng.choice(("p2p", "all-gather", "a2a")) if cp > 1 else "",
    }
    return Layout(
        **values,
        n_devices=n,
        tp=tp,
        pp=pp,
        dp=dp,
        vpp=vpp,
        cp=cp,
        ep=ep,
        etp=etp,
        split=next(named, spelled(counts)),
        stage_layers=counts,
        schedule=rng.choice(schedules_of(pp, vpp)) if rng.random() < 0.3 else _usual(pp, vpp),
        mbs=mbs,
        gbs=batch,
        zero=zero,
        shard=_shard(rng, dp * cp, zero),
        hpz=rng.choice((1, 1, 8)) if zero == 3 else 1,
        sp=tp > 1 and rng.random() < 0.7,
        optimizer_offload=rng.random() < 0.15,
        activation_offload_layers=_offloaded(rng, kind, values["recompute_layers"], shape.layers),
        dp_overlap=dp * cp == 1 or rng.random() < 0.8,
        tp_overlap=rng.random() < 0.2,
        switches=_switches(rng, bool(shape.n_experts)),
    )


def _recomputed(rng: Random, layers: int) -> int:
    return rng.choice((layers, rng.randint(1, layers)))


def _usual(pp: int, vpp: int) -> str:
    return "none" if pp == 1 else "interleaved" if vpp > 1 else "1f1b"


def _stages(rng: Random, layers: int, pp: int, vpp: int) -> tuple[int, ...] | None:
    """Return the layers of each virtual stage: by a split with a name, or any."""
    n = pp * vpp
    if n > layers:
        return None
    if rng.random() < 0.7:
        return stage_layers(layers, pp, vpp, rng.choice(SPLITS)) or None
    ends = sorted(rng.sample(range(1, layers), n - 1))
    return tuple(b - a for a, b in zip([0, *ends], [*ends, layers], strict=True))


def _shard(rng: Random, ranks: int, zero: int) -> int:
    sizes = [x for x in (2, 4, 8, 16, 32) if zero and ranks % x == 0 and x < ranks]
    return rng.choice(sizes) if sizes and rng.random() < 0.25 else 0


def _offloaded(rng: Random, kind: str, recomputed: int, layers: int) -> int:
    if rng.random() < 0.85 or kind == "selective":
        return 0
    return recomputed if kind == "full" else rng.randint(1, layers - 2)


def _switches(rng: Random, has_experts: bool) -> tuple[tuple[str, Any], ...]:
    """Return values of the axes of modes; half of them off."""
    drawn = {}
    for name in AXES_OF_MODES:
        axis = AXES[name]
        if rng.random() < 0.6 and (has_experts or name in OF_DENSE):
            drawn[name] = rng.choice(axis.choices)
    return tuple((name, value) for name, value in drawn.items() if value != AXES[name].off)
