"""Layouts in and out of the product: JSON, and pins given on the command line."""

import math
import re
from collections.abc import Mapping
from typing import Any

from costmodels.axes import AXES as RECORDS
from costmodels.axes import (
    CP_COMMS,
    MAX_VALUE,
    MODULE_SETS,
    MODULES_OF_AXES,
    SWITCH,
    modules_code,
    modules_of,
    switch_axes,
)
from costmodels.offload.activations import RESIDENT_LAYERS
from costmodels.plans import PLACEMENT_OF, Layout
from costmodels.precision import (
    GRAD_DTYPES,
    OPTIMIZER_STATES,
    PRECISION_ALIASES,
    PRECISIONS,
)
from costmodels.schedule.stages import FOLDED, SPLITS, spelled, stage_layers
from planner.errors import SearchError, UsageError
from planner.option_names import command, option, option_or_section
from planner.specs.schema import TrainingSpec
from searches.options import AXES, TEXT_AXES
from searches.rules import RULES, Context, first_broken_rule

DEVICES = "devices"
"""The axis of the number of accelerators in use."""
PRECISION = "precision"
"""The axis of the numeric recipe."""
NUMERICS: Mapping[str, tuple[str, ...]] = {
    PRECISION: PRECISIONS,
    "grad_dtype": GRAD_DTYPES,
    "optimizer_states": OPTIMIZER_STATES,
    "fp8_param_gather": SWITCH,
    "fp8_attention": SWITCH,
    "fp8_output": SWITCH,
}
"""Axes of the job's numbers, and their values: never open unless they are named, as they change
what is computed."""
PROBLEM_AXES = (DEVICES, *NUMERICS)
"""Axes that change the problem, not the layout: each of their values is searched."""
WORDS: Mapping[str, tuple[str, ...]] = {**TEXT_AXES, **NUMERICS}
"""The values of the axes that are words, at their positions."""


def layout_to_json(layout: Layout) -> dict[str, Any]:
    """Return a layout with the field names of the result schema.

    An axis that came later stands there only where it is in use: off, it changes no plan's id.
    """
    names = dict.fromkeys(axis.name for axis in RECORDS.values() if axis.is_always_written)
    values = {name: layout.value(name) for name in names}
    in_use = {k: v for k, v in layout.in_use.items() if k != "activation_offload"}
    derived: dict[str, Any] = {
        "gbs": layout.gbs,
        "n_micro": layout.n_micro,
        "recompute_modules": list(layout.recompute_modules),
        "stage_layers": list(layout.stage_layers),
    }
    return {"n_devices": layout.n_devices} | values | in_use | derived


def layout_from_json(data: Mapping[str, Any]) -> Layout:
    """Return the layout that `layout_to_json` wrote."""
    derived = ("dp_shard", "n_micro", *NUMERICS)
    fields = {name: value for name, value in data.items() if name not in derived}
    for name in ("stage_layers", "recompute_modules"):
        fields[name] = tuple(fields.get(name, ()))
    own = [axis.name for axis in switch_axes() if axis.name in fields]
    switches = tuple((name, fields.pop(name)) for name in own)
    is_full_group = data["dp_shard"] == data["dp"] * data["cp"]
    return Layout(**fields, switches=switches, shard=0 if is_full_group else data["dp_shard"])


SWITCH_FORMS = {"false": 0, "true": 1, "0": 0, "1": 1}
"""Other ways to write them."""


