"""The row of a sweep: its columns with unit and meaning, and how a result becomes one.

Rows are flat and JSON-like: names with dots, base units, None for what is missing. The same table
of columns makes the schema of Parquet files, the documentation and the words of the report.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from costmodels.data.steps import useful_frac
from costmodels.documentation.terms import MEMORY_TERMS, TIME_TERMS
from costmodels.layers.flops import model_flops_per_step
from costmodels.parameters import total_params
from costmodels.plans import Layout
from planner.analyze.bottleneck import PARTS, binding_part, parts_s
from planner.analyze.elasticities import FIGURES, more_memory, sensitivity
from planner.solver.answer.reasons import shown_layout
from planner.solver.answer.result import Plan, Result
from planner.solver.options import SolveOptions
from planner.solver.recipes import with_numerics
from planner.specs.identity import plan_id
from planner.specs.inputs import ClusterInput, ModelInput
from planner.specs.search.axis_values import layout_to_json
from planner.specs.search.objectives import run_figures
from planner.sweeps.joined_columns import (
    best_joined,
    best_joined_facts,
    joined_cluster,
    joined_facts,
    proof_of,
    runner_up_facts,
)
from planner.sweeps.points import Point
from planner.units import GIB
from searches.rules import RULES

Value = float | int | str | bool | None
Row = dict[str, Value]
"""One point: values by column name, in the order of the columns."""

OK, STOPPED, LATE, INFEASIBLE, FAILED = STATUSES = (
    "ok",
    "stopped",
    "late",
    "infeasible",
    "failed",
)
"""`ok`: the best plan. `stopped`: the best found when the time limit of the point ended its
search, if any. `late`: plans fit, and proven that none keeps the deadline or the limit on the
step. `infeasible`: proven that nothing fits. `failed`: no answer."""

FLOAT, INT, TEXT, BOOL = "float", "int", "text", "bool"


@dataclass(frozen=True, slots=True)
class RowColumn:
    """One column of a row."""

    name: str
    kind: str
    """`float`, `int`, `text` or `bool`; None stands in any of them for what is missing."""
    unit: str
    """`s`, `bytes`, `FLOP/s`, ...; empty for counts, shares and text."""
    meaning: str


_HEAD = (
    RowColumn("index", INT, "", "place in the design, from 0, before constraints"),
    RowColumn("point_id", TEXT, "", "content of the point: inputs, options, catalogue, version"),
    RowColumn("status", TEXT, "", "ok, stopped (time limit), late, infeasible, failed"),
    RowColumn("reason", TEXT, "", "why there is no plan, or why the search stopped"),
)
_FACTS = (
    RowColumn("model", TEXT, "", "name of the model"),
    RowColumn("n_params", FLOAT, "", "parameters of the model, all experts"),
    RowColumn("seq_len", INT, "tokens", "sequence length"),
    RowColumn("global_batch", INT, "sequences", "global batch"),
    RowColumn("cluster", TEXT, "", "name of the cluster"),
    RowColumn("pool", TEXT, "", "pool that the best plan uses, else all pools"),
    RowColumn("accelerator", TEXT, "", "its accelerator"),
    RowColumn("n_devices", INT, "", "accelerators given: of that pool, else of all pools"),
    RowColumn("scale_up_domain", INT, "", "devices in one scale-up domain of the pool"),
    RowColumn("assumed", TEXT, "", "catalogue figures in use without a second source"),
    RowColumn("calibration", TEXT, "", "name and hash of the calibration"),
    RowColumn("space", INT, "", "legal plans"),
    RowColumn("fit", INT, "", "of those looked at, how many fit into memory"),
    RowColumn("proven", BOOL, "", "whether the fastest plan is proven to be the fastest"),
    RowColumn(
        "gap",
        FLOAT,
        "",
        "how much better what was not searched may be; of plans over several"
        " pools also what the bound leaves open",
    ),
)
_LAYOUT = (
    RowColumn("best.plan_id", TEXT, "", "id of the best plan"),
    RowColumn("best.layout", TEXT, "", "its layout in a few words"),
    RowColumn("best.devices", INT, "", "devices that it uses"),
    RowColumn("best.precision", TEXT, "", "numeric recipe"),
    RowColumn("best.tp", INT, "", "tensor parallelism"),
    RowColumn("best.pp", INT, "", "pipeline stages"),
    RowColumn("best.dp", INT, "", "data parallelism"),
    RowColumn("best.cp", INT, "", "context parallelism"),
    RowColumn("best.ep", INT, "", "expert parallelism"),
    RowColumn("best.etp", INT, "", "tensor parallelism of experts"),
    RowColumn("best.vpp", INT, "", "virtual stages of a rank"),
    RowColumn("best.zero", INT, "", "ZeRO stage"),
    RowColumn("best.dp_shard", INT, "", "ranks over which ZeRO shards"),
    RowColumn("best.mbs", INT, "sequences", "micro-batch"),
    RowColumn("best.n_micro", INT, "", "micro-batches of a step"),
    RowColumn("best.schedule", TEXT, "", "pipeline schedule"),
    RowColumn("best.sp", BOOL, "", "sequence parallelism"),
    RowColumn("best.recompute", TEXT, "", "none, selective or full"),
    RowColumn("best.recompute_modules", TEXT, "", "modules of selective recomputation"),
    RowColumn("best.recompute_layers", INT, "", "layers of each chunk recomputed in full"),
    RowColumn("best.cp_comm", TEXT, "", "how context parallelism exchanges keys and values"),
    RowColumn("best.rank_order", TEXT, "", "order of the groups over the ranks"),
    RowColumn("best.optimizer_offload", BOOL, "", "optimizer on the host"),
    RowColumn("best.activation_offload_layers", INT, "", "layers with activations on the host"),
)
_FIGURES = (
    RowColumn("best.step_time_s", FLOAT, "s", "step time, the pipeline simulated"),
    RowColumn("best.step_time_p10_s", FLOAT, "s", "10th percentile of what measured runs suggest"),
    RowColumn("best.step_time_p90_s", FLOAT, "s", "90th percentile"),
    RowColumn("best.tokens_per_s", FLOAT, "1/s", "tokens a second"),
    RowColumn("best.tokens_per_s_per_device", FLOAT, "1/s", "the same of one device"),
    RowColumn("best.mfu", FLOAT, "", "model FLOPs over the dense peak"),
    RowColumn("best.mfu_bf16", FLOAT, "", "the same over the bf16 peak, as papers print it"),
    *(
        RowColumn(f"best.time.{term}_s", FLOAT, "s", f"part of the step: {term}")
        for term in TIME_TERMS
    ),
    RowColumn("best.exposed_comm_frac", FLOAT, "", "share of the step that waits for the network"),
    RowColumn(
        "best.comm_to_compute",
        FLOAT,
        "",
        "network time, hidden or not, over time in which the slowest device computes",
    ),
    RowColumn("best.peak_bytes", FLOAT, "bytes", "memory of the fullest device"),
    RowColumn("best.usable_bytes", FLOAT, "bytes", "memory that a plan may fill"),
    *(
        RowColumn(f"best.memory.{term}_bytes", FLOAT, "bytes", f"of the fullest device: {term}")
        for term in MEMORY_TERMS
    ),
    RowColumn(
        "best.binding",
        TEXT,
        "",
        "what binds: memory where the layout without recomputation would be faster than ties are"
        f" apart and does not fit, else the part that takes most of the step: {', '.join(PARTS)}",
    ),
    RowColumn(
        "best.next_memory_bytes",
        FLOAT,
        "bytes",
        "memory of a device in which the same layout fits without recomputation, and is faster",
    ),
    RowColumn("best.next_step_time_s", FLOAT, "s", "step time of that"),
    RowColumn("best.run_s", FLOAT, "s", "expected time of the whole run, failures included"),
    RowColumn("best.goodput_frac", FLOAT, "", "share of that time that trains"),
    RowColumn("best.cost_usd", FLOAT, "USD", "price of the whole run"),
    RowColumn("best.energy_j", FLOAT, "J", "energy of the whole run"),
    RowColumn("best.power_w", FLOAT, "W", "power of the devices in use, at the meter"),
    RowColumn("best.usd_per_million_tokens", FLOAT, "USD", "price of a million tokens"),
    RowColumn("best.energy_j_per_token", FLOAT, "J", "energy of a token"),
    RowColumn("best.runs_on", TEXT, "", "frameworks that can run it and hold it"),
)
_ROOFS = (
    RowColumn("best.flops_per_device", FLOAT, "FLOP", "model FLOPs of a device in a step"),
    RowColumn(
        "best.hbm_bytes_per_device",
        FLOAT,
        "bytes",
        "moved to and from the device's memory in a step, flash attention kernels left out",
    ),
    RowColumn("best.scale_up_bytes_per_device", FLOAT, "bytes", "sent inside the domain a step"),
    RowColumn(
        "best.scale_out_bytes_per_device",
        FLOAT,
        "bytes",
        "sent to other domains a step, mean of a group",
    ),
    RowColumn("peak_flops_per_s", FLOAT, "FLOP/s", "dense peak of the matrix products' type"),
    RowColumn("hbm_bytes_per_s", FLOAT, "B/s", "data-sheet bandwidth of the device's memory"),
    RowColumn("scale_up_bytes_per_s", FLOAT, "B/s", "data sheet, one-way, of a device"),
    RowColumn("scale_out_bytes_per_s", FLOAT, "B/s", "ports of a node over its devices, one-way"),
)
_RUNNER_UP = (
    RowColumn("runner_up.plan_id", TEXT, "", "id of the second plan"),
    RowColumn("runner_up.layout", TEXT, "", "its layout in a few words"),
    RowColumn("runner_up.step_time_s", FLOAT, "s", "its step time"),
    RowColumn("runner_up.peak_bytes", FLOAT, "bytes", "its memory"),
)
_ELASTICITIES = tuple(
    RowColumn(
        f"elasticity.{figure.name}",
        FLOAT,
        "",
        f"d log step time / d log of the {figure.kind}: {figure.meaning}",
    )
    for figure in FIGURES
)
_JOINED = (
    RowColumn("joined.step_time_s", FLOAT, "s", "step of the best plan over several pools"),
    RowColumn("joined.pools", TEXT, "", "its pools"),
    RowColumn("joined.bound_s", FLOAT, "s", "no plan over several pools has a shorter step"),
    RowColumn("alone.step_time_s", FLOAT, "s", "step of the best plan on one pool, beside those"),
    RowColumn("alone.pool", TEXT, "", "its pool"),
)
COLUMNS: tuple[RowColumn, ...] = (
    *_HEAD,
    *_FACTS,
    *_LAYOUT,
    *_FIGURES,
    *_ROOFS,
    *_RUNNER_UP,
    *_JOINED,
    *_ELASTICITIES,
)
"""All columns but those of the varied inputs, which stand after `reason`."""

Inputs = Iterable[tuple[str, Value]]
"""Columns of the varied inputs and of derived values, in order (`Sweep.columns`)."""


def column_names(inputs: Iterable[str]) -> tuple[str, ...]:
    """Return the names of all columns of a sweep in order; `inputs` those that it varies."""
    head = tuple(column.name for column in _HEAD)
    return (*head, *inputs, *(column.name for column in COLUMNS[len(head) :]))


def solved_row(
    point: Point,
    inputs: Inputs,
    model: ModelInput,
    cluster: ClusterInput,
    options: SolveOptions,
    result: Result,
) -> Row:
    """Return the row of a point from its result: any status but `failed`."""
    joined = best_joined(result)
    cluster = joined_cluster(cluster, result) if result.together else cluster
    facts = _facts(model, cluster, options, result) | joined_facts(result)
    if joined is not None:
        facts |= best_joined_facts(joined, cluster) | {"best.precision": model.job.precision}
        facts |= runner_up_facts(result.together.plans[1:2]) if result.together else {}
    elif result.plans:
        facts |= _best(result.best) | _elasticities(result.best) | _costs(result.best)
        facts |= _runner_up(result.plans[1:2])
    return _row(point, inputs, *_status(result), facts)


def failed_row(point: Point, status: str, reason: str, inputs: Inputs = ()) -> Row:
    """Return the row of a point without a result: `failed`, or `stopped` by a hard limit."""
    if status not in STATUSES:
        raise ValueError(f"status {status!r} is none of {', '.join(STATUSES)}")
    return _row(point, inputs, status, reason, {})


@dataclass(frozen=True, slots=True)
class SolvedPoint:
    """What the search of a point gave."""

    row: Row
    result: Result


def twin_row(
    solved: SolvedPoint,
    point: Point,
    inputs: Inputs,
    model: ModelInput,
    cluster: ClusterInput,
    options: SolveOptions,
) -> Row:
    """Return the row of a point that differs from a solved one in price, power or failures alone.

    Both have the same `Point.costless_key`. No plan is searched or priced.
    """
    row = solved.row
    if row["status"] == FAILED:
        return failed_row(point, FAILED, str(row["reason"]), inputs)
    twin = with_costs(solved.result, model, cluster)
    value = dict(row) | _facts(model, cluster, options, twin)
    if twin.plans:
        value |= _costs(twin.best) | {"best.plan_id": twin.best.plan_id}
        value |= _runner_up(twin.plans[1:2])
    return _row(point, inputs, *_status(twin), value)


def with_costs(result: Result, model: ModelInput, cluster: ClusterInput) -> Result:
    """Return a result with ids, energy and cost of its plans on a cluster that costs otherwise."""

    def of(plan: Plan) -> Plan:
        own = cluster.pool(plan.pool)
        was = plan.breakdown.rows.problem
        part = replace(was.pool.accelerator, tdp_w=own.cluster.pools[0].accelerator.tdp_w)
        problem = replace(was, pool=replace(was.pool, accelerator=part))
        layout = plan.layout
        useful = useful_frac(problem.job, layout)
        of_run = problem, own.operations[0], layout.n_devices, plan.step_time_s
        run = run_figures(*of_run, None, useful)
        document = with_numerics(model, plan.words).document
        name = plan_id(document, own.document, layout_to_json(layout))
        return replace(plan, run=run, plan_id=name)

    return replace(result, plans=tuple(of(plan) for plan in result.plans))


def _row(
    point: Point, inputs: Inputs, status: str, reason: str, figures: Mapping[str, Value]
) -> Row:
    """Return all columns in order; those that are not found are missing."""
    head: Row = {
        "index": point.index,
        "point_id": point.point_id,
        "status": status,
        "reason": reason or None,
    }
    row: Row = {**head, **{name: _plain(value) for name, value in inputs}}
    return row | {c.name: _plain(figures.get(c.name), c.kind) for c in COLUMNS[len(head) :]}


def _plain(value: Any, kind: str = "") -> Value:
    """Return a value as JSON and Parquet hold it: no numpy scalars, no infinities."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int) and kind != FLOAT:
        return value
    number = float(value)
    return number if abs(number) < float("inf") else None


