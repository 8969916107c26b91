"""An attempt: its spec and options, record, liveness, events, the consequences of a failure, and the cancellation of a sweep.

Imports `console`, `storage` and `tasks`, nothing else of the orchestrator. Start with `spec` and `record`. `liveness` holds the
heartbeat rule, `retry_policy` the table of failure kinds.
"""
