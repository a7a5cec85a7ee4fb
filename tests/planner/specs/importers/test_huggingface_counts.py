"""Parameters of published models, counted from their config.json alone.

The files of data/ hold the architecture as published in the `config.json` of each model (keys that
no size depends on are left out). `COUNTED` is what transformers builds of them, `PUBLISHED` what
the authors print.
"""

from pathlib import Path

import pytest

from costmodels.parameters import active_params, total_params
from planner.specs.importers.huggingface.families.attention_variants import VARIANT_TYPES
from planner.specs.importers.huggingface.families.hybrids import HYBRID_TYPES
from planner.specs.importers.huggingface.families.newer import NEWER_TYPES
from planner.specs.importers.huggingface.families.plain import PLAIN_TYPES
from planner.specs.importers.huggingface.families.state_spaces import STATE_SPACE_TYPES
from planner.specs.importers.huggingface.families.widths import WIDTH_TYPES
from planner.specs.importers.huggingface.model_types import TYPES
from planner.specs.loader import load_model, model_from_dict
from tests.planner.specs.importers.counted import CLASS_DEFAULTS, COUNTED, EXCEPTIONS_FRAC

DATA = Path(__file__).parent / "data"
NAMES = sorted(path.stem for path in DATA.glob("*.json"))

NOT_BY_DEFAULT = {
    *NEWER_TYPES,
    *PLAIN_TYPES,
    *HYBRID_TYPES,
    *VARIANT_TYPES,
    *STATE_SPACE_TYPES,
    *WIDTH_TYPES,
}
"""Counted in published.jsonl, and by tools/checkers/check_keys.py."""

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
    assert set(CLASS_DEFAULTS) == set(TYPES) - NOT_BY_DEFAULT


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
