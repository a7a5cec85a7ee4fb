"""Measured steps of the user's own stack, and the calibration that they anchor.

    - model: llama3-70b            # as on the command line, or beside this file
      cluster: h100-x64
      set: {training.global_batch: 512}
      layout: {tp: 8, pp: 4, mbs: 1}
      framework: megatron          # or `stack:`; without either those of the question
      step_time_s: 12.3
      peak_memory: 61.2 GiB        # of the fullest device; may be left out
      memory: reserved             # allocated, reserved or device (nvidia-smi)

`fullest: false` says that the peak is that of some device only, `out_of_memory: true` in place of
`step_time_s` that the run ended so. One to three of them, or one without the dash. Any layout
will do, and so will another model or number of devices: what is taken over is the ratio of
measured to predicted time, see `anchors`. `ReferenceContent` is such a file without the file: its
runs name examples, hold models and clusters, or name files whose texts come with it.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from costmodels.breakdown import Breakdown, break_down
from costmodels.layers.flops import model_flops_per_step
from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.stacks import SHARED, STACKS
from planner.errors import BadValue, InputProblem, PlannerError, SpecError, UsageError
from planner.frameworks.registry import named_space
from planner.solver.calibration.anchors import REACH, Floats, Peak, fit_factors, fit_slack
from planner.solver.calibration.file import (
    MAX_NAME,
    Calibration,
    load_calibration,
    rounded,
)
from planner.solver.calibration.parameters import HELD
from planner.solver.options import SolveOptions, axis_items, pin_codes
from planner.solver.problem import make_problem
from planner.solver.recipes import one_recipe
from planner.solver.sources import read_inputs
from planner.specs.examples import example_content, example_names
from planner.specs.inputs import ClusterInput, Content, ModelInput
from planner.specs.search.axis_values import layout_from_json, layout_from_pins, layout_to_json
from planner.specs.yaml.document import Document, KeyPath, close_names, load_yaml
from planner.units import GIB, format_percent, parse_size, shown_value
from searches.frameworks.registry import framework_spaces
from searches.rules import Context

MAX_RUNS = 3
"""Runs of a file: three factors are set by no more."""
FAR = 5.0
"""A step this many times its prediction, or a fifth of it, is explained."""
MEMORY_KINDS = ("allocated", "reserved", "device")
"""What a measured peak counts: tensors; what the framework's allocator holds; the device."""
_NOT_COUNTED = {
    "device": (),
    "reserved": ("overhead",),
    "allocated": ("overhead", "fragmentation"),
}
"""Memory terms that a kind leaves out."""
_KEYS = (
    "model",
    "cluster",
    "pool",
    "set",
    "layout",
    "framework",
    "stack",
    "step_time_s",
    "peak_memory",
    "memory",
    "fullest",
    "out_of_memory",
)
DIGITS = 6
"""Significant digits of factors."""


@dataclass(frozen=True)
class ReferenceContent:
    """What a reference file holds, without the file: nothing is opened for it."""

    document: Document
    files: Mapping[str, Content] = field(default_factory=dict)
    """What the files hold that runs name as model or cluster, by those names."""
    name: str = ""
    """What suggested commands call the file."""
    check: Callable[[ModelInput, ClusterInput], None] | None = None
    """Called with the inputs of each run before it is priced, to refuse what is too large."""


Reference = str | os.PathLike[str] | ReferenceContent
"""The path of a file of measured runs, empty for none, or what such a file holds."""


def reference_name(reference: Reference) -> str:
    """Return what a command that repeats the question calls a reference; empty for none."""
    if isinstance(reference, ReferenceContent):
        return reference.name or "RUN.yaml"
    return os.fspath(reference)


@dataclass(frozen=True)
class MeasuredRun:
    """One measured run, priced whenever a calibration is given."""

    model: ModelInput
    cluster: ClusterInput
    """One pool."""
    layout: Layout
    framework: str
    stack: str
    step_s: float | None
    """Seconds; None where the run gave no time."""
    peak_bytes: float | None = None
    memory: str = "device"
    """One of `MEMORY_KINDS`."""
    ran_out: bool = False
    """It ran out of memory."""
    fullest: bool = True
    """Whether the peak is that of the fullest device; otherwise that one may hold more."""
    file: str = ""
    line: int = 0
    """Where it stands, for messages."""

    @property
    def words(self) -> str:
        """The run in a few words."""
        from planner.solver.answer.reasons import shown_layout

        name = f"{self.model.shape.name} on {self.cluster.cluster.name}"
        if self.step_s is None:
            return f"{name}, {shown_layout(self.layout)}: out of memory"
        return f"{name}, {shown_layout(self.layout)}: {self.step_s:.4g} s"

    def problem(self, calibration: Calibration) -> Problem:
        """Return what the run is priced against with a calibration."""
        from planner.solver.options import SolveOptions
        from planner.solver.problem import make_problem

        options = SolveOptions(
            framework=self.framework, stack=self.stack, own_calibration=calibration
        )
        return make_problem(self.model, self.cluster, options, self.layout.n_devices)

    def priced(self, calibration: Calibration) -> Breakdown:
        """Return the prediction of the run with a calibration."""
        return break_down(self.problem(calibration), self.layout)


