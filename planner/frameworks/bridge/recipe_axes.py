"""What the columns of a recipe are in the words of a layout and of a job: one table.

An entry whose axis (`costmodels.axes.AXES`) or field of `training:` does not exist is said as not
priced; it counts by itself once the name exists.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from costmodels.axes import AXES, OFFLOAD_MODULES, RECOMPUTE_MODULES
from costmodels.offload.modules import INSIDE_EXPERTS
from costmodels.precision import PRECISIONS
from costmodels.schedule.stages import spelled
from planner.errors import UsageError
from planner.frameworks.megatron.arguments import CP_COMMS, layout_counts
from planner.frameworks.megatron.mode_settings import WHOLE_EXPERTS
from planner.specs.schema import TrainingSpec
from planner.specs.search.axis_values import axis_values

Row = Mapping[str, str]
PRECISION_NAMES = {"fp8-current": ("fp8-current", "fp8-tensorwise")}
"""Our names of a precision, those of later releases first, where they are not the recipe's."""
REAL = ("1", "explicit", "te-default")


@dataclass(frozen=True, slots=True)
class RecipeAxes:
    """What a recipe says of the layout and of the job."""

    pins: Mapping[str, int | str]
    """Values by axis, as `--pin` takes them; what is off is left out."""
    training: Mapping[str, Any]
    """Fields of `training:` besides sequence and batch."""
    not_priced: tuple[str, ...] = ()
    """Settings that are on and have no price here: `dispatcher hybridep`."""
    missing: tuple[str, ...] = ()
    """What is missing and decides the job: `precision nvfp4`."""


def _number(column: str) -> Callable[[Row], Any]:
    return lambda row: int(row.get(column) or 1) if row.get(column) not in ("", "1") else None


def _is_on(column: str) -> Callable[[Row], Any]:
    return lambda row: "on" if row.get(column) in REAL else None


def _word(column: str) -> Callable[[Row], Any]:
    return lambda row: row.get(column) or None


def _zero(row: Row) -> Any:
    n_replicas = int(row["n_gpus"]) // (int(row["tp"]) * int(row["pp"]))
    if n_replicas == 1:
        return None
    if row.get("fsdp") == "1":
        strategies = {"no_shard": 0, "optim": 1, "optim_grads": 2}
        return strategies.get(row.get("fsdp_strategy") or "", 3)
    return 1 if row.get("distributed_optimizer") == "1" else 0


def _dp_shard(row: Row) -> Any:
    instances = int(row.get("optimizer_instances") or 1)
    n_ranks = int(row["n_gpus"]) // (int(row["tp"]) * int(row["pp"]))
    return n_ranks // instances if instances > 1 and n_ranks % instances == 0 else None


def _sp(row: Row) -> Any:
    return int(row.get("sp") == "1") if int(row["tp"]) > 1 else None


def _exchange(row: Row) -> Any:
    kind = row.get("cp_comm_type") or "p2p"
    return CP_COMMS.get(kind, kind) if int(row["cp"]) > 1 else None


def _recompute_layers(row: Row) -> Any:
    block = row.get("recompute_granularity") == "full" and row.get("recompute_method") == "block"
    return int(row["recompute_num_layers"]) if block else None


def _modules(row: Row) -> Any:
    if row.get("recompute_granularity") != "selective":
        return None
    names = (row.get("recompute_modules") or "").split("+")
    return "+".join(name for name in RECOMPUTE_MODULES if name in names) or None


def _offload_layers(row: Row) -> Any:
    on = row.get("offload_activations") == "1"
    return int(row["offload_layers"]) if on and row.get("offload_layers") else None


def _dp_overlap(row: Row) -> Any:
    alone = int(row["n_gpus"]) == int(row["tp"]) * int(row["pp"])
    return "off" if row.get("overlap_grad_reduce") == "0" and not alone else None


