"""Kueue's part in two-phase admission (KEP-993), played on the store, step by step.

`reserve` is its scheduler, `advance` its controllers of Workloads and Jobs: a Workload with a
check in Retry or Rejected is evicted, one whose checks are all Ready is admitted and its Job
started with the updates of its pods. Writes are those of Kueue's managers, under all rules.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tools.kubernetes_api.http_store import HttpStore
from tools.kubernetes_api.rules import is_true
from tools.kubernetes_api.schemas import GROUP, kinds
from tools.kubernetes_api.store import Data, Store

TIME = "2026-01-01T00:00:00Z"
ADMISSION, JOBS = "kueue-admission", "kueue-job-controller"
WORKLOADS = kinds()[GROUP, "workloads"]
CHECKS = kinds()[GROUP, "admissionchecks"]
FLAVORS = kinds()[GROUP, "resourceflavors"]
JOB = kinds()["batch", "jobs"]


class UpdateConflict(Exception):
    """Updates of pods that would change what is there: Kueue does not start such a job."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """What the scheduler reserves for each pod set."""

    checks: Sequence[str]
    flavor: str = "h100"
    count: int | None = None
    """Pods of the first pod set; None: as many as it wants (else partial admission, KEP-420)."""
    topology: Mapping[str, Any] | None = None
    resource: str = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Kueue:
    """Kueue on a store."""

    store: Store | HttpStore
    namespace: str = "team"

    def submit(self, name: str, template: Data, n_pods: int, least: int = 0) -> None:
        """Create a suspended Job and the Workload that Kueue makes of it."""
        meta = {"name": name, "namespace": self.namespace}
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {**meta, "labels": {"kueue.x-k8s.io/queue-name": "main"}},
            "spec": {
                "suspend": True,
                "parallelism": n_pods,
                "completions": n_pods,
                "completionMode": "Indexed",
                "template": copy.deepcopy(template),
            },
        }
        self.store.create(JOB, job, "kubectl")
        pod_set = {"name": "main", "count": n_pods, "template": copy.deepcopy(template)}
        self.submit_pod_sets(name, [pod_set | ({"minCount": least} if least else {})])

    def submit_pod_sets(self, name: str, pod_sets: list[Data]) -> None:
        """Create a Workload alone."""
        meta = {"name": name, "namespace": self.namespace}
        spec = {"queueName": "main", "active": True, "podSets": pod_sets}
        self.store.create(WORKLOADS, {"metadata": meta, "spec": spec}, JOBS)

    def get(self, name: str) -> Data:
        """Return a Workload."""
        return self.store.get(WORKLOADS, self.namespace, name)

    def job(self, name: str) -> Data:
        """Return a Job."""
        return self.store.get(JOB, self.namespace, name)

    def check(self, workload: str, check: str) -> Data:
        """Return the state of a check of a Workload; empty where it has none."""
        states = (self.get(workload).get("status") or {}).get("admissionChecks") or ()
        return next((dict(x) for x in states if x["name"] == check), {})

    def reserve(self, name: str, reservation: Reservation) -> None:
        """Reserve quota: the admission is filled in, and checks begin as Pending."""
        workload = self.get(name)
        assignments = [
            _assignment(pod_set, reservation, first=i == 0)
            for i, pod_set in enumerate(workload["spec"]["podSets"])
        ]
        kept = {x["name"]: x for x in (workload.get("status") or {}).get("admissionChecks") or ()}
        checks = [kept.get(x) or _pending(x, "") for x in reservation.checks]
        status = workload.get("status") or {}
        status |= {
            "admission": {"clusterQueue": "main", "podSetAssignments": assignments},
            "admissionChecks": checks,
        }
        _set(status, "QuotaReserved", True, "QuotaReserved")
        if is_true(workload, "Evicted"):
            _set(status, "Evicted", False, "QuotaReserved")
        self.store.update(WORKLOADS, {**workload, "status": status}, "status", ADMISSION)

    def advance(self, name: str) -> str:
        """Do what follows from the states of the checks; return it in a word."""
        workload = self.get(name)
        checks = (workload.get("status") or {}).get("admissionChecks") or ()
        states = {x["state"] for x in checks}
        if not is_true(workload, "QuotaReserved"):
            return "queued"
        if "Rejected" in states:
            self._evict(workload, "Deactivated")
            self.store.merge(WORKLOADS, (self.namespace, name), {"spec": {"active": False}})
            return "deactivated"
        if "Retry" in states:
            self._evict(workload, "AdmissionCheck")
            return "evicted"
        if states <= {"Ready"}:
            self._start(name, workload)
            status = workload["status"]
            _set(status, "Admitted", True, "Admitted")
            self.store.update(WORKLOADS, {**workload, "status": status}, "status", ADMISSION)
            return "admitted"
        return "waiting"

    def evict(self, name: str) -> None:
        """Evict a Workload, as for one of a higher priority."""
        self._evict(self.get(name), "Preempted")

    def _evict(self, workload: Data, reason: str) -> None:
        """Give the quota back; checks are Pending again, their retries counted."""
        status = workload["status"]
        at = [x.get("requeueAfterSeconds") for x in status["admissionChecks"]]
        for i, check in enumerate(status["admissionChecks"]):
            if check["state"] == "Pending":
                continue
            reset = _pending(check["name"], f"Reset to Pending. Previously: {check['state']}")
            if check["state"] == "Retry":
                reset["retryCount"] = check.get("retryCount", 0) + 1
            if "requeueAfterSeconds" in check:
                reset["requeueAfterSeconds"] = check["requeueAfterSeconds"]
            status["admissionChecks"][i] = reset
        if any(at):
            status["requeueState"] = {"count": 1, "requeueAt": TIME}
        status.pop("admission")
        _set(status, "Evicted", True, reason)
        _set(status, "QuotaReserved", False, "Pending")
        self.store.update(WORKLOADS, {**workload, "status": status}, "status", ADMISSION)

    def _start(self, name: str, workload: Data) -> None:
        """Unsuspend the Job with what flavors and checks add to its template."""
        job = self.job(name)
        template = job["spec"]["template"]
        (assignment,) = workload["status"]["admission"]["podSetAssignments"]
        for flavor in dict.fromkeys(assignment["flavors"].values()):
            labels = self.store.get(FLAVORS, "", flavor)["spec"].get("nodeLabels") or {}
            _add(template["spec"].setdefault("nodeSelector", {}), labels)
        for check in workload["status"]["admissionChecks"]:
            for update in check.get("podSetUpdates") or ():
                meta = template.setdefault("metadata", {})
                _add(meta.setdefault("labels", {}), update.get("labels"))
                _add(meta.setdefault("annotations", {}), update.get("annotations"))
                selector = template["spec"].setdefault("nodeSelector", {})
                _add(selector, update.get("nodeSelector"))
        count = assignment["count"]
        job["spec"] |= {"suspend": False, "parallelism": count, "completions": count}
        self.store.update(JOB, job, manager=JOBS)


def _assignment(pod_set: Data, reservation: Reservation, first: bool) -> Data:
    count = reservation.count if first and reservation.count else pod_set["count"]
    containers = pod_set["template"]["spec"]["containers"]
    limits = [x.get("resources", {}).get("limits", {}) for x in containers]
    devices = sum(int(x.get(reservation.resource, 0)) for x in limits)
    usage = {reservation.resource: str(devices * count)} if devices else {"cpu": str(count)}
    found: Data = {
        "name": pod_set["name"],
        "count": count,
        "flavors": dict.fromkeys(usage, reservation.flavor),
        "resourceUsage": usage,
    }
    if reservation.topology is not None:
        found["topologyAssignment"] = dict(reservation.topology)
    return found


def _pending(name: str, message: str) -> Data:
    return {"name": name, "state": "Pending", "message": message, "lastTransitionTime": TIME}


def _set(status: Data, name: str, value: bool, reason: str) -> None:
    others = [x for x in status.get("conditions") or () if x["type"] != name]
    one = {
        "type": name,
        "status": str(value),
        "reason": reason,
        "message": "",
        "lastTransitionTime": TIME,
    }
    status["conditions"] = [*others, one]


def _add(present: Data, new: Mapping[str, str] | None) -> None:
    for key, value in (new or {}).items():
        if present.get(key, value) != value:
            raise UpdateConflict(f"conflict for {key}: {present[key]} and {value}")
        present[key] = value
