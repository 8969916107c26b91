"""One launch: compare a sweep with the store, form packs, drive them to their commits and report progress.

Imports `attempts`, `monitor`, `console`, `analysis` and the contract of executors. Read `launch_plan` (the work) first, then
`launch` (one launch around its driver) and `driver` (the loop).
"""
