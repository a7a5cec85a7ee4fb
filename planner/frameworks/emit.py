"""Turns a plan into the configuration of a training framework.

`emit_plan` writes the files of one framework, or one text file that says why it cannot run the
plan. `runs_on` and `why_not` answer the same question without files.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from costmodels.plans import Layout
from costmodels.shapes import ModelShape, TrainingJob
from planner.errors import EmitError
from planner.frameworks.emit_request import EmitRequest, EmittedFiles, RefusedPlanError
from planner.frameworks.emitted_text import nodes
from planner.frameworks.finetuning.refusals import tool_refusals
from planner.frameworks.finetuning.tuned_plan import TunedPlan, engine_of
from planner.frameworks.finetuning.tuners import ENGINES, TUNERS, Tuner, target_name
from planner.frameworks.registry import framework
from searches.frameworks.registry import framework_names, framework_rules, keys_of, load
from searches.frameworks.releases import UnknownReleaseError
from searches.frameworks.table import first_release, refusals, runnable_layouts


def why_not(
    target: str,
    layout: Layout,
    shape: ModelShape,
    job: TrainingJob | None = None,
    vendor: str = "",
) -> str | None:
    """Return why a framework cannot run the layout, one reason a line, or None when it can.

    Each reason names the part in the way and what comes closest. Without `job` the rules about
    precision and sequence length are left out, without the `vendor` of the accelerator the one
    about accelerators.
    """
    _check_target(target)
    return "\n".join(refusals(target, layout, shape, job, vendor)) or None


def runs_on(
    layout: Layout,
    shape: ModelShape,
    job: TrainingJob | None = None,
    framework: str = "",
    vendor: str = "",
) -> tuple[str, ...]:
    """Return the frameworks that can run the layout, `framework` at the release that it names."""
    names = keys_of(framework)
    return tuple(name for name in names if not refusals(name, layout, shape, job, vendor))


def runs_on_each(
    layouts: Sequence[Layout],
    shape: ModelShape,
    job: TrainingJob | None = None,
    framework: str = "",
    vendor: str = "",
) -> list[tuple[str, ...]]:
    """Return `runs_on` of many layouts of one job, the same names sooner."""
    names = keys_of(framework)
    able = runnable_layouts(names, layouts, shape, job, vendor).T.tolist()
    return [tuple(name for name, runs in zip(names, each, strict=True) if runs) for each in able]


def first_releases(
    names: Sequence[str], layout: Layout, shape: ModelShape, job: TrainingJob | None = None
) -> dict[str, str]:
    """Return the oldest release of each framework that runs a layout, where an older one does not.

    `names` are those that run it; one whose release was named is left out.
    """
    releases = {}
    for name in names:
        record = framework_rules(name)
        if not record.is_pinned:
            first = first_release(name, layout, shape, job)
            if first != record.known_releases[0].version:
                releases[name] = first
    return releases


def emit_plan(target: str, request: EmitRequest) -> EmittedFiles:
    """Return the files of `target`, a framework or a tool that fine-tunes, for one plan.

    One that cannot run the plan gets `refusal_file` with the reason instead.
    """
    if target in TUNERS:
        return _tuned_files(TUNERS[target], request)
    _check_target(target)
    request = replace(request, release=framework(target).rules.release)
    layout, shape = request.layout, request.shape
    _check_layout(layout, shape, request.job)
    reasons = refusals(target, layout, shape, request.job, request.pool.accelerator.vendor)
    reasons += _node_refusals(request)
    closest = "the layout of this plan in your own script"
    if framework_rules(target).name in ENGINES:
        closest = f"files for {' or '.join(TUNERS)}"
    reasons += tuple(
        f"{part}: files for {_shown_title(target)} that say so are not written in this version;"
        f" closest: {closest}"
        for part in _not_written(request.job, framework(target).says_adapters)
    )
    if reasons:
        return {refusal_file(target): _refusal_text(target, reasons, request.header)}
    write: Callable[[EmitRequest], EmittedFiles] = load(framework(target).emitter)
    try:
        return write(request)
    except RefusedPlanError as error:
        return {refusal_file(target): _refusal_text(target, error.reasons, request.header)}


def _tuned_files(tuner: Tuner, request: EmitRequest) -> EmittedFiles:
    """Return the files of a tool on the engine of the request, else on one that runs the plan."""
    layout, shape, job = request.layout, request.shape, request.job
    _check_layout(layout, shape, job)
    vendor = request.pool.accelerator.vendor
    engine = request.engine or engine_of(layout, shape, job, vendor=vendor)
    plan = TunedPlan(tuner, replace(request, release=framework(engine).rules.release), engine)
    reasons = refusals(engine, layout, shape, job, vendor) + _node_refusals(request)
    reasons += tool_refusals(plan)
    if reasons:
        return {refusal_file(tuner.name): _refusal_text(tuner.name, reasons, request.header)}
    write: Callable[[TunedPlan], EmittedFiles] = load(tuner.emitter)
    return write(plan)


def _node_refusals(request: EmitRequest) -> tuple[str, ...]:
    layout, pool = request.layout, request.pool
    if nodes(layout, pool) != (0, 0):
        return ()
    text = f"devices: {layout.n_devices} do not fill whole nodes of {pool.devices_per_node}"
    return (f"{text}; closest: a multiple of it",)


def refusal_file(target: str) -> str:
    """Return the name of the file that says why a framework or tool has none for a plan."""
    return f"{target_name(target)}.txt"


def _not_written(job: TrainingJob, says_adapters: bool) -> list[str]:
    """Return what of a job no framework's own files say; those of tools that fine-tune do."""
    parts = {
        "adapters": job.tuning is not None and not says_adapters,
        "reference of preferences": job.compares_answers,
        "packs with masks": job.run_keys > 0.0,
        "weights and states in bf16 alone": job.recipe.is_narrow,
    }
    return [name for name, is_asked in parts.items() if is_asked]