def _status(result: Result) -> tuple[str, str]:
    """Return status and reason of a result."""
    if result.stopped:
        return STOPPED, result.stopped
    if result.plans or best_joined(result):
        return OK, ""
    limits = [x.removeprefix("limit: ") for x in result.notes if x.startswith("limit: ")]
    if limits:
        return LATE, "no plan keeps the limits: " + limits[0]
    return INFEASIBLE, infeasible_reason(result)


def infeasible_reason(result: Result) -> str:
    """Return in one line why nothing fits or is legal."""
    if result.closest and result.counts.space:
        miss = result.closest
        return (
            f"nothing fits: the closest of {result.counts.space:,} plans,"
            f" {shown_layout(miss.layout)}, needs {miss.peak_bytes / GIB:.1f} GiB of"
            f" {miss.usable_bytes / GIB:.1f}"
        )
    if result.conflicts:
        parts = result.conflicts[0].parts
        return "no legal layout: " + "; ".join(f"{part.code} {part.text}" for part in parts)
    largest = max(result.rejected, key=lambda r: (r.n, r.code), default=None)
    return "no legal layout" + (f": {largest.code} {RULES[largest.code].title}" if largest else "")


def _facts(model: ModelInput, cluster: ClusterInput, options: SolveOptions, result: Result) -> Row:
    """Return what a row says of its inputs and of the search."""
    proof, gap = result.certificate, result.gap
    is_proven = proof.proven if proof else None
    best = best_joined(result) or (result.best if result.plans else None)
    if result.together is not None and best is not None:
        is_proven, gap = proof_of(result.together, best.step_time_s, is_proven is not False)
    if result.plans:
        cluster = cluster.pool(result.best.pool)
    pools = cluster.cluster.pools
    counts, calibration = result.counts, options.calibration
    document = model.document["model"]
    return {
        "model": document.get("name") or model.shape.name,
        "n_params": total_params(model.shape, model.job.seq_len),
        "seq_len": model.job.seq_len,
        "global_batch": model.job.global_batch,
        "cluster": cluster.cluster.name,
        "pool": ", ".join(pool.name for pool in pools),
        "accelerator": ", ".join(dict.fromkeys(pool.accelerator.name for pool in pools)),
        "n_devices": sum(pool.n_devices for pool in pools),
        "scale_up_domain": pools[0].scale_up_domain if len(pools) == 1 else None,
        "assumed": ", ".join(cluster.assumed) or None,
        "calibration": f"{calibration.name} {calibration.content_hash}",
        "space": counts.space,
        "fit": counts.fit,
        "proven": is_proven,
        "gap": gap,
    }


