"""One launch: compare a sweep with the store, cut packs, drive them to their commits, and say how it goes.

Imports `attempts`, `monitor`, `console` and `analysis`, and of executors their contract alone. Begin with `plan` (what is to
run), then `launch` (a launch around its driver) and `driver` (the loop).
"""
