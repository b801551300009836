"""Waiting without threads: a timing wheel for deadlines, a purgatory for requests that wait for records."""
