"""Commands as workers: template, shell quoting, environment, process, outcome file.

A helper process (``helper_process.py``) starts every command in a session of its own and reports its exit status.
When the driver dies, the helper's socket closes: it ends all process groups, and then every process that has the
run's mark in its environment. Ctrl-Z and a missing heartbeat suspend the commands.
"""
