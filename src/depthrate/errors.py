"""The class that all errors about input share. Commands print such an error as one message and exit with code 2.

InputError (a ValueError)
├── StoreError, QueryError, TableError, ForeignNameError, ForeignFile, NewerFile   a store, a query, a file of a store
├── SweepError, ExpressionError, MemoryLimitError                                  a sweep file
├── TaskError, ParameterError, EngineError, FeaturesError, FitError, LabelsError,  a task, its parameters, code or features
│   MeasurementError, PluginError, CallMismatchError, TooManyFilesError
├── DatasetError, UnknownDatasetError                                              a data set
├── SlurmError                                                                     a SLURM cluster
├── ExecutorError, MachineError, OptionError, RayError, SubmitError                an executor
├── CodeChangedError, TableConflictError                                           a launch, an export
└── UsageError                                                                     options and names of a command

Errors that a user's input does not cause have other bases: `Interrupted`, `Diverged` and `Pruned` end a trial, OSErrors such as
`StoreFullError` come from the system.
"""


class InputError(ValueError):
    """Wrong input: what is given, what is allowed, and the fix."""
