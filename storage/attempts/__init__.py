"""What runs at this moment: claims on packs, records of attempts, heartbeats, live curves, the clock of the store, studies.

Imports `commits` and below. Begin with `claims`.
"""
