"""Calculators to learn from, on the same cost model as the plans.

    fields.py     inputs with units and ranges, read from text
    results.py    numbers that open to their formula; what other pages print for the same inputs
    machines.py   devices, links and models that calculators offer
    drawing.py    figures
    text.py       an answer as text and Markdown

One module a calculator, in `resources` and `parallelism`: a frozen dataclass of inputs,
its result (pure), its charts, `CALCULATOR`.
Where the cost model holds a formula it is called; a closed form that it does not have is a
function of the module, with equation, source and what it leaves out.
"""

from functools import cache
from importlib import import_module
from typing import Any

from planner.learn.results import Calculator

_MODULES = (
    "resources.pipeline",
    "resources.overlap",
    "parallelism.collectives",
    "resources.state_memory",
    "resources.activations",
    "resources.intensity",
    "parallelism.data_parallel",
    "resources.buckets",
    "parallelism.tensor_parallel",
    "parallelism.sequence_parallel",
    "parallelism.ring_attention",
    "resources.least_bandwidth",
    "parallelism.volumes",
    "resources.strong_scaling",
    "resources.compression",
)
"""In the order in which they are listed."""


@cache
def calculators() -> dict[str, Calculator[Any]]:
    """Return all calculators by name."""
    results = (import_module(f"planner.learn.{name}").CALCULATOR for name in _MODULES)
    return {one.name: one for one in results}
