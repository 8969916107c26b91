"""Training packs of trials fused, from the first step to the last, for tasks of any kind."""
