"""The files that run one plan: those of its frameworks, and what launches them."""

from dataclasses import dataclass, replace

from costmodels.axes import AXES
from costmodels.breakdown import Breakdown
from costmodels.plans import Layout
from costmodels.shapes import ModelShape
from planner import __version__
from planner.errors import UsageError
from planner.frameworks.emit import emit_plan, refusal_file, why_not
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.finetuning.tuned_plan import engine_of
from planner.frameworks.finetuning.tuners import TUNERS, target_name
from planner.frameworks.launchers.files import launcher_files
from planner.frameworks.launchers.hosts import chosen_hosts
from planner.frameworks.launchers.placement import place_plan
from planner.frameworks.registry import named_framework
from planner.solver.answer.plans import under_framework
from planner.solver.answer.result import Plan
from planner.solver.answer.result_store import Opened
from planner.solver.calibration.file import Calibration
from planner.specs.identity import content_id
from planner.specs.inputs import ClusterInput, ModelInput
from searches.frameworks.registry import framework_names, keys_of


@dataclass(frozen=True, slots=True)
class FileTargets:
    """What the files of a plan are for."""

    frameworks: list[str]
    launchers: tuple[str, ...] = ("torchrun",)
    hosts: str | tuple[str, ...] | None = None
    """A list or a file (`planner.frameworks.launchers.hosts.read_hosts`), or names that are read
    already; None: those that the cluster names."""
    result_id: str = ""
    """Of the result that the plan is of, for its files to name; empty: none."""
    framework: str = ""
    """What the plan was searched for; where that names a release, files of its framework are for
    that release unless `frameworks` names another."""

    @property
    def releases(self) -> dict[str, str]:
        """The key of the framework that each of `frameworks` is written for."""
        own = dict(zip(framework_names(), keys_of(self.framework), strict=True))
        return {name: own.get(name, name) for name in self.frameworks}


def chosen_targets(text: str) -> list[str]:
    """Return the targets of a list such as `megatron@0.17,fsdp2,trl`, by their keys.

    `UsageError` for others, and for two releases of one, whose files have the same names.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    targets = [named_target(part) for part in parts]
    names = [target_name(target) for target in targets]
    twice = next((name for name in names if names.count(name) > 1), "")
    if twice and len(set(targets)) > len(set(names)):
        fix = f"write each into a folder of its own: {' and '.join(sorted(set(targets)))}"
        raise UsageError(f"two releases of {twice} have files of the same names", fix, "for")
    return targets


def named_target(text: str) -> str:
    """Return the key of a framework, or the name of a tool that fine-tunes, as users write it.

    `UsageError` for what is neither, and for a release of a tool: there is one of each.
    """
    name, at, release = (part.strip() for part in text.partition("@"))
    if name not in TUNERS:
        if name not in framework_names():
            fix = f"one of {', '.join((*framework_names(), *TUNERS))}"
            raise UsageError(f"unknown framework {text!r}", fix, "for", code="unknown-name")
        return named_framework(text, "for")
    if at and not TUNERS[name].release.startswith(release):
        title = TUNERS[name].title
        message = f"files for {title} {release} are not written"
        raise UsageError(message, f"{name}, release {TUNERS[name].release}", "for")
    return name


def header_lines(
    inputs: tuple[ModelInput, ClusterInput], plan: Plan, breakdown: Breakdown, result_id: str
) -> list[str]:
    """Return the comment lines that name a plan in the files written for it.

    `breakdown` is the plan priced as the framework of the file runs it.
    """
    model, cluster = inputs
    source = f" of result {result_id}" if result_id else ""
    return [
        f"plan {plan.plan_id}, rank {plan.rank}{source}",
        f"model {model.shape.name}, cluster {cluster.cluster.name},"
        f" inputs {content_id(model.document, cluster.document)}",
        f"predicted step {breakdown.step_s:.3f} s,"
        f" {breakdown.peak_bytes / 2**30:.1f} GiB per device",
        f"written by planner {__version__}",
    ]


def as_dispatched(layout: Layout, shape: ModelShape, dispatcher: str) -> Layout:
    """Return a layout that names the dispatcher of the stack that priced it."""
    named = dict(layout.switches)
    if dispatcher == "alltoall" or "dispatcher" in named or shape.n_experts <= 1 or layout.ep == 1:
        return layout
    named["dispatcher"] = dispatcher
    return replace(layout, switches=tuple((name, named[name]) for name in AXES if name in named))


def plan_files(opened: Opened, calibration: Calibration, targets: FileTargets) -> dict[str, str]:
    """Return the files of one plan; a framework that it does not fit gets a reason instead."""
    model, cluster, problem, plan = opened
    pool, fabric, files = problem.pool, problem.fabric, {}
    vendor = pool.accelerator.vendor
    placed = None
    if set(targets.launchers) - {"torchrun"}:
        hosts = targets.hosts
        names = hosts if isinstance(hosts, tuple) else chosen_hosts(hosts, cluster)
        placed = place_plan(plan.layout, model.shape, pool, fabric, names)
    for target in targets.releases.values():
        engine = target
        if target in TUNERS:
            engine = engine_of(plan.layout, model.shape, model.job, targets.framework, vendor)
        result = under_framework(problem, plan.layout, engine, calibration)
        header = header_lines((model, cluster), plan, result or plan.breakdown, targets.result_id)
        reasons = why_not(engine, plan.layout, model.shape, model.job, vendor)
        if result is None and reasons is None:
            lines = [*header[:2], f"as {engine} runs it, the plan does not fit into memory"]
            files[refusal_file(target)] = "\n".join(lines) + "\n"
            continue
        layout = as_dispatched(plan.layout, model.shape, problem.stack.dispatcher)
        request = EmitRequest(layout, model.shape, model.job, pool, header, model.details)
        request = replace(request, engine=engine)
        own = emit_plan(target, request)
        files |= own
        if placed:
            files |= launcher_files(targets.launchers, own, request, placed, fabric, plan.plan_id)
    return files
