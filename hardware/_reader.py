"""Turns the parsed catalogue files into the plain types of `hardware.parts`.

A figure in a file is a mapping with `value` and `source`, the latter a tag of `sources.yaml`;
`status`, `date` and `note` refine what the tag stands for. `like` takes over from another entry
whatever an entry does not state itself, names and aliases excepted. `status: assumed` of an
accelerator or link makes an announced part of it: no figure of it counts as confirmed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hardware._units import parse_quantity, unit_scale
from hardware.parts import (
    PROTOCOLS,
    Accelerator,
    Efficiency,
    Host,
    Link,
    Operations,
    Platform,
    Provenance,
)
from hardware.torus import Torus

Raw = Mapping[str, Any]
Triple = tuple[float, float, float]

_FIGURE_KEYS = {"value", "source", "status", "date", "note"}
_SOURCE_KEYS = _FIGURE_KEYS - {"value"}
_STATUSES = ("confirmed", "assumed")


class CatalogueError(ValueError):
    """A catalogue file says something that the loader does not understand."""


@dataclass(frozen=True, slots=True)
class TypicalNic:
    """The scale-out network card that an accelerator's usual platform has."""

    link: str
    """Catalogue name of the link."""
    n_per_device: float
    """Ports per device; below 1 where devices share one."""
    provenance: Provenance


@dataclass(slots=True)
class _Entry:
    """One entry of a file while it is read: which keys were used, where its figures come from."""

    name: str
    raw: Raw
    sources: Mapping[str, Provenance]
    provenance: dict[str, Provenance] = field(default_factory=dict)
    used: set[str] = field(default_factory=lambda: {"aliases", "like"})

    def fail(self, key: str, what: str) -> CatalogueError:
        return CatalogueError(f"hardware catalogue, {self.name}, {key}: {what}")

    def get(self, key: str) -> Any:
        self.used.add(key)
        try:
            return self.raw[key]
        except KeyError:
            raise self.fail(key, "is missing") from None

    def source(self, key: str, figure: Raw) -> Provenance:
        """Expand the tag of a figure and apply what the figure says itself."""
        try:
            origin = self.sources[figure["source"]]
        except KeyError:
            raise self.fail(
                key, f"source {figure.get('source')!r} is not in sources.yaml"
            ) from None
        status = self._known_status(key, figure.get("status", origin.status))
        if self.status() == "assumed":
            status = "assumed"
        note = figure.get("note")
        text = f"{origin.source}; {note}" if note else origin.source
        return Provenance(text, str(figure.get("date", origin.date)), status)

    def status(self) -> str:
        """Return the status of the entry itself."""
        self.used.add("status")
        return self._known_status("status", self.raw.get("status", "confirmed"))

    def _known_status(self, key: str, status: str) -> str:
        if status not in _STATUSES:
            raise self.fail(key, f"status {status!r} is not one of {', '.join(_STATUSES)}")
        return status

    def figure(self, key: str, *fields: str, extra: frozenset[str] = frozenset()) -> Any:
        """Return the value of the figure under `key`; note its origin under each of `fields`."""
        figure = self.get(key)
        unknown = set(figure) - _FIGURE_KEYS - extra
        if unknown or "value" not in figure:
            raise self.fail(key, f"wants value and source, not {', '.join(sorted(figure))}")
        origin = self.source(key, figure)
        self.provenance.update(dict.fromkeys(fields, origin))
        return figure["value"]

    def quantity(
        self, key: str, dimension: str, name: str, extra: frozenset[str] = frozenset()
    ) -> float:
        """Return a figure that is written with a unit."""
        value = self.figure(key, name, extra=extra)
        try:
            return parse_quantity(str(value), dimension)
        except ValueError as error:
            raise self.fail(key, str(error)) from None

    def number(self, key: str, name: str) -> float:
        """Return a figure that is a plain number."""
        return float(self.figure(key, name))

    def triple(self, key: str, values: Any, factor: str) -> Triple:
        """Return one number per protocol, each times `factor`."""
        if len(values) != len(PROTOCOLS):
            raise self.fail(key, f"wants {len(PROTOCOLS)} numbers: {', '.join(PROTOCOLS)}")
        first, second, third = (unit_scale(float(value), factor) for value in values)
        return first, second, third

    def close(self) -> None:
        """Refuse keys that nothing has read: most are typing errors."""
        unknown = sorted(set(self.raw) - self.used)
        if unknown:
            raise self.fail(unknown[0], "is not a key of this kind of entry")


def read_sources(raw: Raw) -> dict[str, Provenance]:
    """Return the table of sources by tag."""
    return {
        tag: Provenance(entry["text"], str(entry["date"]), entry.get("status", "confirmed"))
        for tag, entry in raw.items()
    }


def expand_like(entries: Raw) -> dict[str, dict[str, Any]]:
    """Return the entries with everything that they take over through `like` filled in."""

    def expand(name: str, seen: tuple[str, ...]) -> dict[str, Any]:
        own = entries.get(name)
        if own is None or name in seen:
            raise CatalogueError(
                f"hardware catalogue, like: {' -> '.join((*seen, name))} leads nowhere"
            )
        parent = own.get("like")
        inherited = expand(parent, (*seen, name)) if parent else {}
        return {**inherited, "aliases": [], **own}

    return {name: expand(name, ()) for name in entries}


