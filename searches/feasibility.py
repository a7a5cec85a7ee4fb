"""Whether any plan fits, without pricing time; and the questions that need only that."""

from collections.abc import Callable

from costmodels.problem import Problem
from costmodels.step import peak_bytes, sends_activations
from searches.frameworks.carried import foreign_rules
from searches.frameworks.registry import searched_frameworks
from searches.pricing.shape_tables import BLOCK_CELLS, tables_of
from searches.rules import Context, all_states_bytes, fits_host_with_activations
from searches.space.free_axes import free_axes
from searches.space.plan_blocks import BatchBounds, plan_blocks
from searches.space.plan_space import legal_masks
from searches.space.shape_space import legal_shape_table
from searches.space.shards import make_shards


class StoppedError(Exception):
    """The caller ended a question before there was an answer."""


def any_fits(context: Context, stop: Callable[[], bool] | None = None) -> bool:
    """Tell whether some legal plan fits into memory: what `search` finds, in a third of the time.

    Stops at the first block of plans that holds one. Raises `StoppedError` once `stop` says so.
    """
    vendor = context.problem.pool.accelerator.vendor
    if foreign_rules(searched_frameworks(context.options.framework, vendor), context.problem):
        return False
    for shard in make_shards(context, legal_shape_table(context)):
        if stop is not None and stop():
            raise StoppedError
        axes = free_axes(context, shard.shapes)
        masks, _, _ = legal_masks(context, shard.shapes, axes)
        if not masks.n_plans:
            continue
        tables = tables_of(context, shard.shapes, axes, None)
        bounds = BatchBounds(may_fit=tables.may_fit)
        for block in plan_blocks(context, shard.shapes, axes, masks, BLOCK_CELLS, bounds):
            rows = tables.join(block.block)
            fits = block.legal & (peak_bytes(rows) <= context.problem.pool.usable_bytes)
            if sends_activations(block.block):
                fits &= fits_host_with_activations(rows)
            if fits.any():
                return True
    return False


def states_can_fit(problem: Problem, n_devices: int) -> bool:
    """Tell whether the states fit when they are shared out over all devices, as in ZeRO 3.

    A lower bound on memory: every parameter has its weight, gradient and optimizer state on some
    device, so the fullest of n devices holds at least (W + G + K) N / n bytes, whatever the
    layout; K and, where they leave, G on the host where there is one. It grows with the parameters
    and shrinks with the devices.
    """
    least_bytes = all_states_bytes(problem, n_devices, problem.pool.host is not None)
    return least_bytes <= problem.pool.usable_bytes


def largest_true(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the largest n in [low, high] with `holds(n)`, low - 1 when there is none.

    By bisection: `holds` must be true up to some n and false beyond it.

    >>> largest_true(lambda n: n * n <= 50, 1, 100)
    7
    """
    while low <= high:
        middle = (low + high) // 2
        if holds(middle):
            low = middle + 1
        else:
            high = middle - 1
    return low - 1


def least_true(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the least n in [low, high] with `holds(n)`, high + 1 when there is none.

    By bisection: `holds` must be false up to some n and true beyond it.

    >>> least_true(lambda n: n * n >= 50, 1, 100)
    8
    """
    return largest_true(lambda n: not holds(n), low, high) + 1
