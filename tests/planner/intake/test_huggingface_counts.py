"""Parameters of published models, counted from their config.json alone.

The files of data/ hold the architecture as published in the `config.json` of each model (keys that
no size depends on are left out). `COUNTED`: every parameter of that model as transformers
5.23.0 builds it, on torch's meta device. `PUBLISHED`: what the authors print.
"""

from pathlib import Path

import pytest

from costmodels.parameters import active_params, total_params
from planner.inputs import load_model, model_from_dict
from planner.intake.huggingface.model_types import TYPES

DATA = Path(__file__).parent / "data"
NAMES = sorted(path.stem for path in DATA.glob("*.json"))

COUNTED = {
    "bloom": 176_247_271_424,
    "command-r-35b": 34_980_831_232,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_404_352,
    "falcon-180b": 178_557_088_768,
    "falcon-40b": 41_303_293_952,
    "falcon-7b": 6_921_720_704,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma2-27b": 27_227_128_320,
    "gemma3-27b": 27_009_346_304,
    "gemma3-4b": 3_880_263_168,
    "glm-4.5": 352_797_814_784,
    "glm-4.5-air": 106_852_245_504,
    "gpt-j-6b": 6_050_882_784,
    "gpt-neo-2.7b": 2_651_307_520,
    "gpt-neox-20b": 20_554_567_680,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "gpt2-xl": 1_557_611_200,
    "granite-3.0-8b": 8_170_848_256,
    "kimi-k2": 1_026_408_209_408,
    "llama1-7b": 6_738_415_616,
    "llama2-70b": 68_976_648_192,
    "llama3-70b": 70_553_706_496,
    "llama3-8b": 8_030_261_248,
    "llama3.1-405b": 405_853_388_800,
    "llama4-maverick": 400_711_848_960,
    "llama4-scout": 107_769_861_120,
    "mistral-7b": 7_241_732_096,
    "mistral-nemo-12b": 12_247_782_400,
    "mixtral-8x22b": 140_620_634_112,
    "mixtral-8x7b": 46_702_792_704,
    "olmo2-7b": 7_298_617_344,
    "olmoe-1b-7b": 6_919_161_856,
    "opt-66b": 65_719_701_504,
    "phi-2": 2_779_683_840,
    "phi-4": 14_659_507_200,
    "phi3-mini-4k": 3_821_079_552,
    "phi3.5-moe": 41_873_153_344,
    "qwen2-0.5b": 494_032_768,
    "qwen2-57b-a14b": 57_408_658_944,
    "qwen2-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-8b": 8_190_735_360,
    "seed-oss-36b": 36_151_104_512,
    "smollm3-3b": 3_075_098_624,
    "starcoder": 15_517_456_384,
    "starcoder2-15b": 15_655_899_136,
}
"""Two files of one model count once: falcon-7b is also there under the names of its first file."""

CLASS_DEFAULTS = {
    "llama": ({}, 6_738_415_616),
    "mistral": ({}, 7_241_732_096),
    "mixtral": ({}, 46_702_792_704),
    "qwen2": ({}, 12_049_846_272),
    "qwen2_moe": ({}, 14_315_784_192),
    "qwen3": ({}, 12_049_461_248),
    "qwen3_moe": ({}, 15_350_731_776),
    "deepseek_v2": ({"num_experts_per_tok": 6}, 38_612_307_968),
    "deepseek_v3": ({}, 671_026_404_352),
    "gpt2": ({}, 124_439_808),
    "gpt_bigcode": ({}, 111_446_784),
    "gptj": ({}, 6_050_882_784),
    "gpt_neo": ({}, 1_315_575_808),
    "gpt_neox": ({}, 20_554_567_680),
    "falcon": ({}, 6_921_720_704),
    "opt": ({}, 125_239_296),
    "bloom": ({}, 16_156_544),
    "gpt_oss": ({}, 116_829_156_672),
    "llama4_text": ({}, 107_769_861_120),
    "gemma": ({}, 8_537_680_896),
    "gemma2": ({}, 2_614_341_888),
    "gemma3_text": ({}, 2_628_658_432),
    "phi": ({}, 1_418_270_720),
    "phi3": ({}, 3_821_079_552),
    "phimoe": ({}, 41_872_793_600),
    "glm4": ({}, 9_400_279_040),
    "glm4_moe": ({"head_dim": 128}, 106_851_586_048),
    "olmo2": ({}, 6_888_624_128),
    "olmoe": ({}, 13_361_612_800),
    "cohere": ({}, 34_980_831_232),
    "starcoder2": ({}, 3_030_371_328),
    "granite": ({}, 6_738_415_616),
    "smollm3": ({}, 3_075_098_624),
    "seed_oss": ({}, 28_921_040_896),
    "nemotron": ({"head_dim": 128, "num_key_value_heads": 8}, 15_628_775_424),
}
"""By type: what the file says beside `model_type`, and the parameters with all other defaults."""

