"""The science: parameters in, tables out. Torch lives here; no store and no cluster do."""
