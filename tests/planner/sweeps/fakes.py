"""A sweep whose points cost nothing, and misbehave on request. Workers can import it."""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.solver.options import SolveOptions
from planner.sweeps.points import Point


@dataclass(frozen=True, eq=False)
class FakeSweep:
    """Points that fail at once with a reason of their own, so that each has a row of its own."""

    n: int = 12
    sweep_id: str = "5eed5eed5eed"
    deeds: Mapping[int, str] = field(default_factory=dict)
    """What becomes of whoever reads the inputs of a point: hang, die, die once, bug, memory."""
    folder: str = ""
    """Where `die once` remembers."""
    name: str = "fake"
    time_limit_s: float = 0.0
    shared_by: int = 5
    """Points that share work."""
    delay_s: float = 0.0
    hurry: str = ""
    """File from whose appearance on no point is delayed."""
    workers: str = ""
    """Folder in which each process that works says on which machine of a Ray cluster it is."""

    def points(self) -> Iterator[Point]:
        for i in range(self.n):
            index = 2 * i  # constraints leave the others out
            shared = f"{i // self.shared_by:04d}"
            yield Point(index, (("x", i),), f"id{index}", f"key{index}", shared_key=shared)

    def inputs(self, point: Point) -> Any:
        if not (self.hurry and Path(self.hurry).exists()):
            time.sleep(self.delay_s)
        if self.workers:
            import ray

            said = Path(self.workers) / str(os.getpid())
            said.write_text(ray.get_runtime_context().get_node_id())
        deed = self.deeds.get(point.index, "")
        mark = Path(self.folder) / str(point.index)
        if deed == "die" or (deed == "die once" and not mark.exists()):
            if deed == "die once":
                mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if deed == "hang":
            time.sleep(60.0)
        if deed == "bug":
            raise RuntimeError(f"two lines\nabout {object()}")
        if deed == "memory":
            raise MemoryError
        raise SpecError(
            InputProblem(f"no inputs at {point.index}", "change é", path="pools.0.nodes")
        )

    def options_of(self, point: Point) -> SolveOptions:
        return SolveOptions()

    def columns(self, point: Point) -> tuple[tuple[str, Any], ...]:
        return (
            ("in.x", point.index // 2),
            ("in.text", "a,\n\"b'" if point.index % 4 else None),
            ("in.share", point.index / 7),
            ("let.flag", point.index > 4),
            ("in.mixed", 1 if point.index else "one"),
        )

    def header(self) -> dict[str, Any]:
        return {
            "sweep_id": self.sweep_id,
            "name": self.name,
            "inputs": [{"column": "in.x", "unit": "B"}, {"column": "let.flag", "unit": ""}],
        }
