"""Items in other processes and on other machines: what goes there, what comes back, and what it means at home.

Nothing in here knows who carries it: an executor, a cluster, a socket of our own.
"""
