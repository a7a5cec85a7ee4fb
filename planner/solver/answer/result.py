"""What `solve` and `evaluate` return: ranked plans, counts, reasons. Seconds, bytes, fractions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, cast

from costmodels.breakdown import Breakdown
from costmodels.plans import Layout
from costmodels.run.goodput import Goodput
from costmodels.step import Rows
from costmodels.traffic import PlanTransfer
from planner.documents import RENDERER, LibraryAnswer
from planner.errors import InfeasibleError
from planner.solver.together.records import Together
from planner.specs.json_text import indented
from planner.specs.search.axis_values import NUMERICS, layout_from_json, layout_to_json
from planner.specs.search.objectives import RunFigures

SCHEMA_VERSION = "1.4"
"""Minor numbers add fields, major numbers change them."""


@dataclass(frozen=True, slots=True)
class PlanWarning:
    """Something about a plan that its owner should know, and what would relax it."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Plan(LibraryAnswer):
    """One priced layout."""

    rank: int
    plan_id: str
    pool: str
    """Name of the pool that the plan uses."""
    precision: str
    """Its numeric recipe."""
    layout: Layout
    breakdown: Breakdown
    step_time_s: float
    step_time_p10_s: float
    step_time_p90_s: float
    interval_regime: str
    """What the two are learnt from (`planner.solver.calibration.intervals`)."""
    tokens_per_s: float
    tokens_per_s_per_device: float
    mfu: float
    """Megatron's model FLOPs over the dense peak of the GEMM precision."""
    usable_bytes: float
    tie: bool
    """So close to the fastest plan that memory headroom decides between them."""
    training_s: float | None
    """Time of the whole run when its tokens are stated, without failures, restarts and
    checkpoints, which `run.expected_s` counts."""
    warnings: tuple[PlanWarning, ...]
    runs_on: tuple[str, ...]
    """Frameworks that can run it, and hold it in memory."""
    first_releases: Mapping[str, str] = field(default_factory=dict)
    """Of the frameworks of `runs_on` the oldest release that runs it, where an older one that is
    known does not."""
    too_large_for: tuple[str, ...] = ()
    """Frameworks that could run it with more memory."""
    n_idle: int = 0
    """Devices of the pool that it leaves idle."""
    run: RunFigures | None = None
    """Goodput, energy and cost of the whole run."""
    mfu_bf16: float | None = None
    """MFU over the dense bf16 peak, as papers print it whatever the precision; None where the
    accelerator has no bf16."""
    numerics: tuple[tuple[str, str], ...] = ()
    """Where the job's numbers are not those of its file: axis and value, as written."""
    group: int | None = None
    """Plans of one number cannot be told from the first of them; None where time ranks nothing."""
    n_variants: int = 1
    """Finalists of its tp, pp, cp and ep, of which it is the best; 1 where each is listed."""

    @property
    def mfu_over_bf16(self) -> float | None:
        """MFU over the bf16 peak where that is another number than `mfu`, as in fp8 and fp4."""
        return None if self.mfu_bf16 == self.mfu else self.mfu_bf16

    @property
    def headroom_frac(self) -> float:
        """Share of the usable memory that the plan leaves free; negative when it does not fit."""
        return 1.0 - self.breakdown.peak_bytes / self.usable_bytes

    @property
    def recipe_label(self) -> str:
        """Its precision, and what else of the job's numbers is not the file's."""
        more = [f"{axis} {word}" for axis, word in self.numerics if axis != "precision"]
        return ", ".join([self.precision, *more])

    @property
    def words(self) -> dict[str, str]:
        """What it takes of the job's numbers in place of the file's: value by axis."""
        return {"precision": self.precision, **dict(self.numerics)}

    def to_json(self) -> dict[str, Any]:
        """Return the plan with the field names of the result schema."""
        b = self.breakdown
        return self.figures_json() | {
            "memory": self._memory_json()
            | {"stages": [{term: round(v) for term, v in stage.items()} for stage in b.stages]},
            "comm": [
                {
                    "axis": t.axis,
                    "collective": t.collective,
                    "algorithm": t.algorithm,
                    "tier": t.tier,
                    "group_size": t.group_size,
                    "n_calls": t.n_calls,
                    "message_bytes": round(t.message_bytes),
                    "bytes": round(t.sent_bytes),
                    "time_s": t.time_s,
                    "exposed_s": t.exposed_s,
                    "dtype": t.dtype,
                }
                for t in b.transfers
            ],
            "warnings": [{"code": w.code, "text": w.text} for w in self.warnings],
            "runs_on": list(self.runs_on),
            **({"first_releases": dict(self.first_releases)} if self.first_releases else {}),
            "idle_devices": self.n_idle,
            "run": self.run.to_json() if self.run else None,
        }

    def figures_json(self) -> dict[str, Any]:
        """Return the first part of `to_json`: layout, rates and the step time by term."""
        b = self.breakdown
        return {
            "rank": self.rank,
            "plan_id": self.plan_id,
            "pool": self.pool,
            "precision": self.precision,
            "layout": layout_to_json(self.layout) | dict(self.numerics),
            "step_time_s": self.step_time_s,
            "step_time_p10_s": self.step_time_p10_s,
            "step_time_p90_s": self.step_time_p90_s,
            "interval_regime": self.interval_regime,
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_s_per_device": self.tokens_per_s_per_device,
            "mfu": self.mfu,
            "mfu_bf16": self.mfu_bf16,
            "training_s": self.training_s,
            "tie": self.tie,
            "group": self.group,
            **({"n_variants": self.n_variants} if self.n_variants > 1 else {}),
            "closed_form_step_time_s": b.closed_form_step_s,
            "time": dict(b.time_s),
        }

    def _memory_json(self) -> dict[str, Any]:
        return {
            "peak_bytes": round(self.breakdown.peak_bytes),
            "peak_stage": self.breakdown.peak_stage,
            "usable_bytes": round(self.usable_bytes),
        }

    def step_figure(self) -> Any:
        """Return where the step goes as a Plotly figure, seconds."""
        return import_module(RENDERER).step_figure(self)

    def memory_figure(self) -> Any:
        """Return the memory of the fullest device as a Plotly figure, GiB."""
        return import_module(RENDERER).memory_figure(self)

    def row_json(self) -> dict[str, Any]:
        """Return the plan as one row: the layout, the figures and those of the run side by side.

        Without stages and traffic, which `to_json` has; names as there.
        """
        run = self.run.to_json() if self.run else {}
        idle = {"idle_devices": self.n_idle, "runs_on": list(self.runs_on)}
        figures = self.figures_json()
        return {**figures["layout"], **figures, **idle, **self._memory_json(), **run}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Plan":
        """Return the plan that `to_json` wrote, with the figures that it holds.

        What only pricing knows is not in it: `breakdown.rows` is None, `critical_stage` -1 and
        `too_large_for` empty. `planner.solver.answer.result_store.plan_of_result` prices a plan
        again.
        """
        memory, layout = data["memory"], layout_from_json(data["layout"])
        transfers = tuple(
            PlanTransfer(
                **{name: x for name, x in t.items() if name != "bytes"}, sent_bytes=t["bytes"]
            )
            for t in data["comm"]
        )
        breakdown = Breakdown(
            layout=layout,
            step_s=data["step_time_s"],
            closed_form_step_s=data["closed_form_step_time_s"],
            time_s=dict(data["time"]),
            stages=tuple(dict(stage) for stage in memory["stages"]),
            peak_bytes=memory["peak_bytes"],
            peak_stage=memory["peak_stage"],
            transfers=transfers,
            critical_stage=-1,
            n_micro=layout.n_micro,
            rows=cast(Rows, None),
        )
        same = (
            "rank",
            "plan_id",
            "pool",
            "precision",
            "step_time_s",
            "step_time_p10_s",
            "step_time_p90_s",
            "interval_regime",
            "tokens_per_s",
            "tokens_per_s_per_device",
            "mfu",
            "tie",
            "training_s",
            "group",
        )
        return cls(
            **{name: data[name] for name in same},
            layout=layout,
            breakdown=breakdown,
            usable_bytes=memory["usable_bytes"],
            warnings=tuple(PlanWarning(w["code"], w["text"]) for w in data["warnings"]),
            runs_on=tuple(data["runs_on"]),
            first_releases=dict(data.get("first_releases", {})),
            n_idle=data["idle_devices"],
            mfu_bf16=data.get("mfu_bf16"),
            numerics=tuple((a, data["layout"][a]) for a in NUMERICS if a in data["layout"]),
            n_variants=data.get("n_variants", 1),
            run=_run_from_json(data["run"]) if data["run"] else None,
        )


