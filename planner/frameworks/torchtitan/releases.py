"""torchtitan's job files of other releases: which one a file is for, and its keys by today's name.

Fields of each release stand in `planner/data/torchtitan_old_fields.json`, as its own
config_manager defines them; `0.0` are the revisions of 2024, before the first release.
"""

import itertools
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

_AXES = (
    "data_parallel_replicate",
    "data_parallel_shard",
    "tensor_parallel",
    "context_parallel",
    "pipeline_parallel",
)
_PIPELINE = ("schedule", "schedule_csv", "split_points", "microbatches", "layers_per_stage")
RENAMED: Mapping[str, str] = {
    **{
        f"{section}.{axis}_degree": f"parallelism.{axis}_degree"
        for section in ("training", "experimental")
        for axis in _AXES
    },
    **{
        f"experimental.pipeline_parallel_{name}": f"parallelism.pipeline_parallel_{name}"
        for name in _PIPELINE
    },
    "training.batch_size": "training.local_batch_size",
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "training.compile": "compile.enable",
    "training.fsdp_reshard_after_forward": "parallelism.fsdp_reshard_after_forward",
    "training.disable_loss_parallel": "parallelism.disable_loss_parallel",
    "experimental.context_parallel_rotate_method": "parallelism.context_parallel_rotate_method",
    "experimental.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel",
}
"""Keys of older job files by the name that they have in the newest."""
FLOAT8 = ("float8.enable_float8_linear", "training.enable_float8_linear", "training.fp8_linear")
TOML_RELEASE = "0.2.2"
"""The last release that reads job files (TOML), which are written too."""
SPLIT_POINTS = "parallelism.pipeline_parallel_split_points"
MICROBATCHES = "parallelism.pipeline_parallel_microbatches"
"""Keys that have no successor of the same meaning; the reader knows them."""
COMING = {
    "num_tokens_per_microbatch_per_dp_rank": "local_batch_size",
    "num_tokens_per_train_step": "global_batch_size",
}
"""Sizes that a recipe of the coming release states in tokens, by the name that they have now."""
OLD_MODELS = {
    ("llama2", "7B"): {"layers": 32, "hidden": 4096, "heads": 32, "ffn": 11008, "vocab": 32000},
    ("llama2", "13B"): {"layers": 40, "hidden": 5120, "heads": 40, "ffn": 13824, "vocab": 32000},
    ("llama2", "70B"): {
        "layers": 80,
        "hidden": 8192,
        "heads": 64,
        "kv_heads": 8,
        "ffn": 28672,
        "vocab": 32000,
    },
}
"""Models that older releases register (torchtitan/models/llama)."""


@cache
def old_fields() -> Mapping[str, frozenset[str]]:
    """Return the fields of older releases, the newest first."""
    text = (files("planner") / "data" / "torchtitan_old_fields.json").read_text(encoding="utf-8")
    entries = {release: frozenset(names) for release, names in json.loads(text).items()}
    return dict(sorted(entries.items(), reverse=True))


def release_of(unknown: tuple[str, ...], settings: Mapping[str, Any]) -> str:
    """Return the newest older release that has more of the fields of a job file.

    `unknown` are those that the newest release with job files does not have; "" where it is the
    one that knows most.
    """
    best, least = "", len(unknown)
    for release, names in old_fields().items():
        missing = len(unknown_in(names, settings))
        if missing < least:
            best, least = release, missing
    return best


def unknown_in(names: frozenset[str], settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the settings that a release does not have; what stands below a field is its value."""
    parts = {name: name.split(".") for name in settings}
    return tuple(
        name
        for name, keys in parts.items()
        if not any(".".join(keys[: i + 1]) in names for i in range(len(keys)))
    )


def with_present_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an older job file under the names of the newest release."""
    changed: dict[str, Any] = {}
    for key, value in settings.items():
        changed.setdefault(RENAMED.get(key, key), value)
    if any(settings.get(key) is True for key in FLOAT8):
        changed.setdefault("model.converters", ["float8"])
    pp = changed.get("parallelism.pipeline_parallel_degree", 1)
    local = changed.get("training.local_batch_size", 8)
    is_whole = "experimental.pipeline_parallel_degree" in settings  # then as many as stages
    pieces = changed.get(MICROBATCHES) or (pp if is_whole else 0)
    if all(isinstance(n, int) for n in (pp, local, pieces)) and pp > 1 and pieces > 0:
        changed.setdefault(
            "parallelism.pipeline_parallel_microbatch_size", max(1, local // pieces)
        )
    return changed


def with_sizes_in_sequences(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a recipe of the coming release with its sizes in sequences."""
    changed = dict(settings)
    length = changed.get("training.max_context_length")
    if isinstance(length, int) and length > 0:
        changed.setdefault("training.seq_len", length)
        for old, new in COMING.items():
            tokens = changed.get(f"training.{old}")
            if isinstance(tokens, int) and tokens > 0:
                changed.setdefault(f"training.{new}", max(1, tokens // length))
    pieces = changed.get("parallelism.num_pp_microbatches")
    local = changed.get("training.local_batch_size")
    if isinstance(pieces, int) and isinstance(local, int) and pieces > 0:
        changed.setdefault(
            "parallelism.pipeline_parallel_microbatch_size", max(1, local // pieces)
        )
    return changed


def split_counts(points: Any, layers: int) -> tuple[int, ...]:
    """Return the layers of each stage from the names of the layers that begin one; () for others.

    >>> split_counts(["layers.2", "layers.5"], 8)
    (2, 3, 3)
    """
    named = points.split(",") if isinstance(points, str) else points
    if not isinstance(named, list) or not named:
        return ()
    ends = [str(point).strip().removeprefix("layers.") for point in named]
    if not all(end.isdecimal() for end in ends):
        return ()
    cuts = [0, *map(int, ends), layers]
    return tuple(b - a for a, b in itertools.pairwise(cuts))


WRITTEN_MODULE = "torchtitan_recipe"
"""Python module of the recipe that is written for a plan, beside its start script."""
