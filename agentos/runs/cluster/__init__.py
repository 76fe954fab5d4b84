"""Workers on other machines: the driver's hub, the workers' links to it, and the seats in which they work.

Nothing in here knows who places the seats: Dask, or another cluster.
"""
