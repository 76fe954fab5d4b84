"""What every SQLite file of agentos has in common: how it is opened, how its format grows, what its errors mean."""
