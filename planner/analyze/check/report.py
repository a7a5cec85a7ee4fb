"""What `planner check` says of a run: its report, as data."""

import dataclasses
import json
import os
from dataclasses import dataclass
from typing import Any

from costmodels.plans import Layout
from planner.documents import LibraryAnswer
from planner.frameworks.runs.existing_run import ExistingRun
from planner.solver.answer.result import Plan
from planner.solver.answer.result_parts import calibration_json
from planner.solver.calibration.file import Calibration
from planner.specs.inputs import ClusterInput, ModelInput
from planner.specs.search.axis_values import layout_to_json
from searches.frameworks.rule import Broken


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
class Report(LibraryAnswer):
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
