"""Networks over a trial axis: the interface, then a file a family."""
