"""Rules between sections of the configuration, a module for each subject.

A function takes the sections that it compares and yields every rule: whether it is broken, and a
message that names the keys and the fix. ``schema.Config`` checks all of them.
"""
