"""The task `supervised`: networks, built-in or custom, on classes, numbers or next tokens, and theory of their collapse."""
