"""What a search over several pools looks at, keeps and answers."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from costmodels.mixed.plans import MixedPlan, PipelineKind
from costmodels.mixed.prices import MixedPrice, fits, price
from costmodels.mixed.tables import MixedProblem
from searches.mixed.fills import Fill, Pipeline

Stop = Callable[[], bool]


class Halt:
    """When a search ends early: what its caller says, kept once it was said.

    A search that asked and went on to its end is not a stopped one, whatever is said later.
    """

    def __init__(self, stop: Stop | None) -> None:
        self._stop = stop
        self.is_cut = False
        """Whether some part of the search was cut off."""

    def __call__(self) -> bool:
        """Tell whether to end now; a search that asks ends where it is told so."""
        if not self.is_cut and self._stop is not None:
            self.is_cut = self._stop()
        return self.is_cut


@dataclass(frozen=True, slots=True)
class MixedOptions:
    """What a search over several pools looks at."""

    most_kinds: int = 0
    """Kinds of pipelines in one plan; 0: three, or as many as pools if those are more."""
    most_spanned: int = 2
    """Pools that one pipeline spans; more are looked at where nothing fits."""
    is_uniform: bool = False
    """Plans alone that are one grid of ranks (`MixedPlan.is_uniform`), as Megatron-LM runs."""
    n_best: int = 5
    """Plans in the answer, each with other structures."""


@dataclass(frozen=True, slots=True)
class MixedAnswer:
    """Plans, the fastest first, and what is proven of the first."""

    plans: tuple[MixedPlan, ...]
    prices: tuple[MixedPrice, ...]
    bound_s: float
    """No plan of the space has a shorter step; infinite where none fits."""
    n_structures: int
    n_priced: int
    stopped: str = ""
    """`time limit` where the search was cut off."""

    @property
    def gap_frac(self) -> float:
        """(best - bound) / best; 0 where the first is proven."""
        if not self.prices:
            return 0.0
        best_s = self.prices[0].step_s
        return max(0.0, (best_s - self.bound_s) / best_s)

    @property
    def proven(self) -> bool:
        """Whether no plan of the space is faster than the first by more than rounding."""
        return not self.stopped and self.gap_frac <= 1e-6


class BestPlans:
    """The fastest plans so far, one for each set of structures."""

    def __init__(self, problem: MixedProblem, options: MixedOptions) -> None:
        self.problem, self.options = problem, options
        self.n_priced = 0
        self._by_key: dict[tuple[object, ...], tuple[float, MixedPlan, MixedPrice]] = {}

    def offer(self, plan: MixedPlan) -> float:
        """Price a plan and keep it if it fits; return its step, infinite where it does not."""
        self.n_priced += 1
        if self.options.is_uniform and not plan.is_uniform:
            return math.inf
        priced = price(plan, self.problem)
        if not fits(plan, self.problem, priced):
            return math.inf
        step_s, key = priced.step_s, _key(plan)
        known = self._by_key.get(key)
        if known is None or (step_s, _order(plan)) < (known[0], _order(known[1])):
            self._by_key[key] = (step_s, plan, priced)
        return step_s

    @property
    def step_s(self) -> float:
        """Step of the fastest."""
        return min((x[0] for x in self._by_key.values()), default=math.inf)

    def first(self, n: int) -> list[tuple[float, MixedPlan, MixedPrice]]:
        """Return the fastest, in order."""
        rows = sorted(self._by_key.values(), key=lambda x: (x[0], _order(x[1])))
        return rows[:n]


def _key(plan: MixedPlan) -> tuple[object, ...]:
    """Return what tells plans apart in an answer: which pools each kind spans, and how wide."""
    return tuple(
        sorted(tuple((x.pool, x.tp, x.cp, x.ep) for x in kind.stages) for kind in plan.kinds)
    )


def _order(plan: MixedPlan) -> tuple[object, ...]:
    return (
        len(plan.kinds),
        tuple(
            (kind.n_pipelines, kind.mbs, tuple((x.pool, x.layers) for x in kind.stages))
            for kind in plan.kinds
        ),
    )


def pipelines_of(fill: Fill, pipeline: Pipeline, n: int, n_sequences: int) -> PipelineKind:
    """Return pipelines of one kind that share some sequences."""
    return PipelineKind(
        stages=fill.stages,
        n_pipelines=n,
        mbs=pipeline.mbs,
        n_micro=math.ceil(n_sequences / (pipeline.mbs * n)),
        n_sequences=n_sequences,
    )
