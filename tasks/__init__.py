"""Tasks: functions from parameters to tables. Torch is imported here only, stores and clusters never."""
