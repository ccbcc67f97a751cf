"""The server of `quintain view`: folders of results on loopback, for the holder of its token."""
