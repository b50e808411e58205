"""Scheduling: which request computes what in the next step, and what becomes of its output.

May import runner and cache; knows no engine, no model and no vendor.
"""
