"""The header of a GGUF file: its metadata and the sizes of its tensors.

Read with `struct`: the `gguf` package maps the whole file and fails on a header that was cut off
the front of one, which is all that is needed here. Source: ggml-org/ggml, docs/gguf.md.
"""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from planner.errors import InputProblem, SpecError

MAGIC = b"GGUF"
MOST_ENTRIES = 1_000_000
"""Most keys, and most tensors, that a header may announce."""
MOST_BYTES = 1 << 28
"""Longest text or list of a header, bytes."""
_NUMBERS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
"""Formats by the number of a type."""
_TEXT, _LIST, _SINGLE = 8, 9, 6
_OF_POSITIONS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that are tables of positions and no parameters."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a header says."""

    metadata: Mapping[str, Any]
    """By key; of long lists their length alone, as `{"length": n}`."""
    tensors: Mapping[str, int]
    """Elements of each tensor in this file."""


class _Reader:
    """Reads one value after the other; a header that ends too early is a `SpecError`."""

    def __init__(self, stream: BinaryIO, file: str) -> None:
        self.stream = stream
        self.file = file

    def raw(self, n_bytes: int) -> bytes:
        """Return so many bytes."""
        data = self.stream.read(n_bytes) if n_bytes <= MOST_BYTES else b""
        if len(data) < n_bytes:
            message = "the header of the GGUF file is cut off, or not a GGUF header"
            raise SpecError(InputProblem(message, "give the whole header of the file", self.file))
        return data

    def number(self, form: str) -> Any:
        """Return a number of a `struct` format."""
        return struct.unpack(form, self.raw(struct.calcsize(form)))[0]

    def text(self) -> str:
        """Return a text."""
        return self.raw(self.number("<Q")).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """Return a value of a type; of a list of texts, or a long one, its length alone."""
        if kind == _TEXT:
            return self.text()
        if kind == _LIST:
            inner, length = self.number("<I"), self.number("<Q")
            if length > MOST_BYTES:
                self.raw(MOST_BYTES + 1)
            if inner == _TEXT or length > 1024:
                for _ in range(length) if inner in (_TEXT, _LIST) else ():
                    self.value(inner)
                if inner in _NUMBERS:
                    self.raw(length * struct.calcsize(_NUMBERS[inner]))
                return {"length": length}
            return [self.value(inner) for _ in range(length)]
        if kind not in _NUMBERS:
            message = f"the GGUF header has a value of the unknown type {kind}"
            raise SpecError(InputProblem(message, "is the file whole?", self.file))
        number = self.number(_NUMBERS[kind])
        return float(f"{number:.7g}") if kind == _SINGLE else number

    def count(self, what: str) -> int:
        """Return how many entries follow."""
        n = int(self.number("<Q"))
        if n > MOST_ENTRIES:
            message = f"the GGUF header announces {n} {what}, more than any file has"
            raise SpecError(InputProblem(message, "is the file whole?", self.file))
        return n


def is_gguf(name: str) -> bool:
    """Tell whether a file begins as a GGUF file does."""
    try:
        with Path(name).open("rb") as stream:
            return stream.read(4) == MAGIC
    except (OSError, ValueError):
        return False


def read_header(name: str) -> GgufHeader:
    """Return the header of a GGUF file; `SpecError` where it is cut off or of another version."""
    with Path(name).open("rb") as stream:
        reader = _Reader(stream, name)
        reader.raw(4)
        version = reader.number("<I")
        if version not in (2, 3):
            message = f"GGUF of version {version}, and versions 2 and 3 are read"
            raise SpecError(InputProblem(message, "convert it with llama.cpp", name))
        n_tensors, n_keys = reader.count("tensors"), reader.count("keys")
        metadata: dict[str, Any] = {}
        for _ in range(n_keys):
            key = reader.text()
            metadata[key] = reader.value(reader.number("<I"))
        tensors: dict[str, int] = {}
        for _ in range(n_tensors):
            tensor = reader.text()
            sizes = [reader.number("<Q") for _ in range(min(reader.number("<I"), 8))]
            reader.number("<I"), reader.number("<Q")
            tensors[tensor] = math.prod(sizes)
    return GgufHeader(metadata, tensors)


def header_text(name: str) -> str:
    """Return the header of a GGUF file as the JSON text that `gguf_model` reads."""
    header = read_header(name)
    counted = {k: n for k, n in header.tensors.items() if k not in _OF_POSITIONS}
    fields = {
        "gguf": dict(header.metadata),
        "tensor_params": sum(counted.values()),
        "has_head": "output.weight" in counted,
        "head_params": counted.get("output.weight", 0),
    }
    return json.dumps(fields, allow_nan=False, default=str)
