"""Numbers of devices that plans may use, and a lower bound on the step time at each.

The bound is admissible: no plan on n devices has a shorter step, by the closed form or by the
exact recurrence. With T(t, c, b) the least time of one layer, both directions, for a micro-batch
of b sequences over t tensor- and c context-parallel ranks (over all exchanges and sp), L layers, H
the same of embedding and head, and d replicas, a step of a shape (t, p, c, d) takes at least

    S [ (B / d b) max( ceil(2 L / p) T / 2, (L T + H) / p, head ) + (p - 1)(p - 2) / (2 p) T ]

for some b and some expert grid whose weights and gradients the mean rank can hold. Some rank holds
ceil(L / p) layers, or half of them twice where stages run both ways; the mean rank has its share
of everything, the last rank the head; rank r cannot start before one layer of each of the r ranks
before it has run, nor end before their backwards have, which averages to (p - 1) / 2 layers over
the ranks (the first may hold no layer). S is the straggler factor. Left out, and only making steps
longer: recomputation, data-parallel and pipeline traffic, optimizer, all other memory. Schedules
that split the backward have no second term and count half of the head.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.axes import SCHEDULES
from costmodels.layers.flops import model_flops_per_step
from costmodels.layers.kinds import attention_shapes, mixer_heads
from costmodels.layers.layer_grid import LayerGrid, layer_grid
from costmodels.layers.layer_terms import LayerTerms
from costmodels.layers.params import expert_params as expert_params_of
from costmodels.memory import param_bytes_kept
from costmodels.parameters import trained_params
from costmodels.plans import SHAPE_AXES, ZERO_BUBBLE, Layout, ShapeTable
from costmodels.problem import Problem
from costmodels.schedule.stages import SPLITS, most_stages
from costmodels.shapes import ModelShape
from costmodels.step import straggler_factor
from hardware.parts import Pool
from searches.frameworks.table import schedule_runs
from searches.options import SearchOptions
from searches.pricing.candidates import Candidate, closed_form_order, layout_key
from searches.pricing.layout_prices import exact_step_s
from searches.pricing.limits import Limits
from searches.pricing.shard_prices import search_shard
from searches.pricing.shared_work import SharedWork, options_key, rates_key, shared
from searches.rules import (
    SHAPE_RULES,
    Context,
    all_states_bytes,
    fully_sharded_fits,
    fully_sharded_fits_on,
    least_model_parallel,
    model_parallel_for,
    offers_offload,
)
from searches.space.free_axes import batch_sizes
from searches.space.shape_space import (
    PLAINEST,
    ShapeSpace,
    cp_limit,
    divisors,
    exchanges,
    expert_degrees,
    expert_tensor_degrees,
    rank_orders,
    schedule_codes,
    table_of,
    vpp_limit,
)
from searches.space.shards import make_shards
from searches.splits.uneven import SplitPlan, improve_splits, splits_wanted, worth_splitting

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
CLOSED_FORM_GAP = 0.05
"""By how much the closed form may exceed the exact recurrence, as a share: more than it does among
the finalists of the examples (0.03) and the fastest plans of small models (0.04)."""
SPLIT_GAIN = 0.1
"""Share by which a plan may miss a limit and its layers are split unevenly to meet it: more than
splits win in the examples (0.09)."""
MOST_EXACT = 16
"""Plans of one number of devices that are priced exactly to see whether one beats a limit."""
EXACT_AT_ONCE = 8
"""Plans priced exactly between two looks at whether another can still be faster."""
MOST_DEGREES = 1_000_000
"""Rows of (tp, pp, cp, dp) that are listed at once for all numbers of devices."""
MOST_IN_GRID = 60_000
"""Rows of layer terms that are computed at once for all numbers of devices."""
LAYER_RULES = (
    *("TP001", "TP002", "TP003", "TP005", "TP006"),
    *("CP001", "CP002", "CP003", "CP004", "CP005", "CP006", "CP007"),
    *("EP001", "EP003"),
)
"""Rules that look at the split of a layer alone."""


def device_counts(pool: Pool) -> list[int]:
    """Return the numbers of devices that plans on a pool may use, in ascending order.

    Whole nodes, and of one node the numbers that divide it.
    """
    total = pool.devices_per_node
    return [*divisors(total)[:-1], *(total * n for n in range(1, pool.n_nodes + 1))]


def on_devices(problem: Problem, n_devices: int) -> Problem:
    """Return the problem on the first `n_devices` of its pool."""
    return replace(problem, pool=problem.pool.first_devices(n_devices))


def on_nodes(problem: Problem, n_nodes: int) -> Problem:
    """Return the problem on a pool of `n_nodes` nodes."""
    return replace(problem, pool=replace(problem.pool, n_nodes=n_nodes))


def flops_bound_s(context: Context) -> float:
    """Return the model FLOPs of a step over what the devices sustain at most, seconds.

    F / (n P max(eta)): F is Megatron's count, P the dense peak of the linear layers, eta the
    largest share of it that GEMMs or an attention kernel sustain. The coarsest bound and the
    cheapest: it needs no layout.
    """
    flops, rate = _flops_and_rate(context.problem)
    return flops / (context.n_devices * rate)


def _flops_and_rate(problem: Problem) -> tuple[float, float]:
    """Return the model FLOPs of a step, and the most FLOP/s that one device sustains."""
    part, recipe = problem.pool.accelerator, problem.job.recipe
    kernels = part.efficiency.attention_frac.values()
    share = max(part.efficiency.gemm_frac, *(max(pair) for pair in kernels))
    rate = part.peak_flops_per_s[recipe.linear] * share
    return model_flops_per_step(problem.shape, problem.job), rate


@dataclass(frozen=True, slots=True)
class LayerMinima:
    """The least that one layer takes over exchanges and sp; `(n_pairs, n_expert_grids, n_mbs)`."""

    pairs: dict[tuple[int, int], int]
    """Position of each (tp, cp)."""
    mbs: Floats
    """Micro-batch sizes, `(n_mbs,)`."""
    expert_params: Floats
    """Routed experts of a layer on one device, `(n_pairs, n_expert_grids)`."""
    layer_s: Floats
    """Of the kind of layer that takes less, forward and backward, seconds per micro-batch; inf
    where no plan splits one like this."""
    mean_layer_s: Floats
    """Mean over the layers of the model."""
    ends_s: Floats
    """Embedding and head."""
    head_s: Floats
    """The head alone, which no pipeline cuts."""


@dataclass(slots=True)
class StepBounds:
    """Lower bounds on the step time by number of devices, for one problem and its options.

    Layers are priced once for all numbers of devices that place their groups alike.
    """

    problem: Problem
    """On the whole pool."""
    options: SearchOptions
    shared: SharedWork | None = None
    _layers: dict[tuple[object, ...], LayerMinima] = field(default_factory=dict)
    _contexts: dict[int, Context] = field(default_factory=dict)
    _rest_params: float | None = None
    """Parameters besides routed experts; counted when first needed."""
    _grids: dict[tuple[object, ...], LayerGrid | None] = field(default_factory=dict)
    _floor: tuple[float, float] | None = None
    """FLOPs of a step and the most FLOP/s of a device; found when first needed."""
    _least: dict[int, float] = field(default_factory=dict)
    """`least_s` of each number of devices that was asked for."""
    _rates: bytes = b""
    """Hash of what layers depend on."""

    def with_usable(self, usable_bytes: float) -> "StepBounds":
        """Return the bounds of the same devices with less memory to fill.

        What layers take does not depend on it, so both share those tables.
        """
        pool = self.problem.pool
        margin_bytes = pool.accelerator.memory_bytes - usable_bytes
        problem = replace(self.problem, pool=replace(pool, memory_margin_bytes=margin_bytes))
        return replace(self, problem=problem, _contexts={}, _least={})

    def context(self, n_devices: int) -> Context:
        """Return the search of `n_devices`."""
        if n_devices not in self._contexts:
            smaller = on_devices(self.problem, n_devices)
            self._contexts[n_devices] = Context(
                smaller, self.options, n_devices, self.shared, self._grid
            )
        return self._contexts[n_devices]

    def promising(self, n_devices: int, limit_s: float) -> ShapeSpace:
        """Return the legal shapes on `n_devices` whose bound is below `limit_s`."""
        context = self.context(n_devices)
        rows, degrees = [], list(shape_degrees(context))
        bounds = self._of_degrees(context, degrees).tolist()
        for (tp, pp, cp, dp), bound_s in zip(degrees, bounds, strict=True):
            if bound_s >= limit_s:
                continue
            layers = list(
                product(exchanges(cp), expert_degrees(context), expert_tensor_degrees(context, tp))
            )
            rows += [
                [tp, pp, dp, vpp, split, cp, kind, ep, etp, schedule, order]
                for vpp in range(1, _most_chunks(context, pp) + 1)
                for schedule in schedule_codes(pp, vpp)
                for order in (rank_orders(context) if pp > 1 else (0,))
                for split in range(len(SPLITS))
                for kind, ep, etp in layers
            ]
        shapes = table_of(context, rows)
        alive = np.arange(len(shapes))
        for _, predicate in SHAPE_RULES:
            alive = alive[predicate(context, shapes.take(alive))]
        return ShapeSpace(shapes.take(alive), len(rows), {})

    def below(self, n_devices: int, limit_s: float, n: int = 1) -> list[Candidate]:
        """Return the `n` fastest plans on `n_devices` among those below `limit_s`, best first.

        Plans whose closed form is within `CLOSED_FORM_GAP` of the limit are priced again with the
        exact recurrence, the first `MOST_EXACT` of them and none whose closed form is slower than
        the best by more than that gap.
        """
        # The bounds hold for the exact times too: what they place above the limit stays there.
        limits = Limits(limit_s * (1.0 + CLOSED_FORM_GAP), 0.0, exact_s=limit_s)
        return self._fastest(n_devices, self._quickest(n_devices, limit_s, limits), limit_s, n)

    def least_below(self, n_devices: int, limit_s: float) -> float:
        """Return the least step below `limit_s` of the plans on `n_devices`, seconds; inf if none.

        Of the named splits as in `below`, and of the others of the shapes that are quickest with a
        named one, as a search of these devices has them: a shape may come below the limit with
        another split only.
        """
        context = self.context(n_devices)
        if not splits_wanted(context.options):
            return min((c.step_s for c in self.below(n_devices, limit_s)), default=math.inf)
        limits = Limits(limit_s * (1.0 + SPLIT_GAIN), 0.0)
        quickest = self._quickest(n_devices, limit_s, limits)
        named = self._fastest(n_devices, quickest, limit_s, 1)
        least_s = min([limit_s, *(c.step_s for c in named)])
        plans = [SplitPlan(c.layout, c.closed_form_s, c.peak_bytes) for c in quickest]
        rivals = worth_splitting(context, plans, least_s * (1.0 + CLOSED_FORM_GAP))
        exact = self._exact(context, [x.layout for _, x in rivals])
        # A split is taken to come off the closed form by as much as the named one of its shape.
        plans = [
            replace(x, step_s=step_s)
            for (ideal_s, x), step_s in zip(rivals, exact, strict=True)
            if ideal_s * step_s < least_s * x.closed_form_s
        ]
        plans.sort(key=lambda x: (x.step_s, x.peak_bytes, layout_key(x.layout)))
        least_s = min([least_s, *(x.step_s for x in improve_splits(context, plans).plans)])
        return least_s if least_s < limit_s else math.inf

    def _fastest(
        self, n_devices: int, quickest: Sequence[Candidate], limit_s: float, n: int
    ) -> list[Candidate]:
        """Return the `n` fastest of some plans by exact times, of those below a limit."""
        context, priced = self.context(n_devices), list[Candidate]()
        results = [c for c in quickest if c.closed_form_s < limit_s * (1.0 + CLOSED_FORM_GAP)]
        for start in range(0, len(results), EXACT_AT_ONCE):
            some = results[start : start + EXACT_AT_ONCE]
            best_s = [c.step_s for c in priced[:n]]
            if len(best_s) == n and some[0].closed_form_s * (1.0 - CLOSED_FORM_GAP) > best_s[-1]:
                break
            exact = self._exact(context, [c.layout for c in some])
            priced += [replace(c, step_s=t) for c, t in zip(some, exact, strict=True)]
            priced.sort(key=lambda c: (c.step_s, c.peak_bytes, layout_key(c.layout)))
        return [c for c in priced[:n] if c.step_s < limit_s]

    def _quickest(self, n_devices: int, limit_s: float, limits: Limits) -> list[Candidate]:
        """Return the `MOST_EXACT` best plans within limits by the closed form.

        Of the shapes whose bound is below `limit_s`.
        """
        context, shapes = self.context(n_devices), self.promising(n_devices, limit_s).shapes
        results: list[Candidate] = []
        for shard in make_shards(context, shapes, limits.least_s, self._grid(context)):
            results += search_shard(replace(shard, limits=limits)).best
            results = sorted(results, key=closed_form_order)[:MOST_EXACT]
            limits = limits.after(results, MOST_EXACT)
        return results

    def _exact(self, context: Context, layouts: list[Layout]) -> list[float]:
        """Return the steps of layouts by the exact recurrence, seconds."""
        return exact_step_s(context.problem, layouts, self._grid(context), self.shared)

    def least_s(self, n_devices: int) -> float:
        """Return the lower bound on the step time on `n_devices`; inf where no shape exists."""
        self.find_least([n_devices])
        return self._least[n_devices]

    def floor_s(self, n_devices: int) -> float:
        """Return `flops_bound_s` on `n_devices`: cheap enough for thousands of them."""
        if self._floor is None:
            self._floor = _flops_and_rate(self.problem)
        flops, rate = self._floor
        return flops / (n_devices * rate)

    def find_least(self, counts: Sequence[int]) -> None:
        """Find `least_s` of many numbers of devices, at once for those that place layers alike."""
        wanted = np.unique([n for n in counts if n not in self._least]).astype(np.int64)
        n, degrees = self._degrees_of(wanted)
        self._least.update(dict.fromkeys(wanted.tolist(), math.inf))
        if not len(n):
            return
        device_counts, starts = np.unique(n, return_index=True)
        alike: dict[tuple[object, ...], list[int]] = {}
        for i, count in enumerate(device_counts.tolist()):
            alike.setdefault(self._placed_key(count), []).append(i)
        sizes = np.diff([*starts.tolist(), len(n)])
        for some in alike.values():
            rows = np.concatenate([np.arange(starts[i], starts[i] + sizes[i]) for i in some])
            result = self._of_plain_degrees(
                self.context(int(device_counts[some[0]])), degrees[rows]
            )
            ends = np.concatenate(([0], np.cumsum(sizes[some])[:-1]))
            for i, least in zip(some, np.minimum.reduceat(result, ends).tolist(), strict=True):
                count = int(device_counts[i])
                self._least[count] = straggler_factor(self.problem, count) * least

    def _degrees_of(self, counts: Ints) -> tuple[Ints, Ints]:
        """Return the rows of `shape_degrees` of ascending numbers of devices, and each row's n.

        Rows `(n_rows, 4)`: tp, pp, cp, dp.
        """
        if not len(counts):
            return counts, np.zeros((0, 4), dtype=np.int64)
        n, degrees = self._all_degrees() or _listed_degrees([self.context(x) for x in counts])
        keep = np.isin(n, counts)
        n, degrees = n[keep], degrees[keep]
        largest = self.context(self.problem.pool.n_devices)
        device_counts, own = np.unique(n, return_inverse=True)
        sharded = fully_sharded_fits_on(largest, device_counts)
        need = np.array([model_parallel_for(largest, x) for x in (False, True)])
        tp, pp = degrees[:, 0], degrees[:, 1]
        keep = (tp * pp >= need[sharded.astype(np.intp)][own]) | ((pp == 1) & sharded[own])
        return n[keep], degrees[keep]

    def _all_degrees(self) -> tuple[Ints, Ints] | None:
        """Return the rows of all numbers of devices of the pool before any look at memory.

        None where they are more than `MOST_DEGREES`.
        """
        context, options = self.context(self.problem.pool.n_devices), self.options
        pool, shape, batch = self.problem.pool, self.problem.shape, self.problem.job.global_batch
        most_cp = cp_limit(context)
        return shared(
            self.shared,
            lambda: (
                *("degrees", pool.n_devices, pool.devices_per_node, shape.layers),
                *(_attention_heads(shape), mixer_heads(shape)),
                *(batch, most_cp, options_key(options)),
            ),
            lambda: _all_degrees(pool, options, _degree_ranges(context, most_cp)),
        )

    def least_bytes(self, n_devices: int) -> float:
        """Return a lower bound on the peak memory, bytes: all states shared by all devices.

        Less what the host takes where optimizers may be offloaded.
        """
        offload = offers_offload(self.context(n_devices))
        return all_states_bytes(self.problem, n_devices, offload)

    def of_shapes(self, context: Context, shapes: ShapeTable) -> Floats:
        """Return the lower bound on the step time of each shape, seconds."""
        columns = (shapes.tp, shapes.pp, shapes.cp, shapes.dp)
        return self._of_degrees(context, list(zip(*(x.tolist() for x in columns), strict=True)))

    def _of_degrees(self, context: Context, degrees: Sequence[tuple[int, ...]]) -> Floats:
        """Return the lower bound of each (tp, pp, cp, dp), seconds; inf where no plan has it."""
        least = self._of_plain_degrees(context, degrees)
        return np.asarray(straggler_factor(context.problem, context.n_devices) * least)

    def _of_plain_degrees(
        self, context: Context, degrees: Ints | Sequence[tuple[int, ...]]
    ) -> Floats:
        """Return `_of_degrees` as if no node was slow: that hangs on the number of devices."""
        if not len(degrees):
            return np.zeros(0)
        rows = np.asarray(degrees, dtype=np.int64)
        minima, pair_idx = self._layers_of(context, rows[:, [0, 2]])
        tp, pp, _, dp = rows.T[:, :, None, None]
        layers, split = context.problem.shape.layers, _splits_backward(context.options)
        sequences = context.problem.job.global_batch // dp
        layer_s, expert_params = (
            minima.layer_s[pair_idx],
            minima.expert_params[pair_idx][..., None],
        )
        possible = self._holds_experts(context, expert_params, tp, pp) & np.isfinite(layer_s)
        possible = possible & (sequences % minima.mbs == 0)
        fullest = np.ceil(2 * layers / pp) / 2 * layer_s
        mean = (layers * minima.mean_layer_s[pair_idx] + minima.ends_s[pair_idx]) / pp
        wait = 0.0 if split else (pp - 1) * (pp - 2) / (2 * pp)
        head = minima.head_s[pair_idx] * (0.5 if split else 1.0)
        fullest = np.maximum(np.maximum(fullest, mean), head)
        with np.errstate(invalid="ignore"):  # inf times no wait, where nothing is possible
            step = sequences / minima.mbs * fullest + wait * layer_s
        return np.asarray(np.where(possible, step, math.inf).min(axis=(1, 2), initial=math.inf))

    def _holds_experts(self, context: Context, expert_params: Floats, tp: Ints, pp: Ints) -> Bools:
        """Tell by expert grid whether the mean rank can hold weights and gradients.

        (W + G) N_r with N_r = (expert layers x experts of a layer on a device + the rest / tp) /
        pp; with ZeRO 2 the weights alone, with ZeRO 3 two layers of experts at once. The arguments
        broadcast.
        """
        problem, shape = context.problem, context.problem.shape
        is_free = bool(problem.job.tuning) or not context.options.memory_bound
        if not shape.n_experts or is_free:
            return np.ones(expert_params.shape, dtype=bool)
        if self._rest_params is None:
            one = np.ones(1, dtype=np.int32)
            routed = shape.n_expert_layers * float(expert_params_of(shape, one, one)[0])
            self._rest_params = trained_params(shape, problem.job.seq_len) - routed
        params = (shape.n_expert_layers * expert_params + self._rest_params / tp) / pp
        recipe, usable = problem.job.recipe, problem.pool.usable_bytes
        bytes_of = param_bytes_kept(recipe, problem.stack)
        weights = bytes_of.weights - recipe.spared_weight_bytes
        ok = (weights + bytes_of.grads) * params <= usable
        sharded = (pp == 1) | (context.options.framework == "any")
        states = (recipe.param_bytes - recipe.spared_weight_bytes) * params <= usable
        return np.asarray(
            ok | (sharded & (states | (2.0 * recipe.param_bytes * expert_params <= usable)))
        )

    def _layers_key(self, context: Context) -> tuple[Any, ...]:
        """Return the expert grids of a number of devices, and how it places a layer's groups."""
        grids = tuple(e for e in expert_degrees(context) if context.n_devices % e == 0)
        return (grids, *placement_of(context))

    def _placed_key(self, n_devices: int) -> tuple[Any, ...]:
        """Return a key that only numbers of devices with the same `_layers_key` share.

        Whole domains of whole nodes differ in the units that hold all of them alone.
        """
        pool = self.problem.pool
        if pool.domain_nodes or n_devices < max(pool.scale_up_domain, pool.devices_per_node):
            return self._layers_key(self.context(n_devices))
        named = expert_degrees(self.context(pool.n_devices))
        units = [pool.scale_up_domain]
        units += [tier.n_nodes * pool.devices_per_node for tier in self.problem.tiers]
        grids = tuple(e for e in named if n_devices % e == 0)
        inside = tuple(unit >= n_devices for unit in units)
        return grids, pool.scale_up_domain, pool.devices_per_node, inside

    def _layers_of(self, context: Context, pairs: Ints) -> tuple["LayerMinima", NDArray[np.intp]]:
        """Return the least times of layers, and where each (tp, cp) finds its own."""
        key = self._layers_key(context)
        grids: tuple[int, ...] = key[0]
        distinct, own = np.unique(pairs, axis=0, return_inverse=True)
        listed = [(tp, cp) for tp, cp in distinct.tolist()]
        minima = self._layers.get(key)
        if minima is None or any(pair not in minima.pairs for pair in listed):
            wanted = sorted({*(minima.pairs if minima else ()), *listed})
            minima = _least_layers(context, wanted, grids, self._grid(context))
            self._layers[key] = minima
        places = np.array([minima.pairs[pair] for pair in listed], dtype=np.intp)
        return minima, places[own.ravel()]

    def _are_of(self, context: Context) -> bool:
        """Tell whether a search is of the job and the pins of these bounds."""
        requested, own = context.options, self.options
        if requested is not own:
            names = ("only", "at_most", "open")
            if any(getattr(requested, name) != getattr(own, name) for name in names):
                return False
        names = ("shape", "job", "stack")
        return all(getattr(context.problem, x) == getattr(self.problem, x) for x in names)

    def _rates_key(self) -> bytes:
        if not self._rates:
            self._rates = rates_key(on_nodes(self.problem, 1), batch=False)
        return self._rates

    def _grid(self, context: Context) -> LayerGrid | None:
        """Return the layer terms of every split that some number of devices has.

        Of numbers that place their groups alike; None where there are too many to compute at once,
        and for a search of another job or with other pins than these bounds are of.
        """
        if not self._are_of(context):
            return None
        key = placement_of(context)
        if key not in self._grids:
            largest = self.context(self.problem.pool.n_devices)
            self._grids[key] = shared(
                self.shared,
                lambda: (
                    "layers",
                    self._rates_key(),
                    tuple(batch_sizes(largest).tolist()),
                    options_key(self.options),
                    # What of the number of devices matters: placement, and the degrees there are.
                    largest.n_devices if self.problem.shape.n_experts else 0,
                    *key,
                ),
                lambda: whole_grid(largest, context),
            )
        return self._grids[key]


