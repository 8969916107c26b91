"""Networks over a trial axis: the interface, the table of names, and one file per family."""
