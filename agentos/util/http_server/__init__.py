"""A small HTTP/1.1 server for asyncio: the request parser, bodies that spill to disk, and one protocol per connection.

The simulated provider and the gateway are built on it. It knows nothing of either.
"""
