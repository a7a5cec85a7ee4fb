"""Hugging Face config.json to a model file.

Nothing is downloaded and no code of a repository is run: the sizes are read by the rules of the
file's `model_type` (`model_types`). What the file does not say, the training section, is assumed
and marked as such. What the cost model does not have is refused where it would make the numbers
wrong; where the effect is small or its direction known it is a note (`unpriced`).
"""

from planner.specs.importers.huggingface.files import config_in_folder, looks_like, mistaken_name
from planner.specs.importers.huggingface.reader import read_as, read_config

__all__ = ["config_in_folder", "looks_like", "mistaken_name", "read_as", "read_config"]
