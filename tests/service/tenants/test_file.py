"""The file of tenants: what it means, and what is wrong in it, with its line."""

from pathlib import Path

import pytest

from planner.errors import SpecError
from planner.specs.yaml.document import parse_yaml
from service.handlers.problems import Refusal
from service.tenants.file import read_tenants, tenants_of
from service.tenants.groups import Group, Identity, Members, Priority, Tenants

TEXT = """\
groups:
  schedulers:
    weight: 4
    priority: urgent
    members: {names: [slurm], kubernetes: ["system:serviceaccounts:kueue-system"]}
  capacity:
    priority: background
    highest_priority: normal
    role: read
    members: {names: ["corp:ann"], claims: [{claim: groups, value: capacity-team}]}
    quotas: {running_jobs: 4, queued_jobs: 50, cpu_s: 3600, window_s: 7200, stored_results: 20}
default_group: capacity
identity:
  oidc: [{name: corp, issuer: "https://idp.example/", audience: planner, name_claim: email}]
  kubernetes: {api_server: "https://10.0.0.1:6443", audience: planner, cache_s: 30}
"""


def test_a_file_says_groups_and_who_else_vouches(tmp_path):
    file = tmp_path / "tenants.yaml"
    file.write_text(TEXT)
    found = read_tenants(file)
    first, second = found.to_groups()
    assert (first.name, first.weight, first.priority) == ("schedulers", 4.0, Priority.URGENT)
    assert (first.highest_priority, first.role) == (Priority.URGENT, "solve")
    assert (second.priority, second.highest_priority) == (Priority.BACKGROUND, Priority.NORMAL)
    quotas = second.quotas
    assert (quotas.running_jobs, quotas.cpu_s, quotas.window_s) == (4, 3600.0, 7200.0)
    assert quotas.stored_bytes is None
    providers = found.to_providers()
    assert [(x.name, x.issuer, x.name_claim) for x in providers.oidc] == [
        ("corp", "https://idp.example/", "email")
    ]
    assert providers.kubernetes is not None
    assert providers.kubernetes.cache_s == 30.0


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("weight: 4", "weight: 0", 3, "at least"),
        ("weight: 4", "wieght: 4", 3, "weight"),
        ("weight: 4", "weight: heavy", 3, "number"),
        ("priority: urgent", "priority: high", 4, "urgent"),
        ("highest_priority: normal", "highest_priority: background\n    weight: no", 9, "number"),
        ("priority: background", "priority: urgent", 7, "above the highest"),
        ('names: ["corp:ann"]', "names: [slurm]", 10, "schedulers already"),
        ("running_jobs: 4", "running_jobs: 0", 11, "more than 0"),
        ("cpu_s: 3600", "cpu_s: .inf", 11, "finite"),
        ("window_s: 7200", "window_s: 1", 11, "at least 60"),
        ("default_group: capacity", "default_group: none", 12, "no group 'none'"),
        ("https://idp.example/", "http://idp.example/", 14, "in the clear"),
        ("https://idp.example/", "https://me:secret@idp/", 14, "no address"),
        ("name: corp", "name: kubernetes", 14, "another provider"),
        ("  capacity:", "  other:", 6, "cannot be called"),
        ("  capacity:", "  a b:", 6, "cannot be called"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(old, new, line, said):
    assert old in TEXT
    with pytest.raises(SpecError) as caught:
        tenants_of(parse_yaml(TEXT.replace(old, new, 1), "t.yaml"))
    text = str(caught.value)
    assert f"t.yaml:{line}:" in text
    assert said in text


def test_an_empty_file_is_no_file_of_tenants(tmp_path: Path):
    file = tmp_path / "tenants.yaml"
    file.write_text("")
    with pytest.raises(SpecError, match="empty"):
        read_tenants(file)


def tenants(default: str = "") -> Tenants:
    return Tenants(tenants_of(parse_yaml(TEXT, "t.yaml")).to_groups(), default)


@pytest.mark.parametrize(
    ("identity", "group"),
    [
        (Identity("slurm", "token"), "schedulers"),
        (Identity("corp:ann", "oidc"), "capacity"),
        (Identity("corp:bob", "oidc", {"groups": ("x", "capacity-team")}), "capacity"),
        (Identity("corp:bob", "oidc", {"groups": "capacity-team"}), "capacity"),
        (
            Identity("k", "kubernetes", groups=frozenset({"system:serviceaccounts:kueue-system"})),
            "schedulers",
        ),
        (Identity("corp:bob", "oidc", {"groups": {"capacity-team": 1}}), None),
        (Identity("corp:bob", "oidc", {"group": "capacity-team"}), None),
        (Identity("corp:slurm", "oidc"), None),
    ],
)
def test_members_are_told_by_name_claim_and_kubernetes_group(identity, group):
    if group is None:
        with pytest.raises(Refusal) as caught:
            tenants().group_of(identity)
        assert (caught.value.status, caught.value.code) == (403, "no-group")
        assert tenants("capacity").group_of(identity).name == "capacity"
    else:
        assert tenants().group_of(identity).name == group


def test_without_a_file_everybody_is_in_one_group_and_may_not_push_ahead():
    open_group = Tenants().group_of(Identity("anybody", "token"))
    assert open_group.name == "default"
    assert open_group.priority_of("background") is Priority.BACKGROUND
    with pytest.raises(Refusal) as caught:
        open_group.priority_of("urgent")
    assert caught.value.code == "priority-too-high"
    (fault,) = caught.value.errors
    assert (fault.field, fault.fix) == ("Planner-Priority", "ask for normal or background")
    assert open_group.priority_of(None) is Priority.NORMAL
    for unknown in ("soon", "", "Normal"):
        with pytest.raises(Refusal) as caught:
            open_group.priority_of(unknown)
        assert (caught.value.status, caught.value.code) == (400, "bad-priority")


def test_groups_are_replaced_as_a_whole_and_metrics_name_those_there_are():
    found = Tenants([Group("a", members=Members(frozenset({"ann"})))], "a")
    found.replace([Group("b")], "b")
    assert found.group_of(Identity("ann", "token")).name == "b"
    assert (found.label("a"), found.label("b")) == ("other", "b")
    assert found.group("a").quotas.running_jobs is None  # its jobs are still finished
