"""Checks of the machines before anything long starts. Pure: the facts are handed in."""
