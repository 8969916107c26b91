"""The task `own`: `collapse` on a network or on data of the user's, in files beside the sweep."""
