"""The coupled axes as a CP-SAT model: which (tp, pp, dp, vpp, split) are legal.

Degrees are prime exponents, so their product is a sum and the solver enumerates without a single
multiplication; everything else is a table of allowed tuples or a linear bound:

    sum over axes of e[axis, prime] = exponent of the prime in n_devices
    (tp, e[tp, .]) , (pp, e[pp, .]) , (dp, e[dp, .])  in the tables of legal degrees
    (pp, vpp, split)  in the table of legal splits
    dp <= n_devices / (least tp * pp that holds weights and gradients)   unless pp = 1 may shard

Every table comes from the predicates in `searches.rules`.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.plans import ShapeTable
from costmodels.stages import SPLITS
from searches.options import MAX_VPP
from searches.rules import (
    SHAPE_RULES,
    Context,
    fully_sharded_fits,
    least_model_parallel,
    placement_of,
    schedule_of,
)

Ints = NDArray[np.int32]
DEGREE_RULES = {"tp": ("TP001", "TP002", "TP003", "TP004", "TP005"), "dp": ("DP001",), "pp": ()}
SPLIT_RULES = ("VPP001", "PP001", "PP002")


def divisors(n: int) -> list[int]:
    """Return the divisors of n in ascending order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


def prime_exponents(n: int) -> dict[int, int]:
    """Return the prime factorisation of n.

    >>> prime_exponents(12)
    {2: 2, 3: 1}
    """
    found: dict[int, int] = {}
    d = 2
    while d * d <= n:
        while n % d == 0:
            found[d] = found.get(d, 0) + 1
            n //= d
        d += 1
    if n > 1:
        found[n] = found.get(n, 0) + 1
    return found


@dataclass(frozen=True, slots=True)
class ShapeSpace:
    """The legal shapes, and how many candidates each rule rejected."""

    shapes: ShapeTable
    n_candidates: int
    rejected: dict[str, int]


def candidates(
    context: Context, most_pp: int = 0, most_vpp: int = 0
) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Return every (tp, pp, dp) factorisation with every vpp and split, before any rule.

    `most_pp` and `most_vpp` are the number of layers and `vpp_limit` unless given.
    """
    n = context.n_devices
    most_pp = most_pp or context.problem.shape.layers
    most_vpp = most_vpp or vpp_limit(context)
    rows = [
        (tp, pp, n // (tp * pp), vpp, split)
        for tp in divisors(n)
        for pp in divisors(n // tp)
        if pp <= most_pp
        for vpp in range(1, (most_vpp if pp > 1 else 1) + 1)
        for split in range(len(SPLITS))
    ]
    block = np.array(rows, dtype=np.int32).reshape(len(rows), 5)
    tp, pp, dp, vpp, split = (np.ascontiguousarray(block[:, i]) for i in range(5))
    return tp, pp, dp, vpp, split


def vpp_limit(context: Context) -> int:
    """Return the largest vpp to look at: the user's, else `MAX_VPP`."""
    options = context.options
    pinned = max(options.only.get("vpp", frozenset()), default=0)
    return max(options.at_most.get("vpp", 0), pinned) or MAX_VPP


def count_rejections(context: Context) -> tuple[int, dict[str, int]]:
    """Return how many candidate shapes exist and how many each rule rejects first."""
    columns = candidates(context)
    alive = np.ones(len(columns[0]), dtype=bool)
    counts: dict[str, int] = {}
    for code, predicate in SHAPE_RULES:
        rows = np.flatnonzero(alive)
        ok = predicate(context, *(column[rows] for column in columns))
        counts[code] = int(len(rows) - np.count_nonzero(ok))
        alive[rows] = ok
    return len(alive), {code: n for code, n in counts.items() if n}


def legal_degrees(context: Context, axis: str) -> list[int]:
    """Return the legal degrees of one axis by the rules that look at it alone."""
    values = np.array(divisors(context.n_devices), dtype=np.int32)
    if axis == "pp":
        values = values[values <= context.problem.shape.layers]
    ones = np.ones_like(values)
    columns = {"tp": ones, "pp": ones, "dp": ones, "vpp": ones, "split": 0 * ones, axis: values}
    ok = np.array([context.options.allows(axis, int(v)) for v in values], dtype=bool)
    for code, predicate in SHAPE_RULES:
        if code in DEGREE_RULES[axis]:
            ok &= predicate(context, *columns.values())
    return [int(v) for v in values[ok]]


