"""A worker's side of a cluster: the client, its slots, and the attempts assigned to it."""
