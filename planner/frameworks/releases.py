"""What a release of a framework can be told, and what another added, renamed or dropped.

The tables (`planner/data/flags/<framework>.json`) are asked of installed packages by
`scripts/framework_flags`; `data/programs/flag_probe.py` asks the one of the user.
"""

import difflib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from typing import Any

from packaging.version import Version

from planner.errors import UsageError
from planner.frameworks.registry import named_framework
from searches.frameworks.registry import BUILT_IN, FrameworkRules, framework_rules
from searches.frameworks.switches import other_spellings

Options = Mapping[str, Mapping[str, Any]]
"""Facts (`default`, `choices`, `required`) by name: `--flag`, `key` or `Class.field`."""

PROBE_LIMIT_S = 900.0
"""Importing a framework takes seconds, on a busy machine a minute."""
ALIKE = 0.75
"""Least likeness of two names (`difflib`) for one to be taken as the other's new name."""
FACTS = ("default", "choices", "required")


@dataclass(frozen=True, slots=True)
class Changes:
    """How the options of one release differ from those of another."""

    framework: str
    old: str
    new: str
    added: tuple[str, ...]
    dropped: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...]
    """Pairs of a dropped and an added name that are alike and have the same default: a guess."""
    changed: tuple[tuple[str, str, str, str], ...]
    """Name, fact, its old and its new value."""
    missing: tuple[str, ...]
    """Options that planner writes and the new release does not know."""

    def to_json(self) -> dict[str, Any]:
        """Return the changes as plain values."""
        return {
            "framework": self.framework,
            "old": self.old,
            "new": self.new,
            "added": list(self.added),
            "dropped": list(self.dropped),
            "renamed": [list(pair) for pair in self.renamed],
            "changed": [list(one) for one in self.changed],
            "written_and_missing": list(self.missing),
        }


@dataclass(frozen=True, slots=True)
class Lacking:
    """A flag, or a value of one, that a release does not have."""

    words: str
    """As written: the flag, with the value where that is what it does not take."""
    instead: str
    """What to write, or which release has it; empty: none that is known."""


def lacking_words(framework: str, words: Sequence[str]) -> tuple[Lacking, ...]:
    """Return the flags among some words of a command line that a release does not have.

    And the values that its parser does not list. None where nothing is known of the release.

    >>> lacking_words("megatron@0.17.0", ["--cuda-graph-modules", "attn", "--bf16"])[0].instead
    '--cuda-graph-scope, or framework megatron@0.18.2'
    """
    record = framework_rules(framework)
    tables = _tables_of(record.name)
    if record.release not in tables:
        return ()
    lacking: dict[tuple[str, str], None] = {}
    flag = ""
    for word in words:
        is_flag = word.startswith("--")
        flag, value = (word, "") if is_flag else (flag, word)
        if flag and not _takes(tables[record.release], flag, value):
            lacking[flag, value] = None
            flag = "" if is_flag else flag  # of such a flag no values are known
    return tuple(
        Lacking(f"{flag} {value}".strip(), _instead(record, flag, value))
        for flag, value in lacking
    )


def lacking_options(framework: str, names: Sequence[str]) -> tuple[Lacking, ...]:
    """Return the options among some that a release does not have and another has, by name."""
    record = framework_rules(framework)
    own = _tables_of(record.name).get(record.release)
    if own is None:
        return ()
    absent = ((name, _instead(record, name, "")) for name in names if name not in own)
    return tuple(Lacking(name, instead) for name, instead in absent if instead)


def _takes(options: Options, flag: str, value: str) -> bool:
    """Tell whether a release has a flag and lists a value of it, where it lists any."""
    if flag not in options:
        return False
    # Members of an enumeration are typed without its name: `AttnBackend.flash`.
    choices, plain = options[flag].get("choices") or (), value.strip("'")
    return not plain or not choices or any(f".{one}".endswith(f".{plain}") for one in choices)


