"""The catalogue of accelerators, links and platforms: `hardware/data/*.yaml`, typed and cached.

`load_catalogue()` reads the files once. Where a figure comes from stands beside it, in the
`provenance` of an accelerator or link, keyed by the name of the field (`hbm_bytes_per_s`,
`peak_flops_per_s.bf16`, `efficiency.gemm_frac`).
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from hardware import _reader
from hardware._reader import CatalogueError, TypicalNic
from hardware.parts import Accelerator, Link, Operations, Platform

__all__ = [
    "Catalogue",
    "CatalogueError",
    "RidgePoint",
    "TypicalNic",
    "UnknownPartError",
    "load_catalogue",
    "ridge_points",
]

# A plain path: importlib.resources costs 15 ms at import, and wheels are installed unpacked.
_DATA = Path(__file__).parent / "data"
_ACCELERATOR_FILES = ("nvidia", "others", "cards", "announced")

TRAINING_PRECISIONS = ("bf16", "fp16", "fp8", "fp4")
"""Precisions of training GEMMs, in the order in which a ridge point looks for a peak."""


class UnknownPartError(LookupError):
    """No accelerator, link or platform has the name that was asked for."""

    def __init__(self, kind: str, name: str, suggestions: tuple[str, ...]) -> None:
        super().__init__(kind, name, suggestions)
        self.kind = kind
        self.name = name
        self.suggestions = suggestions

    def __str__(self) -> str:
        near = f" Did you mean {' or '.join(self.suggestions)}?" if self.suggestions else ""
        return (
            f"No {self.kind} in the catalogue is called {self.name!r}.{near} "
            "Change the name (`planner catalog` lists all of them) "
            "or spell the part out in the cluster file."
        )


@dataclass(frozen=True, slots=True)
class RidgePoint:
    """FLOPs per byte above which a device computes longer than it moves data."""

    level: str
    """`hbm`, `scale-up` or `scale-out`."""
    link: str
    """Catalogue name of the link, empty for the memory."""
    precision: str
    flops_per_byte: float


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All accelerators, links and platforms by catalogue name, in the order of the files."""

    accelerators: Mapping[str, Accelerator]
    links: Mapping[str, Link]
    platforms: Mapping[str, Platform]
    """Servers and cloud machines, each with its own network ports."""
    typical_nics: Mapping[str, TypicalNic]
    """By accelerator: the network card of its usual platform."""
    operations: Operations
    """Defaults of what running a cluster costs beside its accelerators."""
    content_hash: str
    """sha256 of every fact with its source, independent of the layout of the files."""
    _accelerator_keys: Mapping[str, str] = field(repr=False)
    _link_keys: Mapping[str, str] = field(repr=False)
    _platform_keys: Mapping[str, str] = field(repr=False)

    def accelerator(self, name: str) -> Accelerator:
        """Return the accelerator with this name or alias, upper or lower case."""
        return self.accelerators[_resolve("accelerator", name, self._accelerator_keys)]

    def link(self, name: str) -> Link:
        """Return the link with this name or alias, upper or lower case."""
        return self.links[_resolve("link", name, self._link_keys)]

    def platform(self, name: str) -> Platform:
        """Return the server or cloud machine with this name or alias, upper or lower case."""
        return self.platforms[_resolve("instance", name, self._platform_keys)]

    def names(self) -> tuple[str, ...]:
        """Return the names of all accelerators, without aliases."""
        return tuple(self.accelerators)


@cache
def load_catalogue() -> Catalogue:
    """Read the catalogue files that are installed with the package."""
    sources = _reader.read_sources(_parse("sources"))
    efficiencies = {
        name: _reader.read_efficiency(name, raw, sources)
        for name, raw in _reader.expand_like(_parse("efficiencies")).items()
    }
    links = {
        name: _reader.read_link(name, raw, sources)
        for name, raw in _reader.expand_like(_parse("links")).items()
    }
    entries = {name: raw for file in _ACCELERATOR_FILES for name, raw in _parse(file).items()}
    read = {
        name: _reader.read_accelerator(name, raw, sources, efficiencies)
        for name, raw in _reader.expand_like(entries).items()
    }
    accelerators = {name: accelerator for name, (accelerator, _) in read.items()}
    nics = {name: nic for name, (_, nic) in read.items()}
    platforms = {
        name: _reader.read_platform(name, raw, sources)
        for name, raw in _reader.expand_like(_parse("platforms")).items()
    }
    operations = _reader.read_operations(_parse("operations"), sources)
    _check_links(accelerators, nics, links)
    _check_platforms(platforms, accelerators, links)
    return Catalogue(
        accelerators=accelerators,
        links=links,
        platforms=platforms,
        typical_nics=nics,
        operations=operations,
        content_hash=_content_hash(
            (accelerators, links, nics, platforms, {"operations": operations})
        ),
        _accelerator_keys=_keys(accelerators),
        _link_keys=_keys(links),
        _platform_keys=_keys(platforms),
    )


