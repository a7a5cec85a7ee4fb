"""An existing run over several pools, judged: memory and time of each stage by its pool."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from costmodels.mixed.layer_tables import Degrees, mixed_problem, possible_degrees
from costmodels.mixed.plans import MixedPlan, MixedStage, PipelineKind
from costmodels.plans import Layout
from hardware.parts import Accelerator
from planner.analyze.check.asked import AskedRun, Devices, unpriced
from planner.analyze.check.report import Report
from planner.analyze.check.standing import stack_as_run
from planner.analyze.check.verdict import Verdict
from planner.analyze.joined.explanation import JoinedExplanation
from planner.analyze.joined.run_changes import PricedJoinedRun, joined_changes
from planner.analyze.joined.standing import joined_standing, nodes_of_run
from planner.analyze.sharded.explanation import ShardedExplanation
from planner.errors import PlannerError, SpecError
from planner.frameworks.launchers.node_types import NODE_LIST
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.nearest_layout import nearest_layout
from planner.solver.options import SolveOptions
from planner.solver.problem import make_problem
from planner.solver.together.opened import OpenedJoined
from planner.solver.together.plans import PlanRecords
from planner.solver.together.pools import in_order
from planner.solver.together.problems import RUNNER, JoinedProblem, check_model
from planner.solver.together.records import Together
from planner.specs.inputs import ClusterInput, ModelInput
from planner.specs.loader import model_from_dict
from searches.frameworks.rule import Broken


@dataclass(frozen=True, slots=True)
class JoinedReport(Report):
    """Everything that `planner check` says of a run over several pools."""

    joined: JoinedExplanation | ShardedExplanation | None = None
    """The run as a plan; None where it is not priced."""
    knows_batch: bool = True
    """The global batch of `model` is that of the run, no stand-in of one kind of its nodes."""

    @property
    def fits(self) -> bool | None:
        """Whether every stage fits into its pool's memory; None where it is not priced."""
        if self.joined is None:
            return None
        return all(x.peak_bytes <= x.usable_bytes for x in self.joined.stages)

    @property
    def exit_code(self) -> int:
        """0: accepted, and fits; 3 otherwise."""
        return 0 if self.accepted and self.fits else 3

    def to_json(self) -> dict[str, Any]:
        """Return the report with the field names of docs/check.md, and the plan by pool."""
        together = self.joined.to_json()["together"] if self.joined else None
        report = Report.to_json(self)
        if self.model and not self.knows_batch:
            training = dict(self.model.document["training"])
            training.pop("global_batch", None)
            model = {**self.model.document, "training": training}
            report["inputs"] = {**report["inputs"], "model": model}
        return {**report, "together": together}


@dataclass(frozen=True, slots=True)
class JoinedRun:
    """A run over several pools."""

    asked: AskedRun
    cluster: ClusterInput
    """All pools, those of one part as one."""
    pools: tuple[str, ...]
    """By node rank."""


def check_joined(asked: AskedRun, cluster: ClusterInput, pools: tuple[str, ...]) -> JoinedReport:
    """Return what a run over several pools means: the verdict, and its price by stage and pool.

    `pools` are the pool of each node, by node rank, of a cluster whose pools of one part are one.
    """
    parts = {pool.name: pool for pool in cluster.cluster.pools}
    counts = Counter(pools)
    sizes = {parts[name].devices_per_node for name in counts}
    per_node = max(sizes)
    n_devices = len(pools) * per_node
    run = asked.source.read(n_devices, all_devices=False)
    described, why = asked.describe(run)
    verdict = _verdict(asked, run, described, [parts[name].accelerator for name in counts])
    if described is None and not verdict.refused:
        raise why or SpecError([])
    enough = all(n <= parts[name].n_nodes for name, n in counts.items())
    base = unpriced(
        JoinedReport,
        asked,
        run,
        (described, verdict),
        Devices(cluster, enough, node_notes(counts, parts)),
        "the sizes of its model do not go together",
    )
    if described is None:
        return base
    if len(sizes) > 1:
        return replace(base, not_priced="nodes of unlike size: ranks do not say their pool")
    if run.n_devices not in (None, n_devices):
        text = f"it starts {run.n_devices} processes, {NODE_LIST} names nodes for {n_devices}"
        return replace(base, not_priced=text)
    return _priced(base, JoinedRun(asked, cluster, pools), described, per_node)


