"""Workloads are admitted, rejected and tried again, against a server with Kueue's rules."""

import json
from collections.abc import Callable
from typing import Any

import pytest

import planner as library
from planner.specs.search.axis_values import layout_to_json
from service.kueue.api import ApiError
from service.kueue.reconciler import MOST_ATTEMPTS, Reconciler
from tests.service.kueue.kueue_cluster import (
    CHECK,
    CONFIG_MAPS,
    MANAGER,
    NOTES,
    OURS,
    OncePlanner,
    template,
)
from tools.kubernetes_api.kueue import CHECKS, FLAVORS, WORKLOADS, Kueue, Reservation
from tools.kubernetes_api.server import ApiServer


def decided(
    kueue: Kueue,
    reconciler: Reconciler,
    notes: dict[str, str],
    n_pods: int = 2,
    reservation: Reservation = OURS,
    **more: Any,
) -> dict[str, Any]:
    """Submit a job, reserve quota, and return the state of our check once it was looked at."""
    least = more.pop("least", 0)
    kueue.submit("train", template(notes, **more), n_pods, least)
    kueue.reserve("train", reservation)
    reconciler.reconcile("team", "train")
    return kueue.check("train", CHECK)


# Admitted


def test_a_job_starts_with_the_layout_of_the_best_plan(
    kueue: Kueue, reconciler: Reconciler
) -> None:
    found = decided(kueue, reconciler, NOTES)
    best = library.solve(
        "llama3-8b",
        "h100-x8",
        pins={"tp": 2, "zero": 1, "mbs": 1},
        top=1,
        overrides=(("pools.0.nodes", 2),),
    ).best
    assert (found["state"], found["lastTransitionTime"]) == ("Ready", "2026-03-01T12:00:00Z")
    expected = f"plan {best.plan_id}: {best.step_time_s:.3f} s a step predicted on 16 devices"
    assert found["message"] == expected
    assert kueue.advance("train") == "admitted"
    job = kueue.job("train")["spec"]
    assert (job["suspend"], job["parallelism"]) == (False, 2)
    meta, pod = job["template"]["metadata"], job["template"]["spec"]
    assert meta["labels"] == {"planner/plan": best.plan_id}
    assert pod["nodeSelector"] == {
        "pool": "h100",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    }
    layout = layout_to_json(best.layout)
    assert NOTES.items() <= meta["annotations"].items()
    told = {k: v for k, v in meta["annotations"].items() if k.startswith("planner/plan-")}
    assert {f"planner/plan-{axis.replace('_', '-')}" for axis in layout} <= {*told}
    assert (told["planner/plan-tp"], told["planner/plan-sp"]) == ("2", "true")
    assert told["planner/plan-stage-layers"] == ",".join(map(str, layout["stage_layers"]))
    assert (told["planner/plan-id"], told["planner/plan-precision"]) == (best.plan_id, "bf16")


def test_nothing_but_its_check_is_written(kueue: Kueue, reconciler: Reconciler) -> None:
    reservation = Reservation([CHECK, "other"])
    decided(kueue, reconciler, NOTES, reservation=reservation)
    owned = kueue.store.fields_of(WORKLOADS, "team", "train", MANAGER)
    assert owned
    assert all(x.startswith('.status.admissionChecks{"name": "plan"}') for x in owned)
    assert kueue.check("train", "other")["state"] == "Pending"
    assert kueue.advance("train") == "waiting"
    assert kueue.job("train")["spec"]["suspend"] is True


def test_a_decision_is_made_once(
    kueue: Kueue, reconciler: Reconciler, planner: OncePlanner
) -> None:
    decided(kueue, reconciler, NOTES)
    version, n_asked = kueue.get("train")["metadata"]["resourceVersion"], len(planner.asked)
    reconciler.reconcile("team", "train")
    assert kueue.get("train")["metadata"]["resourceVersion"] == version
    assert len(planner.asked) == n_asked


