"""Fused training of packs of trials, from the first step to the last, for tasks of any kind."""