def _verdict(
    asked: AskedRun,
    run: ExistingRun,
    model: ModelInput | None,
    parts: Sequence[Accelerator],
) -> Verdict:
    """Return the rules that the run breaks on the parts of its pools, each once."""
    verdicts = [asked.judge(run, model, part) for part in parts]
    return Verdict(
        once([x.refused for x in verdicts]),
        once([x.ignored for x in verdicts]),
        once([x.unwritten for x in verdicts]),
    )


def once(some: Sequence[tuple[Broken, ...]]) -> tuple[Broken, ...]:
    """Return the rules that some runs break, each once."""
    return tuple({(b.rule.code, b.reason): b for broken in some for b in broken}.values())


def node_notes(counts: Mapping[str, int], pools: Mapping[str, Any]) -> list[str]:
    """Return how many nodes of each pool a run starts on, and of which there are fewer."""
    shown = ", ".join(f"{n} of {name}" for name, n in counts.items())
    few = [
        f"pool {name} has {pools[name].n_nodes} nodes, the run starts on {n}: it would wait"
        for name, n in counts.items()
        if n > pools[name].n_nodes
    ]
    return [f"nodes by {NODE_LIST}: {shown}", *few]


def _priced(
    base: JoinedReport, asked: JoinedRun, model: ModelInput, per_node: int
) -> JoinedReport:
    """Return the report with the run as a plan over several pools."""
    run, n_devices = base.run, len(asked.pools) * per_node
    near = nearest_layout(run.layout, model.shape, model.job.seq_len, n_devices, per_node)
    layout = near.layout
    if layout is None or layout.n_devices != n_devices:
        why = near.why_not or f"its degrees do not divide {n_devices} devices"
        return replace(base, not_priced=why)
    if layout.gbs != model.job.global_batch:
        changed = dict(model.document["training"], global_batch=layout.gbs)
        model = model_from_dict({**model.document, "training": changed})
    if why := why_not_modelled(run.framework, layout):
        return replace(base, not_priced=f"{why}: not modelled over several pools")
    names = [pool.name for pool in asked.cluster.cluster.pools]
    indices = in_order(asked.cluster, [i for i, name in enumerate(names) if name in asked.pools])
    used = [names[i] for i in indices]
    ranks = [used.index(name) for name in asked.pools for _ in range(per_node)]
    plan = plan_of_ranks(layout, ranks)
    if plan is None:
        return replace(base, not_priced="ranks of one stage lie on two pools")
    try:
        check_model(model.shape, model.job)
        kind, stage = plan.kinds[0], plan.kinds[0].stages[0]
        own = Degrees(stage.tp, stage.cp, stage.ep, kind.mbs)
        joined = _problem(base, asked, model, [own], plan.zero, indices)
        priced = joined.price(plan)
    except PlannerError as error:
        return replace(base, not_priced=error.message)
    except KeyError:
        return replace(base, not_priced="its degrees have no price on one of its pools")
    record = PlanRecords(model, asked.cluster, joined, asked.asked.calibration).record(
        plan, priced, 1
    )
    blank = Together((), {}, {}, False, (), None, None, True, (), ())
    opened = OpenedJoined(
        model, asked.cluster, _options(base, asked), blank, joined, plan, priced, record, record
    )
    report = replace(
        base,
        model=model,
        repairs=near.repairs,
        not_priced="",
        joined=JoinedExplanation(opened),
    )
    is_fit = bool(report.fits)
    run_priced = PricedJoinedRun(
        asked=asked.asked,
        report=report,
        model=model,
        layout=layout,
        per_node=per_node,
        plan_of=lambda x: plan_of_ranks(x, ranks),
        step_s=record.step_time_s,
        fits=is_fit,
        problem_of=lambda degrees: _problem(base, asked, model, degrees, layout.zero, indices),
    )
    nodes = nodes_of_run(asked.cluster, Counter(asked.pools))
    options = SolveOptions(framework=run.framework, own_calibration=asked.asked.calibration)
    stop, step_s = asked.asked.stop, record.step_time_s
    standing = joined_standing(model, nodes, options, step_s, stop, fits=is_fit)
    return replace(report, standing=standing, changes=joined_changes(run_priced))


