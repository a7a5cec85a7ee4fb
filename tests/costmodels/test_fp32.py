"""Jobs in fp32: what is kept and what is sent has 4 bytes an element, worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.breakdown import break_down
from costmodels.comm.dispatch import Degrees
from costmodels.examples import MIXTRAL_8X7B
from costmodels.layers import experts
from costmodels.modes import ModeRows
from costmodels.precision import RECIPES
from costmodels.stacks import FUSED, STACKS
from tests.costmodels.conftest import TOY_MODEL

TOKENS, H, Q, KV, F, HEADS = 4096, 2048, 2048, 1024, 8192, 16
DROPOUT = replace(TOY_MODEL, flash_attention=False, dropout=True)


def test_only_fp32_is_wider():
    widths = {name: recipe.activation_bytes for (name, _), recipe in RECIPES.items()}
    assert widths.pop("fp32") == 4.0
    assert set(widths.values()) == {2.0}


@pytest.fixture
def both(toy_problem):
    """The same job in bf16 and in fp32."""

    def build(shape=TOY_MODEL, **options):
        return [toy_problem(shape, precision=x, **options) for x in ("bf16", "fp32")]

    return build


def test_a_layer_keeps_four_bytes_an_element_but_for_masks_and_the_log_sum_exp(both, plain_layout):
    kept_bytes = [
        break_down(p, plain_layout(p, dp=8)).rows.layers.kept_bytes.item() for p in both()
    ]
    # Norms 8 h, queries 4 q and keys and values 4 k, MLP 6 f; log-sum-exp 4 bytes a head.
    elements = 8 * H + 4 * Q + 4 * KV + 6 * F
    assert kept_bytes == [TOKENS * (elements + 4 * HEADS), TOKENS * (2 * elements + 4 * HEADS)]
    kept_bytes = [
        break_down(p, plain_layout(p, dp=8)).rows.layers.kept_bytes.item() for p in both(DROPOUT)
    ]
    # Masks 2 h and one byte a score stay; softmax and its dropped copy are as wide as the rest.
    scores = HEADS * TOKENS
    assert kept_bytes == [
        TOKENS * (elements + 2 * H + 5 * scores),
        TOKENS * (2 * elements + 2 * H + 9 * scores),
    ]


def test_memory_of_a_rank_by_hand(both, plain_layout):
    breakdowns = [break_down(p, plain_layout(p, tp=2, pp=2, dp=2, sp=True)) for p in both()]
    for one, width in zip(breakdowns, (2, 4), strict=True):
        layers = one.rows.layers
        elements = 4 * H + 2 * Q + 2 * KV + 3 * F  # times the width, over tp
        layer = TOKENS * (width * elements + 4 * HEADS) / 2
        assert layers.kept_bytes.item() == layer
        # Two micro-batches of twelve layers in flight, and the token ids.
        assert one.stages[0]["activations"] == 2 * (12 * layer + 8 * TOKENS)
        assert layers.checkpoint_bytes.item() == width * TOKENS * H / 2
        assert layers.message_bytes.item() == width * TOKENS * H / 2
        # Gradients of the MLP's inner tensors, 3 f, and three full tensors.
        assert layers.working_bytes.item() == width * TOKENS * (3 * F / 2 + 3 * H)


def test_messages_by_hand(both, plain_layout):
    names = ("bf16", "fp32")
    for problem, width, name in zip(both(), (2, 4), names, strict=True):
        layout = plain_layout(problem, tp=2, pp=2, dp=2, sp=True)
        sent = {(t.axis, t.collective): t for t in break_down(problem, layout).transfers}
        gather, hop = sent["tp", "all-gather"], sent["pp", "point-to-point"]
        assert (gather.message_bytes, gather.dtype) == (width * TOKENS * H, name)
        assert (hop.message_bytes, hop.dtype) == (width * TOKENS * H / 2, name)
        ring = replace(plain_layout(problem, dp=4), cp=2, n_devices=8, cp_comm="p2p")
        (keys,) = (t for t in break_down(problem, ring).transfers if t.axis == "cp")
        assert (keys.message_bytes, keys.dtype) == (2 * width * TOKENS / 2 * KV, name)


def test_waits_are_those_of_messages_twice_as_long(both, plain_layout):
    times = []
    for problem in both(stack=replace(FUSED, tp_overlap="none")):
        breakdown = break_down(problem, plain_layout(problem, tp=2, dp=4, sp=True))
        times.append(breakdown.rows.layers.tp_forward.total_s.item())
    # Four calls of x = 2 or 4 bytes s h: what is longer is x / 2 over the ring of 250 GB/s.
    more = 4 * (2 * TOKENS * H) / 2 / 250e9
    assert times[1] - times[0] == pytest.approx(more, rel=1e-6)


def test_routed_experts_keep_and_send_four_bytes(both):
    ones = np.ones(1, dtype=np.int32)
    degrees = Degrees(ones, 0 * ones, 2 * ones, ones)
    tokens, results, modes = np.array([1024.0]), [], ModeRows.of_sp(0 * ones)
    for problem in both(MIXTRAL_8X7B, stack=STACKS["megatron-core"]):
        kept_bytes = experts.expert_kept_bytes(problem, tokens, *degrees).item()
        results.append((kept_bytes, experts.expert_times(problem, tokens, degrees, modes)))
    rows, h, f, n = 2 * 1024, 4096, 14336, 8
    assert results[0][0] == rows * (6 * f + 2 * h) + 8 * n * 1024
    assert results[1][0] == 2 * rows * (6 * f + 2 * h) + 8 * n * 1024
    short, wide = (times.exchange.forward_s.item() for _, times in results)
    assert short < wide < 2 * short
