"""The first Mamba and short convolutions, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.examples import LLAMA3_8B
from costmodels.layers.kinds import LAYER_KINDS, layer_run
from costmodels.layers.layer_kind import LayerInputs, SplitDegrees
from costmodels.modes import ModeRows
from costmodels.parameters import total_params
from costmodels.shapes import Mamba1Shape, RglruShape, ShortConvShape

ONE = np.ones(1, dtype=np.int32)
MAMBA = Mamba1Shape(inner=8192, state=16, dt_rank=256, conv=4)


def model(kind, **sizes):
    runs = (layer_run(kind, LLAMA3_8B.layers),)
    return replace(LLAMA3_8B, layer_runs=runs, **sizes)


def terms_of(problem, kind):
    split = SplitDegrees(ONE, ONE, ONE, ONE, 0 * ONE)
    tokens = np.full(1, float(problem.job.seq_len))
    return LAYER_KINDS[kind].terms(LayerInputs(problem, split, tokens, ModeRows.of_sp(0 * ONE)))


def test_parameters_and_products_of_the_first_mamba(toy_problem):
    kind, shape = LAYER_KINDS["mamba1+none"], model("mamba1+none", mamba1=MAMBA)
    h, d, n, r = 4096, 8192, 16, 256
    linear = h * 2 * d + d * (r + 2 * n) + r * d + d * h
    vectors = 4 * d + d + d + d * n + d  # filter and its bias; bias of dt; A; D
    assert kind.params(shape, ONE).item() == linear + vectors + h
    assert kind.params(shape, 2 * ONE).item() == (linear + vectors) / 2 + h
    macs = kind.macs(shape)
    assert macs.projections == linear
    assert macs.core_macs(2048) == macs.core_macs(8192) == 4.5 * d * n
    # x and z; dt, B and C before their products; the scan's output; norm and residual, 4 h.
    saved = 4 * d + 2 * (r + 2 * n) + 2 * d + 4 * h
    problem = toy_problem(shape, seq_len=2048)
    assert terms_of(problem, "mamba1+none").kept_bytes.item() == 2048 * saved


def test_its_time_grows_with_the_state(toy_problem):
    times = []
    for state in (16, 64):
        shape = model("mamba1+none", mamba1=replace(MAMBA, state=state))
        times.append(terms_of(toy_problem(shape), "mamba1+none").attention.total_s.item())
    assert 3 < times[1] / times[0] < 4.1


def test_short_convolutions(toy_problem):
    kind, shape = LAYER_KINDS["conv+dense"], model("conv+dense", short_conv=ShortConvShape(3))
    h, f = 4096, 14336
    assert kind.params(shape, ONE).item() == 4 * h * h + 3 * h + h + 3 * h * f + h
    macs = kind.macs(shape)
    assert (macs.projections, macs.core_macs(8192), macs.mlp) == (4 * h * h, 3 * h, 3 * h * f)
    ends = 2 * 128256 * h + h
    layer = 4 * h * h + 3 * h + h + 3 * h * f + h
    assert total_params(shape, 8192) == pytest.approx(ends + 32 * layer, rel=1e-12)
    alone = terms_of(toy_problem(model("conv+none", short_conv=ShortConvShape(3))), "conv+none")
    assert alone.kept_bytes.item() / toy_problem(shape).job.seq_len == 12 * h + 4 * h
    assert alone.attention.total_s.item() == 0


def test_gated_linear_recurrences(toy_problem):
    sizes = RglruShape(width=5120, heads=10, conv=4)
    kind, shape = LAYER_KINDS["rglru+none"], model("rglru+none", rglru=sizes)
    h, w, block = 4096, 5120, 512
    products = 3 * h * w + 2 * w * block
    vectors = 4 * w + w + 2 * w + 2 * w + w  # filter, its bias, those of x and y, of gates; decays
    assert kind.params(shape, ONE).item() == products + vectors + h + h
    assert kind.params(shape, 2 * ONE).item() == (products + vectors) / 2 + h + h
    macs = kind.macs(shape)
    assert (macs.projections, macs.core_macs(8192)) == (products, 5 * w)
    problem = toy_problem(shape, seq_len=2048)
    terms = terms_of(problem, "rglru+none")
    # y, its activation, x, the filter's output, both gates, states, the product; norm in and out.
    assert terms.kept_bytes.item() == 2048 * (2 * 8 * w + 4 * h)
    part = problem.pool.accelerator
    launch = part.efficiency.kernel_latency_s
    rate = part.hbm_bytes_per_s * part.efficiency.hbm_frac
    # States are bound by memory: decays in fp32, inputs and states in 16 bits.
    assert terms.attention.forward_s.item() == pytest.approx(2048 * 10 * w / rate + launch)
