"""An existing run, judged: what its framework refuses, whether it fits, what it costs.

Also where it stands against the best plan of the same job on the same devices, and which changes
are worth most.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

from costmodels.breakdown import break_down
from costmodels.plans import Layout
from planner.analyze.check.asked import AskedRun, Devices, unpriced
from planner.analyze.check.changes import ChangedRuns, PricedRun, best_changes
from planner.analyze.check.report import Report
from planner.analyze.check.run_source import (
    RunSource,
    model_beside,
    run_cluster,
    run_devices,
    sorted_overrides,
)
from planner.analyze.check.standing import stack_as_run, standing_of
from planner.analyze.check.verdict import at_least_a_step
from planner.analyze.joined.node_pools import listed_pools, node_list_of, node_pools, pool_names
from planner.errors import InputProblem, PlannerError, SpecError, UsageError
from planner.frameworks.launchers.node_types import NODE_LIST
from planner.frameworks.registry import named_framework
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.nearest_layout import (
    nearest_layout,
    why_not_priced,
    with_legal_modes,
)
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.reader import run_text
from planner.frameworks.runs.replica_start import ReplicaStart, replica_start, start_in
from planner.option_names import option
from planner.solver.answer.plans import PlanRank, make_plan
from planner.solver.calibration.file import Calibration, load_calibration
from planner.solver.keywords import check_keywords
from planner.solver.options import SolveOptions
from planner.solver.problem import make_problem
from planner.solver.request import Calibrations, own_calibration
from planner.solver.sources import Overrides
from planner.specs.inputs import ClusterInput, Content, FileOrContent, ModelInput
from planner.specs.loader import cluster_from_dict, load_cluster, model_from_dict
from searches.frameworks.registry import framework_key, framework_rules

NODE_FIELDS = ("nodes", "accelerators_per_node")
"""Fields of a pool whose change by `--set` says how many devices the run starts on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """What a check is told besides the run's file and the cluster."""

    model: FileOrContent | Mapping[str, Any] | None = None
    """Needed where the file does not say the model."""
    files: Mapping[str, str] | None = None
    """Texts of the files that it names; None: those beside it are read."""
    framework: str = ""
    """Told from the file where it is empty; `megatron@0.17` names the release too."""
    version: str = ""
    """Release of the framework that the run uses."""
    env: Mapping[str, str] | None = None
    """Variables that the user's shell sets."""
    pins: Mapping[str, object] | None = None
    """Layout axes that the file cannot say."""
    overrides: Overrides = ()
    """Changed settings of the run, fields of the model or the cluster."""
    pool: str = ""
    calibration: Calibrations = None
    stop: Callable[[], bool] | None = None
    """Asked now and then; true ends the search for the best plan with the best so far."""


class CheckKeywords(TypedDict, total=False):
    """Keywords of `planner.check`: fields of `CheckOptions`."""

    model: FileOrContent | Mapping[str, Any] | None
    files: Mapping[str, str] | None
    framework: str
    version: str
    env: Mapping[str, str] | None
    pins: Mapping[str, object] | None
    overrides: Overrides
    pool: str
    calibration: Calibrations
    stop: Callable[[], bool] | None


