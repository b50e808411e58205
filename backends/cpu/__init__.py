"""The CPU backend: complete, and the reference every other backend is compared with.

Imported through the registry only. May import the contract, the native core and (in paddle_binding.py alone) Paddle.
"""
