"""Which plans matter still on the way through a search, given what has been found."""

from dataclasses import dataclass, replace

from searches.pricing.candidates import Candidate

RIVAL_MARGIN = 1.05
"""Plans whose lower bound is less than this share of the best closed form are kept until the exact
times are known: the exact time of the first is seldom further above its closed form."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Which plans matter still, given what has been found; seconds of a step."""

    last_s: float = float("inf")
    """Closed form of the last of the best: what takes longer is not among them."""
    first_s: float = float("inf")
    """Closed form of the best."""
    settled_s: float = 0.0
    """Plans that may take less than this by the exact recurrence are asked for."""
    rival_s: float = 0.0
    """Plans that the closed form prices below this are counted."""
    exact_s: float = float("inf")
    """Exact time from which on a plan is not asked for."""

    @property
    def rivals_s(self) -> float:
        """Lower bound below which a plan may turn out to be the first."""
        return max(self.settled_s, RIVAL_MARGIN * self.first_s)

    @property
    def least_s(self) -> float:
        """Lower bound above which no plan needs a price."""
        return min(max(self.last_s, self.rivals_s, self.rival_s), self.exact_s)

    def after(self, best: list[Candidate], n: int) -> "Limits":
        """Return the limits once `best` are found, in order; n are asked for."""
        first_s = best[0].closed_form_s if best else float("inf")
        last_s = best[n - 1].closed_form_s if len(best) >= n else float("inf")
        return replace(self, first_s=min(self.first_s, first_s), last_s=min(self.last_s, last_s))
