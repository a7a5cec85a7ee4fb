"""What a Workload says, in the forms that Kueue's releases have for it."""

from typing import Any

import pytest

from service.kueue.workload import NotPlannable, domain_pods, grant_of, is_waiting, quantity

LABEL = "nvidia.com/gpu.clique"


def test_topology_assignments_of_both_versions_are_read() -> None:
    older = {
        "levels": ["block", LABEL],
        "domains": [
            {"values": ["b1", "r1"], "count": 4},
            {"values": ["b1", "r2"], "count": 2},
        ],
    }
    newer = {
        "levels": ["block", LABEL],
        "slices": [
            {
                "domainCount": 2,
                "valuesPerLevel": [
                    {"universal": "b1"},
                    {"individual": {"prefix": "r", "roots": ["1", "2"]}},
                ],
                "podCounts": {"individual": [4, 2]},
            }
        ],
    }
    same = {
        "levels": [LABEL],
        "slices": [
            {
                "domainCount": 3,
                "valuesPerLevel": [{"individual": {"roots": ["a", "b", "c"], "suffix": "-x"}}],
                "podCounts": {"universal": 8},
            }
        ],
    }
    for topology in (older, newer):
        assert dict(domain_pods(topology, LABEL)) == {"r1": 4, "r2": 2}
    assert dict(domain_pods(same, LABEL)) == {"a-x": 8, "b-x": 8, "c-x": 8}


@pytest.mark.parametrize(("text", "n"), [("8", 8), (16, 16), ("1k", 1000), ("2Ki", 2048)])
def test_quantities_are_whole_devices(text: Any, n: int) -> None:
    assert quantity(text) == n


@pytest.mark.parametrize("text", ["0.5", "500m", "-1", "", "eight"])
def test_parts_of_devices_are_refused(text: str) -> None:
    with pytest.raises(NotPlannable, match="no whole number"):
        quantity(text)


def workload(**status: Any) -> dict[str, Any]:
    container = {"resources": {"limits": {"amd.com/gpu": "8"}}}
    template = {
        "metadata": {"annotations": {"planner/model": "m"}},
        "spec": {"containers": [container]},
    }
    return {
        "metadata": {"name": "w", "namespace": "n"},
        "spec": {"active": True, "podSets": [{"name": "main", "count": 2, "template": template}]},
        "status": {
            "conditions": [{"type": "QuotaReserved", "status": "True"}],
            "admission": {"podSetAssignments": [{"name": "main"}]},
            **status,
        },
    }


def test_counts_and_devices_come_from_the_template_where_kueue_says_none() -> None:
    grant = grant_of(workload())
    assert grant is not None
    assert (grant.n_pods, grant.devices_per_pod, grant.resource) == (2, 8, "amd.com/gpu")
    assert (grant.flavors, grant.pods_per_domain) == ((), 0)


def test_devices_that_no_pods_share_evenly_are_refused() -> None:
    usage = {"podSetAssignments": [{"name": "main", "resourceUsage": {"amd.com/gpu": "9"}}]}
    with pytest.raises(NotPlannable, match="no whole number for each of 2 pods"):
        grant_of(workload(admission=usage))
    with pytest.raises(NotPlannable, match="has no assignment"):
        grant_of(workload(admission={"podSetAssignments": []}))


@pytest.mark.parametrize(
    ("change", "is_so"),
    [
        ({}, True),
        ({"conditions": [{"type": "QuotaReserved", "status": "False"}]}, False),
        ({"admission": None}, False),
        (
            {
                "conditions": [
                    {"type": "QuotaReserved", "status": "True"},
                    {"type": "Finished", "status": "True"},
                ]
            },
            False,
        ),
    ],
)
def test_only_what_waits_for_its_checks_is_looked_at(change: Any, is_so: bool) -> None:
    assert is_waiting(workload(**change)) == is_so
    ended = workload(**change)
    ended["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not is_waiting(ended)
    stopped = workload(**change)
    stopped["spec"]["active"] = False
    assert not is_waiting(stopped)


def test_a_pod_set_without_pods_has_no_say() -> None:
    none = {"podSetAssignments": [{"name": "main", "count": 0}]}
    with pytest.raises(NotPlannable, match="no pods"):
        grant_of(workload(admission=none))