def axis_values(axis: str, value: object, flag: str) -> int:
    """Return the table value of one axis as users write it: `full`, `8`, "8", true.

    `flag` is the option that gives it, `--pin`.
    """
    text = str(value).lower() if isinstance(value, bool) else str(value).strip()
    if axis not in (*AXES, *PROBLEM_AXES):
        raise _unknown_axis(axis, text, flag)
    if axis in MODULES_OF_AXES:
        return _modules(text, axis, flag)
    if axis == "split" and flag == "--pin" and re.fullmatch(r"[\dx-]*\d[\dx-]*", text):
        return _split_code(text)
    labels = WORDS.get(axis)
    if labels == SWITCH and text.lower() in SWITCH_FORMS:
        return SWITCH_FORMS[text.lower()]
    if axis == PRECISION:
        text = PRECISION_ALIASES.get(text, text)
    if labels:
        if text not in labels:
            message = option_or_section(flag) + f": {axis} cannot be {text!r}"
            raise UsageError(message, f"one of {', '.join(labels)}", code="bad-value")
        return labels.index(text)
    if axis == "sp" and text.lower() in ("true", "false", *SWITCH):
        return int(text.lower() in ("true", "on"))
    try:
        number = int(text)
    except ValueError:
        raise UsageError(
            option_or_section(flag) + f": {axis} needs a whole number, not {text!r}",
            "for example " + option_or_section(flag, f"{axis}=1"),
            code="bad-form",
        ) from None
    record = RECORDS.get(axis)
    least, maximum = (record.least, record.largest) if record else (1, MAX_VALUE)
    if number < least:
        raise UsageError(
            option_or_section(flag) + f": {axis} must be at least {least}, not {number}",
            "for example " + option_or_section(flag, f"{axis}={least}"),
            code="out-of-range",
        )
    if number > maximum:
        raise UsageError(
            option_or_section(flag) + f": {axis} is at most {maximum}, not {text}",
            "for example " + option_or_section(flag, f"{axis}={min(maximum, 8)}"),
            code="out-of-range",
        )
    return number


def _unknown_axis(axis: str, text: str, flag: str) -> UsageError:
    """Return the error for a word that is no axis: a field of the job is stated, not searched."""
    message = option_or_section(flag) + f": unknown axis {axis!r}"
    if axis in TrainingSpec.model_fields:
        stated = option("set", f"training.{axis}={text}")
        fix = f"it is stated, not searched, as it changes what is trained: {stated}"
        return UsageError(message, fix, code="unknown-name")
    names = ", ".join((*AXES, *PROBLEM_AXES))
    return UsageError(message, f"axes: {names}", code="unknown-name")


MOST_STAGES, COUNT_BITS = 512, 16
"""Virtual stages of a pinned split at most, and the bits of a stage's layers in its number."""


def _split_code(text: str) -> int:
    """Return the number of a split spelled out, `9-11-11-9` or `9-2x11-9`; above words."""
    counts: list[int] = []
    for part in text.split("-"):
        match = re.fullmatch(r"(?:(\d{1,3})x)?(\d{1,4})", part)
        if not match or int(match[1] or 1) < 1:
            raise UsageError(
                option("pin") + f": split cannot be {text!r}: {part!r} is no number of layers",
                "even, ends, or the layers of each virtual stage: "
                + option("pin", "split=9-11-11-9")
                + ", or 9-2x11-9",
                code="bad-form",
            )
        counts += [int(match[2])] * int(match[1] or 1)
    if len(counts) > MOST_STAGES:
        raise UsageError(
            option("pin") + f": split names {len(counts)} stages",
            f"{MOST_STAGES} can be priced at most",
        )
    code = 1
    for count in counts:
        code = code << COUNT_BITS | count
    return code


def pinned_stages(code: int) -> tuple[int, ...]:
    """Return the layers of each virtual stage of a split spelled out, () for one with a name."""
    counts: list[int] = []
    while code >> COUNT_BITS:
        counts.insert(0, code & (1 << COUNT_BITS) - 1)
        code >>= COUNT_BITS
    return tuple(counts)


def axis_text(axis: str, value: int) -> str:
    """Return the value of an axis as it is written, the inverse of `axis_values`."""
    if axis == "split" and pinned_stages(value):
        return spelled(pinned_stages(value))
    return WORDS[axis][value] if axis in WORDS else str(value)


def axis_value(axis: str, code: int) -> int | str:
    """Return the value of an axis as files and JSON hold it: a number, or a word."""
    return axis_text(axis, code) if axis in WORDS else code


def _modules(text: str, axis: str, flag: str) -> int:
    """Return the number of a set of modules such as `mlp+layernorm`, in any order; 0 for none."""
    names, modules = [] if text == "none" else text.split("+"), MODULES_OF_AXES[axis]
    unknown = [name for name in names if name not in modules]
    if unknown:
        raise UsageError(
            option_or_section(flag)
            + f": {axis} cannot be {text!r}: there is no module {unknown[0]!r}",
            f"none, or some of {', '.join(modules)} joined by +",
            code="bad-value",
        )
    return modules_code(names, modules)


