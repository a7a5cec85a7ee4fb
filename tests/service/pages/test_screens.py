"""First screens of the views beside references, so that no change of a view goes unseen.

References are small: a third of the width, 32 colours. `pytest --renew -m page` writes them anew;
look at them before they are committed. All machines draw them in the letters that matplotlib
ships, so that lines break alike; what is left are edges of letters, which blocks even out.
"""

import base64
import io
import os
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.snapshots import RENEW

pytestmark = pytest.mark.page

REFERENCES = Path(__file__).parent / "references"
QUESTION = "model=llama3-8b&cluster=16xh100&pin=mbs=1"
VIEWS = {
    "home": "/ui",
    "solve": "/ui/solve?model=llama3-8b&cluster=16xh100",
    "plans": f"/ui/plans?{QUESTION}",
    "plan": f"/ui/plan?{QUESTION}&plan=1",
    "nothing": "/ui/plans?model=llama3-405b&cluster=8xh100",
    "map": f"/ui/plans/map?{QUESTION}",
    "compare": f"/ui/compare?{QUESTION}&plan=1&plan=2",
    "walk": f"/ui/walk?{QUESTION}",
    "accuracy": "/ui/accuracy",
    "catalogue": "/ui/catalogue",
    "learn": "/ui/learn",
    "calculator": "/ui/learn/memory",
    "cases": "/ui/cases",
    "sweeps": "/ui/sweeps",
}
SCREENS = ((390, 844, False), (768, 1024, True), (1280, 900, True), (1920, 1080, False))
"""Width, height, and whether it is dark."""
SHRINK, COLOURS = 3, 32
BLOCK = 8
"""Pixels of a kept picture along a side of a block: 24 of the screen, a line of text."""
INK_LEVELS, OFF_LEVELS = 6, 12
"""Of 256 levels of grey: by which a block differs from the ground that holds something, and by
which two blocks differ that are not alike."""
SETTLED_S = 20.0
"""How long a page that is busy still, on a busy machine, may take to look as it will."""
MOST_OFF = 0.08
"""Share of the blocks that hold something that may be off. Of a blank page a quarter and more are,
of one moved down by a line a fifth; letters that are drawn with other edges put none off."""
MOST_SENT_BYTES = 200_000
"""Of a first view, compressed."""
LETTERS = {"planner-sans": "DejaVuSans.ttf", "planner-mono": "DejaVuSansMono.ttf"}
STYLE = """
* { font-family: planner-sans !important; }
code, pre, textarea, .mono, code *, pre *, .mono * { font-family: planner-mono !important; }
"""


@cache
def letters_style() -> str:
    """Return a style that draws all text in the letters of matplotlib."""
    package = pytest.importorskip("matplotlib")
    folder = Path(package.get_data_path()) / "fonts" / "ttf"
    faces = [
        f'@font-face {{ font-family: {name}; src: url("data:font/ttf;base64,'
        f'{base64.b64encode((folder / file).read_bytes()).decode()}"); }}'
        for name, file in LETTERS.items()
    ]
    return "\n".join([*faces, STYLE])


def shrunk(content: bytes) -> Any:
    """Return a screenshot as it is kept."""
    image = pytest.importorskip("PIL.Image").open(io.BytesIO(content)).convert("RGB")
    small = image.resize((image.width // SHRINK, image.height // SHRINK))
    return small.quantize(COLOURS)


def reference(view: str, width: int, dark: bool) -> Any:
    """Return a picture that is kept."""
    content = reference_file(view, width, dark).read_bytes()
    return pytest.importorskip("PIL.Image").open(io.BytesIO(content))


def reference_file(view: str, width: int, dark: bool) -> Path:
    return REFERENCES / f"{view}-{width}-{'dark' if dark else 'light'}.png"


def blocks(picture: Any) -> list[int]:
    """Return the mean level of grey of each block of a picture."""
    size = picture.width // BLOCK, picture.height // BLOCK
    box = pytest.importorskip("PIL.Image").Resampling.BOX
    return list(picture.convert("L").resize(size, box).tobytes())


def difference(a: Any, b: Any) -> float:
    """Return in which share of the blocks that hold something two pictures of one size differ."""
    kept = blocks(b)
    ground = max(set(kept), key=kept.count)
    pairs = [
        (x, y)
        for x, y in zip(blocks(a), kept, strict=True)
        if max(abs(x - ground), abs(y - ground)) > INK_LEVELS
    ]
    return sum(abs(x - y) > OFF_LEVELS for x, y in pairs) / max(1, len(pairs))


@pytest.mark.parametrize("screen", SCREENS, ids=lambda x: f"{x[0]}-{'dark' if x[2] else 'light'}")
@pytest.mark.parametrize("view", VIEWS)
def test_the_first_screen_looks_as_its_reference(page_at, view, screen):
    width, height, dark = screen
    page = page_at(VIEWS[view], dark=dark, width=width, height=height, bypass_csp=True).page
    page.wait_for_load_state("networkidle")  # what is checked while one types has been checked
    page.add_style_tag(content=letters_style())
    page.evaluate("() => document.fonts.ready.then(() => true)")
    found = shrunk(page.screenshot(animations="disabled", caret="hide"))
    wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert wide <= 0, f"the page is {wide} px wider than its window"
    if os.environ.get(RENEW):
        REFERENCES.mkdir(exist_ok=True)
        found.save(reference_file(view, width, dark), optimize=True)
    kept = reference(view, width, dark)
    assert found.size == kept.size
    deadline = time.monotonic() + SETTLED_S
    while difference(found, kept) > MOST_OFF and time.monotonic() < deadline:
        page.wait_for_timeout(250)
        found = shrunk(page.screenshot(animations="disabled", caret="hide"))
    assert difference(found, kept) <= MOST_OFF


@pytest.mark.parametrize("screen", SCREENS, ids=lambda x: f"{x[0]}-{'dark' if x[2] else 'light'}")
@pytest.mark.parametrize("view", VIEWS)
def test_a_blank_and_a_moved_page_are_no_reference(view, screen):
    images, chops = pytest.importorskip("PIL.Image"), pytest.importorskip("PIL.ImageChops")
    width, _, dark = screen
    kept = reference(view, width, dark).convert("RGB")
    ground = kept.getpixel((2, kept.height - 3))
    assert difference(kept, kept) == 0.0
    assert difference(images.new("RGB", kept.size, ground), kept) > 3 * MOST_OFF
    assert difference(chops.offset(kept, 0, BLOCK), kept) > 2 * MOST_OFF
    assert difference(chops.offset(kept, 3 * BLOCK, 0), kept) > MOST_OFF
    soft = kept.filter(pytest.importorskip("PIL.ImageFilter").GaussianBlur(1))
    assert difference(soft, kept) < MOST_OFF / 4


@pytest.mark.parametrize("view", VIEWS)
def test_the_first_view_is_small(page_at, view):
    """What a first visit loads, compressed: all of it, until somebody moves."""
    page = page_at(VIEWS[view]).page
    page.wait_for_load_state("networkidle")
    sent = page.evaluate(
        "() => performance.getEntriesByType('resource')"
        ".concat(performance.getEntriesByType('navigation'))"
        ".reduce((sum, each) => sum + each.transferSize, 0)"
    )
    assert 0 < sent < MOST_SENT_BYTES
