"""Vision towers and projectors by hand, and against parameter counts of transformers."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.examples import LLAMA3_8B
from costmodels.layers.compute import products_of
from costmodels.layers.flops import model_flops_per_token
from costmodels.layers.kinds import LAYER_KINDS
from costmodels.layers.layer_kind import LayerInputs, SplitDegrees
from costmodels.layers.layer_terms import layer_terms
from costmodels.memory import checkpoint_bytes
from costmodels.modes import ModeRows
from costmodels.parameters import embedding_params, total_params, trained_params
from costmodels.shapes import VisionShape
from costmodels.towers.vision import (
    attended,
    projector_params,
    tower_shape,
    tower_terms,
    trained_vision_params,
    vision_flops,
    vision_params,
)

ONE = np.ones(1, dtype=np.int32)
QWEN = VisionShape(
    layers=32,
    hidden=1280,
    heads=16,
    ffn=3420,
    gated=True,
    norm="rmsnorm",
    patch=14,
    frames=2,
    patches=4096,
    images=2,
    merge=4,
    projector=(5120,),
    block=64,
    full_every=8,
)
"""Of Qwen2.5-VL-7B (arXiv 2502.13923): windows of 8 x 8 patches but in every eighth layer."""
CLIP = VisionShape(
    layers=24,
    hidden=1024,
    heads=16,
    ffn=4096,
    gated=False,
    patch=14,
    patches=576,
    positions=577,
    projector=(4096,),
)
"""Of LLaVA 1.5: CLIP ViT-L/14 at 336 pixels."""
INTERN = replace(CLIP, patches=1024, positions=1025, merge=4)
QWEN3 = VisionShape(
    layers=27,
    hidden=1152,
    heads=16,
    ffn=4304,
    gated=False,
    patch=16,
    frames=2,
    patches=2304,
    positions=2304,
    merge=4,
    projector=(4608,),
    inner_projectors=3,
)


def with_tower(vision: VisionShape, **changes):
    return replace(LLAMA3_8B, vision=replace(vision, **changes))


@pytest.mark.parametrize(
    ("vision", "hidden", "counted"),
    [
        # Meta-device models of transformers 5.23: what stands beside the language model.
        (QWEN, 3584, 676_550_144),
        (CLIP, 4096, 324_487_168),
        (INTERN, 4096, 337_509_376),
        (QWEN3, 3584, 566_949_104),
    ],
)
def test_parameters_are_those_of_transformers(vision, hidden, counted):
    shape = replace(LLAMA3_8B, hidden=hidden, vision=vision)
    assert vision_params(shape, ONE).item() == pytest.approx(counted, rel=1e-3)


def test_tensor_parallelism_cuts_layers_and_projector():
    shape, two = with_tower(CLIP), 2 * ONE
    whole, half = (projector_params(shape, tp).item() for tp in (ONE, two))
    assert whole == 1024 * 4096 + 4096 * 4096 + 2 * 4096
    assert half == (1024 * 4096 + 4096 * 4096) / 2 + 2 * 4096
    per_layer = 4 * 1024**2 + 2 * 1024 * 4096
    cut = 24 * (per_layer + 3 * 1024 + 4096) + 1024 * 4096 + 4096**2
    assert (vision_params(shape, ONE) - vision_params(shape, two)).item() == cut / 2


@pytest.mark.parametrize(("trained", "parts"), [("all", 2), ("projector", 1), ("none", 0)])
def test_what_is_trained(trained, parts):
    shape = with_tower(CLIP, trained=trained)
    whole, projector = vision_params(shape, ONE).item(), projector_params(shape, ONE).item()
    expected = (0.0, projector, whole)[parts]
    assert trained_vision_params(shape, ONE).item() == expected
    text = total_params(LLAMA3_8B, 8192)
    assert total_params(shape, 8192) == text + whole
    assert trained_params(shape, 8192) == text + expected
    lookup = embedding_params(LLAMA3_8B, 8192, ONE)
    assert embedding_params(shape, 8192, ONE).item() == lookup.item() + expected


def test_flops_of_a_small_tower_by_hand():
    vision = VisionShape(2, 8, 2, 16, False, 2, 6, images=3, merge=2, projector=(10,))
    shape = replace(LLAMA3_8B, hidden=20, vision=vision)
    n = 3 * 6
    layers = n * 2 * (4 * 8 * 8 + 2 * 8 * 16) + n * 2 * 2 * 8 * 6  # scores and values of 6 keys
    patches, projector = n * 3 * 4 * 8, n / 2 * (16 * 10 + 10 * 20)
    assert vision_flops(shape) == 6 * layers + 4 * patches + 6 * projector
    only = replace(shape, vision=replace(vision, trained="projector"))
    assert vision_flops(only) == 2 * layers + 2 * patches + 6 * projector - 2 * n / 2 * 160
    frozen = replace(shape, vision=replace(vision, trained="none"))
    assert vision_flops(frozen) == 2 * (layers + patches + projector)
    more = model_flops_per_token(shape, 64) - model_flops_per_token(
        replace(shape, vision=None), 64
    )
    assert more == pytest.approx(vision_flops(shape) / 64, rel=1e-9)


def test_blocks_leave_every_eighth_layer_whole():
    assert attended(QWEN) == ((4, 4096), (28, 64))
    assert attended(CLIP) == ((24, 576),)
    whole, blocks = (vision_flops(with_tower(QWEN, block=b)) for b in (0, 64))
    # 28 layers, 2 images of 4096 patches: 12 FLOPs an element of 1280 and a key, three times 4.
    assert whole - blocks == pytest.approx(28 * 2 * 4096 * 12 * 1280 * (4096 - 64), rel=1e-12)


def inputs_of(problem, tp: int = 1, cp: int = 1, mbs: int = 1):
    split = SplitDegrees(tp * ONE, cp * ONE, ONE, ONE, 0 * ONE)
    tokens = np.full(1, mbs * problem.job.seq_len / cp)
    return LayerInputs(problem, split, tokens, ModeRows.of_sp(0 * ONE))


def layer_of(problem, seen: int, patches: float):
    inner = tower_shape(problem.shape.vision, problem.shape)
    alone = replace(problem, shape=inner, job=replace(problem.job, seq_len=seen))
    inputs = LayerInputs(
        alone, SplitDegrees.of_tp(ONE), np.full(1, patches), ModeRows.of_sp(0 * ONE)
    )
    return LAYER_KINDS["bidirectional+dense"].terms(inputs)


def test_times_are_those_of_its_layers_and_products(toy_problem):
    problem = toy_problem(with_tower(QWEN), seq_len=4096)
    found = tower_terms(inputs_of(problem, mbs=2))
    n = 2 * 2 * 4096.0
    full, block = layer_of(problem, 4096, n), layer_of(problem, 64, n)
    three = products_of(0, problem.job, problem.pool.accelerator, problem.stack)
    patches = three(np.full(1, n), 3 * 14 * 14 * 2.0, 1280.0)
    first, second = (three(np.full(1, n / 4), 5120.0, x) for x in (5120.0, 4096.0))
    ahead = 4 * full.layer.forward_s + 28 * block.layer.forward_s
    ahead = ahead + patches[0] + first[0] + second[0]
    after = 4 * full.layer.backward_s + 28 * block.layer.backward_s
    after = after + patches[2] + first[1] + first[2] + second[1] + second[2]
    assert found.total.forward_s == pytest.approx(ahead, rel=1e-12)
    assert found.total.backward_s == pytest.approx(after, rel=1e-12)
    kept = 4 * full.kept_bytes + 28 * block.kept_bytes
    ends = 2 * n * (3 * 14 * 14 * 2 + (5120 + 2 * 5120) / 4)
    assert found.kept_bytes == pytest.approx(kept + ends, rel=1e-12)
    assert found.frozen_bytes.item() == 0.0


def test_a_frozen_tower_runs_forward_alone_and_keeps_nothing(toy_problem):
    terms = {
        trained: tower_terms(
            inputs_of(toy_problem(with_tower(CLIP, trained=trained), seq_len=4096))
        )
        for trained in ("all", "projector", "none")
    }
    every, projector, none = terms.values()
    ahead = every.total.forward_s
    assert projector.total.forward_s == none.total.forward_s == ahead
    assert none.total.backward_s.item() == none.kept_bytes.item() == 0.0
    assert 0.0 < projector.total.backward_s < 0.2 * every.total.backward_s
    # Inputs of two matrices of the projector and of the activation between, in 16 bits.
    assert projector.kept_bytes.item() == 2 * 576 * (1024 + 2 * 4096)
    shape = with_tower(CLIP)
    weights = vision_params(shape, ONE).item()
    assert none.frozen_bytes.item() == 2 * weights
    assert projector.frozen_bytes.item() == 2 * (weights - projector_params(shape, ONE).item())


def test_a_recomputed_tower_keeps_its_inputs(toy_problem):
    plain, again = (
        toy_problem(with_tower(CLIP, recompute=on), seq_len=4096) for on in (False, True)
    )
    one, two = (tower_terms(inputs_of(x)) for x in (plain, again))
    layer = layer_of(plain, 576, 576.0)
    size = checkpoint_bytes(tower_shape(CLIP, plain.shape), 576.0, 1, 0)
    assert (one.kept_bytes - two.kept_bytes).item() == pytest.approx(
        24 * (layer.kept_bytes.item() - size.item()), rel=1e-12
    )
    assert (two.total.backward_s - one.total.backward_s).item() == pytest.approx(
        24 * layer.recompute_full_s.item(), rel=1e-9
    )


def test_ranks_of_a_context_parallel_group_run_all_images(toy_problem):
    problem = toy_problem(with_tower(CLIP), seq_len=4096)
    one, four = (tower_terms(inputs_of(problem, cp=cp)) for cp in (1, 4))
    assert one.total.forward_s == four.total.forward_s
    assert one.kept_bytes == four.kept_bytes


def test_the_first_stage_has_it_before_the_embedding(toy_problem):
    problems = [toy_problem(x, seq_len=4096) for x in (LLAMA3_8B, with_tower(CLIP))]
    text, both = (
        layer_terms(x, SplitDegrees.of_tp(ONE), ONE, ModeRows.of_sp(0 * ONE)) for x in problems
    )
    assert both.tower is not None
    more = both.before_layers.total_s - text.embedding.total_s
    assert more == pytest.approx(both.tower.total.total_s, rel=1e-9)
    assert both.embedding_bytes - text.embedding_bytes == pytest.approx(
        both.tower.kept_bytes, rel=1e-9
    )
    assert both.layer.total_s == text.layer.total_s
