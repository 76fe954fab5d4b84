"""Messages about a run, sent by a small process of its own that outlives the driver.

``client.py`` is the driver's end of the pipe to it, ``notifier.py`` the process, ``rules.py`` decides what is worth a
message, ``channels.py`` sends it: to a command, or to a webhook. When the driver dies, the pipe ends, and that is news.
"""
