"""Read HTTP answers: headers, bodies, delays, error details, and the events they mean."""
