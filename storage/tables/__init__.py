"""What tables hold: columns and their types, columns of a task's own, parameters, states.

Imports `files`. Begin with `schema`.
"""
