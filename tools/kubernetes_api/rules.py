"""What is refused of objects that their schemas would take, each rule with where it is from.

Rules of Workloads are those of Kueue's webhook (pkg/webhooks/workload_webhook.go) and of the
expressions in its definitions; of Jobs those of the API server (pkg/apis/batch/validation). Each
rule yields what is wrong; `old` is None for a new object.
"""

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tools.kubernetes_api.schemas import Kind, rules_of

Data = Mapping[str, Any]
_PART = r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)"
_DOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_KEY = re.compile(rf"({_DOMAIN}/)?{_PART}")
_LABEL = re.compile(rf"{_PART}?")
MOST_ANNOTATION_BYTES = 256 * 1024


def is_true(obj: Data, name: str) -> bool:
    """Tell whether a condition of an object is true."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(x["type"] == name and x["status"] == "True" for x in conditions)


# ---- expressions of the definitions


def _assignments_are_of_pod_sets(new: Data, old: Data | None, path: str) -> Iterator[str]:
    admission = (new.get("status") or {}).get("admission")
    if not is_true(new, "QuotaReserved") or not admission:
        return
    if len(admission.get("podSetAssignments") or ()) != len(new["spec"]["podSets"]):
        yield "podSetAssignments must have the same number of podSets as the spec"


def _queue_stays(new: Data, old: Data | None, path: str) -> Iterator[str]:
    if old is None or not is_true(old, "QuotaReserved") or not is_true(new, "QuotaReserved"):
        return
    if old["spec"].get("queueName") != new["spec"].get("queueName"):
        yield "spec.queueName: field is immutable while quota is reserved"


def _least_count(pod_set: Data, old: Data | None, path: str) -> Iterator[str]:
    if pod_set.get("minCount", 0) > pod_set["count"]:
        yield f"{path}: minCount should be positive and less or equal to count"


def _controller_stays(new: Data, old: Data | None, path: str) -> Iterator[str]:
    if old is not None and old["spec"]["controllerName"] != new["spec"]["controllerName"]:
        yield "spec.controllerName: field is immutable"


EXPRESSIONS: Mapping[str, Callable[[Data, Data | None, str], Iterator[str]]] = {
    "assignments_are_of_pod_sets": _assignments_are_of_pod_sets,
    "queue_stays": _queue_stays,
    "least_count": _least_count,
    "controller_stays": _controller_stays,
}


# ---- Kueue's webhook: KEP-993 (two-phase admission), KEP-420 (partial admission)


def _workload(new: Data, old: Data | None) -> Iterator[str]:
    status = new.get("status") or {}
    names = {x["name"] for x in new["spec"].get("podSets") or ()}
    if sum("minCount" in x for x in new["spec"].get("podSets") or ()) > 1:
        yield "spec.podSets: at most one podSet can use minCount"  # KEP-420
    if is_true(new, "QuotaReserved"):
        yield from _admission(status.get("admission"), names)
    for check in status.get("admissionChecks") or ():
        for i, update in enumerate(check.get("podSetUpdates") or ()):
            place = f"status.admissionChecks[{check['name']}].podSetUpdates[{i}]"
            if update["name"] not in names:
                yield f"{place}.name: Unsupported value: {update['name']}: {sorted(names)}"
            yield from _metadata(update, place)
    if old is not None:
        yield from _workload_update(new, old)


def _admission(admission: Data | None, names: set[str]) -> Iterator[str]:
    if admission is None:
        yield "status.admission: must be set while the QuotaReserved condition is true"
        return
    for assignment in admission.get("podSetAssignments") or ():
        if assignment["name"] not in names:
            yield f"status.admission.podSetAssignments: Not found: {assignment['name']}"
        for name, value in (assignment.get("resourceUsage") or {}).items():
            count = assignment.get("count") or 1
            if str(value).isdigit() and int(value) % count:
                yield f"status.admission: {name} {value} is not a multiple of {count}"


def _metadata(update: Data, place: str) -> Iterator[str]:
    """As ValidateAnnotations and ValidateLabels of the API server."""
    for section in ("labels", "annotations", "nodeSelector"):
        for key, value in (update.get(section) or {}).items():
            if not _KEY.fullmatch(key):
                yield f"{place}.{section}: {key!r} is no qualified name"
            if section != "annotations" and not _LABEL.fullmatch(value):
                yield f"{place}.{section}: {value!r} is no valid label value"
    annotations = update.get("annotations") or {}
    if sum(len(k) + len(v) for k, v in annotations.items()) > MOST_ANNOTATION_BYTES:
        yield f"{place}.annotations: Too long: {MOST_ANNOTATION_BYTES} bytes at most"
    for toleration in update.get("tolerations") or ():
        if toleration.get("key") and not _KEY.fullmatch(toleration["key"]):
            yield f"{place}.tolerations: {toleration['key']!r} is no qualified name"


def _workload_update(new: Data, old: Data) -> Iterator[str]:
    before, after = old.get("status") or {}, new.get("status") or {}
    if is_true(old, "QuotaReserved") and old["spec"].get("podSets") != new["spec"].get("podSets"):
        yield "spec.podSets: field is immutable"
    admissions = before.get("admission"), after.get("admission")
    if None not in admissions and _fixed(admissions[0]) != _fixed(admissions[1]):
        yield "status.admission: field is immutable"
    checks = {x["name"]: x for x in before.get("admissionChecks") or ()}
    for check in after.get("admissionChecks") or ():
        known = checks.get(check["name"])
        if known is None or not known["state"] == check["state"] == "Ready":
            continue
        if known.get("podSetUpdates") != check.get("podSetUpdates"):  # KEP-993
            yield f"status.admissionChecks[{check['name']}].podSetUpdates: field is immutable"


def _fixed(admission: Any) -> Any:
    """Return what may not change of an admission: not the topology (KEP-2724)."""
    kept = copy.deepcopy(admission)
    for assignment in kept.get("podSetAssignments") or ():
        assignment.pop("topologyAssignment", None)
    return kept


# ---- Jobs


def _job(new: Data, old: Data | None) -> Iterator[str]:
    """As KEP-2232 (suspend), KEP-2926 (scheduling directives) and KEP-3715 (elastic) say."""
    if old is None:
        return
    before, after = old["spec"], new["spec"]
    for name in ("selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex"):
        if before.get(name) != after.get(name):
            yield f"spec.{name}: field is immutable"
    if before.get("completions") != after.get("completions"):
        elastic = after.get("completionMode") == "Indexed"
        if not elastic or after.get("completions") != after.get("parallelism"):  # KEP-3715
            yield "spec.completions: field is immutable"
    suspended = bool(before.get("suspend"))
    never_started = "startTime" not in (old.get("status") or {})
    directives = suspended and never_started  # KEP-2926
    if _template(before, directives) != _template(after, directives):
        yield "spec.template: Invalid value: field is immutable"


def _template(spec: Data, without_directives: bool) -> str:
    """Return the part of a pod template that may not change, to be compared."""
    template = copy.deepcopy(spec.get("template") or {})
    if without_directives:
        meta, pod = template.setdefault("metadata", {}), template.setdefault("spec", {})
        for name in ("annotations", "labels"):
            meta.pop(name, None)
        for name in ("nodeSelector", "tolerations", "schedulingGates"):
            pod.pop(name, None)
        affinity = pod.get("affinity") or {}
        affinity.pop("nodeAffinity", None)
        if not affinity:
            pod.pop("affinity", None)
    return json.dumps(template, sort_keys=True)


def _config_map(new: Data, old: Data | None) -> Iterator[str]:
    size = 0
    for key, value in (new.get("data") or {}).items():
        if not re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", key):
            yield f"data: {key!r} is no valid key"
        if not isinstance(value, str):
            yield f"data.{key}: must be a string"
        size += len(str(value).encode())
    if size > 2**20:
        yield "data: Too long: must have at most 1048576 bytes"
    if old is not None and old.get("immutable") and old.get("data") != new.get("data"):
        yield "data: field is immutable when `immutable` is set"


OF_KINDS: Mapping[str, Callable[[Data, Data | None], Iterator[str]]] = {
    "workloads": _workload,
    "jobs": _job,
    "configmaps": _config_map,
}


def broken_rules(kind: Kind, new: Data, old: Data | None) -> Iterator[str]:
    """Yield what is wrong with a new object, or a changed one."""
    for name, value, path in rules_of(new, kind.schema):
        yield from EXPRESSIONS[name](value, old, path)
    if kind.plural in OF_KINDS:
        yield from OF_KINDS[kind.plural](new, old)
