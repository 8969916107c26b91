"""Native training steps generated from the traced graph of any network's loss and gradient."""
