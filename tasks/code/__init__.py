"""Custom code: which files belong to a task, whether they may be executed, and how they are imported."""
