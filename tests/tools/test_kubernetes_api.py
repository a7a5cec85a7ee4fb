"""The test server of Kubernetes: it stores, tells and refuses as the API server and Kueue do."""

import copy
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.kubernetes_api.conformity import differences
from tools.kubernetes_api.kueue import (
    ADMISSION,
    CHECKS,
    JOB,
    TIME,
    WORKLOADS,
    Kueue,
    Reservation,
    UpdateConflict,
)
from tools.kubernetes_api.ownership import leaves
from tools.kubernetes_api.schemas import kinds
from tools.kubernetes_api.server import Access, ApiServer, api_server
from tools.kubernetes_api.store import Refused, Store

TEMPLATE: dict[str, Any] = {
    "metadata": {"annotations": {"a": "1"}},
    "spec": {
        "restartPolicy": "Never",
        "containers": [
            {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
        ],
    },
}
FLAVORS = kinds()["kueue.x-k8s.io", "resourceflavors"]
CONFIG_MAPS = kinds()["", "configmaps"]


@pytest.fixture
def kueue() -> Kueue:
    found = Kueue(Store())
    found.store.create(FLAVORS, {"metadata": {"name": "h100"}, "spec": {"nodeLabels": {"n": "h"}}})
    found.submit("train", TEMPLATE, 2)
    return found


def refused(code: int, said: str, work: Callable[[], Any]) -> None:
    with pytest.raises(Refused) as refusal:
        work()
    assert (refusal.value.code, said in str(refusal.value)) == (code, True), str(refusal.value)


def apply(kueue: Kueue, entry: dict[str, Any], manager: str = "me", **more: Any) -> dict[str, Any]:
    """Apply an entry of status.admissionChecks."""
    whole = {"name": "c", "message": "", "lastTransitionTime": TIME, **entry}
    meta = {"name": "train", "namespace": "team", **more.pop("meta", {})}
    body = {
        "apiVersion": WORKLOADS.api_version,
        "kind": "Workload",
        "metadata": meta,
        "status": {"admissionChecks": [whole]},
    }
    return kueue.store.apply(WORKLOADS, body, manager, "status", **{"force": True, **more})


# Storage


def test_versions_rise_and_what_changes_nothing_makes_none(kueue: Kueue) -> None:
    first = kueue.get("train")
    again = kueue.store.update(WORKLOADS, first)
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    kueue.store.merge(WORKLOADS, ("team", "train"), {"spec": {"priority": 3}})
    second = kueue.get("train")
    assert int(second["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])
    assert (first["metadata"]["generation"], second["metadata"]["generation"]) == (1, 2)
    refused(409, "has been modified", lambda: kueue.store.update(WORKLOADS, first))
    refused(404, "not found", lambda: kueue.get("other"))
    refused(409, "already exists", lambda: kueue.submit("train", TEMPLATE, 2))


def test_status_and_the_rest_are_written_apart(kueue: Kueue) -> None:
    one = kueue.get("train")
    one["status"] = {"requeueState": {"count": 4}}
    one["spec"]["priority"] = 7
    kueue.store.update(WORKLOADS, copy.deepcopy(one))
    assert "status" not in kueue.get("train")
    one = kueue.get("train")
    one["status"], one["spec"]["priority"] = {"requeueState": {"count": 4}}, 9
    kueue.store.update(WORKLOADS, one, "status")
    found = kueue.get("train")
    assert (found["status"], found["spec"]["priority"]) == ({"requeueState": {"count": 4}}, 7)
    assert found["metadata"]["generation"] == 2  # of the priority alone


def test_events_come_in_order_and_old_ones_are_forgotten(kueue: Kueue) -> None:
    start = kueue.store.version
    kueue.reserve("train", Reservation(["c"]))
    kueue.store.delete(WORKLOADS, "team", "train")
    events = kueue.store.events_after(WORKLOADS, start, 0)
    assert [name for name, _ in events] == ["MODIFIED", "DELETED"]
    assert kueue.store.events_after(JOB, start, 0) == []
    kueue.store.forget_events()
    refused(410, "too old", lambda: kueue.store.events_after(WORKLOADS, start, 0))
    assert kueue.store.events_after(WORKLOADS, kueue.store.version, 0) == []


# Schemas


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"state": "Fine"}, "Unsupported value: 'Fine'"),
        ({"state": "Ready", "lastTransitionTime": "today"}, "no time of RFC 3339"),
        ({"state": "Retry", "requeueAfterSeconds": -1}, "greater than or equal to 0"),
        ({"state": "Retry", "requeueAfterSeconds": "5"}, "must be of type integer"),
        ({"state": "Ready", "message": "x" * 32_769}, "too few or too many"),
        ({"name": "new", "message": "no state"}, ".state: Required value"),
        ({"state": "Ready", "podSetUpdates": [{"labels": {}}]}, ".name: Required value"),
        ({"state": "Ready", "podSetUpdates": [{"name": "main", "env": {}}]}, "unknown field"),
        (
            {"state": "Ready", "podSetUpdates": [{"name": "main", "labels": {"a": 1}}]},
            "must be of type string",
        ),
    ],
)
def test_what_no_schema_takes_is_refused(kueue: Kueue, entry: dict[str, Any], said: str) -> None:
    kueue.reserve("train", Reservation(["c"]))
    code = 400 if "unknown field" in said else 422
    refused(code, said, lambda: apply(kueue, entry))
    assert kueue.check("train", "c")["state"] == "Pending"