def check(
    file: FileOrContent,
    cluster: FileOrContent | Mapping[str, Any],
    **keywords: Unpack[CheckKeywords],
) -> Report:
    """Return what an existing run means on a cluster.

    `file` is a launch script or a framework's configuration
    (`planner.frameworks.runs.reader.FORMATS`); `model` is needed where it does not say the model.
    `files` are the texts of the files that it names: without them those beside it are read, none
    where it is given as content. `version` is the release of the framework that the run uses.
    `env` are variables that the user's shell sets. The search for the best plan ends with the best
    so far once `stop` says so. `pins` states layout axes that the file cannot say (`{"pp": 4}` for
    DeepSpeed). On a cluster of several pools a run needs `pool`, or `nodes.txt` among its files as
    `planner emit` writes it: then it is judged over these pools, sharded replicas by the script
    that starts them, or their folder. `overrides` change settings of
    the run (`("tensor_model_parallel_size", 4)`), the model or the cluster. Nothing is executed.
    Raises `SpecError` for a file that cannot be read, `UsageError` for a bad option.
    """
    check_keywords(CheckKeywords, keywords)
    request = _with_release(CheckOptions(**keywords))
    _check_version(request.version)
    if not isinstance(file, Content):
        file = start_in(os.fspath(file))
    start = _start_of(file)
    if several := _several_pools(file, cluster, request):
        return _check_over_pools(_asked(file, request), *several, start)
    if start:
        raise _not_over_pools(file, cluster, request, start)
    return _check_on_one_pool(_asked(file, request), cluster, request)


def _start_of(file: FileOrContent) -> ReplicaStart | None:
    """Return what a script starts that is one of sharded replicas; None for another file.

    Raises `SpecError` for a file or folder that is not there, or holds no run.
    """
    text = str(file.content) if isinstance(file, Content) else run_text(os.fspath(file))[2]
    return replica_start(text)


def _not_over_pools(
    file: FileOrContent,
    cluster: FileOrContent | Mapping[str, Any],
    request: CheckOptions,
    start: ReplicaStart,
) -> UsageError:
    """Return why a script of kinds of replicas is not judged over pools.

    A pool is named, the list of nodes is missing, or the cluster has not the pools in it. Raises
    `UsageError` for a pool that the cluster does not have.
    """
    lead = f"it starts kinds of replicas on nodes of several pools, by {NODE_LIST}"
    overrides, nodes = sorted_overrides(request.overrides), node_list_of(file, request.files)
    if request.pool:
        run_cluster(cluster, overrides.cluster, request.pool)
        one = start.named(start.folders[0][0])
        leave = "leave " + option("pool") + f" out, or check the script of one kind, such as {one}"
        return UsageError(lead, leave, "run")
    if not nodes:
        fix = f"put {NODE_LIST} beside it, as planner emit does"
        return UsageError(f"{lead}, which is missing", fix, "run")
    value = run_cluster(cluster, overrides.cluster, "")
    named = dict.fromkeys(listed_pools(nodes))
    own = [pool.name for pool in value.cluster.pools]
    missing = [name for name in named if name not in own]
    text = f"{NODE_LIST} names pool {', '.join(missing)}, which the cluster does not have"
    fix = f"name a cluster of all its pools: {', '.join(named)}; this one has {', '.join(own)}"
    return UsageError(text if missing else lead, fix, "cluster")


def _check_over_pools(
    asked: AskedRun, cluster: ClusterInput, pools: tuple[str, ...], start: ReplicaStart | None
) -> Report:
    """Return what a run over several pools means: of pipelines, or of sharded replicas."""
    if start:
        from planner.analyze.sharded.check import check_sharded  # 100 ms: tables of several pools

        return check_sharded(asked, cluster, pools, start)
    from planner.analyze.joined.check import check_joined  # 100 ms: tables of several pools

    return check_joined(asked, cluster, pools)


def _asked(file: FileOrContent, request: CheckOptions) -> AskedRun:
    """Return a run with what the user says beside it."""
    overrides = sorted_overrides(request.overrides)
    own = model_beside(request.model, overrides.model)
    query = RunQuery(
        model=own,
        sets=overrides.run,
        env=request.env,
        pins=request.pins or {},
        beside=(request.files or {}) if isinstance(file, Content) else request.files,
        version=request.version,
    )
    path = file if isinstance(file, Content) else os.fspath(file)
    return AskedRun(
        source=RunSource(path, request.framework, query),
        own=own,
        overrides=overrides,
        version=request.version,
        calibration=own_calibration(request.calibration) or load_calibration(),
        stop=request.stop,
    )


