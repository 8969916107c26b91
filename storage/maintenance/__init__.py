"""Upkeep next to running work: compaction, garbage collection, purges, verification and repair.

Imports `attempts` and below. Start with `compact`. `verify` finds faults, and `repair` fixes them.
"""
