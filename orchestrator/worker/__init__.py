"""The process that runs packs: claims one, runs its task, commits rows, and shows that it is alive.

Imports `launch` and below. Begin with `__main__`, which an executor starts; `attempt_runner` runs the packs of one attempt.
"""
