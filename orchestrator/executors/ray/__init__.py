"""Packs on a Ray cluster, as trials of Ray Tune.

Imports the rooms below executors. Begin with `executor`; `session` connects, `dispatcher` and `worker` run packs on nodes;
what imports ray imports `settings` first.
"""
