"""One page about a run, for the browser: a report in one file, and the same page live.

``report_file.py`` writes the file: ``item_columns.py`` collects all items and attempts while the journal is read,
``packing.py`` compresses them, ``head_facts.py`` has what the page says in words, ``html_page.py`` puts it together.
``assets/`` has the style sheet and the scripts, which are put into the file as they are: there is no build step, and
the page makes no request.
"""