EXCEPTIONS_FRAC = 1.2e-4
"""QK norms, partial biases, sinks, gates and second norms: what a model file does not say."""

GB = 1e9
PUBLISHED = [
    # model, total in 1e9, tolerance, source
    ("llama1-7b", 6.7, 0.01, "arXiv 2302.13971, table 2, one digit"),
    ("llama2-70b", 69, 0.005, "Hub: 69 B parameters; 70B in arXiv 2307.09288"),
    ("llama3-8b", 8.03, 0.001, "Hub: 8.03 B parameters"),
    ("llama3-70b", 70.6, 0.001, "Hub: 70.6 B parameters"),
    ("llama3.1-405b", 405, 0.005, "arXiv 2407.21783, table 3"),
    ("mistral-7b", 7.24, 0.001, "Hub: 7.24 B parameters"),
    ("mistral-nemo-12b", 12.2, 0.005, "Hub: 12.2 B parameters"),
    ("mixtral-8x7b", 46.7, 0.001, "mistral.ai/news/mixtral-of-experts"),
    ("mixtral-8x22b", 141, 0.005, "mistral.ai/news/mixtral-8x22b"),
    ("qwen2-0.5b", 0.49, 0.01, "arXiv 2407.10671 and model card, two digits"),
    ("qwen2-7b", 7.62, 0.001, "Hub: 7.62 B parameters"),
    ("qwen2-57b-a14b", 57.4, 0.001, "Hub: 57.4 B parameters"),
    ("qwen3-0.6b", 0.6, 0.01, "model card, one digit"),
    ("qwen3-8b", 8.19, 0.001, "Hub: 8.19 B parameters"),
    ("qwen3-30b-a3b", 30.5, 0.002, "model card: 30.5 B"),
    ("qwen3-235b-a22b", 235, 0.002, "model card: 235 B"),
    ("deepseek-v2", 236, 0.002, "arXiv 2405.04434, abstract"),
    ("deepseek-v2-lite", 15.7, 0.001, "arXiv 2405.04434, appendix B"),
    ("deepseek-v3", 671, 0.001, "arXiv 2412.19437, abstract"),
    ("kimi-k2", 1000, 0.03, "model card: 1 T"),
    ("gpt2-xl", 1.558, 0.001, "openai/gpt-2: the directory of the model is 1558M"),
    ("gpt-neo-2.7b", 2.7, 0.02, "model card, two digits"),
    ("gpt-j-6b", 6.053381344, 0.0005, "model card: n_parameters"),
    ("gpt-neox-20b", 20.556201984, 0.0005, "model card: num. parameters"),
    ("opt-66b", 66, 0.005, "arXiv 2205.01068, table 1"),
    ("bloom", 176.247271424, 1e-6, "model card"),
    ("starcoder", 15.5, 0.002, "arXiv 2305.06161, abstract"),
    ("gpt-oss-120b", 116.83, 0.0001, "arXiv 2508.10925, table 1"),
    ("gpt-oss-20b", 20.91, 0.0003, "arXiv 2508.10925, table 1"),
    ("llama4-scout", 109, 0.015, "model card; counts the vision tower, which is left out here"),
    ("llama4-maverick", 400, 0.005, "model card; with the vision tower"),
    ("gemma-2b", 0.524550144 + 1.981884416, 0.0005, "arXiv 2403.08295, table 2"),
    ("gemma-7b", 0.786825216 + 7.751248896, 0.0005, "arXiv 2403.08295, table 2"),
    ("gemma2-27b", 1.180237824 + 26.047480320, 0.0005, "arXiv 2408.00118, table 2"),
    ("gemma3-4b", 0.675 + 3.209, 0.002, "arXiv 2503.19786, table 1"),
    ("gemma3-27b", 1.416 + 25.600, 0.001, "arXiv 2503.19786, table 1"),
    ("phi-2", 2.78, 0.001, "Hub: 2.78 B parameters"),
    ("phi3-mini-4k", 3.82, 0.001, "Hub: 3.82 B parameters"),
    ("phi-4", 14.7, 0.004, "Hub: 14.7 B parameters"),
    ("phi3.5-moe", 41.9, 0.001, "Hub: 41.9 B parameters"),
    (
        "glm-4.5",
        355,
        0.01,
        "arXiv 2508.06471, table 1; its count of embeddings and MTP is its own",
    ),
    ("glm-4.5-air", 106, 0.01, "arXiv 2508.06471, table 1; as above"),
    ("olmo2-7b", 7.3, 0.001, "Hub: 7.3 B parameters"),
    ("olmoe-1b-7b", 6.92, 0.001, "Hub: 6.92 B parameters; 6.9 B in arXiv 2409.02060"),
    ("command-r-35b", 35, 0.001, "model card: 35 billion"),
    ("granite-3.0-8b", 8.17, 0.001, "Hub: 8.17 B parameters"),
    ("smollm3-3b", 3.08, 0.002, "Hub: 3.08 B parameters"),
    ("seed-oss-36b", 36.2, 0.002, "Hub: 36.2 B parameters"),
]