def _check_on_one_pool(
    asked: AskedRun, cluster: FileOrContent | Mapping[str, Any], request: CheckOptions
) -> Report:
    """Return what a run means on the one pool that it uses."""
    cluster_input = run_cluster(cluster, asked.overrides.cluster, request.pool)
    pool = cluster_input.cluster.pools[0]
    devices, accelerator = pool.n_devices, pool.accelerator
    changed = asked.overrides.cluster
    counted = any(field.rsplit(".", 1)[-1] in NODE_FIELDS for field, _ in changed)
    run = _pinned(asked.source.read(devices, all_devices=counted), request.pins or {})
    described, why = asked.describe(run)
    n_devices = run.n_devices or devices
    placed, notes = run_devices(cluster_input, n_devices, run.segment_nodes)
    verdict = asked.judge(run, described, accelerator)
    if described is None and not verdict.refused:
        missing = run.model is None and asked.own is None
        raise _no_model(run) if missing else why or SpecError([])
    if verdict.refused and run.n_devices is None and not counted:
        text = f"judged on the {devices} of the cluster"
        notes.append(f"the file does not say on how many devices it starts: {text}")
    base = unpriced(
        Report,
        asked,
        run,
        (described, verdict),
        Devices(placed or cluster_input, n_devices <= devices, notes),
        _first_problem(why) if why else "",
    )
    if described is None or placed is None:
        text = base.not_priced or f"{n_devices} devices do not fill whole nodes of this pool"
        return replace(base, not_priced=text)
    model_overrides = asked.overrides.model
    runs = ChangedRuns(
        asked.source, n_devices, accelerator, pool.devices_per_node, model_overrides
    )
    return _priced(base, described, placed, runs, asked.stop)


def _several_pools(
    file: FileOrContent, cluster: FileOrContent | Mapping[str, Any], request: CheckOptions
) -> tuple[ClusterInput, tuple[str, ...]] | None:
    """Return the cluster of a run over several pools, and the pool of each of its node ranks.

    On a cluster of several, with a list of the run's nodes; those of one part are one. None where
    one pool is named. Raises `UsageError` for a list of nodes of one alone.
    """
    text = "" if request.pool else node_list_of(file, request.files)
    if not text:
        return None
    overrides = sorted_overrides(request.overrides)
    read = cluster_from_dict if isinstance(cluster, Mapping) else load_cluster
    whole = read(cluster, overrides.cluster)  # type: ignore[arg-type]  # chosen by its type
    if len(whole.cluster.pools) < 2:
        return None
    from planner.solver.together.pools import with_merged_pools  # 100 ms: several pools

    merged = with_merged_pools(whole)
    names = [pool.name for pool in merged.cluster.cluster.pools]
    pools = node_pools(text, pool_names(names, merged.merged))
    if len(set(pools)) == 1:
        text = f"{NODE_LIST} names nodes of pool {pools[0]} alone"
        raise UsageError(text, option("pool", pools[0]) + ", or correct the list", "files")
    return merged.cluster, pools


def _no_model(run: ExistingRun) -> SpecError:
    """Return the error for a run whose file says no model that is read."""
    fix = "name its model file: " + option("model", "llama3-8b") + ", a YAML file or a config.json"
    return SpecError(InputProblem(run.model_unread or "does not say the model", fix, run.source))


def _first_problem(error: SpecError) -> str:
    """Return the first thing wrong, with its place in the model."""
    first = error.problems[0]
    return ": ".join(part for part in (first.path, first.message) if part)


def _with_release(request: CheckOptions) -> CheckOptions:
    """Return the options with the release that `framework` names as the version.

    `UsageError` where both name one and they differ.
    """
    if not request.framework:
        return request
    rules = framework_rules(named_framework(request.framework, "framework"))
    if rules.is_pinned and request.version not in ("", rules.release):
        raise UsageError(
            option("framework", request.framework)
            + " and "
            + option("version", request.version)
            + " name two releases",
            "keep one of them",
            code="contradiction",
        )
    version = rules.release if rules.is_pinned else request.version
    return replace(request, framework=rules.name, version=version)


