"""An existing run, judged: what its framework refuses, whether it fits, what it costs.

Also where it stands against the best plan of the same job on the same devices, and which changes
are worth most.
"""

import dataclasses
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from costmodels.axes import switch_axes
from costmodels.breakdown import break_down
from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.stacks import StackProfile, compiled
from planner.analyze.neighborhood import Neighbour, neighbours
from planner.documents import Answer
from planner.errors import PlannerError, SpecError, UsageError
from planner.frameworks.deepspeed.reader import MICRO, STEPS, TOTAL
from planner.frameworks.runs.changes import Settings, changed_settings, changed_words
from planner.frameworks.runs.existing_run import ExistingRun, Switch
from planner.frameworks.runs.nearest_layout import nearest_layout, why_not_priced
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.reader import read_run
from planner.option_names import option
from planner.solver.answer.plans import make_plan
from planner.solver.answer.result import Plan
from planner.solver.answer.result_parts import calibration_json
from planner.solver.calibration.file import Calibration, load_calibration
from planner.solver.options import SolveOptions
from planner.solver.problem import make_problem
from planner.solver.ranking import rank_over_pools
from planner.solver.request import Calibrations, own_calibration
from planner.solver.scenarios import Searched
from planner.specs.identity import plan_id
from planner.specs.importers.imported import Imported
from planner.specs.inputs import ClusterInput, Content, FileOrContent, ModelInput
from planner.specs.loader import cluster_from_dict, load_cluster, load_model, model_from_dict
from planner.specs.model import sizes_as_stated
from planner.specs.search.axis_values import layout_to_json
from searches.frameworks.case import LAYOUT_FIELDS, Case
from searches.frameworks.registry import framework_rules
from searches.frameworks.rule import Broken, FrameworkRule
from searches.frameworks.table import broken_rules
from searches.rules import Context
from searches.search import search

Overrides = tuple[tuple[str, object], ...]

N_CHANGES = 3
"""Changes that a report names."""
MIN_GAIN = 0.005
"""Least share of the step that a change must save to be worth a word."""
NODE_FIELDS = ("nodes", "accelerators_per_node")
"""Fields of a pool whose change by `--set` says how many devices the run starts on."""
MODEL_SECTIONS, CLUSTER_SECTIONS = ("model", "training"), ("pools", "fabric", "name")


@dataclass(frozen=True, slots=True)
class Change:
    """One thing to change, and what it gives."""

    text: str
    """In our words: `pp 8 -> 4`."""
    settings: tuple[str, ...]
    """What to write in the run, one flag or key each."""
    step_s: float
    gain_frac: float
    """Share of the present step that it saves; negative where it costs time."""
    peak_bytes: float
    fits: bool
    layout: Layout | None = None
    """None where a setting changes and the layout stays."""
    plan_id: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the change with the field names of the report's schema."""
        return {
            "change": self.text,
            "words": list(self.settings),
            "step_time_s": self.step_s,
            "gain_frac": self.gain_frac,
            "peak_bytes": round(self.peak_bytes),
            "fits": self.fits,
            "plan_id": self.plan_id,
            "layout": layout_to_json(self.layout) if self.layout else None,
        }


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands among the plans of the same job on the same devices."""

    best: Plan | None
    """None where nothing fits."""
    ratio: float | None
    """Step time of the run over that of the best plan."""
    rank: int | None
    """1 + plans that fit and are faster, by the closed form that ranks all plans; None where the
    run does not fit."""
    n_fit: int
    """Plans of the framework that fit."""
    stopped: str = ""
    """`time limit` where not all plans were looked at: the best so far, and no rank."""

    def to_json(self) -> dict[str, Any]:
        """Return the standing with the field names of the report's schema."""
        return {
            "ratio": self.ratio,
            "rank": self.rank,
            "n_fit": self.n_fit,
            "best": self.best.to_json() if self.best else None,
            **({"stopped": self.stopped} if self.stopped else {}),
        }


