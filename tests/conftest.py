"""Settings of all tests.

`pytest --hypothesis-profile=thorough` draws ten times as many examples for every property.
"""

from hypothesis import settings

# The same examples on every run and machine, and no time limit on busy ones.
settings.register_profile(
    "steady", derandomize=True, deadline=None, database=None, max_examples=40
)
settings.register_profile("thorough", settings.get_profile("steady"), max_examples=400)
settings.load_profile("steady")
