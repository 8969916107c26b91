"""How to speak to SLURM. Nothing is here yet: `--executor slurm` is refused with a message."""
