"""Executors, the backends that run packs: the contract (`base`), the registry, and the local, Ray and SLURM backends.

Every package of the orchestrator may import `base`. The backends import `worker` and `search`, and only `cli` and `notebook`
import them. Start with `base`.
"""