@pytest.mark.parametrize("is_reserved", [False, True])
def test_jobs_that_ask_nothing_pass(
    kueue: Kueue, reconciler: Reconciler, planner: OncePlanner, is_reserved: bool
) -> None:
    kueue.submit("train", template({"mine": "1"}, devices=0), 2)
    if is_reserved:
        kueue.reserve("train", OURS)
    reconciler.reconcile("team", "train")
    reconciler.reconcile("team", "nowhere")
    found = kueue.check("train", CHECK)
    assert found.get("state") == ("Ready" if is_reserved else None)
    assert "podSetUpdates" not in found
    assert planner.asked == []


def test_a_share_of_the_pods_gets_the_plan_for_it(kueue: Kueue, reconciler: Reconciler) -> None:
    granted = Reservation([CHECK], count=1)
    found = decided(kueue, reconciler, NOTES, 4, granted, least=1)
    assert "on 8 devices" in found["message"]
    assert kueue.advance("train") == "admitted"
    job = kueue.job("train")["spec"]
    assert job["parallelism"] == 1
    assert job["template"]["metadata"]["annotations"]["planner/plan-n-devices"] == "8"


def test_pods_with_a_share_of_a_node(
    kueue: Kueue, reconciler: Reconciler, planner: OncePlanner
) -> None:
    found = decided(kueue, reconciler, NOTES, devices=4)
    assert (found["state"], "on 8 devices" in found["message"]) == ("Ready", True)
    (request,) = [x for name, x in planner.asked if name == "solve"]
    assert request["set"] == {
        "pools.0.nodes": 2,
        "pools.0.accelerators_per_node": 4,
        "pools.0.nics_per_node": 4,
        "pools.0.scale_up_domain": 4,
    }


RACKS = {
    "levels": ["nvidia.com/gpu.clique"],
    "slices": [
        {
            "domainCount": 2,
            "valuesPerLevel": [{"individual": {"prefix": "rack-", "roots": ["1", "2"]}}],
            "podCounts": {"individual": [4, 2]},
        }
    ],
}


@pytest.mark.parametrize(("topology", "domain"), [(None, 24), (RACKS, 8)])
def test_scale_up_domains_are_those_that_kueue_assigned(
    kueue: Kueue, reconciler: Reconciler, planner: OncePlanner, topology: Any, domain: int
) -> None:
    notes = NOTES | {"planner/cluster": "gb200-nvl72-x576"}
    reservation = Reservation([CHECK], topology=topology)
    found = decided(kueue, reconciler, notes, 6, reservation, devices=4)
    assert found["state"] == "Ready", found
    (request,) = [x for name, x in planner.asked if name == "solve"]
    assert request["set"] == {"pools.0.nodes": 6, "pools.0.scale_up_domain": domain}
    (update,) = found["podSetUpdates"]
    told = update["annotations"]["planner/plan-topology"]
    assert told == f"nvidia.com/gpu.clique:{domain // 4}"


def test_all_pod_sets_that_ask_are_one_job(kueue: Kueue, reconciler: Reconciler) -> None:
    quiet = template({}, devices=0)
    sets = [
        {"name": "driver", "count": 1, "template": quiet},
        {"name": "first", "count": 1, "template": template(NOTES)},
        {"name": "others", "count": 1, "template": template(NOTES)},
    ]
    kueue.submit_pod_sets("train", sets)
    kueue.reserve("train", OURS)
    reconciler.reconcile("team", "train")
    found = kueue.check("train", CHECK)
    assert "on 16 devices" in found["message"]
    assert [x["name"] for x in found["podSetUpdates"]] == ["first", "others"]


def test_the_cluster_stands_at_pods_flavor_or_check(
    kueue: Kueue, reconciler: Reconciler, planner: OncePlanner
) -> None:
    notes = {k: v for k, v in NOTES.items() if k != "planner/cluster"}
    for kind, name in ((CHECKS, CHECK), (FLAVORS, "h100")):
        cluster = "16xh100" if kind is CHECKS else "h100-x8"
        patch = {"metadata": {"annotations": {"planner/cluster": cluster}}}
        kueue.store.merge(kind, ("", name), patch)
        kueue.submit(f"at-{name}", template(notes), 2)
        kueue.reserve(f"at-{name}", OURS)
        reconciler.reconcile("team", f"at-{name}")
        assert kueue.check(f"at-{name}", CHECK)["state"] == "Ready"
        assert planner.asked[-1][1]["cluster"] == cluster