def test_defaults_are_filled_in(kueue: Kueue) -> None:
    kueue.submit_pod_sets("plain", [{"template": TEMPLATE}])
    (pod_set,) = kueue.get("plain")["spec"]["podSets"]
    assert (pod_set["name"], pod_set["count"]) == ("main", 1)


# Rules of Kueue


@pytest.mark.parametrize(
    ("update", "said"),
    [
        ({"name": "other"}, "Unsupported value: other"),
        ({"name": "main", "annotations": {"a b": "x"}}, "no qualified name"),
        ({"name": "main", "labels": {"a": "no label"}}, "no valid label value"),
        ({"name": "main", "nodeSelector": {"a": "x" * 64}}, "no valid label value"),
        ({"name": "main", "annotations": {"a": "x" * 300_000}}, "Too long"),
        ({"name": "main", "tolerations": [{"key": "/"}]}, "no qualified name"),
    ],
)
def test_updates_of_pods_are_looked_at(kueue: Kueue, update: dict[str, Any], said: str) -> None:
    kueue.reserve("train", Reservation(["c"]))
    refused(422, said, lambda: apply(kueue, {"state": "Ready", "podSetUpdates": [update]}))


def test_updates_stay_while_a_check_is_ready(kueue: Kueue) -> None:
    kueue.reserve("train", Reservation(["c"]))
    ready = {"state": "Ready", "podSetUpdates": [{"name": "main", "labels": {"a": "1"}}]}
    apply(kueue, ready)
    apply(kueue, {**ready, "message": "other words"})
    changed = {"state": "Ready", "podSetUpdates": [{"name": "main", "labels": {"a": "2"}}]}
    refused(422, "field is immutable", lambda: apply(kueue, changed))
    apply(kueue, {"state": "Pending"})
    apply(kueue, changed)


def test_pod_sets_and_admission_stay_while_quota_is_reserved(kueue: Kueue) -> None:
    kueue.reserve("train", Reservation(["c"]))
    one = kueue.get("train")
    one["spec"]["podSets"][0]["count"] = 3
    refused(422, "podSets: field is immutable", lambda: kueue.store.update(WORKLOADS, one))
    two = kueue.get("train")
    two["status"]["admission"]["clusterQueue"] = "other"
    work = lambda: kueue.store.update(WORKLOADS, two, "status")  # noqa: E731
    refused(422, "admission: field is immutable", work)
    three = kueue.get("train")
    three["status"].pop("admission")
    work = lambda: kueue.store.update(WORKLOADS, three, "status")  # noqa: E731
    refused(422, "must be set while the QuotaReserved", work)
    kueue.evict("train")
    assert "admission" not in kueue.get("train")["status"]


