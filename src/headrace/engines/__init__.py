"""How to talk to one replica, and the replicas that we bring ourselves."""
