"""Ways of working through a list of items. So far one: in parallel."""
