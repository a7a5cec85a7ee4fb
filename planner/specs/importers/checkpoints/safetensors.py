"""Parameters of weight files of the safetensors format, from their index or their headers.

Source: huggingface/safetensors, README (format); the index is written by transformers and
huggingface_hub (`model.safetensors.index.json`).
"""

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MOST_HEADER_BYTES = 100_000_000
"""Longest header that the format allows."""
MOST_INDEX_BYTES = 64_000_000
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_OF_NAME = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def stored_params(config_file: str, dtype: str) -> tuple[float, str]:
    """Return how many parameters lie beside a config.json, and what says so.

    Headers of the weight files count exactly where all are there and hold plain numbers; else the
    index says `total_parameters`, or `total_size` in numbers of `dtype`. 0 where nothing says it.
    """
    folder = Path(config_file).parent
    index = _json(folder / INDEX)
    names = sorted(set(_mapping(index.get("weight_map")).values())) if index else [SINGLE]
    if counted := _headers(folder, [str(name) for name in names]):
        return counted, "headers of the weight files"
    metadata = _mapping(index.get("metadata"))
    total, n_bytes = metadata.get("total_parameters"), metadata.get("total_size")
    if isinstance(total, int) and total > 0:
        return float(total), INDEX
    width = _OF_NAME.get(dtype.removeprefix("torch."))
    if isinstance(n_bytes, int | float) and n_bytes > 0 and width:
        return float(n_bytes) / width, f"{INDEX} ({dtype})"
    return 0.0, ""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _json(path: Path) -> Mapping[str, Any]:
    """Return a JSON file as a mapping; empty where there is none that can be read."""
    try:
        if path.stat().st_size > MOST_INDEX_BYTES:
            return {}
        return _mapping(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return {}


def _headers(folder: Path, names: list[str]) -> float:
    """Return the elements of all tensors of some files; 0 where one is missing or packs bits."""
    total = 0.0
    for name in names:
        header = _header(folder / Path(name).name)
        sizes = [x for key, x in header.items() if key != "__metadata__"]
        if not sizes or any(_mapping(x).get("dtype") not in _BYTES for x in sizes):
            return 0.0
        total += sum(math.prod(x["shape"]) for x in sizes)
    return total


def _header(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if not 0 < length <= MOST_HEADER_BYTES:
                return {}
            return _mapping(json.loads(stream.read(length)))
    except (OSError, ValueError, struct.error):
        return {}
