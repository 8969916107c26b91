"""Write a sweep's results for TensorBoard, W&B, Optuna and LaTeX. All but LaTeX are registered exporters.

Imports `report` and packages below it. Only `api` and `cli` import it. Entry point: `exporter`.
"""
