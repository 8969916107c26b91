"""The task `collapse`: deep residual networks and transformers, and the theory of their collapse."""
