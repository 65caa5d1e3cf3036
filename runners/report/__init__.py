"""The report of a run: one page of HTML, made of its store alone, that loads nothing."""
