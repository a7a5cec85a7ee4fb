"""The best plan at every pair of tensor and pipeline degree, or why there is none.

Each cell is a search of its own with both degrees pinned, so that a cell without a plan has its
reason: the plan that misses the memory by least, or the conditions that exclude each other.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from hardware.nouns import DeviceNoun, common_noun
from planner.solver.answer.result import Conflict, Plan, Result
from planner.solver.execution import Execution
from planner.solver.options import SolveCommand, SolveOptions
from planner.solver.problem import of_able_framework
from planner.solver.request import SolveRequest, anchored_options
from planner.solver.solve import Extent, solve_inputs
from planner.solver.sources import Source, read_inputs
from planner.solver.unsupported import check_options
from planner.specs.inputs import ClusterInput, ModelInput
from planner.units import GIB

MOST_DEGREE = 64
"""Largest degree that the map shows."""
AXES = ("tp", "pp")
Degrees = tuple[int, int]


@dataclass(frozen=True, slots=True)
class DegreeCell:
    """The best plan of one pair of degrees."""

    tp: int
    pp: int
    plan: Plan | None
    """None where nothing fits; `reason` then says why."""
    reason: str = ""
    kind: str = ""
    """`memory`, `rule` or `stopped`: what the reason is about; empty with a plan."""


def searched_inputs(
    model: Source, cluster: Source, request: SolveRequest
) -> tuple[ModelInput, ClusterInput, SolveOptions]:
    """Return inputs and options of a search, as `planner.solver.solve.solve` reads them.

    Raises `SpecError` for a bad input, `UsageError` for a bad option.
    """
    inputs = read_inputs(model, cluster, request.overrides, request.pool)
    options = request.over(SolveRequest.of_section(inputs[0].search)).options()
    check_options(options)
    options, _ = of_able_framework(*inputs, options)
    options, _ = anchored_options(options, request.reference)
    return *inputs, options


def power_degrees(most: int) -> tuple[int, ...]:
    """Return the powers of two up to a number, at most `MOST_DEGREE`.

    >>> power_degrees(10)
    (1, 2, 4, 8)
    """
    return tuple(2**k for k in range(MOST_DEGREE.bit_length()) if 2**k <= min(most, MOST_DEGREE))


def map_degrees(
    model: ModelInput, cluster: ClusterInput, options: SolveOptions
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the degrees of the two sides: powers of two that the options allow.

    tp goes up to the devices of a node, pp up to the layers, both within the largest pool.
    """
    pools = cluster.cluster.pools
    n_devices = max(pool.n_devices for pool in pools)
    per_node = max(pool.devices_per_node for pool in pools)
    sides = (
        power_degrees(min(per_node, n_devices)),
        power_degrees(min(model.shape.layers, n_devices)),
    )
    return allowed(options, "tp", sides[0]), allowed(options, "pp", sides[1])


def allowed(options: SolveOptions, axis: str, degrees: tuple[int, ...]) -> tuple[int, ...]:
    """Return the degrees that pins, lists and bounds leave, with those that they name."""
    if axis in options.pins:
        return (options.pins[axis],)
    if axis in options.only:
        degrees = tuple(sorted(options.only[axis]))
    return tuple(x for x in degrees if x <= options.at_most.get(axis, x))


def degree_map(
    model: ModelInput,
    cluster: ClusterInput,
    options: SolveOptions,
    execution: Execution,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[DegreeCell, ...]:
    """Return the cells by tp, then pp; pairs that need more devices than there are left out.

    `progress` is told how many cells are done, and of how many. A search that is stopped leaves
    the cells that are left with the kind `stopped`.
    """
    tps, pps = map_degrees(model, cluster, options)
    most = max(pool.n_devices for pool in cluster.cluster.pools)
    pairs = [(tp, pp) for tp in tps for pp in pps if tp * pp <= most]
    cells: list[DegreeCell] = []
    for cell in searched_cells(pairs, model, cluster, options, execution):
        cells.append(cell)
        if progress:
            progress(len(cells), len(pairs))
    return tuple(cells)


def searched_cells(
    pairs: list[Degrees],
    model: ModelInput,
    cluster: ClusterInput,
    options: SolveOptions,
    execution: Execution,
) -> Iterator[DegreeCell]:
    """Yield a cell for every pair."""
    noun = common_noun(pool.accelerator.noun for pool in cluster.cluster.pools)
    for tp, pp in pairs:
        if execution.stop and execution.stop():
            yield DegreeCell(tp, pp, None, "not looked at: the search was stopped", "stopped")
            continue
        pins = {**options.pins, "tp": tp, "pp": pp}
        pinned = replace(options, pins=pins, only=lists_without_degrees(options), top=1)
        command, extent = SolveCommand("MODEL", "CLUSTER"), Extent(reasons=False)
        result = solve_inputs(model, cluster, pinned, execution, command, extent)
        yield degree_cell(tp, pp, result, noun)


def lists_without_degrees(options: SolveOptions) -> dict[str, frozenset[int]]:
    """Return the lists of the options without those of the two degrees, which are pinned."""
    return {axis: values for axis, values in options.only.items() if axis not in AXES}


def degree_cell(tp: int, pp: int, result: Result, noun: DeviceNoun) -> DegreeCell:
    """Return the cell of a search with both degrees pinned; `noun`: what devices are called."""
    if result.plans:
        return DegreeCell(tp, pp, result.plans[0])
    if not result.complete:
        return DegreeCell(tp, pp, None, "not looked at: the search was stopped", "stopped")
    miss = result.closest
    if miss:
        over = (miss.peak_bytes - miss.usable_bytes) / GIB
        needs, usable = miss.peak_bytes / GIB, miss.usable_bytes / GIB
        each = f"needs {needs:.1f} GiB per {noun.one}"
        text = f"{each}, {over:.1f} GiB more than the {usable:.1f} usable"
        return DegreeCell(tp, pp, None, text, "memory")
    return DegreeCell(tp, pp, None, conflict_text(result.conflicts), "rule")


def conflict_text(conflicts: tuple[Conflict, ...]) -> str:
    """Return what excludes each other, the pins of the cell aside."""
    parts = [part for conflict in conflicts[:1] for part in conflict.parts]
    named = [part.text for part in parts if not part.code.startswith("PIN")] or [
        part.text for part in parts
    ]
    return "; ".join(named) or "no legal layout"
