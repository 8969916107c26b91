"""The task `words`: sentences made of concepts, networks of one embedding and one linear layer, and what theory says of both."""
