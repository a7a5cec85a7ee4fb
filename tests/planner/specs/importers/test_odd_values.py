"""Odd values in configurations of every type: one error of ours, or a model; never a traceback."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from planner.errors import PlannerError, SpecError
from planner.specs.importers.huggingface.model_types import TYPES
from planner.specs.importers.huggingface.reader import read_config
from planner.specs.importers.huggingface.rules import KEYS

ODD: tuple[Any, ...] = (
    *(None, "odd", "", "4", 0, -1, 1.5, True, 10**12, float("nan")),
    *([], ["odd"], [1, 2], [None], [["odd"]], {}, {"a": 1}, {"a": [None]}),
)
PLAIN = {
    **{"layers": 4, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 128, "vocab": 512},
    **{"experts": 8, "topk": 2, "moe_ffn": 32, "max_positions": 512, "row_width": 16},
    **{"q_rank": 32, "kv_rank": 16, "qk_nope": 16, "qk_rope": 8, "v_head": 16},
    **{"lin_k_heads": 2, "lin_v_heads": 2, "lin_k_dim": 16, "lin_v_dim": 16},
    **{"ssm_heads": 4, "ssm_head_dim": 16, "ssm_state": 16},
}
"""Sizes of a small model by field, for types without such a default."""
OF_ALL = ("architectures", "version", "model_type", "auto_map", "num_experts", "use_mla")
"""Keys by which types are told apart."""
OF_FUNCTIONS = {
    "lfm2": ("block_ff_dim", "block_multiple_of", "block_ffn_dim_multiplier"),
    "step3p5": ("attention_other_setting", "num_sliding_attention_heads"),
    "gemma4_text": ("per_layer_config", "global_head_dim", "num_global_key_value_heads"),
    "openelm": ("ffn_multipliers", "num_query_heads", "num_gqa_groups", "ffn_dim_divisor"),
    "nemotron-nas": ("block_configs", "num_key_value_heads_per_layer"),
    "mimo_v2_flash": ("swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim"),
}
"""Keys that functions of a type read beside its fields."""


def small(name: str) -> dict[str, Any]:
    """Return a configuration of a type, with sizes for which it has no default."""
    rules = TYPES[name]
    data: dict[str, Any] = {"model_type": name}
    for field, value in PLAIN.items():
        names = rules.keys.get(field, KEYS[field])
        is_open = rules.defaults.get(field, "none") is None and not (
            rules.latent and field == "kv_heads"
        )
        if names and is_open and "." not in names[0]:
            data[names[0]] = value
    return data


def changed(name: str, data: dict[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Yield key, odd value and text for each key that a type has a word of its own for."""
    own = {key for names in TYPES[name].keys.values() for key in names} | data.keys()
    for key in sorted(own | {*OF_ALL, *OF_FUNCTIONS.get(name, ())}):
        for odd in ODD:
            outer, _, inner = key.partition(".")
            yield key, odd, json.dumps({**data, outer: {inner: odd} if inner else odd})


def leaks(name: str, every: int) -> tuple[list[str], int]:
    """Return what left the reader that is no error of ours, and how many it read or refused."""
    found, n = [], 0
    for turn, (key, odd, text) in enumerate(changed(name, small(name))):
        if turn % every:
            continue
        n += 1
        try:
            read_config(text, "", {})
        except PlannerError:
            continue
        except Exception as error:  # what is looked for
            found.append(f"{key}: {odd!r}: {error!r}")
    return found, n


def test_odd_values_are_read_or_refused() -> None:
    """Every 31st of the values: types with the same keys meet others of them."""
    counts = {name: leaks(name, 31) for name in TYPES}
    assert {name: found for name, (found, _) in counts.items() if found} == {}
    assert min(n for _, n in counts.values()) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", TYPES)
def test_all_odd_values_of_a_type(name: str) -> None:
    assert leaks(name, 1)[0] == []


@pytest.mark.parametrize(
    ("name", "changes", "word"),
    [
        ("minicpm_sala", {}, "mixer_types is missing"),
        ("minicpm_sala", {"mixer_types": None}, "mixer_types: is null"),
        ("plamo", {"n_shared_head": None}, "kv_heads cannot be computed"),
        ("plamo", {"n_shared_head": 0}, "n_shared_head 0"),
        ("plamo", {"n_shared_head": "odd"}, "n_shared_head 'odd'"),
        ("bailing_moe_linear", {"layer_group_size": "odd"}, "layer_group_size 'odd'"),
        ("recurrent_gemma", {"block_types": []}, "layer_types cannot be computed"),
        ("lfm2", {"block_multiple_of": 0}, "the width of MLPs"),
        ("step3p5", {"attention_other_setting": "odd"}, "widths of layers"),
    ],
)
def test_what_is_wrong_is_named(name: str, changes: dict[str, Any], word: str) -> None:
    with pytest.raises(SpecError, match=word):
        read_config(json.dumps(small(name) | changes), "", {})


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("mpt", {"d_model": {"a": 1}}),
        ("mpt", {"expansion_ratio": {"a": 1}}),
        ("deepseek_v3", {"num_attention_heads": [1, 2], "num_key_value_heads": 4}),
        ("deepseek_v3", {"num_attention_heads": [["odd"]], "num_key_value_heads": 4}),
        ("hunyuan_v1_moe", {"num_attention_heads": "odd", "attention_head_dim": 16}),
        ("bamba", {"layers_block_type": [["odd"]]}),
    ],
)
def test_keys_that_are_compared_with_odd_sizes(name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        read_config(json.dumps(small(name) | changes), "", {})


@pytest.mark.parametrize("odd", ODD)
def test_classes_that_are_no_names(odd: object) -> None:
    plain = small("bailing_hybrid")
    said = read_config(json.dumps({**plain, "architectures": odd}), "", {}).document
    assert said == read_config(json.dumps(plain), "", {}).document
