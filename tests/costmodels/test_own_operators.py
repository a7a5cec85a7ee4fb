"""What layers keep with the operators of a model's own code, by hand.

The counts are those of saved tensors of transformers' layers on the CPU (scripts/check_layers).
"""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.axes import RECOMPUTE_MODULES
from costmodels.layers.kinds import LAYER_KINDS, layer_run
from costmodels.layers.layer_kind import LayerInputs, SplitDegrees
from costmodels.memory import score_bytes
from costmodels.modes import ModeRows
from costmodels.shapes import CrossShape, EncoderShape, ModelShape, OperatorsShape
from costmodels.stacks import STACKS, compiled

ONE = np.ones(1, dtype=np.int32)
H, HEADS, F, S, T = 512, 8, 2048, 512, 128
T5 = OperatorsShape(activation="relu", norm="scaled", scores="16-bit")
RUNS = (layer_run("encoder+dense", 2), layer_run("causal-cross+dense", 2))
MODEL = ModelShape(
    "t5",
    layers=4,
    hidden=H,
    heads=HEADS,
    kv_heads=HEADS,
    head_dim=64,
    ffn=F,
    gated=False,
    vocab=32128,
    tied=True,
    flash_attention=False,
    layer_runs=RUNS,
    cross=CrossShape(S, H),
    encoder=EncoderShape(S),
    operators=T5,
)


def kept(toy_problem, kind, stack=STACKS["hf-fsdp2"], sequences=1, **changes):
    problem = toy_problem(replace(MODEL, **changes), seq_len=T, stack=stack)
    split = SplitDegrees(ONE, ONE, ONE, ONE, 0 * ONE)
    tokens = np.full(1, float(T * sequences))
    terms = LAYER_KINDS[kind].terms(LayerInputs(problem, split, tokens, ModeRows.of_sp(0 * ONE)))
    return terms.kept_bytes.item()


@pytest.mark.parametrize("stack", ["hf-fsdp2", "deepspeed"])
def test_layers_of_t5(toy_problem, stack):
    """13,631,488 and, of 128 tokens, this much keeps T5Block: norms 10 h, ReLU 2 f, scores 2."""
    attention = 8 * H + 2 * HEADS * S
    encoder = S * (2 * 10 * H + attention + 2 * F)
    assert encoder == 13_631_488
    assert kept(toy_problem, "encoder+dense", STACKS[stack]) == encoder
    own = 3 * 10 * H + 8 * H + 2 * HEADS * T + 2 * F
    decoder = T * (own + 4 * H + 2 * HEADS * S) + S * 4 * H
    assert kept(toy_problem, "causal-cross+dense", STACKS[stack]) == decoder


def test_attention_of_pytorch_in_fp32(toy_problem):
    """Queries, keys and values twice as wide, scores in fp32; of cross attention a kernel."""
    in_fp32 = replace(T5, scores="math")
    encoder = S * (2 * 10 * H + (3 * 4 + 2) * H + 4 * HEADS * S + 2 * F)
    assert kept(toy_problem, "encoder+dense", operators=in_fp32) == encoder
    own = 3 * 10 * H + (3 * 4 + 2) * H + 4 * HEADS * T + 2 * F
    decoder = T * (own + 4 * H + 4 * HEADS) + S * 4 * H
    assert kept(toy_problem, "causal-cross+dense", operators=in_fp32) == decoder


def test_activations_of_an_mlp(toy_problem):
    def inner(**changes):
        whole = kept(toy_problem, "encoder+dense", **changes)
        return (whole - S * (2 * 10 * H + 8 * H + 2 * HEADS * S)) / (S * F)

    assert inner() == 2  # the output of ReLU
    assert inner(operators=replace(T5, activation="")) == 4  # input and output
    # gate, half of it, tanh, that and one, activated, linear, product
    assert inner(gated=True, operators=replace(T5, activation="gelu_new")) == 14
    assert inner(gated=True, operators=replace(T5, activation="")) == 8
    assert inner(gated=True) == 6  # ReLU's output is the activated gate
    # a mask of one byte, and what is left of ReLU's output
    assert inner(operators=replace(T5, activation_dropout=True)) == 5
    assert inner(gated=True, operators=replace(T5, activation_dropout=True)) == 7


def test_dropped_scores_are_kept_with_their_mask():
    plain, dropped = (
        score_bytes(replace(MODEL, operators=x), STACKS["hf-fsdp2"], 8)
        for x in (T5, replace(T5, attention_dropout=True))
    )
    assert (plain[0], dropped[0], plain[1].item()) == (2.0, 5.0, 0.0)


def test_whisper_keeps_the_output_of_its_kernel_twice(toy_problem):
    own = {"flash_attention": True, "norm": "layernorm"}
    whisper = OperatorsShape(norm="kernel", scores="16-bit", copies_output=True)
    # two norms 4 h, q k v, output twice, log-sum-exp, GeLU 4 f
    encoder = S * (2 * 4 * H + 10 * H + 4 * HEADS + 4 * F)
    assert kept(toy_problem, "encoder+dense", operators=whisper, **own) == encoder
    decoder = T * (3 * 4 * H + 10 * H + 6 * H + 8 * HEADS + 4 * F) + S * 4 * H
    assert kept(toy_problem, "causal-cross+dense", operators=whisper, **own) == decoder