@dataclass(frozen=True)
class Anchored:
    """A calibration that measured runs anchor, and what is to be said about it."""

    calibration: Calibration
    ratios: tuple[float, ...]
    """Measured over predicted step time of each timed run, before."""
    notes: tuple[str, ...] = field(default=())


def anchored(base: Calibration, runs: Sequence[MeasuredRun]) -> Anchored:
    """Return `base` with the anchors and the memory that measured runs ask for.

    Runs out of memory and runs without a peak or a time give what they have. `SpecError` for a
    step that is out of the factors' range.
    """
    plain = base.with_anchors(1.0, 1.0, 1.0, ())
    if plain.value(HELD):
        plain = plain.with_values({HELD: 0.0}, "measured")
    timed = [run for run in runs if run.step_s is not None]
    notes: list[str] = []
    result = plain
    ratios: tuple[float, ...] = ()
    if timed:
        measured = np.array([run.step_s for run in timed], dtype=np.float64)

        def steps_s(factors: Floats) -> Floats:
            compute, near, far = map(float, factors)
            these = plain.with_anchors(compute, near, far, ("",))
            return np.array([run.priced(these).step_s for run in timed])

        ratios = tuple((measured / steps_s(np.ones(3))).tolist())
        for run, ratio in zip(timed, ratios, strict=True):
            notes += _about(run, ratio)
        factors = [rounded(float(x), DIGITS) for x in fit_factors(measured, steps_s)]
        factors = [min(max(x, REACH[0]), REACH[1]) for x in factors]
        compute, near, far = factors
        result = plain.with_anchors(compute, near, far, tuple(run.words for run in timed))
        notes += _disagreement(timed, result)
    result, more = _with_memory(result, runs)
    name = base.name.removesuffix(SUFFIX)[: MAX_NAME - len(SUFFIX)] + SUFFIX
    return Anchored(replace(result, name=name), ratios, (*notes, *more))


SUFFIX = ", anchored"
"""End of the name of an anchored calibration."""


def _about(run: MeasuredRun, ratio: float) -> list[str]:
    """Return what may be wrong where a measured step is far from its prediction."""
    problem = run.problem(load_calibration())
    rate = model_flops_per_step(problem.shape, problem.job)
    peak = problem.pool.accelerator.peak_flops_per_s[problem.job.recipe.linear]
    mfu = rate / ((run.step_s or 0.0) * run.layout.n_devices * peak)
    if mfu > 1.0:
        message = f"{run.step_s:.4g} s a step are {mfu:.2f} times the peak of the devices"
        raise SpecError(InputProblem(message, f"check {_suspects(0.0)}", run.file, run.line))
    if 1.0 / FAR < ratio < FAR:
        return []
    if not REACH[0] <= ratio <= REACH[1]:
        predicted = (run.step_s or 0.0) / ratio
        message = (
            f"{run.step_s:.4g} s a step, and {predicted:.4g} s are predicted: {_times(ratio)}, "
            f"beyond the factors' range of {REACH[0]:g} to {REACH[1]:g}"
        )
        raise SpecError(InputProblem(message, _suspects(ratio), run.file, run.line))
    return [f"reference: {run.words} is {_times(ratio)} than predicted; check {_suspects(ratio)}"]


def _times(ratio: float) -> str:
    slower = f"{ratio:.1f} times slower"
    return slower if ratio > 1 else f"{1 / ratio:.1f} times faster"


def _suspects(ratio: float) -> str:
    """Return what usually explains a step that is far off."""
    if ratio < 1:
        return (
            "the unit (seconds of a whole step, not of a micro-batch), and that model, global "
            "batch, sequence length and number of devices are those of the run"
        )
    return (
        "the unit (seconds, not ms), that the step is none of the first ones (warm-up, "
        "compilation) and no step with a checkpoint, and that model, global batch, sequence "
        "length, layout and number of devices are those of the run"
    )


