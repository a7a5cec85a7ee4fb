"""The free axes: micro-batch, ZeRO, sequence parallelism, recompute, crossed with the shapes."""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from costmodels.activation_offload import INPUTS_AT_ONCE, RESIDENT_LAYERS
from costmodels.offload import gradients_leave
from costmodels.plans import (
    RECOMPUTES,
    SCHEDULES,
    SP_OVERLAPPED,
    PlanBlock,
    ShapeTable,
    ShardingTable,
)
from costmodels.stages import stage_kinds
from searches.dominance import overlap_never_slower
from searches.frameworks import runnable_batches, runnable_kinds
from searches.options import MAX_RECOMPUTE_STEPS
from searches.rules import (
    CORE,
    MODULE_RULES,
    Context,
    broken_module_rule,
    fills_dualpipe,
    fits_host,
    module_sets,
    offers_activation_offload,
    offers_offload,
    offloads_whole_layers,
    pieces_differ,
    second_copy_faults,
)
from searches.shape_space import divisors
from searches.shared_work import (
    digest,
    job_key,
    options_key,
    rates_key,
    shapes_key,
    shardings_key,
    shared,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]
Counts = NDArray[np.int64]
Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class FreeAxes:
    """The values that the free axes may take, before the rules."""

    mbs: Ints
    shardings: ShardingTable
    recompute: Ints
    """Kind of each recompute option, `(n_options,)`; index into `RECOMPUTES`."""
    recompute_layers: Ints
    """Layers per virtual stage of each option, 0 unless `full`."""
    recompute_modules: Ints
    """Set of modules of each option (`plans.modules_code`), 0 unless selective."""
    activation_offload_layers: Ints
    """Layers of each option whose activations lie on the host."""
    exists: Bools
    """Which shardings each shape has, `(n_shapes, n_shardings)`."""
    dominates: Bools
    """Which of them stand for the same without overlap, which is never better (DOM001)."""


def batch_sizes(context: Context) -> Ints:
    """Return the micro-batch sizes that a search looks at, ascending."""
    options, job = context.options, context.problem.job
    pinned, most = options.only.get("mbs", frozenset()), options.most_mbs(job.seq_len)
    # A pinned size that does not divide the batch is kept, so that BAT001 names it.
    sizes = sorted({d for d in divisors(job.global_batch) if d <= most} | set(pinned))
    return np.array([d for d in sizes if options.allows("mbs", d)], dtype=np.int32)


def free_axes(context: Context, shapes: ShapeTable) -> FreeAxes:
    """Return the values of the free axes for a set of shapes."""
    mbs, longest = batch_sizes(context), longest_chunks(context, shapes)
    sets = module_sets_of(context)
    depths = range(1, int(longest.max(initial=0)) + 1)
    kinds = [0, *[RECOMPUTES.index("selective")] * len(sets)]
    kinds += [RECOMPUTES.index("full")] * len(depths)
    layers, modules = [0] * (1 + len(sets)) + [*depths], [0, *sets] + [0] * len(depths)
    plain = list(zip(kinds, layers, modules, [0] * len(kinds), strict=True))
    options = np.array(plain + _offload_options(context, plain), dtype=np.int32)
    kind, depth, named, away = (np.ascontiguousarray(column) for column in options.T)
    least = int(mbs[0]) if len(mbs) else 1
    shardings, proven = with_overlap_off(context, shapes, sharding_options(context, shapes), least)
    exists = existing_shardings(shapes, shardings)
    if "dp_overlap" in context.options.only:
        dominates = np.zeros_like(exists)
    else:
        overlaps, apart = shardings.dp_blocking == 0, shapes.replicas[:, None] > 1
        exists &= overlaps | (~proven & apart)
        dominates = exists & overlaps & proven & apart
    return FreeAxes(mbs, shardings, kind, depth, named, away, exists, dominates)


def _offload_options(
    context: Context, plain: list[tuple[int, int, int, int]]
) -> list[tuple[int, int, int, int]]:
    """Return recompute options (kind, layers, modules, offloaded layers) with activations away.

    The first 1, 2, ... layers without recomputation, the recomputed ones with full where they are
    more than stay on the device anyhow; and pinned numbers with every option, so that the rule
    that they break is named.
    """
    if not offers_activation_offload(context):
        return []
    none, full = (RECOMPUTES.index(name) for name in ("none", "full"))
    most = context.problem.shape.layers - RESIDENT_LAYERS
    found = [(none, 0, 0, n) for n in range(1, most + 1)]
    deep = [x for x in plain if x[0] == full and x[1] > INPUTS_AT_ONCE]
    found += [(kind, k, modules, k) for kind, k, modules, _ in deep]
    named = context.options.only.get("activation_offload_layers", frozenset()) - {0}
    pinned = [(*option[:3], n) for n in sorted(named) for option in plain]
    return list(dict.fromkeys(found + pinned))


