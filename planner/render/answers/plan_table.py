"""Plans as a table that gives up columns where it is too wide, and as CSV.

The layout comes first, then the figures, the plan's id last. Columns leave in the order of
`DISPENSABLE`; `--columns` names those that are wanted instead.
"""

import csv
import io
from collections.abc import Callable, Sequence
from typing import NamedTuple

from costmodels.axes import AXES, Axis, switch_axes
from costmodels.plans import Layout
from costmodels.schedule.stages import SPLITS
from costmodels.tuning.records import PRETRAIN
from hardware.nouns import DeviceNoun, common_noun
from planner.documents import Grid, GridSpacing, Paragraph, Part
from planner.errors import UsageError
from planner.render.answers.joined.rows import PIPELINES, joined_rows
from planner.render.markdown import markdown
from planner.render.nouns import noun_of, noun_of_plan
from planner.solver.answer.reasons import stage_words
from planner.solver.answer.result import Plan, Result
from planner.specs.search.objectives import COLUMNS as GOAL_COLUMNS
from planner.specs.yaml.document import close_names
from planner.text_lines import WIDTH
from planner.units import format_gib

DISPENSABLE = (
    "bubl",
    "comm",
    "sp",
    "split",
    "switches",
    "mfu_bf16",
    "plan",
    "zero",
    "days",
    "mfu",
    "vpp",
    "recomp",
    "tok/s",
)
"""Columns that give way, in this order, where the table would be wider than the window."""
SWITCHES = "switches"
"""Stands in `DISPENSABLE` for the columns of all axes without a field of `Layout`."""
ALL = "all"
"""What `--columns` takes for every column, whatever the window."""


class Column(NamedTuple):
    """One column of the table."""

    title: str
    unit: str
    text: Callable[[Plan], str]
    key: str = ""
    """What `--columns` calls it, where that is not its title."""

    @property
    def name(self) -> str:
        """What `--columns` calls it."""
        return self.key or self.title

    def named(self, noun: DeviceNoun) -> "Column":
        """Return the column with what devices are called in its head: `{many}`, `{short}`."""
        words = {"many": noun.many, "short": noun.short}
        title, unit = self.title.format(**words), self.unit.format(**words)
        return Column(title, unit, self.text, self.name)


RANK = Column("#", "", lambda p: str(p.rank), "rank")
PLAN_ID = Column("plan", "", lambda p: p.plan_id)


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
    RANK,
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
    Column("tok/s", "/{short}", lambda p: f"{p.tokens_per_s_per_device:,.0f}"),
    Column("MFU", "%", lambda p: f"{p.mfu * 100:.1f}", "mfu"),
    Column("mem", "GiB", lambda p: format_gib(p.breakdown.peak_bytes)),
    Column("bubl", "%", lambda p: f"{p.breakdown.bubble_frac * 100:.1f}"),
    Column("comm", "%", lambda p: f"{p.breakdown.exposed_comm_frac * 100:.1f}"),
    Column("days", "", _days),
    PLAN_ID,
)


def _minutes(plan: Plan) -> str:
    return f"{1e6 / plan.tokens_per_s / 60.0:.3g}"


PER_MILLION = Column("min", "/Mtok", _minutes, "minutes_per_mtok")
"""In place of days, where fine-tuning says no length of the run."""


