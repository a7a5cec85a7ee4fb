"""What importers return: origins as comments, assumptions in words, YAML that reads back."""

import yaml

from planner.specs.importers.imported import Imported, Origin

FOUND = Imported(
    kind="cluster",
    document={
        "name": "c",
        "pools": [{"accelerator": "h100", "nodes": 4}, {"accelerator": "a100", "nodes": 2}],
        "fabric": {"rail_optimized": True, "tiers": []},
    },
    origins=(
        Origin(("name",), "ClusterName"),
        Origin(("pools", 0, "accelerator"), "Gres=gpu:h100:8"),
        Origin(("pools", 1, "nodes"), "two nodes are down"),
        Origin(("fabric", "rail_optimized"), "usual", assumed=True),
    ),
    source="sinfo.txt",
    format="sinfo -N",
    notes=("two nodes are left out: " + "down " * 30,),
)


def test_yaml_reads_back_with_its_comments():
    text = FOUND.to_yaml()
    assert yaml.safe_load(text) == FOUND.document
    lines = text.splitlines()
    assert lines[0] == "# Imported from sinfo.txt: sinfo -N."
    assert lines[1].startswith("# two nodes are left out: down")
    assert lines[2].startswith("#   down")
    assert max(map(len, lines)) <= 99
    fields = [" ".join(line.split()) for line in lines]
    for expected in (
        "- accelerator: h100 # Gres=gpu:h100:8",
        "nodes: 4",
        "nodes: 2 # two nodes are down",
        "rail_optimized: true # assumed: usual",
        "tiers: []",
    ):
        assert expected in fields
    assert len({line.index(" # ") for line in lines if " # " in line[1:]}) == 1


def test_assumptions_in_words():
    assert FOUND.assumptions == ("fabric.rail_optimized = true: usual",)


def test_a_changed_field_has_another_origin():
    changed = FOUND.changed(("fabric", "rail_optimized"), False, "--set")
    assert changed.document["fabric"]["rail_optimized"] is False
    assert FOUND.document["fabric"]["rail_optimized"] is True
    assert changed.assumptions == ()
    assert "rail_optimized: false # --set" in " ".join(changed.to_yaml().split())
