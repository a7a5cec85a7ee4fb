"""Which file of a model's folder a text is, and the text as data with line marks."""

import json
import re
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path, PurePath
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.specs.importers.huggingface.families.params_json import PARAMS_TYPES
from planner.specs.importers.huggingface.model_types import TYPES
from planner.specs.importers.huggingface.rules import KEYS
from planner.specs.yaml.document import Document, parse_yaml
from planner.units import shown_value

TEXT_SECTIONS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Sections of multimodal files that hold the language model."""

_SIGNS = (
    "model_type",
    "architectures",
    "num_hidden_layers",
    "num_attention_heads",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "n_embd",
    "n_layer",
    "n_head",
    "dim",
    "n_layers",
    "n_heads",
    "transformers_version",
    "torch_dtype",
    *TEXT_SECTIONS,
)
"""Keys of a model's configuration: two of them, or `model_type`, make one."""
_OWN_SECTIONS = ("model", "training", "pools", "fabric")
_SIZE_KEYS = {
    name
    for key in ("layers", "hidden", "heads")
    for keys in (KEYS, *(rules.keys for rules in (*TYPES.values(), *PARAMS_TYPES.values())))
    for name in keys.get(key, ())
}

_OTHER_FILES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("*.index.json", ("weight_map",), "the index of a model's weight files"),
    ("tokenizer_config.json", ("tokenizer_class",), "the configuration of a tokenizer"),
    ("tokenizer.json", ("pre_tokenizer",), "a tokenizer"),
    ("vocab.json", (), "the vocabulary of a tokenizer"),
    ("special_tokens_map.json", ("bos_token", "eos_token"), "the special tokens of a tokenizer"),
    (
        "generation_config.json",
        ("eos_token_id", "transformers_version"),
        "the configuration of text generation",
    ),
    ("*preprocessor_config.json", ("image_processor_type",), "the configuration of a processor"),
    ("adapter_config.json", ("peft_type",), "the configuration of an adapter"),
    ("*.safetensors", (), "a file of weights"),
    ("*.gguf", (), "a file of weights"),
    ("pytorch_model*.bin", (), "a file of weights"),
)
"""Files that lie beside it: their names, keys that tell their content, what they are."""


_DIFFUSERS = ("_class_name", "_diffusers_version")
"""Keys of every configuration of diffusers."""


def looks_like(text: str) -> bool:
    """Tell whether a text is, or was meant to be, a JSON file of a Hugging Face model's folder."""
    keys = _top_keys(text)
    if keys.intersection(_OWN_SECTIONS):
        return False
    other = any(names and keys.issuperset(names) for _, names, _ in _OTHER_FILES)
    other = other or keys.issuperset(_DIFFUSERS)
    return "model_type" in keys or len(keys.intersection(_SIGNS)) > 1 or other


def _top_keys(text: str) -> set[str]:
    """Return the keys at the top of JSON or YAML; all keys where the JSON is broken."""
    if not text.lstrip().startswith("{"):
        return set(re.findall(r"^(\w+)\s*:", text, re.MULTILINE))
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return set(re.findall(r'"(\w+)"\s*:', text))
    return set(data) if isinstance(data, dict) else set()


def has_sizes(data: Mapping[str, Any]) -> bool:
    """Tell whether a section says, or holds a section that may say, the size of a model."""
    return not _SIZE_KEYS.isdisjoint(data) or not set(TEXT_SECTIONS).isdisjoint(data)


def mistaken_name(file: str) -> SpecError | None:
    """Return the error for a file whose name says that it is another one of a model's folder."""
    name = PurePath(file).name
    for pattern, _, what in _OTHER_FILES:
        if fnmatch(name, pattern):
            return SpecError(_mistaken(what, file))
    return None


def _mistaken(what: str, file: str) -> InputProblem:
    sibling = Path(file).parent / "config.json"
    there = str(sibling) if file and sibling.is_file() else "the config.json beside it"
    return InputProblem(f"is {what}, not of a model", f"give {there}", file)


def config_in_folder(folder: Path) -> Path | None:
    """Return the configuration in a model's folder, or in its folder of the Hub's cache."""
    revision = folder / "refs" / "main"
    if revision.is_file():
        folder = folder / "snapshots" / revision.read_text(encoding="utf-8").strip()
    named = (folder / name for name in ("config.json", "params.json"))
    return next((path for path in named if path.is_file()), None)


def parse_config(text: str, file: str) -> Document:
    """Return a configuration as data; one that is none of a model is a `SpecError`."""
    document = _parse_json(text, file)
    data = document.data
    if not isinstance(data, Mapping):
        message = f"expected the keys of a Hugging Face config.json, got {shown_value(data)}"
        raise SpecError(document.problem((), message))
    is_of_diffusers = set(data).issuperset(_DIFFUSERS)
    if not is_of_diffusers and "model_type" not in data and not has_sizes(data):
        for _, names, what in _OTHER_FILES:
            if names and set(data).issuperset(names):
                raise SpecError(_mistaken(what, file))
    return document


def _parse_json(text: str, file: str) -> Document:
    """Read JSON with line marks: as YAML, whose flow style it is, except that tabs are blanks."""
    try:
        return parse_yaml(text.replace("\t", " "), file)
    except SpecError as error:
        try:
            json.loads(text)
        except json.JSONDecodeError as broken:
            if text.lstrip().startswith("{"):
                message = f"not valid JSON: {broken.msg[:1].lower()}{broken.msg[1:]}"
                fix = "check commas, quotes and brackets near here"
                problem = InputProblem(message, fix, file, broken.lineno, broken.colno)
                raise SpecError(problem) from None
        raise error from None
