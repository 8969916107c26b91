"""The code of tasks in a store: stored by launches, loaded by workers, compared between versions, executed with permission."""
