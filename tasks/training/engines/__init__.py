"""Engines that advance the trials of a pack: eager, native and compiled, and the choice between them."""
