"""Stages after training: a search for stationary points in float64, and the continuation of solutions from depth to depth."""
