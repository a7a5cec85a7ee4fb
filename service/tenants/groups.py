"""Groups of callers: what each may use, and whose turn comes first.

A job has a priority; those of a higher one are always first. Within one priority the groups share
by weight: twice the weight is twice the CPU seconds, as long as both have work.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

from service.handlers.problems import Refusal, with_fix


class Priority(IntEnum):
    """Classes of work; a smaller number is served first."""

    URGENT = 0
    NORMAL = 1
    BACKGROUND = 2

    @property
    def label(self) -> str:
        """Name in files, headers and answers."""
        return self.name.lower()


PRIORITIES: Mapping[str, Priority] = {each.label: each for each in Priority}
OPEN_GROUP = "default"
"""Name of the one group of a service without a file of tenants."""
OTHER_GROUP = "other"
"""Label in metrics of groups that the file no longer names."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """Most that a group may use; None where nothing bounds it."""

    running_jobs: int | None = None
    """Jobs that are worked on at the same time; others of the group wait."""
    queued_jobs: int | None = None
    """Jobs that wait."""
    cpu_s: float | None = None
    """CPU seconds of calls and jobs within `window_s`."""
    window_s: float = 86_400.0
    stored_results: int | None = None
    """Results of jobs that are kept."""
    stored_bytes: int | None = None
    """Bytes of their answers, as they are sent."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of an OIDC token, and a value that it must have or hold."""

    claim: str
    value: str


@dataclass(frozen=True, slots=True)
class Members:
    """Who belongs to a group: any of these."""

    names: frozenset[str] = frozenset()
    """Names in the token file; of callers with other tokens, with the name of their provider
    before it: `corp:ann`."""
    claims: tuple[Claim, ...] = ()
    """Of OIDC tokens."""
    kubernetes: frozenset[str] = frozenset()
    """Groups of Kubernetes, as the review of a token tells them."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a token says that its bearer is."""

    name: str
    """Owner of the jobs; with the name of the provider before it where one was asked."""
    how: Literal["none", "token", "oidc", "kubernetes"]
    claims: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)
    """Of an OIDC token."""
    groups: frozenset[str] = frozenset()
    """Of Kubernetes."""
    expires_at: float | None = None
    """Time of day, seconds since 1970, after which the token opens nothing."""


@dataclass(frozen=True, slots=True)
class Group:
    """Callers who share a budget."""

    name: str
    weight: float = 1.0
    """Part of the workers among the groups of one priority, relative to theirs."""
    priority: Priority = Priority.NORMAL
    """Of what its members ask without saying one."""
    highest_priority: Priority = Priority.NORMAL
    """The most urgent one that they may ask for."""
    role: Literal["read", "solve", "admin"] = "solve"
    """Of members whose token says none: those of OIDC and Kubernetes."""
    quotas: Quotas = Quotas()
    members: Members = Members()

    def has(self, identity: Identity) -> bool:
        """Tell whether somebody belongs to it."""
        members = self.members
        if identity.name in members.names or members.kubernetes & identity.groups:
            return True
        return any(_holds(identity.claims.get(each.claim), each.value) for each in members.claims)

    def priority_of(self, wanted: str | None) -> Priority:
        """Return the priority that a request asks for by name; None for the group's own.

        Raises `Refusal`: 400 for a name that is none, 403 for one above the group's highest.
        """
        if wanted is None:
            return self.priority
        priority = PRIORITIES.get(wanted)
        if priority is None:
            names = ", ".join(PRIORITIES)
            raise Refusal(
                400,
                "bad-priority",
                "there is no such priority",
                f"Planner-Priority: {wanted[:40]!r} is none of {names}",
            )
        if priority < self.highest_priority:
            problem = Refusal(
                403,
                "priority-too-high",
                "your group may not ask for this priority",
                f"Planner-Priority: {priority.label} is above {self.highest_priority.label}, the"
                f" highest of group {self.name}",
            )
            allowed = [each.label for each in Priority if each >= self.highest_priority]
            raise with_fix(problem, f"ask for {' or '.join(allowed)}", "Planner-Priority")
        return priority


def _holds(found: object, wanted: str) -> bool:
    """Tell whether a claim has a value, or holds it among others."""
    if isinstance(found, list | tuple):
        return any(isinstance(each, str) and each == wanted for each in found)
    return isinstance(found, str) and found == wanted


class Tenants:
    """The groups as they are now; replaced as a whole when their file changes."""

    def __init__(self, groups: Iterable[Group] = (), default: str = "") -> None:
        """Know some groups; without any, everybody is in one that nothing bounds.

        `default` names the group of who belongs to none of them; empty: they are refused.
        """
        self._groups: dict[str, Group] = {}
        self._default = ""
        self.version = 0
        """How often they were replaced."""
        self._set(groups, default)

    def _set(self, groups: Iterable[Group], default: str) -> None:
        named = {each.name: each for each in groups}
        self._groups = named or {OPEN_GROUP: Group(OPEN_GROUP)}
        self._by_name = {name: each for each in named.values() for name in each.members.names}
        self._default = default if named else OPEN_GROUP

    def replace(self, groups: Iterable[Group], default: str = "") -> None:
        """Use other groups from now on."""
        self._set(groups, default)
        self.version += 1

    @property
    def groups(self) -> Mapping[str, Group]:
        """All groups by name, in the order of the file."""
        return self._groups

    def group(self, name: str) -> Group:
        """Return a group by name; one of that name that nothing bounds where it is gone.

        Its jobs are then finished as those of a group of weight 1.
        """
        return self._groups.get(name) or Group(name)

    def group_of(self, identity: Identity) -> Group:
        """Return the first group that somebody belongs to; `Refusal` 403 where there is none.

        One that names the caller comes before those that name a claim or a group of Kubernetes.
        """
        named = self._by_name.get(identity.name)
        if named is not None:
            return named
        if identity.claims or identity.groups:
            for group in self._groups.values():
                if group.has(identity):
                    return group
        if self._default in self._groups:
            return self._groups[self._default]
        raise Refusal(
            403,
            "no-group",
            "you belong to no group of this service",
            f"{identity.name[:100]} is a member of none: who runs the service can add you to one",
        )

    def label(self, name: str) -> str:
        """Return the label of a group in metrics: one of a fixed set."""
        return name if name in self._groups else OTHER_GROUP
