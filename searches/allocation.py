"""Which job gets which nodes: one choice of every job's, within the nodes that are free.

A moldable job runs on any of some numbers of nodes (Feitelson and Rudolph, "Toward convergence in
job schedulers for parallel supercomputers", 1996), and its curve says how fast. Whatever is to be
best is a sum over jobs, so that all objectives are one multiple-choice knapsack problem with a
capacity for every pool (Sinha and Zoltners, 1979), which CP-SAT solves with a proof or a bound.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from searches.cp_sat import cp_model, make_solver

OBJECTIVES = ("throughput", "fairness", "deadline")
SCALE = 1_000_000
"""Steps of the largest value of one choice: CP-SAT counts in whole numbers."""
IDLE_SPEED = 1e-3
"""Speed at which a job that gets nothing counts for fairness: its logarithm must be finite."""
LEAST_GAIN = 1e-6
"""What the slowest choice counts for fairness: to run is better than to wait."""
PRICE_ROUNDS, PRICE_STEPS = 12, 30
"""Of `priced_bound`: times that each pool has its turn, and thirds of each."""
EFFORT = 1.0
"""Effort after which the best so far is taken: CP-SAT's deterministic time, about seconds. It does
not depend on the machine, and neither does the answer."""


@dataclass(frozen=True, slots=True)
class NodeChoice:
    """Nodes that a job can use, and what it does with them."""

    pool: str
    n_nodes: int
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class MoldableJob:
    """A job and its curve."""

    name: str
    choices: tuple[NodeChoice, ...]
    weight: float = 1.0
    tokens: float = 0.0
    """That are left to train; needed where there is a deadline."""
    deadline_s: float = 0.0
    """From now on; 0: none."""

    @property
    def best_tokens_per_s(self) -> float:
        """Return the speed of its fastest choice; 0 without one."""
        return max((each.tokens_per_s for each in self.choices), default=0.0)

    def is_in_time(self, choice: NodeChoice) -> bool:
        """Tell whether a choice meets the deadline: tokens / tokens_per_s <= deadline_s."""
        return self.deadline_s > 0.0 and self.tokens <= self.deadline_s * choice.tokens_per_s


@dataclass(frozen=True, slots=True)
class Allocation:
    """What every job gets."""

    chosen: tuple[NodeChoice | None, ...]
    """In the order of the jobs; None for one that waits."""
    value: float
    """Of the objective."""
    bound: float
    """No allocation has a larger value, up to the rounding of values."""
    is_proven: bool

    @property
    def gap_frac(self) -> float:
        """How far the value may be below the best one, as a part of the bound; 0 where proven."""
        if self.is_proven or not self.bound:
            return 0.0
        return max(0.0, (self.bound - self.value) / abs(self.bound))


Value = Callable[[MoldableJob, NodeChoice], float]


def throughput_value(job: MoldableJob, choice: NodeChoice) -> float:
    """Return weight x tokens_per_s: tokens a second of all jobs together are to be most."""
    return job.weight * choice.tokens_per_s


def fairness_value(job: MoldableJob, choice: NodeChoice) -> float:
    """Return weight x ln(speed / IDLE_SPEED), speed = tokens_per_s / that of the fastest choice.

    The sum of logarithms is largest where the product of speeds is: proportional fairness
    (Kelly, "Charging and rate control for elastic traffic", 1997). A job that waits counts
    nothing.
    """
    speed = choice.tokens_per_s / job.best_tokens_per_s
    return job.weight * max(LEAST_GAIN, math.log(speed / IDLE_SPEED))


def deadline_value(job: MoldableJob, choice: NodeChoice) -> float:
    """Return the weight where the deadline is met, and a little for speed.

    What all jobs get for speed together stays below half of a deadline (`solve_allocation`).
    """
    return job.weight if job.is_in_time(choice) else 0.0


VALUES: Mapping[str, Value] = {
    "throughput": throughput_value,
    "fairness": fairness_value,
    "deadline": deadline_value,
}


def _values(jobs: Sequence[MoldableJob], objective: str) -> list[list[float]]:
    """Return the value of every choice of every job."""
    value = VALUES[objective]
    found = [[value(job, choice) for choice in job.choices] for job in jobs]
    if objective != "deadline":
        return found
    least = min((job.weight for job in jobs if job.weight > 0.0), default=1.0)
    for job, values in zip(jobs, found, strict=True):
        best = job.best_tokens_per_s
        for i, choice in enumerate(job.choices):
            values[i] += 0.5 * least / len(jobs) * choice.tokens_per_s / best if best else 0.0
    return found


def solve_allocation(
    jobs: Sequence[MoldableJob],
    free: Mapping[str, int],
    objective: str = "throughput",
    effort: float = EFFORT,
) -> Allocation:
    """Return what every job gets of the nodes that are `free`, by pool.

    The sum of the objective's values is largest, or within `gap_frac` of that where the effort
    (deterministic time of CP-SAT) was spent first. The same input gives the same answer.
    """
    values = _values(jobs, objective)
    largest = max((v for each in values for v in each), default=0.0)
    steps = SCALE / largest if largest > 0.0 else 0.0
    model = cp_model().CpModel()
    used: dict[str, list[Any]] = {pool: [] for pool in free}
    terms, taken = [], []
    for job, of_job in zip(jobs, values, strict=True):
        literals = []
        for choice, value in zip(job.choices, of_job, strict=True):
            literal = model.new_bool_var("")
            literals.append(literal)
            fits = choice.n_nodes <= free.get(choice.pool, 0) and value > 0.0
            if not fits:
                model.add(literal == 0)
                continue
            used[choice.pool].append(choice.n_nodes * literal)
            terms.append(max(1, round(value * steps)) * literal)
        if literals:
            model.add_at_most_one(literals)
        taken.append(literals)
    for pool, nodes in used.items():
        if nodes:
            model.add(sum(nodes) <= free[pool])
    model.maximize(sum(terms))
    greedy_idx = _greedy_idx(jobs, values, free)
    for literals, chosen in zip(taken, greedy_idx, strict=True):
        for i, literal in enumerate(literals):
            model.add_hint(literal, i == chosen)
    solver = make_solver()
    solver.parameters.max_deterministic_time = effort
    # The relaxation is nearly whole already: probing takes ten times as long as all else.
    solver.parameters.linearization_level = 2
    solver.parameters.cp_model_probing_level = 0
    status = solver.solve(model)
    is_found = status in (cp_model().OPTIMAL, cp_model().FEASIBLE)
    bound = priced_bound(jobs, values, free)
    chosen_idx, is_proven = greedy_idx, bound == 0.0
    if is_found:
        chosen_idx = [_chosen_idx(solver, literals) for literals in taken]
        is_proven = not steps or solver.best_objective_bound <= solver.objective_value + 0.5
        bound = min(bound, solver.best_objective_bound / steps) if steps else 0.0
    if not is_proven and _sum_of(values, greedy_idx) > _sum_of(values, chosen_idx):
        chosen_idx = greedy_idx
    given = tuple(
        None if i is None else job.choices[i] for job, i in zip(jobs, chosen_idx, strict=True)
    )
    value = _sum_of(values, chosen_idx)
    return Allocation(given, value, max(value, bound), is_proven)


def priced_bound(
    jobs: Sequence[MoldableJob], values: Sequence[Sequence[float]], free: Mapping[str, int]
) -> float:
    """Return what no allocation exceeds: the least of the Lagrangian dual that was found.

    With a price y_p >= 0 for a node of pool p every job takes what is worth most to it, and

        sum_p y_p F_p + sum_j max(0, max_i v_ji - y_p(i) n_i)

    is at least the value of every allocation (Sinha and Zoltners, 1979). Prices are sought by
    thirds, of one pool after the other and of all together: the dual is convex. Any give a bound.
    """
    pools = {pool: i for i, pool in enumerate(free)}
    rows = [
        (j, pools[choice.pool], choice.n_nodes, value)
        for j, (job, of_job) in enumerate(zip(jobs, values, strict=True))
        for choice, value in zip(job.choices, of_job, strict=True)
        if value > 0.0 and choice.n_nodes <= free.get(choice.pool, 0)
    ]
    if not rows:
        return 0.0
    of_job_idx, pool_idx = np.array([row[:2] for row in rows]).T
    n_nodes, worth = (np.array([row[i] for row in rows], dtype=float) for i in (2, 3))
    firsts = np.flatnonzero(np.diff(of_job_idx, prepend=-1))
    n_free = np.array([free[pool] for pool in pools], dtype=float)

    def dual(prices: NDArray[np.float64]) -> float:
        gains = np.maximum.reduceat(worth - prices[pool_idx] * n_nodes, firsts)
        return float(prices @ n_free + np.maximum(gains, 0.0).sum())

    def lowest(start: NDArray[np.float64], way: NDArray[np.float64], high: float) -> float:
        """Return how far to go from `start` for the least of the dual, by thirds."""
        low = 0.0
        for _ in range(PRICE_STEPS):
            one, two = low + (high - low) / 3.0, high - (high - low) / 3.0
            if dual(start + one * way) <= dual(start + two * way):
                high = two
            else:
                low = one
        return (low + high) / 2.0

    prices, most = np.zeros(len(pools)), float((worth / n_nodes).max())
    least = dual(prices)
    for _ in range(PRICE_ROUNDS):
        for way in np.eye(len(pools)):
            start = np.where(way > 0.0, 0.0, prices)
            prices = start + lowest(start, way, most) * way
        prices *= lowest(np.zeros(len(pools)), prices, 2.0)  # pools that stand for each other
        least = min(least, dual(prices))
    return least


def _sum_of(values: Sequence[Sequence[float]], chosen_idx: Sequence[int | None]) -> float:
    return sum(of_job[i] for of_job, i in zip(values, chosen_idx, strict=True) if i is not None)


def _greedy_idx(
    jobs: Sequence[MoldableJob], values: Sequence[Sequence[float]], free: Mapping[str, int]
) -> list[int | None]:
    """Return a choice of every job: the steps of most value a node first, while nodes are free.

    A step gives a job its first nodes, or more of the same pool (Sinha and Zoltners, 1979, whose
    steps are those of the hull of a curve; here a step that is no longer the next one is passed
    over). What CP-SAT begins with, and the answer where its effort finds nothing better.
    """
    steps = []
    for row, (job, of_job) in enumerate(zip(jobs, values, strict=True)):
        for i, (choice, value) in enumerate(zip(job.choices, of_job, strict=True)):
            lesser = [
                (other.n_nodes, of_job[k])
                for k, other in enumerate(job.choices)
                if other.pool == choice.pool and other.n_nodes < choice.n_nodes
            ]
            least = min(
                (value - v) / (choice.n_nodes - n) for n, v in [*lesser, (0, 0.0)]
            )  # the gain a node over whatever it has before
            if least > 0.0:
                steps.append((-least, row, i))
    left, chosen = dict(free), list[int | None]([None] * len(jobs))
    for _, row, i in sorted(steps):
        choice, had, n_had = jobs[row].choices[i], chosen[row], 0
        if had is not None:
            before = jobs[row].choices[had]
            if before.pool != choice.pool or values[row][had] >= values[row][i]:
                continue
            n_had = before.n_nodes
        more = choice.n_nodes - n_had
        if more <= left.get(choice.pool, 0):
            left[choice.pool] -= more
            chosen[row] = i
    return chosen


def _chosen_idx(solver: Any, literals: Sequence[Any]) -> int | None:
    return next((i for i, literal in enumerate(literals) if solver.value(literal)), None)
