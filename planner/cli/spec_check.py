"""What `planner check-spec` says of a file: a model, a cluster or a sweep."""

import os

from planner.specs.inputs import Content, FileOrContent
from planner.specs.loader import example_called, is_sweep_file, load_spec
from planner.specs.summary import spec_summary
from planner.sweeps.spec.description import sweep_summary


def check_spec(path: FileOrContent) -> str:
    """Find out which kind of file this is, check it, and return a summary in a few lines.

    It begins with the name of the file as it was given; of an example that is its bare name.
    """
    if not isinstance(path, Content):
        if is_sweep_file(path):
            return sweep_summary(path)
        path = example_called(os.fspath(path)) or path
    return spec_summary(load_spec(path))