def with_parts(
    accelerators: Iterable[Accelerator], links: Iterable[Link], platforms: Iterable[Platform]
) -> Catalogue:
    """Return the installed catalogue with other parts in place of its own."""
    inputs = (
        {part.name: part for part in accelerators},
        {part.name: part for part in links},
        {part.name: part for part in platforms},
    )
    return replace(
        load_catalogue(),
        accelerators=inputs[0],
        links=inputs[1],
        platforms=inputs[2],
        _accelerator_keys=_keys(inputs[0]),
        _link_keys=_keys(inputs[1]),
        _platform_keys=_keys(inputs[2]),
    )


def ridge_points(
    accelerator: Accelerator,
    links: Iterable[Link] = (),
    n_ports_per_device: float = 1.0,
    precision: str | None = None,
) -> list[RidgePoint]:
    """Return the ridge points of memory, scale-up link and each scale-out link of `links`.

    ridge = dense peak / one-way bandwidth per device, both from the data sheet, in FLOP/byte

    The precision defaults to the first of bf16, fp16, fp8, fp4 that the part has. For a typical
    platform pass its network card: `nic = catalogue.typical_nics[name]`, then
    `ridge_points(accelerator, [catalogue.link(nic.link)], nic.n_per_device)`.

    >>> h100 = load_catalogue().accelerator("h100")
    >>> [round(p.flops_per_byte) for p in ridge_points(h100)]  # 989e12 / 3.35e12, 989e12 / 450e9
    [295, 2198]
    """
    peaks = accelerator.peak_flops_per_s
    chosen = precision or next(name for name in TRAINING_PRECISIONS if name in peaks)
    rates = [
        ("hbm", "", accelerator.hbm_bytes_per_s),
        ("scale-up", accelerator.scale_up_link, accelerator.scale_up_bytes_per_s),
    ]
    rates += [
        (link.kind, link.name, link.bytes_per_s * n_ports_per_device)
        for link in links
        if link.kind == "scale-out"
    ]
    return [RidgePoint(level, name, chosen, peaks[chosen] / rate) for level, name, rate in rates]


def _parse(file: str) -> dict[str, Any]:
    """Return the parsed content of one data file, with libyaml's parser where it is built in."""
    import yaml  # 20 ms, and only the loader needs it

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = (_DATA / f"{file}.yaml").read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.load(text, loader)
    return content


def _normalise(name: str) -> str:
    return name.strip().lower().replace(" ", "-").replace("_", "-")


def _keys(
    parts: Mapping[str, Accelerator] | Mapping[str, Link] | Mapping[str, Platform],
) -> dict[str, str]:
    """Return the catalogue name by every name and alias."""
    keys: dict[str, str] = {}
    for part in parts.values():
        for key in (part.name, *part.aliases):
            if keys.setdefault(key, part.name) != part.name:
                raise CatalogueError(f"hardware catalogue: {key!r} names two parts")
    return keys


def _resolve(kind: str, name: str, keys: Mapping[str, str]) -> str:
    key = _normalise(name)
    if key in keys:
        return keys[key]
    import difflib  # 9 ms, and only a wrong name needs it

    close = difflib.get_close_matches(key, keys, n=3, cutoff=0.5)
    raise UnknownPartError(kind, name, tuple(close))


def _check_links(
    accelerators: Mapping[str, Accelerator],
    nics: Mapping[str, TypicalNic],
    links: Mapping[str, Link],
) -> None:
    """Refuse an accelerator whose scale-up link or network card is not in the catalogue."""
    wanted = {(name, part.scale_up_link, "scale-up") for name, part in accelerators.items()}
    wanted |= {(name, nic.link, "scale-out") for name, nic in nics.items()}
    for name, link, kind in sorted(wanted):
        if link not in links or links[link].kind != kind:
            raise CatalogueError(f"hardware catalogue, {name}: {link!r} is no {kind} link")


def _check_platforms(
    platforms: Mapping[str, Platform],
    accelerators: Mapping[str, Accelerator],
    links: Mapping[str, Link],
) -> None:
    """Refuse a platform whose accelerator or network port is not in the catalogue."""
    for name, platform in platforms.items():
        if platform.accelerator not in accelerators:
            raise CatalogueError(
                f"hardware catalogue, {name}: {platform.accelerator!r} is no accelerator"
            )
        if platform.nic not in links or links[platform.nic].kind != "scale-out":
            raise CatalogueError(f"hardware catalogue, {name}: {platform.nic!r} is no port")


def _content_hash(parts: tuple[Mapping[str, Any], ...]) -> str:
    text = json.dumps(parts, sort_keys=True, default=_slots)
    return hashlib.sha256(text.encode()).hexdigest()


def _slots(part: Any) -> dict[str, Any]:
    """Return the fields of a slotted dataclass: a third of the time of `dataclasses.asdict`."""
    return {name: getattr(part, name) for name in part.__slots__}
