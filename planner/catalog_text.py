"""The catalogue as text."""

from collections.abc import Callable

from hardware.catalogue import Catalogue, UnknownPartError, load_catalogue, ridge_points
from hardware.parts import Accelerator, Link, Platform
from planner.errors import CatalogError
from planner.tables import wrapped
from planner.units import format_bandwidth, format_link_speed, format_rate, format_size


def listing() -> str:
    """Return all accelerators, links and platforms, one line each."""
    catalogue = load_catalogue()
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


def sheet(name: str) -> str:
    """Return every figure of one part with its source and date."""
    catalogue = load_catalogue()
    shows: tuple[Callable[[], str], ...] = (
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
    raise CatalogError(f"no part called {name!r}", f"{hint}planner catalog list")


def _figures(rows: list[tuple[str, str, str]], part: Accelerator | Link | Platform) -> list[str]:
    """Return the lines of named figures, then the sources that they refer to by number."""
    width = max(len(label) for label, _, _ in rows)
    values = max(len(value) for _, value, _ in rows)
    sources: dict[str, int] = {}
    lines = []
    for label, value, key in rows:
        origin = part.provenance.get(key)
        note = ""
        if origin:
            number = sources.setdefault(f"{origin.source} ({origin.date})", len(sources) + 1)
            note = f"  [{number}]" + ("" if origin.status == "confirmed" else f" {origin.status}")
        lines.append(f"  {label:<{width}}  {value:<{values}}{note}".rstrip())
    lines.append("  sources:")
    for source, number in sources.items():
        lines += wrapped(f"    [{number}]", source)
    return lines


def _announced(part: Accelerator | Link) -> str:
    return ", announced: nobody has measured it" if part.status == "assumed" else ""


def _accelerator(catalogue: Catalogue, part: Accelerator) -> str:
    eff = part.efficiency
    rows = [
        ("memory", format_size(part.memory_bytes), "memory_bytes"),
        ("HBM", format_bandwidth(part.hbm_bytes_per_s), "hbm_bytes_per_s"),
        *((f"{p} dense peak", format_rate(v), f"peak_flops_per_s.{p}")
          for p, v in part.peak_flops_per_s.items()),
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
        *((f"attention, {k} fwd/bwd", f"{v[0]:.3f} / {v[1]:.3f}", "efficiency.attention_frac")
          for k, v in eff.attention_frac.items()),
    ]  # fmt: skip
    lines = [f"{part.name} ({part.vendor}, {part.generation}){_announced(part)}"]
    if part.aliases:
        lines += wrapped("  also called", ", ".join(part.aliases))
    lines += _figures(rows, part)
    lines.append("  ridge points (FLOP per byte above which compute is the limit):")
    nic = catalogue.typical_nics.get(part.name)
    links = [catalogue.link(nic.link)] if nic else []
    for point in ridge_points(part, links, nic.n_per_device if nic else 1.0):
        label = f"{point.level} {point.link}".strip()
        lines.append(f"    {label:<24} {point.flops_per_byte:>9,.0f}  ({point.precision})")
    return "\n".join(lines) + "\n"


def _platform(catalogue: Catalogue, platform: Platform) -> str:
    link = catalogue.links[platform.nic]
    share = format_bandwidth(port_bytes_per_device_s(catalogue, platform))
    rows = [
        ("accelerator", platform.accelerator, ""),
        ("devices in a node", str(platform.devices_per_node), "devices_per_node"),
        (
            "ports in a node",
            f"{platform.nics_per_node} x {link.name}, {format_link_speed(link.bytes_per_s)} each",
            "nics_per_node",
        ),
        ("per device, one way", share, "nics_per_node"),
    ]
    lines = [f"{platform.name} ({platform.kind}, {platform.provider})"]
    if platform.aliases:
        lines += wrapped("  also called", ", ".join(platform.aliases))
    return "\n".join([*lines, *_figures(rows, platform)]) + "\n"


def _link(link: Link) -> str:
    def three(values: tuple[float, float, float]) -> str:
        return " / ".join(f"{v * 1e6:.1f}" for v in values) + " us (LL / LL128 / Simple)"

    speed = (
        format_bandwidth(link.bytes_per_s) if link.bytes_per_s else "depends on the accelerator"
    )
    rows = [
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
    lines = [f"{link.name} ({link.kind}){_announced(link)}"]
    if link.aliases:
        lines += wrapped("  also called", ", ".join(link.aliases))
    return "\n".join(lines + _figures(rows, link)) + "\n"