@dataclass(frozen=True, slots=True)
class Report(Answer):
    """Everything that `planner check` says of one run."""

    run: ExistingRun
    release: str
    """Release of the framework whose rules were applied."""
    refusals: tuple[Broken, ...]
    """What the framework refuses, in the order of its table."""
    ignored: tuple[Broken, ...]
    """Settings that the framework passes over in silence: it starts without them."""
    unwritten: tuple[Broken, ...]
    """What the framework runs and we write no configuration for."""
    model: ModelInput | None
    cluster: ClusterInput
    """The devices that the run is priced on."""
    enough: bool
    """The cluster has the devices that the run starts on."""
    plan: Plan | None
    repairs: tuple[str, ...]
    """What was changed in a refused run to price it."""
    not_priced: str
    standing: Standing | None
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    calibration: Calibration
    """The numbers that priced it."""

    @property
    def fits(self) -> bool | None:
        """Whether the run fits into memory; None where it is not priced.

        None too where something is kept off the device that has no price and does not fit on it.
        """
        if self.plan is None or (self.plan.headroom_frac < 0 and self.run.overestimated):
            return None
        return self.plan.headroom_frac >= 0

    @property
    def memory_not_judged(self) -> str:
        """Why it is not known whether a priced run fits; "" where it is."""
        return self.run.overestimated if self.plan is not None and self.fits is None else ""

    @property
    def partial(self) -> bool:
        """Whether something of the files was not understood."""
        return bool(self.run.doubts)

    @property
    def accepted(self) -> bool:
        """Whether the framework starts it on this cluster."""
        return not self.refusals and self.enough

    @property
    def exit_code(self) -> int:
        """0: accepted, and fits or memory is not judged; 3 otherwise."""
        priced = self.plan is not None and self.fits is not False
        return 0 if self.accepted and priced else 3

    @property
    def assumed(self) -> tuple[str, ...]:
        """What the files leave open and was assumed."""
        model = self.run.model
        return (*self.run.assumed, *(model.assumptions if model else ()))

    def dumps(self) -> str:
        """Return the JSON text: the same bytes for the same inputs."""
        return json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"

    def to_json(self) -> dict[str, Any]:
        """Return the report with the field names of docs/check.md."""
        run = self.run
        return {
            "schema_version": "1.1",
            "source": os.path.basename(run.source),
            "format": run.format,
            "framework": run.framework,
            "release": self.release,
            "fork": run.fork,
            "accepted": self.accepted,
            "partial": self.partial,
            "not_understood": [dataclasses.asdict(doubt) for doubt in run.doubts],
            "fits": self.fits,
            "memory_not_judged": self.memory_not_judged,
            "refusals": [_broken_json(b) for b in self.refusals],
            "ignored": [_broken_json(b) for b in self.ignored],
            "unwritten": [_broken_json(b) for b in self.unwritten],
            "n_devices": run.n_devices,
            "enough_devices": self.enough,
            "layout": {k: _plain(v) for k, v in run.layout.items()},
            "plan": self.plan.to_json() if self.plan else None,
            "repairs": list(self.repairs),
            "not_priced": self.not_priced,
            "standing": self.standing.to_json() if self.standing else None,
            "changes": [change.to_json() for change in self.changes],
            "assumed": list(self.assumed),
            "notes": list(self.notes),
            "calibration": calibration_json(self.calibration),
            "inputs": {
                "model": self.model.document if self.model else None,
                "cluster": self.cluster.document,
            },
        }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _broken_json(broken: Broken) -> dict[str, Any]:
    rule = broken.rule
    return {
        "code": rule.code,
        "when": rule.when,
        "title": rule.title,
        "reason": broken.reason,
        "closest": broken.closest,
        "source": rule.source,
    }


