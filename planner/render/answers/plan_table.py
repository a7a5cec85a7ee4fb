"""Plans as a table of at most 100 columns, and as CSV."""

import csv
import io
from collections.abc import Callable, Sequence
from typing import NamedTuple

from costmodels.axes import AXES, Axis, switch_axes
from costmodels.plans import Layout
from costmodels.schedule.stages import SPLITS
from planner.documents import Grid, GridSpacing, Paragraph, Part
from planner.render.markdown import markdown
from planner.solver.answer.reasons import stage_words
from planner.solver.answer.result import Plan, Result
from planner.specs.search.objectives import COLUMNS as GOAL_COLUMNS
from planner.text_lines import WIDTH
from planner.units import format_gib

DISPENSABLE = ("bubl", "comm", "sp", "MFU", "split")
"""Columns that give way, in this order, where the table would be wider than `WIDTH`."""


class Column(NamedTuple):
    """One column of the table."""

    title: str
    unit: str
    text: Callable[[Plan], str]


def _days(plan: Plan) -> str:
    return f"{plan.training_s / 86400:.1f}" if plan.training_s is not None else "-"


SHORT_MODULES = {
    "core_attn": "core",
    "moe_act": "act",
    "layernorm": "norm",
    "mla_up_proj": "up",
    "shared_experts": "shared",
    "gdn_norm_out": "out",
}
"""Recomputed modules in a column; `mlp` and `moe` are short enough."""


def _recompute(plan: Plan) -> str:
    x = plan.layout
    if x.recompute_text != x.recompute:
        return "+".join(SHORT_MODULES.get(name, name) for name in x.recompute_modules)
    if x.recompute != "full":
        return x.recompute
    return "full" if x.recompute_layers >= max(x.stage_layers) else f"full:{x.recompute_layers}"


def _split(layout: Layout) -> str:
    if layout.pp == 1:
        return "-"
    return layout.split if layout.split in SPLITS else "uneven"


COLUMNS = (
    Column("plan", "", lambda p: p.plan_id),
    Column("tp", "", lambda p: str(p.layout.tp)),
    Column("pp", "", lambda p: str(p.layout.pp)),
    Column("dp", "", lambda p: str(p.layout.dp)),
    Column("vpp", "", lambda p: str(p.layout.vpp)),
    Column("zero", "", lambda p: str(p.layout.zero)),
    Column("mbs", "", lambda p: str(p.layout.mbs)),
    Column("sp", "", lambda p: "y" if p.layout.sp else "-"),
    Column("split", "", lambda p: _split(p.layout)),
    Column("recomp", "", _recompute),
    Column("step", "s", lambda p: f"{p.step_time_s:.3f}"),
    Column("tok/s", "/dev", lambda p: f"{p.tokens_per_s_per_device:,.0f}"),
    Column("MFU", "%", lambda p: f"{p.mfu * 100:.1f}"),
    Column("mem", "GiB", lambda p: format_gib(p.breakdown.peak_bytes)),
    Column("bubl", "%", lambda p: f"{p.breakdown.bubble_frac * 100:.1f}"),
    Column("comm", "%", lambda p: f"{p.breakdown.exposed_comm_frac * 100:.1f}"),
    Column("days", "", _days),
)


def _context(plan: Plan) -> str:
    """Return the degree with the first letter of the exchange: 2p, 4g (all-gather), 8a."""
    letters = {"": "", "p2p": "p", "all-gather": "g", "a2a": "a"}
    return f"{plan.layout.cp}{letters[plan.layout.cp_comm]}"


def _inside(plan: Plan) -> str:
    return "y" if plan.layout.pipelines_inside else "-"


PLAIN_SCHEDULES = ("none", "1f1b", "interleaved")
"""Schedules that vpp tells apart."""


def _schedule(plan: Plan) -> str:
    return "int" if plan.layout.schedule == "interleaved" else plan.layout.schedule


def _optimizer(plan: Plan) -> str:
    return "y" if plan.layout.optimizer_offload else "-"


