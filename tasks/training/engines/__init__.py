"""Engines that advance the trials of a pack: eager and native, and the choice between them."""
