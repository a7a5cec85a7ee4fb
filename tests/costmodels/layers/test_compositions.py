"""Kinds of a mixer and a feed: that of dense and expert layers is what their own records say."""

from dataclasses import fields, replace

import numpy as np
import pytest

from costmodels.examples import DEEPSEEK_V3, LLAMA3_8B, MIXTRAL_8X7B
from costmodels.layers.dense import DENSE
from costmodels.layers.layer_kind import KindTerms, LayerInputs, SplitDegrees
from costmodels.layers.moe import MOE
from costmodels.layers.sublayers.attention import ATTENTION
from costmodels.layers.sublayers.composition import NO_MIXER, composed
from costmodels.layers.sublayers.feeds import EXPERTS, MLP, NO_FEED
from costmodels.modes import ModeRows

TP = np.array([1, 2, 4, 8], dtype=np.int32)
ONE = np.ones_like(TP)


def inputs_of(problem, cp: int = 1, cp_comm: int = 0) -> LayerInputs:
    split = SplitDegrees(TP, cp * ONE, ONE, ONE, cp_comm * ONE)
    tokens = np.full(len(TP), problem.job.seq_len / cp)
    return LayerInputs(problem, split, tokens, ModeRows.of_sp((TP > 1).astype(np.int32)))


def arrays(terms: object, name: str = "") -> dict[str, np.ndarray]:
    """All arrays in some terms, by the way to them."""
    if isinstance(terms, np.ndarray):
        return {name: terms}
    out: dict[str, np.ndarray] = {}
    for field in fields(terms):  # type: ignore[arg-type]
        out |= arrays(getattr(terms, field.name), f"{name}.{field.name}")
    return out


def same(one: KindTerms, two: KindTerms) -> None:
    ours, theirs = arrays(one), arrays(two)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        scale = max(1e-30, float(np.abs(theirs[name]).max()))
        assert value == pytest.approx(theirs[name], rel=1e-11, abs=1e-11 * scale), name


STACKS = ("fused", "eager", "nanotron", "torchtitan", "megatron-core")


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("precision", ["bf16", "fp8-delayed"])
@pytest.mark.parametrize("cp", [1, 2])
def test_attention_and_an_mlp_are_the_dense_layer(stack, precision, cp, toy_problem, real_pool):
    shape = replace(LLAMA3_8B, dropout=True, bias=True)
    pool = real_pool("h100-sxm-80gb", 8)
    problem = toy_problem(shape, pool, stack=stack, precision=precision)
    kind = composed(ATTENTION, MLP)
    inputs = inputs_of(problem, cp, 1 if cp > 1 else 0)
    theirs = DENSE.terms(inputs)
    # The scratch gradients are those of the model's dense layers.
    same(replace(kind.terms(inputs), scratch_bytes=theirs.scratch_bytes), theirs)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("model", [MIXTRAL_8X7B, DEEPSEEK_V3])
@pytest.mark.parametrize("precision", ["bf16", "fp8-blockwise"])
def test_attention_and_experts_are_the_expert_layer(
    stack, model, precision, toy_problem, real_pool
):
    pool = real_pool("h100-sxm-80gb", 8)
    problem = toy_problem(model, pool, stack=stack, precision=precision)
    kind, inputs = composed(ATTENTION, EXPERTS), inputs_of(problem)
    theirs = MOE.terms(inputs)
    ours = kind.terms(inputs)
    # Attention's scratch gradients are the first kind's, the dense layer's, where there is one.
    same(replace(ours, scratch_bytes=theirs.scratch_bytes), theirs)


@pytest.mark.parametrize(
    "shape", [LLAMA3_8B, MIXTRAL_8X7B, DEEPSEEK_V3, replace(LLAMA3_8B, bias=True)]
)
def test_counts_are_those_of_dense_and_expert_layers(shape):
    pairs = [(composed(ATTENTION, MLP), DENSE)]
    if shape.n_experts:
        pairs.append((composed(ATTENTION, EXPERTS), MOE))
    for ours, theirs in pairs:
        for name in ("params", "linear_weights"):
            values = getattr(ours, name)(shape, TP), getattr(theirs, name)(shape, TP)
            assert values[0] == pytest.approx(values[1], rel=1e-12)
        assert ours.replicated_params(shape) == theirs.replicated_params(shape)
        assert ours.macs(shape) == theirs.macs(shape)
        assert set(ours.modules(shape)) == set(theirs.modules(shape))


def test_the_halves_of_a_layer_are_the_layer(toy_problem):
    problem = toy_problem(LLAMA3_8B)
    inputs = inputs_of(problem)
    halves = composed(ATTENTION, NO_FEED), composed(NO_MIXER, MLP)
    mixer, feed = (kind.terms(inputs) for kind in halves)
    whole = DENSE.terms(inputs)
    for name in ("linear", "attention", "elementwise"):
        ahead = getattr(mixer, name) + getattr(feed, name)
        assert ahead.total_s == pytest.approx(getattr(whole, name).total_s, rel=1e-12)
    assert mixer.kept_bytes + feed.kept_bytes == pytest.approx(whole.kept_bytes, rel=1e-12)
    assert feed.attention.total_s.max() == 0.0
    params = [kind.params(LLAMA3_8B, TP) for kind in halves]
    # Attention of Llama 3 8B: 4096 (4096 + 2 * 1024 + 4096) and a norm; MLP 3 * 4096 * 14336.
    assert [x[0] for x in params] == [41_943_040 + 4096, 176_160_768 + 4096]


def test_a_gate_of_the_output_is_one_projection_more(toy_problem):
    """As Qwen3-Next has it: twice the queries, and two tensors of their width kept more."""
    gated, h, q = replace(LLAMA3_8B, attention_gate=True), 4096, 4096
    for name in ("params", "linear_weights", "matrix_params"):
        both = [getattr(DENSE, name)(x, TP) for x in (gated, LLAMA3_8B)]
        assert both[0] - both[1] == pytest.approx(h * q / TP, rel=1e-9)
    macs = DENSE.macs(gated), DENSE.macs(LLAMA3_8B)
    assert macs[0].projections - macs[1].projections == h * q
    assert macs[0].core == macs[1].core
    terms = [DENSE.terms(inputs_of(toy_problem(x))) for x in (gated, LLAMA3_8B)]
    assert terms[0].kept_bytes - terms[1].kept_bytes == pytest.approx(4096 * 4 * q / TP, rel=1e-9)
    more = terms[0].scratch_bytes - terms[1].scratch_bytes
    assert more == pytest.approx(2 * h * q / TP, rel=1e-9)
    assert (terms[0].linear.total_s > terms[1].linear.total_s).all()
    problem = toy_problem(gated)
    inputs, own = inputs_of(problem), composed(ATTENTION, MLP).terms(inputs_of(problem))
    theirs = DENSE.terms(inputs)
    same(replace(own, scratch_bytes=theirs.scratch_bytes), theirs)
