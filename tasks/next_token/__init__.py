"""The task `next_token`: causal networks trained on the token after each, and the collapse of language models."""
