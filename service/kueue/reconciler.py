"""One Workload, looked at: the checks of this controller that are pending get their state.

The controller writes the entry of its own check in `status.admissionChecks` by server-side apply,
with a field manager of its own, for the version of the Workload that it looked at; and the
ConfigMap that the Workload names. Nothing else: suspending, evicting and starting are Kueue's.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from service.kueue.api import CONFIG_MAPS, ApiClient, ApiError, KueueResources
from service.kueue.decision import Answers, Decision, decide, nothing_asked
from service.kueue.planners import PlannerRefusal, PlannerUnavailable
from service.kueue.pod_updates import config_map, pod_set_updates
from service.kueue.question import Question, question_of
from service.kueue.workload import PREFIX, NotPlannable, check_states, grant_of, is_waiting

log = logging.getLogger("planner.kueue")
Data = dict[str, Any]
MOST_ATTEMPTS = 8
"""Of a write that others' writes come before."""
SELECT_PRODUCT = f"{PREFIX}select-product"
"""Annotation of an AdmissionCheck: `false` leaves out the node selector of the GPU's product."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a controller works."""

    name: str = "planner/kueue"
    """`spec.controllerName` of the checks that are its own."""
    requeue_after_s: int = 60
    """First pause of a Workload that is to be tried again; each further one is twice as long."""
    most_requeue_after_s: int = 3600


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Looks at Workloads and AdmissionChecks."""

    api: ApiClient
    kinds: KueueResources
    answers: Answers
    settings: Settings = Settings()
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def reconcile(self, namespace: str, name: str) -> None:
        """Give the pending checks of a Workload their state. Raises `ApiError`."""
        for _ in range(MOST_ATTEMPTS):
            workload = self.api.get(self.kinds.workloads, name, namespace)
            if workload is None or not is_waiting(workload):
                return
            try:
                for state in check_states(workload):
                    if state["state"] == "Pending" and (check := self._own_check(state["name"])):
                        written = self._write(workload, check, state)
                        # A second check of ours is looked at with the new version.
                        workload["metadata"]["resourceVersion"] = written
                return
            except ApiError as error:
                if error.status != 409:
                    raise
        raise ApiError(409, f"{namespace}/{name} changed {MOST_ATTEMPTS} times meanwhile")

    def reconcile_check(self, name: str) -> None:
        """Say in an AdmissionCheck that its controller is there; without, Kueue waits for it."""
        check = self._own_check(name)
        if check is None or "deletionTimestamp" in check["metadata"]:
            return
        status, reason, message = "True", "Active", "planner answers this check"
        if (check["spec"].get("parameters")) is not None:
            status, reason = "False", "BadParametersRef"
            message = f"spec.parameters is not read; annotate the check with {PREFIX}cluster"
        wanted: Data = {"type": "Active", "status": status, "reason": reason, "message": message}
        wanted["observedGeneration"] = check["metadata"].get("generation", 1)
        conditions = (check.get("status") or {}).get("conditions") or ()
        present: Data = next((x for x in conditions if x["type"] == "Active"), {})
        if all(present.get(key) == value for key, value in wanted.items()):
            return
        same = present.get("status") == status
        wanted["lastTransitionTime"] = present["lastTransitionTime"] if same else self._time()
        self.api.apply(
            self.kinds.checks,
            {"metadata": {"name": name}, "status": {"conditions": [wanted]}},
            subresource="status",
            force=True,
        )
        log.info("check", extra={"fields": {"check": name, "active": status, "reason": reason}})

    def _own_check(self, name: str) -> Data | None:
        check = self.api.get(self.kinds.checks, name)
        own = check is not None and check["spec"]["controllerName"] == self.settings.name
        return check if own else None

    def _write(self, workload: Data, check: Data, state: Mapping[str, Any]) -> str:
        """Decide, and apply the decision; return the version of the Workload that it made."""
        decision, updates = self._decided(workload, check)
        entry: Data = {
            "name": state["name"],
            "state": decision.state,
            "message": decision.message,
            "lastTransitionTime": self._time(),
        }
        if updates:
            entry["podSetUpdates"] = updates
        if decision.state == "Retry":
            pause_s = self.settings.requeue_after_s * 2 ** min(int(state.get("retryCount", 0)), 30)
            entry["requeueAfterSeconds"] = min(pause_s, self.settings.most_requeue_after_s)
        meta = workload["metadata"]
        kept = ("name", "namespace", "uid", "resourceVersion")
        written = self.api.apply(
            self.kinds.workloads,
            {
                "metadata": {key: meta[key] for key in kept},
                "status": {"admissionChecks": [entry]},
            },
            subresource="status",
            force=True,  # Kueue owns the state Pending, which this takes the place of
        )
        fields = {
            "workload": f"{meta['namespace']}/{meta['name']}",
            "check": state["name"],
            "state": decision.state,
            "reason": decision.message,
        }
        log.info("decided", extra={"fields": fields})
        return str(written["metadata"]["resourceVersion"])

    def _decided(self, workload: Data, check: Data) -> tuple[Decision, list[Data]]:
        """Return the decision on a Workload and the updates of its pods."""
        namespace = workload["metadata"]["namespace"]
        try:
            grant = grant_of(workload)
            if grant is None:
                return nothing_asked(), []
            flavors = [self._flavor(name) for name in grant.flavors]
            question = question_of(
                grant,
                _default_cluster([*flavors, check]),
                lambda name: self._config_data(namespace, name),
                self._pool,
            )
            decision = decide(question, grant, self.answers)
            if decision.answer is None:
                return decision, []
            labels: dict[str, str] = {}
            for flavor in flavors:
                labels |= (flavor.get("spec") or {}).get("nodeLabels") or {}
            notes = check["metadata"].get("annotations") or {}
            product = notes.get(SELECT_PRODUCT, "true") != "false"
            name = check["metadata"]["name"]
            updates = pod_set_updates(workload, grant, decision.answer, labels, name, product)
            refusal = self._write_config_map(workload, question, decision)
            return (refusal, []) if refusal else (decision, updates)
        except (NotPlannable, PlannerRefusal) as error:
            return Decision("Rejected", str(error)), []
        except PlannerUnavailable as error:
            return Decision("Retry", f"the planner did not answer: {error}"), []

    def _pool(self, cluster: Any) -> Mapping[str, Any]:
        """Return the first pool of a cluster."""
        document = self.answers.ask("check-spec", {"document": cluster})["document"]
        if not document.get("pools"):
            raise NotPlannable(f"{str(cluster)[:80]} is no cluster; name one, such as h100-x512")
        pool: Mapping[str, Any] = document["pools"][0]
        return pool

    def _flavor(self, name: str) -> Data:
        return self.api.get(self.kinds.flavors, name) or {"metadata": {}}

    def _config_data(self, namespace: str, name: str) -> Mapping[str, str] | None:
        found = self.api.get(CONFIG_MAPS, name, namespace)
        return None if found is None else found.get("data") or {}

    def _write_config_map(
        self, workload: Data, question: Question, decision: Decision
    ) -> Decision | None:
        """Write the ConfigMap that the Workload names; return a decision where it must not be."""
        name, meta = question.config_map, workload["metadata"]
        if not name or decision.answer is None:
            return None
        present = self.api.get(CONFIG_MAPS, name, meta["namespace"])
        if present is not None:
            owners: list[Data] = present["metadata"].get("ownerReferences") or []
            if not any(x["uid"] == meta["uid"] for x in owners):
                ours = f"{PREFIX}plan" in (present["metadata"].get("labels") or {})
                message = f"the ConfigMap {name} is there and not of this Workload"
                if ours and owners:  # of a Workload that is gone, and soon collected with it
                    return Decision("Retry", f"{message} but of {owners[0]['name']}")
                return Decision("Rejected", f"{message}; give {PREFIX}config-map another name")
        body = config_map(
            workload, self.kinds.workloads.api_version, name, decision.answer, decision.files
        )
        try:
            self.api.apply(CONFIG_MAPS, body, force=True)
        except ApiError as error:
            if error.is_passing:
                raise
            return Decision("Rejected", f"the ConfigMap {name} was refused: {error.message}")
        return None

    def _time(self) -> str:
        return self.now().strftime("%Y-%m-%dT%H:%M:%SZ")


def _default_cluster(objects: list[Data]) -> str:
    """Return the first cluster that an annotation of objects names; empty where none does."""
    notes = (x["metadata"].get("annotations") or {} for x in objects)
    return next((x[f"{PREFIX}cluster"] for x in notes if f"{PREFIX}cluster" in x), "")