def test_files_come_in_a_config_map_that_goes_with_the_workload(
    kueue: Kueue, reconciler: Reconciler
) -> None:
    notes = NOTES | {"planner/config-map": "train-plan", "planner/framework": "megatron"}
    assert decided(kueue, reconciler, notes)["state"] == "Ready"
    found = kueue.store.get(CONFIG_MAPS, "team", "train-plan")
    plan = json.loads(found["data"]["plan.json"])
    assert plan["plan_id"] in found["data"]["megatron.sh"]
    assert f'PLAN_ID="{plan["plan_id"]}"\n' in found["data"]["plan.env"]
    assert 'PLAN_TP="2"\n' in found["data"]["plan.env"]
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Workload", kueue.get("train")["metadata"]["uid"])
    kueue.store.delete(WORKLOADS, "team", "train")
    assert kueue.store.list_all(CONFIG_MAPS)[0] == []


def test_models_of_users_come_from_config_maps(kueue: Kueue, reconciler: Reconciler) -> None:
    from tests.examples.conftest import ROOT

    text = (ROOT / "examples" / "models" / "llama3-8b.yaml").read_text()
    body = {"metadata": {"name": "mine", "namespace": "team"}, "data": {"model.yaml": text}}
    kueue.store.create(CONFIG_MAPS, body)
    notes = NOTES | {"planner/model": "configmap:mine/model.yaml"}
    assert decided(kueue, reconciler, notes)["state"] == "Ready"


def test_a_product_label_is_left_out_where_the_check_says_so(
    kueue: Kueue, reconciler: Reconciler
) -> None:
    patch = {"metadata": {"annotations": {"planner/select-product": "false"}}}
    kueue.store.merge(CHECKS, ("", CHECK), patch)
    (update,) = decided(kueue, reconciler, NOTES)["podSetUpdates"]
    assert "nodeSelector" not in update


def test_what_is_there_already_is_not_added_again(kueue: Kueue, reconciler: Reconciler) -> None:
    selector = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    notes = NOTES | {"planner/plan-tp": "2"}
    (update,) = decided(kueue, reconciler, notes, nodeSelector=selector)["podSetUpdates"]
    assert "nodeSelector" not in update
    assert "planner/plan-tp" not in update["annotations"]
    assert "planner/plan-pp" in update["annotations"]


# Rejected


@pytest.mark.parametrize(
    ("notes", "said"),
    [
        ({"planner/model": "llama4-9b"}, "the planner refused: .*llama4-9b"),
        ({"planner/model": ""}, "no annotation planner/model"),
        ({"planner/modle": "llama3-8b"}, "planner/modle is unknown; there are planner/model"),
        ({"planner/cluster": "nowhere"}, "the planner refused|nowhere"),
        ({"planner/pins": "tp"}, "planner/pins: 'tp' is not of the form"),
        ({"planner/pins": "tx=4"}, "the planner refused: .*tx"),
        ({"planner/set": "pools.0.nodes=9"}, "leave it out"),
        ({"planner/model": "configmap:mine/model.yaml"}, "there is no ConfigMap 'mine'"),
        ({"planner/cluster": ""}, "no cluster is named"),
        ({"planner/plan-tp": "8"}, "planner/plan-tp: 8, and the plan 2"),
    ],
)
def test_what_is_wrong_is_rejected_with_words(
    kueue: Kueue, reconciler: Reconciler, notes: dict[str, str], said: str
) -> None:
    import re

    found = decided(kueue, reconciler, NOTES | notes)
    assert found["state"] == "Rejected"
    assert re.search(said, found["message"]), found["message"]
    assert "podSetUpdates" not in found
    assert kueue.advance("train") == "deactivated"
    assert kueue.job("train")["spec"]["suspend"] is True


