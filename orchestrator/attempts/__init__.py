"""What happened to an attempt, whether it runs, what follows from a failure, and how a sweep is cancelled.

Imports the contract of executors, `storage` and `tasks`; nothing else of the orchestrator. Begin with `record`; `liveness` is
the rule for heartbeats, `retry` the table of what follows from each kind of failure.
"""
