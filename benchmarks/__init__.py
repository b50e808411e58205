"""Benchmarks to run from a checkout: ``python -m benchmarks.NAME``. README.md says what each prints and how to read it.

May import all of accel; nothing imports this.
"""
