"""Reading an HTTP answer: headers, bodies, delays, error details, and the events they mean."""