def test_what_fits_on_no_device_is_rejected_with_what_would_help(
    kueue: Kueue, reconciler: Reconciler
) -> None:
    notes = NOTES | {"planner/model": "llama3-70b", "planner/pins": "tp=8,pp=1"}
    found = decided(kueue, reconciler, notes, 1)
    assert found["state"] == "Rejected"
    assert found["message"].startswith("nothing fits on 8 devices (1 pods); would help: ")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"devices": 0}, "no pod has a limit of nvidia.com/gpu"),
        ({"devices": 16}, "a pod has 16 nvidia.com/gpu, and a node of h100-x8 has 8"),
        ({"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4"}}, "NVIDIA-L4, and the plan"),
    ],
)
def test_pods_that_cannot_be_those_of_the_cluster(
    kueue: Kueue, reconciler: Reconciler, more: dict[str, Any], said: str
) -> None:
    found = decided(kueue, reconciler, NOTES, **more)
    assert (found["state"], said in found["message"]) == ("Rejected", True), found["message"]


def test_pod_sets_that_differ_are_rejected(kueue: Kueue, reconciler: Reconciler) -> None:
    other = NOTES | {"planner/pins": "tp=4"}
    for name, templates in (
        ("notes", (template(NOTES), template(other))),
        ("devices", (template(NOTES), template(NOTES, devices=4))),
    ):
        sets = [{"name": f"p{i}", "template": x} for i, x in enumerate(templates)]
        kueue.submit_pod_sets(name, sets)
        kueue.reserve(name, OURS)
        reconciler.reconcile("team", name)
        found = kueue.check(name, CHECK)
        assert (found["state"], "different" in found["message"]) == ("Rejected", True)


def test_a_config_map_of_others_is_not_written(kueue: Kueue, reconciler: Reconciler) -> None:
    body = {"metadata": {"name": "taken", "namespace": "team"}, "data": {"k": "v"}}
    kueue.store.create(CONFIG_MAPS, body)
    found = decided(kueue, reconciler, NOTES | {"planner/config-map": "taken"})
    assert (found["state"], "not of this Workload" in found["message"]) == ("Rejected", True)
    assert kueue.store.get(CONFIG_MAPS, "team", "taken")["data"] == {"k": "v"}


def test_a_config_map_that_the_server_refuses_is_rejected(
    kueue: Kueue, reconciler: Reconciler
) -> None:
    found = decided(kueue, reconciler, NOTES | {"planner/config-map": "No_Name"})
    assert (found["state"], "No_Name was refused" in found["message"]) == ("Rejected", True)


def test_a_config_map_of_a_workload_that_is_gone_is_waited_for(
    kueue: Kueue, reconciler: Reconciler
) -> None:
    notes = NOTES | {"planner/config-map": "train-plan"}
    assert decided(kueue, reconciler, notes)["state"] == "Ready"
    kueue.submit("again", template(notes), 2)
    kueue.reserve("again", OURS)
    reconciler.reconcile("team", "again")
    found = kueue.check("again", CHECK)
    assert (found["state"], "but of train" in found["message"]) == ("Retry", True)


# Tried again


def test_a_planner_that_does_not_answer_is_asked_again_later(
    kueue: Kueue, reconciler: Reconciler, planner: OncePlanner
) -> None:
    planner.unavailable("no route")
    found = decided(kueue, reconciler, NOTES)
    assert (found["state"], found["requeueAfterSeconds"]) == ("Retry", 60)
    assert found["message"] == "the planner did not answer: no route"
    pauses = []
    for _ in range(3):
        assert kueue.advance("train") == "evicted"
        reconciler.reconcile("team", "train")  # nothing is reserved: nothing is done
        assert kueue.check("train", CHECK)["state"] == "Pending"
        kueue.reserve("train", OURS)
        reconciler.reconcile("team", "train")
        pauses.append(kueue.check("train", CHECK)["requeueAfterSeconds"])
    assert pauses == [120, 240, 480]
    assert kueue.advance("train") == "evicted"
    planner.fault = None
    kueue.reserve("train", OURS)
    reconciler.reconcile("team", "train")
    assert kueue.check("train", CHECK)["state"] == "Ready"
    assert kueue.advance("train") == "admitted"


def test_too_few_pods_of_a_range_are_no_reason_to_reject(
    kueue: Kueue, reconciler: Reconciler
) -> None:
    notes = NOTES | {"planner/model": "llama3-70b", "planner/pins": "tp=8,pp=1"}
    granted = Reservation([CHECK], count=1)
    found = decided(kueue, reconciler, notes, 8, granted, least=1)
    assert (found["state"], "up to 8 pods" in found["message"]) == ("Retry", True)


