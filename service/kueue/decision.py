"""What the controller says of a check: Ready, Retry or Rejected, and why."""

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from threading import Lock
from typing import Any, Literal

from service.kueue.planners import Planner, PlannerRefusal, PlannerUnavailable
from service.kueue.question import Question
from service.kueue.workload import PREFIX, Grant

Data = dict[str, Any]
State = Literal["Ready", "Retry", "Rejected"]
MOST_MESSAGE = 32_000
"""Characters of a message; Kueue's schema takes 32768."""
MOST_HELP = 3
MOST_KEPT = 256
"""Answers that are kept: a conflict or a second admission of the same size asks nobody."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a check becomes."""

    state: State
    message: str
    answer: Data | None = None
    """The planner's, where there is a plan."""
    files: Mapping[str, str] = field(default_factory=dict)
    """What runs the plan, by name, where the Workload named a framework and a ConfigMap."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", self.message[:MOST_MESSAGE])


class Answers:
    """Asks a planner, and keeps what it answered."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._kept: OrderedDict[str, Data] = OrderedDict()
        self._lock = Lock()

    def ask(self, call: str, request: Mapping[str, Any]) -> Data:
        """Return the answer to a question, from before where it is whole."""
        key = json.dumps([call, request], sort_keys=True)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        answer = self._planner.ask(call, request)
        if answer.get("complete", True):
            with self._lock:
                self._kept[key] = answer
                while len(self._kept) > MOST_KEPT:
                    self._kept.popitem(last=False)
        return answer


def decide(question: Question, grant: Grant, answers: Answers) -> Decision:
    """Return what the planner makes of a question.

    Rejected where the question is wrong, or nothing fits on all pods that the Workload wants;
    Retry where the planner did not answer, or nothing fits on what partial admission gave.
    """
    try:
        answer = answers.ask("solve", question.request)
        files = _files(question, answer, answers) if answer["plans"] else {}
    except PlannerRefusal as error:
        return Decision("Rejected", f"the planner refused: {error}")
    except PlannerUnavailable as error:
        return Decision("Retry", f"the planner did not answer: {error}")
    if not answer["plans"]:
        return _without_plan(grant, answer)
    plan = answer["plans"][0]
    devices = plan["layout"]["n_devices"]
    unused = grant.n_pods * grant.devices_per_pod - devices
    idle = f", {unused} of the devices idle" if unused else ""
    best = "" if answer["complete"] else "; the best found in time"
    return Decision(
        "Ready",
        f"plan {plan['plan_id']}: {plan['step_time_s']:.3f} s a step predicted on {devices}"
        f" devices{idle}{best}",
        answer,
        files,
    )


def _without_plan(grant: Grant, answer: Data) -> Decision:
    place = f"{grant.n_pods * grant.devices_per_pod} devices ({grant.n_pods} pods)"
    if not answer["complete"]:
        return Decision("Retry", f"no plan for {place} was found in time")
    changes = [str(x["change"]) for x in answer["relaxations"][:MOST_HELP]]
    help_text = f"; would help: {'; '.join(changes)}" if changes else ""
    message = f"nothing fits on {place}{help_text}"
    if grant.n_pods < grant.n_wanted:
        return Decision("Retry", f"{message}; the job asks for up to {grant.n_wanted} pods")
    return Decision("Rejected", message)


def _files(question: Question, answer: Data, answers: Answers) -> dict[str, str]:
    """Return the framework's files by the last part of their names, as ConfigMaps have them."""
    if not (question.framework and question.config_map):
        return {}
    framework = question.framework.partition("@")[0]
    emitted = answers.ask("emit", {"result": answer, "plan": 1, "for": [framework]})
    return {PurePosixPath(name).name: content for name, content in emitted["files"].items()}


def nothing_asked() -> Decision:
    """Return the decision on a Workload that asks nothing: other jobs of a queue pass."""
    return Decision("Ready", f"no annotation {PREFIX}model: nothing to plan")