def _run_from_json(data: Mapping[str, Any]) -> RunFigures:
    """Return what `RunFigures.to_json` wrote."""
    names = (
        "expected_s",
        "power_w",
        "energy_j_per_token",
        "energy_j",
        "usd_per_million_tokens",
        "cost_usd",
    )
    same = ("mtbf_s", "checkpoint_bytes", "checkpoint_s", "restart_s", "goodput_frac")
    share = Goodput(**{x: data[x] for x in same}, interval_s=data["checkpoint_interval_s"])
    return RunFigures(goodput=share, **{name: data.get(name) for name in names})


@dataclass(frozen=True, slots=True)
class Rejection:
    """How many candidates a rule excluded first."""

    code: str
    n: int
    of: str
    """`shapes` (combinations of the coupled axes) or `plans`."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How the space came down to the answer."""

    candidate_shapes: int
    shapes: int
    space: int
    """Legal plans."""
    pruned: int
    """Legal plans that were looked at and do not fit into memory."""
    fit: int
    """Legal plans that were looked at and fit."""
    priced: int
    """Plans whose step time was computed."""
    excluded: int
    """Legal plans that a lower bound on their step time keeps from being among the best."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What is proven about the fastest plan.

    Every legal plan does not fit, or was simulated, or has a lower bound on its step time above
    `fastest_s`: its own (from the times of its stages) or that of its shape and micro-batch,
    which is above `bound_s` for every plan that was left out.
    """

    fastest_s: float
    """Step time of the fastest plan. The first plan is within the tie limit of it, or within
    `MARGIN_COST_FRAC` where faster plans fill the memory."""
    simulated: int
    """Plans whose pipeline was simulated: the best by closed form, and all whose lower bound is
    below `fastest_s`."""
    bound_s: float | None
    """What every plan takes at least that was left out; None where none was."""
    proven: bool
    """Whether all of this holds; not where the search was stopped."""
    uneven_shapes: int = 0
    """Shapes whose layers were split unevenly besides: such plans are not among those counted."""
    uneven_proven: int = 0
    """Those of them of which no split has a shorter closed form than the best that was found."""
    uneven_gap_frac: float = 0.0
    """By how much one of the others might be shorter at most, as a share."""
    only_uneven: bool = False
    """Whether no plan of those counted fits, so that all plans are of shapes with an uneven split:
    then none of them is `proven` to be the fastest."""

    def to_json(self) -> dict[str, Any]:
        """Return the certificate with the field names of the result schema."""
        return {
            "proven": self.proven,
            "fastest_s": self.fastest_s,
            "simulated": self.simulated,
            "bound_s": self.bound_s,
            "uneven": {
                "shapes": self.uneven_shapes,
                "proven": self.uneven_proven,
                "gap_frac": self.uneven_gap_frac,
                "only": self.only_uneven,
            },
        }


