"""Process groups of a trace on the axes of a plan, and what is not decided."""

import pytest

from costmodels.traffic import PlanTransfer
from planner.analyze.kineto.communicators import (
    AMBIGUOUS,
    OTHER,
    PlanGroups,
    assign,
    described_axis,
)
from planner.analyze.kineto.reader import CollectiveCall
from tests.planner.analyze.kineto.writing import GATHER, REDUCE, SEND


def transfer(axis: str, collective: str, size: int, message: float) -> PlanTransfer:
    return PlanTransfer(
        axis, collective, "node", size, 1, message, message, 1.0, 1.0, "bf16", "ring"
    )


# tp 4 and dp 4 on 16 ranks; rank 1.
PLAN = PlanGroups(
    sizes={"tp": frozenset({4}), "dp": frozenset({4})},
    ranks={"tp": (frozenset({0, 1, 2, 3}),), "dp": (frozenset({1, 5, 9, 13}),)},
    transfers=(
        transfer("tp", "all-gather", 4, 64e6),
        transfer("tp", "all-reduce", 4, 1e5),
        transfer("dp", "all-gather", 4, 800e6),
        transfer("dp", "reduce-scatter", 4, 800e6),
    ),
)


@pytest.mark.parametrize(
    ("description", "axis"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("EXPERT_DATA_PARALLEL_GROUP", "dp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("EMBEDDING_GROUP", "pp"),
        ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("MODEL_PARALLEL_GROUP", OTHER),
        ("TENSOR_AND_CONTEXT_PARALLEL_GROUP", OTHER),
        ("mesh_tp", "tp"),
        ("mesh_pp", "pp"),
        ("mesh_fsdp", "dp"),
        ("mesh_dp_shard_cp", "dp"),
        ("mesh_efsdp", "dp"),
        ("mesh_ep", "ep"),
        ("mesh_loss_mesh", OTHER),
        ("default_pg", ""),
        ("undefined", ""),
    ],
)
def test_descriptions_of_megatron_and_torchtitan(description, axis):
    assert described_axis(description) == axis


def test_without_a_description_the_ranks_decide():
    found = assign(CollectiveCall("allreduce", 10, 4, "7", "", (1, 5, 9, 13)), REDUCE, PLAN)
    assert (found.axis, found.by) == ("dp", "ranks")


def test_then_the_size_then_the_collective_then_the_message():
    alone = PlanGroups({"tp": frozenset({8}), "dp": frozenset({4})}, {}, PLAN.transfers)
    found = assign(CollectiveCall("_allgather_base", 10, 8, "7"), GATHER, alone)
    assert (found.axis, found.by) == ("tp", "group size")
    found = assign(CollectiveCall("_reduce_scatter_base", 10, 4, "7"), "", PLAN)
    assert (found.axis, found.by) == ("dp", "collective")
    found = assign(CollectiveCall("_allgather_base", 700_000_000, 4, "7"), GATHER, PLAN)
    assert (found.axis, found.by) == ("dp", "message size")


def test_what_fits_two_axes_is_said_to():
    found = assign(CollectiveCall("_allgather_base", 300_000_000, 4, "7"), GATHER, PLAN)
    assert (found.axis, found.candidates) == (AMBIGUOUS, ("dp", "tp"))
    found = assign(CollectiveCall("broadcast", 8, 4, "7"), "", PLAN)
    assert (found.axis, found.by) == (AMBIGUOUS, "no such collective in the plan")


def test_a_group_that_no_axis_has_is_another():
    assert (
        assign(CollectiveCall("allreduce", 8, 16, "0", "default_pg"), REDUCE, PLAN).axis == OTHER
    )


def test_a_kernel_that_says_nothing_goes_by_its_collective():
    plan = PlanGroups(
        {"pp": frozenset({4}), "tp": frozenset({4})}, {}, (transfer("pp", "point-to-point", 4, 1),)
    )
    assert assign(CollectiveCall(), SEND, plan).axis == "pp"
    assert assign(CollectiveCall(), "deep_ep::intranode::dispatch<768>", plan).axis == "ep"