def read_efficiency(
    name: str, raw: Raw, sources: Mapping[str, Provenance]
) -> tuple[Efficiency, dict[str, Provenance]]:
    """Return the sustained fractions of one generation and where each comes from."""
    entry = _Entry(name, raw, sources)
    kernels = entry.get("attention")
    entry.provenance["attention_frac"] = entry.source("attention", kernels)
    entry.used.add("power_note")
    efficiency = Efficiency(
        gemm_frac=entry.number("gemm_frac", "gemm_frac"),
        gemm_k_half=entry.number("gemm_k_half", "gemm_k_half"),
        wgrad_frac=entry.number("wgrad_frac", "wgrad_frac"),
        hbm_frac=entry.number("hbm_frac", "hbm_frac"),
        kernel_latency_s=entry.quantity("kernel_latency", "seconds", "kernel_latency_s"),
        attention_frac={
            kernel: (float(fracs[0]), float(fracs[1]))
            for kernel, fracs in kernels.items()
            if kernel not in _SOURCE_KEYS
        },
        attention_seq_half=entry.number("attention_seq_half", "attention_seq_half"),
        power_note=raw.get("power_note", ""),
    )
    entry.close()
    return efficiency, entry.provenance


def _read_peaks(entry: _Entry) -> dict[str, float]:
    """Return the dense peak by precision in FLOP/s; the file has groups of TFLOP/s by source."""
    peaks: dict[str, float] = {}
    for group in entry.get("peaks_tflops"):
        origin = entry.source("peaks_tflops", group)
        for precision, tflops in group.items():
            if precision not in _SOURCE_KEYS:
                peaks[precision] = unit_scale(float(tflops), "1e12")
                entry.provenance[f"peak_flops_per_s.{precision}"] = origin
    return peaks


def _read_in_switch(entry: _Entry) -> tuple[float, int]:
    """Return the in-switch all-reduce rate and its smallest group, zeros where there is none."""
    entry.used.add("in_switch")
    if entry.raw.get("in_switch") is None:
        return 0.0, 0
    name = "in_switch_all_reduce_bytes_per_s"
    rate = entry.quantity("in_switch", "bytes_per_s", name, extra=frozenset({"min_ranks"}))
    entry.provenance["in_switch_min_ranks"] = entry.provenance[name]
    return rate, int(entry.raw["in_switch"]["min_ranks"])


def _read_count(entry: _Entry, key: str, name: str, default: int) -> int:
    """Return a figure that an entry may leave out."""
    entry.used.add(key)
    return default if entry.raw.get(key) is None else int(entry.number(key, name))


def _read_host(entry: _Entry, per_node: int) -> Host | None:
    """Return a device's share of the host.

    The file has the link of one device, and the memory of a host that `devices` share: those of a
    node unless it says so.
    """
    entry.used.add("host")
    figures = entry.raw.get("host")
    if figures is None:
        return None
    figures = {"status": entry.status(), **figures}
    inner = _Entry(entry.name, figures, entry.sources, entry.provenance)
    link = inner.quantity("link", "bytes_per_s", "host.link_bytes_per_s")
    memory = inner.quantity("memory", "bytes", "host.memory_bytes")
    rate = inner.quantity("bandwidth", "bytes_per_s", "host.memory_bytes_per_s")
    inner.used.update(("devices", "status"))
    shared_by = int(figures.get("devices", per_node))
    inner.close()
    return Host(link, memory / shared_by, rate / shared_by)


def _read_torus(entry: _Entry) -> Torus | None:
    """Return how chips are joined, where they are a torus; `value` is the number of axes."""
    entry.used.add("torus")
    if entry.raw.get("torus") is None:
        return None
    keys = ("ring_axis", "largest", "devices_per_chip", "die_links")
    n_axes = int(entry.figure("torus", "torus", extra=frozenset(keys)))
    numbers = entry.raw["torus"]
    return Torus(n_axes, *(int(numbers[key]) for key in keys if key in numbers))


