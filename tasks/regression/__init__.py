"""The task `regression`: networks trained on targets that are numbers, measured by neural regression collapse."""
