"""Turns a plan into the configuration of a training framework.

`emit_plan` writes the files of one framework, or one text file that says why it cannot run the
plan. `runs_on` and `why_not` answer the same question without files.
"""

from collections.abc import Callable, Sequence

from costmodels.plans import Layout
from costmodels.shapes import ModelShape, TrainingJob
from planner.errors import EmitError
from planner.frameworks.emit_request import EmitRequest, EmittedFiles
from planner.frameworks.emitted_text import nodes
from planner.frameworks.registry import framework
from searches.frameworks.registry import framework_names, load
from searches.frameworks.table import refusals, runnable_layouts


def why_not(
    target: str, layout: Layout, shape: ModelShape, job: TrainingJob | None = None
) -> str | None:
    """Return why `target` cannot run the layout, one reason a line, or None when it can.

    Each reason names the part in the way and what comes closest. Without `job` the rules about
    precision and sequence length are left out.
    """
    _check_target(target)
    return "\n".join(refusals(target, layout, shape, job)) or None


def runs_on(layout: Layout, shape: ModelShape, job: TrainingJob | None = None) -> tuple[str, ...]:
    """Return the frameworks that can run the layout."""
    return tuple(name for name in framework_names() if not refusals(name, layout, shape, job))


def runs_on_each(
    layouts: Sequence[Layout], shape: ModelShape, job: TrainingJob | None = None
) -> list[tuple[str, ...]]:
    """Return `runs_on` of many layouts of one job, the same names sooner."""
    names = framework_names()
    able = runnable_layouts(names, layouts, shape, job).T.tolist()
    return [tuple(name for name, runs in zip(names, each, strict=True) if runs) for each in able]


def emit_plan(target: str, request: EmitRequest) -> EmittedFiles:
    """Return the files of `target` for one plan.

    A framework that cannot run the plan gets `<target>.txt` with the reason instead.
    """
    _check_target(target)
    layout, shape, pool = request.layout, request.shape, request.pool
    _check_layout(layout, shape, request.job)
    reasons = refusals(target, layout, shape, request.job)
    if nodes(layout, pool) == (0, 0):
        reasons += (
            f"devices: {layout.n_devices} do not fill whole nodes of {pool.devices_per_node};"
            " closest: a multiple of it",
        )
    if reasons:
        return {f"{target}.txt": _refusal_text(target, reasons, request.header)}
    write: Callable[[EmitRequest], EmittedFiles] = load(framework(target).emitter)
    return write(request)


def _check_target(target: str) -> None:
    if target not in framework_names():
        fix = f"use one of {', '.join(framework_names())}"
        raise EmitError(f"unknown framework {target!r}", fix)


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


def _refusal_text(target: str, reasons: Sequence[str], header: Sequence[str]) -> str:
    lines = [
        f"{framework(target).title} cannot run this plan.",
        *header,
        "",
        *(f"- {x}" for x in reasons),
    ]
    return "\n".join(lines) + "\n"
