"""Agents as workers: the protocol of a program, the verdict on its end, and its work tree."""
