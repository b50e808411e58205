"""Models: what a model file says (config, weights, tokenizer) and the one decoder that runs it.

Reads files and computes tables with NumPy; executes nothing itself and knows no vendor.
Imported by the runner, the engine and the CLI; imports only ``accel.errors`` and, in the decoder, ops and the contract.
"""
