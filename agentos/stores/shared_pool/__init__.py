"""The pool's rules on records that other processes change as well."""
