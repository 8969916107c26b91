"""The operations of depthrate: typed options in, objects out, exceptions for errors. Commands and notebooks call them."""
