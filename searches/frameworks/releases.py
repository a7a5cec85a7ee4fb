"""Releases of training frameworks: how one is named, and which switches it has under which flag.

`--framework megatron@0.17` names one. `searches.frameworks.registry` holds the releases of each
framework; here stands what a release is, and how a switch is spelled in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

SEPARATOR = "@"
"""Between a framework and its release, as users write them."""


class UnknownReleaseError(KeyError):
    """A framework has no such release here."""

    def __init__(self, framework: str, title: str, asked: str, known: Sequence[str]) -> None:
        super().__init__(f"{framework}{SEPARATOR}{asked}")
        self.message = f"no release {asked} of {title} is known"
        self.hint = f"one of {', '.join(known)}"


@dataclass(frozen=True, slots=True)
class Release:
    """One release of a framework whose options are known (`planner/data/flags`)."""

    version: str
    """Of the package."""
    date: str = ""
    """Day of the newest file in its package; empty where that is not known."""
    core: str = ""
    """The release of megatron-core that it goes with, for a framework whose rules are those of
    megatron-core; empty: rules go by `version`."""
    aliases: tuple[str, ...] = ()
    """Other names of it: that of NVIDIA's NeMo container with its first patch release."""

    @property
    def rules_version(self) -> str:
        """The version by which `FrameworkRule.versions` is asked."""
        return self.core or self.version

    def is_named(self, asked: str) -> bool:
        """Tell whether `asked` is its version, the start of it in whole numbers, or an alias."""
        return asked in self.aliases or f"{self.version}.".startswith(f"{asked}.")


def newest_named(releases: Sequence[Release], asked: str) -> Release | None:
    """Return the newest release that a user means; None where there is none.

    >>> known = (Release("0.19.2"), Release("0.19.8"), Release("0.20.1", aliases=("26.08",)))
    >>> [newest_named(known, x).version for x in ("0.19", "0.19.2", "26.08", "0")]
    ['0.19.8', '0.19.2', '0.20.1', '0.20.1']
    >>> newest_named(known, "0.1") is None
    True
    """
    named = [one for one in releases if one.is_named(asked)] if asked else []
    return max(named, key=lambda one: version_key(one.version)) if named else None


@cache
def version_key(version: str) -> tuple[int, ...]:
    """Return a key by which versions of numbers and dots sort.

    >>> version_key("0.9.10") > version_key("0.9.2")
    True
    """
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


@dataclass(frozen=True, slots=True)
class SwitchFlags:
    """How one switch of a framework is written, by release."""

    switch: str
    """Its name here: that of the axis or of the value of one that it stands for."""
    spelled: tuple[tuple[str, str], ...]
    """First release with a spelling (as `FrameworkRule.versions` counts them), and the words;
    `{}` is the value. The oldest first; a later one takes the place of those before it. Empty
    words: the switch was dropped."""
    source: str = ""
    """Where the framework reads it."""

    @property
    def since(self) -> str:
        """The first release that has it."""
        return self.spelled[0][0]

    @property
    def until(self) -> str:
        """The first release without it again; empty where the newest has it."""
        version, words = self.spelled[-1]
        return "" if words else version

    def words(self, version: str, value: object = "") -> tuple[str, ...]:
        """Return the words that a release takes for it; none where it does not have it.

        >>> graphs = SwitchFlags("graph", (("0.17", "--scope {}"), ("0.18", "--modules {}")))
        >>> graphs.words("0.17.0", "attn"), graphs.words("0.19.2", "attn"), graphs.words("0.16.1")
        (('--scope', 'attn'), ('--modules', 'attn'), ())
        """
        reached = [
            words for first, words in self.spelled if version_key(first) <= version_key(version)
        ]
        if not reached:
            return ()
        parts = reached[-1].split()
        values = [str(x) for x in value] if isinstance(value, list | tuple) else [str(value)]
        return tuple(word for part in parts for word in (values if part == "{}" else [part]))

    def versions_without(self) -> str:
        """Return the releases without it as a PEP 440 specifier; one end of them alone."""
        return f"<{self.since}" if not self.until else f">={self.until}"
