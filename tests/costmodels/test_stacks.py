"""The table of software stacks: names, ranges, and what separates the classes."""

from dataclasses import fields, replace

import pytest

from costmodels.stacks import EAGER, FUSED, NUMBERS, OF_DRIVERS, SHARED, STACKS, compiled


@pytest.mark.parametrize("name", STACKS)
def test_profiles_keep_their_physical_ranges(name):
    profile = STACKS[name]
    assert profile.name == name
    assert profile.kind in ("fused", "eager")
    assert profile.tp_overlap in ("none", "bulk", "pieces", "userbuffers")
    assert {profile.dp_overlap, profile.zero1_overlap} <= {"none", "reduce", "both"}
    assert profile.zero3_traffic in ("prefetched", "by-tensor")
    assert profile.zero1_reduce in ("reduce-scatter", "all-reduce")
    assert profile.zero1_gather in ("all-gather", "broadcast")
    assert profile.balancer in ("even", "params", "flops")
    assert profile.attention_kernels
    for number, (low, high) in NUMBERS.items():
        assert low <= getattr(profile, number) <= high
    assert all(getattr(profile, field.name) is not None for field in fields(profile))


def test_profiles_differ_in_switches_and_six_numbers_only():
    assert len(NUMBERS) == 6
    for name in SHARED:
        of_drivers = name in OF_DRIVERS
        sharing = [x for x in STACKS.values() if not of_drivers or x.memory_plan == "summed"]
        assert len({getattr(profile, name) for profile in sharing}) == 1
    numbers = {f.name for f in fields(FUSED) if f.type is float or f.type == "float"}
    # Megatron's bucket per rank is a fact of its code: there, or not.
    assert numbers == {*NUMBERS, *SHARED, "bucket_params_per_rank"}
    assert {p.bucket_params_per_rank for p in STACKS.values()} == {0.0, 1e6}


def test_a_compiler_saves_traffic_but_never_beats_perfect_fusion():
    assert compiled(EAGER).elementwise_factor == EAGER.compiled_share * EAGER.elementwise_factor
    assert compiled(STACKS["megatron-lm-2022"]).elementwise_factor == 1.0
    assert compiled(replace(EAGER, fused_norms=False)).fused_norms


def test_eager_code_costs_more_of_everything():
    for name in ("elementwise_factor", "logit_bytes"):  # modules of fused kernels launch slowly
        assert getattr(EAGER, name) > getattr(FUSED, name)
    assert EAGER.tp_overlap == "none"
    assert not EAGER.fused_wgrad


def test_megatron_buckets_grow_with_the_data_parallel_size_and_others_do_not():
    # max(40e6, 1e6 dp) parameters: Megatron-LM distributed_data_parallel.py.
    assert (FUSED.bucket_params, FUSED.bucket_params_per_rank) == (40e6, 1e6)
    assert STACKS["deepspeed"].bucket_params_per_rank == 0.0


def test_megatron_of_2022_overlaps_nothing():
    old = STACKS["megatron-lm-2022"]
    assert (old.tp_overlap, old.dp_overlap, old.p2p_scatter) == ("none", "none", True)
