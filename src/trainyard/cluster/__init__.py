"""Checks of the local machine before anything long starts. The judgements are pure: facts are passed in."""
