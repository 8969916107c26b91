"""Metrics of features, one module per family. The functions take tensors and depend on no network or task."""
