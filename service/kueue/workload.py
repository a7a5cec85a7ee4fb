"""What a Workload of Kueue says: its state, what it was granted, and where its pods will stand."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from planner.frameworks.launchers.kubernetes import DOMAIN_LABEL, RESOURCES

Data = Mapping[str, Any]
PREFIX = "planner/"
"""Of the annotations that a pod template asks with, and of those that it is answered with."""
DEVICES = tuple(RESOURCES.values())
"""Extended resources that count as devices."""
_SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "Ki": 2**10, "Mi": 2**20}


class NotPlannable(Exception):
    """A Workload about which the planner cannot be asked: what is wrong and what to change."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What Kueue reserved for the pod sets of a Workload that train."""

    pod_sets: tuple[str, ...]
    """Names of the pod sets whose template asks the planner."""
    n_pods: int
    n_wanted: int
    """Pods that the Workload asks for; with partial admission more than it was granted."""
    devices_per_pod: int
    resource: str
    """Extended resource of the devices."""
    notes: Mapping[str, str]
    """Annotations of the templates that begin with `PREFIX`, without it."""
    flavors: tuple[str, ...]
    """ResourceFlavors of the devices."""
    pods_per_domain: int
    """Largest number of pods of which every scale-up domain has a multiple; 0: not assigned."""


def condition(workload: Data, name: str) -> bool:
    """Tell whether a condition of a Workload is true."""
    conditions = (workload.get("status") or {}).get("conditions") or ()
    return any(x["type"] == name and x["status"] == "True" for x in conditions)


def is_waiting(workload: Data) -> bool:
    """Tell whether checks are to be looked at: quota is reserved, and it has not ended."""
    ended = any(condition(workload, name) for name in ("Finished", "Evicted"))
    deleted = "deletionTimestamp" in workload["metadata"]
    active = (workload.get("spec") or {}).get("active", True)
    admission = (workload.get("status") or {}).get("admission")
    return bool(
        condition(workload, "QuotaReserved") and admission and active and not ended and not deleted
    )


def check_states(workload: Data) -> list[Data]:
    """Return the states of all checks of a Workload."""
    return list((workload.get("status") or {}).get("admissionChecks") or ())


def pod_set_templates(workload: Data) -> dict[str, Data]:
    """Return the pod templates of a Workload by the name of their pod set."""
    return {x["name"]: x.get("template") or {} for x in workload["spec"].get("podSets") or ()}


def template_notes(template: Data) -> dict[str, str]:
    """Return the annotations of a template that ask the planner, without their prefix."""
    notes = (template.get("metadata") or {}).get("annotations") or {}
    return {k.removeprefix(PREFIX): str(v) for k, v in notes.items() if k.startswith(PREFIX)}


def grant_of(workload: Data) -> Grant | None:
    """Return what was granted to the pod sets that ask the planner; None where none asks.

    Raises `NotPlannable` where they contradict one another or have no devices.
    """
    templates = pod_set_templates(workload)
    notes = {name: template_notes(template) for name, template in templates.items()}
    asking = {name: found for name, found in notes.items() if found}
    if not asking:
        return None
    first, *others = asking
    for name in others:
        if asking[name] != asking[first]:
            raise NotPlannable(
                f"pod sets {first} and {name} have different annotations {PREFIX}...;"
                " give both the same, or one of them none"
            )
    wanted = {x["name"]: int(x.get("count", 1)) for x in workload["spec"]["podSets"]}
    assignments = {
        x["name"]: x for x in workload["status"]["admission"].get("podSetAssignments") or ()
    }
    missing = next((name for name in asking if name not in assignments), None)
    if missing is not None:
        raise NotPlannable(f"pod set {missing} has no assignment in status.admission")
    counts = {name: int(assignments[name].get("count", wanted[name])) for name in asking}
    counts = {name: count for name, count in counts.items() if count}
    if not counts:
        raise NotPlannable(f"pod sets {', '.join(asking)} have no pods")
    resource = _resource(templates, assignments, counts)
    per_pod = {
        name: _devices_per_pod(templates[name], assignments[name], resource, count)
        for name, count in counts.items()
    }
    if len({*per_pod.values()}) > 1:
        shown = ", ".join(f"{name} {n}" for name, n in per_pod.items())
        raise NotPlannable(
            f"pods have different numbers of {resource}: {shown}; give all the same"
        )
    flavors = ((assignments[x].get("flavors") or {}).get(resource) for x in counts)
    return Grant(
        pod_sets=tuple(asking),
        n_pods=sum(counts.values()),
        n_wanted=sum(wanted[name] for name in asking),
        devices_per_pod=next(iter(per_pod.values())),
        resource=resource,
        notes=asking[first],
        flavors=tuple(dict.fromkeys(str(x) for x in flavors if x)),
        pods_per_domain=_pods_per_domain([assignments[name] for name in counts]),
    )


