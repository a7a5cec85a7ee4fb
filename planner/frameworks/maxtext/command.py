"""The training command of MaxText in scripts, XPK commands and JobSet manifests.

`python3 -m maxtext.trainers.pre_train.train base.yml key=value ...`, in releases before 0.2
`python3 -m MaxText.train MaxText/configs/base.yml ...`.
"""

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from hardware.catalogue import UnknownPartError, load_catalogue
from hardware.torus import Torus, slice_shape
from planner.frameworks.runs.format import RunFile
from planner.frameworks.shell.marks import unmarked
from planner.frameworks.shell.script import read_script

_MODULE = re.compile(
    r"-m\s+(?:src\.)?(?:MaxText|maxtext\.trainers\.pre_train|maxtext)\.train\s+(.*)", re.S
)
_FILE = re.compile(
    r"(?:^|[\s/])(?:MaxText|maxtext)/(?:trainers/pre_train/)?train\.py\s+(.*)", re.S
)
_CORES_OF_NAME = {"v4": 2, "v5p": 2}
"""Cores of a chip in names such as v5p-256, which count cores; a chip is one device."""
_NAME_OF_PART = {
    "tpu-v4": "v4",
    "tpu-v5e": "v5litepod",
    "tpu-v5p": "v5p",
    "tpu-v6e": "v6e",
    "tpu-7x-chiplet": "tpu7x",
}
"""What names of slices begin with, by catalogue name."""


@dataclass(frozen=True, slots=True)
class TrainingCommand:
    """One command that trains."""

    config: str
    """The YAML that it names; empty where it names none."""
    words: tuple[tuple[str, str], ...]
    """`key=value` of its words, in order."""
    n_devices: int | None
    """Devices as JAX counts them, over all slices; None where the file does not say."""
    n_slices: int
    env: Mapping[str, str]
    stray: tuple[str, ...] = ()
    """Words that are no `key=value`."""


def looks_like_command(text: str) -> bool:
    """Tell whether a text starts MaxText's training."""
    return bool(_MODULE.search(text) or _FILE.search(text))


def training_command(file: RunFile) -> TrainingCommand | None:
    """Return the last training command of a file, None where there is none."""
    text = file.text
    if re.search(r"^kind:\s*JobSet|^apiVersion:", text, re.M):
        found = _tail(text)
        return None if found is None else _command(_split(found), _of_manifest(text), {})
    script = read_script(text, file.query.env or {}, file.find)
    result: TrainingCommand | None = None
    counted: tuple[int | None, int] = (None, 1)
    for command in script.commands:
        words = [unmarked(word) for word in command.argv]
        if words[:1] == ["xpk"]:
            counted = _of_xpk(words)
        start = _words_start(words)
        if start:
            result = _command(words[start:], counted, command.env)
            continue
        tail = next((t for t in map(_tail, words) if t is not None), None)
        if tail is not None:
            result = _command(_split(tail), counted, command.env)
    return result


def _words_start(words: list[str]) -> int:
    """Return where the words of the training module start in a command; 0 for another command."""
    for i, word in enumerate(words[:12]):
        module = i > 0 and words[i - 1] == "-m" and _MODULE.match(f"-m {word} ")
        if module or (i > 0 and _FILE.match(f"/{word} ")):
            return i + 1
    return 0


def _tail(text: str) -> str | None:
    """Return what follows the training module, up to the end of its command."""
    for pattern in (_MODULE, _FILE):
        matches = list(pattern.finditer(text))
        if not matches:
            continue
        start = matches[0].start(1)
        later = text[start:]
        while (more := pattern.search(later)) is not None:
            later = more[1]
        return re.split(r"\n|\s[|&;>]|[)&;]\s|&&|\)$", re.sub(r"\\\n", " ", later))[0]
    return None


def _split(tail: str) -> list[str]:
    try:
        return shlex.split(tail)
    except ValueError:
        return tail.split()


