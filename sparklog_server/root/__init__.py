"""The root as it is now: its image, its settings in force, and threads for its storage."""
