"""Supervised tasks: built-in or custom networks on classes, numbers or next tokens, and the theory of their collapse."""