def _command(
    words: list[str], counted: tuple[int | None, int], env: Mapping[str, str]
) -> TrainingCommand:
    config = words[0] if words and words[0].endswith((".yml", ".yaml")) else ""
    pairs, stray = [], []
    for word in words[bool(config) :]:
        name, equals, value = word.lstrip("-").partition("=")
        if equals:
            pairs.append((name, value))
        else:
            stray.append(word)
    return TrainingCommand(config, tuple(pairs), *counted, env, tuple(stray))


def _of_xpk(words: list[str]) -> tuple[int | None, int]:
    """Return devices and slices of an `xpk workload create`."""
    options = dict(word.lstrip("-").partition("=")[::2] for word in words if "=" in word)
    for i, word in enumerate(words[:-1]):
        if word in ("--device-type", "--tpu-type", "--num-slices"):
            options[word.lstrip("-")] = words[i + 1]
    slices = options.get("num-slices", "1")
    n_slices = int(slices) if slices.isdecimal() and int(slices) > 0 else 1
    kind = options.get("device-type", options.get("tpu-type", ""))
    devices = slice_devices(kind)
    return (devices * n_slices if devices else None), n_slices


def slice_devices(kind: str) -> int | None:
    """Return the devices of a slice by its name, as JAX counts them; None for another name.

    >>> slice_devices("v5p-256"), slice_devices("v6e-256"), slice_devices("tpu7x-4x4x8")
    (128, 256, 256)
    """
    match = re.fullmatch(r"(?:tpu-)?(v\d\w*|tpu7x|v5litepod)-(\d+(?:x\d+)*)", kind)
    if not match:
        return None
    sizes = [int(part) for part in match[2].split("x")]
    if len(sizes) > 1:
        return math.prod(sizes) * _devices_of_chip(match[1])
    return sizes[0] // _CORES_OF_NAME.get(match[1], 1)


def slice_name(part: str, torus: Torus, shape: tuple[int, ...]) -> str | None:
    """Return what XPK calls a slice of a catalogue part, for `--device-type`.

    None of a part without one, and of shapes that names by numbers do not mean: those are of the
    usual ones. `slice_devices` reads it back.

    >>> slice_name("tpu-7x-chiplet", Torus(3, 4, 9216, 2, 6.0), (4, 4, 8))
    'tpu7x-4x4x8'
    >>> slice_name("tpu-v5p", Torus(3, 4, 6144), (4, 4, 8))
    'v5p-256'
    """
    name, n_chips = _NAME_OF_PART.get(part), math.prod(shape)
    if name is None or not shape:
        return None
    if torus.devices_per_chip > 1:
        return f"{name}-{'x'.join(map(str, shape))}"
    if slice_shape(torus, n_chips) != shape:
        return None
    return f"{name}-{n_chips * _CORES_OF_NAME.get(name, 1)}"


def _devices_of_chip(name: str) -> int:
    """Return the devices that JAX shows of a chip; 1 of one that the catalogue has not."""
    try:
        torus = load_catalogue().accelerator(name).torus
    except UnknownPartError:
        return 1
    return torus.devices_per_chip if torus else 1


def _of_manifest(text: str) -> tuple[int | None, int]:
    """Return devices and slices of a JobSet on nodes of TPUs."""
    topology = re.search(r"gke-tpu-(?:slice-)?topology:\s*[\"']?(\d+(?:x\d+)+)", text)
    kind = re.search(r"gke-tpu-accelerator:\s*[\"']?([\w-]+)", text)
    replicas = re.search(r"^\s*replicas:\s*(\d+)", text, re.M)
    n_slices = max(1, int(replicas[1])) if replicas else 1
    if not topology:
        return None, n_slices
    chips = math.prod(int(part) for part in topology[1].split("x"))
    of_chip = _devices_of_chip(kind[1] if kind else "")
    return chips * of_chip * n_slices, n_slices
