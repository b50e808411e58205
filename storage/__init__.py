"""Storage tiers for KV pages, imported as ``accel.storage``.

May import the contract and the page layout (``accel.cache.pages``) only; an engine works without any tier.
"""
