"""Clocks that a test moves."""


class Clocks:
    """The two clocks of a machine: one can be set, the other only goes on."""

    def __init__(self) -> None:
        self.monotonic_s = 1_000.0
        self.wall_s = 1_800_000_000.0

    def monotonic(self) -> float:
        return self.monotonic_s

    def wall(self) -> float:
        return self.wall_s

    def pass_(self, seconds: float) -> None:
        """Let time go by."""
        self.monotonic_s += seconds
        self.wall_s += seconds

    def set_wall(self, by_s: float) -> None:
        """Set the time of day forwards or back."""
        self.wall_s += by_s