def check(
    file: FileOrContent,
    cluster: FileOrContent | Mapping[str, Any],
    *,
    model: FileOrContent | Mapping[str, Any] | None = None,
    files: Mapping[str, str] | None = None,
    framework: str = "",
    version: str = "",
    env: Mapping[str, str] | None = None,
    pins: Mapping[str, object] | None = None,
    overrides: Overrides = (),
    pool: str = "",
    calibration: Calibrations = None,
    stop: Callable[[], bool] | None = None,
) -> Report:
    """Return what an existing run means on a cluster.

    `file` is a launch script or a framework's configuration
    (`planner.frameworks.runs.reader.FORMATS`); `model` is needed where it does not say the model.
    `files` are the texts of the files that it names: without them those beside it are read, none
    where it is given as content. `version` is the release of the framework that the run uses.
    `env` are variables that the user's shell sets. The search for the best plan ends with the best
    so far once `stop` says so. `pins` states layout axes that the file cannot say (`{"pp": 4}` for
    DeepSpeed). `overrides` change settings of the run (`("tensor_model_parallel_size", 4)`), the
    model or the cluster. Nothing is executed. Raises `SpecError` for a file that cannot be read,
    `UsageError` for a bad option.
    """
    _check_version(version)
    named = file if isinstance(file, Content) else os.fspath(file)
    beside = (files or {}) if isinstance(file, Content) else files
    of = _sorted_overrides(overrides)
    given = _cluster(cluster, of["cluster"], pool)
    own = _given_model(model, of["model"])
    devices = given.cluster.pools[0].n_devices
    counted = any(path.rsplit(".", 1)[-1] in NODE_FIELDS for path, _ in of["cluster"])

    def read(
        more: Overrides, also: Mapping[str, object], n: int, *, all_devices: bool
    ) -> ExistingRun:
        """Return the run on `n` devices, with more settings and pins than the user gave."""
        sets = (*of["run"], *more)
        run_query = RunQuery(
            own, sets, env, n, {**(pins or {}), **also}, beside, all_devices, version
        )
        return read_run(named, run_query, framework)

    run = _pinned(read((), {}, devices, all_devices=counted), pins or {})
    release = version or run.release or framework_rules(run.framework).release
    described, why = describe(run, own, of["model"])
    requested = run.n_devices or devices
    notes = list(run.notes)
    enough = requested <= devices
    placed, more = _on_devices(given, requested)
    notes += more
    generation = given.cluster.pools[0].accelerator.generation
    refusals, ignored, unwritten = judge(
        run, described, generation, release, own, asserted=bool(version)
    )
    if described is None and not refusals:
        raise why or SpecError([])
    if refusals and run.n_devices is None and not counted:
        text = f"judged on the {devices} of the cluster"
        notes.append(f"the file does not say on how many devices it starts: {text}")
    base = Report(
        run=run,
        release=release,
        refusals=refusals,
        ignored=ignored,
        unwritten=unwritten,
        model=described,
        cluster=placed or given,
        enough=enough,
        plan=None,
        repairs=(),
        not_priced=_first_problem(why) if why else "",
        standing=None,
        changes=(),
        notes=tuple(notes),
        calibration=own_calibration(calibration) or load_calibration(),
    )
    if described is None or placed is None:
        text = base.not_priced or f"{requested} devices do not fill whole nodes of this pool"
        return replace(base, not_priced=text)

    def changed(more: Overrides, also: Mapping[str, object]) -> ExistingRun:
        """Return the run with more settings and pins on the devices that it has."""
        return read(more, also, requested, all_devices=True)

    judged = _Judged(changed, generation, own, of["model"], given, bool(version))
    return _priced(base, described, placed, judged, stop)


def _first_problem(error: SpecError) -> str:
    """Return the first thing wrong, with its place in the model."""
    first = error.problems[0]
    return ": ".join(part for part in (first.path, first.message) if part)


def _check_version(version: str) -> None:
    if not version:
        return
    from packaging.version import InvalidVersion, Version

    try:
        Version(version)
    except InvalidVersion:
        message = option("version") + f": {version!r} is not a release"
        raise UsageError(message, option("version", "0.19.2")) from None


def _sorted_overrides(overrides: Overrides) -> dict[str, Overrides]:
    """Return the overrides of the model, the cluster and the run's own settings."""
    entries: dict[str, list[tuple[str, object]]] = {"model": [], "cluster": [], "run": []}
    for path, value in overrides:
        head, dotted = path.split(".")[0], "." in path
        if head in MODEL_SECTIONS and dotted and path.split(".")[1] not in TORCHTITAN_KEYS:
            entries["model"].append((path, value))
        elif head in CLUSTER_SECTIONS and dotted:
            entries["cluster"].append((path, value))
        else:
            entries["run"].append((path, value))
    return {key: tuple(items) for key, items in entries.items()}


TORCHTITAN_KEYS = frozenset(
    (
        "local_batch_size",
        "global_batch_size",
        "steps",
        "flavor",
        "converters",
        "dtype",
        "mixed_precision_param",
        "mixed_precision_reduce",
        "enable_cpu_offload",
        "compile",
    )
)
"""Keys of torchtitan's [model] and [training], whose names are also sections of a model file."""


