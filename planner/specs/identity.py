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
    return hashlib.sha256(_canonical(parts).encode()).hexdigest()[:ID_DIGITS]


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


class PlanIds:
    """The ids of plans of one job on one cluster, which are written out and hashed once."""

    def __init__(self, model: Mapping[str, Any], cluster: Mapping[str, Any]) -> None:
        before = _canonical(("plan", _without_details(model), _without_operations(cluster)))
        self._before = hashlib.sha256(f"{before[:-1]},".encode())

    def of(self, layout: Mapping[str, Any]) -> str:
        """Return the `content_id` of the word `plan`, the job, the cluster and a layout."""
        result = self._before.copy()
        result.update(f"{_canonical(layout)}]".encode())
        return result.hexdigest()[:ID_DIGITS]


def plan_id(
    model: Mapping[str, Any], cluster: Mapping[str, Any], layout: Mapping[str, Any]
) -> str:
    """Return the id of a plan: the same layout of the same job on the same cluster."""
    return PlanIds(model, cluster).of(layout)


def _without_details(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model without its details, on which no figure depends."""
    return {**model, "model": {k: v for k, v in model["model"].items() if k != "details"}}


def _without_operations(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cluster without names of nodes, prices and failures.

    No step time and no memory depend on them.
    """
    pools = [
        {k: v for k, v in pool.items() if k not in ("hosts", "price_per_hour", "device_mtbf")}
        for pool in cluster["pools"]
    ]
    return {**{k: v for k, v in cluster.items() if k != "operations"}, "pools": pools}
