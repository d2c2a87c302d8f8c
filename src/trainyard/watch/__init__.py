"""The verdict on a run: which of the four parts of the proof hold."""
