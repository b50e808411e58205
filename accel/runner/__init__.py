"""The model runner: a StepPlan goes in, a PendingStep comes out. The same on every backend.

May import models, cache, ops and the contract; knows no scheduler, no engine and no vendor.
"""
