"""Predict what a configuration needs: memory, time, cost, mesh. Pure: config in, values out; no torch."""
