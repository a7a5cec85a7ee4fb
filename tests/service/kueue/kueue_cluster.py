"""A cluster with Kueue for tests: our API server, a controller's reconciler, jobs that ask."""

import copy
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from service.kueue.api import ApiClient
from service.kueue.connection import Connection
from service.kueue.decision import Answers
from service.kueue.planners import LocalPlanner, PlannerRefusal, PlannerUnavailable
from service.kueue.reconciler import Reconciler, Settings
from tools.kubernetes_api.kueue import CHECKS, FLAVORS, Kueue, Reservation
from tools.kubernetes_api.schemas import kinds
from tools.kubernetes_api.server import ApiServer

NOTES = {
    "planner/model": "llama3-8b",
    "planner/cluster": "h100-x8",
    "planner/pins": "tp=2,zero=1,mbs=1",
}
"""Annotations of a job that is planned in a fraction of a second."""
CHECK = "plan"
OURS = Reservation([CHECK])
CONFIG_MAPS = kinds()["", "configmaps"]
MANAGER = "planner-kueue"
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def template(notes: Mapping[str, str], devices: int = 8, **more: Any) -> dict[str, Any]:
    """Return a pod template that asks the planner; `more` are fields of the pod."""
    limits = {"nvidia.com/gpu": str(devices)} if devices else {"cpu": "1"}
    container = {"name": "c", "image": "i", "resources": {"limits": limits}}
    return {
        "metadata": {"annotations": dict(notes)},
        "spec": {"restartPolicy": "Never", "containers": [container], **copy.deepcopy(more)},
    }


class OncePlanner:
    """Plans in this process, counts questions, and does what it is told before it answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.fault: Exception | None = None
        self._answers = Answers(_SHARED)

    def ask(self, call: str, request: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append((call, dict(request)))
        if self.fault is not None and call == "solve":
            raise self.fault
        return self._answers.ask(call, request)

    def unavailable(self, message: str) -> None:
        self.fault = PlannerUnavailable(message)

    def refuse(self, message: str) -> None:
        self.fault = PlannerRefusal(message)


class _Kept:
    """One planner for all tests of a process: a question is computed once."""

    def __init__(self) -> None:
        self._answers = Answers(LocalPlanner(0.0))

    def ask(self, call: str, request: Mapping[str, Any]) -> dict[str, Any]:
        return self._answers.ask(call, request)


_SHARED = _Kept()


def fill(served: ApiServer) -> Kueue:
    """Create a flavor and a check of ours, and one of another controller."""
    kueue = Kueue(served.store)
    labels = {"pool": "h100"}
    served.store.create(FLAVORS, {"metadata": {"name": "h100"}, "spec": {"nodeLabels": labels}})
    for name, owner in ((CHECK, "planner/kueue"), ("other", "somebody/else")):
        spec = {"controllerName": owner}
        served.store.create(CHECKS, {"metadata": {"name": name}, "spec": spec})
    return kueue


def reconciler_of(served: ApiServer, planner: Any, token: str = "") -> Reconciler:
    """Return a reconciler that speaks to a server over HTTP."""
    api = ApiClient(Connection(served.url, token), MANAGER)
    return Reconciler(api, api.kueue(), Answers(planner), Settings(), lambda: NOW)
