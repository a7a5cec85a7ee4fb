"""Families of models: given points exact, the rest on the laws between them, sizes for TP."""

import itertools
import math

import pytest

from costmodels.parameters import total_params
from planner.errors import SpecError
from planner.specs.loader import load_model, model_from_dict
from planner.sweeps.families import Family, family_of, load_family

LLAMA = ("llama3-8b", "llama3-70b", "llama3-405b")
DEEPSEEK = ("deepseek-v2", "deepseek-v3")


@pytest.fixture(scope="module")
def llama() -> Family:
    return load_family(LLAMA)


@pytest.fixture(scope="module")
def deepseek() -> Family:
    return load_family(DEEPSEEK)


def params(document):
    made = model_from_dict(document)
    return total_params(made.shape, made.job.seq_len)


@pytest.mark.parametrize("name", [*LLAMA, *DEEPSEEK])
@pytest.mark.parametrize("miss", [0.992, 1.0, 1.008])
def test_given_models_are_returned_exactly(llama, deepseek, name, miss):
    family = llama if name in LLAMA else deepseek
    given = load_model(name)
    found = family.document(miss * total_params(given.shape, given.job.seq_len))
    assert model_from_dict(found).document == given.document


@pytest.mark.parametrize("asked", [1e9, 3e9, 14e9, 30e9, 50e9, 120e9, 250e9, 671e9, 1e12, 5e12])
def test_the_parameters_are_those_asked_for(llama, asked):
    found = llama.document(asked)
    assert params(found) == pytest.approx(asked, rel=0.01)
    model = found["model"]
    assert model["heads"] % 8 == 0
    assert model["hidden"] == 128 * model["heads"]
    assert model["ffn"] % 512 == 0
    assert model["layers"] % 2 == 0
    assert (model["kv_heads"], model["vocab"]) == (8, 128256)


@pytest.mark.parametrize("asked", [60e9, 400e9, 1e12, 2e12, 5e12])
def test_models_with_experts_have_the_parameters_asked_for(deepseek, asked):
    found = deepseek.document(asked)
    assert params(found) == pytest.approx(asked, rel=0.01)
    model, moe = found["model"], found["model"]["moe"]
    assert model["hidden"] % 512 == 0
    assert moe["experts"] % 32 == 0  # 160 and 256 are
    assert moe["moe_ffn"] % 128 == 0
    assert moe["shared_ffn"] % moe["moe_ffn"] == 0  # whole shared experts, as in both given ones
    assert model["mla"] == load_model("deepseek-v3").document["model"]["mla"]


def test_sizes_half_way_between_two_models(llama):
    """sqrt(8.03 B x 70.55 B) = 23.8 B: hidden sqrt(4096 x 8192) = 5793; layers sqrt(32 x 80)."""
    half = math.sqrt(llama.params[0] * llama.params[1])
    assert half == pytest.approx(23.8e9, rel=0.001)
    model = llama.document(half)["model"]
    assert model["hidden"] == 48 * 128
    assert abs(model["layers"] - 50.6) <= 4
    assert abs(model["ffn"] / math.sqrt(14336 * 28672) - 1) < 0.1


def test_the_law_of_the_last_two_models_goes_on(llama):
    """From 70.55 B to 405.85 B hidden doubles: exponent ln 2 / ln 5.753 = 0.396; 1 T: 23,422."""
    assert llama.document(1e12)["model"]["hidden"] == 184 * 128  # 23,552
    assert llama._law(1e12, [4096, 8192, 16384]) == pytest.approx(23_422, rel=1e-3)


@pytest.mark.slow
def test_larger_models_are_larger(llama, deepseek):
    for family, low, high in ((llama, 2e9, 4e12), (deepseek, 30e9, 4e12)):
        asked = [low * (high / low) ** (i / 30) for i in range(31)]
        found = [family.document(n) for n in asked]
        for one, two in itertools.pairwise(found):
            assert params(two) > params(one)
            for key in ("hidden", "heads"):
                assert two["model"][key] >= one["model"][key]
            if family is deepseek:
                assert two["model"]["moe"]["experts"] >= one["model"]["moe"]["experts"]


def test_a_family_is_the_same_in_any_order_and_at_any_time(llama):
    other = load_family(LLAMA[::-1])
    assert other.document(120e9) == llama.document(120e9) == llama.document(120e9)


def test_batches_and_names_follow(llama):
    """512, 1024 and 2048 sequences: powers of two, so are those between; tokens are shared."""
    found = llama.document(120e9)
    assert found["model"]["name"] == "llama3-120b"
    assert found["training"]["global_batch"] == 1024
    assert llama.document(1e12)["training"]["global_batch"] == 4096
    assert found["training"]["tokens"] == 15e12


def test_batches_that_are_no_powers_of_two(deepseek):
    """9216 and 15360 are 3 and 5 times 3072; so is every other."""
    assert deepseek.document(1e12)["training"]["global_batch"] == 6 * 3072


def test_what_the_models_share_is_not_rounded():
    """Both have 8 experts and heads of 100: no law, no multiple."""
    base = load_model("mixtral-8x7b").document

    def sized(name, hidden, ffn):
        model = {**base["model"], "name": name, "hidden": hidden, "layers": 33, "ffn": ffn}
        return model_from_dict({**base, "model": {**model, "head_dim": 100}})

    made = family_of([sized("m-1", 4096, 8192), sized("m-2", 8192, 16384)]).document(60e9)
    assert made["model"]["moe"]["experts"] == 8
    assert made["model"]["head_dim"] == 100


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["llama3-8b"], "needs two models, and has 1"),
        (["llama3-8b", "llama3-8b"], "have about the same parameters"),
        (["llama3-8b", "gpt3-175b"], "differ in `gated`: True and False"),
        (["llama3-70b", "mixtral-8x7b"], "differ in `moe`"),
        (["qwen3-235b-a22b", "deepseek-v3"], "differ in `mla`"),
        (["llama3-8b", "llama3-80b"], "no file and no example"),
    ],
)
def test_what_is_no_family(names, text):
    with pytest.raises(SpecError, match=text):
        load_family(names)


@pytest.mark.parametrize("asked", [1e8, 1e14])
def test_numbers_beyond_the_family_are_refused(llama, asked):
    reach = r"beyond the family llama3\n  fix: ask for 267\.7 M to 12\.2 T"
    with pytest.raises(SpecError, match=reach):
        llama.document(asked)
