"""The sample dumps, written for these tests in the shapes that the commands print."""

from pathlib import Path
from typing import Any

import pytest

from planner.errors import PlannerError
from planner.specs.importers.clusters.options import ImportOptions
from planner.specs.importers.clusters.reader import import_cluster
from planner.specs.importers.dump_text import clean, read_dump
from planner.specs.importers.imported import Imported
from planner.specs.inputs import ClusterInput
from planner.specs.loader import cluster_from_dict

FOLDER = Path(__file__).parent / "data" / "clusters"


def dump(name: str) -> tuple[str, str]:
    """Return the name and the text of a sample."""
    return name, clean(read_dump(str(FOLDER / name)))


def imported(*names: str, **options: Any) -> Imported:
    """Import samples as one cluster; what comes out must load."""
    found = import_cluster([dump(name) for name in names], ImportOptions(**options))
    cluster_from_dict(found.document)
    return found


def pools(found: Imported) -> list[dict[str, Any]]:
    """Return the pools of the file."""
    return found.document["pools"]


def loaded(found: Imported) -> ClusterInput:
    """Return the cluster as the planner reads it."""
    return cluster_from_dict(found.document)


def question(*names: str, **options: Any) -> str:
    """Return the one error that samples give, without line breaks."""
    with pytest.raises(PlannerError) as caught:
        imported(*names, **options)
    text = str(caught.value)
    assert text.count("\n  fix: ") == 1
    return text


def note(found: Imported, start: str) -> str:
    """Return the only note that begins in this way."""
    (text,) = [x for x in found.notes if x.startswith(start)]
    return text


def assumed(found: Imported) -> set[str]:
    """Return the fields that are marked as assumed, without `pools.0.`."""
    return {x.partition(" = ")[0].removeprefix("pools.0.") for x in found.assumptions}
