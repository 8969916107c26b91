"""Metrics of features, one module per family. The functions take tensors and do not depend on a network or task."""
