"""One folder per kind of device, imported as ``accel.backends.<name>``; vendor knowledge lives here and nowhere else.

Loaded only through the entry points of ``accel.backends``, so nothing outside this package imports it.
"""
