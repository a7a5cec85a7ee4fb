"""Settings of all tests.

`pytest --hypothesis-profile=thorough` draws ten times as many examples for every property.
"""

import signal

from hypothesis import settings

# Python keeps Ctrl-C ignored where whoever started it ignores it: nohup, a job in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every run and machine, and no time limit on busy ones.
settings.register_profile(
    "steady", derandomize=True, deadline=None, database=None, max_examples=40
)
settings.register_profile("thorough", settings.get_profile("steady"), max_examples=400)
settings.load_profile("steady")
