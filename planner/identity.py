"""Names that follow from content: plan ids and result ids."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

ID_DIGITS = 12


def content_id(*parts: Any) -> str:
    """Return the first 12 hex digits of sha256 over the canonical JSON of `parts`.

    >>> content_id({"b": 1, "a": 2}) == content_id({"a": 2, "b": 1})
    True
    """
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:ID_DIGITS]


def plan_id(
    model: Mapping[str, Any], cluster: Mapping[str, Any], layout: Mapping[str, Any]
) -> str:
    """Return the id of a plan: the same layout of the same job on the same cluster."""
    return content_id("plan", _without_details(model), _without_operations(cluster), layout)


def _without_details(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model without its details, on which no figure depends."""
    return {**model, "model": {k: v for k, v in model["model"].items() if k != "details"}}


def _without_operations(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cluster without names of nodes, prices and failures.

    No step time and no memory depend on them.
    """
    pools = [
        {k: v for k, v in pool.items() if k not in ("hosts", "price_per_hour")}
        for pool in cluster["pools"]
    ]
    return {**{k: v for k, v in cluster.items() if k != "operations"}, "pools": pools}