def has_no_length(result: Result) -> bool:
    """Tell whether plans are of fine-tuning whose tokens nobody stated."""
    job = result.inputs["model"]["training"]
    return job.get("task", PRETRAIN) != PRETRAIN and not job.get("tokens")


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
    (Column("pp", "in dp", _inside, "pp_in_dp"), lambda x: x.pipelines_inside),
    (
        Column("tp", "ovl", lambda p: "y" if p.layout.tp_overlap else "-", "tp_overlap"),
        lambda x: x.tp_overlap,
    ),
    (
        Column("dp", "ovl", lambda p: "y" if p.layout.dp_overlap else "-", "dp_overlap"),
        lambda x: not x.dp_overlap,
    ),
    (
        Column("zero", "over", lambda p: str(p.layout.dp_shard), "dp_shard"),
        lambda x: x.shard > 0,
    ),
    (
        Column("hpz", "", lambda p: str(p.layout.hpz) if p.layout.hpz > 1 else "-"),
        lambda x: x.hpz > 1,
    ),
    (Column("sched", "", _schedule), lambda x: x.schedule not in PLAIN_SCHEDULES),
    (Column("opt", "host", _optimizer, "optimizer_offload"), lambda x: x.optimizer_offload),
    (
        Column(
            "act",
            "host",
            lambda p: str(p.layout.activation_offload_layers or "-"),
            "activation_offload",
        ),
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


MFU_BF16 = Column("MFU", "bf16%", _bf16, "mfu_bf16")
DEVICES = Column("{many}", "", lambda p: str(p.layout.n_devices), "devices")
RECIPE = Column("recipe", "", lambda p: p.recipe_label)
POOL = Column("pool", "", lambda p: p.pool)


def _with_bf16(columns: Sequence[Column]) -> list[Column]:
    """Return the columns with MFU over the bf16 peak behind MFU, as papers print it."""
    place = [column.name for column in columns].index("mfu") + 1
    return [*columns[:place], MFU_BF16, *columns[place:]]


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

    title, unit = SWITCH_TITLES.get(axis.name, (axis.label or axis.name, ""))
    return Column(title, unit, text, axis.name)


def columns_of(
    result: Result, width: int = WIDTH, chosen: Sequence[str] = ()
) -> tuple[Column, ...]:
    """Return the columns of the table that fit into a width, or those that are chosen by name.

    `chosen` are names of `column_names`; else the pool where there are several, and used axes.
    """
    noun = noun_of(result)
    columns = [column.named(noun) for column in all_columns(result)]
    if list(chosen) == [ALL]:
        return tuple(columns)
    if chosen:
        return tuple(known_columns()[name].named(noun) for name in chosen)
    if not any(plan.training_s is not None for plan in result.plans):
        columns = [column for column in columns if column.name != "days"]
    for name in DISPENSABLE:
        if _grid_width(columns, result.plans) <= width:
            break
        switches = {axis.name for axis in switch_axes()} if name == SWITCHES else {name}
        columns = [column for column in columns if column.name not in switches]
    return tuple(columns)


def all_columns(result: Result) -> list[Column]:
    """Return every column of an answer, in order.

    The card says which name belongs to which pool; names would not fit into a table.
    """
    names = [pool["name"] for pool in result.inputs["cluster"]["pools"]]
    rank, tp, pp, *others = COLUMNS
    if has_no_length(result):
        others = [PER_MILLION if column.name == "days" else column for column in others]
    used = used_axes(result.plans)
    if any(plan.n_idle for plan in result.plans):
        used = [DEVICES, *used]
    options = result.inputs["options"]
    goals = options.get("pareto") or [options.get("objective", "step_time")]
    wanted = [Column(*x) for goal in goals for x in GOAL_COLUMNS.get(goal, ())]
    others = [*others[:-1], *wanted, others[-1]]
    pool = Column("pool", "", lambda p: str(names.index(p.pool)))
    if any(plan.mfu_over_bf16 is not None for plan in result.plans):
        others = _with_bf16(others)
    columns = [rank, *[pool] * (len(names) > 1), tp, pp, *used, *others]
    if len({plan.recipe_label for plan in result.plans}) > 1:
        columns.insert(1, RECIPE)
    return columns


def known_columns() -> dict[str, Column]:
    """Return every column that `--columns` takes, by name."""
    of_goals = (Column(*x) for shown in GOAL_COLUMNS.values() for x in shown)
    optional = (column for column, _ in OPTIONAL)
    switches = (_switch_column(axis) for axis in switch_axes())
    more = (DEVICES, POOL, RECIPE, MFU_BF16, PER_MILLION)
    columns = (*COLUMNS, *optional, *switches, *of_goals, *more)
    return {column.name: column for column in columns}


def named_columns(text: str) -> tuple[str, ...]:
    """Return the columns that `--columns` names, each once; none where it is empty.

    `UsageError` for a column that there is not, and where `all` is not alone.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    known = known_columns()
    if text and not names:
        fix = "--columns tp,pp,step, or leave it out"
        raise UsageError(f"--columns: {text!r} names no column", fix, code="bad-value")
    if ALL in names and names != (ALL,):
        message = f"--columns: {ALL!r} is every column, and {text!r} names more"
        raise UsageError(message, f"--columns {ALL}, or the others alone", code="bad-value")
    for name in names:
        if name not in known and names != (ALL,):
            close = close_names(name, known, 2)
            guess = f"did you mean {' or '.join(close)}? " if close else ""
            fix = f"{guess}columns: {', '.join([*known, ALL])}"
            raise UsageError(f"--columns: unknown {name!r}", fix, code="unknown-name")
    return names


def _grid_width(columns: Sequence[Column], plans: Sequence[Plan]) -> int:
    """Return the columns of the window that a table takes: a mark, a blank before each cell."""
    widths = (
        max(len(text) for text in (column.title, column.unit, *map(column.text, plans)))
        for column in columns
    )
    return 1 + len(columns) + sum(widths)


def plan_grid(
    plans: Sequence[Plan],
    columns: Sequence[Column] = (),
    *,
    is_marked: bool = True,
    noun: DeviceNoun | None = None,
) -> Grid:
    """Return the table of plans; without `columns` the usual ones, with those of axes in use.

    `is_marked`: with a column before them that says which cannot be told from the best; `noun`:
    what devices are called, else as far as the plans know.
    """
    if not columns:
        noun = noun or common_noun(noun_of_plan(plan) for plan in plans)
        usual = (*COLUMNS[:3], *used_axes(plans), *COLUMNS[3:])
        columns = tuple(column.named(noun) for column in usual)
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
        tuple(i for i, title in enumerate(titles) if title not in ("", "plan", "recipe")),
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


def plans_csv(result: Result, chosen: Sequence[str] = ()) -> str:
    """Return the plans as CSV in base units (seconds, bytes, fractions).

    Plans over several pools come first, where the answer has some. `chosen` are columns of
    `column_names`: then those alone, in the units of the table, of plans on one pool.
    """
    if chosen:
        return _chosen_csv(result, columns_of(result, chosen=chosen))
    axes = [axis for axis in AXES.values() if axis.table != "derived"]
    fields = ["rank", "plan_id", "pool", "precision", "n_devices"]
    fields += [*(axis.name for axis in axes), "n_micro", *FIGURE_FIELDS]
    joined = result.together.plans if result.together else ()
    fields += [PIPELINES] * bool(joined)
    out = io.StringIO()
    writer = csv.DictWriter(out, fields, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(joined_rows(joined))
    for plan in result.plans:
        values = {x.name: plan.layout.value(x.name) for x in axes}
        row = {**values, **plan.row_json(), "runs_on": " ".join(plan.runs_on)}
        row["recompute_modules"] = "+".join(plan.layout.recompute_modules)
        writer.writerow(row)
    return out.getvalue()


UNITS = ("s", "%", "GiB", "k$", "MWh", "days")
"""Second lines of heads that are units, as those after a slash are; the others are the second half
of a title."""


def _chosen_csv(result: Result, columns: Sequence[Column]) -> str:
    """Return some columns of the table as CSV: `step (s)`, numbers without thousands commas."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        f"{column.name} ({column.unit})"
        if column.unit in UNITS or column.unit.startswith("/")
        else column.name
        for column in columns
    )
    for plan in result.plans:
        writer.writerow(column.text(plan).replace(",", "") for column in columns)
    return out.getvalue()


def plans_markdown(result: Result, chosen: Sequence[str] = ()) -> str:
    """Return the plans as a Markdown table; `chosen` as in `columns_of`."""
    columns = columns_of(result, chosen=chosen)
    return markdown([plan_grid(result.plans, columns, is_marked=False)])
