"""The Ray executor: packs on a Ray cluster, run by workers that are Ray Tune trials.

Imports the packages below executors. Start with `executor`. `session` connects to Ray, `dispatcher` assigns packs, and `worker`
runs them on the nodes. Modules that import ray import `settings` first.
"""
