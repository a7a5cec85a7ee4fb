"""Adapters of a whole model."""

import numpy as np

from costmodels.layers.kinds import present_kinds
from costmodels.shapes import ModelShape
from costmodels.tuning.adapters import expert_adapter_params, layer_adapter_params
from costmodels.tuning.records import TuningJob


def model_adapter_params(shape: ModelShape, tuning: TuningJob, experts_frac: float) -> float:
    """Return the parameters of all adapters, of routed experts the share `experts_frac`.

    1 for all that there are, k / E for those that a token meets.
    """
    one, total = np.ones(1, dtype=np.int32), 0.0
    for kind, count in present_kinds(shape):
        each = layer_adapter_params(shape, tuning, one, routed=kind.is_routed)
        if kind.is_routed:
            each = each + experts_frac * expert_adapter_params(shape, tuning, one, one)
        total += count * float(each[0])
    return total
