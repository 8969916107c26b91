"""A sweep's results for other programs: TensorBoard, MLflow, W&B, Delta, Optuna, LaTeX. All but LaTeX are registered exporters.

Imports `report` and below; only `api` and `cli` import it. Begin with `exporter`.
"""