@pytest.mark.parametrize("sequences", [1, 4])
def test_positions_of_every_layer_are_looked_up_once_a_micro_batch(toy_problem, sequences):
    looked_up = replace(T5, layer_positions=True)
    plain, more = (
        kept(toy_problem, "encoder+dense", sequences=sequences, operators=x)
        for x in (T5, looked_up)
    )
    assert more - plain == 8 * S * S


def test_a_compiled_stack_runs_other_operators(toy_problem):
    stack = compiled(STACKS["hf-fsdp2"])
    with_own, without = (
        kept(toy_problem, "encoder+dense", stack, operators=x)
        for x in (OperatorsShape(norm="scaled", scores="16-bit"), None)
    )
    assert with_own == without


def test_norms_of_one_kernel_are_faster(toy_problem):
    stack = STACKS["hf-fsdp2"]
    split = SplitDegrees(ONE, ONE, ONE, ONE, 0 * ONE)
    times = []
    for norm in ("kernel", ""):
        problem = toy_problem(
            replace(MODEL, operators=OperatorsShape(norm=norm)), seq_len=T, stack=stack
        )
        inputs = LayerInputs(problem, split, np.full(1, float(T)), ModeRows.of_sp(0 * ONE))
        times.append(LAYER_KINDS["causal-cross+none"].terms(inputs).elementwise.forward_s.item())
    part = toy_problem(MODEL).pool.accelerator
    rate = part.hbm_bytes_per_s * part.efficiency.hbm_frac / stack.elementwise_factor
    expected = 2 * T * 4 * H * (stack.unfused_norm_factor - 1) / rate
    assert times[1] - times[0] == pytest.approx(expected, rel=1e-9)


def test_values_that_are_a_view_keep_the_keys_beside_them(toy_problem):
    """2 a d_n bytes a token more in torchtitan, which recomputing the projections drops too."""
    latent = replace(
        MODEL,
        layer_runs=(),
        cross=None,
        encoder=None,
        operators=None,
        flash_attention=True,
        q_rank=192,
        kv_rank=128,
        qk_nope=48,
        qk_rope=16,
        v_head=64,
    )
    split, found = SplitDegrees(2 * ONE, ONE, ONE, ONE, 0 * ONE), []
    for keeps in (False, True):
        stack = replace(STACKS["torchtitan"], keeps_kv_product=keeps)
        problem = toy_problem(latent, seq_len=T, stack=stack)
        inputs = LayerInputs(problem, split, np.full(1, float(T)), ModeRows.of_sp(0 * ONE))
        terms = LAYER_KINDS["dense"].terms(inputs)
        again = terms.modules.attention_bytes[RECOMPUTE_MODULES.index("mla_up_proj")]
        found.append((terms.kept_bytes.item(), again.item()))
    assert STACKS["torchtitan"].keeps_kv_product
    kept_more, dropped_more = (b - a for a, b in zip(*found, strict=True))
    assert kept_more == dropped_more == T * 2 * HEADS * 48 / 2


@pytest.mark.parametrize(
    ("named", "stack", "kept_more", "params_more"),
    [
        # Input of one kernel 2, a number a head 4; of fp32 operators 4 and 2, and as many numbers.
        ("head", "megatron-core", 2 * (512 + 256) + 4 * (8 + 4), 2 * 64),
        ("head", "hf-fsdp2", 6 * (512 + 256) + 4 * (8 + 4), 2 * 64),
        ("width", "megatron-core", 2 * (512 + 256) + 4 * 2, 512 + 256),
    ],
)
def test_norms_of_queries_and_keys(toy_problem, named, stack, kept_more, params_more):
    decoder = replace(MODEL, layer_runs=(), cross=None, encoder=None, kv_heads=4)
    decoder = replace(decoder, flash_attention=True, operators=OperatorsShape())
    split, found = SplitDegrees(ONE, ONE, ONE, ONE, 0 * ONE), []
    for qk_norm in ("", named):
        shape = replace(decoder, operators=OperatorsShape(qk_norm=qk_norm))
        problem = toy_problem(shape, seq_len=T, stack=STACKS[stack])
        inputs = LayerInputs(problem, split, np.full(1, float(T)), ModeRows.of_sp(0 * ONE))
        terms = LAYER_KINDS["dense"].terms(inputs)
        held = LAYER_KINDS["dense"].params(shape, 2 * ONE).item()
        whole = LAYER_KINDS["dense"].replicated_params(shape)
        found.append((terms.kept_bytes.item() / T, held, whole, terms.elementwise))
    plain, normed = found
    assert normed[0] - plain[0] == kept_more
    assert normed[1] - plain[1] == normed[2] - plain[2] == params_more
    part, factor = toy_problem(MODEL).pool.accelerator, STACKS[stack].elementwise_factor
    rate = part.hbm_bytes_per_s * part.efficiency.hbm_frac / factor
    longer = normed[3].forward_s - plain[3].forward_s
    assert longer.item() == pytest.approx(T * 5 * (512 + 256) / rate, rel=1e-9)


def test_values_of_one_product_keep_queries_and_keys_beside_them(toy_problem):
    """2 (h_q + h_kv) a token: rotated ones are tensors of their own."""
    plain, joint = (
        kept(toy_problem, "encoder+dense", operators=replace(T5, joint_qkv=on))
        for on in (False, True)
    )
    assert joint - plain == S * 2 * (H + H)
