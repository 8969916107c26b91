"""Measurements of features: a file a family. Each function is given tensors and knows neither network nor task."""