def _instead(record: FrameworkRules, flag: str, value: str) -> str:
    """Return the other spelling of a flag in a release, and the nearest release that takes it."""
    tables = _tables_of(record.name)
    here = Version(record.release)
    able = [x for x in sorted(tables, key=Version) if _takes(tables[x], flag, value)]
    nearest = [x for x in able if Version(x) > here][:1] or able[-1:]
    others = () if value else other_spellings(record.at(record.release).key, flag)
    ways = [" or ".join(others)] if others else []
    return ", or ".join(ways + [f"framework {record.at(x).key}" for x in nearest])


def _tables_of(framework: str) -> Mapping[str, Options]:
    """Return the options of a framework by release; none of one of another package."""
    return option_tables(framework)[0] if framework in tabled() else {}


@cache
def option_tables(framework: str) -> tuple[Mapping[str, Options], tuple[str, ...]]:
    """Return the options of a framework by release, and the names that planner writes."""
    file = files("planner") / "data" / "flags" / f"{framework}.json"
    if not file.is_file():
        title = framework_rules(framework).title
        raise UsageError(
            f"there is no table of the options of {title}", f"one of {', '.join(tabled())}"
        )
    data = json.loads(file.read_text(encoding="utf-8"))
    return data["releases"], tuple(data["written"])


def tabled() -> tuple[str, ...]:
    """Return the frameworks whose options are known by release: those that an index holds."""
    folder = files("planner") / "data" / "flags"
    return tuple(name for name in BUILT_IN if (folder / f"{name}.json").is_file())


def known_releases(framework: str) -> list[str]:
    """Return the releases that have a table, the oldest first."""
    return sorted(option_tables(framework)[0], key=Version)


def compared_tables(framework: str, old: str, new: str) -> Changes:
    """Return what one known release changed against another; `UsageError` for unknown ones."""
    tables = option_tables(framework)[0]
    for release in (old, new):
        if release not in tables:
            raise UsageError(
                f"no table of {framework_rules(framework).title} {release}",
                f"one of {', '.join(known_releases(framework))}, or --python with it installed",
            )
    return changes(framework, (old, tables[old]), (new, tables[new]))


def compared_install(framework: str, python: str, source: str = "", old: str = "") -> Changes:
    """Return what the release that an interpreter has installed changed against a known one.

    `source` is a folder with an unpacked release that is asked instead. `old` is the release that
    planner writes for unless another is named.
    """
    old = old or framework_rules(framework).release
    tables = option_tables(framework)[0]
    if old not in tables:
        releases = ", ".join(known_releases(framework))
        raise UsageError(
            f"no table of {framework_rules(framework).title} {old}", f"one of {releases}"
        )
    release, options = installed_options(framework, python, source)
    return changes(framework, (old, tables[old]), (release, options))


def installed_options(framework: str, python: str, source: str = "") -> tuple[str, Options]:
    """Return release and options of the framework that an interpreter can import, from `source`.

    Raises `UsageError` where there is no such interpreter or the framework is not there.
    """
    title, result = framework_rules(framework).title, shutil.which(python)
    if result is None:
        raise UsageError(f"--python {python}: no such program", "the interpreter of your training")
    if source and not os.path.isdir(source):
        raise UsageError(f"--source {source}: no such folder", "the folder of an unpacked wheel")
    paths = [os.path.abspath(source)] if source else []
    paths += [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)} if source else dict(os.environ)
    probe = files("planner") / "data" / "programs" / "flag_probe.py"
    with as_file(probe) as path:
        command = [result, "-W", "ignore", os.fspath(path), framework]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=PROBE_LIMIT_S, env=env
            )
        except subprocess.TimeoutExpired:
            raise UsageError(
                f"{title} was not imported within {PROBE_LIMIT_S:.0f} s",
                "try again when the machine is less busy",
            ) from None
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        last = next(reversed(done.stderr.strip().splitlines()), "it printed nothing")
        raise UsageError(
            f"{result} cannot import {title}: {last}",
            "name the interpreter of your training with --python, or two releases with --between",
        )
    data = json.loads(lines[-1])
    return data["release"], slim(data["options"])


