"""The coupled axes as a CP-SAT model: which shapes exist.

A shape is (tp, pp, dp, vpp, split, cp, cp_comm, ep, etp, schedule, rank_order).
Degrees are prime exponents, so their product is a sum and the solver enumerates without a single
multiplication; everything else is a table of allowed tuples or a linear bound:

    sum over tp, pp, cp, dp of e[axis, prime] = exponent of the prime in n_devices
    e[ep, prime] + e[etp, prime] <= that exponent - e[pp, prime]
    (axis, e[axis, .])  in the table of legal degrees of each axis
    pp , (tp, cp) , (tp, etp) , (tp, cp, rank_order)    in the tables of legal tuples
    pipelines inside  ->  pp >= 2, dp >= 2, and with experts
                          e[ep, prime] + e[etp, prime] = e[tp, prime] + e[cp, prime]
    dp cp <= n_devices / (least tp * pp that holds weights and gradients)   unless pp = 1 may shard

What hangs on one or two degrees alone, (vpp, split, schedule) on pp and cp_comm on (tp, cp), is
crossed with the solutions: the solver would only find every combination anew.
Every table comes from the predicates in `searches.rules`.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.axes import CP_COMMS, RANK_ORDERS, SCHEDULES
from costmodels.plans import PIPELINES_INSIDE, SHAPE_AXES, ShapeTable
from costmodels.schedule.stages import SPLITS, most_stages
from searches import cp_sat
from searches.frameworks.table import order_runs
from searches.options import MAX_VPP, TOKENS_PER_CP
from searches.pricing.shared_work import job_key, options_key
from searches.rules import (
    SHAPE_RULES,
    Context,
    fully_sharded_fits,
    least_model_parallel,
    only_inside,
    schedules_of,
    telling_units,
)

Ints = NDArray[np.int32]
DEGREE_RULES = {
    "tp": ("TP001", "TP002", "TP003", "TP005", "TP006"),
    "pp": ("PP004",),
    "cp": ("CP001", "CP003", "CP006", "CP007"),
    "dp": ("DP001",),
    "ep": ("EP001",),
    "etp": ("EP001", "EP003"),
}
SPLIT_RULES = ("VPP001", "PP001", "PP002", "PP003", "SCH002", "SCH003")
CONTEXT_RULES = ("CP002", "CP004", "CP005")
ORDER_RULES = ("ORD001",)
OFF = dict.fromkeys(("split", "cp_comm", "schedule", "rank_order"), 0)
PLAINEST = dict.fromkeys(SHAPE_AXES, 1) | OFF
"""The value of every coupled axis that is off."""


def divisors(n: int) -> list[int]:
    """Return the divisors of n in ascending order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return list(_divisors(n))


