"""Layers whose widths are not the model's: parameters, products and bytes by hand."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.layers.flops import model_flops_per_token
from costmodels.layers.kinds import (
    attention_shapes,
    kind_of,
    kinds_of,
    mlp_widths,
    reads_earlier_layers,
)
from costmodels.layers.layer_kind import LayerInputs, SplitDegrees
from costmodels.layers.sublayers.attention import window_keys
from costmodels.modes import ModeRows
from costmodels.optimizers.groups import kinds_without_matrices
from costmodels.parameters import total_params
from costmodels.shapes import LayerRun, LayerVariant, ModelShape, WindowShape

ONE = np.ones(1, dtype=np.int32)
H, F, V = 1024, 4096, 32000
PLAIN = ModelShape(
    name="plain",
    layers=4,
    hidden=H,
    heads=8,
    kv_heads=4,
    head_dim=128,
    ffn=F,
    gated=True,
    vocab=V,
    tied=True,
    window=WindowShape(256),
)


def varied(*runs: tuple[str, int], **sizes: dict[str, int]) -> ModelShape:
    """The model with variants, and its layers."""
    variants = tuple(LayerVariant(name, tuple(one.items())) for name, one in sizes.items())
    layer_runs = tuple(LayerRun(kind, count) for kind, count in runs)
    n_layers = sum(run.count for run in layer_runs)
    return replace(PLAIN, variants=variants, layer_runs=layer_runs, layers=n_layers)


def params(shape: ModelShape, kind: str, tp: int = 1) -> float:
    return float(kind_of(kind).params(shape, tp * ONE)[0])


def inputs_of(problem) -> LayerInputs:
    tokens = np.array([float(problem.job.seq_len)])
    return LayerInputs(problem, SplitDegrees.of_tp(ONE), tokens, ModeRows.of_sp(0 * ONE))


def kept(problem, kind: str) -> float:
    return float(kind_of(kind).terms(inputs_of(problem)).kept_bytes[0])


SIZES = {
    "wide": {"ffn": 6144},
    "few": {"heads": 4, "kv_heads": 2, "head_dim": 256},
    "narrow": {"value_dim": 64},
    "reader": {"kv_shared": 1},
    "keyed": {"keys_as_values": 1},
}
ATTENTION = H * (1024 + 2 * 512) + 1024 * H
MLP, NORMS = 3 * H * F, 2 * H


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("wide", ATTENTION + 3 * H * 6144),
        ("few", H * (1024 + 2 * 512) + 1024 * H + MLP),
        ("narrow", H * (1024 + 4 * 128 + 4 * 64) + 8 * 64 * H + MLP),
        ("reader", 2 * H * 1024 + MLP),
        ("keyed", H * (1024 + 512) + 1024 * H + MLP),
    ],
)
def test_parameters_products_and_matrices_of_a_variant(name, count):
    shape, kind = varied((f"dense@{name}", 1), **SIZES), kind_of(f"dense@{name}")
    assert params(shape, kind.name) == count + NORMS
    assert params(shape, kind.name, 2) == count / 2 + NORMS
    macs = kind.macs(shape)
    assert macs.projections + macs.mlp == count
    assert kind.linear_weights(shape, ONE).item() == count
    assert sum(x.elements * x.count for x in kind.matrices(shape)) == count
    assert kind.replicated_params(shape) == NORMS


def test_a_model_counts_each_layer_with_its_own_widths():
    shape = varied(("dense", 2), ("dense@wide", 3), ("none+dense@wide", 1), **SIZES)
    wide = 3 * H * 6144
    layers = 2 * (ATTENTION + MLP + NORMS) + 3 * (ATTENTION + wide + NORMS) + wide + H
    assert total_params(shape, 4096) == layers + V * H + H
    assert shape.kinds == ("dense", "dense@wide", "none+dense@wide")
    assert mlp_widths(shape) == (F, 6144)
    assert [x.heads for x in attention_shapes(shape)] == [8, 8]
    assert not kinds_without_matrices(shape)


def test_the_core_of_attention_has_the_widths_of_keys_and_of_values():
    shape = varied(("dense@narrow", 1), **SIZES)
    # 8 heads, (128 + 64) / 2 a position: the causal half of both products.
    assert kind_of("dense@narrow").macs(shape).core == 8 * 96


def test_a_window_of_its_own():
    shape = varied(("window+dense", 1), ("window+dense@long", 1), long={"window": 1024})
    cores = [kind.macs(shape).core_macs(8192) for kind in kinds_of(shape)]
    assert cores == [2 * 1024 * window_keys(w, 8192) for w in (256, 1024)]


@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        ("wide", 6 * (6144 - F)),
        ("few", -4 * 4),  # half as many log-sum-exps
        ("narrow", 2 * 8 * (64 - 128) + 2 * 4 * (64 - 128)),
        ("reader", -4 * 4 * 128),  # the keys and values are kept where they are made
        ("keyed", 0),
    ],
)
def test_kept_bytes_beside_those_of_the_plain_layer(toy_problem, name, per_token):
    shape = varied(("dense", 1), (f"dense@{name}", 1), **SIZES)
    problem = toy_problem(shape, seq_len=4096)
    assert kept(problem, f"dense@{name}") - kept(problem, "dense") == per_token * 4096


def test_sizes_that_are_the_models_own_change_nothing(toy_problem):
    shape = varied(("dense", 1), ("dense@twin", 1), twin={"ffn": F, "heads": 8})
    assert params(shape, "dense@twin") == params(shape, "dense")
    problem = toy_problem(shape, seq_len=4096)
    twin, plain = (kind_of(x).terms(inputs_of(problem)) for x in ("dense@twin", "dense"))
    for field in ("layer", "linear", "attention"):
        assert getattr(twin, field).total_s == pytest.approx(getattr(plain, field).total_s)
    assert twin.kept_bytes == pytest.approx(plain.kept_bytes, rel=1e-12)
    assert twin.scratch_bytes == 0.0  # the gradients of the plain layer serve


def test_kinds_share_the_terms_of_sublayers_that_their_variants_leave_alone(toy_problem):
    shape = varied(("dense@wide", 1), ("window+dense@wide", 1), **SIZES)
    inputs = inputs_of(toy_problem(shape, seq_len=4096))
    for kind in kinds_of(shape):
        kind.terms(inputs)
    assert {"mixer attention", "mixer window", "variant wide"} <= set(inputs.parts)
    assert list(inputs.of_kind("dense@wide").parts) == ["feed dense"]


def test_layers_that_run_again_have_parameters_once_and_work_as_often(toy_problem):
    runs = (("dense", 2), ("dense@again", 4))
    shape = varied(*runs, again={"reused": 1})
    twice = varied(("dense", 2))
    assert total_params(shape, 4096) == total_params(twice, 4096)
    again, once = kind_of("dense@again"), kind_of("dense")
    assert again.matrices(shape) == ()
    assert again.linear_weights(shape, ONE).item() == again.replicated_params(shape) == 0
    assert again.blocks(shape) == once.blocks(shape) == 2
    body = model_flops_per_token(replace(shape, vocab=128), 4096)
    plain = model_flops_per_token(replace(twice, vocab=128), 4096)
    head = 6 * H * 128
    assert body - head == 3 * (plain - head)
    problem = toy_problem(shape, seq_len=4096)
    ours, theirs = (kind.terms(inputs_of(problem)) for kind in (again, once))
    assert ours.kept_bytes == pytest.approx(theirs.kept_bytes, rel=1e-12)
    assert ours.layer.total_s == pytest.approx(theirs.layer.total_s, rel=1e-12)
    assert reads_earlier_layers(shape)
