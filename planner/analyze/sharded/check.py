"""An existing run of sharded replicas, judged: the files of all its kinds as one plan."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from costmodels.mixed.sharded_plans import ReplicaDegrees, ReplicaKind, ShardedPlan
from costmodels.mixed.sharded_prices import sharded_price
from costmodels.plans import Layout
from planner.analyze.check.asked import AskedRun, Devices, unpriced
from planner.analyze.check.standing import stack_as_run
from planner.analyze.check.verdict import Verdict
from planner.analyze.joined.check import JoinedReport, node_notes, once
from planner.analyze.joined.standing import joined_standing, nodes_of_run
from planner.analyze.sharded.changes import sharded_changes, told_batches
from planner.analyze.sharded.explanation import ShardedExplanation
from planner.analyze.sharded.kind_run import KindRun, read_kind
from planner.errors import PlannerError
from planner.frameworks.launchers.node_types import NODE_LIST
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.nearest_layout import nearest_layout
from planner.frameworks.runs.replica_start import ReplicaStart
from planner.solver.options import SolveOptions
from planner.solver.problem import make_problem
from planner.solver.together.pools import in_order
from planner.solver.together.problems import check_model
from planner.solver.together.records import SHARDED_ZERO, Together
from planner.solver.together.replicas.opened import (
    OpenedSharded,
    indices_of,
    job_of_keys,
    plan_keys,
)
from planner.solver.together.sharded import ShardedWork
from planner.solver.together.sharded_job import FRAMEWORKS, sequence_parallel
from planner.specs.inputs import ClusterInput, Content, ModelInput
from planner.specs.loader import model_from_dict
from searches.frameworks.rule import Broken


def check_sharded(
    asked: AskedRun, cluster: ClusterInput, pools: tuple[str, ...], start: ReplicaStart
) -> JoinedReport:
    """Return what a run of sharded replicas means: the verdict on each kind, and one price.

    `pools` are the pool of each node, by node rank, of a cluster whose pools of one part are one.
    """
    parts = {pool.name: pool for pool in cluster.cluster.pools}
    counts = Counter(pools)
    sizes = {parts[name].devices_per_node for name in counts}
    n_devices = len(pools) * max(sizes)
    kinds = [
        read_kind(asked, start, folder, pools[nodes.start : nodes.stop], nodes, n_devices)
        for folder, nodes in start.folders
    ]
    verdicts = {
        x.folder: x.asked.judge(x.run, x.model, parts[x.pool].accelerator) for x in kinds if x.pool
    }
    verdict = Verdict(
        _broken_of({name: x.refused for name, x in verdicts.items()}),
        _broken_of({name: x.ignored for name, x in verdicts.items()}),
        _broken_of({name: x.unwritten for name, x in verdicts.items()}),
    )
    first = kinds[0]
    missing = next((x.why for x in kinds if x.model is None), None)
    if missing is not None and not verdict.refused:
        raise missing
    enough = all(n <= parts[name].n_nodes for name, n in counts.items())
    base = unpriced(
        JoinedReport,
        asked,
        _whole_run(kinds, _name_of(asked)),
        (first.model, verdict),
        Devices(cluster, enough, node_notes(counts, parts)),
        "the sizes of its model do not go together",
    )
    # Files of one kind say the batch as if all nodes were like it.
    base = replace(base, knows_batch=False)
    if missing is not None:
        return base
    if why := _why_no_price(kinds, start, pools, sizes, n_devices):
        return replace(base, not_priced=why)
    return _priced(base, kinds, start, cluster)


def _broken_of(broken: Mapping[str, tuple[Broken, ...]]) -> tuple[Broken, ...]:
    """Return the rules that kinds break, by folder, each once; of some alone with their names."""
    folders: dict[tuple[str, str], list[str]] = {}
    for folder, some in broken.items():
        for code, reason in dict.fromkeys((b.rule.code, b.reason) for b in some):
            folders.setdefault((code, reason), []).append(folder)
    found = []
    for one in once(list(broken.values())):
        named = folders[one.rule.code, one.reason]
        is_of_all = len(named) == len(broken)
        text = one.reason if is_of_all else f"{_as_if_all(' and '.join(named))}: {one.reason}"
        found.append(replace(one, reason=text))
    return tuple(found)


def _as_if_all(folder: str) -> str:
    """Return whose files something is said of: they describe a job of nodes like theirs alone."""
    return f"{folder}, as if all nodes were like it"


def _name_of(asked: AskedRun) -> str:
    file = asked.source.file
    return (file.name or file.label) if isinstance(file, Content) else file


def _whole_run(kinds: Sequence[KindRun], source: str) -> ExistingRun:
    """Return what all kinds have in common, as one run."""
    first = kinds[0].run
    layout = {
        name: value
        for name, value in first.layout.items()
        if all(x.run.layout.get(name) == value for x in kinds)
    }
    doubts = dict.fromkeys(doubt for x in kinds for doubt in x.run.doubts)
    return replace(
        first,
        source=source,
        layout=layout,
        notes=tuple(dict.fromkeys(note for x in kinds for note in x.run.notes)),
        assumed=tuple(dict.fromkeys(text for x in kinds for text in x.run.assumed)),
        doubts=tuple(doubts),
    )


def _why_no_price(
    kinds: Sequence[KindRun],
    start: ReplicaStart,
    pools: Sequence[str],
    sizes: set[int],
    n_devices: int,
) -> str:
    """Return why the kinds are no job of sharded replicas; empty where they are one."""
    if len(sizes) > 1:
        return "nodes of unlike size: ranks do not say their pool"
    if start.n_nodes != len(pools):
        return f"it starts {start.n_nodes} nodes, {NODE_LIST} names {len(pools)}"
    for x in kinds:
        if not x.pool:
            return f"nodes of {x.folder} lie on several pools by {NODE_LIST}"
        if x.run.framework not in FRAMEWORKS:
            return f"{x.folder} is a run of {x.run.framework}, which has no sharded replicas here"
        if x.run.n_devices not in (None, n_devices):
            text = f"{x.folder} starts {x.run.n_devices} processes"
            return f"{text}, {NODE_LIST} names nodes for {n_devices}"
    first = kinds[0]
    for x in kinds[1:]:
        assert x.model is not None
        assert first.model is not None
        if x.run.framework != first.run.framework:
            return f"{first.folder} and {x.folder} are runs of two frameworks"
        if x.model.shape != first.model.shape or x.model.job.seq_len != first.model.job.seq_len:
            return f"{first.folder} and {x.folder} train other models, or sequences"
    return ""


def _priced(
    base: JoinedReport, kinds: Sequence[KindRun], start: ReplicaStart, cluster: ClusterInput
) -> JoinedReport:
    """Return the report with the run as a plan of sharded replicas."""
    first = kinds[0].model
    assert first is not None
    counts: Counter[str] = Counter()
    for x in kinds:
        counts[x.pool] += len(x.nodes)
    names = [pool.name for pool in cluster.cluster.pools]
    indices = in_order(cluster, [i for i, name in enumerate(names) if name in counts])
    used = [names[i] for i in indices]
    per_node = cluster.cluster.pools[indices[0]].devices_per_node
    n_devices = sum(counts.values()) * per_node
    near = [
        nearest_layout(x.run.layout, first.shape, first.job.seq_len, n_devices, per_node)
        for x in kinds
    ]
    layouts = [x.layout for x in near]
    for x, one in zip(kinds, near, strict=True):
        if one.layout is None or one.layout.n_devices != n_devices:
            why = one.why_not or f"its degrees do not divide {n_devices} devices"
            return replace(base, not_priced=f"{x.folder}: {why}")
    known = [layout for layout in layouts if layout is not None]
    plan = plan_of_kinds(kinds, known, used, per_node)
    if isinstance(plan, str):
        return replace(base, not_priced=plan)
    model = first
    if plan.n_sequences != model.job.global_batch:
        changed = dict(model.document["training"], global_batch=plan.n_sequences)
        model = model_from_dict({**model.document, "training": changed})
    base = replace(base, model=model, knows_batch=True)
    try:
        check_model(model.shape, model.job)
        opened = _opened(kinds[0], (model, cluster), indices, plan)
    except PlannerError as error:
        return replace(base, not_priced=error.message)
    told = told_batches(plan)
    if start.rank_batches not in ("", told):
        text = f'{start.script} says --rank-batches "{start.rank_batches}", the files {told}'
        base = replace(base, notes=(*base.notes, f"{text}: losses of ranks would weigh wrong"))
    repairs = tuple(
        f"{_as_if_all(x.folder)}: {text}"
        for x, one in zip(kinds, near, strict=True)
        for text in one.repairs
    )
    report = replace(base, repairs=repairs, not_priced="", joined=ShardedExplanation(opened))
    asked, is_fit = kinds[0].asked, bool(report.fits)
    nodes = nodes_of_run(cluster, counts)
    # As the plans that it is ranked among: a network of these nodes alone.
    beside = _opened(kinds[0], (model, nodes), indices_of(nodes, used), plan)
    step_s = beside.plan.step_time_s
    options = SolveOptions(framework=base.run.framework, own_calibration=asked.calibration)
    standing = joined_standing(model, nodes, options, step_s, asked.stop, fits=is_fit)
    changes = sharded_changes(opened, kinds, start, fits=is_fit)
    return replace(report, standing=standing, changes=changes)


def plan_of_kinds(
    kinds: Sequence[KindRun], layouts: Sequence[Layout], pools: Sequence[str], per_node: int
) -> ShardedPlan | str:
    """Return kinds of replicas as one plan; why they are none where they are not.

    `layouts` are those of the kinds as if all nodes were like theirs, `pools` the names of those
    in use.
    """
    first = layouts[0]
    for x, layout in zip(kinds, layouts, strict=True):
        if why := why_not_sharded(x.run.framework, layout):
            return f"{x.folder}: {why}: not modelled over several pools"
        for axis in ("tp", "cp", "dp", "dp_shard", "n_micro"):
            own, other = getattr(first, axis), getattr(layout, axis)
            if own != other:
                text = f"{axis} {own} in {kinds[0].folder}, {other} in {x.folder}"
                return f"{text}: all replicas take part in every collective"
    degrees = ReplicaDegrees(first.dp_shard // first.cp, first.tp, first.cp)
    if degrees.n_devices % per_node:
        return f"replicas of {degrees.n_devices} devices are no whole nodes of {per_node}"
    replicas = []
    for x, layout in zip(kinds, layouts, strict=True):
        n, rest = divmod(len(x.nodes) * per_node, degrees.n_devices)
        if rest:
            text = f"{x.folder} has {len(x.nodes) * per_node} devices"
            return f"{text}, which are no whole replicas of {degrees.n_devices}"
        place = pools.index(x.pool)
        replicas.append(ReplicaKind(place, n, layout.mbs, layout.recompute))
    return ShardedPlan(degrees, first.n_micro, tuple(replicas))


def why_not_sharded(framework: str, layout: Layout) -> str:
    """Return what of a layout sharded replicas do not have; empty where they have all."""
    full = layout.recompute == "full" and layout.recompute_layers < max(layout.stage_layers)
    named = layout.recompute == "selective" and layout.recompute_modules != ("core_attn",)
    is_parallel = sequence_parallel(framework) is not False and layout.tp > 1
    reasons = {
        f"{layout.pp} pipeline stages": layout.pp > 1,
        f"ZeRO {layout.zero}": layout.zero != SHARDED_ZERO,
        f"expert parallelism {layout.ep}": layout.ep > 1,
        f"{layout.cp_comm} context exchange": layout.cp_comm not in ("", "all-gather"),
        "tensor parallelism without sequence parallelism": is_parallel and not layout.sp,
        "optimizer offload": layout.optimizer_offload,
        "activation offload": layout.activation_offload_layers > 0,
        "recomputation of some layers": full,
        f"recomputation of {', '.join(layout.recompute_modules)}": named,
        "a second copy of the weights": layout.hpz > 1,
        "tp overlap": layout.tp_overlap,
        ", ".join(name for name, _ in layout.switches): bool(layout.switches),
    }
    return "; ".join(text for text, has_it in reasons.items() if has_it)


def _opened(
    kind: KindRun,
    inputs: tuple[ModelInput, ClusterInput],
    indices: Sequence[int],
    plan: ShardedPlan,
) -> OpenedSharded:
    """Return the plan of a run, priced on its own stack."""
    model, cluster = inputs
    run = kind.run
    options = SolveOptions(
        framework=run.framework, stack=run.stack_name, own_calibration=kind.asked.calibration
    )
    standard = [make_problem(model, cluster.only(i), options) for i in indices]
    problems = [replace(x, stack=stack_as_run(x.stack, run)) for x in standard]
    keys = plan_keys(plan, len(indices))
    job = job_of_keys(problems, cluster, options.framework, indices, keys)
    priced = sharded_price(plan, job.sharded)
    record = ShardedWork(job, model, cluster, options).record(plan, priced)
    record = replace(record, rank=1)
    blank = Together((), {}, {}, False, (), None, None, True, (), ())
    return OpenedSharded(
        model, cluster, options, blank, job, plan, priced, plan=record, saved=record
    )
