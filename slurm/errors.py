"""Errors of SLURM.

InputError
└── SlurmError                  SLURM is missing, does not answer, or refuses
    ├── SubmitLimitError        no more jobs of this user are accepted now
    └── UnclearSubmissionError  it is unknown whether jobs were accepted
"""

from depthrate.errors import InputError


class SlurmError(InputError):
    """SLURM is missing, does not answer, or refuses. The message has the command or key and SLURM's answer."""


class SubmitLimitError(SlurmError):
    """The cluster accepts no more jobs from this user, or fewer jobs per submission."""


class UnclearSubmissionError(SlurmError):
    """sbatch gave no clear answer, and the controller does not report whether it accepted the jobs."""
