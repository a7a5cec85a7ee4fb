"""One rule of a framework, and what a case says when it breaks one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from searches.frameworks.case import Bools, Case

When = Literal["parse", "start", "first step", "planner"]
"""When the framework itself says so: reading its configuration (seconds), building groups and
model (minutes), or running; `planner`: the framework would run it, we write no configuration."""


@dataclass(frozen=True, slots=True)
class FrameworkRule:
    """One condition under which a framework does not run a layout or refuses a setting."""

    code: str
    framework: str
    title: str
    """What is wrong, in words."""
    when: When
    source: str
    """File and function of the framework that enforces it."""
    broken: Callable[[Case], Bools]
    """Elementwise over the fields of the case."""
    reason: Callable[[Case], str]
    """What is wrong with the numbers of one case."""
    closest: str | Callable[[Case], str]
    """What comes closest and is allowed."""
    level: Literal["layout", "settings"] = "layout"
    """`layout`: decidable from model, job and layout; `settings`: reads flags or keys."""
    versions: str = ""
    """PEP 440 specifier of the releases that have the rule; empty: all that are known."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that one case breaks, with its numbers."""

    rule: FrameworkRule
    reason: str
    closest: str

    @property
    def text(self) -> str:
        """The reason, and what comes closest."""
        return f"{self.reason}; closest: {self.closest}"
