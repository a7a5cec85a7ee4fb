"""An allocation as a document: what every job gets, and how good that is."""

import math
from collections.abc import Mapping
from typing import Any

from planner.documents import Grid, Heading, Paragraph, Part
from planner.sweeps.scaling.allocation import AllocationAnswer


def allocation_document(answer: AllocationAnswer) -> list[Part]:
    """Return what people read of an allocation."""
    return allocation_parts(answer.to_json())


def allocation_parts(data: Mapping[str, Any]) -> list[Part]:
    """Return the same of its plain data."""
    least = math.floor(1e4 - 1e4 * data["gap_frac"]) / 100
    proof = (
        "No other allocation is better."
        if data["is_proven"]
        else f"It has at least {least:.2f}% of the best value."
    )
    pools = ", ".join(f"{data['used'][p]} of {n} nodes of {p}" for p, n in data["free"].items())
    n_served = sum(job["nodes"] > 0 for job in data["jobs"])
    rows = tuple(
        (
            job["name"],
            job["pool"] or "waits",
            str(job["nodes"] or ""),
            f"{job['tokens_per_s']:,.0f}" if job["nodes"] else "",
            {True: "yes", False: "no", None: ""}[job["is_in_time"]],
        )
        for job in data["jobs"]
    )
    return [
        Heading(1, "Allocation"),
        Paragraph(
            f"{n_served} of {len(data['jobs'])} jobs run, on {pools}"
            f" ({data['objective']}). {proof}",
            strong=True,
        ),
        Grid(("job", "pool", "nodes", "tokens/s", "in time"), rows, "", numeric=(2, 3)),
    ]