def with_overlap_off(
    context: Context, shapes: ShapeTable, shardings: ShardingTable, least_mbs: int
) -> tuple[ShardingTable, Bools]:
    """Return the shardings, also without overlap where that may be wanted, and what is proven.

    It may where the user names it, or where it is not proven for all shapes that overlap is never
    slower; the second is `(n_shapes, n_shardings)`.
    """
    named = context.options.only.get("dp_overlap")
    proven = np.ones((len(shapes), len(shardings)), dtype=bool)
    if named is None:
        # The update on the host comes after, so both places have the same answer.
        alike = shardings.take(np.flatnonzero(shardings.optimizer_offload == 0))
        found = shared(
            context.shared,
            lambda: (
                "overlap",
                rates_key(context.problem, batch=False),
                shapes_key(shapes),
                shardings_key(alike),
                least_mbs,
            ),
            lambda: overlap_never_slower(context, shapes, alike, least_mbs),
        ).T
        proven = np.tile(found, len(shardings) // len(alike))
    if proven.all() if named is None else 0 not in named:
        return shardings, proven
    off = shardings.with_blocking(1)
    return shardings.followed_by(off), np.concatenate((proven, proven), axis=1)


def sharding_options(context: Context, shapes: ShapeTable) -> ShardingTable:
    """Return every ZeRO stage with every number of copies of its groups that some shape has.

    Each with the optimizer on the device and, where there is a host, on that; and with groups of a
    second copy of the weights (hpZ) of the sizes that the user names.
    """
    copies = sorted({c for ranks in np.unique(shapes.replicas) for c in copies_of(int(ranks))})
    rows = [(0, 1), *((zero, c) for zero in (1, 2, 3) for c in copies or [1])]
    places = (0, 1) if offers_offload(context) else (0,)
    groups = [1, *sorted(context.options.only.get("hpz", frozenset()) - {1})]
    return ShardingTable.from_tuples(
        [(*row, place, 0, hpz) for place in places for hpz in groups for row in rows]
    )


def copies_of(ranks: int) -> list[int]:
    """Return how often the ZeRO groups among `ranks` may be replicated: two ranks stay in each.

    >>> copies_of(8)
    [1, 2, 4]
    """
    return [c for c in divisors(ranks) if ranks // c > 1 or c == 1]


def existing_shardings(shapes: ShapeTable, shardings: ShardingTable) -> Bools:
    """Return which shardings each shape has, `(n_shapes, n_shardings)`."""
    ranks, copies = shapes.replicas[:, None], shardings.copies[None, :]
    return np.asarray((ranks % copies == 0) & ((ranks // copies > 1) | (copies == 1)))


def module_sets_of(context: Context) -> list[int]:
    """Return the sets of recomputed modules that a search looks at, the attention core first.

    The core's own set and pinned ones are looked at even where no rule allows them, so that the
    rule that they break is named.
    """
    named = context.options.only.get("recompute_modules", frozenset()) - {0}
    others = {*module_sets(context.problem.shape), *named} - {CORE}
    return [CORE, *sorted(others)]


def longest_chunks(context: Context, shapes: ShapeTable) -> Ints:
    """Return the layers of the largest virtual stage of each shape."""
    columns = (shapes.pp, shapes.vpp, shapes.split, shapes.splits)
    kinds = stage_kinds(context.problem.shape.layers, *columns)
    held = np.where(kinds.chunk_counts > 0, kinds.chunk_layers, 0.0)
    return np.asarray(held.max(axis=(1, 2)).astype(np.int32))


def recompute_options(context: Context, shapes: ShapeTable, axes: FreeAxes) -> Bools:
    """Return which recompute options exist for each shape, `(n_shapes, n_options)`.

    `full` runs over 1 .. layers of the largest virtual stage; longer ranges than
    `MAX_RECOMPUTE_STEPS` are thinned evenly, ends kept. A pinned value is never thinned. The
    same of layers whose activations leave without recomputation.
    """
    longest = longest_chunks(context, shapes)[:, None]
    k = axes.recompute_layers[None, :]
    step = np.maximum(1, -(-longest // MAX_RECOMPUTE_STEPS))
    on_grid = ((longest - k) % step == 0) | (k == 1)
    if "recompute_layers" in context.options.only:
        on_grid = np.ones_like(on_grid)
    exists = (k == 0) | ((k <= longest) & on_grid)
    if axes.activation_offload_layers.any():
        exists = exists & _offload_exists(context, axes)[None]
    return np.asarray(exists)


def _offload_exists(context: Context, axes: FreeAxes) -> Bools:
    """Return which options are on the grid of layers whose activations leave, `(n_options,)`."""
    n, most = axes.activation_offload_layers, context.problem.shape.layers - RESIDENT_LAYERS
    if "activation_offload_layers" in context.options.only:
        return np.ones(len(n), dtype=bool)
    step = max(1, -(-most // MAX_RECOMPUTE_STEPS))
    kept = (n == 0) | (n == 1) | ((most - n) % step == 0)
    return np.asarray(kept | (axes.recompute != RECOMPUTES.index("none")))


def alike_rows(mask: Bools) -> tuple[Rows, Rows]:
    """Return the first of each kind of row of a mask, and the kind of each row."""
    if not mask.size:
        return np.zeros(min(len(mask), 1), dtype=np.intp), np.zeros(len(mask), dtype=np.intp)
    packed = np.packbits(mask.reshape(len(mask), -1), axis=1)
    keys = np.ascontiguousarray(packed).view(np.dtype((np.void, packed.shape[1]))).ravel()
    _, firsts, of = np.unique(keys, return_index=True, return_inverse=True)
    return firsts, of.reshape(-1)


@dataclass(frozen=True, slots=True)
class Coupled:
    """What goes together of sp, sharding and recompute: few patterns, one for each shape."""

    patterns: Bools
    """`(n_patterns, n_sp, n_shardings, n_options)`."""
    of: Rows
    """Pattern of each shape, `(n_shapes,)`."""
    whole: bool = False
    """Whether the masks of the single axes are in the patterns already."""

    @staticmethod
    def of_shapes(legal: Bools) -> "Coupled":
        """Return the patterns of a mask over shapes x sp x sharding x recompute."""
        firsts, of = alike_rows(legal)
        return Coupled(legal[firsts], of)

    def both(self, other: "Coupled") -> "Coupled":
        """Return what both leave."""
        pairs = self.of * len(other.patterns) + other.of
        found, of = np.unique(pairs, return_inverse=True)
        mine, others = np.divmod(found, len(other.patterns))
        return Coupled(self.patterns[mine] & other.patterns[others], of.reshape(-1))


@dataclass(frozen=True, slots=True)
class Masks:
    """Which free axes go together: shapes x mbs, and shapes x sp x sharding x recompute.

    The second is the product of a mask of each of its axes and one of all of them.
    """

    batches: Bools
    sp: Bools
    sharding: Bools
    recompute: Bools
    coupled: Coupled | None = None

    @property
    def n_plans(self) -> int:
        """Number of legal plans over all shapes."""
        return int(self.shape_plans.sum())

    @property
    def shape_plans(self) -> NDArray[np.int64]:
        """Legal plans by shape, `(n_shapes,)`."""
        return np.asarray(self.batches.sum(axis=1, dtype=np.int64) * self._of_sp().sum(axis=1))

    @property
    def batch_plans(self) -> NDArray[np.int64]:
        """Legal plans by shape, mbs and sp, `(n_shapes, n_mbs, n_sp)`."""
        return np.asarray(self.batches[:, :, None] * self._of_sp()[:, None, :])

    def _of_sp(self) -> NDArray[np.int64]:
        """Return the legal shardings and recompute options together by shape and sp."""
        if self.coupled is None:
            n = self.sharding.sum(axis=1, dtype=np.int64) * self.recompute.sum(axis=1)
            return np.asarray(self.sp * n[:, None])
        patterns, of = self._patterns()
        return np.asarray(np.count_nonzero(patterns, axis=(2, 3))[of], dtype=np.int64)

    def _patterns(self) -> tuple[Bools, Rows]:
        """Return what goes together, once for all shapes that are alike, and where each is."""
        found = self.compact().coupled
        assert found is not None  # `compact` leaves one
        return found.patterns, found.of

    def compact(self) -> "Masks":
        """Return the same masks with everything but the batches in the coupled ones.

        For masks that are coupled: the product of the single axes needs no array of all.
        """
        if self.coupled is not None and self.coupled.whole:
            return self
        columns = [self.sp, self.sharding, self.recompute]
        if self.coupled is not None:
            bits = np.arange(max(1, len(self.coupled.patterns).bit_length()))
            columns.append((self.coupled.of[:, None] >> bits & 1).astype(bool))
        firsts, of = alike_rows(np.concatenate(columns, axis=1))
        return replace(self, coupled=Coupled(self.take(firsts).rest, of, whole=True))

    def count_of(self, shardings: Bools) -> Counts:
        """Return the legal plans with some of each shape's shardings, `(n_shapes,)`."""
        if self.coupled is None:
            return replace(self, sharding=self.sharding & shardings).shape_plans
        patterns, of = self._patterns()
        by_sharding = np.count_nonzero(patterns, axis=3).sum(axis=1)[of]
        return np.asarray(self.batches.sum(axis=1) * (by_sharding * shardings).sum(axis=1))

    @property
    def rest(self) -> Bools:
        """Over shapes x sp x sharding x recompute."""
        if self.coupled is not None and self.coupled.whole:
            return self.coupled.patterns[self.coupled.of]
        whole = self.sharding[:, None, :, None] & self.recompute[:, None, None, :]
        whole = self.sp[:, :, None, None] & whole
        return whole if self.coupled is None else whole & self.coupled.patterns[self.coupled.of]

    @property
    def shardings_used(self) -> Bools:
        """Which shardings some plan has, `(n_shardings,)`."""
        if self.coupled is None:
            some = np.asarray(self.sp.any(axis=1) & self.recompute.any(axis=1))
            return np.asarray((self.sharding & some[:, None]).any(axis=0))
        patterns, of = self._patterns()
        return np.asarray(patterns[np.unique(of)].any(axis=(0, 1, 3)))

    def of_stages(self, rows: NDArray[np.intp]) -> tuple[Bools, Bools]:
        """Return which sp and which recompute options go with some of `rows` of the shardings.

        `(n_shapes, n_sp)` and `(n_shapes, n_options)`.
        """
        if self.coupled is not None:
            patterns, of = self._patterns()
            mine = np.asarray(patterns[:, :, rows].any(axis=2))
            with_sp, offered = np.asarray(mine.any(axis=2)), np.asarray(mine.any(axis=1))
            return with_sp[of], offered[of]
        some = np.any(self.sharding[:, rows], axis=1)
        of_sp = np.asarray(some & self.recompute.any(axis=1))
        of_option = np.asarray(some & self.sp.any(axis=1))
        return self.sp & of_sp[:, None], self.recompute & of_option[:, None]

    def of_batches(
        self, shape: NDArray[np.intp], sp: NDArray[np.intp], rows: NDArray[np.intp]
    ) -> Bools:
        """Return what is legal for batches of a shape and sp, over batches x `rows` x options."""
        if self.coupled is not None and self.coupled.whole:
            return np.asarray(self.coupled.patterns[:, :, rows][self.coupled.of[shape], sp])
        whole = self.sharding[shape][:, rows, None] & self.recompute[shape][:, None, :]
        whole &= self.sp[shape, sp][:, None, None]
        if self.coupled is not None:
            whole &= self.coupled.patterns[:, :, rows][self.coupled.of[shape], sp]
        return whole

    def take(self, rows: NDArray[np.intp]) -> "Masks":
        """Return the masks of some shapes."""
        coupled = self.coupled
        if coupled is not None:
            coupled = replace(coupled, of=coupled.of[rows])
        batches, sp = self.batches[rows], self.sp[rows]
        return Masks(batches, sp, self.sharding[rows], self.recompute[rows], coupled)

    def with_shardings(self, rows: NDArray[np.intp]) -> "Masks":
        """Return the masks over some of the shardings."""
        coupled = self.coupled
        if coupled is not None:
            coupled = replace(coupled, patterns=coupled.patterns[:, :, rows])
        return replace(self, sharding=self.sharding[:, rows], coupled=coupled)

    def keeping(self, rule: "PlanRule") -> "Masks":
        """Return what a rule leaves."""
        legal = rule.legal
        if isinstance(legal, Coupled):
            both = self.coupled.both(legal) if self.coupled else legal
            return replace(self, coupled=both)
        if rule.of_batches:
            return replace(self, batches=self.batches & legal)
        if self.coupled is not None and self.coupled.whole:
            raise ValueError(f"{rule.code}: compact masks take rules of batches alone")
        for axis, name in ((1, "sp"), (2, "sharding"), (3, "recompute")):
            if max(1, *(n for i, n in enumerate(legal.shape[1:], 1) if i != axis)) == 1:
                of_axis = legal.reshape(legal.shape[0], legal.shape[axis])
                return replace(self, **{name: getattr(self, name) & of_axis})
        whole = (*self.sp.shape, self.sharding.shape[1], self.recompute.shape[1])
        return self.keeping(replace(rule, legal=Coupled.of_shapes(np.broadcast_to(legal, whole))))


def _allowed(context: Context, axis: str, values: Ints) -> Bools:
    return np.array([context.options.allows(axis, int(v)) for v in values], dtype=bool)


@dataclass(frozen=True, slots=True)
class PlanRule:
    """One rule over the free axes, as a mask that broadcasts to shapes x its axes."""

    code: str
    legal: Bools | Coupled
    of_batches: bool = False
    """Over shapes x mbs; otherwise over shapes x sp x sharding x recompute."""

    @property
    def mask(self) -> Bools:
        """What it allows, as one array."""
        legal = self.legal
        return legal.patterns[legal.of] if isinstance(legal, Coupled) else legal


@dataclass(frozen=True, slots=True)
class PlanSpace:
    """The free axes of some shapes, what goes together, and what became of the rest."""

    axes: FreeAxes
    masks: Masks
    n_legal: Counts
    """By shape, mbs and sp."""
    n_candidates: Counts
    """Before the rules, `(n_shapes,)`."""
    rejected: dict[str, Counts]
    """Plans of each shape by the first rule that they break."""

    def take(self, rows: Rows) -> "PlanSpace":
        """Return the space of some shapes."""
        axes = self.axes
        axes = replace(axes, exists=axes.exists[rows], dominates=axes.dominates[rows])
        rejected = {code: count[rows] for code, count in self.rejected.items()}
        masks, n_candidates = self.masks.take(rows), self.n_candidates[rows]
        return PlanSpace(axes, masks, self.n_legal[rows], n_candidates, rejected)

    def used(self, rows: Rows) -> tuple[FreeAxes, Masks]:
        """Return the axes and masks of some shapes, over the shardings that they use alone."""
        masks, axes = self.masks.take(rows), self.axes
        used = np.flatnonzero(masks.shardings_used)
        if len(used) == len(axes.shardings):
            return axes, masks
        exists, dominates = (x[rows][:, used] for x in (axes.exists, axes.dominates))
        some = replace(axes, shardings=axes.shardings.take(used), exists=exists)
        return replace(some, dominates=dominates), masks.with_shardings(used)


def plan_space(context: Context, shapes: ShapeTable) -> PlanSpace:
    """Return the legal plans of some shapes."""
    axes = free_axes(context, shapes)
    masks, n_candidates, rejected = _legal(context, shapes, axes)
    return PlanSpace(axes, masks, masks.batch_plans, n_candidates, rejected)


def legal_masks(
    context: Context, shapes: ShapeTable, axes: FreeAxes
) -> tuple[Masks, int, dict[str, int]]:
    """Return the legal combinations, the candidates before the rules, the rejections by rule."""
    masks, candidates, rejected = _legal(context, shapes, axes)
    counts = {code: int(count.sum()) for code, count in rejected.items()}
    return masks, int(candidates.sum()), {code: c for code, c in counts.items() if c}


def _legal(
    context: Context, shapes: ShapeTable, axes: FreeAxes
) -> tuple[Masks, Counts, dict[str, Counts]]:
    """Return `legal_masks` with the counts by shape."""

    def key() -> Hashable:
        # What overlap never costs hangs on rates: it is in `exists` and `dominates`.
        problem, apart = context.problem, ("mbs", "shardings")
        found = digest(*(getattr(axes, x.name) for x in fields(axes) if x.name not in apart))
        rows, job = shardings_key(axes.shardings), replace(job_key(problem), global_batch=0)
        model = (problem.shape, job, problem.stack, options_key(context.options))
        domain = problem.pool.scale_up_domain
        return ("kinds", *model, domain, shapes_key(shapes), found, rows)

    # What the host holds of optimizers and activations is not in the key.
    away = offers_offload(context) or offers_activation_offload(context)
    kinds = shared(
        None if away else context.shared, key, lambda: _legal_kinds(context, shapes, axes)
    )
    batches = np.ones((len(shapes), len(axes.mbs)), dtype=bool)
    n_batches = np.full(len(shapes), len(axes.mbs), dtype=np.int64)
    candidates = before = kinds.n_first * n_batches
    rejected: dict[str, Counts] = {}

    def count(code: str, left: Counts) -> None:
        nonlocal before
        rejected[code] = rejected.get(code, 0) + before - left
        before = left

    n = kinds.n_first
    for code, n in kinds.pins:
        count(code, n * n_batches)
    of_batches = batch_rules(context, shapes, axes.mbs)
    for rule in of_batches:
        batches = batches & rule.mask
        n_batches = batches.sum(axis=1, dtype=np.int64)
        count(rule.code, n * n_batches)
    for code, n in kinds.others:
        count(code, n * n_batches)
    for rule in framework_batch_rules(context, shapes, axes, of_batches):
        batches = batches & rule.mask
        n_batches = batches.sum(axis=1, dtype=np.int64)
        count(rule.code, n * n_batches)
    # Counted where the plan with overlap that stands for them is legal.
    rejected["DOM001"] = dominated = kinds.n_dominated * n_batches
    return replace(kinds.masks, batches=batches), candidates + dominated, rejected


@dataclass(frozen=True, slots=True)
class LegalKinds:
    """What the rules leave of sp, sharding and recompute, which know no batch; one micro-batch."""

    masks: Masks
    """With one batch of each shape."""
    n_first: Counts
    """Before all rules, `(n_shapes,)`."""
    pins: list[tuple[str, Counts]]
    """Rules that come before those of batches, and what each leaves."""
    others: list[tuple[str, Counts]]
    """Those that come after them."""
    n_dominated: Counts


def _legal_kinds(context: Context, shapes: ShapeTable, axes: FreeAxes) -> LegalKinds:
    """Return what the rules leave, those of batches aside, and what each of them leaves."""
    masks = Masks(
        np.ones((len(shapes), 1), dtype=bool),
        np.ones((len(shapes), context.options.n_sp), dtype=bool),
        axes.exists,
        recompute_options(context, shapes, axes),
    )
    n_first, steps = masks.shape_plans, []
    pins = _pins(context, shapes, axes)
    for rule in [*pins, *kind_rules(context, shapes, axes)]:
        masks = masks.keeping(rule)
        if isinstance(rule.legal, Coupled):
            masks = masks.compact()  # comes last: what follows is about batches
        steps.append((rule.code, masks.shape_plans))
    dominated = masks.count_of(axes.dominates)
    return LegalKinds(masks, n_first, steps[: len(pins)], steps[len(pins) :], dominated)


def batch_rules(context: Context, shapes: ShapeTable, mbs: Ints) -> list[PlanRule]:
    """Return what dp and the schedule ask of the micro-batches, over shapes x mbs."""
    sequences = context.problem.job.global_batch // shapes.dp[:, None]
    n_micro, pp, schedule = sequences // mbs[None, :], shapes.pp[:, None], shapes.schedule[:, None]
    looped = schedule == SCHEDULES.index("interleaved")
    return [
        PlanRule("BAT001", sequences % mbs[None, :] == 0, of_batches=True),
        PlanRule("BAT002", ~looped | (n_micro % pp == 0), of_batches=True),
        PlanRule("BAT003", fills_dualpipe(schedule, pp, n_micro), of_batches=True),
    ]


def legal_batches(rules: list[PlanRule]) -> Bools:
    """Return which micro-batches break none of the `batch_rules`, `(n_shapes, n_mbs)`."""
    return np.asarray(np.logical_and.reduce([rule.mask for rule in rules]))


def plan_rules(context: Context, shapes: ShapeTable, axes: FreeAxes) -> list[PlanRule]:
    """Return the rules over the free axes in the order in which a rejection is attributed.

    The pin on mbs is not among them: `free_axes` holds to it.
    """
    of_batches = batch_rules(context, shapes, axes.mbs)
    return [
        *_pins(context, shapes, axes),
        *of_batches,
        *kind_rules(context, shapes, axes),
        *framework_batch_rules(context, shapes, axes, of_batches),
    ]


def framework_batch_rules(
    context: Context, shapes: ShapeTable, axes: FreeAxes, of_batches: list[PlanRule]
) -> list[PlanRule]:
    """Return what the frameworks ask of the micro-batches that `of_batches` leave."""
    if context.options.framework == "any":
        return []
    runs = runnable_batches(context.options.framework, context.problem, shapes, axes.mbs)
    runs = runs | ~legal_batches(of_batches)  # what the rules above refuse is theirs
    return [] if runs.all() else [PlanRule("FRM001", runs, of_batches=True)]


def kind_rules(context: Context, shapes: ShapeTable, axes: FreeAxes) -> list[PlanRule]:
    """Return the rules over sp, sharding and recompute, the pins aside."""
    job, problem = context.problem.job, context.problem
    column = (slice(None), None, None, None)
    tp, pp, cp, dp = (x[column] for x in (shapes.tp, shapes.pp, shapes.cp, shapes.dp))
    sp = np.arange(context.options.n_sp)[None, :, None, None]
    zero = axes.shardings.zero[None, None, :, None]
    rules = [
        PlanRule("SP001", (sp == 0) | ((tp > 1) & (job.seq_len % (tp * cp) == 0))),
    ]
    emitted = context.options.framework != "any"
    if emitted:
        rules.append(PlanRule("ZER001", (zero <= 1) | (pp == 1)))
    rules.append(PlanRule("ZER002", (zero == 0) | (dp * cp > 1)))
    rules += _second_copy_rules(shapes, axes)
    blocking = axes.shardings.dp_blocking[None, None, :, None]
    if blocking.any():
        rules.append(PlanRule("OVL001", (blocking == 0) | (dp * cp > 1)))
    if context.options.n_sp > SP_OVERLAPPED:
        pieces = pieces_differ(problem, shapes.tp)[column]
        rules.append(PlanRule("OVL002", (sp < SP_OVERLAPPED) | pieces))
    faults = [broken_module_rule(problem.shape, code) for code in axes.recompute_modules.tolist()]
    for code in MODULE_RULES:
        broken = np.array([fault == code for fault in faults])
        if broken.any():
            rules.append(PlanRule(code, ~broken[None, None, None, :]))
    rules += _host_rules(context, shapes, axes)
    if emitted:
        framework = context.options.framework
        options = (
            axes.recompute,
            axes.recompute_layers,
            axes.recompute_modules,
            axes.activation_offload_layers,
        )
        n_sp = context.options.n_sp
        found = runnable_kinds(framework, problem, shapes, axes.shardings, *options, n_sp)
        rules.append(PlanRule("FRM001", Coupled(*found)))
    return rules


def _second_copy_rules(shapes: ShapeTable, axes: FreeAxes) -> list[PlanRule]:
    """Return what is asked of plans with a second copy of the weights (hpZ)."""
    if not (axes.shardings.hpz > 1).any():
        return []
    found = second_copy_faults(shapes, axes.shardings)
    return [PlanRule(code, ~broken.T[:, None, :, None]) for code, broken in found.items()]


def _host_rules(context: Context, shapes: ShapeTable, axes: FreeAxes) -> list[PlanRule]:
    """Return what the host allows of optimizers and activations on it.

    Whether the activations fit depends on the micro-batch too: that is looked at with the memory.
    """
    rules, host = [], context.problem.pool.host
    n_away = axes.activation_offload_layers
    if n_away.any():
        stays = (n_away == 0)[None, None, None, :]
        if host is None:
            rules.append(PlanRule("OFF001", stays))
        rules.append(PlanRule("OFF004", stays | (shapes.pp == 1)[:, None, None, None]))
        columns = (axes.recompute, axes.recompute_layers, n_away)
        whole = offloads_whole_layers(context.problem.shape, *columns)
        rules.append(PlanRule("OFF005", whole[None, None, None, :]))
    away = axes.shardings.optimizer_offload > 0
    if not away.any():
        return rules
    if host is None:
        return [*rules, PlanRule("OFF001", ~away[None, None, :, None])]
    if not gradients_leave(context.problem.stack):
        whole = ~away | (axes.shardings.zero <= 1)
        rules.append(PlanRule("OFF003", whole[None, None, :, None]))
    fits = fits_host(context.problem, shapes, axes.shardings)
    return [*rules, PlanRule("OFF002", fits.T[:, None, :, None])]


def pinned_columns(context: Context, shapes: ShapeTable, axes: FreeAxes) -> dict[str, Ints]:
    """Return the values of the axes besides mbs, over shapes x sp x sharding x recompute."""
    sp = np.arange(context.options.n_sp, dtype=np.int32)[None, :, None, None]
    return {
        "sp": np.minimum(sp, 1),
        "tp_overlap": (sp == SP_OVERLAPPED).astype(np.int32),
        "zero": axes.shardings.zero[None, None, :, None],
        "dp_shard": axes.shardings.shard(shapes.replicas).T[:, None, :, None],
        "hpz": axes.shardings.hpz[None, None, :, None],
        "optimizer_offload": axes.shardings.optimizer_offload[None, None, :, None],
        "activation_offload": (axes.activation_offload_layers > 0)[None, None, None, :].astype(
            np.int32
        ),
        "activation_offload_layers": axes.activation_offload_layers[None, None, None, :],
        "dp_overlap": 1 - axes.shardings.dp_blocking[None, None, :, None],
        "recompute": axes.recompute[None, None, None, :],
        "recompute_layers": axes.recompute_layers[None, None, None, :],
        "recompute_modules": axes.recompute_modules[None, None, None, :],
    }


def _pins(context: Context, shapes: ShapeTable, axes: FreeAxes) -> list[PlanRule]:
    """Return what the pins on the free axes allow, by axis."""
    options = context.options
    return [
        PlanRule("PIN001", _allowed(context, axis, column.ravel()).reshape(column.shape))
        for axis, column in pinned_columns(context, shapes, axes).items()
        if axis in options.only or axis in options.at_most
    ]


@dataclass(frozen=True, slots=True)
class LegalBlock:
    """A block of plans, and which of them are legal."""

    block: PlanBlock
    legal: Bools
    """Of the size of the block."""
    mbs: NDArray[np.intp]
    """Position of each batch's size in `FreeAxes.mbs`, `(n_batches,)`."""

    def of_batches(self, kept: Rows) -> "LegalBlock":
        """Return the block of some of the batches."""
        return LegalBlock(self.block.of_batches(kept), self.legal[..., kept], self.mbs[kept])


def plan_blocks(
    context: Context,
    shapes: ShapeTable,
    axes: FreeAxes,
    masks: Masks,
    n_cells: int,
    least_s: Floats | None = None,
    limit_s: Callable[[], float] = lambda: np.inf,
    may_fit: Callable[[PlanBlock, Bools, Bools], Bools] | None = None,
) -> Iterator[LegalBlock]:
    """Yield the legal plans as blocks of about `n_cells` cells, every plan in exactly one.

    With `least_s`, a lower bound by shape, mbs and sp, batches come in the order of their bounds,
    and those above what `limit_s` says when it is their turn are left out. So are those of which
    `may_fit` says no, which is asked of whole batches: a block, and which of its shardings and
    options each batch has, `(n_shardings, n_batches)` and `(n_options, n_batches)`. ZeRO stages
    that move traffic once per step stand in blocks of their own, apart from those that move it per
    micro-batch: the formulas of the two differ.
    """
    used_rows = masks.shardings_used
    for stages in ((0, 1), (2, 3)):
        rows = np.flatnonzero(np.isin(axes.shardings.zero, stages) & used_rows)
        if not len(rows):
            continue
        with_sp, offered = masks.of_stages(rows)
        of, mbs, sp = np.nonzero(masks.batches[:, :, None] & with_sp[:, None, :])
        options, exists = _options_of(offered)
        n_options, bounds = exists.sum(axis=1), np.zeros(len(of))
        if least_s is None:
            # Batches with equally many plans side by side leave few places of a block empty.
            n_shardings = np.count_nonzero(masks.sharding[:, rows], axis=1)
            order = np.lexsort((n_shardings[of], n_options[of]))
        else:
            order = np.argsort(least_s[of, mbs, sp], kind="stable")
            bounds = least_s[of, mbs, sp][order]
        of, mbs, sp = of[order], mbs[order], sp[order]
        size = max(1, n_cells // (len(rows) * options.shape[1]))
        # Whole batches are looked at many at a time: that takes no cell for each plan.
        step = size if may_fit is None else max(size, n_cells // (len(rows) + options.shape[1]))

        def block_of(at: NDArray[np.intp], used: NDArray[np.intp]) -> PlanBlock:
            s = of[at]  # noqa: B023  # used up within the round
            option = options[s, : n_options[s].max()].T  # noqa: B023
            return PlanBlock(
                shapes=shapes,
                shardings=axes.shardings,
                gbs=context.problem.job.global_batch,
                shape=s.astype(np.int32)[None, None],
                mbs=axes.mbs[mbs[at]][None, None],  # noqa: B023
                sharding=used.astype(np.int32)[:, None, None],
                sp=sp[at].astype(np.int32)[None, None],  # noqa: B023
                recompute=axes.recompute[option],
                recompute_layers=axes.recompute_layers[option],
                recompute_modules=axes.recompute_modules[option],
                activation_offload_layers=axes.activation_offload_layers[option],
            )

        waiting = np.zeros(0, dtype=np.intp)
        for start in range(0, len(of), step):
            end = start + int(np.searchsorted(bounds[start : start + step], limit_s(), "right"))
            more = np.arange(start, end)
            if may_fit is not None and len(more):
                has = masks.sharding[of[more]][:, rows].T
                existing = exists[of[more], : n_options[of[more]].max()].T
                more = more[may_fit(block_of(more, rows), has, existing)]
            waiting = np.concatenate((waiting, more))
            last = end < min(start + step, len(of)) or end == len(of)
            while len(waiting) >= size or (last and len(waiting)):
                now, waiting = waiting[:size], waiting[size:]
                s = of[now]
                legal = masks.of_batches(s, sp[now], rows)
                used = np.flatnonzero(legal.any(axis=(0, 2)))
                legal = legal[:, used].transpose(1, 2, 0)
                block = block_of(now, rows[used])
                most = n_options[s].max()
                at = options[s, :most].T[None]
                found = np.take_along_axis(legal, at, axis=1) & exists[s, :most].T[None]
                yield LegalBlock(block, found, mbs[now])
            if last:
                break


def _options_of(offered: Bools) -> tuple[NDArray[np.intp], Bools]:
    """Return the recompute options that each shape has, side by side, and which places are used.

    `offered` is `(n_shapes, n_options)`; both results are `(n_shapes, most options of a shape)`.
    Shapes thin long ranges of layers differently, so their own options are far fewer than all.
    """
    counts = offered.sum(axis=1)
    order = np.argsort(~offered, axis=1, kind="stable")[:, : max(1, int(counts.max(initial=0)))]
    return order, np.arange(order.shape[1])[None] < counts[:, None]
