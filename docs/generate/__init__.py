"""Makes the site of docs/: the pages of the reference from the code, and the other pages as they are."""