def _best(plan: Plan) -> Row:
    """Return what a row says of the best plan and of the device's roofs."""
    b, x, layout = plan.breakdown, plan.layout, _layout(plan.layout)
    layout |= {
        "best.plan_id": plan.plan_id,
        "best.precision": plan.precision,
        "best.step_time_s": plan.step_time_s,
        "best.step_time_p10_s": plan.step_time_p10_s,
        "best.step_time_p90_s": plan.step_time_p90_s,
        "best.tokens_per_s": plan.tokens_per_s,
        "best.tokens_per_s_per_device": plan.tokens_per_s_per_device,
        "best.mfu": plan.mfu,
        "best.mfu_bf16": plan.mfu_bf16,
        "best.exposed_comm_frac": b.exposed_comm_frac,
        "best.comm_to_compute": comm_to_compute(plan),
        "best.peak_bytes": b.peak_bytes,
        "best.usable_bytes": plan.usable_bytes,
        "best.runs_on": ", ".join(plan.runs_on),
    }
    layout |= {f"best.time.{term}_s": b.time_s[term] for term in TIME_TERMS}
    fullest = b.stages[b.peak_stage]
    layout |= {f"best.memory.{term}_bytes": fullest[term] for term in MEMORY_TERMS}
    problem = b.rows.problem
    pool, job = problem.pool, problem.job
    part = pool.accelerator
    wires = [t for t in b.transfers if t.axis != "host"]
    return layout | {
        "best.flops_per_device": model_flops_per_step(problem.shape, job) / x.n_devices,
        "best.scale_up_bytes_per_device": sum(t.sent_bytes - t.scale_out_bytes for t in wires),
        "best.scale_out_bytes_per_device": sum(t.scale_out_bytes for t in wires),
        "peak_flops_per_s": part.peak_flops_per_s[job.recipe.linear],
        "hbm_bytes_per_s": part.hbm_bytes_per_s,
        "scale_up_bytes_per_s": part.scale_up_bytes_per_s,
        "scale_out_bytes_per_s": pool.nic.bytes_per_s * pool.nics_per_node / pool.devices_per_node,
    }


