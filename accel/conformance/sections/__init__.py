"""The cases, a module a section. Importing one registers its cases.

Queues are drawn as ``q1 = [gate, copy, e!]``: a stream with a shut gate, a copy behind it, and the record of event e;
``e?`` waits for it.
"""
