"""Read exceptions and responses of SDKs by their structure, without importing the SDKs."""
