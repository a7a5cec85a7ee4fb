"""One rule of a framework, and what a case says when it breaks one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from searches.frameworks.case import Bools, Case

When = Literal["parse", "start", "first step", "ignored", "planner"]
"""When the framework itself says so: reading its configuration (seconds), building groups and
model (minutes), or running; `ignored`: never, it passes over the setting and runs; `planner`: we
write no configuration for it, whatever it does."""
Level = Literal["layout", "settings"]
Words = str | Callable[[Case], str]


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
    reason: Words
    """What is wrong with the numbers of one case."""
    closest: Words
    """What comes closest and is allowed."""
    level: Level = "layout"
    """`layout`: decidable from model, job and layout; `settings`: reads flags or keys."""
    versions: str = ""
    """PEP 440 specifier of the releases that have the rule; empty: all that are known."""
    batches: bool = False
    """Whether it reads the micro-batches, which the search holds apart from other free axes."""
    is_of_job: bool = False
    """Whether it reads the job alone, so that it refuses all plans of a job or none: it counts
    beside the micro-batches as well, where a framework of several might let some through."""
    covers: tuple[str, ...] = ()
    """Codes of rules over layouts that have the same cause, which it says in the framework's own
    words: a case that breaks both is told of this one."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that one case breaks, with its numbers."""

    rule: FrameworkRule
    reason: str
    closest: str
    """Empty where the case does not state enough to say."""

    @property
    def text(self) -> str:
        """The reason, and what comes closest."""
        return f"{self.reason}; closest: {self.closest}" if self.closest else self.reason


def applies(rule: FrameworkRule, version: str) -> bool:
    """Tell whether a release has the rule."""
    if not rule.versions:
        return True
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(rule.versions).contains(version, prereleases=True)


def spoken(sentence: Words, case: Case) -> str:
    """Return a reason, or what comes closest, for one case."""
    return sentence if isinstance(sentence, str) else sentence(case)


@dataclass(frozen=True, slots=True)
class Enforcement:
    """Where, when and in which releases a framework enforces a rule over settings."""

    framework: str
    source: str
    """As in `FrameworkRule`; so are the others."""
    when: When = "parse"
    versions: str = ""
    covers: tuple[str, ...] = ()


def setting_rule(
    code: str,
    title: str,
    broken: Callable[[Case], Bools],
    reason: Words,
    closest: Words,
    enforced: Enforcement,
) -> FrameworkRule:
    """Return a rule over flags or keys."""
    return FrameworkRule(
        code,
        enforced.framework,
        title,
        enforced.when,
        enforced.source,
        broken,
        reason,
        closest,
        "settings",
        enforced.versions,
        covers=enforced.covers,
    )


def conditions_rule(
    code: str,
    title: str,
    broken_conditions: Callable[[Case], list[str]],
    closest: Words,
    enforced: Enforcement,
) -> FrameworkRule:
    """Return a rule of several conditions on settings; `broken_conditions` names broken ones."""
    return setting_rule(
        code,
        title,
        lambda c: bool(broken_conditions(c)),
        lambda c: "; ".join(broken_conditions(c)),
        closest,
        enforced,
    )


def holding(conditions: Mapping[str, Any]) -> list[str]:
    """Return the names of the conditions that hold."""
    return [name for name, holds in conditions.items() if holds]
