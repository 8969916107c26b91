"""How to speak to SLURM: what to ask for, submit, states, signals. Nothing here knows sweeps or stores."""
