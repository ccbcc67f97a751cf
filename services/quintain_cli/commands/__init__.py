"""One module for each command of ``quintain``. A module is imported when its command is used."""
