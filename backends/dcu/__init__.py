"""Hygon DCUs through DTK (HIP): the probe now, the device later (see README.md).

Found by the entry point of its name; nothing outside this folder imports it.
"""
