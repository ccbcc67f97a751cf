"""Service discovery over ``quintain.discovery``: services announce themselves, `quintain status` queries them."""
