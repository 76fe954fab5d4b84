"""The SQLite store: a pool's state in a file that the processes of one machine share."""