def placement_of(context: Context) -> tuple[object, ...]:
    """Return what the placement of a layer's groups depends on besides their degrees."""
    pool, tiers = context.problem.pool, context.problem.tiers
    units = [pool.scale_up_domain, *(tier.n_nodes * pool.devices_per_node for tier in tiers)]
    inside = tuple(unit >= context.n_devices for unit in units)
    return pool.scale_up_domain, pool.devices_per_node, inside


def whole_grid(largest: Context, context: Context) -> LayerGrid | None:
    """Return the layer terms of every split on `largest` devices or fewer, placed as on `context`.

    None where they are more than `MOST_IN_GRID`.
    """
    problem, options, mbs = context.problem, context.options, batch_sizes(context)
    most_cp, seq_len = cp_limit(largest), problem.job.seq_len
    rows = [
        {**PLAINEST, "tp": tp, "cp": cp, "cp_comm": kind, "ep": ep, "etp": etp}
        for tp in tensor_degrees(problem.shape, largest.n_devices)
        if options.allows("tp", tp)
        for cp in range(1, most_cp + 1)
        if options.allows("cp", cp) and (cp == 1 or seq_len % (2 * cp) == 0)
        for kind in exchanges(cp)
        for ep in expert_degrees(largest)
        for etp in expert_tensor_degrees(largest, tp)
    ]
    modes = options.mode_table
    if not 0 < len(rows) * len(mbs) * len(modes) <= MOST_IN_GRID:
        return None
    shapes = table_of(context, [[row[axis] for axis in SHAPE_AXES] for row in rows])
    return layer_grid(problem, shapes, mbs, modes)


