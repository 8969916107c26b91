"""Answers: SQL over what is committed, results as pandas, features of a layer, exports.

Imports `attempts` and below. Begin with `results`.
"""
