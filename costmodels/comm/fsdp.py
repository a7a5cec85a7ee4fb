"""How often PyTorch's FSDP2 sends the units that it wraps, and in what width.

A unit is the embedding, a layer with its experts, or final norm and head together (the embedding
too where it is tied), with Accelerate also a table of learned positions; each is one call.
Source: torchtitan/distributed/fsdp.py (apply_fsdp_to_decoder), accelerate/utils/fsdp_utils.py
(fsdp2_prepare_model), both replayed with torch 2.15 over a pretended world
(docs/replay_torch.md).
"""

from dataclasses import dataclass

from costmodels.precision import Recipe
from costmodels.problem import Problem
from costmodels.stacks import StackProfile


@dataclass(frozen=True, slots=True)
class Units:
    """The units of one rank."""

    number: int
    params: float
    """Parameters of all of them."""
    staying: int
    """Units that stay gathered over a backward: final norm and head; learned positions, which are
    left to the root."""
    staying_params: float
    """Parameters of those; 0 where the rank has none."""


def alone_positions(problem: Problem) -> int:
    """Return 1 where learned positions are a unit: Accelerate leaves them to the root."""
    return int(
        problem.stack.sharded_units == "tail-stays" and problem.shape.positions == "learned"
    )


def gathers(units: Units, stack: StackProfile, zero: int, n_micro: int) -> tuple[int, float]:
    """Return calls of a step that gather weights, and the parameters of all of them.

    ZeRO 1 (a pipeline, whose weights stay gathered for a step): each unit once. ZeRO 2: each unit
    for every micro-batch, as its backward frees it. ZeRO 3: twice, but for units that stay.

    >>> from costmodels.stacks import STACKS
    >>> ends = Units(34, 8e9, 1, 0.5e9)
    >>> [gathers(ends, STACKS["torchtitan"], zero, 2)[0] for zero in (0, 1, 2, 3)]
    [0, 34, 68, 136]
    >>> gathers(ends, STACKS["hf-fsdp2"], 3, 2)  # 2 (2 * 34 - 1), 2 (2 * 8e9 - 0.5e9)
    (134, 31000000000.0)
    """
    if zero <= 1:
        return (units.number, units.params) if zero else (0, 0.0)
    if zero == 2:
        return n_micro * units.number, n_micro * units.params
    calls, params = 2 * units.number, 2 * units.params
    if stack.sharded_units == "tail-stays":
        calls, params = calls - units.staying, params - units.staying_params
    return n_micro * calls, n_micro * params


def grad_wire_bytes(recipe: Recipe, stack: StackProfile) -> float:
    """Return the width at which a stack reduces gradients, bytes."""
    if stack.reduce_width == "fp32":
        return 4.0
    if stack.reduce_width == "weights":
        return min(recipe.grad_wire_bytes, recipe.param_wire_bytes)
    return recipe.grad_wire_bytes
