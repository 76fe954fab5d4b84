"""The live page: a server of its own on this machine that reads run folders, and pushes what is new to browsers.

``server.py`` serves it, ``access.py`` decides who may ask, ``run_feed.py`` follows one run, ``journal_changes.py``
reads what is new in its journal, ``item_facts.py`` one item and its log. The run itself is not asked for anything.
"""
