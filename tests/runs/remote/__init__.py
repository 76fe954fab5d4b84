"""What goes to workers elsewhere, and what comes back."""