COMPUTING = (
    "linear",
    "attention",
    "elementwise",
    "experts",
    "head",
    "embedding",
    "recompute",
    "optimizer",
)
"""Terms of a step in which the slowest rank computes."""


def comm_to_compute(plan: Plan) -> float:
    """Return the time of all transfers between devices, hidden or not, over that of compute."""
    b = plan.breakdown
    wire_s = sum(t.time_s for t in b.transfers if t.axis != "host")
    return wire_s / sum(b.time_s[term] for term in COMPUTING)


def _layout(x: Layout) -> Row:
    return {
        "best.layout": shown_layout(x),
        "best.devices": x.n_devices,
        "best.tp": x.tp,
        "best.pp": x.pp,
        "best.dp": x.dp,
        "best.cp": x.cp,
        "best.ep": x.ep,
        "best.etp": x.etp,
        "best.vpp": x.vpp,
        "best.zero": x.zero,
        "best.dp_shard": x.dp_shard,
        "best.mbs": x.mbs,
        "best.n_micro": x.n_micro,
        "best.schedule": x.schedule,
        "best.sp": x.sp,
        "best.recompute": x.recompute,
        "best.recompute_modules": "+".join(x.recompute_modules) or None,
        "best.recompute_layers": x.recompute_layers,
        "best.cp_comm": x.cp_comm or None,
        "best.rank_order": x.rank_order,
        "best.optimizer_offload": x.optimizer_offload,
        "best.activation_offload_layers": x.activation_offload_layers,
    }


