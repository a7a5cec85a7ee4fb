"""The command `planner place`: where the ranks of a plan run, printed and as files."""

import sys
from pathlib import Path

from planner import __version__
from planner.analyze.placement.text import placement_files, placement_json, placement_table
from planner.errors import BadValue, EmitError, FileError, UsageError
from planner.frameworks.launchers.placement import place_plan
from planner.option_names import option
from planner.solver.answer.result_store import opened_plan
from planner.specs.importers.hostlist import expand_hosts
from planner.specs.inputs import ClusterInput

_FILE_ENDINGS = (".txt", ".lst", ".list", ".conf", ".hosts")
"""Endings that no host name has: a file that is not there is no host of its name."""


def run_place(reference: str, hosts: str | None, out: str, form: str) -> None:
    """Run `planner place`."""
    if form not in ("table", "json"):
        raise UsageError(f"--format: unknown {form!r}", "table or json")
    model, cluster, problem, plan = opened_plan(reference)
    pool = problem.pool
    names = chosen_hosts(hosts, cluster)
    placement = place_plan(plan.layout, model.shape, pool, cluster.cluster.fabric, names)
    header = [
        f"plan {plan.plan_id}, model {model.shape.name}, cluster {cluster.cluster.name}",
        f"written by planner {__version__}",
    ]
    if out:
        write_files(Path(out), placement_files(placement, header))
        sys.stderr.write(f"wrote {out}\n")
    if form == "json":
        sys.stdout.write(placement_json(placement, plan.plan_id))
    else:
        sys.stdout.write(placement_table(placement, header[:1]))


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
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            names += expand_hosts(words[0])
        except BadValue as error:
            where = f"{file}:{number}" if file else option("hosts")
            raise UsageError(where + f": {error.message}", error.hint) from None
    if not names:
        raise UsageError(
            option("hosts") + f": {file or text!r} names no host",
            "a list such as n[001-016], or a file",
        )
    return tuple(names)


def write_files(folder: Path, files: dict[str, str]) -> None:
    """Write files into a folder, which is made if need be; scripts become executable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            path = folder / name
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755 if name.endswith((".sh", ".sbatch")) else 0o644)
    except OSError as error:
        fix = "name another folder with --out"
        raise EmitError(f"cannot write {folder}: {error.strerror}", fix) from None