def why_not_modelled(framework: str, layout: Layout) -> str:
    """Return what of a layout plans over several pools do not have; empty where they have all."""
    if framework != RUNNER:
        return f"a run of {framework}"
    full = layout.recompute == "full" and layout.recompute_layers < max(layout.stage_layers)
    named = layout.recompute == "selective" and layout.recompute_modules != ("core_attn",)
    reasons = {
        f"schedule {layout.schedule}": layout.schedule not in ("1f1b", "none"),
        f"{layout.vpp} chunks a rank": layout.vpp > 1,
        f"ZeRO {layout.zero}": layout.zero > 1,
        "sharding groups": bool(layout.shard),
        f"expert tensor parallelism {layout.etp}": layout.etp not in (1, 0),
        f"{layout.cp_comm} context exchange": layout.cp_comm not in ("", "p2p"),
        "tensor parallelism without sequence parallelism": layout.tp > 1 and not layout.sp,
        "optimizer offload": layout.optimizer_offload,
        "activation offload": layout.activation_offload_layers > 0,
        "recomputation of some layers": full,
        f"recomputation of {', '.join(layout.recompute_modules)}": named,
        "tp overlap": layout.tp_overlap,
        ", ".join(name for name, _ in layout.switches): bool(layout.switches),
    }
    return "; ".join(text for text, has_it in reasons.items() if has_it)


def plan_of_ranks(layout: Layout, pools: Sequence[int]) -> MixedPlan | None:
    """Return one grid of ranks as a plan over several pools; `pools` are the pool of each rank.

    Replicas whose stages lie on the same pools are one kind. None where ranks of one stage of a
    replica lie on two pools.
    """
    width = layout.tp * layout.cp
    replica_stride = width * layout.pp if layout.pipelines_inside else width
    chains: Counter[tuple[int, ...]] = Counter()
    for replica in range(layout.dp):
        chain: list[int] = []
        for stage in range(layout.pp):
            first = replica * replica_stride + stage * layout.stage_stride
            own = set(pools[first : first + width])
            if len(own) > 1:
                return None
            chain += own
        chains[tuple(chain)] += 1
    kinds = tuple(
        PipelineKind(
            stages=tuple(
                MixedStage(pool, layout.tp, layout.cp, n, layout.recompute, layout.ep)
                for pool, n in zip(chain, layout.stage_layers, strict=True)
            ),
            n_pipelines=n_pipelines,
            mbs=layout.mbs,
            n_micro=layout.n_micro,
            n_sequences=layout.gbs * n_pipelines // layout.dp,
        )
        for chain, n_pipelines in chains.items()
    )
    return MixedPlan(kinds, layout.zero)


def _options(base: JoinedReport, asked: JoinedRun) -> SolveOptions:
    return SolveOptions(
        framework=base.run.framework,
        stack=base.run.stack_name,
        own_calibration=asked.asked.calibration,
    )


def _problem(
    base: JoinedReport,
    asked: JoinedRun,
    model: ModelInput,
    degrees: Sequence[Degrees],
    zero: int,
    indices: Sequence[int],
) -> JoinedProblem:
    """Return the job on the pools of a run, with tables of some degrees.

    A pool has tables of those that it may run; of one that is asked for alone in any case.
    """
    options = _options(base, asked)
    standard = [make_problem(model, asked.cluster.only(i), options) for i in indices]
    problems = tuple(replace(x, stack=stack_as_run(x.stack, base.run)) for x in standard)
    able = [set(degrees if len(degrees) == 1 else possible_degrees(x)) for x in problems]
    hour = [asked.cluster.operations[i].price_per_device_hour or 0.0 for i in indices]
    mixed = mixed_problem(
        problems,
        asked.cluster.cluster,
        [price / 3600.0 for price in hour],
        degrees=[[x for x in degrees if x in own] for own in able],
    )
    return JoinedProblem(replace(mixed, zero=zero), problems, tuple(indices))
