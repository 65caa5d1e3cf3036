"""Programs of the judges that run inside a sandbox, on the standard library only."""