def _disagreement(runs: Sequence[MeasuredRun], calibration: Calibration) -> list[str]:
    """Return a note where runs contradict each other by more than the model resolves."""
    off = [(run.step_s or 0.0) / run.priced(calibration).step_s for run in runs]
    if max(off) / min(off) < 1.25:
        return []
    shown = ", ".join(f"{x:.2f}" for x in off)
    return [
        f"reference: the runs disagree: measured over predicted after anchoring is {shown}; "
        "one of them may be of another stack, or slow"
    ]


def counted_bytes(breakdown: Breakdown, memory: str) -> tuple[float, float]:
    """Return the peak as `memory` counts it, and the activations of that device, bytes."""
    out = _NOT_COUNTED[memory]
    totals = [sum(v for term, v in stage.items() if term not in out) for stage in breakdown.stages]
    peak_stage = int(np.argmax(totals))
    return totals[peak_stage], breakdown.stages[peak_stage]["activations"]


def _with_memory(
    calibration: Calibration, runs: Sequence[MeasuredRun]
) -> tuple[Calibration, list[str]]:
    """Return the calibration with the slack that measured peaks ask for, and notes."""
    context = calibration.value("shared.context_bytes")
    frac = calibration.value("shared.fragmentation_frac")
    peaks = []
    for run in runs:
        usable = run.cluster.cluster.pools[0].accelerator.memory_bytes
        if run.ran_out:
            predicted, stored = counted_bytes(run.priced(calibration), "device")
            peaks.append(Peak(usable, predicted, stored, True, at_least=True))
        elif run.peak_bytes is not None:
            predicted, stored = counted_bytes(run.priced(calibration), run.memory)
            device = run.memory == "device"
            peaks.append(Peak(run.peak_bytes, predicted, stored, device, not run.fullest))
    if not peaks:
        return calibration, []
    limits = SHARED["context_bytes"][1], SHARED["fragmentation_frac"][1]
    slack = fit_slack(peaks, (context, limits[0]), (frac, limits[1]))
    values = {
        "shared.context_bytes": min(rounded(slack.context_bytes, DIGITS), limits[0]),
        "shared.fragmentation_frac": min(rounded(slack.fragmentation_frac, DIGITS), limits[1]),
    }
    notes = []
    if values != {name: rounded(calibration.value(name), DIGITS) for name in values}:
        notes = [
            f"reference: measured peaks set what lies beside counted tensors to "
            f"{slack.context_bytes / GIB:.2f} GiB and {format_percent(slack.fragmentation_frac)} "
            f"of the activations (before: {context / GIB:.2f} GiB, {format_percent(frac)})"
        ]
        calibration = calibration.with_values(values, "measured")
    if slack.unexplained_bytes > 0:
        calibration = calibration.with_values(
            {HELD: float(round(slack.unexplained_bytes))}, "measured"
        )
        notes.append(
            f"reference: a run took {slack.unexplained_bytes / GIB:.2f} GiB more than even the "
            "largest slack explains, and every plan is charged for it; check ZeRO, recomputation, "
            "precision and batch of the run"
        )
    return calibration, notes


def with_reference(
    options: SolveOptions, reference: Reference
) -> tuple[SolveOptions, tuple[str, ...]]:
    """Return options whose calibration the runs of a reference anchor, and notes about them.

    Runs that name no software have that of the options.
    """
    runs = read_reference(reference, options)
    result = anchored(options.calibration, runs)
    notes = [*result.notes, *_strangers(runs, options)]
    return replace(options, own_calibration=result.calibration), tuple(notes)


def _strangers(runs: Sequence[MeasuredRun], options: SolveOptions) -> list[str]:
    """Return notes on runs of other software than is priced."""
    names = {SolveOptions(framework=run.framework, stack=run.stack).stack_name for run in runs} - {
        options.stack_name
    }
    return [
        f"reference: measured with {name}, plans are priced with {options.stack_name}: what parts "
        "the two is counted into the factors"
        for name in sorted(names)
    ]


def read_reference(reference: Reference, options: SolveOptions) -> list[MeasuredRun]:
    """Return the runs of a reference; `SpecError` with file and line for what is wrong."""
    value = reference if isinstance(reference, ReferenceContent) else None
    document = value.document if value else load_yaml(reference)  # type: ignore[arg-type]  # a path
    return [_run(document, path, one, options, value) for path, one in runs_of(document)]


