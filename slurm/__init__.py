"""Interface to SLURM: resources of jobs, limits, submission, job states, signals. Independent of sweeps and stores."""