def read_accelerator(
    name: str,
    raw: Raw,
    sources: Mapping[str, Provenance],
    efficiencies: Mapping[str, tuple[Efficiency, dict[str, Provenance]]],
) -> tuple[Accelerator, TypicalNic]:
    """Return one accelerator and the network card of its usual platform."""
    entry = _Entry(name, raw, sources)
    generation = entry.get("generation")
    if generation not in efficiencies:
        raise entry.fail("generation", f"{generation!r} is not in efficiencies.yaml")
    efficiency, origins = efficiencies[generation]
    if entry.status() == "assumed":  # the shares of a generation before it
        origins = {key: replace(value, status="assumed") for key, value in origins.items()}
    entry.provenance.update({f"efficiency.{key}": value for key, value in origins.items()})
    in_switch, min_ranks = _read_in_switch(entry)
    nic = entry.get("nic")
    typical = TypicalNic(nic["link"], float(nic["per_device"]), entry.source("nic", nic))
    per_node = _read_count(entry, "node", "devices_per_node", 8)
    accelerator = Accelerator(
        name=name,
        vendor=entry.get("vendor"),
        generation=generation,
        memory_bytes=entry.quantity("memory", "bytes", "memory_bytes"),
        hbm_bytes_per_s=entry.quantity("hbm", "bytes_per_s", "hbm_bytes_per_s"),
        peak_flops_per_s=_read_peaks(entry),
        n_sms=int(entry.number("n_sms", "n_sms")),
        scale_up_link=entry.get("scale_up")["link"],
        scale_up_bytes_per_s=entry.quantity(
            "scale_up", "bytes_per_s", "scale_up_bytes_per_s", extra=frozenset({"link"})
        ),
        ring_bytes_per_s=entry.quantity("ring", "bytes_per_s", "ring_bytes_per_s"),
        scale_up_domain=int(entry.number("domain", "scale_up_domain")),
        tdp_w=entry.quantity("tdp", "watts", "tdp_w"),
        efficiency=efficiency,
        provenance=entry.provenance,
        aliases=tuple(raw["aliases"]),
        in_switch_all_reduce_bytes_per_s=in_switch,
        in_switch_min_ranks=min_ranks,
        n_peer_links=_read_count(entry, "peer_links", "n_peer_links", 0),
        devices_per_node=per_node,
        host=_read_host(entry, per_node),
        torus=_read_torus(entry),
        status=entry.status(),
    )
    entry.close()
    return accelerator, typical


def read_link(name: str, raw: Raw, sources: Mapping[str, Provenance]) -> Link:
    """Return one link; only a scale-out link has the rate of a port."""
    entry = _Entry(name, raw, sources)
    kind = entry.get("kind")
    latency = entry.get("latency_us")
    origin = entry.source("latency_us", latency)
    names = ("ring_base", "ring_hop", "tree_base", "tree_hop")
    entry.provenance.update({f"{key}_s": origin for key in names})
    entry.provenance["p2p_latency_s"] = origin
    ring_base, ring_hop, tree_base, tree_hop = (
        entry.triple("latency_us", latency[key], "1e-6") for key in names
    )
    fracs = entry.figure("protocol_frac", "protocol_frac")
    link = Link(
        name=name,
        kind=kind,
        bytes_per_s=(
            entry.quantity("port", "bytes_per_s", "bytes_per_s") if kind == "scale-out" else 0.0
        ),
        efficiency=entry.number("efficiency", "efficiency"),
        ring_base_s=ring_base,
        ring_hop_s=ring_hop,
        tree_base_s=tree_base,
        tree_hop_s=tree_hop,
        protocol_bytes_per_s=entry.triple(
            "caps", entry.figure("caps", "protocol_bytes_per_s"), "1e9"
        ),
        protocol_frac=entry.triple("protocol_frac", fracs, "1"),
        p2p_latency_s=unit_scale(float(latency["p2p"]), "1e-6"),
        lockstep=bool(raw.get("lockstep") and entry.figure("lockstep", "lockstep")),
        ring_decline=(
            entry.number("ring_decline", "ring_decline") if "ring_decline" in raw else 0.0
        ),
        provenance=entry.provenance,
        aliases=tuple(raw["aliases"]),
        sums_in_switch=bool(_read_count(entry, "sums_in_switch", "sums_in_switch", 0)),
        status=entry.status(),
    )
    entry.close()
    return link


def read_platform(name: str, raw: Raw, sources: Mapping[str, Provenance]) -> Platform:
    """Return one server or cloud machine."""
    entry = _Entry(name, raw, sources)
    kind = entry.get("kind")
    if kind not in ("platform", "instance"):
        raise entry.fail("kind", f"{kind!r} is neither platform nor instance")
    nics = entry.figure("nics", "nics_per_node", extra=frozenset({"link"}))
    entry.provenance["nic"] = entry.provenance["nics_per_node"]
    platform = Platform(
        name=name,
        kind=kind,
        provider=entry.get("provider"),
        accelerator=entry.get("accelerator"),
        devices_per_node=int(entry.number("devices", "devices_per_node")),
        nic=entry.get("nics")["link"],
        nics_per_node=int(nics),
        provenance=entry.provenance,
        aliases=tuple(raw["aliases"]),
    )
    entry.close()
    return platform


def read_operations(raw: Raw, sources: Mapping[str, Provenance]) -> Operations:
    """Return what running a cluster costs beside its accelerators, where a file says nothing."""
    entry = _Entry("operations", raw, sources)
    operations = Operations(
        power_overhead=entry.number("power_overhead", "power_overhead"),
        pue=entry.number("pue", "pue"),
        device_mtbf_s=entry.quantity("device_mtbf", "seconds", "device_mtbf_s"),
        restart_s=entry.quantity("restart", "seconds", "restart_s"),
        checkpoint_bytes_per_s=entry.quantity(
            "checkpoint_bandwidth_per_device", "bytes_per_s", "checkpoint_bytes_per_s"
        ),
        bandwidth_is_per_device=True,
        provenance=entry.provenance,
    )
    entry.close()
    return operations
