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

from costmodels.axes import CP_COMMS, RANK_ORDERS, RECOMPUTES, SCHEDULES, modules_code
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
    unknown: tuple[str, ...] = ()
    """Flags or keys of a run that its reader does not know, as written."""
    refused: tuple[str, ...] = ()
    """What the framework's own parser refuses in a run, in words: values of the wrong kind."""

    @staticmethod
    def of_layout(layout: Layout, shape: ModelShape, job: TrainingJob | None = None) -> "Case":
        """Return the case of one plan; without `job` its rules cannot be decided."""
        return Case(
            n_devices=layout.n_devices,
            tp=layout.tp,
            pp=layout.pp,
            dp=layout.dp,
            cp=layout.cp,
            ep=layout.ep,
            etp=layout.etp,
            vpp=layout.vpp,
            mbs=layout.mbs,
            gbs=layout.gbs,
            n_micro=layout.n_micro,
            zero=layout.zero,
            dp_shard=layout.dp_shard,
            hpz=layout.hpz,
            optimizer_offload=layout.optimizer_offload,
            dp_overlap=layout.dp_overlap,
            sp=layout.sp,
            schedule=SCHEDULES.index(layout.schedule),
            cp_comm=CP_COMMS.index(layout.cp_comm),
            recompute=RECOMPUTES.index(layout.recompute),
            recompute_layers=layout.recompute_layers,
            recompute_modules=modules_code(layout.recompute_modules),
            activation_offload_layers=layout.activation_offload_layers,
            rank_order=layout.rank_order,
            counts=layout.stage_layers,
            model=shape,
            job=UNKNOWN if job is None else job,
        )

    @staticmethod
    def of_layouts(
        layouts: Sequence[Layout], shape: ModelShape, job: TrainingJob | None = None
    ) -> "Case":
        """Return the case of many plans of one job, every field `(n_plans,)`."""

        def column(value: Callable[[Layout], int]) -> NDArray[np.int64]:
            return np.fromiter(map(value, layouts), dtype=np.int64, count=len(layouts))

        return Case(
            n_devices=column(lambda x: x.n_devices),
            tp=column(lambda x: x.tp),
            pp=column(lambda x: x.pp),
            dp=column(lambda x: x.dp),
            cp=column(lambda x: x.cp),
            ep=column(lambda x: x.ep),
            etp=column(lambda x: x.etp),
            vpp=column(lambda x: x.vpp),
            mbs=column(lambda x: x.mbs),
            gbs=column(lambda x: x.gbs),
            n_micro=column(lambda x: x.n_micro),
            zero=column(lambda x: x.zero),
            dp_shard=column(lambda x: x.dp_shard),
            hpz=column(lambda x: x.hpz),
            optimizer_offload=column(lambda x: x.optimizer_offload) > 0,
            dp_overlap=column(lambda x: x.dp_overlap) > 0,
            sp=column(lambda x: x.sp) > 0,
            schedule=column(lambda x: SCHEDULES.index(x.schedule)),
            cp_comm=column(lambda x: CP_COMMS.index(x.cp_comm)),
            recompute=column(lambda x: RECOMPUTES.index(x.recompute)),
            recompute_layers=column(lambda x: x.recompute_layers),
            recompute_modules=column(lambda x: modules_code(x.recompute_modules)),
            activation_offload_layers=column(lambda x: x.activation_offload_layers),
            rank_order=np.array([x.rank_order for x in layouts]),
            counts=[x.stage_layers for x in layouts],
            model=shape,
            job=UNKNOWN if job is None else job,
        )

    @staticmethod
    def of_shapes(
        problem: Problem,
        shapes: ShapeTable,
        shardings: ShardingTable,
        recompute: Ints,
        recompute_layers: Ints,
        recompute_modules: Ints | None = None,
        activation_offload_layers: Ints | None = None,
        n_sp: int = 2,
    ) -> "Case":
        """Return the case of all plans of some shapes: shapes x sp x sharding x recompute options.

        `recompute_modules` holds a set for each option; without it the attention core of those
        that are selective. `activation_offload_layers` are none where not given, `n_sp` is 3 with
        plans that have `tp_overlap`. Micro-batches are another axis and not stated here
        (`of_batches`).
        """
        if recompute_modules is None:
            recompute_modules = np.where(recompute == RECOMPUTES.index("selective"), 1, 0)
        if activation_offload_layers is None:
            activation_offload_layers = np.zeros_like(recompute)
        splits, layers = shapes.splits, problem.shape.layers
        rows = zip(shapes.pp.tolist(), shapes.vpp.tolist(), shapes.split.tolist(), strict=True)

        def column(values: Ints) -> NDArray[np.int64]:
            return values.astype(np.int64)[:, None, None, None]

        return Case(
            n_devices=shapes.n_devices,
            tp=column(shapes.tp),
            pp=column(shapes.pp),
            dp=column(shapes.dp),
            cp=column(shapes.cp),
            ep=column(shapes.ep),
            etp=column(shapes.etp),
            vpp=column(shapes.vpp),
            gbs=problem.job.global_batch,
            zero=shardings.zero.astype(np.int64)[None, None, :, None],
            dp_shard=shardings.shard(shapes.replicas).astype(np.int64).T[:, None, :, None],
            hpz=shardings.hpz.astype(np.int64)[None, None, :, None],
            optimizer_offload=(shardings.optimizer_offload > 0)[None, None, :, None],
            dp_overlap=(shardings.dp_blocking == 0)[None, None, :, None],
            sp=np.arange(n_sp)[None, :, None, None] > 0,
            schedule=column(shapes.schedule),
            cp_comm=column(shapes.cp_comm),
            recompute=recompute[None, None, None, :],
            recompute_layers=recompute_layers[None, None, None, :],
            recompute_modules=recompute_modules[None, None, None, :],
            activation_offload_layers=activation_offload_layers[None, None, None, :],
            rank_order=_order_names(shapes)[:, None, None, None],
            counts=[stage_layers(layers, pp, vpp, splits[split]) for pp, vpp, split in rows],
            model=problem.shape,
            job=problem.job,
        )

    @staticmethod
    def of_batches(problem: Problem, shapes: ShapeTable, mbs: Ints) -> "Case":
        """Return the case of shapes x micro-batch sizes; the other free axes are not stated.

        Two-dimensional: the axes of `of_shapes` after the first are left out, mbs is the second.
        """
        splits, layers = shapes.splits, problem.shape.layers
        rows = zip(shapes.pp.tolist(), shapes.vpp.tolist(), shapes.split.tolist(), strict=True)

        def column(values: Ints) -> NDArray[np.int64]:
            return values.astype(np.int64)[:, None]

        dp, sizes = column(shapes.dp), mbs.astype(np.int64)[None, :]
        return Case(
            n_devices=shapes.n_devices,
            tp=column(shapes.tp),
            pp=column(shapes.pp),
            dp=dp,
            cp=column(shapes.cp),
            ep=column(shapes.ep),
            etp=column(shapes.etp),
            vpp=column(shapes.vpp),
            mbs=sizes,
            gbs=problem.job.global_batch,
            n_micro=problem.job.global_batch // (dp * sizes),
            zero=UNKNOWN,
            dp_shard=UNKNOWN,
            hpz=UNKNOWN,
            optimizer_offload=UNKNOWN,
            dp_overlap=UNKNOWN,
            sp=UNKNOWN,
            schedule=column(shapes.schedule),
            cp_comm=column(shapes.cp_comm),
            recompute=UNKNOWN,
            recompute_layers=UNKNOWN,
            recompute_modules=UNKNOWN,
            activation_offload_layers=UNKNOWN,
            rank_order=_order_names(shapes)[:, None],
            counts=[stage_layers(layers, pp, vpp, splits[split]) for pp, vpp, split in rows],
            model=problem.shape,
            job=problem.job,
        )

    @staticmethod
    def of_run(
        settings: Mapping[str, object],
        *,
        env: Mapping[str, str] | None = None,
        layout: Mapping[str, object] | None = None,
        model: ModelShape | None = None,
        job: TrainingJob | None = None,
        generation: str = "",
        unknown: Sequence[str] = (),
        refused: Sequence[str] = (),
    ) -> "Case":
        """Return the case of an existing run.

        `layout` holds what its settings say about the fields of `Layout` and `n_micro`, in the
        words of `Layout`; a field that is left out is not stated, and no rule may need it. So a
        run whose degrees do not multiply to its devices simply has no `dp`.
        """
        known = dict.fromkeys(_LAYOUT, UNKNOWN) | dict(layout or {})
        words = {"schedule": SCHEDULES, "cp_comm": CP_COMMS, "recompute": RECOMPUTES}
        for name, values in words.items():
            if known[name] is not UNKNOWN:
                known[name] = values.index(str(known[name]))
        if known["recompute_modules"] is not UNKNOWN:
            known["recompute_modules"] = modules_code(known["recompute_modules"])
        return Case(
            **known,
            model=UNKNOWN if model is None else model,
            job=UNKNOWN if job is None else job,
            settings=settings,
            env=env or {},
            generation=generation or UNKNOWN,
            unknown=tuple(unknown),
            refused=tuple(refused),
        )

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
        recipe = RECIPES.get((self.job.precision, self.job.optimizer))
        if recipe is None:
            raise NotStatedError
        return recipe.fp8_recipe


_LAYOUT = (
    "n_devices",
    "tp",
    "pp",
    "dp",
    "cp",
    "ep",
    "etp",
    "vpp",
    "mbs",
    "gbs",
    "n_micro",
    "zero",
    "dp_shard",
    "hpz",
    "optimizer_offload",
    "dp_overlap",
    "sp",
    "schedule",
    "cp_comm",
    "recompute",
    "recompute_layers",
    "recompute_modules",
    "activation_offload_layers",
    "rank_order",
    "counts",
)
"""Fields of a case that describe its layout."""


def _order_names(shapes: ShapeTable) -> NDArray[np.str_]:
    return np.array(RANK_ORDERS)[shapes.rank_order]


def _one_of(values: Any, words: Sequence[str], names: Sequence[str]) -> Bools:
    result: Bools = values == words.index(names[0])
    for name in names[1:]:
        result = result | (values == words.index(name))
    return result
