"""The answer of a search: what its shards found, ranked by the exact pipeline time."""

from dataclasses import dataclass, field, replace

from costmodels.plans import ShapeTable
from searches.pricing.candidates import ByDegrees, Candidate, closed_form_order, layout_key
from searches.pricing.fronts import hopeful, merged_front
from searches.pricing.layout_prices import exact_step_s
from searches.pricing.limits import Limits
from searches.pricing.shard_prices import ShardAnswer
from searches.rules import Context
from searches.space.shape_space import ShapeSpace
from searches.splits.near_misses import nearest_misses
from searches.splits.uneven import (
    MAX_MISSES,
    Improved,
    ShapeSplit,
    SplitPlan,
    improve_splits,
    splits_that_fit,
    splits_wanted,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The ranked plans of a search and how it came to them."""

    finalists: tuple[Candidate, ...]
    """Best first, by exact step time."""
    n_shapes: int
    n_candidate_shapes: int
    n_candidates: int
    n_legal: int
    n_fit: int
    """Priced plans that fit."""
    n_excluded: int
    """Legal plans without a price: `bound_s` keeps them from being among the best."""
    bound_s: float
    """Every plan without a price takes longer than this, by closed form and by recurrence."""
    n_rivals: int
    """Plans besides the best whose lower bound is below the exact time of the first; all are
    priced exactly."""
    rejected_shapes: dict[str, int]
    rejected_plans: dict[str, int]
    closest: Candidate | None
    stopped: str = ""
    """`time limit` or `interrupted` when not all shards were priced."""
    shards: tuple[int, int] = field(default=(0, 0))
    """Shards priced and shards in all."""
    n_faster: int = 0
    """Plans that fit and that the closed form prices below `SearchOptions.rival_s`."""
    split_shapes: tuple[ShapeSplit, ...] = ()
    """Shapes of finalists whose layers were split unevenly, the most promising first."""
    n_misses: int = 0
    """Where no plan fits: shapes that were looked at for an uneven split that does."""
    n_hopeless: int = 0
    """Those of them of which it is proven that no split fits."""
    least_unseen_s: float = float("inf")
    """What every plan takes at least that was not looked at before the search was stopped."""
    front: tuple[Candidate, ...] = ()
    """With `SearchOptions.front`: the plans that no other beats in both time and memory, by the
    closed form."""
    near_front: tuple[Candidate, ...] = ()
    """Other plans that may be of the front by exact times: their lower bound is below the closed
    form of every plan that takes no more memory."""
    unsearched: tuple[ShapeTable, ...] = field(default=(), compare=False)
    """Shapes of the shards that were not priced, where the search was stopped."""

    @property
    def gap(self) -> float:
        """By how much the first may be slower than the true best, as a share; 0 when proven."""
        if not self.finalists or self.least_unseen_s >= self.finalists[0].step_s:
            return 0.0
        return self.finalists[0].step_s / max(self.least_unseen_s, 1e-12) - 1.0

    @property
    def complete(self) -> bool:
        """Whether the whole space was priced."""
        return not self.stopped


def merged_answers(
    context: Context, space: ShapeSpace, answers: list[ShardAnswer], limits: Limits
) -> Outcome:
    """Merge shard answers in shard order and re-price the best with the exact recurrence."""
    best = sorted((c for answer in answers for c in answer.best), key=closed_form_order)
    best = best[: context.options.n_finalists]
    finalists = _exact(context, best)
    first_s = min((c.step_s for c in finalists), default=0.0)
    listed = {c.layout for c in best}
    near_first = (some.below(first_s) for answer in answers for some in answer.rivals)
    possible = [c for some in near_first for c in some.candidates()]
    rivals = sorted((c for c in possible if c.layout not in listed), key=closed_form_order)
    finalists = sorted(finalists + _exact(context, rivals), key=_exact_order)
    rejected: dict[str, int] = {}
    for answer in answers:
        for code, count in answer.rejected.items():
            rejected[code] = rejected.get(code, 0) + count
    bounded = context.options.bound and not context.options.front
    bound_s = limits.least_s if bounded else float("inf")
    n_legal = sum(int(a.batches.n_legal.sum()) for a in answers)
    counts = [a.batches.priced(bound_s) for a in answers]
    n_priced, n_fit = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
    if n_priced > n_fit:
        rejected["MEM001"] = n_priced - n_fit
    front = merged_front(a.front for a in answers)
    layouts = {c.layout for c in front}
    parts = (part for a in answers for part in (a.front, a.near_front))
    near = [c for part in parts for c in part if c.layout not in layouts]
    misses = [a.closest for a in answers if a.closest is not None]
    closest = min(misses, key=lambda c: (c.peak_bytes, layout_key(c.layout)), default=None)
    return Outcome(
        finalists=tuple(finalists),
        n_shapes=len(space.shapes),
        n_candidate_shapes=space.n_candidates,
        n_candidates=sum(a.n_candidates for a in answers),
        n_legal=n_legal,
        n_fit=n_fit,
        n_excluded=n_legal - n_priced,
        bound_s=bound_s,
        n_rivals=len(rivals),
        rejected_shapes=space.rejected,
        rejected_plans=rejected,
        closest=closest if not finalists else None,
        n_faster=sum(a.n_faster for a in answers),
        front=tuple(front),
        near_front=tuple(sorted(hopeful(near, front), key=closed_form_order)),
    )


def with_uneven_splits(
    context: Context, outcome: Outcome, shapes: ShapeTable, *, is_whole_space: bool
) -> Outcome:
    """Return the outcome with the layers of its most promising shapes split unevenly as well.

    Where nothing fits after a search of the whole space, those of the shapes that miss the memory
    by least.
    """
    if outcome.finalists or not is_whole_space:
        priced = [
            SplitPlan(c.layout, c.closed_form_s, c.peak_bytes, c.step_s) for c in outcome.finalists
        ]
        improved = improve_splits(context, priced)
    elif outcome.n_legal and splits_wanted(context.options):
        misses = nearest_misses(context, shapes, MAX_MISSES)
        improved = splits_that_fit(context, [c.layout for c in misses])
    else:
        improved = Improved()
    more = (Candidate(x.layout, x.closed_form_s, x.peak_bytes, x.step_s) for x in improved.plans)
    finalists = tuple(sorted([*outcome.finalists, *more], key=_exact_order))
    return replace(
        outcome,
        finalists=finalists,
        split_shapes=improved.shapes,
        n_misses=improved.n_misses,
        n_hopeless=improved.n_hopeless,
        closest=None if finalists else outcome.closest,
    )


def _exact(context: Context, candidates: list[Candidate]) -> list[Candidate]:
    """Return the candidates with their exact step times."""
    layouts = [c.layout for c in candidates]
    times = exact_step_s(context.problem, layouts, context.layer_grid, context.shared)
    return [replace(c, step_s=t) for c, t in zip(candidates, times, strict=True)]


def _exact_order(candidate: Candidate) -> tuple[object, ...]:
    return (candidate.step_s, candidate.peak_bytes, ByDegrees(candidate.layout))
