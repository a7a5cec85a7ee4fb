"""Who answers the controller's questions: this process, or a planning service over REST."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

Data = dict[str, Any]
_PASSING = (0, 401, 403, 408, 409, 429)
"""Statuses of a service that say nothing against the question; so do those from 500 on."""


class PlannerRefusal(Exception):
    """A question that is wrong: what, and what to change."""


class PlannerUnavailable(Exception):
    """A question that was not answered, and may be later."""


class PlannerStopped(Exception):
    """A question that nobody waits for any more: this process ends."""


class Planner(Protocol):
    """Answers the calls of the service."""

    def ask(self, call: str, request: Mapping[str, Any]) -> Data:
        """Return the answer; raises `PlannerRefusal` or `PlannerUnavailable`."""


class LocalPlanner:
    """Computes answers in this process."""

    def __init__(self, time_limit_s: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Bound a search by `time_limit_s`; it also ends once `stop` says so."""
        from service.handlers.running_call import RunningCall

        self._running = RunningCall(time_limit_s=time_limit_s, stop=stop)
        self._stop = stop

    def ask(self, call: str, request: Mapping[str, Any]) -> Data:
        """Return the answer of a handler; `PlannerStopped` where it was stopped."""
        from service.handlers import calls
        from service.handlers.problems import Refusal

        try:
            answer = calls.call(call, request, self._running)
        except Refusal as refusal:
            fixes = [fault.fix for fault in refusal.errors if fault.fix]
            message = _with_fix(str(refusal), fixes[0] if fixes else "")
            kind = PlannerUnavailable if refusal.status >= 500 else PlannerRefusal
            raise kind(message) from None
        if self._stop():  # a search that was ended has less than it would have found
            raise PlannerStopped
        return answer


class RemotePlanner:
    """Asks a planning service, which `PLANNER_TOKEN` lets in."""

    def __init__(self, url: str, token: str, authority: str, time_limit_s: float) -> None:
        """Prepare; `authority` is the file of its certificate's authority, empty for the usual."""
        from planner.client import Client

        # One repetition: Kueue comes again with those that are not answered.
        self._client = Client(url, token=token, ca=authority, retries=1)
        self._limit_s = time_limit_s

    def ask(self, call: str, request: Mapping[str, Any]) -> Data:
        """Return the answer of the service."""
        from planner.client import ServiceError

        try:
            wait_s = self._limit_s if call == "solve" else None
            answer: Data = self._client.ask(call, request, wait_s=wait_s).json()
        except ServiceError as error:
            message = _with_fix(str(error), error.hint)
            if error.status in _PASSING or error.status >= 500:
                raise PlannerUnavailable(f"{self._client.url}: {message}") from None
            raise PlannerRefusal(message) from None
        return answer

    def close(self) -> None:
        """Close the connections to the service."""
        self._client.close()


def _with_fix(message: str, fix: str) -> str:
    return f"{message}; {fix}" if fix and fix not in message else message
