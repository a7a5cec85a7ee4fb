"""What framework rules look at: one plan, one existing run, or all plans of some shapes at once.

A field is a number, or an array that broadcasts with the other fields to shapes x sp x sharding x
recompute options. What is not stated is `UNKNOWN`: a rule that touches it cannot be decided and is
left out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from costmodels.axes import (
    AXES,
    CP_COMMS,
    NO_SWITCHES,
    RANK_ORDERS,
    RECOMPUTES,
    SCHEDULES,
    SwitchTable,
    axis_names,
    modules_code,
    switch_axes,
)
from costmodels.plans import Layout, ShapeTable, ShardingTable
from costmodels.precision import RECIPES
from costmodels.problem import Problem
from costmodels.schedule.stages import stage_layers
from costmodels.shapes import ModelShape, TrainingJob

Bools = Any
"""A bool, or an array of them that broadcasts with the fields of a case."""
Ints = NDArray[np.int32]

RANK_ORDER = RANK_ORDERS[0]
"""The order of ranks that every framework has, innermost axis first."""


class NotStatedError(Exception):
    """A rule touched something that the case does not state."""


class Unknown:
    """The value of what is not stated: whatever is done with it raises `NotStatedError`."""

    __array_ufunc__ = None  # operators of numpy arrays leave the work to the methods below

    def _refuse(self, *_: object) -> NoReturn:
        raise NotStatedError

    __getattr__ = __getitem__ = __contains__ = __iter__ = __len__ = __call__ = _refuse
    __bool__ = __int__ = __float__ = __index__ = __neg__ = __invert__ = __abs__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __sub__ = __mul__ = __mod__ = __floordiv__ = __truediv__ = __divmod__ = _refuse
    __radd__ = __rsub__ = __rmul__ = __rmod__ = __rfloordiv__ = __rtruediv__ = _refuse
    __and__ = __or__ = __xor__ = __rand__ = __ror__ = __rxor__ = __pow__ = __rpow__ = _refuse
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Any = Unknown()
"""Stands for every field, and every setting, that is not stated."""


@dataclass(frozen=True, slots=True, eq=False)
class PlanKinds:
    """Values of the free axes besides the micro-batch: modes, shardings, recompute options."""

    shardings: ShardingTable
    recompute: Ints
    """Kind of each recompute option, `(n_options,)`."""
    recompute_layers: Ints
    recompute_modules: Ints | None = None
    """Set of modules of each option; without it the attention core of those that are selective."""
    activation_offload_layers: Ints | None = None
    """None of any option where not given."""
    sp: Ints = field(default_factory=lambda: np.arange(2, dtype=np.int32))
    """Value of sp of each mode, `(n_modes,)`."""
    switch: Ints = field(default_factory=lambda: np.zeros(2, dtype=np.int32))
    """Row of `switches` of each mode."""
    switches: SwitchTable = NO_SWITCHES


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """The fields that rules read.

    Words (schedule, recompute, cp_comm) are positions in their lists, so that they compare
    elementwise; `is_schedule` and its like take the words.
    """

    n_devices: Any = UNKNOWN
    tp: Any = 1
    pp: Any = 1
    dp: Any = UNKNOWN
    cp: Any = 1
    ep: Any = 1
    etp: Any = 1
    vpp: Any = 1
    mbs: Any = UNKNOWN
    gbs: Any = UNKNOWN
    n_micro: Any = UNKNOWN
    zero: Any = 0
    dp_shard: Any = UNKNOWN
    """Ranks of one ZeRO group; dp cp unless the group is replicated (HSDP)."""
    hpz: Any = 1
    """Ranks that keep a second copy of the weights between them; 1 without."""
    optimizer_offload: Any = False
    """Optimizer states on the host."""
    dp_overlap: Any = True
    """Data-parallel traffic beside compute."""
    sp: Any = False
    schedule: Any = UNKNOWN
    """Position in `SCHEDULES`."""
    cp_comm: Any = 0
    """Position in `CP_COMMS`."""
    recompute: Any = 0
    """Position in `RECOMPUTES`."""
    recompute_layers: Any = 0
    recompute_modules: Any = 0
    """Set of modules (`axes.modules_code`)."""
    activation_offload_layers: Any = 0
    """Layers whose stored activations lie on the host."""
    rank_order: Any = RANK_ORDER
    """The order of ranks as a word, or an array of them."""
    switches: Any = field(default_factory=dict)
    """Table values, or arrays of them, of the axes in `Layout.switches`, by name; off where it
    holds none."""
    counts: Any = UNKNOWN
    """Layers of each virtual stage in model order; of arrays one tuple a shape."""
    model: ModelShape = UNKNOWN
    job: TrainingJob = UNKNOWN
    settings: Mapping[str, object] = field(default_factory=dict)
    """The framework's own flags or keys, as a run sets them; empty for plans."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that a run sets."""
    generation: str = UNKNOWN
    """Generation of the accelerator (`hopper`, `blackwell`), for rules that ask the device."""
    vendor: str = UNKNOWN
    """Who makes the accelerator (`NVIDIA`, `AMD`)."""
    release: str = ""
    """Release that a run uses; empty: the one that defaults and words are of."""
    unknown: tuple[str, ...] = ()
    """Flags or keys of a run that its reader does not know, as written."""
    lacking: tuple[tuple[str, str], ...] = ()
    """Flags, and values of flags, that another release has and that of the run does not, each
    with what to write or to install instead."""
    refused: tuple[str, ...] = ()
    """What the framework's own parser refuses in a run, in words: values of the wrong kind."""

    @staticmethod
    def of_layout(
        layout: Layout, shape: ModelShape, job: TrainingJob | None = None, vendor: str = ""
    ) -> "Case":
        """Return the case of one plan.

        Rules on what is not given, `job` or the accelerator's `vendor`, cannot be decided.
        """
        return Case(
            **{name: _coded(name, layout) for name in LAYOUT_FIELDS},
            switches={name: AXES[name].code(value) for name, value in layout.switches},
            counts=layout.stage_layers,
            model=shape,
            job=UNKNOWN if job is None else job,
            vendor=vendor or UNKNOWN,
        )

    @staticmethod
    def of_layouts(
        layouts: Sequence[Layout],
        shape: ModelShape,
        job: TrainingJob | None = None,
        vendor: str = "",
    ) -> "Case":
        """Return the case of many plans of one job, every field `(n_plans,)`; as `of_layout`."""
        columns: dict[str, Any] = {
            name: np.array([_coded(name, x) for x in layouts]) for name in LAYOUT_FIELDS
        }
        switches = {
            axis.name: np.array([x.code(axis.name) for x in layouts]) for axis in switch_axes()
        }
        return Case(
            **columns,
            switches=switches,
            counts=[x.stage_layers for x in layouts],
            model=shape,
            job=UNKNOWN if job is None else job,
            vendor=vendor or UNKNOWN,
        )

    @staticmethod
    def of_shapes(problem: Problem, shapes: ShapeTable, kinds: "PlanKinds") -> "Case":
        """Return the case of all plans of some shapes: shapes x mode x sharding x recompute.

        Micro-batches are another axis and not stated here (`of_batches`).
        """
        shardings, n_options = kinds.shardings, len(kinds.recompute)
        modules, offloaded_layers = kinds.recompute_modules, kinds.activation_offload_layers
        if modules is None:
            modules = np.where(kinds.recompute == RECOMPUTES.index("selective"), 1, 0)
        of_mode: dict[str, Any] = {"sp": kinds.sp > 0}
        switches = {
            axis.name: kinds.switches.column(axis.name)[kinds.switch][None, :, None, None]
            for axis in switch_axes()
        }
        of_sharding: dict[str, Any] = {
            "zero": shardings.zero.astype(np.int64)[None],
            "dp_shard": shardings.shard(shapes.replicas).astype(np.int64).T,
            "hpz": shardings.hpz.astype(np.int64)[None],
            "optimizer_offload": (shardings.optimizer_offload > 0)[None],
            "dp_overlap": (shardings.dp_blocking == 0)[None],
        }
        of_option: dict[str, Any] = {
            "recompute": kinds.recompute,
            "recompute_layers": kinds.recompute_layers,
            "recompute_modules": modules,
            "activation_offload_layers": np.zeros(n_options, np.int32)
            if offloaded_layers is None
            else offloaded_layers,
        }
        return Case(
            **_shape_fields(problem, shapes, 3),
            **{name: column[None, :, None, None] for name, column in of_mode.items()},
            **{name: column[:, None, :, None] for name, column in of_sharding.items()},
            **{name: column[None, None, None, :] for name, column in of_option.items()},
            switches=switches,
        )

    @staticmethod
    def of_batches(problem: Problem, shapes: ShapeTable, mbs: Ints) -> "Case":
        """Return the case of shapes x micro-batch sizes; the other free axes are not stated.

        Two-dimensional: the axes of `of_shapes` after the first are left out, mbs is the second.
        """
        fields, sizes = _shape_fields(problem, shapes, 1), mbs.astype(np.int64)[None, :]
        fields |= dict.fromkeys(axis_names("sharding", "recompute"), UNKNOWN)
        n_micro = problem.job.global_batch // (fields["dp"] * sizes)
        return Case(**fields, mbs=sizes, n_micro=n_micro, sp=UNKNOWN, switches=UNKNOWN)

    @staticmethod
    def of_run(
        settings: Mapping[str, object],
        *,
        env: Mapping[str, str] | None = None,
        layout: Mapping[str, object] | None = None,
        model: ModelShape | None = None,
        job: TrainingJob | None = None,
        generation: str = "",
        vendor: str = "",
    ) -> "Case":
        """Return the case of an existing run.

        `layout` holds what its settings say about the fields of `Layout` and `n_micro`, in the
        words of `Layout`; a field that is left out is not stated, and no rule may need it. So a
        run whose degrees do not multiply to its devices simply has no `dp`.
        """
        entries = dict(layout or {})
        own = {axis.name for axis in switch_axes()} & entries.keys()
        switches = {name: AXES[name].code(entries.pop(name)) for name in sorted(own)}
        fields: dict[str, Any] = dict.fromkeys((*LAYOUT_FIELDS, "counts"), UNKNOWN) | entries
        for name in ("schedule", "cp_comm", "recompute", "recompute_modules"):
            if fields[name] is not UNKNOWN:
                fields[name] = AXES[name].code(fields[name])
        return Case(
            **fields,
            switches=switches,
            model=UNKNOWN if model is None else model,
            job=UNKNOWN if job is None else job,
            settings=settings,
            env=env or {},
            generation=generation or UNKNOWN,
            vendor=vendor or UNKNOWN,
        )

    def switch(self, name: str) -> Any:
        """Return the table value of an axis without a field of its own."""
        return self.switches.get(name, AXES[name].code(AXES[name].off))

    def setting(self, name: str, default: Any = None) -> Any:
        """Return a flag or key of the run under the framework's own name, else `default`."""
        return self.settings.get(name, default)

    def is_schedule(self, *names: str) -> Bools:
        """Tell where the schedule is one of `names`."""
        return _one_of(self.schedule, SCHEDULES, names)

    def is_exchange(self, *names: str) -> Bools:
        """Tell where context-parallel ranks exchange keys and values by one of `names`."""
        return _one_of(self.cp_comm, CP_COMMS, names)

    def is_recompute(self, *names: str) -> Bools:
        """Tell where the recomputation is one of `names`."""
        return _one_of(self.recompute, RECOMPUTES, names)

    def recomputes(self, *names: str) -> Bools:
        """Tell where one of some modules is recomputed."""
        result: Bools = (self.recompute_modules & modules_code(names)) != 0
        return result

    def of_stages(self, value: Callable[[tuple[int, ...], int, int], Any]) -> Any:
        """Return `value(layers of each virtual stage, pp, vpp)` of each shape."""
        if isinstance(self.counts, tuple):
            return value(self.counts, self.pp, self.vpp)
        degrees = np.ravel(self.pp).tolist(), np.ravel(self.vpp).tolist()
        rows = zip(self.counts, *degrees, strict=True)
        return np.array([value(*row) for row in rows]).reshape(self.pp.shape)

    def of_tp(self, value: Callable[[int], Any]) -> Any:
        """Return `value(tp)` of each shape."""
        if isinstance(self.tp, np.ndarray):
            distinct, back = np.unique(self.tp, return_inverse=True)
            result = np.array([value(int(tp)) for tp in distinct])
            return result[back].reshape(self.tp.shape)
        return value(self.tp)

    @property
    def longest_stage(self) -> Any:
        """Layers of the largest virtual stage."""
        return self.of_stages(lambda counts, pp, vpp: max(counts))

    @property
    def schedule_name(self) -> str:
        """The schedule of one plan as a word."""
        return SCHEDULES[self.schedule]

    @property
    def recompute_name(self) -> str:
        """The recomputation of one plan as a word."""
        return RECOMPUTES[self.recompute]

    @property
    def exchange_name(self) -> str:
        """How the context-parallel ranks of one plan exchange keys and values, as a word."""
        return CP_COMMS[self.cp_comm]

    @property
    def fp8_recipe(self) -> str:
        """How fp8 values are scaled; empty without fp8."""
        recipe = RECIPES.get((self.job.precision, "adam"))
        if recipe is None:
            raise NotStatedError
        return recipe.fp8_recipe