def _cuda_graph(row: Row) -> Any:
    kind = row.get("cuda_graph_impl") or "none"
    if kind == "none":
        return None
    return "full_iteration" if kind == "full_iteration" else row["cuda_graph_modules"] or "layer"


def _sent_modules(row: Row) -> Any:
    """Return the modules whose inputs wait on the host, in the order of the axis."""
    named = (row.get("offload_modules") or "").split("+")
    inside = WHOLE_EXPERTS in named
    names = [*named, *(INSIDE_EXPERTS if inside else ())]
    return "+".join(name for name in OFFLOAD_MODULES if name in names) or None


def _sent_partly(row: Row) -> Any:
    """Return the share of offloaded modules that leave, where it is not all of them."""
    fraction = row.get("activation_offload_fraction") or "1"
    return fraction if _sent_modules(row) and float(fraction) < 1.0 else None


def _delayed(row: Row) -> Any:
    """Return whether weight gradients wait, where `ep_overlap` has not priced that."""
    return None if row.get("ep_overlap") == "1" else _is_on("delay_wgrad")(row)


def _stash(row: Row) -> Any:
    """Return whether rows are stashed, where a graph of the iteration has not priced that."""
    is_whole_graph = _cuda_graph(row) == "full_iteration"
    return None if is_whole_graph else _is_on("moe_paged_stash")(row)


AXES_OF_COLUMNS: tuple[tuple[str, Callable[[Row], Any]], ...] = (
    *((name, _number(name)) for name in ("tp", "pp", "cp", "ep", "etp", "vpp", "mbs")),
    ("sp", _sp),
    ("cp_comm", _exchange),
    ("zero", _zero),
    ("dp_shard", _dp_shard),
    ("recompute", lambda row: "full" if row.get("recompute_granularity") == "full" else None),
    ("recompute_layers", _recompute_layers),
    ("recompute_modules", _modules),
    ("activation_offload_layers", _offload_layers),
    ("optimizer_offload", _is_on("optimizer_cpu_offload")),
    ("dp_overlap", _dp_overlap),
    ("tp_overlap", lambda row: "on" if row.get("tp_comm_overlap") == "1" and _sp(row) else None),
    ("dispatcher", lambda row: row.get("dispatcher") or None if int(row["ep"]) > 1 else None),
    ("ep_overlap", lambda row: "1f1b" if row.get("ep_overlap") == "1" else None),
    ("cuda_graph", _cuda_graph),
    ("offload_modules", _sent_modules),
    ("activation_offload_fraction", _sent_partly),
    ("tp_user_buffers", lambda row: _is_on("tp_user_buffers")(row) if _sp(row) else None),
    ("delay_wgrad", _delayed),
    ("defer_embedding_wgrad", _is_on("defer_embedding_wgrad")),
    ("moe_paged_stash", _stash),
    ("nccl_ub", _is_on("nccl_ub")),
)
"""Value of an axis by the row, None where it is off. The split of the layers stands apart."""


def _width(*columns: str) -> Callable[[Row], Any]:
    """Return "bf16" where one of some columns is stored in 16 bits."""
    return lambda row: next(("bf16" for c in columns if row.get(c) in ("bf16", "bfp16")), None)


def _bf16_layers(row: Row) -> Any:
    """Return the layers at both ends that stay in bf16."""
    if row.get("first_last_layers_bf16") != "1":
        return None
    return [int(row.get(f"n_bf16_{end}") or 1) for end in ("first", "last")]


def _main_grads(row: Row) -> Any:
    """Return the width of the optimizer's gradients where `grad_dtype` does not say it."""
    return None if row.get("grad_reduce_in_fp32") == "0" else _width("main_grads")(row)


def _gathers(row: Row) -> Any:
    return True if "1" in (row.get("fp8_param_gather"), row.get("fp4_param_gather")) else None


def _reused_buffer(row: Row) -> Any:
    """Return whether a gather reuses gradients where it is not that of mxfp8 weights."""
    of_gather = row["precision"] == "fp8-mxfp8" and _gathers(row)
    return None if of_gather else _is_on("reuse_grad_buf_for_mxfp8_ag")(row)