def _recompute(pins: Mapping[str, int], counts: tuple[int, ...]) -> tuple[str, int, int]:
    """Return kind, layers per virtual stage and set of modules; `SearchError` contradicting."""
    modules = pins.get("recompute_modules", 0)
    kind = TEXT_AXES["recompute"][pins.get("recompute", 0)]
    if "recompute" not in pins and modules:
        kind = "selective"
    elif kind == "none" and pins.get("recompute_layers"):
        kind = "full"
    empty = kind == "selective" and "recompute_modules" in pins and not modules
    if empty or (modules and kind != "selective"):
        raise SearchError(
            f"recompute_modules {MODULE_SETS[modules]} contradicts recompute {kind}",
            "recompute selective with modules, another kind without them",
            code="contradiction",
        )
    longest = max(counts, default=0)
    k = min(pins.get("recompute_layers", longest), longest)
    return kind, k if kind == "full" else 0, modules


def _activation_offload(pins: Mapping[str, int], layers: int, recomputed: int) -> int:
    """Return the layers whose activations are on the host; `SearchError` contradicting."""
    n = pins.get("activation_offload_layers", 0)
    on = pins.get("activation_offload", int(n > 0))
    if "activation_offload_layers" in pins and on != (n > 0):
        raise SearchError(
            f"activation_offload_layers {n} contradicts activation_offload {SWITCH[on]}",
            "name one of them, or both alike",
            code="contradiction",
        )
    maximum = recomputed or max(1, layers - RESIDENT_LAYERS)
    return n or on * maximum


def _data_parallel(context: Context, pins: Mapping[str, int]) -> int:
    """Return the dp that the other degrees leave; raise `SearchError` where none does."""
    n, named = context.n_devices, {axis: pins.get(axis, 1) for axis in ("tp", "pp", "cp")}
    if pins.get("cp", 1) == 1:
        del named["cp"]
    factors = [f"{axis} {value}" for axis, value in named.items()]
    product = math.prod(named.values())
    if n % product:
        raise SearchError(
            f"{n} devices are not a multiple of {' x '.join(factors)}",
            f"pin {' and '.join(named)} so that their product divides {n}",
        )
    dp = n // product
    if pins.get("dp", dp) != dp:
        raise SearchError(
            f"dp {pins['dp']} contradicts {' and '.join(factors)} on {n} devices",
            f"drop dp, or change {' and '.join(named)}: "
            f"dp is devices / ({' '.join(named)}) = {dp}",
            code="contradiction",
        )
    return dp


def _exchange(pins: Mapping[str, int]) -> str:
    """Return how the cp ranks exchange keys and values; `SearchError` for a contradiction."""
    several = pins.get("cp", 1) > 1
    kind = CP_COMMS[pins.get("cp_comm", CP_COMMS.index("p2p") if several else 0)]
    if several != bool(kind):
        raise SearchError(
            f"cp_comm {kind or 'none'} contradicts cp {pins.get('cp', 1)}",
            "pin cp above 1 with it"
            if kind
            else "leave cp_comm out, or name p2p, all-gather, a2a",
            code="contradiction",
        )
    return kind


def _shard(pins: Mapping[str, int], zero: int, ranks: int) -> int:
    """Return the size of the ZeRO groups, 0 for all `ranks`; `SearchError` where none has it."""
    named = pins.get("dp_shard", ranks)
    if named == ranks:
        return 0
    if not zero:
        raise SearchError(
            f"dp_shard {named} contradicts zero 0, which shards nothing",
            "zero 1, 2 or 3 with it, or drop dp_shard",
            code="contradiction",
        )
    if named < 2 or ranks % named:
        raise unequal_groups(named, ranks)
    return named


def unequal_groups(size: int, ranks: int) -> SearchError:
    """Return what is wrong with ZeRO groups of `size` where dp x cp comes to `ranks`."""
    return SearchError(
        f"dp_shard {size} cuts the {ranks} ranks of dp x cp into no equal groups",
        f"a divisor of {ranks} above 1, or drop dp_shard",
    )


