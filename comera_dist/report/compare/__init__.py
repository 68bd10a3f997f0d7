"""Runs side by side as one page of HTML, from the files of their directories alone."""
