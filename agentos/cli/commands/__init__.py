"""One module for each command: it parses, calls one function, prints, and returns an exit code."""
