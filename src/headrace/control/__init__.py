"""The control plane: makes the routing table true."""
