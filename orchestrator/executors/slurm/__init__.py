"""The SLURM executor: packs as jobs of arrays.

Start with `executor`. `submitter` submits jobs, `watched_jobs` polls them, `outcomes` decides how their packs ended, and `job`
runs inside them. `submissions` has the records through which any process finds the jobs.
"""