def test_the_controller_of_a_check_stays() -> None:
    store = Store()
    made = store.create(CHECKS, {"metadata": {"name": "c"}, "spec": {"controllerName": "a"}})
    made["spec"]["controllerName"] = "b"
    refused(422, "field is immutable", lambda: store.update(CHECKS, made))


# Rules of Jobs


def test_a_suspended_job_takes_scheduling_directives_alone(kueue: Kueue) -> None:
    def changed(change: Callable[[Any], Any]) -> dict[str, Any]:
        job = kueue.job("train")
        change(job["spec"])
        return kueue.store.update(JOB, job)

    changed(lambda spec: spec["template"]["metadata"]["annotations"].update(b="2"))
    changed(lambda spec: spec["template"]["spec"].update(nodeSelector={"n": "h"}))
    changed(lambda spec: spec["template"]["spec"].update(tolerations=[{"operator": "Exists"}]))
    container = "c", [{"name": "PLAN_TP", "value": "8"}]
    refused(
        422,
        "spec.template: Invalid value: field is immutable",
        lambda: changed(
            lambda spec: spec["template"]["spec"]["containers"][0].update(env=[*container])
        ),
    )
    refused(
        422,
        "completionMode",
        lambda: changed(lambda spec: spec.update(completionMode="NonIndexed")),
    )
    refused(422, "completions", lambda: changed(lambda spec: spec.update(completions=9)))
    changed(lambda spec: spec.update(completions=1, parallelism=1, suspend=False))
    refused(
        422,
        "spec.template",
        lambda: changed(lambda spec: spec["template"]["spec"].update(nodeSelector={})),
    )


# Server-side apply


def test_an_apply_owns_its_fields_and_gives_up_what_it_leaves_out(kueue: Kueue) -> None:
    kueue.reserve("train", Reservation(["c", "other"]))
    update = {"name": "main", "labels": {"a": "1"}}
    apply(kueue, {"state": "Ready", "podSetUpdates": [update]})
    owned = kueue.store.fields_of(WORKLOADS, "team", "train", "me")
    item = '.status.admissionChecks{"name": "c"}'
    assert owned == {item} | {
        f"{item}.{x}" for x in ("name", "state", "message", "lastTransitionTime", "podSetUpdates")
    }
    apply(kueue, {"state": "Retry", "requeueAfterSeconds": 60})
    found = kueue.check("train", "c")
    assert (found["state"], "podSetUpdates" in found) == ("Retry", False)
    assert kueue.check("train", "other")["state"] == "Pending"
    managers = {
        (x["manager"], x["operation"], x.get("subresource"))
        for x in kueue.get("train")["metadata"]["managedFields"]
    }
    assert {("me", "Apply", "status"), (ADMISSION, "Update", "status")} <= managers


def test_fields_of_others_are_taken_by_force_alone(kueue: Kueue) -> None:
    kueue.reserve("train", Reservation(["c"]))
    work = lambda: apply(kueue, {"state": "Ready"}, force=False)  # noqa: E731
    refused(409, f'"{ADMISSION}" owns .status.admissionChecks', work)
    apply(kueue, {"state": "Ready"})
    refused(409, '"me" owns', lambda: apply(kueue, {"state": "Retry"}, "you", force=False))
    apply(kueue, {"state": "Ready"}, "you", force=False)  # the same value is shared
    assert kueue.check("train", "c")["state"] == "Ready"


def test_an_apply_of_an_old_version_or_another_object_is_refused(kueue: Kueue) -> None:
    old = kueue.get("train")["metadata"]
    kueue.reserve("train", Reservation(["c"]))
    ready = {"state": "Ready"}
    meta = {"resourceVersion": old["resourceVersion"]}
    refused(409, "has been modified", lambda: apply(kueue, ready, meta=meta))
    refused(409, "Precondition failed", lambda: apply(kueue, ready, meta={"uid": "x"}))
    refused(404, "not found", lambda: apply(kueue, ready, meta={"name": "other"}))
    assert kueue.check("train", "c")["state"] == "Pending"


