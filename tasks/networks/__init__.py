"""Networks over a trial axis: the interface, the table of names, then a file a family."""
