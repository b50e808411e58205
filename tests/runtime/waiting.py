"""How long the runtime tests wait for what must happen."""

#: Seconds after which something that must happen has not. Long, because the machine may be busy.
SOON = 30.0