OPTIONAL: tuple[tuple[Column, Callable[[Layout], bool]], ...] = (
    (Column("cp", "pga", _context), lambda x: x.cp > 1),
    (Column("ep", "", lambda p: str(p.layout.ep)), lambda x: x.ep > 1),
    (Column("etp", "", lambda p: str(p.layout.etp)), lambda x: x.etp > 1),
    (Column("pp", "in dp", _inside), lambda x: x.pipelines_inside),
    (Column("tp", "ovl", lambda p: "y" if p.layout.tp_overlap else "-"), lambda x: x.tp_overlap),
    (
        Column("dp", "ovl", lambda p: "y" if p.layout.dp_overlap else "-"),
        lambda x: not x.dp_overlap,
    ),
    (Column("zero", "over", lambda p: str(p.layout.dp_shard)), lambda x: x.shard > 0),
    (
        Column("hpz", "", lambda p: str(p.layout.hpz) if p.layout.hpz > 1 else "-"),
        lambda x: x.hpz > 1,
    ),
    (Column("sched", "", _schedule), lambda x: x.schedule not in PLAIN_SCHEDULES),
    (Column("opt", "host", _optimizer), lambda x: x.optimizer_offload),
    (
        Column("act", "host", lambda p: str(p.layout.activation_offload_layers or "-")),
        lambda x: x.activation_offload,
    ),
)
"""Columns of axes that are off in most answers, shown where some plan uses them."""


def _mark(plan: Plan, many_ties: bool) -> str:
    if plan.rank == 1:
        return "*"
    if plan.tie and many_ties:
        return "="
    return "~" if plan.group == 1 else " "


def _bf16(plan: Plan) -> str:
    return "-" if plan.mfu_bf16 is None else f"{plan.mfu_bf16 * 100:.1f}"


def _with_bf16(columns: Sequence[Column]) -> list[Column]:
    """Return the columns with MFU over the bf16 peak behind MFU, as papers print it."""
    place = [column.title for column in columns].index("MFU") + 1
    return [*columns[:place], Column("MFU", "bf16%", _bf16), *columns[place:]]


def used_axes(plans: Sequence[Plan]) -> list[Column]:
    """Return the optional columns of axes that some plan uses."""
    columns = [column for column, on in OPTIONAL if any(on(plan.layout) for plan in plans)]
    used = {name for plan in plans for name, _ in plan.layout.switches}
    return [*columns, *(_switch_column(axis) for axis in switch_axes() if axis.name in used)]


SWITCH_TITLES = {
    "dispatcher": ("ep", "via"),
    "ep_overlap": ("ep", "ovl"),
    "cuda_graph": ("cuda", "graph"),
    "offload_modules": ("on", "host"),
}
"""Titles of columns of axes whose names are wide."""
SHORT_VALUES = {
    "moe_router": "router",
    "moe_preprocess": "prep",
    "full_iteration": "whole",
    "alltoall": "a2a",
    "core_attn": "core",
    "attn_proj": "proj",
    "qkv_linear": "qkv",
    "expert_fc1": "fc1",
}
"""Parts of values in a column."""


def _short_value(text: str) -> str:
    return "+".join(SHORT_VALUES.get(part, part) for part in text.split("+"))


def _switch_column(axis: Axis) -> Column:
    """Return the column of an axis without a field of `Layout`: `y`, its value, or `-` off."""

    def text(plan: Plan) -> str:
        value = plan.layout.value(axis.name)
        if value == axis.off:
            return "-"
        return "y" if axis.is_switch else _short_value(axis.text(value))

    return Column(*SWITCH_TITLES.get(axis.name, (axis.label or axis.name, "")), text)


