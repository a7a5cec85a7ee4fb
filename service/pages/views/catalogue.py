"""The view of the catalogue: accelerators, links, servers; each figure with its source."""

from functools import cache
from typing import TYPE_CHECKING, Any

from service.handlers.problems import Fault, refused
from service.pages.render import render_page
from service.pages.rows import matches
from service.pages.visit import Visit

if TYPE_CHECKING:
    from planner.render.catalog import Sheet

KINDS = (
    (
        "accelerators",
        "Accelerators",
        ("name", "vendor", "memory", "HBM", "bf16 dense", "scale-up, one way", "domain"),
    ),
    ("links", "Links", ("name", "kind", "per port, one way")),
    (
        "platforms",
        "Servers and cloud machines",
        ("name", "provider", "node", "ports", "per device, one way"),
    ),
)
"""Sections of the page: key, title, heads."""
MOST_FILTER_CHARS = 200


@cache
def parts() -> dict[str, tuple[tuple[str, ...], ...]]:
    """Return the rows of every section: what is shown, then the words that a filter looks at."""
    from hardware.catalogue import load_catalogue
    from planner.render.catalog import port_bytes_per_device_s
    from planner.units import format_bandwidth, format_rate, format_size

    catalogue = load_catalogue()

    def words(part: Any, *more: str) -> str:
        """Join what names a part and what it is; sources name other parts too."""
        states = {p.status for p in part.provenance.values()}
        return " ".join((part.name, *part.aliases, *more, *sorted(states)))

    accelerators = []
    for a in catalogue.accelerators.values():
        bf16 = a.peak_flops_per_s.get("bf16")
        accelerators.append(
            (
                a.name,
                a.vendor,
                format_size(a.memory_bytes),
                format_bandwidth(a.hbm_bytes_per_s),
                format_rate(bf16) if bf16 else "-",
                format_bandwidth(a.scale_up_bytes_per_s),
                f"{a.scale_up_domain} devices",
                words(
                    a,
                    "accelerator",
                    a.vendor,
                    a.generation,
                    "announced" if a.status == "assumed" else "",
                ),
            )
        )
    links = [
        (
            x.name,
            x.kind,
            format_bandwidth(x.bytes_per_s) if x.bytes_per_s else "by accelerator",
            words(x, "link", x.kind),
        )
        for x in catalogue.links.values()
    ]
    platforms = [
        (
            x.name,
            x.provider,
            f"{x.devices_per_node} x {x.accelerator}",
            f"{x.nics_per_node} x {x.nic}",
            format_bandwidth(port_bytes_per_device_s(catalogue, x)),
            words(x, x.kind, x.provider, x.accelerator),
        )
        for x in catalogue.platforms.values()
    ]
    return {
        "accelerators": tuple(accelerators),
        "links": tuple(links),
        "platforms": tuple(platforms),
    }


async def catalogue(visit: Visit) -> str:
    """Show all parts, or those that a filter leaves."""
    from hardware.catalogue import load_catalogue

    text = visit.get("filter")[:MOST_FILTER_CHARS]
    result = parts()
    sections = [
        {
            "key": key,
            "title": title,
            "heads": heads,
            "n_all": len(result[key]),
            "rows": [row[:-1] for row in result[key] if matches(row[-1:], [], text)],
        }
        for key, title, heads in KINDS
    ]
    return render_page(
        visit,
        "catalogue.html.j2",
        sections=sections,
        filter=text,
        hash=load_catalogue().content_hash[:12],
        status=STATUS,
    )


STATUS = (
    ("confirmed", "a second source agrees, or the maker states it"),
    ("assumed", "one weak source, an estimate, or taken over from a sibling part"),
)


async def part(visit: Visit) -> str:
    """Show every figure of one part."""
    from planner.errors import CatalogError
    from planner.render.catalog import sheet_of

    name = visit.parts["name"]
    try:
        sheet = sheet_of(name)
    except CatalogError as error:
        fault = Fault(error.message, error.hint.removesuffix("planner catalog list"))
        raise refused("unknown-part", error.message, 404, [fault]) from None
    return render_page(
        visit,
        "catalogue_part.html.j2",
        part=sheet,
        figures=_figures(sheet),
        n_assumed=_n_assumed(sheet),
    )


def _figures(sheet: "Sheet") -> list[dict[str, str]]:
    return [
        {
            "what": what,
            "value": value,
            "source": origin.source if origin else "",
            "date": origin.date if origin else "",
            "status": origin.status if origin else "",
        }
        for what, value, origin in sheet.figures
    ]


def _n_assumed(sheet: "Sheet") -> int:
    return sum(1 for _, _, origin in sheet.figures if origin and origin.status == "assumed")


PAGES = {"/ui/catalogue": catalogue, "/ui/catalogue/{name}": part}