def test_atomic_lists_are_one_field(kueue: Kueue) -> None:
    schema = WORKLOADS.schema["properties"]["status"]
    value = {"admissionChecks": [{"name": "c", "podSetUpdates": [{"name": "main"}]}]}
    paths = {"".join(path) for path, _ in leaves(value, schema)}
    assert '.admissionChecks{"name": "c"}.podSetUpdates' in paths
    assert not any("podSetUpdates." in path for path in paths)


# Kueue's part


def test_kueue_starts_evicts_and_deactivates(kueue: Kueue) -> None:
    kueue.reserve("train", Reservation(["c"]))
    assert kueue.advance("train") == "waiting"
    apply(kueue, {"state": "Retry", "requeueAfterSeconds": 60})
    assert kueue.advance("train") == "evicted"
    found = kueue.check("train", "c")
    assert (found["state"], found["retryCount"]) == ("Pending", 1)
    kueue.reserve("train", Reservation(["c"]))
    update = {"name": "main", "annotations": {"b": "2"}, "nodeSelector": {"m": "x"}}
    apply(kueue, {"state": "Ready", "podSetUpdates": [update]})
    assert kueue.advance("train") == "admitted"
    job = kueue.job("train")["spec"]
    assert (job["suspend"], job["template"]["metadata"]["annotations"]) == (
        False,
        {"a": "1", "b": "2"},
    )
    assert job["template"]["spec"]["nodeSelector"] == {"n": "h", "m": "x"}
    kueue.submit("bad", TEMPLATE, 2)
    kueue.reserve("bad", Reservation(["c"]))
    apply(kueue, {"state": "Rejected"}, meta={"name": "bad"})
    assert kueue.advance("bad") == "deactivated"
    assert kueue.get("bad")["spec"]["active"] is False


def test_kueue_does_not_start_what_would_change_a_template(kueue: Kueue) -> None:
    kueue.reserve("train", Reservation(["c"]))
    update = {"name": "main", "annotations": {"a": "9"}}
    apply(kueue, {"state": "Ready", "podSetUpdates": [update]})
    with pytest.raises(UpdateConflict):
        kueue.advance("train")
    assert kueue.job("train")["spec"]["suspend"] is True


# HTTP


@pytest.fixture
def served() -> Iterator[ApiServer]:
    with api_server() as found:
        yield found


def ask(
    served: ApiServer, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, Any]:
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(served.url + path, content, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


MAPS = "/api/v1/namespaces/team/configmaps"
APPLY = {"Content-type": "application/apply-patch+yaml"}


def test_paths_verbs_and_pages(served: ApiServer) -> None:
    assert (
        ask(served, "GET", "/apis/kueue.x-k8s.io")[1]["preferredVersion"]["version"] == "v1beta2"
    )
    assert ask(served, "GET", "/apis/nothing.example")[0] == 404
    assert ask(served, "GET", "/apis/kueue.x-k8s.io/v1alpha1/workloads")[0] == 404
    for name in ("a", "b", "c"):
        status, made = ask(served, "POST", MAPS, {"metadata": {"name": name}, "data": {"k": name}})
        assert (status, made["metadata"]["namespace"]) == (201, "team")
    status, page = ask(served, "GET", "/api/v1/configmaps?limit=2")
    assert [x["data"]["k"] for x in page["items"]] == ["a", "b"]
    token = page["metadata"]["continue"]
    rest = ask(served, "GET", f"/api/v1/configmaps?limit=2&continue={token}")[1]
    assert [x["data"]["k"] for x in rest["items"]] == ["c"]
    assert rest["metadata"]["continue"] == ""
    assert ask(served, "DELETE", f"{MAPS}/a")[0] == 200
    assert ask(served, "GET", f"{MAPS}/a")[0] == 404
    bad = {"metadata": {"name": "d"}, "data": {"a/b": ""}}
    assert ask(served, "POST", MAPS, bad)[1]["reason"] == "Invalid"
    assert ask(served, "POST", MAPS, [])[0] == 400


def test_patches_by_kind(served: ApiServer) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a", "namespace": "team"},
        "data": {"k": "1", "l": "1"},
    }
    place = f"{MAPS}/a?fieldManager=me"
    assert ask(served, "PATCH", place, body, **APPLY)[0] == 200
    body["data"] = {"k": "2"}
    assert ask(served, "PATCH", place, body, **APPLY)[1]["data"] == {"k": "2"}
    merge = {"Content-type": "application/merge-patch+json"}
    assert ask(served, "PATCH", place, {"data": {"m": "3"}}, **merge)[1]["data"] == {
        "k": "2",
        "m": "3",
    }
    assert ask(served, "PATCH", f"{MAPS}/a", body, **APPLY)[0] == 422  # no manager
    assert ask(served, "PATCH", f"{MAPS}/b?fieldManager=me", body, **APPLY)[0] == 400
    assert ask(served, "PATCH", place, body, **{"Content-type": "text/plain"})[0] == 415
    other = {**body, "data": {"k": "9"}}
    assert ask(served, "PATCH", f"{MAPS}/a?fieldManager=you", other, **APPLY)[0] == 409


