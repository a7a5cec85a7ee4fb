"""The changes of a run that are worth most: of its layout, and of its framework's settings."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from costmodels.breakdown import break_down
from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.stacks import StackProfile
from hardware.parts import Accelerator
from planner.analyze.check.report import Change, Report
from planner.analyze.check.run_source import RunSource
from planner.analyze.check.standing import stack_as_run
from planner.analyze.check.verdict import describe, judge
from planner.analyze.neighborhood import Neighbour, neighbours
from planner.errors import PlannerError
from planner.frameworks.runs.changes import Settings, changed_settings, changed_words
from planner.frameworks.runs.existing_run import ExistingRun, Switch
from planner.frameworks.runs.nearest_layout import nearest_layout, with_legal_modes
from planner.solver.answer.result import Plan
from planner.solver.sources import Overrides
from planner.specs.identity import plan_id
from planner.specs.inputs import ClusterInput, ModelInput
from planner.specs.search.axis_values import layout_to_json

N_CHANGES = 3
"""Changes that a report names."""
MIN_GAIN = 0.005
"""Least share of the step that a change must save to be worth a word."""


@dataclass(frozen=True, slots=True)
class PricedRun:
    """A run as it is priced, nothing changed."""

    report: Report
    """What is said of it so far."""
    model: ModelInput
    cluster: ClusterInput
    problem: Problem
    usual_stack: StackProfile
    """The profile of its framework, without the run's own settings."""
    plan: Plan


@dataclass(frozen=True, slots=True)
class ChangedRuns:
    """Reads and judges a run anew with what a change says, on the same devices."""

    source: RunSource
    n_devices: int
    accelerator: Accelerator
    devices_per_node: int
    overrides: Overrides
    """Changes of the model that the user makes."""

    def read(self, sets: Overrides, pins: Mapping[str, object]) -> ExistingRun:
        """Return the run with more settings and pins."""
        return self.source.read(self.n_devices, sets, pins, all_devices=True)

    def settings(self, priced: PricedRun, new: Layout) -> tuple[str, ...] | None:
        """Return what to write to come from the layout of a run to another.

        None where nothing says it, or where the framework would refuse the changed run or read
        another layout in it; () where it cannot be tried: the file is of a form without such keys.
        """
        run, old = priced.report.run, priced.plan.layout
        changes = changed_settings(run, old, new, priced.problem)
        if not changes:
            return None
        sets, pins = as_overrides(changes)
        try:
            changed = self.read(sets, pins)
        except PlannerError:
            return ()
        lines = changed_words(run, changes)
        if run.framework == "megatron":
            commands, env = connections(changed.env, old, new)
            lines, changed = (*lines, *commands), replace(changed, env=env)
        return lines if self._runs(priced, changed, new) else None

    def stack(self, priced: PricedRun, switch: Switch) -> StackProfile | None:
        """Return how fast the run is with a setting written.

        None where the framework would refuse it or read another layout in it, and where it
        changes nothing.
        """
        try:
            changed = self.read(switch.sets, {})
        except PlannerError:
            return None
        if not self._runs(priced, changed, priced.plan.layout):
            return None
        stack = stack_as_run(priced.usual_stack, changed)
        return None if stack == priced.problem.stack else stack

    def _runs(self, priced: PricedRun, changed: ExistingRun, layout: Layout) -> bool:
        """Tell whether a changed run is refused nothing new and is read as `layout`."""
        own, release = self.source.query.model, priced.report.release
        described, _ = describe(changed, own, self.overrides)
        asserted = bool(self.source.query.version)
        verdict = judge(changed, described, self.accelerator, release, own, asserted=asserted)
        before = {b.rule.code for b in priced.report.refusals}
        if {b.rule.code for b in verdict.refused} - before:
            return False
        problem = priced.problem
        near = nearest_layout(
            changed.layout,
            problem.shape,
            problem.job.seq_len,
            layout.n_devices,
            self.devices_per_node,
        )
        return near.layout is not None and with_legal_modes(problem, near.layout).layout == layout


def connections(
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


def as_overrides(changes: Settings) -> tuple[Overrides, dict[str, object]]:
    """Return changes as settings of the run and as pins."""
    sets: list[tuple[str, object]] = []
    pins: dict[str, object] = {}
    for key, value in changes.items():
        axis = PINNED.get(key)
        if axis is None:
            off = value == "" and key.startswith("--no-")
            name = key.replace("--no-", "--", 1) if off else key
            sets.append((name, "false" if off else "true" if value == "" else value))
        elif value is not None:
            pins[axis] = int(value) if value.isdecimal() else value.split()[0]
            if axis == "recompute" and (layers := re.search(r"\d+", value)):
                pins["recompute_layers"] = int(layers[0])
    return tuple(sets), pins


def best_changes(priced: PricedRun, runs: ChangedRuns) -> tuple[Change, ...]:
    """Return the changes that are worth most among those that fit, the fastest first.

    For a run that does not fit these are what makes it fit, faster than it or not. A change that
    the framework would refuse is none.
    """
    problem, plan, run = priced.problem, priced.plan, priced.report.run
    usable, documents = problem.pool.usable_bytes, (priced.model.document, priced.cluster.document)

    def of_layout(near: Neighbour) -> Change | None:
        settings = runs.settings(priced, near.layout)
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
            plan_id=plan_id(*documents, layout_to_json(near.layout)),
        )

    start = plan.layout
    if start.dp * start.cp == 1:  # ZeRO of one rank is none, and comes back with more of them
        start = replace(start, zero=int(run.layout.get("zero", 0)))
    chosen: list[Change] = []
    used: set[str] = set()
    least = MIN_GAIN if plan.headroom_frac >= 0 else -math.inf
    near = neighbours(problem, start, run.framework)
    ranked: list[tuple[float, int, Neighbour | Change]] = [
        *((n.step_s, len(n.changes), n) for n in near if n.peak_bytes <= usable),
        *((c.step_s, 0, c) for c in _switched(priced, runs) if c.fits),
    ]
    for step_s, _, option in sorted(ranked, key=lambda x: x[:2]):
        if len(chosen) >= N_CHANGES or 1.0 - step_s / plan.step_time_s < least:
            break
        if isinstance(option, Change):
            chosen.append(option)
            continue
        axes = {re.sub("_(layers|modules)$", "", axis) for axis, _, _ in option.changes}
        if not axes & used and (change := of_layout(option)):
            used |= axes
            chosen.append(change)
    return tuple(chosen)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value) or "none"


def _switched(priced: PricedRun, runs: ChangedRuns) -> list[Change]:
    """Return what the framework's settings would give that are not set, layout unchanged.

    Each is written into the run, which is read and judged again, and priced as it is read.
    """
    problem, plan = priced.problem, priced.plan
    changes = []
    for switch in priced.report.run.switches:
        stack = runs.stack(priced, switch)
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
