"""Commands that start other commands, filters that write files, placeholders that users fill in.

`srun ... bash -c "TEXT"`, `sbatch FILE ARGS`, `sed "s/A/B/" FILE > OTHER`, `--save <PATH>`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner.frameworks.shell.marks import mark, unmarked, unresolved

SHELLS = frozenset(("bash", "sh", "zsh", "dash", "ksh"))
SUBMITTERS = frozenset(("sbatch", "qsub", "bsub"))
SCRIPT_ENDINGS = (".sh", ".slurm", ".sbatch", ".bash")
_PLACEHOLDER = re.compile(
    r"(?:(?<==)|(?<![<\w&>\d=]))<([A-Za-z][^<>\n|&;$`(){}]*[^<>\n|&;$`(){}\s])>"
    r"(?=[\s\"'\\)_.,]|$|/(?!dev/))"
)
"""`<Specify path>`: a redirection to bash, which nobody means; `<in >out` has a blank inside."""
_PLAIN = re.compile(r"[\w ./\"':,@%{}<>=-]*")
"""Patterns of `sed` that stand for themselves."""


@dataclass(frozen=True, slots=True)
class Inner:
    """A script that a command starts."""

    wrappers: tuple[str, ...]
    """What stands before the shell: `srun -l`."""
    text: str
    """The script itself, or the name of its file."""
    arguments: tuple[str, ...]
    is_file: bool


def inner_script(tokens: Sequence[str]) -> Inner | None:
    """Return the script of `bash -c TEXT`, `bash FILE ARGS`, `sbatch FILE ARGS`, `./FILE ARGS`."""
    first = next((i for i, word in enumerate(tokens) if _base(word) in SHELLS), None)
    if first is not None:
        for i in range(first + 1, len(tokens) - 1):
            if re.fullmatch(r"-\w*c", tokens[i]):
                rest = tuple(tokens[i + 3 :])
                return Inner(tuple(tokens[:first]), tokens[i + 1], rest, is_file=False)
    file = next((i for i, w in enumerate(tokens) if unmarked(w).endswith(SCRIPT_ENDINGS)), None)
    if file is None or tokens[file].startswith("-"):
        return None
    before = tokens[:file]
    if any(_base(word) in SUBMITTERS for word in before[:1]):
        return Inner(tuple(before), tokens[file], tuple(tokens[file + 1 :]), is_file=True)
    starts = not before or first is not None or _base(tokens[0]) in ("srun", "mpirun", "nohup")
    wrappers = tuple(before if first is None else tokens[:first])
    return (
        Inner(wrappers, tokens[file], tuple(tokens[file + 1 :]), is_file=True) if starts else None
    )


def reads_its_input(tokens: Sequence[str]) -> bool:
    """Tell whether a command runs the script that comes as its input: `sbatch <<EOF`."""
    name = _base(tokens[0]) if tokens else ""
    plain = all(word.startswith("-") for word in tokens[1:])
    return name in SUBMITTERS or (name in SHELLS and plain)


def _base(word: str) -> str:
    return word.rsplit("/", 1)[-1]


def with_placeholders(text: str) -> str:
    """Return a script with `<Specify path>` as a mark of that name, where bash would redirect.

    Also with `n=${N}` for `n=$N` behind a quote, which the grammar of bash does not parse.
    """
    plain = re.sub(
        r"(?<=\"[\w,]=)\$([A-Za-z_]\w*)|(?<=\w=)\$([A-Za-z_]\w*)(?=,)",
        lambda found: f"${{{found[1] or found[2]}}}",
        text,
    )
    return _PLACEHOLDER.sub(lambda found: mark(f"<{found[1]}>"), plain)


def written_file_name(word: str) -> str:
    """Return the name of a file whose folder may be open; "" where the name itself is."""
    name = word.rsplit("/", 1)[-1]
    return "" if unresolved(name) else name


def filtered(
    tokens: Sequence[str], text: str | None, read: Callable[[str], str | None]
) -> str | None:
    """Return what `cat FILE` or `sed s/A/B/ FILE` prints; None where that cannot be told.

    `text` is what comes through the pipe.
    """
    name, rest = _base(tokens[0]) if tokens else "", list(tokens[1:])
    if name == "cat":
        named = [word for word in rest if not word.startswith("-")]
        return read(named[0]) if len(named) == 1 else text
    if name != "sed":
        return None
    scripts = [rest[i + 1] for i, word in enumerate(rest[:-1]) if word in ("-e", "--expression")]
    plain = [
        w
        for i, w in enumerate(rest)
        if not w.startswith("-") and (i == 0 or rest[i - 1] not in ("-e", "--expression"))
    ]
    if any(word in ("-i", "--in-place", "-n") for word in rest):
        return None
    if not scripts and plain:
        scripts, plain = plain[:1], plain[1:]
    value = read(plain[0]) if plain else text
    for script in scripts:
        value = None if value is None else _replaced(script, value)
    return value


def _replaced(script: str, text: str) -> str | None:
    """Return a text after `s/A/B/`, each line of it; None for another command of sed."""
    for part in filter(None, (piece.strip() for piece in script.split(";"))):
        delimiter = part[1:2]
        fields = re.split(rf"(?<!\\){re.escape(delimiter)}", part) if delimiter else []
        if not part.startswith("s") or len(fields) != 4 or not _PLAIN.fullmatch(fields[1]):
            return None
        old, new = fields[1], fields[2].replace(f"\\{delimiter}", delimiter)
        count = -1 if "g" in fields[3] else 1
        text = "\n".join(
            line.replace(old, new, count) if old else line for line in text.split("\n")
        )
    return text