def test_a_watch_tells_of_changes_and_ends_with_a_bookmark(served: ApiServer) -> None:
    version = served.store.version
    path = f"/api/v1/configmaps?watch=true&resourceVersion={version}&timeoutSeconds=1"
    events: list[Any] = []

    def follow() -> None:
        with urllib.request.urlopen(served.url + path, timeout=10) as reply:
            events.extend(json.loads(line) for line in reply)

    thread = threading.Thread(target=follow)
    thread.start()
    served.store.create(CONFIG_MAPS, {"metadata": {"name": "a", "namespace": "team"}})
    thread.join(10)
    assert [x["type"] for x in events] == ["ADDED", "BOOKMARK"]
    newest = str(served.store.version)
    assert events[1]["object"]["metadata"]["resourceVersion"] == newest
    served.store.forget_events()
    with urllib.request.urlopen(served.url + path, timeout=10) as reply:
        (event,) = [json.loads(line) for line in reply]
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


def test_roles_are_held_to() -> None:
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "patch"]}]
    with api_server(Access("secret", rules)) as served:
        who = {"Authorization": "Bearer secret"}
        assert ask(served, "GET", f"{MAPS}/a")[0] == 401
        assert ask(served, "GET", f"{MAPS}/a", **who)[0] == 404
        assert ask(served, "GET", MAPS, **who)[0] == 403
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "a", "namespace": "team"},
        }
        place = f"{MAPS}/a?fieldManager=me"
        assert ask(served, "PATCH", place, body, **who, **APPLY)[0] == 403  # it would create
        path = "/apis/kueue.x-k8s.io/v1beta2/workloads"
        assert ask(served, "GET", path, **who)[0] == 403


# Conformity with Kueue's definitions


def test_our_schemas_are_held_against_definitions(tmp_path: Path) -> None:
    import yaml

    def definition(kind: Any, schema: Any) -> dict[str, Any]:
        version = {
            "name": "v1beta2",
            "schema": {"openAPIV3Schema": schema},
            "subresources": {"status": {}},
        }
        spec = {"group": kind.group, "names": {"plural": kind.plural}, "versions": [version]}
        return {"kind": "CustomResourceDefinition", "spec": spec}

    ours = [kind for kind in kinds().values() if kind.group == "kueue.x-k8s.io"]
    for kind in ours:
        text = yaml.safe_dump(definition(kind, copy.deepcopy(dict(kind.schema))))
        (tmp_path / f"{kind.plural}.yaml").write_text(text)
    assert differences(tmp_path) == []
    schema = copy.deepcopy(dict(CHECKS.schema))
    schema["properties"]["spec"]["properties"]["controllerName"]["maxLength"] = 9
    schema["properties"]["spec"]["required"].append("more")
    del schema["properties"]["status"]
    (tmp_path / "admissionchecks.yaml").write_text(yaml.safe_dump(definition(CHECKS, schema)))
    found = "\n".join(differences(tmp_path))
    assert "admissionchecks.spec.controllerName: maxLength" in found
    assert "admissionchecks.spec: required" in found
    assert "admissionchecks.status: theirs has no such field" in found
    (tmp_path / "workloads.yaml").unlink()
    assert "workloads: no definition" in "\n".join(differences(tmp_path))
