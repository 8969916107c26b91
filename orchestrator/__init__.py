"""The verbs: plan, run, status, fit, report; and the command line."""
