"""How long traffic takes, and how much of it compute waits for."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Exposure:
    """A collective's time, and the part of it that compute waits for, seconds."""

    total_s: Floats
    exposed_s: Floats

    @property
    def hidden_s(self) -> Floats:
        """What runs beside compute."""
        return self.total_s - self.exposed_s
