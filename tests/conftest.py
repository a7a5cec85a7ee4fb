"""Settings of all tests."""

from hypothesis import settings

# The same examples on every run and machine, and no time limit on busy ones.
settings.register_profile("steady", derandomize=True, deadline=None, database=None)
settings.load_profile("steady")
