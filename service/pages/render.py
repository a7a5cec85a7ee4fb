"""Templates: Jinja2, everything escaped, and an error for what a template asks and nobody gave."""

import json
import time
from functools import cache
from typing import Any

from service.pages import question, static
from service.pages.visit import Visit

GROUPS = (
    (
        "Plan",
        (
            ("/ui/solve", "New search"),
            ("/ui/plans", "Plans"),
            ("/ui/plan", "One plan"),
            ("/ui/compare", "Compare"),
            ("/ui/walk", "Step by step"),
        ),
    ),
    ("Explore", (("/ui/sweeps", "Sweeps"), ("/ui/learn", "Learn"), ("/ui/cases", "Case studies"))),
    ("Evidence", (("/ui/accuracy", "Accuracy"), ("/ui/catalogue", "Catalogue"))),
)
"""The views in the three groups of the navigation."""
OF_A_QUESTION = ("/ui/solve", "/ui/plans", "/ui/plan", "/ui/compare", "/ui/walk")
"""Views whose address holds a question: the navigation keeps it."""


def json_in_script(data: Any) -> str:
    """Return JSON that can stand inside a script element: no `<`, `>`, `&`."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@cache
def page_environment() -> Any:
    """Return the templates."""
    import jinja2
    from markupsafe import Markup

    from planner.render.html import coded
    from planner.render.report.quantities import short_number
    from planner.render.report.theme import themes

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("service.pages"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals |= {
        "themes": themes,
        "plotly_style_ids": static.plotly_style_ids,
        "draws_figures": static.draws_figures(),
        "pages_fix": static.PAGES_FIX,
    }
    environment.filters |= {
        "json": lambda data: Markup(json_in_script(data)),
        "count": lambda value: f"{value:,}",
        "number": short_number,
        "ms": lambda seconds: short_number(seconds * 1e3, 4),
        "gb": lambda n_bytes: short_number(n_bytes / 1e9, 4),
        "instant": lambda at: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)),
        "coded": lambda text: Markup(coded(text)),
        "percent": lambda share: f"{share * 100:.1f}",
    }
    return environment


def nav_entry(visit: Visit, path: str, title: str, requested: Any) -> tuple[str, str, bool]:
    """Return title and address of a view, and whether it is open."""
    here = visit.path == path or visit.path.startswith(f"{path}/")
    return title, visit.url(path, requested if path in OF_A_QUESTION else {}), here


def render_page(visit: Visit, template: str, **values: Any) -> str:
    """Return a page; templates know `visit`, `url(path, query, name=value)` and `static(name)`."""
    requested = {key: visit.query[key] for key in question.FIELDS if key in visit.query}
    nav = [
        (group, [nav_entry(visit, path, title, requested) for path, title in views])
        for group, views in GROUPS
    ]
    return str(
        page_environment()
        .get_template(template)
        .render(
            visit=visit,
            url=visit.url,
            nav=nav,
            asked=requested,
            static=lambda name: f"{visit.root}/ui/static/{static.file(name).name}",
            here=visit.here().removeprefix(visit.root),
            **values,
        )
    )
