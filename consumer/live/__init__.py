"""A host's stores as they are now, for the eye: one model of them, a page for browsers and a screen for terminals that show it."""
