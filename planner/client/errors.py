"""The errors that `planner.client` makes of refusals: documents after RFC 9457."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from planner.errors import MAX_PROBLEMS_SHOWN, InputProblem, PlannerError
from planner.option_names import REQUEST_FIELDS

_EXIT_CODES = {"bad-option": 2, "malformed": 2, "unknown-part": 2, "no-plan": 3}
"""Of the command line, by code; 1 for all others."""


class ServiceError(PlannerError):
    """A request that the service refused, or that did not reach it.

    `status` is HTTP's (0 where there was no answer), `code` the same for the same reason, `detail`
    what is wrong, `hint` what to change, `problems` all that is wrong, each with its place in the
    request or its document. `request_id` stands in the logs of the service. Messages name fields
    of the request; `in_options` gives the error with options of the command line in their place.
    """

    problems: tuple[InputProblem, ...] = ()
    request_id = ""
    retry_after_s: float | None = None
    _option_problems: tuple[InputProblem, ...] = ()
    """The problems with options of the command line in the place of fields."""

    def __init__(self, code: str, detail: str, hint: str = "", *, status: int = 0) -> None:
        super().__init__(detail, hint)
        self._code = code
        self.detail = detail
        self.status = status
        self.exit_code = _EXIT_CODES.get(code, 1)

    @property
    def code(self) -> str:
        """The code of the problem document."""
        return self._code

    def name_files(self, paths: Mapping[str, str]) -> None:
        """Let messages name files as the user did; `paths` by the names that were sent."""
        self.place_problems(lambda one: replace(one, file=paths.get(one.file, one.file)))

    def place_problems(self, placed: Callable[[InputProblem], InputProblem]) -> None:
        """Let problems stand where the user has what they are about."""
        self.problems, self._option_problems = (
            tuple(map(placed, problems)) for problems in (self.problems, self._option_problems)
        )

    def in_options(self) -> "ServiceError":
        """Return the error as the command line says it."""
        problems = self._option_problems
        fixes = [problem.hint for problem in problems if problem.hint]
        error = ServiceError(
            self.code,
            problems[0].message if problems else self.detail,
            fixes[0] if fixes else self.hint,
            status=self.status,
        )
        error.problems = error._option_problems = problems
        error.request_id, error.retry_after_s = self.request_id, self.retry_after_s
        return error

    def __str__(self) -> str:
        if self.problems:
            blocks = [str(problem) for problem in self.problems[:MAX_PROBLEMS_SHOWN]]
            more = len(self.problems) - len(blocks)
            return "\n".join([*blocks, *([f"... and {more} more"] if more else [])])
        where = f" (request {self.request_id})" if self.request_id and self.status >= 500 else ""
        return f"{super().__str__()}{where}"


def problem_error(data: Mapping[str, Any], status: int) -> ServiceError:
    """Return the error that a problem document (RFC 9457) is."""
    faults = [x for x in data.get("errors") or () if isinstance(x, Mapping)]
    problems = [_fault(x) for x in faults]
    after = data.get("retry_after_s")
    fixes = [problem.hint for problem in problems if problem.hint]
    error = ServiceError(
        str(data["code"]),
        str(data.get("detail") or data.get("title", "")),
        fixes[0] if fixes else _FIXES.get(str(data["code"]), ""),
        status=status,
    )
    error.problems = tuple(problems)
    error._option_problems = tuple(_fault(_in_options(x)) for x in faults)
    error.request_id = str(data.get("instance", ""))
    error.retry_after_s = float(after) if isinstance(after, int | float) else None
    return error


def _fault(data: Mapping[str, Any]) -> InputProblem:
    message, place = str(data.get("message", "")), str(data.get("field", ""))
    if message.startswith(f"{place}:") or "message" in (data.get("in_options") or ()):
        place = ""  # said already
    line, column = (int(data.get(name) or 0) for name in ("line", "column"))
    fix, source = str(data.get("fix", "")), str(data.get("source", ""))
    return InputProblem(message, fix, source, line, column, place)


def _in_options(fault: Mapping[str, Any]) -> dict[str, Any]:
    """Return a fault with options of the command line in the place of fields of the request."""
    value = fault.get("in_options")
    entries = {**fault, **(value if isinstance(value, Mapping) else {})}
    field, *rest = str(entries.get("field", "")).split(".")
    options = {name: flag for flag, name in REQUEST_FIELDS.items()}
    if field in options and not entries.get("source"):
        entries["field"] = " ".join([f"--{options[field]}", *rest])
    return entries


_FIXES = {
    "unauthenticated": "token=..., --token-file FILE or PLANNER_TOKEN",
    "not-allowed": "a token of another role, see docs/service.md",
}
