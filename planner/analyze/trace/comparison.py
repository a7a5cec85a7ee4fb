"""A measured step beside its plan, term by term: what `planner compare` computes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from costmodels.axes import RECOMPUTE_MODULES
from costmodels.breakdown import Breakdown, break_down
from costmodels.layers.params import padded_vocab
from costmodels.problem import Problem
from costmodels.traffic import PlanTransfer
from planner.analyze.kineto.communicators import AMBIGUOUS, OTHER, plan_groups
from planner.analyze.kineto.kernels import (
    COPIES,
    ELEMENTWISE,
    EXPERTS,
    GEMM,
    HEAD,
    ROUTING,
    UNKNOWN,
)
from planner.analyze.kineto.measurement import (
    HEAD_GEMM,
    HOST,
    IDLE,
    MeasuredTrace,
    MeasuredTraffic,
    measure_trace,
    parse_steps,
    size_conflicts,
)
from planner.analyze.kineto.reader import events_of, header_of, ranks_of_job, read_kineto
from planner.analyze.trace.findings import findings
from planner.analyze.trace.summary import is_drawn, measure_drawn
from planner.documents import LibraryAnswer
from planner.errors import UsageError
from planner.frameworks.launchers.placement import dense_grid
from planner.solver.answer.result import Plan

AXES = ("tp", "cp", "ep", "dp")
ROWS: dict[str, str] = {
    GEMM: "products of the linear layers",
    "attention": "attention core",
    ELEMENTWISE: "norms, activations, embedding, copies",
    EXPERTS: "routed experts",
    HEAD: "output head and loss",
    "compute": "blocks of the pipeline without their waits",
    "optimizer": "optimizer step",
    "tp": "exposed tensor-parallel traffic",
    "cp": "exposed exchange of keys and values",
    "ep": "exposed exchange of tokens",
    "dp": "exposed data-parallel and ZeRO traffic",
    "pipeline": "exposed messages, idle pipeline",
    "copies": "exposed copies from and to the host",
    HOST: "nothing queued: launches, data, logging",
    "fixed": "outside the model",
    IDLE: "gaps with work queued",
    "other": "exposed communication of no axis",
    "ambiguous": "exposed communication of unclear axis",
    UNKNOWN: "kernels of unknown kind",
}
"""Rows of the comparison in the order in which they are shown, and what they hold. Exposed is
what no compute hides."""
COMPUTE_ROWS = (GEMM, "attention", ELEMENTWISE, EXPERTS, HEAD)
_BUSY = (*COMPUTE_ROWS, "optimizer", UNKNOWN)
"""Rows in which the device computes."""
TERMS_OF: dict[str, tuple[str, ...]] = {
    GEMM: ("linear",),
    "attention": ("attention",),
    ELEMENTWISE: ("elementwise", "embedding"),
    EXPERTS: ("experts",),
    HEAD: ("head",),
    "optimizer": ("optimizer",),
    **{axis: (axis,) for axis in AXES},
    "pipeline": ("pp", "bubble"),
    "copies": ("offload",),
    HOST: ("host", "fixed"),
}
"""Terms of the step time in each row. `recompute` and `overlap` are spread over the rows of
compute, `straggler` stands where ranks wait for each other (`predicted_rows`)."""
DRAWN_TERMS_OF: dict[str, tuple[str, ...]] = {
    "compute": (
        "linear",
        "attention",
        "elementwise",
        "experts",
        "head",
        "embedding",
        "recompute",
        "host",
        "overlap",
        "offload",
    ),
    "optimizer": ("optimizer",),
    **{axis: (axis,) for axis in AXES},
    "pipeline": ("pp", "bubble", "straggler"),
    "fixed": ("fixed",),
}
"""The same for a file of `planner trace`, which draws blocks and not kernels."""


@dataclass(frozen=True, slots=True)
class TermRow:
    """One part of the step. Seconds."""

    name: str
    """One of `ROWS`; several joined by `+` where the trace cannot tell them apart."""
    predicted_s: float
    measured_s: float
    """Mean over steps and ranks."""
    slowest_s: float
    """Of the rank that computes longest; the same with one trace."""

    @property
    def difference_s(self) -> float:
        """What the trace has more."""
        return self.measured_s - self.predicted_s

    @property
    def factor(self) -> float | None:
        """How many times the prediction; None where nothing is predicted."""
        return self.measured_s / self.predicted_s if self.predicted_s > 0.0 else None

    def to_json(self) -> dict[str, Any]:
        """Return the row in seconds."""
        return {
            "name": self.name,
            "meaning": meaning_of(self.name),
            "predicted_s": self.predicted_s,
            "measured_s": self.measured_s,
            "slowest_rank_s": self.slowest_s,
            "difference_s": self.difference_s,
            "factor": self.factor,
        }


def meaning_of(name: str) -> str:
    """Return what a row holds; of joined rows, what each of them holds."""
    return "; ".join(ROWS[part] for part in name.split("+"))


@dataclass(frozen=True, slots=True)
class TrafficRow:
    """One kind of collective on one axis, per step of one rank; 0 where a side has none."""

    axis: str
    collective: str
    predicted: tuple[float, float, float]
    """Calls, mean message in bytes, time of all calls in seconds."""
    measured: tuple[float, float, float]
    measured_bytes_per_s: float
    """What a rank sends each second of the calls whose size is known; 0 where none is."""
    predicted_bytes_per_s: float
    least_each_s: float
    """Time of a call on the rank where it is shortest, the one that others wait for: the nearest
    to the transfer alone. With one trace that of the rank."""

    def to_json(self) -> dict[str, Any]:
        """Return the row in bytes and seconds."""

        def side(values: tuple[float, float, float], rate: float) -> dict[str, float]:
            calls, message, seconds = values
            return {
                "calls": calls,
                "message_bytes": message,
                "time_s": seconds,
                "sent_bytes_per_s": rate,
            }

        return {
            "axis": self.axis,
            "collective": self.collective,
            "predicted": side(self.predicted, self.predicted_bytes_per_s),
            "measured": side(self.measured, self.measured_bytes_per_s),
            "least_each_s": self.least_each_s,
        }


@dataclass(frozen=True, slots=True)
class TraceComparison(LibraryAnswer):
    """Traces of one or more ranks beside one plan."""

    plan: Plan
    problem: Problem
    measured: tuple[MeasuredTrace, ...]
    breakdowns: tuple[Breakdown, ...]
    """Of the pipeline rank of each trace."""
    slowest: int
    """Index of the trace whose rank computes longest."""
    rows: tuple[TermRow, ...]
    traffic: tuple[TrafficRow, ...]
    drawn: bool
    """Whether the trace is one of `planner trace`."""
    warnings: tuple[str, ...]
    """What makes the comparison doubtful."""
    notes: tuple[str, ...]

    @property
    def predicted_step_s(self) -> float:
        """The plan's step."""
        return sum(row.predicted_s for row in self.rows)

    @property
    def measured_step_s(self) -> float:
        """Mean over steps and ranks."""
        return sum(x.step_s for x in self.measured) / len(self.measured)

    def compute_s(self, index: int) -> tuple[float, float]:
        """Return what the rank of one trace computes, as predicted and as measured, seconds."""
        predicted = predicted_rows(self.breakdowns[index])
        measured = measured_rows(self.measured[index], self.plan.layout.pp)
        return (
            sum(predicted.get(row, 0.0) for row in _BUSY),
            sum(measured[row] for row in _BUSY),
        )

    @property
    def worst(self) -> TermRow | None:
        """The row that is off most in seconds; None where all are right to a microsecond."""
        row = max(self.rows, key=lambda r: abs(r.difference_s))
        return row if abs(row.difference_s) > 1e-6 else None

    @property
    def unmatched_frac(self) -> float:
        """Share of the measured step in kernels and communicators that no term has."""
        names = (UNKNOWN, OTHER, AMBIGUOUS)
        lost = sum(row.measured_s for row in self.rows if row.name in names)
        return lost / self.measured_step_s

    @property
    def unknown_s(self) -> dict[str, float]:
        """Kernels of unknown kind, mean seconds per step, the longest first."""
        out: dict[str, float] = {}
        for one in self.measured:
            for name, seconds in one.unknown_s.items():
                out[name] = out.get(name, 0.0) + seconds / len(self.measured)
        return dict(sorted(out.items(), key=lambda x: (-x[1], x[0])))

    def to_json(self) -> dict[str, Any]:
        """Return the comparison in seconds, bytes and fractions."""
        worst, steps = self.worst, [x.step_times_s for x in self.measured]
        return {
            "plan_id": self.plan.plan_id,
            "predicted_step_s": self.predicted_step_s,
            "measured_step_s": self.measured_step_s,
            "traces": [
                {
                    "file": x.path,
                    "rank": x.rank,
                    "pipeline_rank": breakdown.critical_stage,
                    "steps": list(x.steps),
                    "step_times_s": list(times),
                    "parts_s": dict(x.parts_s),
                }
                for x, breakdown, times in zip(self.measured, self.breakdowns, steps, strict=True)
            ],
            "terms": [row.to_json() for row in self.rows],
            "traffic": [row.to_json() for row in self.traffic],
            "most_off": worst.name if worst else None,
            "findings": findings(self),
            "unmatched_frac": self.unmatched_frac,
            "unknown_kernels_s": self.unknown_s,
            "communicators": [
                {"group": text, "axis": a.axis, "by": a.by, "candidates": list(a.candidates)}
                for text, a in communicators(self.measured)
            ],
            "warnings": list(self.warnings),
            "notes": list(self.notes),
        }

    def dumps(self) -> str:
        """Return the JSON text: the same bytes for the same files."""
        return json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"


