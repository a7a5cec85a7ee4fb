"""A plan as Kueue hands it to pods: `podSetUpdates`, and a ConfigMap with the files that run it.

Kueue adds updates to pod templates and never changes what is there: a key that a template, a
ResourceFlavor or another check has with another value would keep the job from starting, so it is
refused here with words. A suspended Job takes annotations, labels, node selectors and tolerations
of its template, and no environment (Kubernetes KEP-2926): pods read the annotations through the
downward API.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from planner.frameworks.launchers.kubernetes import DOMAIN_LABEL, GPU_PRODUCTS
from service.kueue.question import ANSWERS
from service.kueue.workload import PREFIX, Grant, NotPlannable, pod_set_templates

Data = dict[str, Any]
PRODUCT_LABEL = "nvidia.com/gpu.product"
MOST_CONFIG_MAP_BYTES = 1_000_000
"""Of a ConfigMap: the API server takes 1 MiB of it with all that belongs to the object."""


def text(value: Any) -> str:
    """Return a value of the layout as shells and annotations hold it: `true`, `8`, `20,20`."""
    listed = value if isinstance(value, list) else [value]
    return ",".join(str(x).lower() if isinstance(x, bool) else str(x) for x in listed)


def plan_values(answer: Mapping[str, Any]) -> dict[str, str]:
    """Return the first plan of an answer as texts by name: `id`, `tp`, `stage_layers`, ..."""
    plan = answer["plans"][0]
    named = {"id": plan["plan_id"], **plan["layout"], "precision": plan["precision"]}
    return {name: text(value) for name, value in named.items()}


def plan_notes(answer: Mapping[str, Any]) -> dict[str, str]:
    """Return the annotations of pods: `planner/plan-tp`, ..., and the pods of a domain."""
    notes = {
        f"{PREFIX}{ANSWERS}{name.replace('_', '-')}": value
        for name, value in plan_values(answer).items()
    }
    pool = answer["inputs"]["cluster"]["pools"][0]
    inside = pool["scale_up_domain"] // pool["accelerators_per_node"]
    if inside > 1:
        notes[f"{PREFIX}{ANSWERS}topology"] = f"{DOMAIN_LABEL}:{inside}"
    return notes


def pod_set_updates(
    workload: Mapping[str, Any],
    grant: Grant,
    answer: Mapping[str, Any],
    flavor_labels: Mapping[str, str],
    check: str,
    select_product: bool,
) -> list[Data]:
    """Return the updates of the pod sets that train, with nothing that is set already.

    `flavor_labels` are those of the nodes that Kueue selects. `NotPlannable` where something is
    set to another value.
    """
    others = [
        update
        for state in workload["status"].get("admissionChecks") or ()
        if state["name"] != check
        for update in state.get("podSetUpdates") or ()
    ]
    part = answer["inputs"]["cluster"]["pools"][0]["accelerator"]
    product = GPU_PRODUCTS.get(str(part), "") if select_product else ""
    templates = pod_set_templates(workload)
    plan_id = answer["plans"][0]["plan_id"]
    updates = []
    for name in grant.pod_sets:
        template = templates[name]
        meta = template.get("metadata") or {}
        beside = [update for update in others if update["name"] == name]
        selectors = [
            (template.get("spec") or {}).get("nodeSelector"),
            flavor_labels,
            *(update.get("nodeSelector") for update in beside),
        ]
        wanted = {
            "labels": ({f"{PREFIX}plan": plan_id}, _sections(meta, beside, "labels")),
            "annotations": (plan_notes(answer), _sections(meta, beside, "annotations")),
            "nodeSelector": ({PRODUCT_LABEL: product} if product else {}, selectors),
        }
        update: Data = {"name": name}
        for section, (values, present) in wanted.items():
            if new := _additions(values, present, f"pod set {name}: {section}"):
                update[section] = new
        updates.append(update)
    return updates


def _sections(meta: Any, beside: Iterable[Any], section: str) -> list[Any]:
    return [meta.get(section), *(update.get(section) for update in beside)]


def _additions(
    values: Mapping[str, str], present: Iterable[Mapping[str, str] | None], where: str
) -> dict[str, str]:
    """Return what is not there yet."""
    known: dict[str, str] = {}
    for section in present:
        known |= section or {}
    for key, value in values.items():
        if key in known and known[key] != value:
            raise NotPlannable(
                f"{where} has {key}: {known[key]}, and the plan {value}; Kueue only adds keys:"
                " take it out, or name the cluster of these nodes"
            )
    return {key: value for key, value in values.items() if key not in known}


def config_map(
    workload: Mapping[str, Any],
    api_version: str,
    name: str,
    answer: Mapping[str, Any],
    files: Mapping[str, str],
) -> Data:
    """Return the ConfigMap of a plan, which goes when the Workload goes.

    `plan.json` is the plan as answers have it, `plan.env` its layout as variables of a shell;
    `files` are those of the framework, by name.
    """
    meta = workload["metadata"]
    values = plan_values(answer)
    shown = "".join(f'PLAN_{key.upper()}="{value}"\n' for key, value in values.items())
    plan = json.dumps(answer["plans"][0], indent=1)
    data = {"plan.json": plan + "\n", "plan.env": shown, **files}
    size = sum(len(key) + len(value.encode()) for key, value in data.items())
    if size > MOST_CONFIG_MAP_BYTES:
        raise NotPlannable(
            f"the files of the plan have {size} bytes, and a ConfigMap holds"
            f" {MOST_CONFIG_MAP_BYTES}; leave out {PREFIX}framework"
        )
    return {
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": {
                "app.kubernetes.io/managed-by": "planner",
                f"{PREFIX}plan": answer["plans"][0]["plan_id"],
            },
            "ownerReferences": [
                {
                    "apiVersion": api_version,
                    "kind": "Workload",
                    "name": meta["name"],
                    "uid": meta["uid"],
                }
            ],
        },
        "data": data,
    }