def runs_of(document: Document) -> list[tuple[KeyPath, dict[str, Any]]]:
    """Return the runs of a document, each with its place; `SpecError` where it holds none."""
    data = document.data
    if isinstance(data, dict):
        return [((), data)]
    if not isinstance(data, list) or not all(isinstance(one, dict) for one in data):
        fix = (
            "write `model:`, `cluster:`, `layout:` and `step_time_s:`; docs/trial.md shows a file"
        )
        raise SpecError(document.problem((), "holds no measured runs", fix))
    if not 1 <= len(data) <= MAX_RUNS:
        fix = f"1 to {MAX_RUNS} runs; the three least alike say most"
        raise SpecError(document.problem((), f"holds {len(data)} runs", fix))
    return [((i,), one) for i, one in enumerate(data)]


def file_of_run(file: str, value: str) -> str:
    """Return the path or the name of an example that a run in `file` means by `value`."""
    beside = Path(file).parent / value
    return str(beside) if beside.exists() else value


def _run(
    document: Document,
    path: KeyPath,
    data: Mapping[str, Any],
    options: SolveOptions,
    content: ReferenceContent | None,
) -> MeasuredRun:
    """Return one run of the file."""

    def wrong(key: str, message: str, fix: str = "", at_key: bool = False) -> SpecError:
        return SpecError(document.problem((*path, key), message, fix, at_key=at_key))

    for key in data:
        if key not in _KEYS:
            close = close_names(str(key), _KEYS, 1)
            fix = f"did you mean {close[0]}?" if close else f"one of {', '.join(_KEYS)}"
            raise wrong(key, f"unknown key {key!r}", fix, at_key=True)
    fullest, ran_out = data.get("fullest", True), data.get("out_of_memory", False)
    for key, value in (("fullest", fullest), ("out_of_memory", ran_out)):
        if not isinstance(value, bool):
            raise wrong(key, f"{shown_value(value)} is neither true nor false", "true or false")
    for key in ("model", "cluster", "layout", *([] if ran_out else ["step_time_s"])):
        if data.get(key) is None:
            raise wrong(key, f"a measured run needs {key}", "docs/trial.md shows a file")
    step = data.get("step_time_s")
    if ran_out and step is not None:
        raise wrong("step_time_s", "a run out of memory has no step time", "drop one of the two")
    if step is not None and not _is_positive(step):
        raise wrong("step_time_s", f"{shown_value(step)} is no time", "seconds of one step: 12.3")
    model, cluster = _inputs(document, path, data, content)
    if content and content.check:
        content.check(model, cluster)
    framework, stack = _software(data, options, wrong)
    layout, model = _layout(data["layout"], model, cluster, framework, stack, wrong)
    peak, kind = _peak(data, wrong)
    memory_bytes = cluster.cluster.pools[0].accelerator.memory_bytes
    if peak is not None and peak > memory_bytes * 1.02:
        message = f"{peak / GIB:.1f} GiB, and the device has {memory_bytes / GIB:.1f} GiB"
        raise wrong("peak_memory", message, "GiB or GB of one device, not of a node")
    where = document.problem((*path, "step_time_s"), "")
    return MeasuredRun(
        model=model,
        cluster=cluster,
        layout=layout,
        framework=framework,
        stack=stack,
        step_s=None if step is None else float(step),
        peak_bytes=None if ran_out else peak,
        memory=kind,
        ran_out=ran_out,
        fullest=fullest,
        file=where.file,
        line=where.line,
    )


def reference_json(run: MeasuredRun, model: str, cluster: str) -> dict[str, Any]:
    """Return a run as a reference file holds it; `model` and `cluster` name the files of both."""
    layout = {**layout_to_json(run.layout), "precision": run.model.job.precision}
    entries: dict[str, Any] = {"model": model, "cluster": cluster}
    entries |= {"pool": run.cluster.cluster.pools[0].name, "layout": layout}
    entries |= {"framework": run.framework} | ({"stack": run.stack} if run.stack else {})
    if run.ran_out:
        return entries | {"out_of_memory": True}
    entries["step_time_s"] = rounded(run.step_s or 0.0, DIGITS)
    if run.peak_bytes is not None:
        entries["peak_memory"] = f"{run.peak_bytes / GIB:.3f} GiB"
        entries |= {"memory": run.memory, "fullest": run.fullest}
    return entries


