"""The driver's side of a cluster: the server that workers connect to, and its attempts on them."""