def _split_rows(context: Context, degrees: list[int]) -> list[tuple[int, int, int]]:
    """Return the legal (pp, vpp, split) tuples."""
    rows = [
        (pp, vpp, split)
        for pp in degrees
        for vpp in range(1, (vpp_limit(context) if pp > 1 else 1) + 1)
        for split in range(len(SPLITS))
        if context.options.allows("vpp", vpp) and context.options.allows("split", split)
    ]
    if not rows:
        return []
    pp, vpp, split = (np.array(column, dtype=np.int32) for column in zip(*rows, strict=True))
    ones = np.ones_like(pp)
    ok = np.ones(len(rows), dtype=bool)
    for code, predicate in SHAPE_RULES:
        if code in SPLIT_RULES:
            ok &= predicate(context, ones, pp, ones, vpp, split)
    return [row for row, keep in zip(rows, ok, strict=True) if keep]


def _exponents(value: int, primes: list[int]) -> list[int]:
    found = prime_exponents(value)
    return [found.get(prime, 0) for prime in primes]


def most_data_parallel(context: Context) -> int:
    """Return the largest dp that leaves tp * pp enough for weights and gradients, 0 if none does.

    The memory bound as a limit on one variable: tp * pp >= need is dp <= n_devices / need, taken
    over the divisors, so that the solver and the counts agree to the last shape.
    """
    n, need = context.n_devices, least_model_parallel(context)
    return max((dp for dp in divisors(n) if n // dp >= need), default=0)


def _add_memory_bound(model: Any, context: Context, pp: Any, dp: Any) -> None:
    """Add the lower bound on memory, as an upper bound on dp."""
    bound = dp <= most_data_parallel(context)
    if not fully_sharded_fits(context):
        model.add(bound)
        return
    has_pipeline = model.new_bool_var("has_pipeline")
    model.add(pp >= 2).only_enforce_if(has_pipeline)
    model.add(pp == 1).only_enforce_if(~has_pipeline)
    model.add(bound).only_enforce_if(has_pipeline)


def build_model(context: Context) -> tuple[Any, list[Any]] | None:
    """Return the CP-SAT model and its variables (tp pp dp vpp split); None if a table is empty."""
    from ortools.sat.python import cp_model

    primes = sorted(prime_exponents(context.n_devices))
    totals = prime_exponents(context.n_devices)
    degrees = {axis: legal_degrees(context, axis) for axis in ("tp", "pp", "dp")}
    splits = _split_rows(context, degrees["pp"])
    if not all(degrees.values()) or not splits:
        return None
    model = cp_model.CpModel()
    value, e = {}, {}
    for axis, allowed in degrees.items():
        value[axis] = model.new_int_var_from_domain(cp_model.Domain.from_values(allowed), axis)
        e[axis] = [model.new_int_var(0, totals[prime], f"{axis}^{prime}") for prime in primes]
        rows = [(degree, *_exponents(degree, primes)) for degree in allowed]
        model.add_allowed_assignments([value[axis], *e[axis]], rows)
    for i, prime in enumerate(primes):
        model.add(e["tp"][i] + e["pp"][i] + e["dp"][i] == totals[prime])
    vpp = model.new_int_var(1, max(row[1] for row in splits), "vpp")
    split = model.new_int_var(0, len(SPLITS) - 1, "split")
    model.add_allowed_assignments([value["pp"], vpp, split], splits)
    _add_memory_bound(model, context, value["pp"], value["dp"])
    return model, [value["tp"], value["pp"], value["dp"], vpp, split]


def _enumerate(model: Any, variables: list[Any]) -> list[tuple[int, int, int, int, int]]:
    """Return every solution, sorted: the order in which the solver finds them is not kept."""
    from ortools.sat.python import cp_model

    found: list[tuple[int, int, int, int, int]] = []

    class Collector(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            tp, pp, dp, vpp, split = (self.value(v) for v in variables)
            found.append((tp, pp, dp, vpp, split))

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.enumerate_all_solutions = True
    solver.solve(model, Collector())
    return sorted(found)


def legal_shapes(context: Context) -> ShapeSpace:
    """Return every legal shape, enumerated by CP-SAT, and the rejections by rule."""
    n_candidates, rejected = count_rejections(context)
    built = build_model(context)
    rows = _enumerate(*built) if built else []
    pp, vpp = (np.array([row[i] for row in rows], dtype=np.int32) for i in (1, 3))
    placement = placement_of(schedule_of(pp, vpp, context.options))
    shapes = ShapeTable.from_tuples(context.n_devices, rows, placement=placement.tolist())
    return ShapeSpace(shapes, n_candidates, rejected)