@dataclass(frozen=True, slots=True)
class DeviceCounts:
    """What became of the numbers of devices that plans on one pool in one recipe might use."""

    pool: str
    precision: str
    n_given: int
    """Devices of the pool."""
    searched: tuple[int, ...]
    """The largest first; smaller ones only as far as their bound allowed."""
    n_excluded: int
    """Numbers whose lower bound shows that they cannot be better."""
    n_without_layout: int
    n_left: int
    """Numbers not looked at: stopped, or too many without any plan."""


@dataclass(frozen=True, slots=True)
class Miss:
    """A plan beside its memory: the one that comes closest to fitting when none does."""

    layout: Layout
    peak_bytes: float
    usable_bytes: float

    def to_json(self) -> dict[str, Any]:
        """Return it with the field names of the result schema."""
        return {
            "layout": layout_to_json(self.layout),
            "peak_bytes": round(self.peak_bytes),
            "usable_bytes": round(self.usable_bytes),
        }


@dataclass(frozen=True, slots=True)
class MarginUse:
    """Whether the first plan keeps the memory margin, and which plans it was put before for it."""

    frac: float
    """Share of the usable memory that the first plan is to leave free."""
    is_kept: bool
    """Not kept where no plan that does is as fast but for a few per cent."""
    n_passed_over: int = 0
    """Listed plans of a better value that leave less free, and stand behind."""
    fastest: Miss | None = None
    """The best of them."""
    fastest_step_s: float | None = None
    """Its step time."""

    def to_json(self) -> dict[str, Any]:
        """Return it with the field names of the result schema."""
        return {
            "frac": self.frac,
            "kept": self.is_kept,
            "passed_over": self.n_passed_over,
            "fastest": self.fastest and self.fastest.to_json(),
            "fastest_step_time_s": self.fastest_step_s,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "MarginUse":
        """Return what `to_json` wrote."""
        miss = data["fastest"]
        return cls(
            data["frac"],
            data["kept"],
            data["passed_over"],
            miss and Miss(**{**miss, "layout": layout_from_json(miss["layout"])}),
            data["fastest_step_time_s"],
        )


@dataclass(frozen=True, slots=True)
class UnevenTried:
    """The shapes that come closest, split unevenly in vain where nothing fits."""

    shapes: int
    hopeless: int
    """Those of them of which it is proven that no split of the layers fits."""


@dataclass(frozen=True, slots=True)
class ConflictPart:
    """One condition of a conflict: a rule, or what the user pinned or limited (PIN001)."""

    code: str
    text: str
    """The condition with the numbers of the job."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Conditions that exclude every plan together; without any one of them they do not."""

    parts: tuple[ConflictPart, ...]


@dataclass(frozen=True, slots=True)
class Relaxation:
    """A change after which a plan exists."""

    change: str
    kind: str
    """What changes: a pin's `value`, `restriction`, `software`, `numerics`, `job`, `hardware`."""
    factor: float
    """By how much: the larger over the smaller of old and new value, 1 where there is no ratio."""
    command: str
    layout: Layout | None
    step_time_s: float | None


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another value of the job's numbers, which changes what is computed, in the first plan."""

    axis: str
    value: str
    step_time_s: float
    peak_bytes: float
    pin: str
    """What `--pin` takes."""
    fits: bool = True
    """Whether the first plan fits with it; else another layout has to."""
    changes: str = "numerics"
    """`numerics`: what is computed; `schedule`: an axis of the layout that is off by default."""


@dataclass(frozen=True, slots=True)
class Result(LibraryAnswer):
    """The answer to one question. Without plans, the rejections and relaxations say why."""

    result_id: str
    inputs: Mapping[str, Any]
    calibration: Mapping[str, Any]
    counts: Counts
    rejected: tuple[Rejection, ...]
    plans: tuple[Plan, ...]
    conflicts: tuple[Conflict, ...] = ()
    relaxations: tuple[Relaxation, ...] = ()
    closest: Miss | None = None
    uneven_tried: UnevenTried | None = None
    """When nothing fits and uneven splits were tried."""
    complete: bool = True
    stopped: str = ""
    """`interrupted` or `time limit` when the search did not finish."""
    why_first: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    """What other numbers would bring to the first plan: never searched unless named."""
    certificate: Certificate | None = None
    notes: tuple[str, ...] = field(default=())
    devices: tuple[DeviceCounts, ...] = ()
    """By pool and recipe: the numbers of devices that were searched and excluded."""
    gap: float | None = None
    """Where the search was stopped: by how much, as a share, what was not searched may be better
    than the first plan, in the value that was asked for."""
    together: Together | None = None
    """One job over several pools, where that was asked for (`--pools together`)."""
    margin: MarginUse | None = None
    """None where no plan is first for its time: of a front, by memory, without plans."""

    @property
    def best(self) -> Plan:
        """The first plan; `InfeasibleError` when there is none."""
        if not self.plans:
            raise InfeasibleError("nothing fits, so there is no best plan", "see .relaxations")
        return self.plans[0]

    @property
    def exit_code(self) -> int:
        """What the command line returns: 0, 3 nothing fits, 4 time limit, 130 interrupted."""
        if self.stopped == "interrupted":
            return 130
        if self.stopped:
            return 4
        joined = self.together is not None and self.together.plans
        return 0 if self.plans or joined else 3

    def to_json(self) -> dict[str, Any]:
        """Return the result with the field names of the result schema."""
        c = self.counts
        return {
            "schema_version": SCHEMA_VERSION,
            "result_id": self.result_id,
            "inputs": dict(self.inputs),
            "calibration": dict(self.calibration),
            "complete": self.complete,
            "stopped": self.stopped,
            "gap": self.gap,
            "devices": [
                {
                    "pool": d.pool,
                    "precision": d.precision,
                    "given": d.n_given,
                    "searched": list(d.searched),
                    "excluded_by_bound": d.n_excluded,
                    "without_layout": d.n_without_layout,
                    "not_searched": d.n_left,
                }
                for d in self.devices
            ],
            "counts": {
                "candidate_shapes": c.candidate_shapes,
                "shapes": c.shapes,
                "space": c.space,
                "pruned": c.pruned,
                "fit": c.fit,
                "priced": c.priced,
                "excluded": c.excluded,
            },
            "certificate": self.certificate and self.certificate.to_json(),
            "rejected": [{"code": r.code, "n": r.n, "of": r.of} for r in self.rejected],
            "why_first": list(self.why_first),
            "alternatives": [
                {
                    "axis": x.axis,
                    "value": x.value,
                    "step_time_s": x.step_time_s,
                    "peak_bytes": round(x.peak_bytes),
                    "pin": x.pin,
                    "fits": x.fits,
                    "changes": x.changes,
                }
                for x in self.alternatives
            ],
            "plans": [plan.to_json() for plan in self.plans],
            "memory_margin": self.margin and self.margin.to_json(),
            "closest": self.closest and self.closest.to_json(),
            "uneven_tried": self.uneven_tried
            and {"shapes": self.uneven_tried.shapes, "hopeless": self.uneven_tried.hopeless},
            "conflicts": [
                [{"code": part.code, "text": part.text} for part in conflict.parts]
                for conflict in self.conflicts
            ],
            "relaxations": [
                {
                    "change": r.change,
                    "kind": r.kind,
                    "factor": r.factor,
                    "command": r.command,
                    "layout": layout_to_json(r.layout) if r.layout else None,
                    "step_time_s": r.step_time_s,
                }
                for r in self.relaxations
            ],
            "notes": list(self.notes),
            **({"together": self.together.to_json()} if self.together else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Result":
        """Return the result that `to_json` wrote: that of another process, or of a service.

        Its plans are those of `Plan.from_json`.
        """
        proven, miss, tried = data["certificate"], data["closest"], data["uneven_tried"]
        margin = data.get("memory_margin")
        return cls(
            **{
                x: data[x]
                for x in ("result_id", "inputs", "calibration", "complete", "stopped", "gap")
            },
            counts=Counts(**data["counts"]),
            rejected=tuple(Rejection(**x) for x in data["rejected"]),
            plans=tuple(Plan.from_json(x) for x in data["plans"]),
            conflicts=tuple(
                Conflict(tuple(ConflictPart(**part) for part in parts))
                for parts in data["conflicts"]
            ),
            alternatives=tuple(Alternative(**x) for x in data.get("alternatives", ())),
            relaxations=tuple(
                Relaxation(**{**x, "layout": x["layout"] and layout_from_json(x["layout"])})
                for x in data["relaxations"]
            ),
            closest=miss and Miss(**{**miss, "layout": layout_from_json(miss["layout"])}),
            uneven_tried=tried and UnevenTried(**tried),
            why_first=tuple(data["why_first"]),
            certificate=proven
            and Certificate(
                **{x: proven[x] for x in ("proven", "fastest_s", "simulated", "bound_s")},
                **{f"uneven_{x}": proven["uneven"][x] for x in ("shapes", "proven", "gap_frac")},
                only_uneven=proven["uneven"]["only"],
            ),
            notes=tuple(data["notes"]),
            margin=MarginUse.from_json(margin) if margin else None,
            together=Together.from_json(data["together"]) if data.get("together") else None,
            devices=tuple(
                DeviceCounts(
                    d["pool"],
                    d["precision"],
                    d["given"],
                    tuple(d["searched"]),
                    d["excluded_by_bound"],
                    d["without_layout"],
                    d["not_searched"],
                )
                for d in data["devices"]
            ),
        )

    def dumps(self) -> str:
        """Return the JSON text: the same bytes for the same inputs."""
        return indented(self.to_json()) + "\n"

    def to_pandas(self) -> Any:
        """Return the plans as a pandas DataFrame, a row each in base units, by rank."""
        return import_module(RENDERER).data_frame(self)

    def plans_figure(self) -> Any:
        """Return the plans as points of a Plotly figure: step time over memory."""
        return import_module(RENDERER).plans_figure(self)