def _cluster(
    cluster: FileOrContent | Mapping[str, Any], overrides: Overrides, pool: str
) -> ClusterInput:
    read = cluster_from_dict if isinstance(cluster, Mapping) else load_cluster
    value = read(cluster, overrides)  # type: ignore[arg-type]  # chosen by its type
    if pool:
        return value.pool(pool)
    names = [p.name for p in value.cluster.pools]
    if len(names) > 1:
        raise UsageError(
            f"the cluster has {len(names)} pools, and a run uses one of them",
            "name it with " + option("pool") + f": {', '.join(names)}",
            code="several",
        )
    return value


def _given_model(
    model: FileOrContent | Mapping[str, Any] | None, overrides: Overrides
) -> ModelInput | None:
    if model is None:
        return None
    if isinstance(model, Mapping):
        return model_from_dict(model, overrides)
    return load_model(model, overrides)


def _pinned(run: ExistingRun, pins: Mapping[str, object]) -> ExistingRun:
    """Refuse pins on what the file says itself."""
    if pins and run.framework in ("megatron", "torchtitan"):
        raise UsageError(
            option("pin") + f" {next(iter(pins))}: {run.source} says its whole layout",
            "change a setting with " + option("set") + ", under the framework's own name",
        )
    return run


def describe(
    run: ExistingRun, own: ModelInput | None, overrides: Overrides = ()
) -> tuple[ModelInput | None, SpecError | None]:
    """Return the model and job of the run, or the error that its sizes make.

    `overrides` win over what the run and the model file `own` say.
    """
    try:
        result = model_from_dict(_document(run, own), overrides)
    except SpecError as error:
        return None, error
    name = own.path if own else run.source
    return dataclasses.replace(result, path=name), None


def _document(run: ExistingRun, own: ModelInput | None) -> dict[str, Any]:
    """Return what the run, and the model file beside it, say of the model and the job."""
    imported: Imported | None = run.model
    document = own.document if own else imported.document if imported else {}
    job = {k: v for k, v in run.job.items() if v is not None}
    training = {**document.get("training", {}), **job}
    tokens = training.get("tokens")
    step = training.get("seq_len", 0) * training.get("global_batch", 0)
    if tokens is not None and tokens < step:
        training["tokens"] = None
    section = {"name": _name_of(run.source), **document.get("model", {})}
    return {"model": section, "training": training}


def _name_of(source: str) -> str:
    """Return a model's name from the file that describes it."""
    stem = os.path.basename(source).rsplit(".", 1)[0]
    plain = re.sub(r"[^A-Za-z0-9._+-]+", "-", stem).strip("-._+")
    return plain[:64] or "model"


