"""What each setting of a tool changes: read, the same, said, or refused by its name.

The lists stand in `planner/data/tuners`, one file a tool; its README says what they mean.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any

from planner.specs.yaml.document import parse_yaml

OFF = (None, False, 0, "", "no", "none", "false", "off")
"""Values that leave a setting off."""
MOST_SHOWN = 40
"""Characters of a value that are shown."""


@dataclass(frozen=True, slots=True)
class SettingRule:
    """Settings whose values change what is not priced."""

    keys: tuple[str, ...]
    """Names with dots between the levels; `*` stands for any text."""
    text: str
    """What is priced otherwise, or why they are refused."""
    fix: str = ""
    """What to write in their place; empty: a note is enough."""
    values: tuple[str, ...] = ()
    """Values that it is about, as `keys`; empty: all that are not off."""
    unless: tuple[str, ...] = ()
    """Values that count as off too."""

    def holds(self, key: str, value: Any) -> bool:
        """Tell whether the rule is about a setting with this value."""
        if not matches(key, self.keys):
            return False
        words = [str(one).lower() for one in (value if isinstance(value, list) else [value])]
        if self.values:
            patterns = [pattern.lower() for pattern in self.values]
            return any(matches(word, patterns) for word in words)
        return not is_off(value) and not all(word in self.unless for word in words)


def is_off(value: Any) -> bool:
    """Tell whether a value leaves a setting off.

    >>> [is_off(value) for value in (False, "False", 0, [], 1, "x")]
    [True, True, True, True, False, False]
    """
    if isinstance(value, list | Mapping):
        return not value
    return value in OFF or (isinstance(value, str) and value.lower() in OFF)


def matches(text: str, patterns: Sequence[str]) -> bool:
    """Tell whether a text is one of some patterns."""
    return any(fnmatchcase(text, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class SettingTable:
    """The settings of one tool."""

    read: tuple[str, ...]
    same: tuple[str, ...]
    said: tuple[SettingRule, ...]
    refused: tuple[SettingRule, ...]

    def knows(self, key: str, value: Any) -> bool:
        """Tell whether a setting with this value is in one of the lists.

        `KEY=VALUE` of `same` is about one value. What has rules for some values alone is known
        with those.
        """
        if is_off(value) or matches(key, (*self.read, *self.same)):
            return self.names(key)
        rules = [rule for rule in (*self.said, *self.refused) if matches(key, rule.keys)]
        if any(not rule.values for rule in rules):
            return True
        words = value if isinstance(value, list) else [value]
        return all(
            matches(f"{key}={word}", self.same) or any(rule.holds(key, word) for rule in rules)
            for word in words
        )

    def names(self, key: str) -> bool:
        """Tell whether a setting is in one of the lists, whatever its value."""
        rules = (*self.said, *self.refused)
        known = (*self.read, *(name.partition("=")[0] for name in self.same))
        return matches(key, (*known, *(name for rule in rules for name in rule.keys)))

    def refusal(self, settings: Mapping[str, Any]) -> tuple[str, Any, SettingRule] | None:
        """Return the first setting that is refused, its value, and the rule."""
        for key, value in settings.items():
            for rule in self.refused:
                if rule.holds(key, value):
                    return key, value, rule
        return None

    def notes(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """Return what is priced otherwise, a sentence a rule with the settings before it."""
        held = ((rule, [k for k, v in settings.items() if rule.holds(k, v)]) for rule in self.said)
        return tuple(f"{', '.join(keys)}: {rule.text}" for rule, keys in held if keys)

    def unknown(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the settings that are in no list, or have a value that no rule is about."""
        return tuple(key for key, value in settings.items() if not self.knows(key, value))


@cache
def setting_table(name: str) -> SettingTable:
    """Return the table of a tool by its name in `TUNERS`, with those that it includes."""
    path = files("planner") / "data" / "tuners" / f"{name}.yaml"
    data: Any = parse_yaml(path.read_text(encoding="utf-8"), f"{name}.yaml").data
    more = [setting_table(other) for other in data.get("includes", ())]
    return SettingTable(
        read=(*data["read"], *(x for one in more for x in one.read)),
        same=(*data["same"], *(x for one in more for x in one.same)),
        said=(*map(_rule, data["said"]), *(x for one in more for x in one.said)),
        refused=(*map(_rule, data["refused"]), *(x for one in more for x in one.refused)),
    )


def _rule(row: Mapping[str, Any]) -> SettingRule:
    return SettingRule(
        keys=tuple(row["keys"]),
        text=str(row.get("what") or row["text"]),
        fix=str(row.get("fix", "")),
        values=tuple(str(value) for value in row.get("values", ())),
        unless=tuple(str(value) for value in row.get("unless", ())),
    )


def shown_value(value: Any) -> str:
    """Return a value as it stands in a sentence: true and false small, long ones cut."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
