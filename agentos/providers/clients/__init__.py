"""Reading exceptions and responses of SDKs, by their shape and without importing the SDKs."""
