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
    return content_id("plan", model, _without_hosts(cluster), layout)


def _without_hosts(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cluster without the names of its nodes, on which no figure depends."""
    pools = [{k: v for k, v in pool.items() if k != "hosts"} for pool in cluster["pools"]]
    return {**cluster, "pools": pools}
