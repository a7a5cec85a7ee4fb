"""Mixers with a state in place of keys: recurrences, convolutions, linear attention."""
