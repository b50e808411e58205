"""KV cache: how pages are laid out, and the pool that holds them.

May import the contract and errors; knows no model, no scheduler and no storage tier.
"""