def test_a_search_that_found_nothing_in_time_is_tried_again(
    kueue: Kueue, served: ApiServer
) -> None:
    from tests.service.kueue.kueue_cluster import reconciler_of

    class Slow:
        def ask(self, call: str, request: Any) -> dict[str, Any]:
            if call == "solve":
                return {"plans": [], "complete": False, "relaxations": []}
            return OncePlanner().ask(call, request)

    found = decided(kueue, reconciler_of(served, Slow()), NOTES)
    assert (found["state"], "in time" in found["message"]) == ("Retry", True)


# Meanwhile


def once(work: Callable[[], None]) -> Callable[[str, str], None]:
    """Return a step that runs before the first patch of a Workload."""
    left = [work]

    def step(method: str, path: str) -> None:
        if method == "PATCH" and "/workloads/" in path and left:
            left.pop()()

    return step


def test_a_change_meanwhile_is_looked_at_and_the_planner_is_not_asked_twice(
    kueue: Kueue, reconciler: Reconciler, served: ApiServer, planner: OncePlanner
) -> None:
    def change() -> None:
        kueue.store.merge(WORKLOADS, ("team", "train"), {"spec": {"priority": 7}})

    served.before.append(once(change))
    assert decided(kueue, reconciler, NOTES)["state"] == "Ready"
    assert sum(method == "PATCH" for method, _ in served.requests) == 2
    assert [name for name, _ in planner.asked].count("solve") == 1


def test_a_workload_that_is_evicted_meanwhile_is_left_alone(
    kueue: Kueue, reconciler: Reconciler, served: ApiServer
) -> None:
    served.before.append(once(lambda: kueue.evict("train")))
    found = decided(kueue, reconciler, NOTES)
    assert (found["state"], "podSetUpdates" in found) == ("Pending", False)


def test_another_admission_meanwhile_gets_its_own_plan(
    kueue: Kueue, reconciler: Reconciler, served: ApiServer
) -> None:
    def other() -> None:
        kueue.evict("train")
        kueue.reserve("train", Reservation([CHECK], count=1))

    served.before.append(once(other))
    found = decided(kueue, reconciler, NOTES, least=1)
    assert "on 8 devices" in found["message"]


def test_what_always_changes_is_given_up_for_now(
    kueue: Kueue, reconciler: Reconciler, served: ApiServer
) -> None:
    n = 0

    def change(method: str, path: str) -> None:
        nonlocal n
        if method == "PATCH" and "/workloads/" in path:
            n += 1
            kueue.store.merge(WORKLOADS, ("team", "train"), {"spec": {"priority": n}})

    served.before.append(change)
    with pytest.raises(ApiError, match="changed 8 times"):
        decided(kueue, reconciler, NOTES)
    assert n == MOST_ATTEMPTS


# Checks


def test_a_check_of_ours_becomes_active(kueue: Kueue, reconciler: Reconciler) -> None:
    for name in (CHECK, "other", "nowhere"):
        reconciler.reconcile_check(name)
    (active,) = kueue.store.get(CHECKS, "", CHECK)["status"]["conditions"]
    assert (active["type"], active["status"], active["reason"]) == ("Active", "True", "Active")
    version = kueue.store.version
    reconciler.reconcile_check(CHECK)
    assert kueue.store.version == version
    assert "status" not in kueue.store.get(CHECKS, "", "other")


def test_parameters_of_a_check_are_refused(kueue: Kueue, reconciler: Reconciler) -> None:
    ref = {"apiGroup": "planner.example", "kind": "Setup", "name": "x"}
    kueue.store.merge(CHECKS, ("", CHECK), {"spec": {"parameters": ref}})
    reconciler.reconcile_check(CHECK)
    (active,) = kueue.store.get(CHECKS, "", CHECK)["status"]["conditions"]
    assert (active["status"], active["reason"]) == ("False", "BadParametersRef")
    kueue.store.merge(CHECKS, ("", CHECK), {"spec": {"parameters": None}})
    reconciler.reconcile_check(CHECK)
    (active,) = kueue.store.get(CHECKS, "", CHECK)["status"]["conditions"]
    assert (active["status"], active["observedGeneration"]) == ("True", 3)
