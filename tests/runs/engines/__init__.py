"""Behaviour of single engines beyond their common contract."""
