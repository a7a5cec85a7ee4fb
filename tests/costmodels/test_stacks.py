"""The table of software stacks: names, ranges, and what separates the classes."""

from dataclasses import fields

import pytest

from costmodels.stacks import EAGER, FUSED, STACKS


@pytest.mark.parametrize("name", STACKS)
def test_profiles_keep_their_physical_ranges(name):
    profile = STACKS[name]
    assert profile.name == name
    assert profile.kind in ("fused", "eager")
    assert profile.tp_overlap in ("none", "bulk", "userbuffers")
    assert profile.attention_kernels
    assert 1.0 <= profile.elementwise_factor < 5.0
    assert 0.0 <= profile.overlap_slowdown < 1.0
    assert 0.0 <= profile.node_spread < 0.2
    assert 0.0 <= profile.fragmentation_frac < 0.2
    assert profile.logit_bytes >= 2.0
    assert profile.host_s_per_layer < 0.01
    assert all(getattr(profile, field.name) is not None for field in fields(profile))


def test_eager_code_costs_more_of_everything():
    for name in ("elementwise_factor", "host_s_per_layer", "logit_bytes"):
        assert getattr(EAGER, name) > getattr(FUSED, name)
    assert EAGER.tp_overlap == "none"
    assert not EAGER.fused_wgrad


def test_megatron_buckets_grow_with_the_data_parallel_size_and_others_do_not():
    # max(40e6, 1e6 dp) parameters: Megatron-LM distributed_data_parallel.py.
    assert (FUSED.bucket_params, FUSED.bucket_params_per_rank) == (40e6, 1e6)
    assert STACKS["deepspeed"].bucket_params_per_rank == 0.0


def test_megatron_of_2022_overlaps_nothing():
    old = STACKS["megatron-lm-2022"]
    assert (old.tp_overlap, old.dp_overlap, old.p2p_scatter) == ("none", False, True)