def communicators(measured: Sequence[MeasuredTrace]) -> list[tuple[str, Any]]:
    """Return the groups of all traces in words with their axes, each once."""
    return list(dict.fromkeys(pair for one in measured for pair in one.communicators))


def trace_files(names: Sequence[str]) -> list[str]:
    """Return the files of TRACE arguments; of a folder all traces in it, by name."""
    out: list[str] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            result = sorted(
                str(p) for p in path.iterdir() if p.name.endswith((".json", ".json.gz"))
            )
            if not result:
                raise UsageError(f"{name} holds no .json or .json.gz", "name the trace files")
            out += result
        else:
            out.append(name)
    return out


def compare_traces(
    names: Sequence[str], problem: Problem, plan: Plan, steps: str = "", rank: int | None = None
) -> TraceComparison:
    """Return traces (files or folders, one a rank) beside a plan.

    `steps` is `A-B`, numbers of `ProfilerStep`; without it the first step is left out. `rank` is
    the global rank of a trace that does not say its own. Raises `UsageError` for files that are
    no trace, hold no kernels or no steps, or are of another job.
    """
    files, wanted = trace_files(names), parse_steps(steps)
    headers = [header_of(path) for path in files]
    drawn = [is_drawn(header) for header in headers]
    if any(drawn):
        if len(files) > 1:
            raise UsageError("a file of planner trace holds all ranks already", "name it alone")
        if wanted:
            raise UsageError("--steps: a file of planner trace holds one step", "leave it out")
        return _compare_drawn(files[0], headers[0], problem, plan, rank)
    if rank is not None and len(files) > 1:
        raise UsageError("--rank says the rank of one trace", "leave it out, or name one file")
    measured, breakdowns, warnings = [], [], dict[str, None]()
    for path, header in zip(files, headers, strict=True):
        one, breakdown, doubts = _measure_kineto(path, header, problem, plan, wanted, rank)
        measured.append(one)
        breakdowns.append(breakdown)
        warnings.update(dict.fromkeys(doubts))
    _check_ranks(measured)
    return _compared(plan, problem, measured, breakdowns, tuple(warnings))


