"""Mixed plans as answers hold them, with what runs them and what they cost."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from costmodels.mixed.plans import MixedPlan, PipelineKind
from costmodels.mixed.prices import KindPrice, MixedPrice
from planner.solver.calibration.file import Calibration
from planner.solver.calibration.intervals import interval_of_several_pools
from planner.solver.together.plan_costs import joined_links, run_costs
from planner.solver.together.problems import RUNNER, JoinedProblem
from planner.solver.together.records import JoinedKind, JoinedPlan, JoinedStage
from planner.specs.identity import PlanIds
from planner.specs.inputs import ClusterInput, ModelInput

TERMS = ("compute", "bubble", "messages", "straggle", "sync", "exchange", "update", "fixed")
"""Of the step of one kind of pipeline, as `KindPrice` has them."""
STRENGTH = ("none", "selective", "full")
"""Recomputation, from the one that keeps most."""


def missing_features(plan: MixedPlan) -> tuple[str, ...]:
    """Return what of a plan no framework has; none where it is one grid of like ranks."""
    features = []
    stages = list(plan.stages)
    if len({(x.tp, x.cp, x.ep) for x in stages}) > 1:
        features.append("tensor, context or expert parallelism that differs by stage or replica")
    if len({tuple(x.layers for x in kind.stages) for kind in plan.kinds}) > 1:
        features.append("replicas whose layers are split over different stages")
    if len({(kind.mbs, kind.n_sequences / kind.n_pipelines) for kind in plan.kinds}) > 1:
        features.append("replicas with unequal shares of the batch, gradients weighted by them")
    if any(kind.n_sequences % (kind.mbs * kind.n_pipelines) for kind in plan.kinds):
        features.append("replicas of which some run one micro-batch less")
    if len({x.recompute for x in stages}) > 1:
        features.append("recomputation that differs by stage")
    return tuple(features)


def with_one_recompute(plan: MixedPlan) -> MixedPlan:
    """Return a plan whose stages all recompute as the one that recomputes most."""
    most = max((x.recompute for x in plan.stages), key=STRENGTH.index)
    kinds = tuple(
        replace(kind, stages=tuple(replace(x, recompute=most) for x in kind.stages))
        for kind in plan.kinds
    )
    return replace(plan, kinds=kinds)


def _network_frac(priced: MixedPrice) -> float:
    """Return the share of messages and exchanges in the step of the slowest pipelines."""
    slowest = max(priced.kinds, key=lambda x: x.step_s)
    return (slowest.messages_s + slowest.sync_s + slowest.exchange_s) / slowest.step_s


@dataclass(frozen=True, slots=True)
class PlanRecords:
    """Makes the records of one answer's plans."""

    model: ModelInput
    cluster: ClusterInput
    joined: JoinedProblem
    calibration: Calibration

    def record(self, plan: MixedPlan, priced: MixedPrice, rank: int) -> JoinedPlan:
        """Return a priced plan as an answer holds it."""
        names = [pool.name for pool in self.joined.mixed.pools]
        n_devices = {names[i]: plan.n_devices(i) for i in plan.pools}
        kinds = tuple(
            self._kind(kind, its) for kind, its in zip(plan.kinds, priced.kinds, strict=True)
        )
        links = joined_links(self.cluster, self.joined.indices, priced.crossing_bytes)
        missing = missing_features(plan)
        job = self.joined.problems[0].job
        costs = run_costs(
            self.cluster, self._used(plan), self.joined.problems[0], links, priced.step_s
        )
        low, high = interval_of_several_pools(
            self.joined.problems[0], _network_frac(priced), self.calibration
        )
        return JoinedPlan(
            rank=rank,
            plan_id=self._plan_id(kinds, plan.zero),
            step_time_s=priced.step_s,
            step_time_p10_s=priced.step_s * low,
            step_time_p90_s=priced.step_s * high,
            tokens_per_s=job.tokens_per_step / priced.step_s,
            zero=plan.zero,
            devices=n_devices,
            kinds=kinds,
            links=links,
            runs_on=() if missing else (RUNNER,),
            missing=missing,
            **asdict(costs),
        )

    def _kind(self, kind: PipelineKind, priced: KindPrice) -> JoinedKind:
        pools = self.joined.mixed.pools
        stages = tuple(
            JoinedStage(
                pool=pools[stage.pool].name,
                layers=stage.layers,
                tp=stage.tp,
                cp=stage.cp,
                ep=stage.ep,
                recompute=stage.recompute,
                forward_s=one.forward_s,
                backward_s=one.backward_s,
                states_bytes=one.states_bytes,
                activation_bytes=one.activation_bytes,
                other_bytes=one.other_bytes,
                peak_bytes=one.peak_bytes,
                usable_bytes=pools[stage.pool].usable_bytes,
            )
            for stage, one in zip(kind.stages, priced.stages, strict=True)
        )
        return JoinedKind(
            pools=tuple(pools[i].name for i in kind.pools),
            n_pipelines=kind.n_pipelines,
            mbs=kind.mbs,
            n_micro=kind.n_micro,
            n_sequences=kind.n_sequences,
            share=kind.n_sequences / self.joined.mixed.global_batch,
            step_time_s=priced.step_s,
            time={term: getattr(priced, f"{term}_s") for term in TERMS},
            stages=stages,
        )

    def _plan_id(self, kinds: Sequence[JoinedKind], zero: int) -> str:
        """Return the id of a plan: what it lays out, of this job on this cluster."""
        layout: dict[str, Any] = {
            "zero": zero,
            "kinds": [
                {
                    "pipelines": kind.n_pipelines,
                    "mbs": kind.mbs,
                    "sequences": kind.n_sequences,
                    "stages": [
                        [x.pool, x.layers, x.tp, x.cp, x.ep, x.recompute] for x in kind.stages
                    ],
                }
                for kind in kinds
            ],
        }
        return PlanIds(self.model.document, self.cluster.document).of(layout)

    def _used(self, plan: MixedPlan) -> Mapping[int, int]:
        """Return the devices in use by the place of their pool in the cluster."""
        return {self.joined.indices[i]: plan.n_devices(i) for i in plan.pools}
