"""Upkeep beside running work: compaction, garbage, purges, verification and repair.

Imports `attempts` and below. Begin with `compact`; `verify` finds, `repair` mends.
"""
