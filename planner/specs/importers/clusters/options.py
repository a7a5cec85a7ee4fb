"""What the user says beside the dumps of a cluster."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from planner.errors import UsageError
from planner.specs.importers.clusters.accelerators import ALL, NONE

if TYPE_CHECKING:
    from hardware.catalogue import Catalogue


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What the user says beside the dumps."""

    accelerators: Mapping[str, str] = field(default_factory=dict)
    """Catalogue name (or `none`) by what the dump calls the device: `gpu` where it gives no name,
    `*` for all."""
    nic: str = ""
    """Catalogue link of the ports."""
    nics: int = 0
    """Ports of a node for training traffic."""
    devices: int = 0
    """Devices of a node, where a dump may show only those of one job."""
    partition: str = ""
    nodes: str = ""
    """Host list of the nodes to take; or the names of nodes like the one whose inside is given."""
    selector: Mapping[str, str] = field(default_factory=dict)
    """Labels that the nodes must have."""
    tolerated: tuple[str, ...] = ()
    """Keys (or `key=value`) of taints that the job tolerates."""
    everything: bool = False
    """Ignore what is in use: plan for all healthy nodes."""
    partial: bool = False
    """Use nodes in part where that puts more devices to use."""
    most_nodes: int = 0
    """Nodes of each pool that plans use at most, the first in network order; 0: all that are
    free."""
    name: str = ""
    """Name of the cluster."""


def checked_answers(answers: Mapping[str, str], catalogue: "Catalogue") -> dict[str, str]:
    """Return answers with catalogue names in place of aliases; `UsageError` for unknown ones."""
    from hardware.catalogue import UnknownPartError

    entries = {}
    for key, name in answers.items():
        try:
            part_name = NONE if name == NONE else catalogue.accelerator(name).name
        except UnknownPartError as error:
            close = " or ".join(error.suggestions)
            guess = f"did you mean {close}? " if close else ""
            fix = f"{guess}`planner catalog list` shows all names"
            raise UsageError(f"--accelerator: unknown accelerator {name!r}", fix) from None
        entries[key if key == ALL else key.lower().removeprefix("gpu:")] = part_name
    return entries


def checked_link(name: str, catalogue: "Catalogue") -> str:
    """Return the catalogue name of a link between nodes; `UsageError` for another."""
    from hardware.catalogue import UnknownPartError

    if not name:
        return ""
    try:
        link = catalogue.link(name)
    except UnknownPartError:
        link = None
    if link is None or link.kind != "scale-out":
        links = [x.name for x in catalogue.links.values() if x.kind == "scale-out"]
        raise UsageError(f"--nic: {name!r} is no network port", f"one of {', '.join(links)}")
    return link.name
