"""CPU seconds of calls that are answered at once: counted here, brought to the store in between.

Jobs charge their groups with their heartbeats (`service.jobs.queue`). Calls are many and short, so
each process adds theirs up for some seconds; what a quota says of a group is as old.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from service.jobs.queue import Jobs
from service.tenants.groups import Group
from service.tenants.quotas import QuotaUse, quota_exceeded


class Spending:
    """What groups have spent by calls of this process, and what they have left."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._unstored_s: Counter[str] = Counter()
        self._uses: Mapping[str, QuotaUse] = {}
        self.total_s: Counter[str] = Counter()
        """By group, since this process started; of its jobs too."""

    def add(self, group: str, cpu_s: float) -> None:
        """Count CPU seconds of a call."""
        self._unstored_s[group] += cpu_s  # type: ignore[assignment]  # a sum of seconds
        self.note(group, cpu_s)

    def note(self, group: str, cpu_s: float) -> None:
        """Count CPU seconds of a job, which charges its group itself."""
        self.total_s[group] += cpu_s  # type: ignore[assignment]

    def check(self, group: Group) -> None:
        """Raise `Refusal` 429 for a group whose CPU seconds are used up."""
        limit_s = group.quotas.cpu_s
        if limit_s is None:
            return
        stored = self._uses.get(group.name, QuotaUse("cpu_s", 0.0, limit_s))
        used_s = stored.used + self._unstored_s[group.name]
        if used_s >= limit_s:
            use = replace(stored, used=used_s, limit=limit_s)
            raise quota_exceeded(group.name, use, group.quotas.window_s)

    async def store(self, in_store: Callable[..., Awaitable[Any]]) -> None:
        """Bring what was counted to the store, and read what groups have left; `Refusal`."""
        counted = dict(self._unstored_s)
        uses: Mapping[str, QuotaUse] = await in_store(self._jobs.spend, counted)
        self._unstored_s.subtract(counted)
        for name in counted:
            if abs(self._unstored_s[name]) < 1e-9:
                del self._unstored_s[name]
        self._uses = uses
