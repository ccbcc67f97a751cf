"""The command ``quintain``. It composes the services and is the only package that imports all of them."""
