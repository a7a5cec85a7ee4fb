"""Files that pages load: style, script, Plotly; a hash in each name, so that they are kept."""

import hashlib
import re
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from threading import Lock

from starlette.responses import Response

from planner.render.card.html import card_style
from planner.render.palette import legend_style
from service.http.compression import accepts_gzip, gzipped

MEDIA = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
OWN = ("page.css", "page.js", "icon.svg")
OF_VIEWS = ("plan.css", "plan.js")
"""What the plan view of `planner.render.plan_view` brings along."""
PLOTLY = "plotly.js"
PAGES_FIX = "pip install 'parallelism-planner[pages]'"
"""What a service lacks whose pages draw no figures."""
CARD = "card.css"
"""Styles of the card of an answer, and the legend of colours."""
KEPT = "public, max-age=31536000, immutable"


@dataclass(slots=True)
class File:
    """One file, as it is sent."""

    name: str
    """With its hash: `page.0123456789ab.css`."""
    content: bytes
    _small: bytes = b""
    _lock: Lock = field(default_factory=Lock)

    def small(self) -> bytes:
        """Return it compressed; done once."""
        with self._lock:
            if not self._small:
                self._small = gzipped(self.content)
        return self._small

    def response(self, accept_encoding: str) -> Response:
        """Return the answer to a request for it."""
        ending = self.name.rpartition(".")[2]
        headers = {"cache-control": KEPT, "vary": "accept-encoding"}
        content = self.content
        if accepts_gzip(accept_encoding):
            content, headers["content-encoding"] = self.small(), "gzip"
        return Response(content, 200, headers, f"{MEDIA[ending]}; charset=utf-8")


def _named(name: str, content: bytes) -> File:
    stem, _, ending = name.rpartition(".")
    return File(f"{stem}.{hashlib.sha256(content).hexdigest()[:12]}.{ending}", content)


@cache
def file(name: str) -> File:
    """Return a file by its plain name, such as `page.css`."""
    if name == CARD:
        return _named(name, (legend_style() + card_style()).encode())
    if name == PLOTLY:
        value = files("plotly") / "package_data" / "plotly.min.js"
    elif name in OF_VIEWS:
        value = files("planner.render.plan_view") / "templates" / name
    else:
        value = files("service.pages") / "static" / name
    return _named(name, value.read_bytes())


@cache
def _by_name() -> dict[str, File]:
    names = (*OWN, *OF_VIEWS, CARD, *((PLOTLY,) if draws_figures() else ()))
    return {each.name: each for each in map(file, names)}


@cache
def draws_figures() -> bool:
    """Tell whether Plotly is installed, which draws the figures of pages in the browser."""
    return find_spec("plotly") is not None


@cache
def plotly_style_ids() -> tuple[str, ...]:
    """Return ids of style elements that Plotly adds when it is loaded, unless they are there.

    They are of its maps, which no page draws, and the policy of pages would refuse them.
    """
    if not draws_figures():
        return ()
    text = file(PLOTLY).content.decode("utf-8", "replace")
    return tuple(dict.fromkeys(re.findall(r'getElementById\("([0-9a-f]{64})"\)', text)))


def find_file(name: str) -> File | None:
    """Return the file of an address; None where there is none."""
    return _by_name().get(name)
