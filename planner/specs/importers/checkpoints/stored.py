"""Compares the parameters of a model as it is read with those that its weight files hold."""

import re
from dataclasses import replace
from pathlib import Path

from costmodels.parameters import total_params
from planner.errors import SpecError
from planner.specs.importers.checkpoints.safetensors import stored_params
from planner.specs.importers.imported import Imported
from planner.specs.model import read_model
from planner.specs.yaml.document import Document
from planner.units import format_count, format_percent

_DTYPE = re.compile(r'"(?:torch_)?dtype"\s*:\s*"([\w.]+)"')
SAME_FRAC = 1e-3
"""Largest difference of counts that is not told."""


def with_weights_beside(imported: Imported, file: str, text: str) -> Imported:
    """Return an import of a config.json compared with the safetensors files that lie beside it.

    A quantized copy is not compared: its tensors are packed.
    """
    if not file or not Path(file).is_file() or '"quantization_config"' in text:
        return imported
    dtype = _DTYPE.search(text)
    n_params, what = stored_params(file, dtype[1] if dtype else "bfloat16")
    return compared_with(imported, n_params, what)


def compared_with(imported: Imported, stored_params: float, what: str) -> Imported:
    """Return the import with a note where weight files hold another number of parameters.

    `what` holds them, in words. Says what would explain it: a head that is stored beside the
    embedding it is tied to, modules of multi-token prediction.
    """
    if not stored_params:
        return imported
    try:
        model = read_model(Document(imported.document))
    except SpecError:
        return imported  # whoever loads the document says so
    ours = total_params(model.shape, model.job.seq_len)
    off = stored_params / ours - 1
    if abs(off) <= SAME_FRAC:
        return imported
    head = model.shape.vocab * model.shape.hidden
    why = ""
    if model.shape.tied and abs(stored_params / (ours + head) - 1) <= SAME_FRAC:
        why = ": the head is stored beside the embedding that it is tied to"
    elif model.shape.mtp_layers and off > 0:
        why = ": modules of multi-token prediction are stored too, and not counted here"
    elif any("left out" in note for note in imported.notes) and off > 0:
        why = ": other towers are stored too, which are left out here"
    more = "more" if off > 0 else "fewer"
    note = (
        f"{what}: {format_count(stored_params)} parameters, {format_percent(abs(off))} {more} than"
        f" the {format_count(ours)} of the model as it is read{why}"
    )
    return replace(imported, notes=(*imported.notes, note))
