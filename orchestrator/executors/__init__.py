"""Where packs run: the contract (`base`), the table of executors (`registry`), this machine, Ray and SLURM.

`base` may be imported by every room of the orchestrator; the others stand above `worker` and `search`, and nothing but `cli`
and `notebook` imports them. Begin with `base`.
"""
