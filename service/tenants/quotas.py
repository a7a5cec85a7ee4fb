"""How much of a quota is used, and the refusal of who has used it up."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from service.handlers.problems import Refusal, with_fix

QuotaName = Literal["running_jobs", "queued_jobs", "cpu_s", "stored_results", "stored_bytes"]
AGAIN_S = 5.0
"""When to come back where nobody knows when something frees: the end of a job may be it."""
LABELS: Mapping[str, str] = {
    "running_jobs": "jobs that are worked on",
    "queued_jobs": "jobs that wait",
    "cpu_s": "CPU seconds",
    "stored_results": "results that are kept",
    "stored_bytes": "bytes of results that are kept",
}
FIXES: Mapping[str, str] = {
    "running_jobs": "wait until one of them has ended, or cancel one",
    "queued_jobs": "come back when some of them are worked on, or cancel some",
    "cpu_s": "come back then, or ask whoever runs the service for more",
    "stored_results": "come back when some have expired, or ask whoever runs the service for more",
    "stored_bytes": "come back when some have expired, or ask whoever runs the service for more",
}
"""What to do where a quota is used up."""


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """A quota of a group, and what of it is used."""

    quota: QuotaName
    used: float
    limit: float | None
    """None where nothing bounds it."""
    frees_in_s: float | None = None
    """Time until something of it frees by itself; None where only the end of a job frees it, or
    nothing is used up."""

    @property
    def is_used_up(self) -> bool:
        """Whether nothing is left."""
        return self.limit is not None and self.used >= self.limit

    def to_json(self) -> dict[str, Any]:
        """Return it as answers have it."""
        return asdict(self)


def quota_exceeded(group: str, use: QuotaUse, window_s: float | None = None) -> Refusal:
    """Return the refusal of who has used up a quota; `window_s` is that of CPU seconds."""
    within = f" within {window_s:g} s" if window_s is not None else ""
    frees = f"; some frees in {use.frees_in_s:.0f} s" if use.frees_in_s is not None else ""
    problem = Refusal(
        429,
        "quota-exceeded",
        "your group has used up a quota",
        f"group {group} has {use.used:,.0f} {LABELS[use.quota]}{within}, and may have"
        f" {use.limit or 0:,.0f}{frees}",
        retry_after_s=AGAIN_S if use.frees_in_s is None else max(1.0, use.frees_in_s),
        more={"quota": {"group": group, **use.to_json(), "window_s": window_s}},
    )
    return with_fix(problem, FIXES[use.quota])
