"""Who asks, and what a role may do."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

from service.handlers.problems import Refusal
from service.tenants.groups import OPEN_GROUP, Group, Priority

ROLES = ("read", "solve", "admin")
"""Each may do what those before it may."""


Role = Literal["read", "solve", "admin"]


async def _always() -> bool:
    return True


_OPEN = Group(OPEN_GROUP)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    name: str
    """Owner of the jobs; one name for all where no tokens are asked for."""
    role: Role = "admin"
    address: str = ""
    is_known: Callable[[], Awaitable[bool]] = field(default=_always, compare=False, repr=False)
    """Tells whether the token still opens what it did."""
    group: Group = _OPEN
    """Whose budget it uses."""
    priority: Priority = Priority.NORMAL
    """Of this request."""
    how: str = "none"
    """What has told who it is: `token`, `oidc`, `kubernetes`; `none` where nothing was asked."""

    def may(self, role: str) -> bool:
        """Tell whether the caller may do what a role may."""
        return ROLES.index(self.role) >= ROLES.index(role)

    @property
    def sees(self) -> str | None:
        """Owner whose jobs the caller sees; None for all."""
        return None if self.role == "admin" else self.name


def caller_fields(caller: Caller | None) -> dict[str, str]:
    """Return what the audit log says of a caller; nothing of one who is not known."""
    if caller is None:
        return {}
    return {
        "caller": caller.name,
        "group": caller.group.name,
        "role": caller.role,
        "priority": caller.priority.label,
        "how": caller.how,
    }


class CallerLeft(Exception):
    """Nobody waits for the answer any more."""


async def check_known(caller: Caller) -> None:
    """Raise `Refusal` 401 for a caller whose token was removed or has expired meanwhile."""
    if not await caller.is_known():
        detail = "the token was removed, or has expired, while the stream was open"
        raise Refusal(401, "unauthenticated", "a token is needed", detail)


def not_allowed(caller: Caller, role: str) -> Refusal:
    """Return the problem of a caller whose role does not reach."""
    return Refusal(
        403,
        "not-allowed",
        "your role does not allow this",
        f"it needs the role {role}, and {caller.name} has {caller.role}",
    )
