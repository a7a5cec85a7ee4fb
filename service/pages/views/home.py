"""The first page: what the tool does, and its views."""

from service.pages.examples import examples, gpus
from service.pages.render import render_page
from service.pages.views.solve import FIRST, draft_of
from service.pages.visit import Visit

VIEWS = (
    (
        "/ui/solve",
        "New search",
        "Model and cluster from an example, a pasted file or an uploaded"
        " config.json, checked while you type; pins, limits, objective.",
    ),
    (
        "/ui/plans",
        "Plans",
        "All good plans in a table to sort and filter, step time against"
        " memory, the front, ties and uncertainty; reasons where nothing fits.",
    ),
    (
        "/ui/plan",
        "One plan",
        "Where the time of a step goes, memory by stage, the timeline, ranks"
        " on nodes, rooflines; every number opens its formula. Files for the frameworks.",
    ),
    ("/ui/compare", "Compare", "Plans side by side, and why one beats another, in words."),
    ("/ui/sweeps", "Sweeps", "The same question of hundreds of machines, and a report of it."),
    ("/ui/catalogue", "Catalogue", "Accelerators, links, servers, each figure with its source."),
    ("/ui/accuracy", "Accuracy", "Predicted against measured, the worst misses first."),
    (
        "/ui/walk",
        "Step by step",
        "The decision walked as an expert would: one GPU, ZeRO, TP, PP,"
        " CP, EP, with the numbers that decide, and what each step costs.",
    ),
    ("/ui/cases", "Case studies", "Published layouts and scaling beside the planner's own plans."),
    (
        "/ui/learn",
        "Learn",
        "Calculators on the same cost model: bubbles, overlap, collectives,"
        " memory walls, compression.",
    ),
)


async def home_page(visit: Visit) -> str:
    """Say what the tool does and where."""
    return render_page(
        visit,
        "home.html.j2",
        views=VIEWS,
        draft=draft_of(FIRST),
        examples={"model": examples("model")},
        gpus=gpus(),
    )


PAGES = {"/ui": home_page}
