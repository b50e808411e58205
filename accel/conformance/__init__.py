"""Suites that any backend must pass: what the contract says, as tests anybody can run against a device.

May import the contract, ops, cache and runner; knows no vendor.
"""