def _asked_key(run: ExistingRun, version: str) -> str:
    """Return the key of a run's framework, at the release that the user named if it is known."""
    known = {one.version for one in framework_rules(run.framework).known_releases}
    return framework_key(f"{run.framework}@{version}") if version in known else run.framework


def run_options(
    run: ExistingRun, layout: Layout, calibration: Calibration, version: str = ""
) -> SolveOptions:
    """Return the options of the search that a run of `layout` stands beside."""
    # A run that has the switch stands among plans that may have it too.
    open_ = {"tp_overlap": frozenset((0, 1))} if layout.tp_overlap else {}
    held = {axis: frozenset(values) for axis, values in run.held_values.items()}
    return SolveOptions(
        framework=_asked_key(run, version),
        stack=run.stack_name,
        only={**open_, **held},
        own_calibration=calibration,
    )


def _check_version(version: str) -> None:
    if not version:
        return
    from packaging.version import InvalidVersion, Version

    try:
        Version(version)
    except InvalidVersion:
        message = option("version") + f": {version!r} is not a release"
        raise UsageError(message, option("version", "0.19.2")) from None


def _pinned(run: ExistingRun, pins: Mapping[str, object]) -> ExistingRun:
    """Refuse pins on what the file says itself."""
    if pins and run.framework in ("megatron", "torchtitan"):
        raise UsageError(
            option("pin") + f" {next(iter(pins))}: {run.source} says its whole layout",
            "change a setting with " + option("set") + ", under the framework's own name",
        )
    return run


def _priced(
    base: Report,
    model: ModelInput,
    cluster: ClusterInput,
    runs: ChangedRuns,
    stop: Callable[[], bool] | None,
) -> Report:
    """Return the report with what the run costs, where it stands and what would help."""
    run, pool = base.run, cluster.cluster.pools[0]
    near = nearest_layout(
        run.layout, model.shape, model.job.seq_len, pool.n_devices, pool.devices_per_node
    )
    if near.layout is None:
        return replace(base, not_priced=near.why_not)
    layout = near.layout
    if layout.n_devices != pool.n_devices:
        smaller, _ = run_devices(cluster, layout.n_devices, run.segment_nodes)
        if smaller is None:
            return replace(base, not_priced=f"{layout.n_devices} devices are not whole nodes")
        cluster = smaller
    if layout.gbs != model.job.global_batch:
        changed = {**model.document["training"], "global_batch": layout.gbs}
        model = model_from_dict({**model.document, "training": at_least_a_step(changed)})
    options = run_options(run, layout, base.calibration, runs.source.query.version)
    try:
        standard = make_problem(model, cluster, options)
    except PlannerError as error:
        return replace(base, not_priced=error.message)
    problem = replace(standard, stack=stack_as_run(standard.stack, run))
    legal = with_legal_modes(problem, layout)
    layout = legal.layout or layout
    why = why_not_priced(problem, layout)
    if why:
        return replace(base, not_priced=why)
    breakdown = break_down(problem, layout)
    inputs, place = (model, cluster), PlanRank(tie=False)
    plan = make_plan(problem, breakdown, inputs, base.calibration, place, options.framework)
    if run.overestimated:
        others = tuple(warning for warning in plan.warnings if warning.code != "MEM001")
        plan = replace(plan, warnings=others)
    standing = standing_of(model, cluster, options, plan, stop)
    priced = PricedRun(base, model, cluster, problem, standard.stack, plan)
    return replace(
        base,
        model=model,
        cluster=cluster,
        plan=plan,
        repairs=(*near.repairs, *legal.repairs),
        standing=standing,
        changes=best_changes(priced, runs),
    )
