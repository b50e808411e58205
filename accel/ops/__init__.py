"""Ops: one module per family, each with the schema, the NumPy reference and the tolerance of its ops.

`spec.py` says what an op is, `table.py` binds a backend's implementations. May import the contract and errors only.
"""
