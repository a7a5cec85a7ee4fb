"""One pass over what the controller does with Workloads, against any API server.

Kueue's part is played by `kueue.Kueue`, so its own controllers must not run on the server; its
definitions must be there. A step says what it saw, and raises `StepFailed` where that is wrong.
"""

from collections.abc import Callable, Iterator
from typing import Any

from service.kueue.api import ApiClient
from service.kueue.connection import Connection
from service.kueue.controller import Controller
from service.kueue.decision import Answers
from service.kueue.planners import LocalPlanner, PlannerUnavailable
from service.kueue.reconciler import Reconciler, Settings
from tools.kubernetes_api.http_store import HttpStore
from tools.kubernetes_api.kueue import CHECKS, FLAVORS, JOB, WORKLOADS, Kueue, Reservation
from tools.kubernetes_api.schemas import kinds
from tools.kubernetes_api.store import Data, Refused

CONFIG_MAPS = kinds()["", "configmaps"]
CHECK = FLAVOR = NAMESPACE = "planner-check"
CONTROLLER = "planner/scenario"
PATIENCE_S = 120.0
NOTES = {
    "planner/model": "llama3-8b",
    "planner/cluster": "h100-x8",
    "planner/framework": "megatron",
    "planner/pins": "tp=2,zero=1,mbs=1",
}


class StepFailed(Exception):
    """A step that did not go as it must."""


class _Switched:
    """A planner that is away while it is told so."""

    def __init__(self) -> None:
        self.is_away = False
        self._planner = LocalPlanner(60.0)

    def ask(self, call: str, request: Any) -> Data:
        if self.is_away:
            raise PlannerUnavailable("away")
        return self._planner.ask(call, request)


class Scenario:
    """The steps, in the order in which they are taken."""

    def __init__(self, connection: Connection) -> None:
        self._store = HttpStore(connection)
        self._kueue = Kueue(self._store, NAMESPACE)
        self._planner = _Switched()
        api = ApiClient(connection, "planner-scenario")
        settings = Settings(CONTROLLER, requeue_after_s=1)
        self._controller = Controller(
            Reconciler(api, api.kueue(), Answers(self._planner), settings)
        )

    def run(self) -> Iterator[str]:
        """Yield what every step saw. What it made is deleted at the end."""
        self._prepare()
        self._controller.start()
        try:
            for step in (
                self._active,
                self._admitted,
                self._started_job_stays,
                self._rejected,
                self._tried_again,
                self._partial,
                self._passed,
            ):
                yield step()
        finally:
            self._controller.stop()
            self._clean()

    def _prepare(self) -> None:
        self._clean()
        spec: Data = {"nodeLabels": {"pool": "h100"}}
        self._store.create(FLAVORS, {"metadata": {"name": FLAVOR}, "spec": spec})
        spec = {"controllerName": CONTROLLER}
        self._store.create(CHECKS, {"metadata": {"name": CHECK}, "spec": spec})

    def _clean(self) -> None:
        made = [(FLAVORS, "", FLAVOR), (CHECKS, "", CHECK)]
        names = ("good", "bad", "late", "part", "quiet")
        made += [(kind, NAMESPACE, name) for kind in (WORKLOADS, JOB) for name in names]
        made += [(CONFIG_MAPS, NAMESPACE, "good-plan")]
        for kind, namespace, name in made:
            try:
                self._store.delete(kind, namespace, name)
            except Refused as refusal:
                if refusal.code != 404:
                    raise

    def _active(self) -> str:
        def is_active() -> bool:
            status = self._store.get(CHECKS, "", CHECK).get("status") or {}
            return any(x["status"] == "True" for x in status.get("conditions") or ())

        self._wait(is_active, "the AdmissionCheck is active")
        return "the AdmissionCheck is active"

    def _admitted(self) -> str:
        self._submit("good", NOTES | {"planner/config-map": "good-plan"})
        found = self._decided("good", "Ready")
        self._advance("good", "admitted")
        job = self._kueue.job("good")["spec"]
        notes = job["template"]["metadata"]["annotations"]
        if job["suspend"] or notes.get("planner/plan-tp") != "2":
            raise StepFailed(f"the Job did not start with its layout: {notes}")
        script = self._store.get(CONFIG_MAPS, NAMESPACE, "good-plan")["data"]["megatron.sh"]
        if notes["planner/plan-id"] not in script:
            raise StepFailed("the ConfigMap has no script of the plan")
        return f"admitted, started, files in a ConfigMap: {found['message']}"

    def _started_job_stays(self) -> str:
        """A Job that runs takes no scheduling directives any more (KEP-2926)."""
        job = self._kueue.job("good")
        job["spec"]["template"]["spec"]["nodeSelector"] = {"other": "node"}
        try:
            self._store.update(JOB, job)
        except Refused as refusal:
            if refusal.code == 422 and "immutable" in str(refusal):
                return "the server keeps the template of a Job that runs"
            raise
        raise StepFailed("the server let the template of a running Job change")

    def _rejected(self) -> str:
        self._submit("bad", NOTES | {"planner/model": "no-such-model"})
        found = self._decided("bad", "Rejected")
        self._advance("bad", "deactivated")
        return f"rejected: {found['message'].splitlines()[0]}"

    def _tried_again(self) -> str:
        self._planner.is_away = True
        self._submit("late", NOTES | {"planner/pins": "tp=4,zero=1,mbs=1"})
        found = self._decided("late", "Retry")
        self._planner.is_away = False
        self._advance("late", "evicted")
        self._kueue.reserve("late", Reservation([CHECK], FLAVOR))
        self._decided("late", "Ready")
        self._advance("late", "admitted")
        return f"tried again after {found['requeueAfterSeconds']} s, then admitted"

    def _partial(self) -> str:
        self._kueue.submit("part", _template(NOTES), 4, least=1)
        self._kueue.reserve("part", Reservation([CHECK], FLAVOR, count=1))
        found = self._decided("part", "Ready")
        if "on 8 devices" not in found["message"]:
            raise StepFailed(f"not the plan of one pod: {found['message']}")
        return "one of four pods has the plan of one"

    def _passed(self) -> str:
        self._submit("quiet", {})
        found = self._decided("quiet", "Ready")
        return f"a job that asks nothing passes: {found['message']}"

    def _submit(self, name: str, notes: dict[str, str]) -> None:
        self._kueue.submit(name, _template(notes), 2)
        self._kueue.reserve(name, Reservation([CHECK], FLAVOR))

    def _decided(self, name: str, state: str) -> Data:
        self._wait(
            lambda: self._kueue.check(name, CHECK).get("state") not in (None, "Pending"),
            f"{name} is decided",
        )
        found = self._kueue.check(name, CHECK)
        if found["state"] != state:
            raise StepFailed(f"{name} is {found['state']}, not {state}: {found['message']}")
        return found

    def _advance(self, name: str, wanted: str) -> None:
        if (found := self._kueue.advance(name)) != wanted:
            raise StepFailed(f"{name} is {found}, not {wanted}")

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        if not self._store.wait(is_so, PATIENCE_S):
            raise StepFailed(f"waited {PATIENCE_S:g} s: {what}")


def _template(notes: dict[str, str]) -> Data:
    limits = {"nvidia.com/gpu": "8"}
    container = {"name": "c", "image": "none", "resources": {"limits": limits, "requests": limits}}
    return {
        "metadata": {"annotations": notes},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