@lru_cache(maxsize=4096)
def _divisors(n: int) -> tuple[int, ...]:
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return (*small, *(n // d for d in reversed(small) if d * d != n))


def prime_exponents(n: int) -> dict[int, int]:
    """Return the prime factorisation of n.

    >>> prime_exponents(12)
    {2: 2, 3: 1}
    """
    entries: dict[int, int] = {}
    d = 2
    while d * d <= n:
        while n % d == 0:
            entries[d] = entries.get(d, 0) + 1
            n //= d
        d += 1
    if n > 1:
        entries[n] = entries.get(n, 0) + 1
    return entries


@dataclass(frozen=True, slots=True)
class AnyMemory:
    """The legal shapes on devices of any memory, and which of them a search has."""

    shapes: ShapeTable
    rows: NDArray[np.intp]

    def take(self, rows: NDArray[np.intp]) -> "AnyMemory":
        """Return the same of some of the rows."""
        return AnyMemory(self.shapes, self.rows[rows])


@dataclass(frozen=True, slots=True)
class ShapeSpace:
    """The legal shapes, and how many candidates each rule rejected."""

    shapes: ShapeTable
    n_candidates: int
    rejected: dict[str, int]
    any_memory: AnyMemory | None = None
    """Where they come from, if searches share it."""


def table_of(context: Context, rows: Sequence[Sequence[int]] | Ints) -> ShapeTable:
    """Return shapes given as tuples of `SHAPE_AXES`, or as an array of them."""
    block = np.asarray(rows, dtype=np.int32).reshape(len(rows), len(SHAPE_AXES))
    columns = zip(SHAPE_AXES, map(np.ascontiguousarray, block.T), strict=True)
    named: dict[str, Any] = dict(columns)
    return ShapeTable(context.n_devices, **named)


def candidates(
    context: Context, most_pp: int = 0, most_vpp: int = 0, most_cp: int = 0
) -> ShapeTable:
    """Return every factorisation with every vpp, split, exchange, expert grid and order of ranks.

    No rule is applied yet.

    `most_pp`, `most_vpp` and `most_cp` are `most_stages`, `vpp_limit` and `cp_limit` unless
    given.
    """
    n = context.n_devices
    most_pp = most_pp or most_stages(context.problem.shape.layers)
    most_vpp = most_vpp or vpp_limit(context)
    most_cp, ep = most_cp or cp_limit(context), expert_degrees(context)
    orders = rank_orders(context)
    # What goes with a pp, and what goes with a (tp, cp), in the order of `SHAPE_AXES`.
    of_pp = {
        pp: np.array(
            [
                (vpp, split, schedule, order)
                for vpp in range(1, (most_vpp if pp > 1 else 1) + 1)
                for schedule in schedule_codes(pp, vpp)
                for split in range(len(SPLITS))
                for order in (orders if pp > 1 else orders[:1])
            ],
            dtype=np.int32,
        )
        for pp in divisors(n)
        if pp <= most_pp
    }
    parts = []
    for tp in divisors(n):
        experts = [(e, x) for e in ep for x in expert_tensor_degrees(context, tp)]
        for cp in divisors(n // tp):
            if cp > most_cp:
                continue
            layer = [(kind, *pair) for kind in exchanges(cp) for pair in experts]
            kind, e, x = np.array(layer, dtype=np.int32).T[..., None]
            for pp in divisors(n // (tp * cp)):
                if pp > most_pp:
                    continue
                vpp, split, schedule, order = of_pp[pp].T
                rows = np.empty((len(layer), len(vpp), len(SHAPE_AXES)), dtype=np.int32)
                dp = n // (tp * pp * cp)
                columns = (tp, pp, dp, vpp, split, cp, kind, e, x, schedule, order)
                for i, column in enumerate(columns):
                    rows[..., i] = column
                parts.append(rows.reshape(-1, len(SHAPE_AXES)))
    return table_of(context, np.concatenate(parts))


def largest_named(context: Context, axis: str) -> int:
    """Return the largest value of an axis that the user names, 0 if none is."""
    options = context.options
    pinned = max(options.only.get(axis, frozenset()), default=0)
    return max(options.at_most.get(axis, 0), pinned)


def vpp_limit(context: Context) -> int:
    """Return the largest vpp to look at: the user's, else `MAX_VPP`."""
    return largest_named(context, "vpp") or MAX_VPP


def cp_limit(context: Context) -> int:
    """Return the largest cp to look at: the user's, else one rank per `TOKENS_PER_CP` tokens."""
    return largest_named(context, "cp") or usual_cp_limit(context)


def usual_cp_limit(context: Context) -> int:
    """Return the largest cp to look at where the user names none."""
    return max(1, context.problem.job.seq_len // TOKENS_PER_CP)


def exchanges(cp: int) -> Sequence[int]:
    """Return how cp ranks may exchange keys and values (indices into `CP_COMMS`)."""
    return range(1, len(CP_COMMS)) if cp > 1 else (0,)


def schedule_codes(pp: int, vpp: int) -> list[int]:
    """Return the schedules of a pipeline, as positions in `SCHEDULES`."""
    return [SCHEDULES.index(name) for name in schedules_of(pp, vpp)]


def expert_degrees(context: Context) -> list[int]:
    """Return the ep to look at: divisors of the experts, and what the user names."""
    named = context.options.only.get("ep", frozenset())
    n_experts = context.problem.shape.n_experts
    offered = {e for e in divisors(n_experts) if e <= context.n_devices} if n_experts else {1}
    return sorted(offered | named)


def expert_tensor_degrees(context: Context, tp: int) -> list[int]:
    """Return the etp to look at beside a tp: 1 and tp, and what the user names."""
    named = context.options.only.get("etp", frozenset())
    return sorted({1, tp if context.problem.shape.n_experts else 1} | named)


def rank_orders(context: Context) -> list[int]:
    """Return the orders of ranks to look at: what a framework has and some group can tell."""
    named = PIPELINES_INSIDE in context.options.only.get("rank_order", ())
    runs = order_runs(context.options.framework, RANK_ORDERS[PIPELINES_INSIDE])
    offered = runs and bool(telling_units(context.problem))
    return [0, PIPELINES_INSIDE] if named or offered else [0]


def count_rejections(context: Context) -> tuple[int, dict[str, int]]:
    """Return how many candidate shapes exist and how many each rule rejects first."""
    shapes = candidates(context)
    alive = np.ones(len(shapes), dtype=bool)
    counts: dict[str, int] = {}
    for code, predicate in SHAPE_RULES:
        rows = np.flatnonzero(alive)
        ok = predicate(context, shapes.take(rows))
        counts[code] = int(len(rows) - np.count_nonzero(ok))
        alive[rows] = ok
    return len(alive), {code: n for code, n in counts.items() if n}


def legal_degrees(context: Context, axis: str) -> list[int]:
    """Return the legal degrees of one axis by the rules that look at it alone."""
    n = context.n_devices
    result = divisors(n)
    if axis in ("pp", "cp"):
        layers = context.problem.shape.layers
        maximum = cp_limit(context) if axis == "cp" else most_stages(layers)
        result = [d for d in result if d <= maximum]
    elif axis == "ep":
        result = expert_degrees(context)
    elif axis == "etp":
        result = sorted({x for tp in result for x in expert_tensor_degrees(context, tp)})
    values = [d for d in result if n % d == 0 and context.options.allows(axis, d)]
    shapes = table_of(context, [[{**PLAINEST, axis: d}[a] for a in SHAPE_AXES] for d in values])
    ok = np.ones(len(shapes), dtype=bool)
    for code, predicate in SHAPE_RULES:
        if code in DEGREE_RULES[axis]:
            ok &= predicate(context, shapes)
    return [d for d, keep in zip(values, ok, strict=True) if keep]


def _legal_tuples(
    context: Context,
    axes: tuple[str, ...],
    rows: list[tuple[int, ...]],
    codes: tuple[str, ...],
    others: Mapping[str, int] = PLAINEST,
) -> list[tuple[int, ...]]:
    """Return the tuples of some axes that the pins and the rules over them alone allow.

    `others` are the values of the axes besides.
    """
    rows = [
        row
        for row in rows
        if all(context.options.allows(a, v) for a, v in zip(axes, row, strict=True))
    ]
    if not rows:
        return []
    full = [{**others, **dict(zip(axes, row, strict=True))} for row in rows]
    shapes = table_of(context, [[row[axis] for axis in SHAPE_AXES] for row in full])
    ok = np.ones(len(rows), dtype=bool)
    for code, predicate in SHAPE_RULES:
        if code in codes:
            ok &= predicate(context, shapes)
    return [row for row, keep in zip(rows, ok, strict=True) if keep]


def _split_rows(context: Context, degrees: list[int]) -> list[tuple[int, ...]]:
    """Return the legal (pp, vpp, split, schedule) tuples."""
    rows: list[tuple[int, ...]] = [
        (pp, vpp, split, schedule)
        for pp in degrees
        for vpp in range(1, (vpp_limit(context) if pp > 1 else 1) + 1)
        for split in range(len(SPLITS))
        for schedule in schedule_codes(pp, vpp)
    ]
    return _legal_tuples(context, ("pp", "vpp", "split", "schedule"), rows, SPLIT_RULES)


def _context_rows(context: Context, tp: list[int], cp: list[int]) -> list[tuple[int, ...]]:
    """Return the legal (tp, cp, cp_comm) tuples."""
    rows: list[tuple[int, ...]] = [(t, c, k) for t in tp for c in cp for k in exchanges(c)]
    return _legal_tuples(context, ("tp", "cp", "cp_comm"), rows, CONTEXT_RULES)


def _order_rows(context: Context, tp: list[int], cp: list[int]) -> list[tuple[int, ...]]:
    """Return the legal (tp, cp, rank_order) tuples of several pipelines of several stages."""
    orders = rank_orders(context)
    rows: list[tuple[int, ...]] = [(t, c, x) for t in tp for c in cp for x in orders]
    several = {**PLAINEST, "pp": 2, "dp": 2}
    return _legal_tuples(context, ("tp", "cp", "rank_order"), rows, ORDER_RULES, several)


def _exponents(value: int, primes: list[int]) -> list[int]:
    result = prime_exponents(value)
    return [result.get(prime, 0) for prime in primes]


def most_replicas(context: Context) -> int:
    """Return the largest dp * cp that leaves tp * pp enough for weights and gradients, 0 if none.

    The memory bound as a limit on one variable: tp * pp >= need is dp cp <= n_devices / need,
    taken over the divisors, so that the solver and the counts agree to the last shape.
    """
    n, need = context.n_devices, least_model_parallel(context)
    return max((ranks for ranks in divisors(n) if n // ranks >= need), default=0)


def _add_memory_bound(model: Any, context: Context, pp: Any, replicas: Any) -> None:
    """Add the lower bound on memory, as an upper bound on dp * cp."""
    bound = replicas <= most_replicas(context)
    if not fully_sharded_fits(context):
        model.add(bound)
        return
    has_pipeline = model.new_bool_var("has_pipeline")
    model.add(pp >= 2).only_enforce_if(has_pipeline)
    model.add(pp == 1).only_enforce_if(~has_pipeline)
    model.add(bound).only_enforce_if(has_pipeline)


def _add_inside(
    model: Any, context: Context, value: Mapping[str, Any], e: Mapping[str, list[Any]]
) -> None:
    """Add what pipelines inside data parallelism need: two of both, and the experts' the same."""
    inside = model.new_bool_var("inside")
    model.add(value["rank_order"] == PIPELINES_INSIDE).only_enforce_if(inside)
    model.add(value["rank_order"] != PIPELINES_INSIDE).only_enforce_if(~inside)
    model.add(value["pp"] >= 2).only_enforce_if(inside)
    if not only_inside(context):
        model.add(value["dp"] >= 2).only_enforce_if(inside)
    if context.problem.shape.n_experts:
        for ep, etp, tp, cp in zip(e["ep"], e["etp"], e["tp"], e["cp"], strict=True):
            model.add(ep + etp == tp + cp).only_enforce_if(inside)


GRID = ("tp", "pp", "cp", "dp", "ep", "etp", "rank_order")
"""The axes that the solver enumerates: each is coupled with several others."""

Rows = list[tuple[int, ...]]


def build_model(context: Context, splits: Rows, kinds: Rows) -> tuple[Any, list[Any]] | None:
    """Return the CP-SAT model and its variables (`GRID`); None if a table is empty.

    `splits` and `kinds` are the legal (pp, vpp, split, schedule) and (tp, cp, cp_comm).
    """
    cp_model = cp_sat.cp_model()

    n = context.n_devices
    totals = prime_exponents(n)
    primes = sorted(totals)
    degrees = {axis: legal_degrees(context, axis) for axis in DEGREE_RULES}
    grids = [(t, x) for t in degrees["tp"] for x in expert_tensor_degrees(context, t)]
    orders = _order_rows(context, degrees["tp"], degrees["cp"])
    if not all((*degrees.values(), splits, kinds, orders)):
        return None
    model = cp_model.CpModel()
    value, e = {}, {}
    for axis, allowed in {**degrees, "replicas": divisors(n)}.items():
        value[axis] = model.new_int_var_from_domain(cp_model.Domain.from_values(allowed), axis)
        e[axis] = [model.new_int_var(0, totals[prime], f"{axis}^{prime}") for prime in primes]
        rows = [(degree, *_exponents(degree, primes)) for degree in allowed]
        model.add_allowed_assignments([value[axis], *e[axis]], rows)
    for i, prime in enumerate(primes):
        model.add(e["cp"][i] + e["dp"][i] == e["replicas"][i])
        model.add(e["tp"][i] + e["pp"][i] + e["replicas"][i] == totals[prime])
        model.add(e["ep"][i] + e["etp"][i] + e["pp"][i] <= totals[prime])
    value["rank_order"] = model.new_int_var(0, len(RANK_ORDERS) - 1, "rank_order")
    for axes, table in (
        (("pp",), sorted({row[:1] for row in splits})),
        (("tp", "cp"), sorted({row[:2] for row in kinds})),
        (("tp", "etp"), grids),
        (("tp", "cp", "rank_order"), orders),
    ):
        model.add_allowed_assignments([value[axis] for axis in axes], table)
    if any(row[2] for row in orders):
        _add_inside(model, context, value, e)
    _add_memory_bound(model, context, value["pp"], value["replicas"])
    return model, [value[axis] for axis in GRID]


def _enumerate(model: Any, variables: list[Any]) -> Rows:
    """Return every solution, in the order in which the solver finds them."""
    results: list[tuple[int, ...]] = []

    def collect(solution: Any) -> None:
        results.append(tuple(solution.value(v) for v in variables))

    solver = cp_sat.make_solver()
    solver.parameters.enumerate_all_solutions = True
    # On tables this small both take longer than they save.
    solver.parameters.cp_model_presolve = False
    solver.parameters.linearization_level = 0
    cp_sat.solve_model(solver, model, cp_sat.at_solutions(collect))
    return results


def legal_shape_table(context: Context) -> ShapeTable:
    """Return every legal shape, enumerated by CP-SAT; sorted."""
    tp, pp, cp = (legal_degrees(context, axis) for axis in ("tp", "pp", "cp"))
    splits, kinds = _split_rows(context, pp), _context_rows(context, tp, cp)
    built = build_model(context, splits, kinds)
    of_pp, of_context = _by_head(splits, 1), _by_head(kinds, 2)
    rows = [
        (tp, pp, dp, vpp, split, cp, kind, ep, etp, schedule, order)
        for tp, pp, cp, dp, ep, etp, order in (_enumerate(*built) if built else ())
        for vpp, split, schedule in of_pp[pp,]
        for (kind,) in of_context[tp, cp]
    ]
    return table_of(context, sorted(rows))


def legal_shapes(context: Context) -> ShapeSpace:
    """Return every legal shape, and the rejections by rule.

    Searches that share work enumerate once for all sizes of the memory: its rule comes last.
    """
    if context.shared is None:
        return _enumerated(context)
    unbounded = replace(context, options=replace(context.options, memory_bound=False))
    every = context.shared.get(
        ("shapes", *memory_free_key(context)), lambda: _enumerated(unbounded)
    )
    code, states_fit = SHAPE_RULES[-1]
    assert code == "MEM000"
    rows = np.flatnonzero(states_fit(context, every.shapes))
    rejected = dict(every.rejected)
    if len(rows) < len(every.shapes):
        rejected[code] = len(every.shapes) - len(rows)
    source = AnyMemory(every.shapes, rows)
    return ShapeSpace(every.shapes.take(rows), every.n_candidates, rejected, source)


def _enumerated(context: Context) -> ShapeSpace:
    return ShapeSpace(legal_shape_table(context), *count_rejections(context))


def memory_free_key(context: Context) -> tuple[Hashable, ...]:
    """Return everything but the memory that `legal_shapes` depends on."""
    # Of the batch it matters which dp divide it, and every dp divides the devices.
    problem, n = context.problem, context.n_devices
    units = (problem.pool.scale_up_domain, *telling_units(problem))
    job = replace(job_key(problem), global_batch=math.gcd(problem.job.global_batch, n))
    return (problem.shape, job, options_key(context.options), n, units)


def _by_head(rows: Rows, n: int) -> dict[tuple[int, ...], Rows]:
    """Return the rest of each row by its first `n` values."""
    entries: dict[tuple[int, ...], Rows] = {}
    for row in rows:
        entries.setdefault(row[:n], []).append(row[n:])
    return entries
