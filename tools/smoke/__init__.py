"""The run matrix: emitted files that train two steps on the CPU."""
