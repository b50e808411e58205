"""The simulated device: an accelerator with its own memory, streams and faults, on any machine. Never chosen by "auto".

Imported through the registry only. May import the contract and the native modules; needs no framework.
"""
