"""Where the state of a pool is kept: what a store must do, and one file per kind of store."""
