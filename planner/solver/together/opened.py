"""A plan over several pools of an answer, priced again: with what its record leaves out."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from costmodels.mixed.layer_tables import Degrees
from costmodels.mixed.plans import MixedPlan, MixedStage, PipelineKind
from costmodels.mixed.prices import MixedPrice, table_of
from costmodels.mixed.tables import MixedProblem, StageTable
from costmodels.problem import Problem
from planner.errors import SearchError
from planner.solver.answer.result_store import read_options
from planner.solver.options import SolveOptions
from planner.solver.recipes import one_recipe
from planner.solver.together.plans import PlanRecords
from planner.solver.together.problems import JoinedProblem, joined_problem
from planner.solver.together.records import JoinedKind, JoinedPlan, Together
from planner.solver.together.replicas.opened import OpenedSharded, price_sharded
from planner.solver.together.words import accelerator_of, priced_note
from planner.specs.inputs import ClusterInput, ModelInput
from planner.specs.loader import cluster_from_dict, model_from_dict


@dataclass(frozen=True, slots=True)
class OpenedJoined:
    """A plan over several pools with its inputs and its price."""

    model: ModelInput
    cluster: ClusterInput
    """With pools of one part as one, as the answer has them."""
    options: SolveOptions
    together: Together
    """The answer that the plan is of."""
    joined: JoinedProblem
    mixed: MixedPlan
    priced: MixedPrice
    plan: JoinedPlan
    """As priced now."""
    saved: JoinedPlan
    """As the answer has it."""

    @property
    def problem(self) -> MixedProblem:
        """What the plan is priced against: only nodes of pools in use slow it down."""
        return self.joined.of_plan(self.mixed)

    def tables(self, kind: PipelineKind) -> list[StageTable]:
        """Return what layers cost on each stage of a kind."""
        return [table_of(self.joined.mixed, stage, kind.mbs) for stage in kind.stages]

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The job on each joined pool alone."""
        return self.joined.problems

    @property
    def indices(self) -> tuple[int, ...]:
        """By joined pool: its place in the cluster."""
        return self.joined.indices

    @property
    def used(self) -> dict[int, int]:
        """Devices in use by the place of their pool in the cluster."""
        return {self.indices[i]: self.mixed.n_devices(i) for i in self.mixed.pools}

    def part(self, pool: str) -> str:
        """Return the accelerator of a pool, by name."""
        return accelerator_of(self.cluster, pool)

    @property
    def note(self) -> str:
        """How far it is from what its answer says; empty where it is not."""
        return priced_note(self.saved, self.plan)


OpenedSeveral: TypeAlias = OpenedJoined | OpenedSharded
"""A plan over several pools, of pipelines or of sharded replicas."""


def open_joined(data: Mapping[str, Any], plan: JoinedPlan, source: str) -> OpenedSeveral:
    """Return a plan over several pools of a result, priced again from its inputs.

    Raises `SearchError` where its inputs do not give the plan, as after edits by hand.
    """
    inputs = data["inputs"]
    options = read_options(inputs["options"])
    read = model_from_dict(inputs["model"])
    model = one_recipe(read, options, "one job over several pools runs in one")
    cluster = cluster_from_dict(inputs["cluster"])
    together = Together.from_json(data["together"])
    opened: OpenedSeveral
    wrong = SearchError(
        f"{source}#t{plan.rank}: edited by hand? Its inputs do not give this plan", "solve again"
    )
    try:
        if plan.is_sharded:
            opened = price_sharded((model, cluster, options), together, plan, read)
        else:
            opened = _price_pipelines((model, cluster, options), together, plan, read)
    except (KeyError, IndexError, ArithmeticError, TypeError, ValueError):
        raise wrong from None
    if opened.plan.plan_id != plan.plan_id:
        raise wrong
    return opened


def _price_pipelines(
    inputs: tuple[ModelInput, ClusterInput, SolveOptions],
    together: Together,
    plan: JoinedPlan,
    identity: ModelInput,
) -> OpenedJoined:
    """Return a plan of pipelines, priced again; `identity` is the model that its id is of."""
    model, cluster, options = inputs
    joined = plan_problem(model, cluster, options, together.joined, plan)
    mixed = mixed_plan(plan, [pool.name for pool in joined.mixed.pools])
    priced = joined.price(mixed)
    records = PlanRecords(identity, cluster, joined, options.calibration)
    now = records.record(mixed, priced, plan.rank)
    return OpenedJoined(model, cluster, options, together, joined, mixed, priced, now, saved=plan)


def opened_joined(data: Mapping[str, Any], plan: JoinedPlan, source: str) -> OpenedSeveral:
    """Return `open_joined` for a command: a note on stderr where the saved figures differ."""
    opened = open_joined(data, plan, source)
    if opened.note:
        sys.stderr.write(f"note: {opened.note}\n")
    return opened


def mixed_plan(plan: JoinedPlan, pools: Sequence[str]) -> MixedPlan:
    """Return a plan as it is priced; `pools` are the names of those of the job, in order."""
    return MixedPlan(tuple(_kind(kind, pools) for kind in plan.kinds), plan.zero)


def _kind(kind: JoinedKind, pools: Sequence[str]) -> PipelineKind:
    stages = tuple(
        MixedStage(pools.index(x.pool), x.tp, x.cp, x.layers, x.recompute, x.ep)
        for x in kind.stages
    )
    return PipelineKind(stages, kind.n_pipelines, kind.mbs, kind.n_micro, kind.n_sequences)


def plan_problem(
    model: ModelInput,
    cluster: ClusterInput,
    options: SolveOptions,
    names: Sequence[str],
    plan: JoinedPlan,
) -> JoinedProblem:
    """Return the job on pools of a cluster, with tables for the stages of one plan alone."""
    places = {pool.name: i for i, pool in enumerate(cluster.cluster.pools)}
    strange = [name for name in (*names, *plan.devices) if name not in places]
    if strange:
        raise SearchError(
            f"the cluster of the answer has no pool {strange[0]}: edited by hand?", "solve again"
        )
    degrees: dict[str, dict[Degrees, None]] = {name: {} for name in names}
    for kind in plan.kinds:
        for stage in kind.stages:
            own = Degrees(stage.tp, stage.cp, stage.ep, kind.mbs)
            degrees.setdefault(stage.pool, {})[own] = None
    listed = [list(own) for own in degrees.values()]
    return joined_problem(model, cluster, options, [places[x] for x in degrees], listed)
