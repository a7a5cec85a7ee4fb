"""The legal plans of some shapes: the free axes crossed with them, and what the rules leave."""

from collections.abc import Hashable
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from costmodels.plans import ShapeTable
from searches.pricing.shared_work import (
    digest,
    job_key,
    options_key,
    shapes_key,
    shardings_key,
    shared,
)
from searches.rules import Context, offers_activation_offload, offers_offload
from searches.space.free_axes import FreeAxes, free_axes, recompute_options
from searches.space.plan_masks import Coupled, Masks
from searches.space.plan_rules import batch_rules, framework_batch_rules, kind_rules, pin_rules

Bools = NDArray[np.bool_]
Counts = NDArray[np.int64]
Rows = NDArray[np.intp]


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
        result = digest(*(getattr(axes, x.name) for x in fields(axes) if x.name not in apart))
        rows, job = shardings_key(axes.shardings), replace(job_key(problem), global_batch=0)
        model = (problem.shape, job, problem.stack, options_key(context.options))
        domain = problem.pool.scale_up_domain
        return ("kinds", *model, domain, shapes_key(shapes), result, rows)

    # What the host holds of optimizers and activations is not in the key.
    offload = offers_offload(context) or offers_activation_offload(context)
    kinds = shared(
        None if offload else context.shared, key, lambda: _legal_kinds(context, shapes, axes)
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
        np.ones((len(shapes), len(context.options.modes[0])), dtype=bool),
        axes.exists,
        recompute_options(context, shapes, axes),
    )
    n_first, steps = masks.shape_plans, []
    pins = pin_rules(context, shapes, axes)
    for rule in [*pins, *kind_rules(context, shapes, axes)]:
        masks = masks.keeping(rule)
        if isinstance(rule.legal, Coupled):
            masks = masks.compact()  # comes last: what follows is about batches
        steps.append((rule.code, masks.shape_plans))
    dominated = masks.count_of(axes.dominates)
    return LegalKinds(masks, n_first, steps[: len(pins)], steps[len(pins) :], dominated)
