"""A run that is asked about: what it is read from, and its report before it is priced."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hardware.parts import Accelerator
from planner.analyze.check.report import Report
from planner.analyze.check.run_source import RunOverrides, RunSource
from planner.analyze.check.verdict import Verdict, describe, judge
from planner.errors import SpecError
from planner.frameworks.runs.existing_run import ExistingRun
from planner.solver.calibration.file import Calibration
from planner.specs.inputs import ClusterInput, ModelInput
from searches.frameworks.registry import framework_rules

SomeReport = TypeVar("SomeReport", bound=Report)


@dataclass(frozen=True, slots=True)
class AskedRun:
    """A run, on one pool or several, and what the user says beside it."""

    source: RunSource
    own: ModelInput | None
    """The model file beside the run."""
    overrides: RunOverrides
    version: str
    """Release of the framework that the user names; empty: that of the run."""
    calibration: Calibration
    stop: Callable[[], bool] | None

    def release(self, run: ExistingRun) -> str:
        """Return the release whose rules are applied."""
        return self.version or run.release or framework_rules(run.framework).release

    def describe(self, run: ExistingRun) -> tuple[ModelInput | None, SpecError | None]:
        """Return the model and job of a run, or the error that its sizes make."""
        return describe(run, self.own, self.overrides.model)

    def judge(
        self, run: ExistingRun, model: ModelInput | None, accelerator: Accelerator
    ) -> Verdict:
        """Return the rules that a run breaks on a part."""
        release, asserted = self.release(run), bool(self.version)
        return judge(run, model, accelerator, release, self.own, asserted=asserted)


@dataclass(frozen=True, slots=True)
class Devices:
    """What a run starts on."""

    cluster: ClusterInput
    """The devices that it is priced on."""
    enough: bool
    """The cluster has them."""
    notes: Sequence[str]


def unpriced(
    kind: type[SomeReport],
    asked: AskedRun,
    run: ExistingRun,
    judged: tuple[ModelInput | None, Verdict],
    devices: Devices,
    not_priced: str = "",
) -> SomeReport:
    """Return the report of a run before it is priced: the verdict, its devices, notes.

    `judged` are the model that it describes, and the rules that it breaks.
    """
    model, verdict = judged
    return kind(
        run=run,
        release=asked.release(run),
        refusals=verdict.refused,
        ignored=verdict.ignored,
        unwritten=verdict.unwritten,
        model=model,
        cluster=devices.cluster,
        enough=devices.enough,
        plan=None,
        repairs=(),
        not_priced=not_priced,
        standing=None,
        changes=(),
        notes=(*run.notes, *devices.notes),
        calibration=asked.calibration,
    )
