"""Packs as jobs of SLURM: arrays of bundled packs, and whole launches that are sent into an allocation.

Imports `slurm/`, which speaks to the scheduler, and the rooms below executors. Begin with `executor`; `submitter` hands in,
`queue` and `job` look, `outcomes` says how jobs ended, `remote_launch` sends a whole launch away.
"""
