"""Scheduling: which request computes what in the next step.

May import runner and cache; knows no engine, no model and no vendor.
"""
