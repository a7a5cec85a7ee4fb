"""The file of `planner serve --tenants`: groups of callers, and who else vouches for callers.

    # tenants.yaml
    groups:
      schedulers:
        weight: 4
        priority: urgent
        members: {names: [slurm], kubernetes: ["system:serviceaccounts:kueue-system"]}
      capacity:
        priority: background
        highest_priority: normal
        members: {claims: [{claim: groups, value: capacity-team}]}
        quotas: {running_jobs: 4, cpu_s: 360000, window_s: 86400, stored_results: 2000}
    default_group: capacity
    identity:
      oidc: [{name: corp, issuer: "https://idp.example", audience: planner}]

docs/tenants.md says what the fields mean.
"""

import re
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from planner.errors import BadValue, SpecError
from planner.errors import InputProblem as Wrong
from planner.specs.yaml.document import Document, parse_yaml, read_text
from planner.specs.yaml.faults import validated
from service.tenants.groups import OTHER_GROUP, PRIORITIES, Claim, Group, Members, Quotas
from service.tenants.providers import KubernetesProvider, OidcProvider, Providers

MOST_GROUPS = 100
"""Groups of a file: metrics have a line for each."""
MOST_MEMBERS = 10_000
LONGEST_WINDOW_S = 31 * 86_400.0
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise BadValue(f"{text[:70]!r} is no name", "up to 63 of A-Z a-z 0-9 . _ -")
    return text


def _address(text: str) -> str:
    """Return an address of HTTP; over plain HTTP only one of this machine."""
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        host, parts = "", urlsplit("")
    fix = "https://HOST/PATH; http:// for this machine alone"
    if not host or parts.query or parts.fragment or parts.username is not None:
        raise BadValue(f"{text[:100]!r} is no address", fix)
    if parts.scheme != "https" and not (parts.scheme == "http" and host in LOOPBACK):
        raise BadValue(f"{text[:100]!r}: tokens and keys would go over it in the clear", fix)
    return text


