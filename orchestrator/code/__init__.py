"""Code of tasks in a store: stored by launches, loaded by workers, compared between versions, run only if trusted."""