def _is_positive(value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < float(value) < float("inf")  # type: ignore[arg-type]  # a number


def _inputs(
    document: Document, path: KeyPath, data: Mapping[str, Any], content: ReferenceContent | None
) -> tuple[ModelInput, ClusterInput]:
    """Return model and cluster of a run, its overrides applied."""
    changes = data.get("set") or {}
    if not isinstance(changes, dict):
        fix = "write `PATH: VALUE` lines, such as `pools.0.nodes: 8`"
        raise SpecError(document.problem((*path, "set"), f"set is {shown_value(changes)}", fix))

    def source(name: Literal["model", "cluster"]) -> Any:
        value = data[name]
        if not isinstance(value, str | dict):
            fix = "a file, the name of an example, or the file's contents"
            raise SpecError(document.problem((*path, name), f"is {shown_value(value)}", fix))
        if isinstance(value, dict):
            return value
        if content is None:
            return file_of_run(document.file, value)
        if value in content.files:
            return content.files[value]
        if value not in example_names(name):
            fix = "the name of an example, what the file holds, or its text in `files`"
            message = f"{shown_value(value)} is no example, and no file is opened"
            raise SpecError(document.problem((*path, name), message, fix))
        return example_content(name, value)

    pool = str(data.get("pool") or "")
    overrides = tuple((str(field), value) for field, value in changes.items())
    try:
        model, cluster = read_inputs(source("model"), source("cluster"), overrides, pool)
    except SpecError as error:
        if all(problem.file for problem in error.problems):
            raise
        here = document.problem((*path, "model"), "").file
        raise SpecError(
            [one if one.file else replace(one, file=here) for one in error.problems]
        ) from None
    except PlannerError as error:
        raise SpecError(document.problem((*path, "model"), error.message, error.hint)) from None
    names = [one.name for one in cluster.cluster.pools]
    if len(names) > 1:
        message = f"the cluster has {len(names)} pools, and a run used one of them"
        raise SpecError(
            document.problem((*path, "cluster"), message, f"pool: one of {', '.join(names)}")
        )
    return model, cluster


def _software(data: Mapping[str, Any], options: SolveOptions, wrong: Any) -> tuple[str, str]:
    """Return framework and stack of a run: its own, or those of the question."""
    framework, stack = data.get("framework"), data.get("stack")
    if framework is not None:
        if not isinstance(framework, str):
            text = f"unknown framework {shown_value(framework)}"
            raise wrong("framework", text, f"one of {', '.join(framework_spaces())}")
        try:
            framework = named_space(framework)
        except UsageError as error:
            raise wrong("framework", error.message, error.hint) from None
    if stack is not None and stack not in STACKS:
        raise wrong(
            "stack", f"unknown stack {shown_value(stack)}", f"one of {', '.join(sorted(STACKS))}"
        )
    if framework is None and stack is None:
        return options.framework, options.stack
    return framework or "default", stack or ""


def _layout(
    written: Any,
    model: ModelInput,
    cluster: ClusterInput,
    framework: str,
    stack: str,
    wrong: Any,
) -> tuple[Layout, ModelInput]:
    """Return the layout of a run, from pins or as a result writes it, and its recipe's model."""
    is_whole = isinstance(written, dict) and "stage_layers" in written
    try:
        if is_whole:
            named = {k: v for k, v in written.items() if k != "precision"}
            pins = {"precision": written["precision"]} if "precision" in written else {}
        else:
            pins = written
        values = pins if isinstance(pins, dict) else axis_items([str(pins)], "--pin")
        options = SolveOptions(pins=pin_codes(values), framework=framework, stack=stack)
        model = one_recipe(model, options, "one run has one recipe")
        problem = make_problem(model, cluster, options)
        if is_whole:
            return layout_from_json(named), model
        context = Context(problem, options.search_options(problem), problem.pool.n_devices)
        return layout_from_pins(context, options.pins), model
    except PlannerError as error:
        raise wrong("layout", error.message, error.hint) from None
    except (KeyError, TypeError) as error:
        fix = "axes and their values: {tp: 8, pp: 4, mbs: 1}"
        raise wrong("layout", f"is no layout: {error}", fix) from None


def _peak(data: Mapping[str, Any], wrong: Any) -> tuple[float | None, str]:
    """Return the measured peak, bytes, and what it counts."""
    kind = data.get("memory", "device")
    if kind not in MEMORY_KINDS:
        raise wrong("memory", f"unknown {shown_value(kind)}", f"one of {', '.join(MEMORY_KINDS)}")
    if data.get("peak_memory") is None:
        return None, kind
    try:
        peak = parse_size(data["peak_memory"])
    except BadValue as error:
        raise wrong("peak_memory", error.message, error.hint) from None
    if peak <= 0:
        raise wrong("peak_memory", f"{shown_value(data['peak_memory'])} is no size", "61.2 GiB")
    return peak, kind
