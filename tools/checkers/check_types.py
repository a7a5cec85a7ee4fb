"""Compares our counts with transformers for every class of text that it has, in three shapes.

    python tools/checkers/check_types.py [TYPE...]

In an environment with torch (CPU), transformers 5.23 and this project. Each class is built on the
meta device with its own defaults, with half and with twice their widths; our reader gets the least
that says the shape, and every key that the class then writes. Of multimodal classes the language
model is looked up in the table alone. Exit code 1 where a count is off by more than a thousandth,
or where a type of the table is refused.
"""

import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
)
from transformers.models.auto import modeling_auto

from check_keys import KNOWN
from costmodels.parameters import total_params
from planner.errors import SpecError
from planner.specs.importers.huggingface.families.encoders.encoder_decoders import TYPES as SEQ2SEQ
from planner.specs.importers.huggingface.families.encoders.encoder_only import DECODER
from planner.specs.importers.huggingface.families.refused import REFUSED
from planner.specs.importers.huggingface.families.encoders.t5gemma import TYPE as T5GEMMA
from planner.specs.importers.huggingface.model_types import ALIASES, TYPES
from planner.specs.loader import model_from_dict

SAME = 1e-3
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
WIDTHS = (
    "hidden_size",
    "n_embd",
    "d_model",
    "intermediate_size",
    "moe_intermediate_size",
    "ffn_dim",
    "ffn_hidden_size",
    "expert_ffn_hidden_size",
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "d_ff",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
)
NEEDED: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 16, "num_experts_per_tok": 4, "n_shared_experts": 1},
    "nemotron": {"num_key_value_heads": 8, "head_dim": 128},
    "dbrx": {"attn_config": {"kv_n_heads": 4}, "ffn_config": {"moe_num_experts": 4}},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"num_experts": 8, "moe_topk": 2, "head_dim": 128},
    "ministral": {"head_dim": 128},
    "glm4_moe": {"head_dim": 128},
}
"""What a class's defaults lack to be a model."""

def shapes(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what is changed, and the keys: the defaults, half and twice the widths."""
    fields = CONFIG_MAPPING[name]().to_dict()
    needed = NEEDED.get(name, {})
    layers = next((key for key in LAYERS if fields.get(key)), "")
    yield "default", {**needed}
    for factor in (0.5, 2):
        keys = {k: int(fields[k] * factor) for k in WIDTHS if type(fields.get(k)) is int}
        if layers:
            keys[layers] = max(4, fields[layers] // 2) if factor < 1 else fields[layers] + 4
        yield f"x {factor:g}", {**needed, **keys}


def built(name: str, keys: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return the parameters of a class as transformers builds it, and all keys that it writes."""
    config = CONFIG_MAPPING[name].from_dict(json.loads(json.dumps(keys))).get_text_config()
    kind = AutoModelForCausalLM
    if name in SEQ2SEQ:
        speaks = type(config) in AutoModelForSeq2SeqLM._model_mapping
        kind = AutoModelForSeq2SeqLM if speaks else AutoModelForSpeechSeq2Seq
    with torch.device("meta"):
        model = kind.from_config(config)
    model.tie_weights()
    return sum(p.numel() for p in model.parameters()), config.to_dict()


def check(name: str) -> tuple[int, int]:
    """Print what differs of one class; return how many were compared and how many are wrong."""
    n_same = n_wrong = 0
    for what, keys in shapes(name):
        least = {"model_type": name, **keys}
        try:
            theirs, whole = built(name, least)
        except Exception as error:
            print(f"{name:20} {what:8} not built by transformers: {str(error)[:80]}")
            continue
        for form, data in (("least", least), ("all keys", whole)):
            try:
                given = model_from_dict(json.loads(json.dumps(data, default=str)))
            except SpecError as error:
                n_wrong += 1
                print(f"{name:20} {what:8} {form:8} refused: {str(error)[:120]}")
                continue
            off = total_params(given.shape, given.job.seq_len) / theirs - 1
            n_same += abs(off) <= SAME
            if abs(off) > SAME:
                n_wrong += 1
                print(f"{name:20} {what:8} {form:8} {theirs:,} ours {off:+.3%}")
    if n_wrong and name in KNOWN:
        print(f"{name:20} known: {KNOWN[name]}")
        n_wrong = 0
    return n_same, n_wrong


def classes() -> dict[str, str]:
    """Return the classes of decoders, of two sequences and of images, with their text's type."""
    named = (
        *modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        *modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        *modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        *modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    )
    found = {}
    for name in named:
        try:
            found[name] = CONFIG_MAPPING[name]().get_text_config().model_type
        except Exception:
            found[name] = name
    return found


def main(names: list[str]) -> int:
    """Check every class that is read, or those named; return the exit code."""
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    table, found = {*TYPES, *ALIASES}, classes()
    decoders = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    same = wrong = 0
    for name in names or [*(x for x in decoders if x in table), *SEQ2SEQ]:
        compared, differing = check(name)
        same, wrong = same + compared, wrong + differing
    table |= {*SEQ2SEQ, T5GEMMA, DECODER}  # counts of the last two: test_encoder_decoders.py
    known = table | set(REFUSED)
    unknown = sorted(x for x, text in found.items() if not {x.lower(), x, text} & known)
    read = sum(bool({x, text} & table) for x, text in found.items())
    print(
        f"{len(found)} classes: {read} are read, {len(found) - read - len(unknown)} refused by"
        f" their layers, {len(unknown)} unknown; {same} counts the same, {wrong} wrong"
    )
    if unknown:
        print("unknown:", ", ".join(unknown))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