Name = Annotated[str, AfterValidator(_name)]
Address = Annotated[str, AfterValidator(_address)]
Text = Annotated[str, Field(min_length=1, max_length=500)]
Texts = Annotated[list[Text], Field(max_length=MOST_MEMBERS)]
Whole = Annotated[int, Field(gt=0, le=10**15, strict=True)]
PriorityName = Literal["urgent", "normal", "background"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ClaimSection(_Section):
    """A claim of an OIDC token, and the value that it must have or hold."""

    claim: Text
    value: Text


class MembersSection(_Section):
    """Who belongs to a group."""

    names: Texts = []
    claims: Annotated[list[ClaimSection], Field(max_length=MOST_MEMBERS)] = []
    kubernetes: Texts = []


class QuotasSection(_Section):
    """Most that a group may use."""

    running_jobs: Whole | None = None
    queued_jobs: Whole | None = None
    cpu_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    window_s: Annotated[float, Field(ge=60.0, le=LONGEST_WINDOW_S)] = 86_400.0
    stored_results: Whole | None = None
    stored_bytes: Whole | None = None


class GroupSection(_Section):
    """A group."""

    weight: Annotated[float, Field(ge=0.001, le=1_000.0)] = 1.0
    priority: PriorityName = "normal"
    highest_priority: PriorityName | None = None
    role: Literal["read", "solve", "admin"] = "solve"
    members: MembersSection = MembersSection()
    quotas: QuotasSection = QuotasSection()


class OidcSection(_Section):
    """An issuer of OIDC tokens."""

    name: Name
    issuer: Address
    audience: Text
    jwks_url: Address | None = None
    ca: Path | None = None
    name_claim: Text = "sub"


class KubernetesSection(_Section):
    """An API server that reviews tokens."""

    api_server: Address
    audience: Text
    ca: Path | None = None
    token_file: Path | None = None
    cache_s: Annotated[float, Field(ge=1.0, le=600.0)] = 60.0


class IdentitySection(_Section):
    """Who else vouches for callers."""

    oidc: Annotated[list[OidcSection], Field(max_length=20)] = []
    kubernetes: KubernetesSection | None = None


class TenantsFile(_Section):
    """The whole file."""

    groups: Annotated[dict[str, GroupSection], Field(min_length=1, max_length=MOST_GROUPS)]
    default_group: str | None = None
    identity: IdentitySection = IdentitySection()

    def to_groups(self) -> tuple[Group, ...]:
        """Return the groups, in the order of the file."""
        return tuple(_group(name, section) for name, section in self.groups.items())

    def to_providers(self) -> Providers:
        """Return who else vouches for callers."""
        oidc = tuple(
            OidcProvider(
                each.name,
                each.issuer,
                each.audience,
                each.jwks_url or "",
                each.ca,
                each.name_claim,
            )
            for each in self.identity.oidc
        )
        cluster = self.identity.kubernetes
        if cluster is None:
            return Providers(oidc)
        return Providers(
            oidc,
            KubernetesProvider(
                cluster.api_server,
                cluster.audience,
                ca=cluster.ca,
                token_file=cluster.token_file,
                cache_s=cluster.cache_s,
            ),
        )


def _group(name: str, section: GroupSection) -> Group:
    priority = PRIORITIES[section.priority]
    members, quotas = section.members, section.quotas
    return Group(
        name,
        section.weight,
        priority,
        PRIORITIES[section.highest_priority] if section.highest_priority else priority,
        section.role,
        Quotas(**quotas.model_dump()),
        Members(
            frozenset(members.names),
            tuple(Claim(each.claim, each.value) for each in members.claims),
            frozenset(members.kubernetes),
        ),
    )


def read_tenants(path: Path) -> TenantsFile:
    """Return what a file says; `SpecError` with the line of what is wrong."""
    text = read_text(str(path))
    if not text.strip():
        raise SpecError(
            Wrong("the file is empty", "write `groups:`, see docs/tenants.md", str(path))
        )
    return tenants_of(parse_yaml(text, str(path)))


def tenants_of(document: Document) -> TenantsFile:
    """Return what a document says; `SpecError` for what it may not."""
    found = validated(TenantsFile, document)
    faults: list[Wrong] = []
    default = found.default_group
    if default is not None and default not in found.groups:
        names = ", ".join(list(found.groups)[:10])
        message = f"there is no group {default[:70]!r}"
        faults.append(document.problem(("default_group",), message, f"one of {names}"))
    seen: dict[str, str] = {}
    for name, section in found.groups.items():
        if name == OTHER_GROUP or not _NAME.fullmatch(name):
            message = f"a group cannot be called {name[:70]!r}"
            fix = f"up to 63 of A-Z a-z 0-9 . _ -, but not {OTHER_GROUP}, which metrics use"
            faults.append(document.problem(("groups", name), message, fix, at_key=True))
        highest = section.highest_priority
        if highest is not None and PRIORITIES[section.priority] < PRIORITIES[highest]:
            message = f"the priority {section.priority} is above the highest one, {highest}"
            fix = "a highest_priority that is as urgent at least"
            faults.append(document.problem(("groups", name, "priority"), message, fix))
        for i, member in enumerate(section.members.names):
            if member in seen:
                where = ("groups", name, "members", "names", i)
                message = f"{member[:100]!r} is a member of {seen[member]} already"
                faults.append(document.problem(where, message, "one group for each name"))
            seen.setdefault(member, name)
    names_seen, issuers = {"kubernetes"}, set()
    for i, each in enumerate(found.identity.oidc):
        place = ("identity", "oidc", i)
        if each.name in names_seen:
            message = f"another provider is called {each.name}"
            faults.append(document.problem((*place, "name"), message, "a name of its own"))
        if each.issuer in issuers:
            message = "the issuer stands in the file already"
            faults.append(document.problem((*place, "issuer"), message, "each issuer once"))
        names_seen.add(each.name)
        issuers.add(each.issuer)
    if faults:
        raise SpecError(faults)
    return found
