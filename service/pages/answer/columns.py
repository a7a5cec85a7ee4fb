"""Columns of the table of plans: what each shows of a plan, and which there are at first."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hardware.nouns import DeviceNoun
from planner.render.card.sentences import degrees_words, layout_words
from planner.render.nouns import noun_of, noun_of_plan
from planner.solver.answer.uncertainty import HEADROOM_STEP, TIE_FRAC
from planner.units import GIB

if TYPE_CHECKING:
    from planner.solver.answer.result import Plan, Result

Data = dict[str, Any]
Cell = str | int | float | None
MOST_SHOWN = 10
"""Columns that are shown unless others are chosen."""


@dataclass(frozen=True, slots=True)
class ListColumn:
    """One column of the table of plans."""

    key: str
    """What a filter calls it: letters, digits, `_`."""
    title: str
    value: Callable[["Plan"], Cell]
    digits: int | None = None
    """After the point, of a number; None for text."""
    unit: str = ""
    hint: str = ""
    place: int = 0
    """Of those shown at first, from 1; 0 for what is shown where it is chosen."""

    def named(self, noun: DeviceNoun) -> "ListColumn":
        """Return the column with what devices are called: `{one}`, `{many}`, `{short}`."""
        words = {"one": noun.one, "many": noun.many, "short": noun.short}
        texts = {name: getattr(self, name).format(**words) for name in ("title", "unit", "hint")}
        return replace(self, **texts)

    def to_json(self) -> Data:
        """Return the column without its values."""
        return {
            "key": self.key,
            "title": self.title,
            "digits": self.digits,
            "unit": self.unit,
            "hint": self.hint,
            "place": self.place,
        }


def list_columns_of(result: "Result") -> tuple[ListColumn, ...]:
    """Return the columns: axes that some plan uses, figures that are known."""
    plans, layouts = result.plans, [plan.layout for plan in result.plans]
    several = {
        "pool": len(result.inputs["cluster"]["pools"]) > 1,
        "precision": len({plan.recipe_label for plan in plans}) > 1,
        "devices": len({x.n_devices for x in layouts}) > 1 or any(plan.n_idle for plan in plans),
        "cp": any(x.cp > 1 for x in layouts),
        "ep": any(x.ep > 1 for x in layouts),
        "etp": any(x.etp > 1 for x in layouts),
        "shard": any(x.shard > 0 for x in layouts),
        "hpz": any(x.hpz > 1 for x in layouts),
        "split": any(x.split not in ("even", "") and x.pp > 1 for x in layouts),
        "schedule": any(x.schedule not in ("none", "1f1b", "interleaved") for x in layouts),
        "offload": any(x.optimizer_offload or x.activation_offload for x in layouts),
        "days": any(plan.training_s is not None for plan in plans),
        "cost": any(plan.run and plan.run.usd_per_million_tokens is not None for plan in plans),
        "energy": any(plan.run and plan.run.energy_j_per_token is not None for plan in plans),
    }
    fastest_s = min((plan.step_time_s for plan in plans), default=0.0)
    times = _time_columns(fastest_s >= IN_SECONDS_S)
    noun = noun_of(result)
    return tuple(
        times.get(column.key, column).named(noun)
        for column in COLUMNS
        if several.get(column.key, True)
    )


def keys_shown(columns: Sequence[Mapping[str, Any]], chosen: Sequence[str]) -> list[str]:
    """Return the keys of the columns that a table shows: those chosen, else the first ten.

    The order is that of `columns`; without a column that leads to the plan, the layout does.
    """
    keys = [column["key"] for column in columns]
    kept = {key for key in chosen if key in keys}
    if not kept:
        ordered = sorted((each for each in columns if each["place"]), key=lambda x: x["place"])
        kept = {each["key"] for each in ordered[:MOST_SHOWN]}
    return [key for key in keys if key in kept or key == "layout"]


def tie_of(plan: "Plan") -> str:
    """Return how a plan stands to the best: `first`, `tie`, `near`, or nothing."""
    if plan.rank == 1:
        return "first"
    if plan.tie:
        return "tie"
    return "near" if plan.group == 1 else ""


def _details(plan: "Plan") -> str:
    """Return what the card says of a layout after its degrees."""
    noun = noun_of_plan(plan)
    words, degrees = layout_words(plan.layout, noun), degrees_words(plan.layout, noun)
    return words.removeprefix(degrees).removeprefix(", ")


def _recompute(plan: "Plan") -> str:
    x = plan.layout
    if x.recompute_text != x.recompute:
        return "+".join(x.recompute_modules)
    if x.recompute == "full" and x.recompute_layers < max(x.stage_layers):
        return f"full of {x.recompute_layers}"
    return x.recompute


def _offload(plan: "Plan") -> str:
    x = plan.layout
    parts = ["optimizer"] if x.optimizer_offload else []
    if x.activation_offload:
        parts.append(f"activations of {x.activation_offload_layers}")
    return ", ".join(parts)


def _of_run(name: str) -> Callable[["Plan"], Cell]:
    return lambda plan: getattr(plan.run, name) if plan.run else None


def _time_columns(in_seconds: bool) -> dict[str, ListColumn]:
    """Return the columns of step times by key, in s or in ms."""
    unit, per_s, digits = ("s", 1.0, 3) if in_seconds else ("ms", 1e3, 1)
    interval = "80 % prediction interval: eight of ten measured steps lie within it"
    return {
        column.key: column
        for column in (
            ListColumn("step", "Step", lambda p: p.step_time_s * per_s, digits, unit, place=3),
            ListColumn(
                "low", "From", lambda p: p.step_time_p10_s * per_s, digits, unit, interval, 11
            ),
            ListColumn(
                "high", "To", lambda p: p.step_time_p90_s * per_s, digits, unit, interval, 12
            ),
        )
    }


IN_SECONDS_S = 1.0
"""Step time from which the table shows seconds, as the card does."""
COLUMNS = (
    ListColumn("layout", "Layout", lambda p: degrees_words(p.layout, noun_of_plan(p)), place=1),
    ListColumn("details", "Details", _details, hint="what else the layout says", place=2),
    ListColumn(
        "tie",
        "Standing",
        tie_of,
        hint=f"tie: within {TIE_FRAC:.0%} of the best: the model cannot"
        f" tell them apart, and memory headroom in steps of {HEADROOM_STEP:.0%} orders them,"
        " then simplicity; near: slower than the first in fewer than four of five cases",
        place=13,
    ),
    ListColumn("pool", "Pool", lambda p: p.pool, place=6),
    ListColumn("precision", "Recipe", lambda p: p.recipe_label, place=7),
    ListColumn("devices", "{many}", lambda p: p.layout.n_devices, 0, place=8),
    _time_columns(True)["step"],
    _time_columns(True)["low"],
    _time_columns(True)["high"],
    ListColumn("tokens", "Tokens/s", lambda p: p.tokens_per_s_per_device, 0, "/{short}", place=10),
    ListColumn(
        "mfu",
        "MFU",
        lambda p: p.mfu * 100,
        1,
        "%",
        "Megatron's model FLOPs over the dense peak",
        9,
    ),
    ListColumn(
        "mfu-bf16",
        "MFU of bf16",
        lambda p: p.mfu_over_bf16 and p.mfu_over_bf16 * 100,
        1,
        "%",
        "over the dense bf16 peak, as papers print it",
    ),
    ListColumn(
        "memory",
        "Memory",
        lambda p: p.breakdown.peak_bytes / GIB,
        1,
        "GiB",
        "of the fullest {one}",
        4,
    ),
    ListColumn("free", "Free", lambda p: p.headroom_frac * 100, 1, "%", "of the usable memory"),
    ListColumn("bubble", "Bubble", lambda p: p.breakdown.bubble_frac * 100, 1, "%"),
    ListColumn(
        "comm",
        "Comm.",
        lambda p: p.breakdown.exposed_comm_frac * 100,
        1,
        "%",
        "communication that nothing hides",
    ),
    ListColumn(
        "days",
        "Run",
        lambda p: p.training_s and p.training_s / 86_400,
        1,
        "days",
        "of steps alone, without failures",
        14,
    ),
    ListColumn("cost", "Cost", _of_run("usd_per_million_tokens"), 3, "$/Mtok", place=15),
    ListColumn("energy", "Energy", _of_run("energy_j_per_token"), 2, "J/token"),
    ListColumn("tp", "tp", lambda p: p.layout.tp, 0, hint="tensor parallel"),
    ListColumn("pp", "pp", lambda p: p.layout.pp, 0, hint="pipeline stages"),
    ListColumn(
        "vpp", "vpp", lambda p: p.layout.vpp, 0, hint="chunks of layers per rank, interleaved"
    ),
    ListColumn("cp", "cp", lambda p: p.layout.cp, 0, hint="context parallel"),
    ListColumn("ep", "ep", lambda p: p.layout.ep, 0, hint="expert parallel"),
    ListColumn("etp", "etp", lambda p: p.layout.etp, 0, hint="tensor parallel of experts"),
    ListColumn("dp", "dp", lambda p: p.layout.dp, 0, hint="data parallel"),
    ListColumn("zero", "zero", lambda p: p.layout.zero, 0, hint="ZeRO stage"),
    ListColumn(
        "shard", "over", lambda p: p.layout.dp_shard, 0, hint="ranks that ZeRO shards over"
    ),
    ListColumn("hpz", "hpz", lambda p: p.layout.hpz, 0, hint="ranks of ZeRO++'s second copy"),
    ListColumn("mbs", "mbs", lambda p: p.layout.mbs, 0, hint="sequences in a micro-batch"),
    ListColumn("recompute", "Recomputation", _recompute),
    ListColumn("split", "Split", lambda p: p.layout.split if p.layout.pp > 1 else ""),
    ListColumn("schedule", "Schedule", lambda p: p.layout.schedule),
    ListColumn("offload", "Offload", _offload),
    ListColumn("runs", "Runs on", lambda p: ", ".join(p.runs_on)),
    ListColumn("rank", "#", lambda p: p.rank, 0),
    ListColumn("plan", "Plan", lambda p: p.plan_id, place=5),
)
"""All columns, in order; those of axes that no plan uses are left out (`list_columns_of`)."""


def shown_digits(value: Cell, digits: int | None) -> Cell:
    """Return a number with the digits that are shown, so that both sides show the same."""
    if digits is None or value is None or isinstance(value, str):
        return value
    if not math.isfinite(value):
        return None
    return round(value, digits) if digits else round(value)
