"""The kinds of provider, one module each, behind the port of `quintain_worker.port`."""
