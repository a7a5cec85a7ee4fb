"""The hosts that ranks run on: a list or a file of the user, else those of the cluster file."""

from pathlib import Path

from planner.errors import BadValue, FileError, UsageError
from planner.option_names import option
from planner.specs.importers.hostlist import expand_hosts
from planner.specs.inputs import ClusterInput

_FILE_ENDINGS = (".txt", ".lst", ".list", ".conf", ".hosts")
"""Endings that no host name has: a file that is not there is no host of its name."""


def chosen_hosts(text: str | None, cluster: ClusterInput) -> tuple[str, ...]:
    """Return the hosts that the user names, else those of the cluster's first pool, if any.

    An empty text names none, which is an error: a variable of the shell that is not set.
    """
    return cluster.sources[0].hosts if text is None else read_hosts(text)


def read_hosts(text: str) -> tuple[str, ...]:
    """Return the hosts of a list such as `n[001-016]`, or of a file with lines of such.

    The rest of a line (`slots=8`) and comments do not count. Raises `UsageError`.
    """
    path = Path(text)
    if path.suffix in _FILE_ENDINGS and not path.is_file():
        raise FileError(f"--hosts: no file {text}", "a list such as n[001-016], or a file")
    if not path.is_file():
        return hosts_of_text(text)
    try:
        return hosts_of_text(path.read_text(encoding="utf-8"), text)
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"--hosts: cannot read {text}: {error}", "") from None


def hosts_of_text(text: str, file: str = "") -> tuple[str, ...]:
    """Return the hosts of a list, or of the lines of a file of this name."""
    if not text.strip() and not file:
        fix = (
            "a list such as n[001-016], or a file; leave "
            + option("hosts")
            + " out for those of the cluster"
        )
        raise UsageError(option("hosts") + " is empty", fix)
    names: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        cells = line.partition("#")[0].split()
        if not cells:
            continue
        try:
            names += expand_hosts(cells[0])
        except BadValue as error:
            where = f"{file}:{number}" if file else option("hosts")
            raise UsageError(where + f": {error.message}", error.hint) from None
    if not names:
        raise UsageError(
            option("hosts") + f": {file or text!r} names no host",
            "a list such as n[001-016], or a file",
        )
    return tuple(names)