def _check_target(target: str) -> None:
    try:
        framework_rules(target)
    except UnknownReleaseError as error:
        raise EmitError(error.message, error.hint) from None
    except KeyError:
        fix = f"use one of {', '.join(framework_names())}"
        raise EmitError(f"unknown framework {target!r}", fix) from None


def _check_layout(layout: Layout, shape: ModelShape, job: TrainingJob) -> None:
    degrees = layout.tp * layout.pp * layout.cp * layout.dp
    faults = (
        (degrees != layout.n_devices, f"tp*pp*cp*dp = {degrees}, devices = {layout.n_devices}"),
        (
            layout.n_micro * layout.mbs * layout.dp != layout.gbs
            or layout.gbs != job.global_batch,
            f"the global batch is {job.global_batch}, the layout makes {layout.n_micro}"
            f" x {layout.mbs} x {layout.dp} of {layout.gbs}",
        ),
        (
            len(layout.stage_layers) != layout.pp * layout.vpp
            or sum(layout.stage_layers) != shape.layers,
            f"{len(layout.stage_layers)} stages hold {sum(layout.stage_layers)} layers,"
            f" not {layout.pp * layout.vpp} stages of a model with {shape.layers}",
        ),
    )
    for hit, text in faults:
        if hit:
            raise EmitError(f"the layout contradicts itself: {text}")


def _shown_title(target: str) -> str:
    """Return the title of a framework, with its release where one was named, or of a tool."""
    if target in TUNERS:
        return TUNERS[target].title
    rules = framework_rules(target)
    return f"{rules.title} {rules.release}" if rules.is_pinned else rules.title


def _refusal_text(target: str, reasons: Sequence[str], header: Sequence[str]) -> str:
    lines = [
        f"{_shown_title(target)} cannot run this plan.",
        *header,
        "",
        *(f"- {x}" for x in reasons),
    ]
    return "\n".join(lines) + "\n"
