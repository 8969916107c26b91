"""State of running work: claims on packs, attempt records, heartbeats, live curves, the store's clock, studies.

Imports `commits` and below. Start with `claims`.
"""
