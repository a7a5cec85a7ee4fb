"""The catalogue: all parts, and every figure of one with its source."""

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
from planner.documents import Blank, Code, Grid, GridSpacing, Paragraph, Part
from planner.errors import NoPartError
from planner.units import format_bandwidth, format_link_speed, format_rate, format_size


def catalog_document(catalogue: Catalogue | None = None) -> list[Part]:
    """Return all accelerators, links and platforms, a row each; of the installed catalogue."""
    catalogue = catalogue or load_catalogue()
    return [
        _accelerator_grid(catalogue),
        Blank(),
        _link_grid(catalogue),
        Blank(),
        _platform_grid(catalogue),
        Paragraph("each: of the ports' speed, one way, per device"),
    ]


def _accelerator_grid(catalogue: Catalogue) -> Grid:
    rows = []
    for part in catalogue.accelerators.values():
        bf16 = part.peak_flops_per_s.get("bf16")
        rows.append(
            (
                part.name,
                format_size(part.memory_bytes),
                format_bandwidth(part.hbm_bytes_per_s),
                format_rate(bf16) if bf16 else "-",
                format_bandwidth(part.scale_up_bytes_per_s),
                str(part.scale_up_domain),
            )
        )
    heads = ("accelerator", "memory", "HBM", "bf16 dense", "scale-up", "domain")
    spacing = GridSpacing((28, 10, 11, 13, 11, 0), (0, 1, 1, 1, 1, 2))
    return Grid(heads, tuple(rows), "Accelerators", (1, 2, 3, 4), spacing=spacing)


def _link_grid(catalogue: Catalogue) -> Grid:
    rows = tuple(
        (
            *(link.name, link.kind),
            format_bandwidth(link.bytes_per_s) if link.bytes_per_s else "by accelerator",
        )
        for link in catalogue.links.values()
    )
    heads = ("link", "kind", "per port, one way")
    return Grid(heads, rows, "Links", (2,), spacing=GridSpacing((28, 10, 18), 1))


def _platform_grid(catalogue: Catalogue) -> Grid:
    rows = tuple(
        (
            *(platform.name, platform.provider),
            f"{platform.devices_per_node} x {platform.accelerator}",
            f"{platform.nics_per_node} x {platform.nic}",
            format_bandwidth(port_bytes_per_device_s(catalogue, platform)),
        )
        for platform in catalogue.platforms.values()
    )
    heads = ("instance or platform", "of", "node", "ports", "each")
    return Grid(heads, rows, "Platforms", (4,), spacing=GridSpacing((28, 13, 22, 17, 9), 1))


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
    family: str
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


def sheet_document(sheet: Sheet) -> list[Part]:
    """Return every figure of one part with its source and date."""
    announced = ", announced: nobody has measured it" if sheet.announced else ""
    parts: list[Part] = [Code((f"{sheet.name} ({sheet.family}){announced}",))]
    if sheet.aliases:
        parts.append(Paragraph(", ".join(sheet.aliases), label="  also called"))
    parts += _figure_parts(sheet)
    if sheet.ridge:
        rows = tuple(
            (
                f"{point.level} {point.link}".strip(),
                f"{point.flops_per_byte:,.0f}",
                f"({point.precision})",
            )
            for point in sheet.ridge
        )
        caption = "  ridge points (FLOP per byte above which compute is the limit):"
        spacing = GridSpacing((24, 9, 0), (0, 1, 2), 4, captioned=True)
        parts.append(Grid(("",) * 3, rows, caption, (1,), spacing=spacing))
    return parts


def _figure_parts(sheet: Sheet) -> list[Part]:
    """Return the named figures, then the sources that they refer to by number."""
    sources: dict[str, int] = {}
    rows = []
    for label, value, provenance in sheet.figures:
        note = ""
        if provenance:
            source = f"{provenance.source} ({provenance.date})"
            number = sources.setdefault(source, len(sources) + 1)
            status = "" if provenance.status == "confirmed" else f" {provenance.status}"
            note = f"[{number}]{status}"
        rows.append((label, value, note))
    return [
        Grid(("",) * 3, tuple(rows), "Figures", spacing=GridSpacing(indent=2)),
        Paragraph("  sources:"),
        *(Paragraph(source, label=f"    [{number}]") for source, number in sources.items()),
    ]


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
        rows.append(("all rings at once, k > 2 domains", share, "ring_decline"))
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
