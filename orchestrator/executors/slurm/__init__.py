"""The SLURM executor: packs as job arrays, and whole launches as jobs.

Imports `slurm/`, which runs the scheduler's commands, and the packages below executors. Start with `executor`. `submitter`
submits jobs, `queue` polls them, `job` runs inside them, `outcomes` decides how they ended, and `remote_launch` submits whole
launches.
"""