LAYOUT_FIELDS = (
    *("n_devices", "gbs", "n_micro"),
    *(
        axis.name
        for axis in AXES.values()
        if axis.has_field and axis.table != "derived" and axis.name not in ("split", "tp_overlap")
    ),
)
"""Fields of a case that a layout gives; the layers of its stages are `counts`."""


def _coded(name: str, layout: Layout) -> Any:
    """Return a field of a layout as rules read it: words as positions, ranks' order as a word."""
    value = getattr(layout, name)
    if name not in AXES or name == "rank_order" or isinstance(value, bool):
        return value
    return AXES[name].code(value)


def _shape_fields(problem: Problem, shapes: ShapeTable, n_free: int) -> dict[str, Any]:
    """Return the fields of some shapes, each with `n_free` axes of length 1 behind its own."""
    splits, layers = shapes.splits, problem.shape.layers
    rows = zip(shapes.pp.tolist(), shapes.vpp.tolist(), shapes.split.tolist(), strict=True)
    size = (len(shapes), *[1] * n_free)
    names = (name for name in axis_names("shape") if name != "split")
    fields: dict[str, Any] = {
        name: getattr(shapes, name).astype(np.int64).reshape(size) for name in names
    }
    return fields | {
        "n_devices": shapes.n_devices,
        "rank_order": _order_names(shapes).reshape(size),
        "gbs": problem.job.global_batch,
        "counts": [stage_layers(layers, pp, vpp, splits[split]) for pp, vpp, split in rows],
        "model": problem.shape,
        "job": problem.job,
        "vendor": problem.pool.accelerator.vendor,
    }


def _order_names(shapes: ShapeTable) -> NDArray[np.str_]:
    return np.array(RANK_ORDERS)[shapes.rank_order]


def _one_of(values: Any, choices: Sequence[str], names: Sequence[str]) -> Bools:
    result: Bools = values == choices.index(names[0])
    for name in names[1:]:
        result = result | (values == choices.index(name))
    return result
