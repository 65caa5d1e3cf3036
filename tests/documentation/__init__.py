"""The documentation as a site, and its pictures, taken of what the commands really show."""
