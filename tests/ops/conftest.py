"""One hypothesis profile for the op tests: the same examples in every run, and no deadline on a busy machine."""

from hypothesis import settings

settings.register_profile("ops", derandomize=True, deadline=None, max_examples=40, database=None)
settings.load_profile("ops")
