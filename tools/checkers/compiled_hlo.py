"""The collectives of a compiled XLA program, from its text: how often each runs, what it holds.

A loop counts as often as it runs (`known_trip_count`, or the constant that its condition compares
with), a branch as often as what calls it. Of a tuple every part counts. Needs the standard library
alone.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\) -> .* \{$")
_OPERATION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (.*)$")
_KIND = re.compile(rf" ({'|'.join(KINDS)})(?:-start)?\(")
_CALLED = re.compile(r"(?:body|calls|to_apply|true_computation|false_computation)=%?([\w.-]+)")
_MESH = re.compile(
    r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\([^{]*\))? \{([^}]*)\}"
)
_ARRAY = re.compile(r"\b(pred|[suf]\d+|bf16|f8\w+)\[([\d,]*)\]")


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective operation of a program."""

    kind: str
    """One of `KINDS`."""
    group_size: int
    n_runs: int
    """How often one run of the program runs it."""
    elements: tuple[int, ...]
    """Elements of each logical tensor: what a rank has after a gather, before a scatter."""
    types: tuple[str, ...]
    source: str
    """Where it comes from in the program that was traced (`op_name`)."""


def computations(text: str) -> tuple[dict[str, list[str]], str]:
    """Return the lines of every computation of a program, and the name of the first that runs."""
    result: dict[str, list[str]] = {}
    entry, lines = "", []
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            lines = result[head[2]] = []
            entry = head[2] if head[1] else entry
        elif line.startswith("}"):
            lines = []
        else:
            lines.append(line)
    return result, entry


def runs_of(parts: dict[str, list[str]], entry: str) -> dict[str, int]:
    """Return how often each computation runs in one run of the program."""
    result: dict[str, int] = {}

    def visit(name: str, times: int) -> None:
        result[name] = result.get(name, 0) + times
        for line in parts[name]:
            repeats = _trips(parts, line) if " while(" in line else 1
            for called in _CALLED.findall(line):
                if called in parts:
                    visit(called, times * repeats)

    visit(entry, 1)
    return result


def _trips(parts: dict[str, list[str]], line: str) -> int:
    """Return how often a loop runs; `ValueError` where its text does not say."""
    if stated := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', line):
        return int(stated[1])
    condition = re.search(r"condition=%?([\w.-]+)", line)
    text = "\n".join(parts.get(condition[1], [])) if condition else ""
    numbers = {int(n) for n in re.findall(r"s32\[\]\S* constant\((\d+)\)", text)}
    if len(numbers) != 1:
        raise ValueError(f"a loop whose number of runs is not said: {line.strip()[:120]}")
    return numbers.pop()


def collectives(text: str, n_devices: int) -> Iterator[Collective]:
    """Return the collectives of a program on this many devices."""
    parts, entry = computations(text)
    for name, times in runs_of(parts, entry).items():
        for line in parts[name]:
            operation = _OPERATION.match(line)
            kind = _KIND.search(line)
            if not operation or not kind:
                continue
            ranks = group_size(line, n_devices)
            shapes = _results(operation[2][: kind.start() - operation.start(2)], line)
            scale = {"reduce-scatter": ranks}.get(kind[1], 1)
            elements = tuple(scale * math.prod(shape) for _, shape in shapes)
            if kind[1] == "all-to-all" and len(shapes) == ranks:  # a part for every rank
                elements, shapes = (sum(elements),), shapes[:1]
            source = re.search(r'op_name="([^"]*)"', line)
            types = tuple(kind_of for kind_of, _ in shapes)
            where = source[1] if source else ""
            yield Collective(kind[1], ranks, times, elements, types, where)


def _results(head: str, line: str) -> list[tuple[str, list[int]]]:
    """Return type and shape of each result; of an asynchronous gather the second half alone."""
    arrays = _ARRAY.findall(head)
    shapes = [(kind, [int(n) for n in sizes.split(",") if n]) for kind, sizes in arrays]
    if re.search(r" (all-gather|collective-permute)-start\(", line):
        return shapes[len(shapes) // 2 :][: len(shapes) // 2]
    return shapes


def group_size(line: str, n_devices: int) -> int:
    """Return the ranks of a group, in each of the ways that XLA writes them.

    >>> group_size("replica_groups={{0,1,2,3},{4,5,6,7}}, x", 8)
    4
    >>> group_size("replica_groups=[4,2]<=[8], x", 8), group_size("replica_groups={}, x", 8)
    (2, 8)
    >>> group_size("replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1'}, x", 8)
    4
    """
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", line):
        return len(listed[1].split(","))
    if iota := re.search(r"replica_groups=\[(\d+),(\d+)\]<=", line):
        return int(iota[2])
    if mesh := _MESH.search(line):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
        axes = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", mesh[2])
        return math.prod(int(part or sizes[name]) for name, part in axes)
    return n_devices

