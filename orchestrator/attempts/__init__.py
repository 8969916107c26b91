"""State of an attempt: its record, its liveness, the consequences of a failure, and the cancellation of a sweep.

Imports the executor contract, `storage` and `tasks`, nothing else of the orchestrator. Start with `record`. `liveness` holds
the heartbeat rule, `retry` the table of failure kinds.
"""
