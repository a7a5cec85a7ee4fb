"""The two inputs as callers of the library state them: paths, examples, dicts, contents."""

import os
from collections.abc import Mapping
from typing import Any

from planner.specs.inputs import ClusterInput, Content, ModelInput
from planner.specs.loader import cluster_from_dict, load_cluster, load_model, model_from_dict

Source = str | os.PathLike[str] | Mapping[str, Any] | Content
"""A path, the name of a packaged example, a dict with the structure of the file, or its content.
"""


Overrides = tuple[tuple[str, object], ...]


def source_names(model: Source, cluster: Source) -> tuple[str, str]:
    """Return what the user called the two inputs, for the commands that answers suggest."""
    return _shown_name(model) or "MODEL", _shown_name(cluster) or "CLUSTER"


def _shown_name(source: Source) -> str:
    if isinstance(source, Content):
        return source.shown or source.name
    return "" if isinstance(source, Mapping) else os.fspath(source)


def read_inputs(
    model: Source, cluster: Source, overrides: Overrides = (), pool: str = ""
) -> tuple[ModelInput, ClusterInput]:
    """Read both inputs; overrides go to the file whose section they name.

    `pool` leaves the other pools of the cluster out.
    """
    return read_model_source(model, overrides), read_cluster_source(cluster, overrides, pool)


def read_model_source(model: Source, overrides: Overrides = ()) -> ModelInput:
    """Read the model alone; overrides of the cluster are left aside."""
    own = [(path, value) for path, value in overrides if _is_of_model(path)]
    if isinstance(model, Mapping):
        return model_from_dict(model, own)
    return load_model(model, own)


def read_cluster_source(
    cluster: Source, overrides: Overrides = (), pool: str = ""
) -> ClusterInput:
    """Read the cluster alone; overrides of the model are left aside."""
    own = [(path, value) for path, value in overrides if not _is_of_model(path)]
    read = cluster_from_dict if isinstance(cluster, Mapping) else load_cluster
    cluster_input = read(cluster, own)  # type: ignore[arg-type]  # chosen by its type
    return cluster_input.pool(pool) if pool else cluster_input


def _is_of_model(path: str) -> bool:
    return path.split(".")[0] in ("model", "training", "search")
