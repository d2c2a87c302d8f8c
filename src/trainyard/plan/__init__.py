"""What a configuration will take, before anything starts. Pure: config in, values out; no torch."""