def _pipeline_rank(plan: Plan, rank: int | None) -> int | None:
    """Return the pipeline rank of a global rank."""
    if rank is None:
        return None
    n = plan.layout.n_devices
    if not 0 <= rank < n:
        raise UsageError(
            f"rank {rank} is not one of the {n} ranks of plan {plan.plan_id}",
            f"--rank 0 to {n - 1}, or the plan that ran",
        )
    return int(dense_grid(plan.layout).coordinate("pp")[rank])


def _compare_drawn(
    path: str, header: Mapping[str, Any], problem: Problem, plan: Plan, rank: int | None
) -> TraceComparison:
    breakdown = break_down(problem, plan.layout, _pipeline_rank(plan, rank))
    measured = measure_drawn(path, header, events_of(path), breakdown.critical_stage)
    warnings = []
    drawn_plan = header["otherData"].get("plan")
    if drawn_plan != plan.plan_id:
        warnings.append(f"the trace draws plan {drawn_plan}, not {plan.plan_id}")
    rows = [
        TermRow(name, sum(breakdown.time_s[term] for term in terms), part, part)
        for name, terms in _ordered(DRAWN_TERMS_OF)
        for part in (measured.parts_s[name],)
    ]
    return TraceComparison(
        plan,
        problem,
        (measured,),
        (breakdown,),
        0,
        tuple(r for r in rows if _shows(r)),
        (),
        True,
        tuple(warnings),
        tuple(str(x) for x in header["otherData"].get("notes", [])),
    )


