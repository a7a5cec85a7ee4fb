"""What the switches of a plan are worth: the same plan with one of them off."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from costmodels.axes import AXES, Value
from costmodels.breakdown import break_down
from costmodels.layers.layer_grid import LayerGrid
from costmodels.plans import Layout
from costmodels.problem import Problem
from planner.units import GIB
from searches.mode_rules import AXES_OF_MODES


@dataclass(frozen=True, slots=True)
class SwitchWorth:
    """One switch that a plan uses."""

    axis: str
    value: Value
    saved_s: float
    """What a step takes more without it, all else the same, seconds."""
    saved_bytes: float
    """What the fullest device needs more without it; negative where the switch costs memory."""

    def to_json(self) -> dict[str, object]:
        """Return it with the field names of the result schema."""
        return {
            "axis": self.axis,
            "value": self.value,
            "saved_s": self.saved_s,
            "saved_bytes": round(self.saved_bytes),
        }


def without_switch(layout: Layout, axis: str) -> Layout:
    """Return a layout with one axis off, legal or not."""
    return replace(layout, switches=tuple(x for x in layout.switches if x[0] != axis))


def switches_worth(
    problem: Problem, layout: Layout, grid: LayerGrid | None = None
) -> tuple[SwitchWorth, ...]:
    """Return what each switch of a plan saves against the plan without it, in the axes' order.

    The other plan need not be legal: a graph of the whole iteration needs its dispatcher.
    """
    used: Mapping[str, Value] = dict(layout.switches)
    names = [name for name in AXES_OF_MODES if name in used]
    if not names:
        return ()
    chosen = break_down(problem, layout, grid=grid)
    results = []
    for name in names:
        other = break_down(problem, without_switch(layout, name), grid=grid)
        saved_bytes = other.peak_bytes - chosen.peak_bytes
        results.append(SwitchWorth(name, used[name], other.step_s - chosen.step_s, saved_bytes))
    return tuple(results)


def worth_text(worth: SwitchWorth, step_s: float) -> str:
    """Return a switch and what it saves: `dispatcher hybridep -0.35 s against alltoall`."""
    axis = AXES[worth.axis]
    unit = f"{abs(worth.saved_s):.2f} s" if step_s >= 2.0 else f"{abs(worth.saved_s) * 1e3:.1f} ms"
    sign = "-" if worth.saved_s >= 0 else "+"
    if axis.name == "offload_modules":  # which buys memory, never time
        sign, unit = "+", f"{unit}, {worth.saved_bytes / GIB:.1f} GiB less"
    return f"{axis.name} {axis.text(worth.value)} {sign}{unit} against {axis.text(axis.off)}"
