"""The search: legal shapes, free axes, memory, time, the best few by the exact pipeline time."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from searches.executors.executor import SHARDS_PER_TASK, Executor, SerialExecutor
from searches.pricing.candidates import Candidate, closed_form_order
from searches.pricing.layout_prices import price_layouts
from searches.pricing.limits import Limits
from searches.pricing.outcome import Outcome, merged_answers, with_uneven_splits
from searches.pricing.shard_prices import ShardAnswer, search_shard
from searches.pricing.shared_work import job_key, n_bytes
from searches.rules import (
    Context,
    fully_sharded_fits,
    least_model_parallel,
    offers_activation_offload,
    offers_offload,
)
from searches.space.shape_space import ShapeSpace, legal_shapes, memory_free_key
from searches.space.shards import (
    SHARD_SHAPES,
    STOPPABLE_SHAPES,
    Prepared,
    Shard,
    count_plans,
    prepare,
)

PRICED_SHARE = 0.1
"""Of the plans that the bounds leave once the first shapes are known: the limits sink further on
the way, and whole batches do not fit."""
NEIGHBOURS_PLANS = 128
"""Plans of a search that the next one over the same space prices before all others: twice the
finalists, as some may not fit there."""
NEIGHBOURS_MARGIN = 1e-9
"""By how much the limits from them are raised: far more than rounding differs between tables."""


@dataclass(frozen=True, slots=True)
class Seldom:
    """A `stop` whose limit is long: asked between shards of full size, 0.1 s apart or so."""

    stop: Callable[[], bool]

    def __call__(self) -> bool:
        """Return whether the search is to end."""
        return self.stop()


def _neighbours_key(context: Context) -> tuple[object, ...]:
    return ("best", context.problem.stack, job_key(context.problem), *memory_free_key(context))


def leave_for_neighbours(prepared: Prepared, answers: list[ShardAnswer]) -> None:
    """Keep the best plans of a search for those of neighbouring problems."""
    context = prepared.context
    if context.shared is not None and context.options.bound and not context.options.front:
        best = sorted((c for answer in answers for c in answer.best), key=closed_form_order)
        layouts = [c.layout for c in best[:NEIGHBOURS_PLANS]]
        # Plans take about the same each; weighing all would take longer than pricing them.
        size_bytes = len(layouts) * n_bytes(layouts[:1])
        context.shared.keep(_neighbours_key(context), layouts, size_bytes)


def neighbours_limits(prepared: Prepared, limits: Limits) -> Limits:
    """Return the limits that the best plans of a neighbouring problem leave, priced here.

    The space is the same but for the memory's rule, so those that keep it and fit are plans of
    this search, each of another pipeline: the last of the best takes no longer than the last of so
    many of them. What is found, and what
    is counted, is the same as without these limits: both depend on the last limits alone.
    """
    context = prepared.context
    bounded = context.options.bound and not context.options.front
    offload = offers_offload(context) or offers_activation_offload(context)
    if context.shared is None or not bounded or offload:
        return limits
    layouts = context.shared.look(_neighbours_key(context))
    if not layouts:
        return limits
    usable = context.problem.pool.usable_bytes
    need, sharded = least_model_parallel(context), fully_sharded_fits(context)
    layouts = [x for x in layouts if x.tp * x.pp >= need or (x.pp == 1 and sharded)]
    priced = price_layouts(context.problem, layouts, prepared.grid, context.shared)
    fits = [c for c in priced if c.peak_bytes * (1.0 + NEIGHBOURS_MARGIN) <= usable]
    raised = [replace(c, closed_form_s=c.closed_form_s * (1.0 + NEIGHBOURS_MARGIN)) for c in fits]
    return limits.after(sorted(raised, key=closed_form_order), context.options.n_finalists)


def search(
    context: Context,
    executor: Executor | None = None,
    stop: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
    space: ShapeSpace | None = None,
) -> Outcome:
    """Return the best plans of the whole space, or of the legal shapes in `space`.

    Plans that a lower bound on their step time keeps from being among the best get no price
    (`SearchOptions.bound`). The first is proven: every plan whose lower bound is below its exact
    time is priced exactly too. `stop` is asked between groups of shards; when it says so, the best
    so far is returned with `complete` False; shards and groups are small where there is a `stop`
    that is not `Seldom` asked.
    `progress` is told (shards done, shards in all), and where it has a method `found`, before that
    the step time of the best so far, seconds, by the closed form. The answer does not depend on
    the executor.
    """
    executor, is_whole = executor or SerialExecutor(), space is None
    tell_best: Callable[[float], None] | None = getattr(progress, "found", None)
    space = space or legal_shapes(context)
    # Neither the size of shards nor that of groups changes what is found.
    n_shapes, size = SHARD_SHAPES, SHARDS_PER_TASK
    if stop is not None and not isinstance(stop, Seldom):
        n_shapes, size = STOPPABLE_SHAPES, 1
    n, stopped, limits = context.options.n_finalists, "", Limits(rival_s=context.options.rival_s)
    prepared = prepare(context, space.shapes, source=space.any_memory)
    if is_whole and len(space.shapes):
        limits = neighbours_limits(prepared, limits)
    if np.isfinite(limits.last_s):  # as if the first were searched
        prepared = replace(prepared, first=np.zeros_like(prepared.first))
    first = prepared.shards(np.flatnonzero(prepared.first), n_shapes, limits)
    shards, nearest, requested = first + prepared.rest(n_shapes, limits), False, False
    answers: list[ShardAnswer] = []
    round_before: tuple[list[ShardAnswer], Limits, list[Shard]] | None = None

    def left(enough: int) -> int:
        """Estimate what the executor has before it: most is left out once the first are known."""
        bounded = context.options.bound and not context.options.front
        share, n_plans = PRICED_SHARE if bounded else 1.0, 0
        for shard in shards[len(first) :]:
            n_plans += count_plans(replace(shard, limits=limits))
            if n_plans * share >= enough or (stop is not None and stop()):
                break
        return int(n_plans * share)

    try:
        while True:
            answers.clear()
            best: list[Candidate] = []
            while len(answers) < len(shards):
                if stop is not None and answers and stop():
                    stopped = "time limit"
                    break
                n_answered = len(answers)
                if n_answered == len(first):
                    shards = first + prepared.rest(n_shapes, limits)
                if n_answered < len(first):
                    known_now = replace(shards[n_answered], limits=limits, nearest=nearest)
                    results = [search_shard(known_now)]
                else:
                    if not requested:
                        executor.prepare(left)
                        requested = True
                    n_group = max(1, executor.group_size * size // SHARDS_PER_TASK)
                    group = shards[n_answered : n_answered + n_group]
                    results = executor.map(
                        search_shard, [replace(x, limits=limits, nearest=nearest) for x in group]
                    )
                answers.extend(results)
                best = sorted(
                    (c for x in (best, *(a.best for a in results)) for c in x),
                    key=closed_form_order,
                )
                limits = limits.after(best[:n], n)
                if best and tell_best is not None:
                    tell_best(best[0].closed_form_s)
                if progress is not None:
                    progress(len(answers), len(shards))
            merged = merged_answers(context, space, answers, limits)
            nothing = merged.n_legal and not merged.n_fit
            if nothing and not stopped and not nearest:
                nearest = True
                continue
            if is_whole and not stopped:
                leave_for_neighbours(prepared, answers)
            first_s = merged.finalists[0].step_s if merged.finalists else 0.0
            if stopped or first_s <= limits.rivals_s:
                break
            # The exact time of the first lies further above its closed form than was looked at.
            round_before = answers.copy(), limits, shards
            limits = replace(limits, settled_s=first_s)
    except KeyboardInterrupt:
        if not round_before and not any(answer.best for answer in answers):
            raise
        stopped = "interrupted"
        merged = merged_answers(context, space, answers, limits)
    finally:
        executor.close()
    unseen = [float(shard.least_s.min(initial=np.inf)) for shard in shards[len(answers) :]]
    if stopped and round_before:
        # It priced all that can be the first but for what its own bound left out.
        answers, limits, shards = round_before  # each round cuts its own
        merged, unseen = merged_answers(context, space, answers, limits), [limits.least_s]
    try:
        merged = with_uneven_splits(context, merged, space.shapes, is_whole_space=not stopped)
    except KeyboardInterrupt:
        stopped = "interrupted"
    return replace(
        merged,
        stopped=stopped,
        shards=(len(answers), len(shards)),
        least_unseen_s=min(unseen, default=float("inf")),
        unsearched=tuple(shard.shapes for shard in shards[len(answers) :]),
    )
