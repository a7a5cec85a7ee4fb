"""The axes of a layout, one record each: every list of axes in the product is derived from these.

An axis is one thing about a layout that can be chosen. Its record holds what all parts of the
product have to know of it (name, values, the value at rest, where tables keep it); its physics,
its rules and its flags stand where those of the others stand. `docs/extending.md` says how one is
added.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from costmodels.schedule.stages import SPLITS

Ints = NDArray[np.int32]
Value = int | str | bool | tuple[str, ...]
"""The value of an axis in a layout."""
Table = Literal["shape", "batch", "sharding", "recompute", "mode", "derived"]
"""Where tables of plans keep an axis: see `Axis.table`."""

SCHEDULES = (
    "none",
    "gpipe",
    "1f1b",
    "interleaved",
    "zb-h1",
    "zb-v",
    "dualpipe",
    "dualpipe-v",
)
RECOMPUTES = ("none", "selective", "full")
RECOMPUTE_MODULES = (
    "core_attn",
    "moe_act",
    "layernorm",
    "mla_up_proj",
    "mlp",
    "moe",
    "shared_experts",
    "gdn_norm_out",
)
"""Modules that `selective` may compute again, as Megatron-LM names them (`layers.recompute`).
A set of them is a number whose bit i stands for module i."""
CP_COMMS = ("", "p2p", "all-gather", "a2a")
"""How context-parallel ranks exchange keys and values; nothing at cp 1."""
RANK_ORDERS = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")
"""How ranks are numbered, the innermost axis first: the usual order, and the one with whole
pipelines inside (Megatron's --use-tp-pp-dp-mapping). Experts: tp and ep fold over tp cp dp, or,
where pipelines lie inside, over tp cp."""
DISPATCHERS = ("alltoall", "allgather", "deepep", "hybridep")
"""How tokens reach their experts: a copy for every expert, every token to every rank, or one copy
to every node or NVLink domain that holds one of its experts (`costmodels.comm.dispatch`)."""
EP_OVERLAPS = ("off", "1f1b", "dualpipe")
"""What hides the exchange of tokens: nothing, the other micro-batch of a combined 1F1B, or that of
DualPipe (`costmodels.comm.expert_overlap`)."""
CUDA_GRAPHS = (
    "none",
    "attn",
    "mlp",
    "attn+mlp",
    "moe_router",
    "moe_router+moe_preprocess",
    "attn+moe_router",
    "attn+moe_router+moe_preprocess",
    "layer",
    "full_iteration",
)
"""What is captured in CUDA graphs: modules of a layer as Megatron-LM names them, the whole layer,
or forwards and backwards of all micro-batches (`costmodels.schedule.launches`)."""
OFFLOAD_MODULES = (
    "attn_norm",
    "qkv_linear",
    "core_attn",
    "attn_proj",
    "mlp_norm",
    "expert_fc1",
    "moe_act",
)
"""Modules whose inputs may wait on the host, as Megatron-LM names them (`offload.modules`).
A set of them is a number whose bit i stands for module i."""
MAX_VALUE = 10_000_000
"""Largest value of an axis without a bound of its own, which the tables of plans can hold."""
SWITCH = ("off", "on")
"""Words of an axis that is a switch."""


def modules_code(names: Iterable[str], modules: Sequence[str] = RECOMPUTE_MODULES) -> int:
    """Return the number of a set of modules.

    >>> modules_code(["mlp", "layernorm"]), modules_code(["core_attn"], OFFLOAD_MODULES)
    (20, 4)
    """
    return sum(1 << modules.index(name) for name in set(names))


def modules_of(code: int, modules: Sequence[str] = RECOMPUTE_MODULES) -> tuple[str, ...]:
    """Return the modules of a set, in their order.

    >>> modules_of(20)
    ('layernorm', 'mlp')
    """
    return tuple(name for i, name in enumerate(modules) if code >> i & 1)


def _sets(modules: Sequence[str]) -> tuple[str, ...]:
    """Return every set of modules as a word, at its number."""
    codes = range(1 << len(modules))
    return tuple("+".join(modules_of(code, modules)) or "none" for code in codes)


MODULE_SETS = _sets(RECOMPUTE_MODULES)
"""Every set of recomputed modules as a word, at its number (`modules_code`)."""
OFFLOAD_SETS = _sets(OFFLOAD_MODULES)
"""The same of offloaded modules."""
MODULES_OF_AXES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"recompute_modules": RECOMPUTE_MODULES, "offload_modules": OFFLOAD_MODULES}
)
"""Modules of the axes whose values are sets of them."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One thing about a layout that can be chosen."""

    name: str
    """Its name in `--pin`, JSON, sweeps, requests; of `Layout` too where that has a field."""
    title: str
    """What its value says, a noun phrase: "sequences in a micro-batch"."""
    table: Table
    """Where tables of plans keep it. `shape`: a column of `ShapeTable`, coupled by rules of
    degrees; `batch`: with the micro-batch; `sharding`: of `ShardingTable`; `recompute`: with the
    recompute options; `mode`: how a layer runs, crossed with everything; `derived`: nowhere, it
    follows from another axis."""
    off: Value = 1
    """The value of a layout that does without it."""
    choices: tuple[str, ...] = ()
    """Its values where they are words, at their positions in tables."""
    least: int = 1
    """Least number."""
    largest: int = MAX_VALUE
    """Largest number."""
    is_always_written: bool = True
    """Whether JSON holds it where it is off: a later axis changes the id of no older plan."""
    has_field: bool = True
    """Whether `Layout` has a field (or property) of its name; the others lie in
    `Layout.switches`."""
    is_searched: bool = True
    """Whether a search looks at its values unless they are named; the others stay off."""
    is_stepped: bool = True
    """Whether neighbours of a plan change it."""
    meaning: str = ""
    """What a difference in it means, where two plans are compared; the title where empty."""
    label: str = ""
    """Its name in tables and sentences for people; the name where empty."""

    @property
    def is_switch(self) -> bool:
        """Whether it is either off or on."""
        return self.choices == SWITCH

    def code(self, value: Any) -> int:
        """Return the number by which tables keep a value."""
        if self.name == "recompute_modules":
            return modules_code(value) if not isinstance(value, str) else MODULE_SETS.index(value)
        if self.name == "rank_order" and value not in self.choices:
            return 0  # an existing run may have another order, which is priced as the usual one
        if self.choices and isinstance(value, str):
            return self.choices.index(value or self.choices[0])
        return int(value)

    def value(self, code: int) -> Value:
        """Return the value of a layout that tables keep as `code`, the inverse of `code`."""
        if self.name == "recompute_modules":
            return modules_of(code)
        if isinstance(self.off, bool):
            return bool(code)
        if self.choices:
            word = self.choices[code]
            return self.off if code == 0 and isinstance(self.off, str) else word
        return int(code)

    def text(self, value: Any) -> str:
        """Return a value as it is written in a sentence: a switch as off or on."""
        if self.is_switch:
            return SWITCH[bool(value)]
        return self.choices[self.code(value)] if self.choices else str(value)


_RECORDS = (
    Axis("tp", "ranks over which a layer is cut", "shape"),
    Axis("pp", "pipeline stages", "shape"),
    Axis("dp", "copies of the model that share the batch", "shape", is_stepped=False),
    Axis("cp", "ranks over which a sequence is cut", "shape"),
    Axis("ep", "ranks over which experts are spread", "shape"),
    Axis("etp", "ranks over which an expert is cut", "shape"),
    Axis("vpp", "model chunks of a pipeline rank", "shape", largest=256),
    Axis("split", "layers of the stages", "shape", "even", SPLITS),
    Axis(
        "schedule",
        "order of forwards and backwards",
        "shape",
        "none",
        SCHEDULES,
        is_stepped=False,
    ),
    Axis("mbs", "sequences in a micro-batch", "batch"),
    Axis("zero", "ZeRO stage: which states data-parallel ranks share", "sharding", 0, (), 0, 3),
    Axis("dp_shard", "ranks over which ZeRO shards", "sharding"),
    Axis(
        "hpz",
        "ranks that share a second copy of the weights",
        "sharding",
        is_always_written=False,
        is_searched=False,
        meaning="ranks that share a second copy of the weights (1: there is none)",
    ),
    Axis("sp", "activations between the layers cut over tp", "mode", False, (), 0, 1),
    Axis(
        "cp_comm",
        "how keys and values are exchanged",
        "shape",
        "",
        ("none", *CP_COMMS[1:]),
        is_always_written=False,
    ),
    Axis("recompute", "what runs forward twice", "recompute", "none", RECOMPUTES),
    Axis("recompute_layers", "recomputed layers of a virtual stage", "recompute", 0, (), 0),
    Axis("recompute_modules", "modules that run forward twice", "recompute", (), MODULE_SETS),
    Axis(
        "optimizer_offload",
        "where the optimizer states are, and the update runs",
        "sharding",
        False,
        SWITCH,
        is_always_written=False,
        is_searched=False,
        label="offload",
    ),
    Axis(
        "activation_offload",
        "whether stored activations are on the host",
        "derived",
        False,
        SWITCH,
        is_always_written=False,
        is_searched=False,
        is_stepped=False,
    ),
    Axis(
        "activation_offload_layers",
        "layers whose stored activations are on the host",
        "recompute",
        0,
        (),
        0,
        is_always_written=False,
        is_searched=False,
        label="activation offload",
    ),
    Axis(
        "dp_overlap",
        "data-parallel traffic beside compute",
        "sharding",
        True,
        SWITCH,
        is_always_written=False,
    ),
    Axis(
        "tp_overlap",
        "tensor-parallel traffic in pieces beside the GEMMs",
        "mode",
        False,
        SWITCH,
        is_always_written=False,
        is_searched=False,
    ),
    Axis(
        "dispatcher",
        "how tokens reach their experts",
        "mode",
        "alltoall",
        DISPATCHERS,
        is_always_written=False,
        has_field=False,
    ),
    Axis(
        "ep_overlap",
        "exchange of tokens beside the compute of another micro-batch",
        "mode",
        "off",
        EP_OVERLAPS,
        is_always_written=False,
        has_field=False,
    ),
    Axis(
        "cuda_graph",
        "what is captured in CUDA graphs",
        "mode",
        "none",
        CUDA_GRAPHS,
        is_always_written=False,
        has_field=False,
    ),
    Axis(
        "offload_modules",
        "modules whose inputs wait on the host for the backward",
        "mode",
        "none",
        OFFLOAD_SETS,
        is_always_written=False,
        has_field=False,
        is_searched=False,
        label="module offload",
    ),
    Axis(
        "rank_order", "the order in which ranks are numbered", "shape", RANK_ORDERS[0], RANK_ORDERS
    ),
)
_AXES: dict[str, Axis] = {axis.name: axis for axis in _RECORDS}
AXES: Mapping[str, Axis] = MappingProxyType(_AXES)
"""All axes by name, in the order in which changes are named and neighbours are tried."""


def register_axis(axis: Axis) -> None:
    """Add an axis, before the modules that derive their lists from `AXES` are imported.

    A new axis whose physics is in no column of a table yet is a `mode` without a field of
    `Layout`: it is carried from the request to the files by its name. Raises `ValueError` where
    the name is taken.
    """
    if axis.name in _AXES:
        raise ValueError(f"there is an axis {axis.name!r} already")
    _AXES[axis.name] = axis


def axis_names(*tables: Table) -> tuple[str, ...]:
    """Return the names of the axes that some tables hold, of all without any.

    >>> axis_names("batch", "derived")
    ('mbs', 'activation_offload')
    """
    return tuple(name for name, axis in AXES.items() if not tables or axis.table in tables)


def switch_axes() -> tuple[Axis, ...]:
    """Return the axes without a field of `Layout`, which its `switches` hold."""
    return tuple(axis for axis in AXES.values() if not axis.has_field)


def off_values(*names: str) -> dict[str, Value]:
    """Return the values at rest of some axes.

    >>> off_values("ep", "sp")
    {'ep': 1, 'sp': False}
    """
    return {name: AXES[name].off for name in names}


@dataclass(frozen=True, slots=True)
class SwitchTable:
    """Combinations of the axes in `Layout.switches`; arrays `(n,)`, one row a combination."""

    columns: Mapping[str, Ints]
    """Table values by axis; an axis that is left out is off in every row."""
    size: int = 1

    def __len__(self) -> int:
        return self.size

    def column(self, name: str) -> Ints:
        """Return the table values of an axis, `(n,)`."""
        axis = AXES[name]
        at_rest = np.full(self.size, axis.code(axis.off), dtype=np.int32)
        return self.columns.get(name, at_rest)

    def row(self, row: int) -> tuple[tuple[str, Value], ...]:
        """Return what is not off in a row: `Layout.switches`."""
        values = ((name, AXES[name].value(int(self.columns[name][row]))) for name in self.columns)
        return tuple((name, value) for name, value in values if value != AXES[name].off)

    @staticmethod
    def of_product(values: Mapping[str, Iterable[int]]) -> "SwitchTable":
        """Return every combination of some values of some axes, the last axis quickest."""
        rows = list(product(*(sorted(codes) for codes in values.values())))
        block = np.array(rows, dtype=np.int32).reshape(len(rows), len(values))
        return SwitchTable(dict(zip(values, block.T.copy(), strict=True)), len(rows))

    @staticmethod
    def of_rows(rows: Iterable[tuple[tuple[str, Value], ...]]) -> "SwitchTable":
        """Return given combinations, each as `Layout.switches` holds it."""
        entries = [dict(row) for row in rows]
        names = [axis.name for axis in switch_axes() if any(axis.name in x for x in entries)]
        columns = {
            name: np.array(
                [AXES[name].code(x.get(name, AXES[name].off)) for x in entries], dtype=np.int32
            )
            for name in names
        }
        return SwitchTable(columns, len(entries))


NO_SWITCHES = SwitchTable({})
"""One row with everything off."""
