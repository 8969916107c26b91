"""The task `words`: sentences made of concepts, networks of an embedding and a linear layer, and their theory."""