def _ordered(terms_of: Mapping[str, tuple[str, ...]]) -> list[tuple[str, tuple[str, ...]]]:
    return [(name, terms_of[name]) for name in ROWS if name in terms_of]


def _shows(row: TermRow) -> bool:
    return row.predicted_s > 0.0 or max(row.measured_s, row.slowest_s) > 0.0


def head_sizes(problem: Problem, plan: Plan) -> frozenset[int]:
    """Return extents that only operands of the output head have.

    The vocabulary, whole or split over tp, padded or not; empty where another extent of the
    layer is the same number.
    """
    shape, x = problem.shape, plan.layout
    padded = int(padded_vocab(shape, np.array([x.tp], dtype=np.int32)).item())
    sizes = {shape.vocab, padded, padded // x.tp}
    sizes |= {shape.vocab // x.tp} if shape.vocab % x.tp == 0 else set()
    tokens = x.mbs * problem.job.seq_len // x.cp
    widths = (
        shape.hidden,
        shape.ffn,
        2 * shape.ffn,
        shape.expert_ffn,
        shape.shared_ffn,
        shape.q_width,
        tokens,
        problem.job.seq_len,
    )
    others = {n // d for n in widths for d in (1, x.tp)}
    return frozenset(sizes - others)


def _measure_kineto(
    path: str,
    header: Mapping[str, Any],
    problem: Problem,
    plan: Plan,
    wanted: tuple[int, int] | None,
    rank: int | None,
) -> tuple[MeasuredTrace, Breakdown, list[str]]:
    """Return one trace measured, the plan of its pipeline rank, and what is doubtful."""
    layout, n_ranks = plan.layout, ranks_of_job(header)
    if n_ranks is not None and n_ranks != layout.n_devices:
        raise UsageError(
            f"{path} is of a job of {n_ranks:,} ranks, plan {plan.plan_id} of"
            f" {layout.n_devices:,}",
            f"name the plan that ran: planner evaluate ... --pin devices={n_ranks}",
        )
    trace = read_kineto(path, header, head_sizes(problem, plan))
    doubts = []
    if rank is not None and trace.rank is not None and rank != trace.rank:
        raise UsageError(f"--rank {rank}: {path} is of rank {trace.rank}", "leave --rank out")
    own_rank = rank if rank is not None else trace.rank
    if own_rank is None and layout.pp > 1:
        doubts.append(
            f"{path} does not say its rank: it is read as one of the slowest pipeline"
            " rank (--rank R names it)"
        )
    if n_ranks is None:
        doubts.append(f"{path} does not say how many ranks ran: is it of this plan?")
    breakdown = break_down(problem, layout, _pipeline_rank(plan, own_rank))
    groups = plan_groups(layout, problem.shape, breakdown.transfers, own_rank)
    doubts += [f"another layout: {text}" for text in size_conflicts(trace.rows, groups)]
    one = measure_trace(trace, groups, with_experts=problem.shape.n_experts > 0, wanted=wanted)
    return replace(one, rank=own_rank), breakdown, doubts


def _check_ranks(measured: Sequence[MeasuredTrace]) -> None:
    ranks = [one.rank for one in measured if one.rank is not None]
    twice = sorted({rank for rank in ranks if ranks.count(rank) > 1})
    if twice:
        raise UsageError(f"two traces are of rank {twice[0]}", "name one trace a rank")
    if len(measured) > 1 and len({one.steps for one in measured}) > 1:
        raise UsageError("the traces hold different steps", "choose common ones with --steps A-B")


def predicted_rows(breakdown: Breakdown) -> dict[str, float]:
    """Return the prediction by row of the comparison, seconds; the sum is the step.

    `recompute` goes to the operators that run again: fully recomputed layers in proportion to
    their forward, modules as a whole to what most of them is (`mlp` to products, `layernorm` to
    elementwise). `overlap`, compute slowed by traffic, is spread over compute in proportion:
    a trace holds it in the length of the kernels. `straggler` stands with the pipeline, without
    one with dp, without either with idle.
    """
    out = {row: sum(breakdown.time_s[t] for t in terms) for row, terms in _ordered(TERMS_OF)}
    weights = _recompute_weights(breakdown)
    total = sum(weights.values())
    for row, weight in weights.items():
        out[row] += breakdown.time_s["recompute"] * weight / total if total else 0.0
    if not total:
        out[GEMM] += breakdown.time_s["recompute"]
    computed = sum(out[row] for row in COMPUTE_ROWS)
    for row in COMPUTE_ROWS:
        out[row] *= 1.0 + (breakdown.time_s["overlap"] / computed if computed else 0.0)
    layout = breakdown.layout
    waits = "pipeline" if layout.pp > 1 else "dp" if layout.dp * layout.cp > 1 else IDLE
    out[waits] = out.get(waits, 0.0) + breakdown.time_s["straggler"]
    return out


MODULE_ROWS = {
    "core_attn": "attention",
    "moe_act": ELEMENTWISE,
    "layernorm": ELEMENTWISE,
    "mla_up_proj": GEMM,
    "mlp": GEMM,
    "shared_experts": GEMM,
    "moe": EXPERTS,
    "gdn_norm_out": ELEMENTWISE,
}
"""Where a recomputed module counts."""


def _recompute_weights(breakdown: Breakdown) -> dict[str, float]:
    """Return what runs again by row, in seconds of a micro-batch before what it waits for."""
    layers, layout = breakdown.rows.layers, breakdown.layout
    chunks = layout.chunks_of(breakdown.critical_stage)
    full = sum(min(n, layout.recompute_layers) for n in chunks)
    parts = {GEMM: layers.linear, "attention": layers.attention, ELEMENTWISE: layers.elementwise}
    out = {row: full * term.forward_s.item() for row, term in parts.items()}
    if layers.experts and full:
        out[EXPERTS] = full * layers.experts.routed.forward_s.item()
    modules = [layers.modules, *([layers.experts.modules] if layers.experts else [])]
    for name in layout.recompute_modules:
        index, row = RECOMPUTE_MODULES.index(name), MODULE_ROWS[name]
        forward_s = max(terms.forward_s[index].item() for terms in modules)
        out[row] = out.get(row, 0.0) + sum(chunks) * forward_s
    return out


def measured_rows(one: MeasuredTrace, layout_pp: int) -> dict[str, float]:
    """Return what a trace measured by row of the comparison, seconds; the sum is the step."""
    parts = dict(one.parts_s)
    parts["pipeline"] = parts.pop("pp", 0.0)
    if layout_pp > 1:
        parts["pipeline"] += parts.pop(IDLE, 0.0)
    parts[HEAD] = parts.get(HEAD, 0.0) + parts.pop(HEAD_GEMM, 0.0)
    parts[EXPERTS] = parts.get(EXPERTS, 0.0) + parts.pop(ROUTING, 0.0)
    parts["copies"] = parts.pop(COPIES, 0.0)
    return {row: parts.get(row, 0.0) for row in ROWS}


def _compared(
    plan: Plan,
    problem: Problem,
    measured: Sequence[MeasuredTrace],
    breakdowns: Sequence[Breakdown],
    warnings: tuple[str, ...],
) -> TraceComparison:
    pp, n = plan.layout.pp, len(measured)
    predicted = [predicted_rows(breakdown) for breakdown in breakdowns]
    sides = [measured_rows(one, pp) for one in measured]
    joined, notes = _joined(predicted, measured)
    compute = [sum(side[row] for row in _BUSY) for side in sides]
    slowest = max(range(n), key=lambda i: (compute[i], -i))
    rows = []
    for name in joined:
        parts = name.split("+")
        rows.append(
            TermRow(
                name,
                sum(p.get(part, 0.0) for p in predicted for part in parts) / n,
                sum(side[part] for side in sides for part in parts) / n,
                sum(sides[slowest][part] for part in parts),
            )
        )
    notes += [note for one in measured for note in one.notes]
    return TraceComparison(
        plan=plan,
        problem=problem,
        measured=tuple(measured),
        breakdowns=tuple(breakdowns),
        slowest=slowest,
        rows=tuple(row for row in rows if _shows(row)),
        traffic=_traffic_rows(measured, breakdowns),
        drawn=False,
        warnings=warnings,
        notes=tuple(dict.fromkeys(notes)),
    )


def _joined(
    predicted: Sequence[Mapping[str, float]], measured: Sequence[MeasuredTrace]
) -> tuple[list[str], list[str]]:
    """Return the names of the rows, those joined that the traces cannot tell apart, and why."""
    names, notes = [row for row in ROWS if row not in ("compute", "fixed")], []
    with_gemm = [GEMM]
    for row, told_by, why in (
        (
            EXPERTS,
            (EXPERTS,),
            "products of the experts look like those of other layers: no kernel is a grouped"
            " product, no operator says so",
        ),
        (
            HEAD,
            (HEAD_GEMM,),
            "products of the head look like those of the layers: no operands with the size of"
            " the vocabulary (record_shapes=True)",
        ),
    ):
        # Ranks without this part of the model show none either.
        is_measured = all(
            p.get(row, 0.0) <= 0.0 or any(one.parts_s.get(kind, 0.0) > 0.0 for kind in told_by)
            for p, one in zip(predicted, measured, strict=True)
        )
        if not is_measured:
            names.remove(row)
            with_gemm.append(row)
            notes.append(why)
    names[names.index(GEMM)] = "+".join(with_gemm)
    return names, notes


def _traffic_rows(
    measured: Sequence[MeasuredTrace], breakdowns: Sequence[Breakdown]
) -> tuple[TrafficRow, ...]:
    """Return calls, messages and time of each collective on each axis, means over the ranks."""
    n = len(measured)
    planned: dict[tuple[str, str], list[PlanTransfer]] = {}
    seen: dict[tuple[str, str], list[MeasuredTraffic]] = {}
    for breakdown in breakdowns:
        for transfer in breakdown.transfers:
            if transfer.axis != "host":
                planned.setdefault((transfer.axis, transfer.collective), []).append(transfer)
    for one in measured:
        for traffic in one.traffic:
            key = (traffic.axis, traffic.collective)
            if traffic.collective == "send-receive":
                # The plan says what it is, where its axis has one of the two alone.
                likely = [(traffic.axis, c) for c in ("point-to-point", "all-to-all")]
                possible = [k for k in likely if k in planned]
                key = possible[0] if len(possible) == 1 else key
            seen.setdefault(key, []).append(traffic)
    order = {axis: i for i, axis in enumerate(("tp", "cp", "ep", "pp", "dp", OTHER, AMBIGUOUS))}
    out = []
    for key in sorted(planned.keys() | seen.keys(), key=lambda k: (order[k[0]], k[1])):
        want, have = planned.get(key, []), seen.get(key, [])
        calls = sum(x.n_calls for x in want)
        logical = sum(x.n_calls * x.message_bytes for x in want)
        sent, time_s = sum(x.sent_bytes for x in want), sum(x.time_s for x in want)
        frac = sent / logical if logical else 0.0
        sized = sum(x.n_sized for x in have)
        sized_bytes, sized_s = sum(x.sized_bytes for x in have), sum(x.sized_s for x in have)
        out.append(
            TrafficRow(
                *key,
                predicted=(calls / n, logical / calls if calls else 0.0, time_s / n),
                measured=(
                    sum(x.n_calls for x in have) / n,
                    sized_bytes / sized if sized else 0.0,
                    sum(x.time_s for x in have) / n,
                ),
                measured_bytes_per_s=frac * sized_bytes / sized_s if sized_s else 0.0,
                predicted_bytes_per_s=sent / time_s if time_s else 0.0,
                least_each_s=min((x.time_s / x.n_calls for x in have if x.n_calls), default=0.0),
            )
        )
    return tuple(out)
