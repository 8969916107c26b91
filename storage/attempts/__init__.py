"""State of running work: claims on packs, attempt records, heartbeats, live curves, the clock of the store, studies.

Imports `commits` and below. Start with `claims`.
"""