def columns_of(result: Result) -> tuple[Column, ...]:
    """Return the columns of the table: the pool too where there are several, axes that are used.

    The heading says which name belongs to which number; names would not fit into 100 columns.
    """
    names = [pool["name"] for pool in result.inputs["cluster"]["pools"]]
    first, tp, pp, *others = COLUMNS
    used = used_axes(result.plans)
    if any(plan.n_idle for plan in result.plans):
        used = [Column("dev", "", lambda p: str(p.layout.n_devices)), *used]
    options = result.inputs["options"]
    goals = options.get("pareto") or [options.get("objective", "step_time")]
    others = [*others, *(Column(*x) for goal in goals for x in GOAL_COLUMNS.get(goal, ()))]
    pool = Column("pool", "", lambda p: str(names.index(p.pool)))
    if any(plan.mfu_over_bf16 is not None for plan in result.plans):
        others = _with_bf16(others)
    columns = [first, *[pool] * (len(names) > 1), tp, pp, *used, *others]
    if len({plan.recipe_label for plan in result.plans}) > 1:
        columns.insert(1, Column("recipe", "", lambda p: p.recipe_label))
    widths = [_column_width(column, result.plans) for column in columns]
    for title in DISPENSABLE:
        # A mark before them, and a space before each.
        if 1 + len(columns) + sum(widths) > WIDTH:
            columns = [column for column in columns if column.title != title]
            widths = [_column_width(column, result.plans) for column in columns]
    return tuple(columns)


def _column_width(column: Column, plans: Sequence[Plan]) -> int:
    """Return the characters of the widest cell of a column, its heading included."""
    return max(len(text) for text in (column.title, column.unit, *map(column.text, plans)))


def plan_grid(
    plans: Sequence[Plan], columns: Sequence[Column] = (), *, is_marked: bool = True
) -> Grid:
    """Return the table of plans; without `columns` the usual ones, with those of axes in use.

    `is_marked`: with a column before them that says which cannot be told from the best.
    """
    columns = columns or (*COLUMNS[:3], *used_axes(plans), *COLUMNS[3:])
    many_ties = sum(plan.tie for plan in plans) > 1
    rows = [
        (*([_mark(plan, many_ties)] * is_marked), *(column.text(plan) for column in columns))
        for plan in plans
    ]
    titles = (*([""] * is_marked), *(column.title for column in columns))
    return Grid(
        titles,
        tuple(rows),
        "Plans, the best first",
        tuple(i for i, title in enumerate(titles) if title not in ("", "plan")),
        units=(*([""] * is_marked), *(column.unit for column in columns)),
        spacing=GridSpacing(gaps=1),
    )


def stage_parts(plans: Sequence[Plan]) -> list[Part]:
    """Return the layers of the virtual stages of the plans whose split has no name."""
    plan_ids: dict[str, list[str]] = {}
    for plan in plans:
        if plan.layout.split not in SPLITS:
            plan_ids.setdefault(stage_words(plan.layout.stage_layers), []).append(plan.plan_id)
    texts = [f"{layers} in {', '.join(ids)}" for layers, ids in plan_ids.items()]
    return [Paragraph("; ".join(texts), label="layers of uneven stages:")] if texts else []


FIGURE_FIELDS = (
    "step_time_s",
    "step_time_p10_s",
    "step_time_p90_s",
    "tokens_per_s",
    "mfu",
    "mfu_bf16",
    "peak_bytes",
    "usable_bytes",
    "tie",
    "group",
    "runs_on",
    "idle_devices",
    "goodput_frac",
    "expected_s",
    "energy_j",
    "cost_usd",
    "usd_per_million_tokens",
)
"""Figures of a plan in CSV."""


def plans_csv(result: Result) -> str:
    """Return the plans as CSV in base units (seconds, bytes, fractions)."""
    axes = [axis for axis in AXES.values() if axis.table != "derived"]
    fields = ["rank", "plan_id", "pool", "precision", "n_devices"]
    fields += [*(axis.name for axis in axes), "n_micro", *FIGURE_FIELDS]
    out = io.StringIO()
    writer = csv.DictWriter(out, fields, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for plan in result.plans:
        values = {x.name: plan.layout.value(x.name) for x in axes}
        row = {**values, **plan.row_json(), "runs_on": " ".join(plan.runs_on)}
        row["recompute_modules"] = "+".join(plan.layout.recompute_modules)
        writer.writerow(row)
    return out.getvalue()


def plans_markdown(result: Result) -> str:
    """Return the plans as a Markdown table."""
    return markdown([plan_grid(result.plans, columns_of(result), is_marked=False)])
