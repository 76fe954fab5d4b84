"""Stores for a pool's shared state: the parts that all stores have in common, and one folder per kind of store."""
