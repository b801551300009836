"""The root: its newest image, its settings in force, and threads for its storage."""