def _is_true(name: str) -> Callable[[Row], Any]:
    """Return True where a column is 1."""
    return lambda row: True if row.get(name) == "1" else None


FIELDS_OF_COLUMNS: tuple[tuple[str, Callable[[Row], Any]], ...] = (
    ("grad_dtype", lambda row: "bf16" if row.get("grad_reduce_in_fp32") == "0" else None),
    ("optimizer_states", lambda row: "bf16-moments" if _width("exp_avg")(row) else None),
    ("main_grads_dtype", _main_grads),
    ("fp8_param_gather", _gathers),
    ("fp8_attention", _is_true("fp8_dot_product_attention")),
    ("fp8_output", _is_true("fp8_output_proj")),
    ("bf16_layers", _bf16_layers),
    ("reuse_grad_buf_for_mxfp8_ag", _reused_buffer),
)
"""Value of a field of `training:` by the row, None where it has its default."""


@dataclass(slots=True)
class _Read:
    pins: dict[str, int | str] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    not_priced: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def pin(self, axis: str, value: Any) -> bool:
        """Fix an axis where it has this value; tell whether it has."""
        if axis in AXES:
            try:
                axis_values(axis, value, "--pin")
            except UsageError:
                return False
            self.pins[axis] = value
            return True
        return False


def recipe_axes(row: Row, layers: int) -> RecipeAxes:
    """Return the axes of a row's layout and the fields of its job."""
    out = _Read()
    for axis, value_of in AXES_OF_COLUMNS:
        value = value_of(row)
        if value is not None and not out.pin(axis, value):
            out.not_priced.append(f"{axis} {value}")
    other = set((row.get("recompute_modules") or "").split("+")) - {"", *RECOMPUTE_MODULES}
    out.not_priced += [f"recompute {name}" for name in sorted(other)]
    _split(row, layers, out)
    _precision(row, out)
    return RecipeAxes(out.pins, out.training, tuple(out.not_priced), tuple(out.missing))


def _precision(row: Row, out: _Read) -> None:
    """Fill the numeric recipe, and the widths that a job may state."""
    named = row["precision"]
    ours = next((x for x in PRECISION_NAMES.get(named, (named,)) if x in PRECISIONS), "")
    if not ours:
        out.missing.append(f"precision {named}")
    out.training["precision"] = ours or "bf16"
    for name, value_of in FIELDS_OF_COLUMNS:
        value = value_of(row)
        if value is None:
            continue
        if name in TrainingSpec.model_fields:
            out.training[name] = value
        elif name == "grad_dtype" and f"{ours}-grads" in PRECISIONS:
            out.training["precision"] = f"{ours}-grads"
        elif not out.pin(name, value):
            out.not_priced.append(name if value is True else f"{name} {value}")


def _split(row: Row, layers: int, out: _Read) -> None:
    """Fill the layers of the stages where the recipe states them."""
    pp, vpp = int(row["pp"]), int(row.get("vpp") or 1)
    first, last = row.get("first_stage_layers"), row.get("last_stage_layers")
    if pp == 1:
        return
    counts: tuple[int, ...] = ()
    if row.get("pp_layout"):
        counts = layout_counts(row["pp_layout"])
    elif first or last:
        n_ends = bool(first) + bool(last)
        middle = (layers - int(first or 0) - int(last or 0)) // max(1, pp - n_ends)
        ranks = [int(first or middle), *[middle] * (pp - 2), int(last or middle)]
        counts = tuple(n // vpp for _ in range(vpp) for n in ranks)
    elif row.get("embed_in_split") == "1" and row.get("loss_in_split") == "1":
        if (layers + 2) // (pp * vpp) > 1:
            out.pin("split", "ends")
            return
        counts = (0, *[1] * layers, 0)
    if counts and not out.pin("split", spelled(counts)):
        out.missing.append("stages with the embedding or the loss alone")
