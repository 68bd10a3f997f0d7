"""Pages of HTML: each is one file without references to any other, for light and dark screens."""
