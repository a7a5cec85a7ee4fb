"""Changes one key after another and compares our count of parameters with that of transformers.

    python tools/checkers/check_keys.py [--quick] [TYPE...]

In an environment with torch (CPU), transformers 5.23 and this project. Of every model_type that is
read, and that transformers has, the class's own defaults with four layers are changed in one key
at a time: switches turned, numbers halved or doubled, what is null or left out given. Each is built
on the meta device, where nothing is allocated. Our reader has to count the same within a
thousandth, or to refuse the file. Prints what differs, and how many were compared and refused;
exit code 1 when one differs. What transformers itself cannot build is left out. `--quick` changes
only what most types have: shared keys and values, head widths, ties, biases, dense layers.
"""

import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from costmodels.parameters import total_params
from planner.errors import SpecError
from planner.specs.loader import model_from_dict
from planner.specs.importers.huggingface.model_types import ALIASES, TYPES
from planner.specs.importers.huggingface.families.newer import REMOTE_TYPES

SAME = 1e-3
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
NOT_CHANGED = ("vocab_size", "model_type", "transformers_version", "architectures", "dtype")
NEEDED = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 16, "num_experts_per_tok": 4, "n_shared_experts": 1},
    "nemotron": {"num_key_value_heads": 8},
    "granitemoehybrid": {"num_local_experts": 0, "layer_types": ["full_attention"]},
    "minimax": {"layer_types": ["full_attention"]},
    "dbrx": {"attn_config": {"kv_n_heads": 4}, "ffn_config": {"moe_num_experts": 4}},
    "hunyuan_v1_moe": {"num_experts": 8, "moe_topk": 2},
}
"""What a type's defaults lack to be a model."""
KIND = {
    "gqa": {"num_key_value_heads": 4},
    "head_dim": {"head_dim": 96},
    "tied": {"tie_word_embeddings": True},
    "untied": {"tie_word_embeddings": False},
    "bias": {"attention_bias": True, "mlp_bias": True, "use_bias": True, "bias": True},
    "one dense layer": {"first_k_dense_replace": 1},
    "no experts": {"num_experts": 0, "n_routed_experts": 0, "num_local_experts": 0},
}
"""Changes beside those of single keys; a type without such a key is built as transformers does."""


KNOWN: dict[str, str] = {
    "helium": "its output projection is hidden x hidden whatever the heads are",
    "longcat_flash": "it allocates a first matrix for the experts that compute nothing",
    "kimi_linear tied": "its class ties nothing, whatever the file says",
    "bailing_hybrid tied": "its class ties nothing, whatever the file says",
    "llama4_text no experts": "it builds layers of experts without any, which compute nothing",
    "phi4_multimodal": "it counts the towers, which are left out here",
}
"""Classes that differ, and why."""


def built(name: str, data: dict[str, Any]) -> int:
    """Return the parameters of a configuration as transformers builds it, shared ones once."""
    config = CONFIG_MAPPING[name].from_dict(json.loads(json.dumps(data))).get_text_config()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    return sum(p.numel() for p in {id(p): p for p in model.parameters()}.values())


def counted(data: dict[str, Any]) -> float | str:
    """Return our count, or why the file is refused."""
    try:
        given = model_from_dict(json.loads(json.dumps(data)))
    except SpecError as error:
        return str(error)
    return total_params(given.shape, given.job.seq_len)


def start(name: str, n_layers: int) -> dict[str, Any]:
    """Return the least that a configuration of a type says."""
    fields = CONFIG_MAPPING[name]().to_dict()
    key = next(key for key in LAYERS if key in fields)
    data = {"model_type": name, key: n_layers, **NEEDED.get(name, {})}
    if "layer_types" in data:
        data["layer_types"] = data["layer_types"] * n_layers
    if name == "gpt_neo":
        data["attention_types"] = [[["global", "local"], n_layers // 2]]
    return data


def changes(name: str, data: dict[str, Any], quick: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what is changed, and the keys that change."""
    fields = CONFIG_MAPPING[name].from_dict(data).to_dict()
    yield "default", {}
    for kind, keys in KIND.items():
        if found := {key: value for key, value in keys.items() if key in fields}:
            yield kind, found
    for key, value in () if quick else fields.items():
        if key in NOT_CHANGED or key.startswith("_"):
            continue
        if isinstance(value, bool):
            yield f"{key} {not value}", {key: not value}
        elif isinstance(value, int):
            yield f"{key} {2 * value or 4}", {key: 2 * value or 4}
            if value % 2 == 0 and value:
                yield f"{key} {value // 2}", {key: value // 2}
        elif value is None:
            yield f"{key} 4", {key: 4}
            yield f"{key} true", {key: True}


def check(name: str, quick: bool) -> tuple[int, int, int, float]:
    """Print what differs of one type; return how many were compared, refused, wrong; the worst."""
    data, worst = start(name, 4), 0.0
    n_same = n_refused = n_wrong = 0
    for what, keys in changes(name, data, quick):
        changed = {**data, **keys}
        try:
            theirs = built(name, changed)
        except Exception:
            continue
        ours = counted(changed)
        if isinstance(ours, str):
            n_refused += 1
            if not keys:
                print(f"{name:18} {what}: refused: {ours[:150]}")
            continue
        off = abs(ours / theirs - 1)
        if off > SAME and (why := KNOWN.get(name) or KNOWN.get(f"{name} {what}")):
            print(f"{name:18} {what}: known: {why}")
        elif off > SAME:
            n_wrong += 1
            print(f"{name:18} {what}: {theirs:,} ours {ours:,.0f} {ours / theirs - 1:+.3%}")
        else:
            n_same, worst = n_same + 1, max(worst, off)
    return n_same, n_refused, n_wrong, worst


def main(arguments: list[str]) -> int:
    """Check every type, or those named; return the exit code."""
    warnings.filterwarnings("ignore")
    quick = arguments[:1] == ["--quick"]
    arguments = arguments[quick:]
    names = arguments or [
        name
        for name in (*TYPES, *ALIASES)
        if name in CONFIG_MAPPING and name not in REMOTE_TYPES
    ]
    totals = [0, 0, 0]
    worst = 0.0
    for name in names:
        try:
            found = check(name, quick)
        except Exception as error:
            print(f"{name:18} not built by transformers: {str(error)[:120]}")
            continue
        totals = [a + b for a, b in zip(totals, found, strict=False)]
        worst = max(worst, found[3])
    same, refused, wrong = totals
    print(
        f"{len(names)} types: {same} counted the same (worst {worst:.4%}), {refused} refused,"
        f" {wrong} wrong"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