STORED_HEAD = [
    ("falcon-7b", 7.22, 0.001, "Hub: 7.22 B parameters"),
    ("falcon-40b", 41.8, 0.002, "Hub: 41.8 B parameters"),
    ("falcon-180b", 180, 0.005, "Hub: 180 B parameters"),
    ("starcoder2-15b", 16.0, 0.005, "Hub: 16 B parameters"),
]
"""Published with the head stored beside the embedding that it is tied to."""

ACTIVE = [
    # model, active in 1e9, tolerance, whether the input embedding counts, source
    ("mixtral-8x7b", 12.9, 0.002, True, "mistral.ai/news/mixtral-of-experts"),
    ("mixtral-8x22b", 39, 0.005, True, "mistral.ai/news/mixtral-8x22b"),
    ("qwen2-57b-a14b", 14, 0.02, True, "arXiv 2407.10671"),
    ("qwen3-30b-a3b", 3.3, 0.02, True, "model card: 3.3 B"),
    ("qwen3-235b-a22b", 22, 0.01, True, "model card: 22 B"),
    ("deepseek-v2", 21, 0.02, True, "arXiv 2405.04434, abstract"),
    ("deepseek-v2-lite", 2.4, 0.03, False, "arXiv 2405.04434, appendix B"),
    ("deepseek-v3", 37, 0.02, True, "arXiv 2412.19437, abstract"),
    ("kimi-k2", 32, 0.03, True, "model card: 32 B"),
    ("gpt-oss-120b", 5.13, 0.002, False, "arXiv 2508.10925, table 1: without the embedding"),
    ("gpt-oss-20b", 3.61, 0.002, False, "arXiv 2508.10925, table 1: without the embedding"),
    ("llama4-scout", 17, 0.02, True, "model card"),
    ("llama4-maverick", 17, 0.02, True, "model card"),
    ("phi3.5-moe", 6.6, 0.01, True, "model card: 6.6 B"),
    ("glm-4.5", 32, 0.03, False, "arXiv 2508.06471, table 1: without the head too"),
    ("olmoe-1b-7b", 1.3, 0.02, True, "arXiv 2409.02060"),
]


def total(given):
    return total_params(given.shape, given.job.seq_len)


def load(name):
    return load_model(DATA / f"{name}.json")


def test_every_file_is_counted_and_published_and_every_type_is_counted():
    assert sorted({*COUNTED, "falcon-7b-old"}) == NAMES
    assert {row[0] for row in PUBLISHED + STORED_HEAD} == set(COUNTED)
    assert set(CLASS_DEFAULTS) == set(TYPES)


@pytest.mark.parametrize("name", COUNTED)
def test_as_transformers_builds_it(name):
    assert total(load(name)) == pytest.approx(COUNTED[name], rel=EXCEPTIONS_FRAC)


@pytest.mark.parametrize("name", CLASS_DEFAULTS)
def test_defaults_of_a_type(name):
    stated, count = CLASS_DEFAULTS[name]
    given = model_from_dict({"model_type": name, **stated})
    assert total(given) == pytest.approx(count, rel=EXCEPTIONS_FRAC)


@pytest.mark.parametrize(("name", "count", "rel", "source"), PUBLISHED)
def test_published_totals(name, count, rel, source):
    assert total(load(name)) == pytest.approx(count * GB, rel=rel)


@pytest.mark.parametrize(("name", "count", "rel", "source"), STORED_HEAD)
def test_published_totals_with_the_head_stored_twice(name, count, rel, source):
    given = load(name)
    assert given.shape.tied
    head = given.shape.vocab * given.shape.hidden
    assert total(given) + head == pytest.approx(count * GB, rel=rel)


@pytest.mark.parametrize(("name", "count", "rel", "embedding", "source"), ACTIVE)
def test_published_active_parameters(name, count, rel, embedding, source):
    given = load(name)
    active = active_params(given.shape, given.job.seq_len)
    if not embedding:
        active -= given.shape.vocab * given.shape.hidden
    assert active == pytest.approx(count * GB, rel=rel)
