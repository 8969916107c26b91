"""A sweep's results for other programs: TensorBoard, MLflow, Optuna, LaTeX; a file each.

Imports `report` and below; only `cli` imports it.
"""
