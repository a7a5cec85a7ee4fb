"""Clusters said in words where a file is expected: `64xh100`, `gb200:256`, `2 nodes of dgx-h100`.

    words  = counted, then "@" NETWORK or nothing; or PART alone, one of it
    counted  COUNT "x" PART | NODES "x" COUNT "x" PART | PART ":" COUNT | NODES "nodes of" PART
    COUNT    devices of an accelerator, machines where PART is a server or a cloud machine
    NETWORK  a link of the catalogue, with or without its dashes: roce-400, roce400

What the words leave out is that of the part's usual machine, as in a cluster file.
"""

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.errors import InputProblem, SpecError
from planner.specs.yaml.document import Document, close_names

if TYPE_CHECKING:
    from hardware.catalogue import Catalogue

EXAMPLES = "64xh100, 4x4090, 4090, gb200:256, 2 nodes of p5.48xlarge, 512xh100@roce400"

_PART = r"(?P<part>[A-Za-z0-9][\w.-]*)"
_NETWORK = r"(?:\s*@\s*(?P<network>[A-Za-z][\w.-]*))?"
_FORMS = tuple(
    re.compile(form + _NETWORK, re.IGNORECASE)
    for form in (
        rf"(?P<count>\d+)\s*(?P<nodes>nodes?)\s+of\s+{_PART}",
        rf"(?P<count>\d+)\s*[x*]\s*(?P<per_node>\d+)\s*[x*]\s*{_PART}",
        rf"(?P<count>\d+)\s*[x*]\s*{_PART}",
        rf"{_PART}\s*:\s*(?P<count>\d+)",
    )
)


@dataclass(frozen=True, slots=True)
class ClusterWords:
    """A cluster as somebody says it, not yet looked up."""

    text: str
    count: int
    part: str
    network: str
    counts_nodes: bool
    per_node: int | None = None
    """Devices of a node where they are said."""


def cluster_words(text: str) -> ClusterWords | None:
    """Return what words say of a cluster; None where they are the name of a file or an example."""
    for form in _FORMS:
        if found := form.fullmatch(text.strip()):
            said = found.groupdict()
            return ClusterWords(
                text.strip(),
                int(said["count"][:12]),
                said["part"],
                said["network"] or "",
                bool(said.get("nodes") or said.get("per_node")),
                int(said["per_node"][:12]) if said.get("per_node") else None,
            )
    return _one_of(text.strip())


def _one_of(text: str) -> ClusterWords | None:
    """Return one of the part that a bare name means; None where the catalogue has none."""
    from hardware.catalogue import UnknownPartError, load_catalogue

    for part_of in (load_catalogue().accelerator, load_catalogue().platform):
        with suppress(UnknownPartError):
            part_of(text)
            return ClusterWords(text, 1, text, "", counts_nodes=False)
    return None


def document_of_words(words: ClusterWords) -> Document:
    """Return the cluster file that words stand for; `SpecError` where a part or count is none."""
    from hardware.catalogue import load_catalogue

    catalogue = load_catalogue()
    platform = _platform(words, catalogue)
    pool: dict[str, Any] = {"name": words.part.lower()}
    if platform and words.per_node is not None:
        message = f"{words.part!r} is a machine, whose devices are known"
        raise _error(words, message, f"{words.count} nodes of {words.part}")
    if platform:
        pool |= {"instance": platform, "nodes": _positive(words)}
    else:
        pool |= _devices(words, catalogue)
    if words.network:
        pool["nic"] = _network(words, catalogue)
    return Document({"name": _name(words, pool), "pools": [pool]}, words.text)


def _name(words: ClusterWords, pool: dict[str, Any]) -> str:
    """Return `h100-x64`, by devices where accelerators were counted."""
    unit = "n" if "instance" in pool or words.counts_nodes else "x"
    each = f"x{words.per_node}" if words.per_node is not None else ""
    return f"{words.part.lower()}-{unit}{words.count}{each}"


def _positive(words: ClusterWords) -> int:
    if not 1 <= words.count <= MAX_COUNT:
        raise _error(words, f"{words.count} is out of range", f"1 to {MAX_COUNT:,}")
    return words.count


MAX_COUNT = 10_000_000
"""Most devices or nodes that words may ask for."""


def _platform(words: ClusterWords, catalogue: "Catalogue") -> str:
    """Return the name of the server or cloud machine that is meant; empty where none is."""
    from hardware.catalogue import UnknownPartError

    try:
        return catalogue.platform(words.part).name
    except UnknownPartError:
        return ""


def _devices(words: ClusterWords, catalogue: "Catalogue") -> dict[str, Any]:
    """Return accelerator and nodes of so many devices, or nodes, of a part."""
    from hardware.catalogue import UnknownPartError

    try:
        part = catalogue.accelerator(words.part)
    except UnknownPartError as error:
        names = [*catalogue.names(), *_aliases(catalogue), *catalogue.platforms]
        close = error.suggestions or tuple(close_names(words.part.lower(), names, 3))
        guess = f"did you mean {' or '.join(close)}? " if close else ""
        message = f"no accelerator, server or cloud machine is called {words.part!r}"
        raise _error(words, message, f"{guess}`planner catalog list` shows all") from None
    per_node, count = part.devices_per_node, _positive(words)
    if words.per_node is not None:
        return {"accelerator": part.name, "nodes": count, "accelerators_per_node": words.per_node}
    if words.counts_nodes:
        return {"accelerator": part.name, "nodes": count}
    if count < per_node:
        return {"accelerator": part.name, "nodes": 1, "accelerators_per_node": count}
    if count % per_node:
        below = count - count % per_node
        message = f"{count} {words.part} are no whole nodes of {per_node}"
        fix = f"{below} or {below + per_node}; a cluster file states other nodes"
        raise _error(words, message, fix)
    return {"accelerator": part.name, "nodes": count // per_node}


def _aliases(catalogue: "Catalogue") -> list[str]:
    return [alias for part in catalogue.accelerators.values() for alias in part.aliases]


def _network(words: ClusterWords, catalogue: "Catalogue") -> str:
    """Return the link that is meant, whose dashes may be left out."""
    wanted = words.network.lower().replace("-", "")
    links = {
        name: link.name
        for link in catalogue.links.values()
        if link.kind == "scale-out"
        for name in (link.name, *link.aliases)
    }
    for name, link_name in links.items():
        if name.replace("-", "") == wanted:
            return link_name
    close = close_names(words.network.lower(), list(links), 3)
    guess = f"did you mean {' or '.join(close)}? " if close else ""
    known = ", ".join(dict.fromkeys(links.values()))
    raise _error(words, f"no network is called {words.network!r}", f"{guess}networks: {known}")


def _error(words: ClusterWords, message: str, fix: str) -> SpecError:
    return SpecError(InputProblem(message, fix, words.text))