def _on_devices(given: ClusterInput, n: int) -> tuple[ClusterInput | None, list[str]]:
    """Return the first pool with as many nodes as `n` devices fill; None where they do not."""
    pool = given.cluster.pools[0]
    if n == pool.n_devices:
        return given, []
    per_node = pool.devices_per_node
    nodes, rest = divmod(n, per_node)
    fields: dict[str, object] = {"pools.0.nodes": max(1, nodes)}
    if n < per_node:
        fields["pools.0.accelerators_per_node"] = n
        fields["pools.0.nics_per_node"] = max(1, pool.nics_per_node * n // per_node)
        fields["pools.0.scale_up_domain"] = math.gcd(pool.scale_up_domain, n)
    elif rest:
        return None, [f"the run starts on {n} devices, which are not whole nodes of {per_node}"]
    elif pool.scale_up_domain > per_node:
        total = math.gcd(pool.scale_up_domain, n)
        fields["pools.0.scale_up_domain"] = total if total % per_node == 0 else per_node
    document = dict(given.document)
    maximum = pool.n_devices
    if n > maximum:
        fabric = dict(document["fabric"], tiers=[])
        document["fabric"] = fabric if nodes > _tier_nodes(document) else document["fabric"]
    try:
        changed = cluster_from_dict(document, list(fields.items()))
    except SpecError as error:
        return None, [f"the run starts on {n} devices: {error.message}"]
    changed = dataclasses.replace(changed, path=given.path)
    if n > maximum:
        text = f"the run starts on {n} devices, the cluster has {maximum}: it would wait for more"
        return changed, [f"{text}; priced as if the pool had {nodes} nodes"]
    return changed, [f"the run uses {n} of the {maximum} devices: priced on {n} of one pool"]


def _tier_nodes(document: Mapping[str, Any]) -> int:
    tiers = document["fabric"]["tiers"]
    return int(tiers[-1]["nodes"]) if tiers else 1 << 60


def judge(
    run: ExistingRun,
    model: ModelInput | None,
    generation: str,
    release: str,
    own: ModelInput | None = None,
    *,
    asserted: bool = False,
) -> tuple[tuple[Broken, ...], tuple[Broken, ...], tuple[Broken, ...]]:
    """Return what the framework refuses, what it passes over, and what only we do not write.

    Where the sizes go together in no `model`, rules see them as the run states them; `own` is the
    model file beside it. Unless the user says which release runs (`asserted`), a flag of
    Megatron-LM that is not known may be a fork's, and of a fork only the rules on layouts hold.
    """
    megatron = run.framework == "megatron" and not asserted
    forked = bool(run.fork) and not asserted
    sizes = (model.shape, model.job) if model else sizes_as_stated(_document(run, own))
    stated = {k: v for k, v in run.layout.items() if k in CASE_FIELDS}
    settings = run.settings
    if run.fork.endswith("Megatron-DeepSpeed"):  # its batch is for replicas: a rule on layouts
        settings = {k: v for k, v in settings.items() if k not in (TOTAL, STEPS)}
        settings[MICRO] = run.layout.get("mbs", 1)
    case = Case.of_run(
        settings,
        env=run.env,
        layout=stated,
        model=sizes[0] if sizes else None,
        job=sizes[1] if sizes else None,
        generation=generation,
    )
    case = replace(
        case,
        unknown=() if megatron else tuple(run.unknown),
        refused=() if forked else tuple(run.refused),
    )
    broken = broken_rules(run.framework, case, version=release)
    if forked:
        broken = tuple(b for b in broken if _holds_for_forks(b.rule))
    ignored = tuple(b for b in broken if b.rule.when == "ignored")
    unwritten = tuple(b for b in broken if b.rule.when == "planner")
    refused = tuple(b for b in broken if b.rule.when not in ("ignored", "planner"))
    return refused, ignored, unwritten


def _holds_for_forks(rule: FrameworkRule) -> bool:
    """Tell whether a rule of Megatron-LM is one of sizes: degrees, batch, stages."""
    return rule.level == "layout" or rule.code.startswith("MLM2")


CASE_FIELDS = frozenset((*LAYOUT_FIELDS, *(axis.name for axis in switch_axes()), "counts"))
"""Fields of a run's layout that framework rules read."""


def _priced(
    base: Report,
    model: ModelInput,
    cluster: ClusterInput,
    judged: "_Judged",
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
        smaller, _ = _on_devices(cluster, layout.n_devices)
        if smaller is None:
            return replace(base, not_priced=f"{layout.n_devices} devices are not whole nodes")
        cluster = smaller
    if layout.gbs != model.job.global_batch:
        changed = dict(model.document["training"], global_batch=layout.gbs)
        model = model_from_dict({**model.document, "training": changed})
    # A run that has the switch stands among plans that may have it too.
    open_ = {"tp_overlap": frozenset((0, 1))} if layout.tp_overlap else {}
    options = SolveOptions(
        framework=run.framework, stack=run.stack_name, only=open_, own_calibration=base.calibration
    )
    try:
        standard = make_problem(model, cluster, options)
    except PlannerError as error:
        return replace(base, not_priced=error.message)
    problem = replace(standard, stack=_as_run(standard.stack, run))
    why = why_not_priced(problem, layout)
    if why:
        return replace(base, not_priced=why)
    breakdown = break_down(problem, layout)
    plan = make_plan(1, problem, breakdown, model, cluster, False, base.calibration)
    if run.overestimated:
        kept = tuple(warning for warning in plan.warnings if warning.code != "MEM001")
        plan = replace(plan, warnings=kept)
    standing = standing_of(model, cluster, options, plan, stop)
    switched = _switched(base, problem, standard.stack, plan, judged)
    changes = _changes(base, problem, model, cluster, plan, judged, switched)
    return replace(
        base,
        model=model,
        cluster=cluster,
        plan=plan,
        repairs=near.repairs,
        standing=standing,
        changes=changes,
    )


def _as_run(stack: StackProfile, run: ExistingRun) -> StackProfile:
    """Return the profile of a framework with what the run's settings change in it."""
    changes = dict(run.stack)
    if changes.pop("compiled", False):
        stack = compiled(stack)
    return replace(stack, **changes)


def standing_of(
    model: ModelInput,
    cluster: ClusterInput,
    options: SolveOptions,
    plan: Plan,
    stop: Callable[[], bool] | None = None,
) -> Standing:
    """Return the place of a plan among all that its framework runs within memory.

    Among those looked at, and without a rank, once `stop` says so.
    """
    usual = replace(options, stack="")
    problem = make_problem(model, cluster, usual)
    rival_s = plan.breakdown.closed_form_step_s
    wanted = replace(usual.search_options(), rival_s=rival_s, bound=False)
    context = Context(problem, wanted, problem.pool.n_devices)
    outcome = search(context, stop=stop)
    ranked = rank_over_pools([Searched(model, cluster, context, outcome)])
    best = None
    if ranked:
        opened = break_down(problem, ranked[0][0].layout)
        best = make_plan(1, problem, opened, model, cluster, True, options.calibration)
    fits = plan.headroom_frac >= 0
    return Standing(
        best=best,
        ratio=plan.step_time_s / best.step_time_s if best else None,
        rank=outcome.n_faster + 1 if fits and not outcome.stopped else None,
        n_fit=outcome.n_fit,
        stopped=outcome.stopped,
    )


@dataclass(frozen=True, slots=True)
class _Judged:
    """Reads and judges the run anew with what a change says."""

    read: Callable[[Overrides, Mapping[str, object]], ExistingRun]
    """The run with more settings and pins, on the same devices."""
    generation: str
    own: ModelInput | None
    overrides: Overrides
    """Changes of the model that the user asked for."""
    cluster: ClusterInput
    asserted: bool = False
    """The user says which release runs."""

    def settings(
        self, base: Report, problem: Problem, old: Layout, new: Layout
    ) -> tuple[str, ...] | None:
        """Return what to write to come from the layout of a run to another.

        None where nothing says it, or where the framework would refuse the changed run or read
        another layout in it; () where it cannot be tried: the file is of a form without such keys.
        """
        run = base.run
        changes = changed_settings(run, old, new, problem)
        if not changes:
            return None
        more, pins = _as_overrides(changes)
        try:
            again = self.read(more, pins)
        except PlannerError:
            return ()
        words = changed_words(run, changes)
        if run.framework == "megatron":
            command, env = _connections(again.env, old, new)
            words, again = (*words, *command), replace(again, env=env)
        return words if self._runs(base, problem, again, new) else None

    def stack(
        self, base: Report, problem: Problem, usual: StackProfile, layout: Layout, switch: Switch
    ) -> StackProfile | None:
        """Return how fast the run is with a setting written; `usual` is its framework's profile.

        None where the framework would refuse it or read another layout in it, and where it
        changes nothing.
        """
        try:
            again = self.read(switch.sets, {})
        except PlannerError:
            return None
        if not self._runs(base, problem, again, layout):
            return None
        stack = _as_run(usual, again)
        return None if stack == problem.stack else stack

    def _runs(self, base: Report, problem: Problem, again: ExistingRun, layout: Layout) -> bool:
        """Tell whether a changed run is refused nothing new and is read as `layout`."""
        described, _ = describe(again, self.own, self.overrides)
        refused, _, _ = judge(
            again, described, self.generation, base.release, self.own, asserted=self.asserted
        )
        if {b.rule.code for b in refused} - {b.rule.code for b in base.refusals}:
            return False
        pool = self.cluster.cluster.pools[0]
        near = nearest_layout(
            again.layout,
            problem.shape,
            problem.job.seq_len,
            layout.n_devices,
            pool.devices_per_node,
        )
        return near.layout == layout


def _connections(
    env: Mapping[str, str], old: Layout, new: Layout
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Return the commands that set CUDA_DEVICE_MAX_CONNECTIONS as `new` needs it, and the env."""
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    value = env.get(name, "").strip()
    if new.zero >= 2 > old.zero and value == "1":
        return (f"unset {name}",), {k: v for k, v in env.items() if k != name}
    if new.tp * new.cp > 1 == old.tp * old.cp and not value:
        return (f"export {name}=1",), {**env, name: "1"}
    return (), env


PINNED = {"pipeline stages": "pp", "recomputation in the script": "recompute"}
"""Words of changes that no file says, and the axis that `--pin` says them with."""


def _as_overrides(changes: Settings) -> tuple[Overrides, dict[str, object]]:
    """Return changes as settings of the run and as pins."""
    more: list[tuple[str, object]] = []
    pins: dict[str, object] = {}
    for key, value in changes.items():
        axis = PINNED.get(key)
        if axis is None:
            off = value == "" and key.startswith("--no-")
            name = key.replace("--no-", "--", 1) if off else key
            more.append((name, "false" if off else "true" if value == "" else value))
        elif value is not None:
            pins[axis] = int(value) if value.isdecimal() else value.split()[0]
            if axis == "recompute" and (layers := re.search(r"\d+", value)):
                pins["recompute_layers"] = int(layers[0])
    return tuple(more), pins


def _changes(
    base: Report,
    problem: Problem,
    model: ModelInput,
    cluster: ClusterInput,
    plan: Plan,
    judged: _Judged,
    switched: list[Change],
) -> tuple[Change, ...]:
    """Return the changes that are worth most among those that fit, the fastest first.

    `switched` are those of settings. For a run that does not fit these are what makes it fit,
    faster than it or not. A change that the framework would refuse is none.
    """
    usable = problem.pool.usable_bytes

    def of_layout(near: Neighbour) -> Change | None:
        settings = judged.settings(base, problem, plan.layout, near.layout)
        if settings is None:
            return None
        return Change(
            text=", ".join(f"{axis} {_word(a)} -> {_word(b)}" for axis, a, b in near.changes),
            settings=settings,
            step_s=near.step_s,
            gain_frac=1.0 - near.step_s / plan.step_time_s,
            peak_bytes=near.peak_bytes,
            fits=near.peak_bytes <= usable,
            layout=near.layout,
            plan_id=plan_id(model.document, cluster.document, layout_to_json(near.layout)),
        )

    start = plan.layout
    if start.dp * start.cp == 1:  # ZeRO of one rank is none, and comes back with more of them
        start = replace(start, zero=int(base.run.layout.get("zero", 0)))
    near = neighbours(problem, start, base.run.framework)
    chosen: list[Change] = []
    used: set[str] = set()
    least = MIN_GAIN if plan.headroom_frac >= 0 else -math.inf
    fitting = [n for n in near if n.peak_bytes <= usable]
    ranked: list[tuple[float, int, Neighbour | Change]] = [
        *((n.step_s, len(n.changes), n) for n in fitting),
        *((c.step_s, 0, c) for c in switched if c.fits),
    ]
    for step_s, _, found in sorted(ranked, key=lambda x: x[:2]):
        if len(chosen) >= N_CHANGES or 1.0 - step_s / plan.step_time_s < least:
            break
        if isinstance(found, Change):
            chosen.append(found)
            continue
        axes = {re.sub("_(layers|modules)$", "", axis) for axis, _, _ in found.changes}
        if not axes & used and (change := of_layout(found)):
            used |= axes
            chosen.append(change)
    return tuple(chosen)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value) or "none"


def _switched(
    base: Report, problem: Problem, usual: StackProfile, plan: Plan, judged: _Judged
) -> list[Change]:
    """Return what the framework's settings would give that are not set, layout unchanged.

    Each is written into the run, which is read and judged again, and priced as it is read.
    """
    changes = []
    for switch in base.run.switches:
        stack = judged.stack(base, problem, usual, plan.layout, switch)
        if stack is None:
            continue
        breakdown = break_down(replace(problem, stack=stack), plan.layout)
        changes.append(
            Change(
                text=switch.change,
                settings=(),
                step_s=breakdown.step_s,
                gain_frac=1.0 - breakdown.step_s / plan.step_time_s,
                peak_bytes=breakdown.peak_bytes,
                fits=breakdown.peak_bytes <= problem.pool.usable_bytes,
                plan_id=plan.plan_id,
            )
        )
    return changes