def _costs(plan: Plan) -> Row:
    """Return what price, power and failures decide."""
    run = plan.run
    if run is None:
        return {}
    return {
        "best.run_s": run.expected_s,
        "best.goodput_frac": run.goodput.goodput_frac,
        "best.cost_usd": run.cost_usd,
        "best.energy_j": run.energy_j,
        "best.power_w": run.power_w,
        "best.usd_per_million_tokens": run.usd_per_million_tokens,
        "best.energy_j_per_token": run.energy_j_per_token,
    }


def _elasticities(plan: Plan) -> Row:
    """Return what the step time depends on, and what binds the plan."""
    problem, layout = plan.breakdown.rows.problem, plan.layout
    result, roomier = sensitivity(problem, layout), more_memory(problem, layout)
    memory = problem.pool.accelerator.memory_bytes
    parts = parts_s(plan.breakdown, result.elasticity)
    binds = binding_part(parts, plan.step_time_s, memory, roomier)
    row: Row = {f"elasticity.{name}": value for name, value in result.elasticity.items()}
    return row | {
        "best.binding": binds,
        "best.next_memory_bytes": roomier.memory_bytes if roomier else None,
        "best.next_step_time_s": roomier.step_s if roomier else None,
        "best.hbm_bytes_per_device": result.hbm_bytes,
    }


def _runner_up(plans: tuple[Plan, ...]) -> Row:
    return {
        name: value
        for plan in plans
        for name, value in (
            ("runner_up.plan_id", plan.plan_id),
            ("runner_up.layout", shown_layout(plan.layout)),
            ("runner_up.step_time_s", plan.step_time_s),
            ("runner_up.peak_bytes", plan.breakdown.peak_bytes),
        )
    }


def columns_table() -> str:
    """Return the columns as a Markdown table: name, unit, meaning."""
    lines = ["| column | unit | meaning |", "| --- | --- | --- |"]
    lines += [f"| `{c.name}` | {c.unit} | {c.meaning} |" for c in COLUMNS]
    return "\n".join(lines) + "\n"
