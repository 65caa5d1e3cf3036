"""Programs that are copied into written Harbor tasks; they import the standard library alone."""
