"""Parameters of models with experts, latent attention and multi-token prediction."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.examples import DEEPSEEK_V3, LLAMA3_8B, MIXTRAL_8X7B
from costmodels.layers.params import (
    expert_layer_params,
    expert_params,
    latent_params,
    layer_params,
    mtp_params,
)
from costmodels.parameters import active_params, total_params
from planner.specs.loader import load_model


def ranks(*degrees: int) -> np.ndarray:
    return np.array(degrees, dtype=np.int32)


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        # Parameters of the checkpoints; active ones with both embeddings. DeepSeek's own 37 B and
        # 21 B leave the input embedding out.
        ("mixtral-8x7b", 46.70e9, 12.88e9),
        ("deepseek-v3", 671.03e9, 37.55e9),
        ("qwen3-235b-a22b", 235.09e9, 22.19e9),
        ("deepseek-v2", 235.74e9, 21.38e9),
        ("llama1-7b", 6.738e9, 6.738e9),
        ("llama1-13b", 13.016e9, 13.016e9),
        ("llama1-33b", 32.529e9, 32.529e9),
        ("llama1-65b", 65.286e9, 65.286e9),
        ("llama2-7b", 6.738e9, 6.738e9),
        ("llama2-13b", 13.016e9, 13.016e9),
        ("llama2-70b", 68.977e9, 68.977e9),
    ],
)
def test_published_totals_within_a_tenth_of_a_percent(name, total, active):
    given = load_model(name)
    assert total_params(given.shape, given.job.seq_len) == pytest.approx(total, rel=1e-3)
    assert active_params(given.shape, given.job.seq_len) == pytest.approx(active, rel=1e-3)


def test_mixtral_by_hand():
    attention = 2 * 4096 * 4096 + 2 * 4096 * 1024
    experts, router, norms = 8 * 3 * 4096 * 14336, 4096 * 8, 2 * 4096
    layer = attention + experts + router + norms
    assert layer == 1_451_270_144
    assert total_params(MIXTRAL_8X7B, 4096) == 32 * layer + 2 * 32000 * 4096 + 4096
    idle = 6 * 3 * 4096 * 14336
    assert total_params(MIXTRAL_8X7B, 1) - active_params(MIXTRAL_8X7B, 1) == 32 * idle


def test_latent_attention_by_hand():
    # DeepSeek-V3: q 7168 -> 1536 -> 128 * 192, kv 7168 -> 512 + 64, 512 -> 128 * 256, out.
    by_hand = 1536 * 7168 + 1536 + 1536 * 24576 + 576 * 7168 + 512 + 512 * 32768 + 16384 * 7168
    assert latent_params(DEEPSEEK_V3, ranks(1)).item() == by_hand
    split = 1536 * 24576 + 512 * 32768 + 16384 * 7168
    assert latent_params(DEEPSEEK_V3, ranks(8)).item() == by_hand - split * 7 / 8
    plain = replace(DEEPSEEK_V3, q_rank=0)
    assert latent_params(plain, ranks(1)).item() == (
        by_hand - 1536 * 7168 - 1536 - 1536 * 24576 + 7168 * 24576
    )


def test_what_a_rank_holds_of_the_experts():
    # 256 experts over 64 ranks: 4; cut over 2 as well.
    assert expert_params(DEEPSEEK_V3, 64, 1).item() == 4 * 3 * 7168 * 2048
    assert expert_params(DEEPSEEK_V3, 64, 2).item() == 4 * 3 * 7168 * 1024
    biased = replace(MIXTRAL_8X7B, bias=True)
    both = 2 * 14336 + 4096
    assert expert_params(biased, 8, 1).item() - expert_params(MIXTRAL_8X7B, 8, 1).item() == both


def test_shared_experts_are_the_mlp_of_an_expert_layer_and_the_router_is_whole():
    beside = expert_layer_params(DEEPSEEK_V3, ranks(1, 4))
    one = latent_params(DEEPSEEK_V3, ranks(1, 4)) + 2 * 7168 + 7168 * 256
    assert beside.tolist() == (one + 3 * 7168 * 2048 / ranks(1, 4)).tolist()


def test_one_expert_is_a_dense_layer():
    for dense in (LLAMA3_8B, replace(LLAMA3_8B, bias=True), replace(LLAMA3_8B, gated=False)):
        one = replace(dense, n_experts=1, expert_ffn=dense.ffn)
        both = expert_layer_params(one, ranks(1)) + expert_params(one, 1, 1)
        assert both.item() == layer_params(dense, ranks(1)).item()
        assert total_params(one, 8192) == active_params(one, 8192) == total_params(dense, 8192)


def test_dense_layers_and_alternating_layers():
    assert DEEPSEEK_V3.n_expert_layers == 58
    assert DEEPSEEK_V3.expert_layers[:4] == (False, False, False, True)
    other = replace(MIXTRAL_8X7B, layers=7, moe_every=2)
    assert other.expert_layers == (False, True, False, True, False, True, False)
    assert LLAMA3_8B.n_expert_layers == 0


def test_a_module_of_multi_token_prediction():
    # 11.6 B with its layer: projection of 2 h by h, three norms, one expert layer.
    beside = mtp_params(DEEPSEEK_V3, ranks(1)).item()
    assert beside == 2 * 7168**2 + 3 * 7168
    layer = expert_layer_params(DEEPSEEK_V3, ranks(1)).item()
    layer += expert_params(DEEPSEEK_V3, 1, 1).item()
    assert beside + layer == pytest.approx(11.6e9, rel=5e-3)
    assert mtp_params(LLAMA3_8B, ranks(1)).item() == 0
    held = mtp_params(DEEPSEEK_V3, ranks(4), np.array(7.0)).item()
    assert held == 7 + 2 * 7168**2 / 4 + 3 * 7168