def _resource(templates: Mapping[str, Data], assignments: Mapping[str, Data], names: Data) -> str:
    """Return the resource of the devices: the one that the pod sets have."""
    for resource in DEVICES:
        for name in names:
            usage = assignments[name].get("resourceUsage") or {}
            if resource in usage or _limit(templates[name], resource):
                return resource
    raise NotPlannable(
        f"no pod has a limit of {' or '.join(DEVICES)}; the planner counts devices by it"
    )


def _devices_per_pod(template: Data, assignment: Data, resource: str, count: int) -> int:
    usage = (assignment.get("resourceUsage") or {}).get(resource)
    total = quantity(usage) if usage is not None else _limit(template, resource) * count
    if total % count or not total:
        raise NotPlannable(f"{total} {resource} are no whole number for each of {count} pods")
    return total // count


def _limit(template: Data, resource: str) -> int:
    """Return the devices of a pod by the limits of its containers."""
    containers = (template.get("spec") or {}).get("containers") or ()
    limits = ((x.get("resources") or {}).get("limits") or {} for x in containers)
    return sum(quantity(x[resource]) for x in limits if resource in x)


def quantity(value: Any) -> int:
    """Return a whole quantity of Kubernetes: 64, "64", "1k"."""
    match = re.fullmatch(r"(\d+)(|k|M|Ki|Mi)", str(value))
    if match is None:
        raise NotPlannable(f"{value} is no whole number of devices")
    return int(match[1]) * _SUFFIXES[match[2]]


def _pods_per_domain(assignments: Sequence[Data]) -> int:
    """Return the greatest common divisor of the pods of all scale-up domains; 0: not known."""
    pods: Counter[str] = Counter()
    for assignment in assignments:
        topology = assignment.get("topologyAssignment")
        if not topology or DOMAIN_LABEL not in topology["levels"]:
            return 0
        for name, count in domain_pods(topology, DOMAIN_LABEL):
            pods[name] += count
    return gcd(*pods.values())


def domain_pods(topology: Data, label: str) -> Iterator[tuple[str, int]]:
    """Yield values of a level of a topology assignment with their pods, in either API version.

    v1beta2 has slices, whose values and counts are one for all or one a domain; v1beta1 has a
    list of domains.
    """
    level = topology["levels"].index(label)
    for domain in topology.get("domains") or ():
        yield str(domain["values"][level]), int(domain["count"])
    for part in topology.get("slices") or ():
        values, counts = part["valuesPerLevel"][level], part["podCounts"]
        for i in range(part["domainCount"]):
            count = counts["individual"][i] if "individual" in counts else counts["universal"]
            yield _value(values, i), int(count)


def _value(values: Data, i: int) -> str:
    if "universal" in values:
        return str(values["universal"])
    one = values["individual"]
    return f"{one.get('prefix', '')}{one['roots'][i]}{one.get('suffix', '')}"
