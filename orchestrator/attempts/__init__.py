"""What happened to an attempt at a pack, what follows from a failure, and how a sweep is cancelled.

Imports the contract of executors, `storage` and `tasks`; nothing else of the orchestrator. Begin with `record`, the states and
kinds of failure; `failure_policy` is the table of what follows from each.
"""
