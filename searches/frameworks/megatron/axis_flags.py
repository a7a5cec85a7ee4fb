"""Flags of Megatron-LM that are axes and nothing else: written, read and told by their name.

A switch is its flag alone, a number or a word the flag with its value; an axis that is off is no
flag. The flags are of the parser whose table is planner/data/megatron_flags.json.
"""

from collections.abc import Mapping

AXIS_FLAGS: Mapping[str, str] = {}
"""By axis of `Layout.switches`. docs/extending.md says how one is added."""
