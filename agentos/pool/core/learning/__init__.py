"""Learning from answers: reported limits, adaptive rate and concurrency, outages, usage."""