def _named_split(counts: tuple[int, ...], layers: int, pp: int, vpp: int) -> str:
    """Return the name of a split: a word where one gives it; `SearchError` where it is none."""
    text, n = spelled(counts), pp * vpp
    if len(counts) != n:
        raise SearchError(
            f"split {text} has {len(counts)} stages, and pp {pp} x vpp {vpp} makes {n}",
            f"name the layers of {n} virtual stages, or change pp or vpp",
        )
    if sum(counts) != layers:
        raise SearchError(
            f"split {text} holds {sum(counts)} layers, and the model has {layers}",
            f"layers of {n} virtual stages that add up to {layers}",
        )
    return next((x for x in SPLITS if stage_layers(layers, pp, vpp, x) == counts), text)


def layout_from_pins(context: Context, pins: Mapping[str, int]) -> Layout:
    """Return the one layout that `pins` describe; axes not named take their plainest value.

    tp, pp, cp, ep, etp, mbs default to 1, vpp to 2 with a schedule that folds the pipeline and to
    1 with any other, cp_comm to p2p with cp, zero to 3 with hpz (which defaults to 1) and else to
    1 where there is data or context parallelism, sp to on with tp,
    recompute to none (`full` recomputes every layer unless `recompute_layers` says otherwise,
    `selective` the attention core unless `recompute_modules` does, which alone mean selective),
    activation_offload to off (`on` means all recomputed layers, or else all but two), dp_shard to
    all dp cp ranks, the split to `even` where the layers divide and else to `ends`, rank_order to
    the usual one.
    A split spelled out says how many stages there are, unless pp does.
    Raises `SearchError` with the rule that it breaks.
    """
    shape, job = context.problem.shape, context.problem.job
    tp, pp, cp, mbs = (pins.get(axis, 1) for axis in ("tp", "pp", "cp", "mbs"))
    named = TEXT_AXES["schedule"][pins["schedule"]] if "schedule" in pins else ""
    vpp = pins.get("vpp", 2 if PLACEMENT_OF.get(named) == FOLDED else 1)
    stages = pinned_stages(pins.get("split", 0))
    if stages and "pp" not in pins:
        pp = max(1, len(stages) // vpp)
        pins = {**pins, "pp": pp}
    dp, cp_comm = _data_parallel(context, pins), _exchange(pins)
    split = "even" if stage_layers(shape.layers, pp, vpp, "even") else "ends"
    if stages:
        split = _named_split(stages, shape.layers, pp, vpp)
    elif "split" in pins:
        split = TEXT_AXES["split"][pins["split"]]
    counts = stage_layers(shape.layers, pp, vpp, split)
    recompute, recompute_layers, modules = _recompute(pins, counts)
    hpz = pins.get("hpz", 1)
    zero = pins.get("zero", 3 if hpz > 1 else 1 if dp * cp > 1 else 0)
    implied = "none" if pp == 1 else "interleaved" if vpp > 1 else "1f1b"
    values: dict[str, Any] = {
        axis.name: axis.value(pins[axis.name]) if axis.name in pins else axis.off
        for axis in RECORDS.values()
        if axis.has_field and axis.table != "derived" and axis.name not in ("split", "dp_shard")
    }
    degrees = {"tp": tp, "pp": pp, "dp": dp, "cp": cp, "vpp": vpp}
    own = [axis for axis in switch_axes() if axis.name in pins]
    switches = ((axis.name, axis.value(pins[axis.name])) for axis in own)
    values |= degrees | {
        "split": split,
        "mbs": mbs,
        "zero": zero,
        "sp": bool(pins.get("sp", int(tp > 1))),
        "schedule": named or implied,
        "recompute": recompute,
        "recompute_layers": recompute_layers,
        "recompute_modules": modules_of(modules),
        "activation_offload_layers": _activation_offload(pins, shape.layers, recompute_layers),
    }
    layout = Layout(
        **values | {"cp_comm": cp_comm},
        n_devices=context.n_devices,
        gbs=job.global_batch,
        stage_layers=counts,
        shard=_shard(pins, zero, dp * cp),
        switches=tuple((n, value) for n, value in switches if value != RECORDS[n].off),
    )
    broken = first_broken_rule(context, layout)
    if broken:
        rule = RULES[broken]
        raise SearchError(
            f"this layout breaks {rule.code} ({rule.title}): {rule.why}",
            f"{rule.relax}; " + command(f"rule {rule.code}"),
            code="breaks-rule",
        )
    return layout