def slim(options: Options) -> Options:
    """Return options without the facts that say nothing: no choices, not required, no default."""
    return {
        name: {
            fact: facts[fact]
            for fact in FACTS
            if facts.get(fact) not in (None, False, "None", "PydanticUndefined")
        }
        for name, facts in options.items()
    }


def changes(framework: str, old: tuple[str, Options], new: tuple[str, Options]) -> Changes:
    """Return how two sets of options differ; each is a release and its options."""
    (old_release, before), (new_release, after) = old, new
    dropped, added = sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys())
    renamed = _renamed(before, after, dropped, added)
    old_names, new_names = ({pair[i] for pair in renamed} for i in (0, 1))
    changed = [
        (name, fact, str(before[name].get(fact)), str(after[name].get(fact)))
        for name in sorted(before.keys() & after.keys())
        for fact in FACTS
        if before[name].get(fact) != after[name].get(fact)
    ]
    return Changes(
        framework=framework,
        old=old_release,
        new=new_release,
        added=tuple(name for name in added if name not in new_names),
        dropped=tuple(name for name in dropped if name not in old_names),
        renamed=tuple(renamed),
        changed=tuple(changed),
        missing=tuple(name for name in option_tables(framework)[1] if name not in after),
    )


def _renamed(
    before: Options, after: Options, dropped: list[str], added: list[str]
) -> list[tuple[str, str]]:
    """Return which dropped names look like which added ones, each used once."""
    free, pairs = set(added), []
    for name in dropped:
        alike = difflib.get_close_matches(name, sorted(free), 3, ALIKE)
        first = next((x for x in alike if after[x] == before[name]), None)
        if first is not None:
            pairs.append((name, first))
            free.discard(first)
    return pairs


def release_changes_text(comparison: Changes) -> str:
    """Return the changes as lines for a terminal."""
    title = framework_rules(comparison.framework).title
    lines = [f"{title} {comparison.new} beside {comparison.old}"]
    sections = (
        ("added", comparison.added),
        ("dropped", comparison.dropped),
        ("renamed, by the look of it", [f"{a} -> {b}" for a, b in comparison.renamed]),
        ("changed", [f"{n}: {fact} {a} -> {b}" for n, fact, a, b in comparison.changed]),
    )
    for name, rows in sections:
        lines += [f"{name}: {len(rows)}", *(f"  {row}" for row in rows)]
    if comparison.missing:
        lines += [f"planner writes these, which {comparison.new} does not know:"]
        lines += [f"  {name}" for name in comparison.missing]
    else:
        n_written = len(option_tables(comparison.framework)[1])
        lines += [f"all {n_written} that planner writes are known to {comparison.new}"]
    return "\n".join(lines) + "\n"


def run_check_flags(framework: str, python: str, between: str, form: str, source: str = "") -> int:
    """Run `planner check-flags`; return 1 where planner writes what the release does not know."""
    asked = framework_rules(named_framework(framework))
    framework, old = asked.name, asked.release
    if between and source:
        raise UsageError("--between compares known releases, without --source", "drop one of them")
    if form not in ("text", "json"):
        raise UsageError(f"--format {form}: unknown", "--format text or --format json")
    if between:
        older, comma, new = between.partition(",")
        if not comma:
            known = known_releases(framework)
            releases = f"{known[0]},{known[-1]}"
            raise UsageError(f"--between {between}: two releases are due", f"--between {releases}")
        result = compared_tables(framework, older.strip(), new.strip())
    else:
        result = compared_install(framework, python, source, old)
    text = (
        json.dumps(result.to_json(), indent=1) + "\n"
        if form == "json"
        else release_changes_text(result)
    )
    sys.stdout.write(text)
    return 1 if result.missing else 0
