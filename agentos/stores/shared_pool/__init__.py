"""The pool's rules applied to records that other processes change as well."""
