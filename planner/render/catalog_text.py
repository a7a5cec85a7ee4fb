"""The catalogue as text."""

from collections.abc import Callable
from dataclasses import dataclass

from hardware.catalogue import (
    Catalogue,
    RidgePoint,
    UnknownPartError,
    load_catalogue,
    ridge_points,
)
from hardware.parts import Accelerator, Link, Platform, Provenance
from planner.errors import NoPartError
from planner.text_lines import wrapped
from planner.units import format_bandwidth, format_link_speed, format_rate, format_size


def catalog_list(catalogue: Catalogue | None = None) -> str:
    """Return all accelerators, links and platforms, one line each; of the installed catalogue."""
    catalogue = catalogue or load_catalogue()
    lines = [
        f"{'accelerator':<28} {'memory':>10} {'HBM':>11} {'bf16 dense':>13} "
        f"{'scale-up':>11}  domain"
    ]
    for part in catalogue.accelerators.values():
        bf16 = part.peak_flops_per_s.get("bf16")
        lines.append(
            f"{part.name:<28} {format_size(part.memory_bytes):>10} "
            f"{format_bandwidth(part.hbm_bytes_per_s):>11} "
            f"{format_rate(bf16) if bf16 else '-':>13} "
            f"{format_bandwidth(part.scale_up_bytes_per_s):>11}  {part.scale_up_domain}"
        )
    lines += ["", f"{'link':<28} {'kind':<10} {'per port, one way':>18}"]
    for link in catalogue.links.values():
        speed = format_bandwidth(link.bytes_per_s) if link.bytes_per_s else "by accelerator"
        lines.append(f"{link.name:<28} {link.kind:<10} {speed:>18}")
    lines += [
        "",
        f"{'instance or platform':<28} {'of':<13} {'node':<22} {'ports':<17} {'each':>9}",
    ]
    for platform in catalogue.platforms.values():
        ports = f"{platform.nics_per_node} x {platform.nic}"
        node = f"{platform.devices_per_node} x {platform.accelerator}"
        share = format_bandwidth(port_bytes_per_device_s(catalogue, platform))
        lines.append(
            f"{platform.name:<28} {platform.provider:<13} {node:<22} {ports:<17} {share:>9}"
        )
    lines.append("each: of the ports' speed, one way, per device")
    return "\n".join(lines) + "\n"


def port_bytes_per_device_s(catalogue: Catalogue, platform: Platform) -> float:
    """Return the speed of a platform's ports, one-way, bytes per second and device."""
    ports = catalogue.links[platform.nic].bytes_per_s * platform.nics_per_node
    return ports / platform.devices_per_node


@dataclass(frozen=True, slots=True)
class Sheet:
    """Every figure of one part, in words."""

    name: str
    kind: str
    """`accelerator`, `link` or `platform`."""
    of: str
    """Vendor and generation, kind of link, or provider."""
    aliases: tuple[str, ...]
    announced: bool
    """Whether nobody has measured it."""
    figures: tuple[tuple[str, str, Provenance | None], ...]
    """What it is, its value with unit, where it was read."""
    ridge: tuple[RidgePoint, ...] = ()
    """FLOP per byte above which compute is the limit, by level; accelerators alone."""


def sheet_of(name: str, catalogue: Catalogue | None = None) -> Sheet:
    """Return every figure of one part; `NoPartError` for an unknown name."""
    catalogue = catalogue or load_catalogue()
    shows: tuple[Callable[[], Sheet], ...] = (
        lambda: _accelerator(catalogue, catalogue.accelerator(name)),
        lambda: _link(catalogue.link(name)),
        lambda: _platform(catalogue, catalogue.platform(name)),
    )
    near: list[str] = []
    for show in shows:
        try:
            return show()
        except UnknownPartError as missing:
            near += missing.suggestions
    close = list(dict.fromkeys(near))[:3]
    hint = f"did you mean {', '.join(close)}? " if close else ""
    raise NoPartError(f"no part called {name!r}", f"{hint}planner catalog list")


def sheet(name: str, catalogue: Catalogue | None = None) -> str:
    """Return every figure of one part with its source and date, as `catalog_list`."""
    found = sheet_of(name, catalogue)
    announced = ", announced: nobody has measured it" if found.announced else ""
    lines = [f"{found.name} ({found.of}){announced}"]
    if found.aliases:
        lines += wrapped("  also called", ", ".join(found.aliases))
    lines += _figures(found)
    if found.ridge:
        lines.append("  ridge points (FLOP per byte above which compute is the limit):")
    for point in found.ridge:
        label = f"{point.level} {point.link}".strip()
        lines.append(f"    {label:<24} {point.flops_per_byte:>9,.0f}  ({point.precision})")
    return "\n".join(lines) + "\n"


