"""Compares our counts of parameters with the models that transformers builds.

    python tools/checkers/check_parameters.py [NAME...]

In an environment with torch (CPU), transformers 5.23 and this project. Every configuration of
tests/planner/specs/importers/data, or those named, is built on the meta device, where nothing is allocated, and
so is every model_type with the settings of CLASS_DEFAULTS. Prints both counts; exit code 1 when they
differ by more than the tests allow. After a change of the counts the tables of
tests/planner/specs/importers/counted.py take these numbers.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

from costmodels.parameters import total_params
from planner.specs.loader import model_from_dict
from tests.planner.specs.importers.counted import CLASS_DEFAULTS, EXCEPTIONS_FRAC

TESTS = Path(__file__).resolve().parents[2] / "tests" / "planner" / "specs" / "importers"
SAME_CLASS = {"kimi_k2": "deepseek_v3", "RefinedWebModel": "falcon"}
OLD_KEYS = {
    "falcon": {"n_head": "num_attention_heads", "n_layer": "num_hidden_layers"},
    "bloom": {"n_embed": "hidden_size", "num_attention_heads": "n_head"},
}
"""Names that transformers 5 no longer reads."""
TOWERS = {"chameleon": "model.vqmodel."}
"""Where the class of a type is one of images and text, the parameters that are not of text."""
NEEDED = {"chameleon": {"vocabulary_map": {"<image>": 8711}}}
"""What such a class needs to be built and its default lacks."""


def built(data: dict[str, object]) -> int:
    """Return the parameters of the language model of a configuration, shared ones once."""
    data = {k: v for k, v in data.items() if k not in ("quantization_config", "auto_map")}
    name = SAME_CLASS.get(data["model_type"], data["model_type"])
    for old, new in OLD_KEYS.get(name, {}).items():
        if old in data:
            data[new] = data.pop(old)
    config = (
        CONFIG_MAPPING[name]
        .from_dict({**NEEDED.get(name, {}), **data, "model_type": name})
        .get_text_config()
    )
    with torch.device("meta"):
        of_text = AutoModelForImageTextToText if name in TOWERS else AutoModelForCausalLM
        model = of_text.from_config(config)
    model.tie_weights()
    tower = TOWERS.get(name, "none")
    return sum(p.numel() for key, p in model.named_parameters() if not key.startswith(tower))


def main(names: list[str]) -> int:
    """Print a line a configuration; return the exit code."""
    cases = {path.stem: json.loads(path.read_text()) for path in sorted(TESTS.glob("data/*.json"))}
    for name, (stated, _) in CLASS_DEFAULTS.items():
        cases[f"default {name}"] = {"model_type": name, **stated}
    n_wrong = 0
    for name, data in cases.items():
        if names and name not in names:
            continue
        theirs, given = built(data), model_from_dict(data)
        ours = total_params(given.shape, given.job.seq_len)
        off = ours / theirs - 1
        n_wrong += abs(off) > EXCEPTIONS_FRAC
        print(f"{name:24} {theirs:20,d} ours {ours:20,.0f} {off:+.4%}")
    return int(n_wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
