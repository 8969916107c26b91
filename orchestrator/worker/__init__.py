"""The process that runs packs: run a pack's task, commit its rows, write heartbeats.

Imports `launch` and the packages below it. Read `__main__`, which executors start, and `attempt_runner` (one attempt) first.
"""