def _figures(found: Sheet) -> list[str]:
    """Return the lines of named figures, then the sources that they refer to by number."""
    width = max(len(label) for label, _, _ in found.figures)
    values = max(len(value) for _, value, _ in found.figures)
    sources: dict[str, int] = {}
    lines = []
    for label, value, origin in found.figures:
        note = ""
        if origin:
            number = sources.setdefault(f"{origin.source} ({origin.date})", len(sources) + 1)
            note = f"  [{number}]" + ("" if origin.status == "confirmed" else f" {origin.status}")
        lines.append(f"  {label:<{width}}  {value:<{values}}{note}".rstrip())
    lines.append("  sources:")
    for source, number in sources.items():
        lines += wrapped(f"    [{number}]", source)
    return lines


Rows = list[tuple[str, str, str]]
"""What a figure is, its value, and the key of its provenance."""


def _with_sources(
    rows: Rows, part: Accelerator | Link | Platform
) -> tuple[tuple[str, str, Provenance | None], ...]:
    return tuple((label, value, part.provenance.get(key)) for label, value, key in rows)


def _accelerator(catalogue: Catalogue, part: Accelerator) -> Sheet:
    eff = part.efficiency
    rows: Rows = [
        ("memory", format_size(part.memory_bytes), "memory_bytes"),
        ("HBM", format_bandwidth(part.hbm_bytes_per_s), "hbm_bytes_per_s"),
        *(
            (f"{p} dense peak", format_rate(v), f"peak_flops_per_s.{p}")
            for p, v in part.peak_flops_per_s.items()
        ),
        ("multiprocessors", str(part.n_sms), "n_sms"),
        (
            f"{part.scale_up_link}, one way",
            format_bandwidth(part.scale_up_bytes_per_s),
            "scale_up_bytes_per_s",
        ),
        ("ring collectives reach", format_bandwidth(part.ring_bytes_per_s), "ring_bytes_per_s"),
        *(
            [
                ("links to peers", f"{part.n_peer_links} of equal width", "n_peer_links"),
                ("two devices reach", format_bandwidth(part.pair_bytes_per_s), "ring_bytes_per_s"),
            ]
            if part.n_peer_links
            else []
        ),
        ("scale-up domain", f"{part.scale_up_domain} devices", "scale_up_domain"),
        *(
            [("node", f"{part.devices_per_node} devices", "devices_per_node")]
            if "devices_per_node" in part.provenance
            else []
        ),
        ("power", f"{part.tdp_w:g} W" if part.tdp_w else "not published", "tdp_w"),
        ("sustained GEMM share", f"{eff.gemm_frac:.2f}", "efficiency.gemm_frac"),
        ("sustained HBM share", f"{eff.hbm_frac:.2f}", "efficiency.hbm_frac"),
        *(
            (f"attention, {k} fwd/bwd", f"{v[0]:.3f} / {v[1]:.3f}", "efficiency.attention_frac")
            for k, v in eff.attention_frac.items()
        ),
    ]
    nic = catalogue.typical_nics.get(part.name)
    links = [catalogue.link(nic.link)] if nic else []
    ridge = tuple(ridge_points(part, links, nic.n_per_device if nic else 1.0))
    return Sheet(
        part.name,
        "accelerator",
        f"{part.vendor}, {part.generation}",
        tuple(part.aliases),
        part.status == "assumed",
        _with_sources(rows, part),
        ridge,
    )


def _platform(catalogue: Catalogue, platform: Platform) -> Sheet:
    link = catalogue.links[platform.nic]
    share = format_bandwidth(port_bytes_per_device_s(catalogue, platform))
    rows: Rows = [
        ("accelerator", platform.accelerator, ""),
        ("devices in a node", str(platform.devices_per_node), "devices_per_node"),
        (
            "ports in a node",
            f"{platform.nics_per_node} x {link.name}, {format_link_speed(link.bytes_per_s)} each",
            "nics_per_node",
        ),
        ("per device, one way", share, "nics_per_node"),
    ]
    return Sheet(
        platform.name,
        "platform",
        f"{platform.kind}, {platform.provider}",
        tuple(platform.aliases),
        False,
        _with_sources(rows, platform),
    )


def _link(link: Link) -> Sheet:
    def three(values: tuple[float, float, float]) -> str:
        return " / ".join(f"{v * 1e6:.1f}" for v in values) + " us (LL / LL128 / Simple)"

    speed = (
        format_bandwidth(link.bytes_per_s) if link.bytes_per_s else "depends on the accelerator"
    )
    rows: Rows = [
        ("per port, one way", speed, "bytes_per_s"),
        ("share reached", f"{link.efficiency:.3f}", "efficiency"),
        ("ring hop", three(link.ring_hop_s), "ring_hop_s"),
        ("tree hop", three(link.tree_hop_s), "tree_hop_s"),
        ("one message", f"{link.p2p_latency_s * 1e6:.1f} us", "p2p_latency_s"),
    ]
    if link.ring_decline:
        share = f"(k/2)^-{link.ring_decline:.2f} of it"
        rows.append(("all-gather over k > 2 domains", share, "ring_decline"))
    if link.sums_in_switch:
        rows.append(("all-reduces", "summed in the switches with `sharp: true`", "sums_in_switch"))
    return Sheet(
        link.name,
        "link",
        link.kind,
        tuple(link.aliases),
        link.status == "assumed",
        _with_sources(rows, link),
    )