def tensor_degrees(shape: ModelShape, n_devices: int) -> list[int]:
    """Return the tp that heads leave, those of attention or of what stands in its place."""
    heads = _attention_heads(shape) or mixer_heads(shape)
    return divisors(math.gcd(*heads)) if heads else list(range(1, n_devices + 1))


def _attention_heads(shape: ModelShape) -> tuple[int, ...]:
    """Return the numbers of heads of attention, which tp has to divide; none without any."""
    return tuple(dict.fromkeys(x.heads for x in attention_shapes(shape)))


def _most_chunks(context: Context, pp: int) -> int:
    """Return the largest vpp that layers and options leave beside a pp."""
    stages = most_stages(context.problem.shape.layers)
    return min(vpp_limit(context), stages // pp) if pp > 1 else 1


def _splits_backward(options: SearchOptions) -> bool:
    """Tell whether the search may use a schedule that splits the backward."""
    return any(
        options.allows("schedule", SCHEDULES.index(name))
        and (options.framework == "any" or schedule_runs(options.framework, name))
        for name in ZERO_BUBBLE
    )


def shape_degrees(context: Context) -> Iterator[tuple[int, int, int, int]]:
    """Yield the (tp, pp, cp, dp) that the pins, the batch and MEM000 leave; rules of layers aside.

    A superset of those of the legal shapes.
    """
    n, options, shape = context.n_devices, context.options, context.problem.shape
    batch, need = context.problem.job.global_batch, least_model_parallel(context)
    sharded, most_cp = fully_sharded_fits(context), cp_limit(context)
    for tp in divisors(n):
        if not options.allows("tp", tp) or any(n % tp for n in _attention_heads(shape)):
            continue
        for cp in divisors(n // tp):
            if cp > most_cp or not options.allows("cp", cp):
                continue
            for pp in divisors(n // (tp * cp)):
                dp = n // (tp * cp * pp)
                if pp > most_stages(shape.layers) or batch % dp:
                    continue
                if not (options.allows("pp", pp) and options.allows("dp", dp)):
                    continue
                if tp * pp >= need or (pp == 1 and sharded):
                    yield tp, pp, cp, dp


DegreeRanges = tuple[list[int], list[int], list[int], list[int]]


def _degree_ranges(context: Context, most_cp: int) -> DegreeRanges:
    """Return the tp, cp, pp and dp that some number of devices may have."""
    problem, allows, n = context.problem, context.options.allows, context.n_devices
    return (
        [x for x in tensor_degrees(problem.shape, n) if allows("tp", x)],
        [x for x in range(1, min(most_cp, n) + 1) if allows("cp", x)],
        [x for x in range(1, min(most_stages(problem.shape.layers), n) + 1) if allows("pp", x)],
        [x for x in divisors(problem.job.global_batch) if allows("dp", x)],
    )


def _all_degrees(
    pool: Pool, options: SearchOptions, ranges: DegreeRanges
) -> tuple[Ints, Ints] | None:
    """Return n and (tp, pp, cp, dp) of all whole nodes of a pool and parts of one, n ascending.

    Of one n in the order of `shape_degrees`. None where they are more than `MOST_DEGREES`.
    """
    n, columns = np.ones(1, dtype=np.int64), np.zeros((1, 0), dtype=np.int64)
    for values in ranges:
        if len(n) * len(values) > MOST_DEGREES:
            return None
        column = np.array(values, dtype=np.int64)
        product_n = (n[:, None] * column).ravel()
        left = np.flatnonzero(product_n <= pool.n_devices)
        row_idx, value_idx = np.divmod(left, max(1, len(values)))
        columns = np.column_stack((columns[row_idx], column[value_idx]))
        n = product_n[left]
    total = pool.devices_per_node
    left = np.flatnonzero(np.where(n < total, total % n, n % total) == 0)
    left = left[np.argsort(n[left], kind="stable")]
    return n[left], np.ascontiguousarray(columns[left][:, [0, 2, 1, 3]])


def _listed_degrees(contexts: Sequence[Context]) -> tuple[Ints, Ints]:
    """Return n and (tp, pp, cp, dp) of some numbers of devices one by one."""
    rows = [(context.n_devices, *one) for context in contexts for one in shape_degrees(context)]
    table = np.array(rows, dtype=np.int64).reshape(len(rows), 5)
    return table[:, 0], table[:, 1:]


def _least_layers(
    context: Context,
    pairs: Sequence[tuple[int, int]],
    grids: tuple[int, ...],
    grid: LayerGrid | None = None,
) -> LayerMinima:
    """Return the least times of layers split over some (tp, cp), inf where a rule bars a split.

    `grid` holds their terms, if they are known.
    """
    options, modes, mbs = context.options, context.options.mode_table, batch_sizes(context)
    job = context.problem.job
    mbs = mbs[job.global_batch % mbs == 0]
    columns: list[tuple[int, ...]] = []
    expert_grids: list[list[tuple[int, int]]] = []
    for i, (tp, cp) in enumerate(pairs):
        offered = [
            (ep, etp)
            for ep in grids
            if options.allows("ep", ep)
            for etp in expert_tensor_degrees(context, tp)
            if options.allows("etp", etp)
        ]
        expert_grids.append(offered)
        kinds = [kind for kind in exchanges(cp) if options.allows("cp_comm", kind)]
        columns += [
            (i, j, tp, cp, kind, *pair) for j, pair in enumerate(offered) for kind in kinds
        ]
    size = len(pairs), max(map(len, expert_grids), default=0), len(mbs)
    params = np.zeros(size[:2])
    for i, offered in enumerate(expert_grids):
        if offered:
            ep, etp = np.array(offered, dtype=np.int32).T
            params[i, : len(offered)] = expert_params_of(context.problem.shape, ep, etp)
    entries = {name: np.full(size, math.inf) for name in ("layer_s", "mean_layer_s")}
    entries |= {name: np.full(size, math.inf) for name in ("ends_s", "head_s")}
    row_of = {pair: i for i, pair in enumerate(pairs)}
    minima = LayerMinima(row_of, mbs.astype(np.float64), params, **entries)
    if not columns or not len(mbs):
        return minima
    rows = np.array(columns, dtype=np.int32)
    plainest = np.array([PLAINEST[axis] for axis in SHAPE_AXES], dtype=np.int32)
    block = np.tile(plainest, (len(rows), 1))
    for i, axis in enumerate(("tp", "cp", "cp_comm", "ep", "etp"), start=2):
        block[:, SHAPE_AXES.index(axis)] = rows[:, i]
    splits = table_of(context, block)
    ok = np.ones(len(splits), dtype=bool)
    for code, predicate in SHAPE_RULES:
        if code in LAYER_RULES:
            ok &= predicate(context, splits)
    if not ok.any():
        return minima
    rows, splits = rows[ok], splits.take(np.flatnonzero(ok))
    grid = grid or layer_grid(context.problem, splits, mbs, modes)
    table = grid.table(splits, np.zeros(1, dtype=np.int32))
    split_idx, size_of, mode = (
        x.ravel().astype(np.int32)
        for x in np.meshgrid(np.arange(len(splits)), mbs, np.arange(len(modes)), indexing="ij")
    )
    of_mode = modes.rows(mode)
    term_idx = table.index(split_idx, size_of, of_mode).reshape(len(splits), len(mbs), -1)

    def least(times: Floats) -> Floats:
        best = np.full(size, math.inf)
        np.minimum.at(best, (rows[:, 0], rows[:, 1]), times[term_idx].min(axis=-1))
        return best

    layer_s, mean_s = _layers(context, table.terms, least)
    ends_s = least(table.terms.before_layers.total_s + table.terms.head.total_s)
    head_s = least(table.terms.head.total_s)
    return LayerMinima(row_of, minima.mbs, params, layer_s, mean_s, ends_s, head_s)


def _layers(
    context: Context, terms: LayerTerms, least: Callable[[Floats], Floats]
) -> tuple[Floats, Floats]:
    """Return the least time of the quickest kind of layer, and the mean over all layers."""
    shape = context.problem.shape
    pairs = zip(terms.of_kinds, shape.kind_counts, strict=True)
    by_kind = [(least(kind.layer.total_s), count) for kind, count in pairs if count]
    if len(by_kind) == 1:
        return by_kind[0][0], by_kind[0][0]
    total = reduce(np.add, [count * one for one, count in by_kind])
    return reduce(np.minimum, [one for one, _ in by_kind]), total / shape.layers
